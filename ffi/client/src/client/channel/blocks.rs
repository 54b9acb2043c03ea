//! The block API, for engines that keep their KV in their own memory: look up a prefix, lease it, load it, store new blocks.

use super::{Channel, ops::place};
use crate::client::{
    Error, Refusal, Result,
    options::{SeqId, deadline},
    request::{Leased, Outcome, Request},
};
use kvtide_wire::{
    entry::Level,
    lists::{HASHED_BLOCKS_MAX, WORDS_MAX},
    status::Status,
};
use std::{
    ops::Range,
    time::{Duration, Instant},
};

/// Result of a lookup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Cached blocks of the prefix. A block counts only if all shards have it.
    pub blocks: u32,
    /// Share of the first round's found probes with blocks in host memory, in thousandths. An estimate for the whole prefix: its
    /// end leaves host memory first.
    pub in_host_permille: u32,
}

/// Result of a copy between the engine's memory and the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Indices, within the call, of the blocks that were not copied. After a load the bytes of these blocks are undefined.
    pub failed: Vec<u32>,
    /// `Ok` if no block failed. Otherwise why the first block failed, or why the call ended early.
    pub status: Status,
    /// For a store without failures: the level that all blocks reached.
    pub level: Level,
}

impl Channel {
    /// Return how many blocks of a prefix are cached. `hashes` are the hashes of its blocks, in order.
    ///
    /// A block is cached only if its parent is cached, so the lookup searches with some of the hashes: two round trips for a
    /// thousand blocks. The blocks found may be evicted before they are loaded, unless a lease of each shard holds
    /// them.
    ///
    /// # Errors
    /// See [`Channel`].
    pub fn lookup(&mut self, hashes: &[u128], timeout: Duration) -> Result<Found> {
        let found = |outcome| if let Outcome::Prefix(found) = outcome { Some(found) } else { None };
        self.blocking(LOOKUP, hashes.len() as u64, Request::Lookup { hashes }, timeout, found)
    }

    /// Lease a cached prefix for `time`. `count` is its number of blocks, `hash` the hash of the last one.
    ///
    /// [`Channel::end_lease`] ends the lease. It also expires after `time`, but not during a load from it. Its id stays in use until
    /// [`Channel::end_lease`] in any case.
    ///
    /// # Errors
    /// - `NotFound`: the prefix is no longer cached.
    /// - `Invalid`: the prefix has another number of blocks.
    /// - `NoSpace`, `TimedOut`.
    /// - `Limit`: the prefix is longer than a sequence may be; `time` exceeds the daemon's `limits.lease_max_ms`; the leases of
    ///   all sessions would hold more than `limits.lease_percent` of the cache while other sessions share it; or `seqs_max` sequences and
    ///   leases, expired ones included, have not been dropped yet.
    pub fn lease(&mut self, hash: u128, count: u32, time: Duration, timeout: Duration) -> Result<Leased> {
        let leased = |outcome| if let Outcome::Lease(leased) = outcome { Some(leased) } else { None };
        let request = Request::Lease { hash, count, time };
        self.blocking("lease a prefix of blocks", count, request, timeout, leased)
    }

    /// Copy blocks of a lease, from block index `first` on, into `blocks` of the engine's memory. Once it has returned, with any
    /// result, nothing writes to these blocks any more, except after `TimedOut` and `Daemon`: see [`Channel::settle`].
    ///
    /// A call with more blocks than one request holds is sent as several requests, one after another; `store` does the
    /// same. If a later request fails, its status becomes the status of its blocks and of the following ones, and the call returns
    /// `Ok`. `TimedOut`, `Daemon` and `Fork` are returned as errors in any case.
    ///
    /// # Errors
    /// Nothing was copied: `NotFound`: the lease has ended. `Range`: the lease has fewer blocks, or one of `blocks` does not exist.
    /// `State`: no blocks are registered ([`Client::set_blocks`](super::super::Client::set_blocks)). `Again`. `Limit`: more than 2^20
    /// blocks. After `TimedOut` or `Daemon`, parts may have been copied. The failure of single blocks is no error:
    /// [`Copied::failed`] lists them.
    pub fn load(&mut self, lease: SeqId, first: u32, blocks: &[u32], timeout: Duration) -> Result<Copied> {
        self.in_parts((LOAD, WORDS_MAX), blocks, Some((lease, first)), timeout, |part| Request::Load {
            lease,
            first: first + part.start as u32,
            blocks: &blocks[part],
        })
    }

    /// Copy `blocks` of the engine's memory into the cache under `hashes`, and wait until all of them have reached `level` or
    /// cannot reach it. `first` is the index of the first block in its prefix, `parent` the hash of the block before it, 0 at the
    /// root. When space is short, the parent is certain to stay cached only while a lease holds it.
    ///
    /// No block can be found by a lookup before all of the request's blocks have been copied. If one block fails, all blocks after
    /// it fail too.
    ///
    /// # Errors
    /// As [`Channel::load`]. `NoSpace`: the cache has no room. `Invalid`: `hashes` and `blocks` differ in length, or `parent` does
    /// not match `first` (only the root has no parent, and any other block follows its parent).
    pub fn store(
        &mut self,
        (first, parent): (u32, u128),
        hashes: &[u128],
        blocks: &[u32],
        level: Level,
        timeout: Duration,
    ) -> Result<Copied> {
        let placed = pair(hashes, blocks).and_then(|()| place(first, parent, hashes));
        placed.map_err(|refusal| Error::refused(STORE, blocks.len() as u64, refusal))?;
        self.in_parts((STORE, HASHED_BLOCKS_MAX), blocks, None, timeout, |part| {
            // Each part's parent is the last block that the previous part stored.
            let parent = part.start.checked_sub(1).map_or(parent, |last| hashes[last]);
            let first = first + part.start as u32;
            Request::Store { first, parent, hashes: &hashes[part.clone()], blocks: &blocks[part], level }
        })
    }

    /// Run a call on blocks as requests of at most `most` blocks, one after another. All of it is checked before the first request
    /// is sent: the engine's blocks, and those that it reads, from an index of a lease on.
    fn in_parts<'a>(
        &mut self,
        (doing, most): (&'static str, usize),
        blocks: &[u32],
        reads: Option<(SeqId, u32)>,
        timeout: Duration,
        request: impl Fn(Range<usize>) -> Request<'a>,
    ) -> Result<Copied> {
        let count = blocks.len();
        self.call(doing, count as u64, |state| state.check_copy(blocks, reads))?;
        let deadline = deadline(timeout);
        let mut all = Copied { failed: Vec::new(), status: Status::Ok, level: Level::Durable };
        if count == 0 {
            return Ok(all);
        }
        let mut at = 0;
        loop {
            let end = count.min(at + most);
            let left = deadline.saturating_duration_since(Instant::now());
            let stops = match self.blocking(doing, count as u64, request(at..end), left, Copied::of) {
                Ok(copied) => all.add(&copied, at) && doing == STORE,
                // Copies may continue, or the session is over: the result of this part is unknown.
                Err(error) if at == 0 || matches!(error.status(), Status::TimedOut | Status::Daemon | Status::Fork) => {
                    return Err(error);
                }
                Err(error) => {
                    let status = error.status();
                    all.add(&Copied { failed: (0..(end - at) as u32).collect(), status, level: Level::Published }, at);
                    true
                }
            };
            if stops {
                all.failed.extend(end as u32..count as u32);
            }
            if stops || end == count {
                return Ok(all);
            }
            at = end;
        }
    }
}

impl Copied {
    pub(super) fn of(outcome: Outcome) -> Option<Copied> {
        let Outcome::Copied { failed, status, level } = outcome else { return None };
        Some(Copied { failed, status, level })
    }

    /// Add the result of a part that begins at block `at` of the call. Return whether any of it failed.
    fn add(&mut self, part: &Copied, at: usize) -> bool {
        self.failed.extend(part.failed.iter().map(|index| index + at as u32));
        if self.status == Status::Ok {
            self.status = part.status;
        }
        self.level = self.level.min(part.level);
        part.status != Status::Ok
    }
}

/// Check that each block has a hash.
pub(super) fn pair(hashes: &[u128], blocks: &[u32]) -> std::result::Result<(), Refusal> {
    let (hashes, blocks) = (hashes.len(), blocks.len());
    match hashes == blocks {
        true => Ok(()),
        false => Err(Refusal::because(Status::Invalid, format!("{hashes} hashes for {blocks} blocks"))),
    }
}

/// Build the refusal of more blocks than a call or a request may have.
pub(super) fn too_many(count: usize, most: usize) -> Refusal {
    Refusal::because(Status::Limit, format!("{count} blocks; at most {most} are possible"))
}

/// Maximum blocks of one call: gigabytes in any model, and a list of failures that fits into memory.
pub(super) const CALL_BLOCKS_MAX: usize = 1 << 20;

pub(super) const LOOKUP: &str = "look up a prefix, block count";
pub(super) const LOAD: &str = "load blocks, count";
pub(super) const STORE: &str = "store blocks, count";
