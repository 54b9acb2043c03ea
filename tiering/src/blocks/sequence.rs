//! Block lists of sequences: chunks of a pool shared by all sequences of the space, found through a directory per sequence.

use crate::api::{Contract, Limits, NONE};
use serde::{Deserialize, Serialize};

/// Priority of a sequence without an explicit one.
pub(crate) const NEUTRAL_PRIORITY: u8 = 128;

/// Blocks per chunk.
pub(crate) const CHUNK: u32 = 32;

/// One sequence.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Seq {
    pub(super) live: bool,
    /// The unsealed blocks are in host, not in tier 0.
    pub parked: bool,
    /// Index of the fork, truncate, park or resume in progress, plus 1; 0: none.
    pub busy: u32,
    pub(super) blocks: u32,
    /// Committed tokens.
    pub tokens: u64,
    /// First block index that may still hold window pages to discard.
    pub discard_from: u32,
    /// Priority: a higher one is kept longer; 128 is neutral.
    pub priority: u8,
    /// Number of committed tokens at which the engine will drop the sequence, as it announced; `u64::MAX`: unknown.
    pub ends_at: u64,
    /// Read once, front to back: its pages are evicted first.
    pub sequential: bool,
    /// How much of the sequence a step must read.
    pub contract: Contract,
    /// Index of its predictions; `NONE` unless it is `approx`.
    pub track: u32,
    /// The session's step clock at its last commit or step.
    pub stamp: u32,
    /// Due time of a parked sequence in microseconds; 0: unknown.
    pub due_us: u64,
    /// Expiry time of a lease in microseconds; `u64::MAX`: not a lease.
    pub leased_until: u64,
    /// Preferred disk: the one that holds its prefix chain, if any of it is on NVMe.
    pub(super) disk: Option<u16>,
}

impl Seq {
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Return the number of blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Return the disk that holds its prefix chain, if any of it is on NVMe.
    pub fn disk(&self) -> Option<u16> {
        self.disk
    }

    /// Return whether it is a lease that has started.
    pub fn is_lease(&self) -> bool {
        self.leased_until != u64::MAX && self.busy == 0
    }

    /// Return whether the sequence is nearly finished: by its engine's announcement, at most `tokens` tokens remain, and the
    /// announced end has not passed. A parked sequence does not count.
    pub fn is_ending(&self, tokens: u32) -> bool {
        tokens > 0 && !self.parked && self.ends_at.checked_sub(self.tokens).is_some_and(|left| left <= tokens.into())
    }
}

impl Default for Seq {
    fn default() -> Self {
        Seq {
            live: false,
            parked: false,
            busy: 0,
            blocks: 0,
            tokens: 0,
            discard_from: 0,
            priority: 0,
            ends_at: u64::MAX,
            sequential: false,
            contract: Contract::Exact,
            track: NONE,
            stamp: 0,
            due_us: 0,
            leased_until: u64::MAX,
            disk: None,
        }
    }
}

/// The sequences of a session, each with a directory of the chunks that list its blocks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sequences {
    pub seqs: Vec<Seq>,
    /// Directory entries per sequence.
    pub dir_len: usize,
    pub dirs: Vec<u32>,
}

impl Sequences {
    /// Allocate all tables that the session will use.
    pub fn new(limits: &Limits) -> Sequences {
        let (dir_len, seqs) = (limits.seq_blocks_max.div_ceil(CHUNK) as usize, limits.seqs_max as usize);
        Sequences { seqs: vec![Seq::default(); seqs], dir_len, dirs: vec![NONE; dir_len * seqs] }
    }

    pub fn dir(&self, seq: u32) -> &[u32] {
        &self.dirs[seq as usize * self.dir_len..(seq as usize + 1) * self.dir_len]
    }

    /// Return the bytes of all vectors.
    pub fn bytes(&self) -> usize {
        self.seqs.capacity() * size_of::<Seq>() + self.dirs.capacity() * size_of::<u32>()
    }
}

/// Pool of chunks. Memory of a chunk is allocated when it is first taken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Chunks {
    /// Words of all chunks that have been used.
    words: Vec<u32>,
    /// Free chunks among those.
    free: Vec<u32>,
    max: u32,
}

impl Chunks {
    pub fn new(count: u32) -> Chunks {
        let words = Vec::with_capacity(count as usize * CHUNK as usize);
        Chunks { words, free: Vec::with_capacity(count as usize), max: count }
    }

    pub fn free_chunks(&self) -> usize {
        self.free.len() + self.count() - self.words.len() / CHUNK as usize
    }

    fn take(&mut self) -> Option<u32> {
        if let Some(chunk) = self.free.pop() {
            return Some(chunk);
        }
        let chunk = (self.words.len() / CHUNK as usize) as u32;
        (chunk < self.max).then(|| self.words.resize(self.words.len() + CHUNK as usize, NONE))?;
        Some(chunk)
    }

    /// Return the number of chunks that a list needs to grow from `len` to `len + more` blocks.
    pub fn needed(len: u32, more: u32) -> usize {
        ((len + more).div_ceil(CHUNK) - len.div_ceil(CHUNK)) as usize
    }

    pub fn get(&self, dir: &[u32], i: u32) -> u32 {
        self.words[(dir[(i / CHUNK) as usize] * CHUNK + i % CHUNK) as usize]
    }

    /// Return the number of all chunks, free or not.
    pub fn count(&self) -> usize {
        self.max as usize
    }

    /// Return the words of a chunk.
    pub fn of(&self, chunk: u32) -> &[u32] {
        &self.words[(chunk * CHUNK) as usize..][..CHUNK as usize]
    }

    pub fn set(&mut self, dir: &[u32], i: u32, block: u32) {
        self.words[(dir[(i / CHUNK) as usize] * CHUNK + i % CHUNK) as usize] = block;
    }

    /// Append a block. Return false if the directory or the pool is full.
    #[must_use]
    pub fn push(&mut self, dir: &mut [u32], len: u32, block: u32) -> bool {
        if len.is_multiple_of(CHUNK) {
            let at = (len / CHUNK) as usize;
            if at >= dir.len() {
                return false;
            }
            let Some(chunk) = self.take() else { return false };
            dir[at] = chunk;
        }
        self.set(dir, len, block);
        true
    }

    /// Remove and return the last of `len` blocks.
    pub fn pop(&mut self, dir: &mut [u32], len: u32) -> u32 {
        let last = len - 1;
        let block = self.get(dir, last);
        if last.is_multiple_of(CHUNK) {
            let entry = &mut dir[(last / CHUNK) as usize];
            self.free.push(*entry);
            *entry = NONE;
        }
        block
    }

    pub fn bytes(&self) -> usize {
        (self.words.capacity() + self.free.capacity()) * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_vectors(ops in prop::collection::vec((0usize..3, 0u8..4, 0u32..1000), 1..400)) {
            let mut chunks = Chunks::new(6);
            let mut dirs = [[NONE; 3]; 3];
            let mut model: Vec<Vec<u32>> = vec![Vec::new(); 3];
            for (s, op, value) in ops {
                let len = model[s].len() as u32;
                match op {
                    0..=1 => for value in value..value + 9 {
                        let len = model[s].len() as u32;
                        let fits = len < 3 * CHUNK && chunks.free_chunks() >= Chunks::needed(len, 1);
                        prop_assert_eq!(chunks.push(&mut dirs[s], len, value), fits);
                        if fits { model[s].push(value); }
                    },
                    2 if len > 0 => prop_assert_eq!(Some(chunks.pop(&mut dirs[s], len)), model[s].pop()),
                    3 if len > 0 => { chunks.set(&dirs[s], value % len, value); model[s][(value % len) as usize] = value; }
                    _ => {}
                }
                for (dir, list) in dirs.iter().zip(&model) {
                    for (i, &block) in list.iter().enumerate() {
                        prop_assert_eq!(chunks.get(dir, i as u32), block);
                    }
                }
            }
            let held: usize = model.iter().map(|l| l.len().div_ceil(CHUNK as usize)).sum();
            prop_assert_eq!(chunks.free_chunks() + held, 6);
        }
    }
}
