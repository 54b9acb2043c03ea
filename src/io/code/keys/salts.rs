//! Salts and write numbers.
//!
//! **Why no nonce is used twice.** AES-GCM breaks when one key encrypts two messages under one nonce. Pages are encrypted under a
//! subkey of (tenant key, salt), records under another of the same two.
//!
//! 1. A salt is 32 random bytes, drawn at the start that writes under it. No start encrypts anything under a salt that it read
//!    from the disk. So subkeys of two starts differ, whatever the disk says of numbers, and also if a power cut has made the disk
//!    forget a start.
//! 2. Within a start every encryption of a page takes a new write number, one count for all slabs and tenants of the disk
//!    ([`Salts::take`]), and the write number stands in the nonce. A page that is written again (another generation, the same
//!    generation after an error, a part of its slot) is encrypted anew under a new number. What a device is given again after a
//!    short write are the same encrypted bytes.
//! 3. Write numbers have 32 bits. Before they wrap, the next salt is drawn, and they begin again.
//! 4. Region, slot and plane stand in the nonce too. They are not needed for any of this: a second lock on the same door.
//!
//! Nonces of records are the log's (`tiering::log::Cipher`): it never repeats one under a salt, nor encrypts under an old one.

use super::error::KeyError;
use kvtide_tiering::log::Salt;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a salt.
const SALT_BYTES: usize = 32;
/// Salts of one start have numbers in a row.
const A_START: u32 = 1 << 8;
/// Write numbers under one salt.
const NUMBERS: u64 = 1 << 32;

/// All salts of a disk.
#[derive(Debug, Default)]
pub(super) struct Salts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Those that records name, and those of this start.
    known: BTreeMap<u32, [u8; SALT_BYTES]>,
    /// The one that is written under; 0: none.
    current: u32,
    /// Its write numbers that were taken.
    taken: u64,
    /// Drawn, and not yet in the log.
    unrecorded: Vec<Salt>,
}

/// Why nothing can be encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Spent {
    /// The other pages of the slot are under another salt, and a slot has one.
    #[error("its slot holds pages under another salt")]
    Other,
    /// No salt was begun, or no more can be drawn.
    #[error("there is no salt to write under")]
    None,
}

impl Salts {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here can panic half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A salt that the log names.
    pub fn learn(&self, salt: &Salt) {
        self.state().known.entry(salt.number).or_insert(salt.bytes);
    }

    /// The bytes of a salt.
    pub fn get(&self, number: u32) -> Option<[u8; SALT_BYTES]> {
        self.state().known.get(&number).copied()
    }

    /// Draws the first salt of the start with this number, after the log's were learnt.
    ///
    /// # Errors
    /// The system gives no random bytes, or numbers of starts have run out.
    pub fn begin(&self, run: u32) -> Result<(), KeyError> {
        let first = run.checked_mul(A_START).ok_or(KeyError::Starts { run })?;
        self.state().draw(first.max(1)).ok_or(KeyError::Random)
    }

    /// Takes write numbers for so many pages: the salt and the first of them. `under`: the salt that pages beside them are under
    /// already; 0: none are.
    ///
    /// # Errors
    /// [`Spent`].
    pub fn take(&self, count: u32, under: u32) -> Result<(u32, u32), Spent> {
        let mut state = self.state();
        if state.current == 0 {
            return Err(Spent::None);
        }
        if state.taken + u64::from(count) > NUMBERS {
            let next = state.current + 1;
            state.draw(next).ok_or(Spent::None)?;
        }
        if under != 0 && under != state.current {
            return Err(Spent::Other);
        }
        let first = state.taken as u32;
        state.taken += u64::from(count);
        Ok((state.current, first))
    }

    /// A salt that was drawn and is not in the log yet; the caller writes it there before anything that names it.
    pub fn unrecorded(&self) -> Option<Salt> {
        self.state().unrecorded.pop()
    }
}

impl State {
    /// Draws a salt with this number or, if that was used, the next that was not.
    fn draw(&mut self, mut number: u32) -> Option<()> {
        while self.known.contains_key(&number) {
            number = number.checked_add(1)?;
        }
        let mut bytes = [0; SALT_BYTES];
        SystemRandom::new().fill(&mut bytes).ok()?;
        self.known.insert(number, bytes);
        self.unrecorded.insert(0, Salt { number, bytes });
        (self.current, self.taken) = (number, 0);
        Some(())
    }
}

#[cfg(test)]
impl Salts {
    /// The salt that is written under; 0: none.
    pub fn current(&self) -> u32 {
        self.state().current
    }

    /// As if no more than so many numbers were left; none that was taken comes back.
    pub fn leave(&self, numbers: u64) {
        let mut state = self.state();
        state.taken = state.taken.max(NUMBERS - numbers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_never_repeat_under_a_salt() {
        let salts = Salts::default();
        assert_eq!(salts.take(1, 0), Err(Spent::None), "before the start");
        salts.begin(5).unwrap();
        let (first, mut seen) = (salts.current(), HashSet::new());
        let mut take = |count, under| {
            let (salt, from) = salts.take(count, under)?;
            for number in 0..count {
                assert!(seen.insert((salt, from.checked_add(number).unwrap())), "{salt} {from} + {number}");
            }
            Ok(salt)
        };
        assert_eq!((take(3, 0), take(1, first)), (Ok(first), Ok(first)));
        salts.leave(4);
        assert_eq!((take(4, 0), take(1, first)), (Ok(first), Err(Spent::Other)), "the next salt began");
        assert_eq!(take(2, 0), Ok(first + 1));
        salts.leave(1);
        assert_eq!(take(2, 0), Ok(first + 2), "those that do not fit are not split");
        assert_eq!(salts.unrecorded().map(|salt| salt.number), Some(first));
        assert_eq!(salts.unrecorded().map(|salt| salt.number), Some(first + 1), "in order");
    }

    #[test]
    fn no_start_writes_under_a_salt_that_it_read() {
        let one = Salts::default();
        one.begin(1).unwrap();
        let salt = one.unrecorded().unwrap();
        // A disk that forgot that there was a start: the same number of a start comes twice.
        let two = Salts::default();
        two.learn(&salt);
        two.begin(1).unwrap();
        assert_ne!(two.current(), salt.number);
        assert_eq!(two.get(salt.number), Some(salt.bytes), "what was written under it is read");
        let forgotten = Salts::default();
        forgotten.begin(1).unwrap();
        assert_ne!(forgotten.get(salt.number), Some(salt.bytes), "the same number, another salt");
        assert!(forgotten.begin(u32::MAX).is_err());
    }
}
