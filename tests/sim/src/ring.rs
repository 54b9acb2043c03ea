//! Simulated rings: first in, first out, bounded, and visible to the other side only after a delay.
//!
//! Loom checks the shipped rings in their own crate. Here it matters that messages of different rings overtake each other and that
//! a ring can be full.

use std::collections::VecDeque;

/// A ring of one direction.
#[derive(Debug)]
pub struct Ring<T> {
    entries: VecDeque<(u64, T)>,
    depth: usize,
}

impl<T> Ring<T> {
    /// Create an empty ring of `depth` entries.
    #[must_use]
    pub fn new(depth: usize) -> Ring<T> {
        Ring { entries: VecDeque::new(), depth }
    }

    /// Return whether no entry fits.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.depth
    }

    /// Return the number of entries in the ring, visible or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Return whether the ring holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Append an entry that the other side sees at `at_us` or when it sees the previous one, whichever is later; return that time,
    /// or give the entry back if the ring is full.
    pub fn push(&mut self, at_us: u64, entry: T) -> Result<u64, T> {
        if self.is_full() {
            return Err(entry);
        }
        let seen_us = self.entries.back().map_or(at_us, |(last, _)| at_us.max(*last));
        self.entries.push_back((seen_us, entry));
        Ok(seen_us)
    }

    /// Return the oldest entry if it is visible at `now_us`.
    #[must_use]
    pub fn peek(&self, now_us: u64) -> Option<&T> {
        self.entries.front().filter(|(seen_us, _)| *seen_us <= now_us).map(|(_, entry)| entry)
    }

    /// Take the oldest entry if it is visible at `now_us`.
    pub fn pop(&mut self, now_us: u64) -> Option<T> {
        match self.entries.front() {
            Some((seen_us, _)) if *seen_us <= now_us => self.entries.pop_front().map(|(_, entry)| entry),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Ring;

    #[test]
    fn order_delay_and_bound_hold() {
        let mut ring = Ring::new(2);
        assert_eq!((ring.push(10, 'a'), ring.push(5, 'b'), ring.push(20, 'c')), (Ok(10), Ok(10), Err('c')));
        assert_eq!((ring.pop(9), ring.pop(10), ring.pop(10), ring.pop(10)), (None, Some('a'), Some('b'), None));
    }
}
