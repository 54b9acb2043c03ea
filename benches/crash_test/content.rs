//! Contents to store, and their state as reported by the daemon.
//!
//! Contents form a forest: a block's hash follows from its parent's hash and from a value that differs between siblings, and the
//! bytes of its pages follow from its hash. A reader therefore knows every byte from the hash.

use super::plan::{DEPTH_MAX, PAGE_BYTES};
use kvtide_types::random::Random;
use kvtide_wire::entry::Level;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Index of a content in the book.
pub type Id = u32;

/// Content of one block.
#[derive(Clone, Copy, Debug)]
struct Content {
    hash: u128,
    parent: Option<Id>,
    depth: u32,
    /// The highest level reported for it by a publish.
    reported: Option<Level>,
    /// Found after a kill since it was reported stored.
    recovered: bool,
}

/// All contents of a phase.
#[derive(Debug, Default)]
struct Contents {
    all: Vec<Content>,
}

/// All contents of a phase with their reported state, shared by all threads.
#[derive(Debug, Default)]
pub struct Book(Mutex<Contents>);

/// A chain from a root to a content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Contents of the chain.
    pub ids: Vec<Id>,
    /// Hashes of the contents.
    pub hashes: Vec<u128>,
}

/// State of a found content before the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Reported stored and not found since; now recovered.
    Recovered,
    /// Found after an earlier kill.
    Again,
    /// Not reported stored.
    More,
}

impl Book {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        // A thread that panicked while holding the lock has left either a whole entry or none.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return an existing chain that can grow, or an empty one.
    pub fn chain(&self, random: &mut Random) -> Option<Chain> {
        let contents = self.contents();
        let last = (contents.all.len() as u64).checked_sub(1)?;
        // In half of the cases one of the newest, which other threads are writing now.
        let newest = last.saturating_sub(64);
        let id = if random.one_in(2) { newest + random.below(last - newest + 1) } else { random.below(last + 1) };
        Some(contents.chain(id as Id))
    }

    /// Create up to `blocks` new contents below a chain and add them to it.
    pub fn grow(&self, chain: &mut Chain, blocks: usize, random: &mut Random) {
        let mut contents = self.contents();
        for _ in 0..blocks.min(DEPTH_MAX.saturating_sub(chain.ids.len())) {
            let (parent, above) = (chain.ids.last().copied(), chain.hashes.last().copied().unwrap_or(0));
            let [low, high] = [above as u64, (above >> 64) as u64];
            let mut own = Random::new(low ^ high.rotate_left(17) ^ random.next());
            // Zero is not a valid hash: it means "no parent".
            let hash = (u128::from(own.next()) << 64 | u128::from(own.next())).max(1);
            chain.ids.push(contents.all.len() as Id);
            chain.hashes.push(hash);
            let depth = chain.ids.len() as u32;
            contents.all.push(Content { hash, parent, depth, reported: None, recovered: false });
        }
    }

    /// Record a reported level.
    pub fn reported(&self, ids: &[Id], level: Level) {
        let mut contents = self.contents();
        for id in ids {
            let content = &mut contents.all[*id as usize];
            content.reported = content.reported.max(Some(level));
        }
    }

    /// Return chains that cover all contents reported stored. Each ends with such a content.
    pub fn stored(&self) -> Vec<Chain> {
        let contents = self.contents();
        let mut below = vec![false; contents.all.len()];
        let mut chains = Vec::new();
        // Children have larger ids than their parents, so descendants of a content are visited first.
        for id in (0..contents.all.len()).rev() {
            let content = &contents.all[id];
            let stored = content.is_stored();
            if stored && !below[id] {
                chains.push(contents.chain(id as Id));
            }
            if let Some(parent) = content.parent {
                below[parent as usize] |= stored || below[id];
            }
        }
        chains
    }

    /// Return the number of contents reported stored so far.
    pub fn stored_count(&self) -> u64 {
        self.contents().all.iter().filter(|content| content.is_stored()).count() as u64
    }

    /// Record that a content was read after a kill and was correct.
    pub fn found(&self, id: Id) -> Found {
        let content = &mut self.contents().all[id as usize];
        if !content.is_stored() {
            return Found::More;
        }
        if std::mem::replace(&mut content.recovered, true) { Found::Again } else { Found::Recovered }
    }

    /// Record that a content was not found after a kill, or could not be read. Return true if it had been reported stored; it is
    /// then not expected again.
    pub fn missing(&self, id: Id) -> bool {
        let content = &mut self.contents().all[id as usize];
        let promised = content.is_stored();
        (content.reported, content.recovered) = (None, false);
        promised
    }
}

impl Content {
    fn is_stored(&self) -> bool {
        self.reported >= Some(Level::Stored)
    }
}

impl Contents {
    fn chain(&self, id: Id) -> Chain {
        let len = self.all[id as usize].depth as usize;
        let mut chain = Chain { ids: Vec::with_capacity(len), hashes: Vec::with_capacity(len) };
        let mut next = Some(id);
        while let Some(id) = next {
            let content = &self.all[id as usize];
            chain.ids.push(id);
            chain.hashes.push(content.hash);
            next = content.parent;
        }
        chain.ids.reverse();
        chain.hashes.reverse();
        chain
    }
}

/// Return the generator of the words of a content's page.
fn words(hash: u128, plane: u16) -> Random {
    Random::new(
        (hash as u64) ^ ((hash >> 64) as u64).rotate_left(29) ^ u64::from(plane).wrapping_mul(0xa076_1d64_78bd_642f),
    )
}

/// Fill a page of a content.
pub fn fill(hash: u128, plane: u16, page: &mut [u8]) {
    let mut random = words(hash, plane);
    for chunk in page.chunks_mut(8) {
        chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
    }
}

/// Return the first byte of a page that does not match its content.
pub fn first_wrong(hash: u128, plane: u16, page: &[u8]) -> Option<usize> {
    if page.len() != PAGE_BYTES[usize::from(plane)] as usize {
        return Some(page.len());
    }
    let mut random = words(hash, plane);
    page.chunks(8).enumerate().find_map(|(chunk, bytes)| {
        let right = random.next().to_le_bytes();
        let wrong = bytes.iter().zip(right).position(|(byte, right)| *byte != right)?;
        Some(chunk * 8 + wrong)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_page_counts() {
        for (plane, bytes) in PAGE_BYTES.into_iter().enumerate() {
            let (plane, mut page) = (plane as u16, vec![0; bytes as usize]);
            fill(77, plane, &mut page);
            assert_eq!(first_wrong(77, plane, &page), None);
            assert!(first_wrong(78, plane, &page).is_some() && first_wrong(77 << 64, plane, &page).is_some());
            for at in 0..page.len() {
                page[at] ^= 1;
                assert_eq!(first_wrong(77, plane, &page), Some(at));
                page[at] ^= 1;
            }
            assert!(first_wrong(77, plane, &page[1..]).is_some());
        }
    }

    #[test]
    fn what_is_stored_is_covered_by_chains_that_end_with_it() {
        let (book, mut random) = (Book::default(), Random::new(1));
        let (mut trunk, mut other) = (Chain::default(), Chain::default());
        book.grow(&mut trunk, 4, &mut random);
        other.ids.extend(&trunk.ids[..2]);
        other.hashes.extend(&trunk.hashes[..2]);
        book.grow(&mut other, 3, &mut random);
        assert_eq!(book.stored(), []);
        book.reported(&trunk.ids[..3], Level::Stored);
        book.reported(&other.ids[4..], Level::Durable);
        book.reported(&other.ids, Level::Published);
        let to_third = Chain { ids: trunk.ids[..3].to_vec(), hashes: trunk.hashes[..3].to_vec() };
        assert_eq!(book.stored(), [other.clone(), to_third]);
        assert_eq!(book.stored_count(), 4);
        let last = other.ids[4];
        assert_eq!(
            (book.found(last), book.found(last), book.found(other.ids[3])),
            (Found::Recovered, Found::Again, Found::More)
        );
        assert!(book.missing(last) && !book.missing(last) && !book.missing(other.ids[3]));
        assert_eq!(book.stored_count(), 3, "lost contents are not expected again");
        book.grow(&mut trunk, 1000, &mut random);
        assert_eq!(trunk.ids.len(), DEPTH_MAX);
    }
}
