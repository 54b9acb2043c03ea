//! Salts and write numbers.
//!
//! **Why no nonce is used twice.** AES-GCM is broken if one key encrypts two messages under one nonce. Pages are encrypted with one
//! subkey of (tenant key, salt), records with another.
//!
//! 1. A salt is 32 random bytes, created at each start. A start never encrypts under a salt that it read from the disk. So the
//!    subkeys of two starts differ, whatever numbers the disk holds, and even if the disk lost all traces of a start in a power
//!    cut.
//! 2. Within a start, every encryption of a page takes a new write number ([`Salts::take`]), which is part of the nonce. One
//!    counter serves all slabs and tenants of the disk. A page that is written again (another generation, the same generation after
//!    an error, a part of its slot) is encrypted again under a new number. Only the rest of a short write is sent again as the same
//!    encrypted bytes.
//! 3. Write numbers have 32 bits. Before they wrap, the next salt is created, and they start from 0 again.
//! 4. Region, slot and plane are part of the nonce too. Uniqueness does not depend on them; they are a second line of defence.
//!
//! The log chooses the nonces of records (`tiering::log::Cipher`): it never repeats one under a salt, and never encrypts under an
//! old salt.

use super::error::KeyError;
use kvtide_format::log::Salt;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a salt.
const SALT_BYTES: usize = 32;
/// Salt numbers reserved for one start.
const A_START: u32 = 1 << 8;
/// Write numbers per salt.
const NUMBERS: u64 = 1 << 32;

/// All salts of a disk.
#[derive(Debug, Default)]
pub(super) struct Salts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Salts used by records, and those of this start.
    known: BTreeMap<u32, [u8; SALT_BYTES]>,
    /// Salt in use for writing; 0: none.
    current: u32,
    /// Number of its write numbers taken.
    taken: u64,
    /// Salts that are not in the log yet.
    unrecorded: Vec<Salt>,
}

/// Reasons why nothing can be encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Spent {
    /// Other pages of the slot are encrypted under another salt; a slot has only one.
    #[error("the slot holds pages under another salt")]
    Other,
    /// No salt was created yet, or no further one can be created.
    #[error("no salt available")]
    None,
}

impl Salts {
    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is safe to use: no panic can leave the state inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Add a salt that the log contains.
    pub fn learn(&self, salt: &Salt) {
        self.state().known.entry(salt.number).or_insert(salt.bytes);
    }

    /// Return the bytes of a salt.
    pub fn get(&self, number: u32) -> Option<[u8; SALT_BYTES]> {
        self.state().known.get(&number).copied()
    }

    /// Create the first salt of the start with this number. The log's salts must be known already.
    ///
    /// # Errors
    /// The system provides no random bytes, or the start numbers are used up.
    pub fn begin(&self, run: u32) -> Result<(), KeyError> {
        let first = run.checked_mul(A_START).ok_or(KeyError::Starts { run })?;
        self.state().draw(first.max(1)).ok_or(KeyError::Random)
    }

    /// Take write numbers for `count` pages; return the salt and the first number. `under`: the salt of the other pages of the
    /// slot; 0: none.
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

    /// Return a salt that is not in the log yet. The caller must record it there before anything that uses it.
    pub fn unrecorded(&self) -> Option<Salt> {
        self.state().unrecorded.pop()
    }
}

impl State {
    /// Create a salt with this number or, if it is used, the next free one.
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
    /// Return the salt in use for writing; 0: none.
    pub fn current(&self) -> u32 {
        self.state().current
    }

    /// Continue as if at most `numbers` numbers were left. Taken numbers stay taken.
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
        assert_eq!(salts.take(1, 0), Err(Spent::None), "before the first salt");
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
        assert_eq!((take(4, 0), take(1, first)), (Ok(first), Err(Spent::Other)), "the next salt is in use");
        assert_eq!(take(2, 0), Ok(first + 1));
        salts.leave(1);
        assert_eq!(take(2, 0), Ok(first + 2), "a request that does not fit is not split");
        assert_eq!(salts.unrecorded().map(|salt| salt.number), Some(first));
        assert_eq!(salts.unrecorded().map(|salt| salt.number), Some(first + 1), "in order");
    }

    #[test]
    fn no_start_writes_under_a_salt_that_it_read() {
        let one = Salts::default();
        one.begin(1).unwrap();
        let salt = one.unrecorded().unwrap();
        // The disk lost a start, so the same start number comes twice.
        let two = Salts::default();
        two.learn(&salt);
        two.begin(1).unwrap();
        assert_ne!(two.current(), salt.number);
        assert_eq!(two.get(salt.number), Some(salt.bytes), "pages written under it can be read");
        let forgotten = Salts::default();
        forgotten.begin(1).unwrap();
        assert_ne!(forgotten.get(salt.number), Some(salt.bytes), "same number, different salt");
        assert!(forgotten.begin(u32::MAX).is_err());
    }
}
