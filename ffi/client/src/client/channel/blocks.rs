//! Calls of engines that keep their KV in memory of their own: look a prefix up, lease it, load it, store what is new.

use super::{
    Channel, Error, Leased, Level, Outcome, Request, Result, SeqId, Status, calls::BLOCKS_MAX, search::Search,
};
use kvtide_wire::lists::HASHED_BLOCKS_MAX;
use std::{
    ops::Range,
    time::{Duration, Instant},
};

/// What a lookup found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Blocks of the prefix that are cached, whole over all shards.
    pub blocks: u32,
    /// Of the probes that were found in the first round, those whose blocks are in host memory, in thousandths: about the share of
    /// the prefix that is there, which goes from its end.
    pub in_host_permille: u32,
}

/// What was copied between the engine's own memory and ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Indices into the call's blocks of those that were not. After a load their bytes are undefined.
    pub failed: Vec<u32>,
    /// `Ok`: none failed. Else why the first one did, or the call ended.
    pub status: Status,
    /// Of a store without failures: the level that all of it reached.
    pub level: Level,
}

impl Channel {
    /// How many blocks of a prefix are cached: `hashes` are those of its blocks, in order. Presence is closed under ancestors, so some
    /// are asked for and not all: two round trips for a thousand blocks.
    ///
    /// What is found may be dropped before it is loaded, unless a lease holds it.
    ///
    /// # Errors
    /// See [`Channel`].
    pub fn lookup(&mut self, hashes: &[u128], timeout: Duration) -> Result<Found> {
        let deadline = super::deadline(timeout);
        let failed = |status| Error::call(LOOKUP, hashes.len() as u64, status);
        if hashes.len() > CALL_BLOCKS_MAX {
            return Err(failed(Status::Limit));
        }
        let mut search = Search::new(hashes.len());
        while let Some(probes) = search.probes(hashes) {
            let left = deadline.saturating_duration_since(Instant::now());
            let request = Request::Lookup { probes: &probes };
            let Outcome::Found { blocks, in_host } = self.blocking(LOOKUP, hashes.len() as u64, request, left)? else {
                return Err(failed(Status::Internal));
            };
            search.answered(blocks, in_host);
        }
        Ok(search.found())
    }

    /// Holds a cached prefix for `time`: its `count` blocks, `hash` being that of the last one. It ends with [`Channel::seq_drop`], or by
    /// itself after that time, but not while it is being loaded from; the number is in use until [`Channel::seq_drop`] in any case.
    ///
    /// # Errors
    /// `NotFound`: it is not cached any more. `Invalid`: the prefix has another number of blocks. `NoSpace`, `TimedOut`. `Limit`: the
    /// prefix is longer than a sequence may be; `time` is longer than the daemon's `limits.lease_max_ms`; the session's leases would hold
    /// more than `limits.lease_percent` of the cache, while other sessions share it; or `seqs_max` sequences and leases were not dropped yet, and those leases count that have
    /// ended by themselves.
    pub fn lease(&mut self, hash: u128, count: u32, time: Duration, timeout: Duration) -> Result<Leased> {
        const DOING: &str = "lease a prefix of blocks";
        const FULL: &str =
            "lease a prefix: sequences and leases (ended ones too) that were not dropped are as many as seqs_max:";
        match self.blocking(DOING, u64::from(count), Request::Lease { hash, count, time }, timeout) {
            Ok(Outcome::Lease(leased)) => Ok(leased),
            Ok(_) => Err(Error::call(DOING, u64::from(count), Status::Internal)),
            Err(error) if error.status() == Status::Limit && self.inner.session.seq_slots.is_empty() => {
                Err(Error::call(FULL, self.inner.session.seq_slots.capacity() as u64, Status::Limit))
            }
            Err(error) => Err(error),
        }
    }

    /// Copies blocks of a lease, from block index `first` on, into blocks of the engine's own memory. Whatever it returns,
    /// nothing writes there any more when it has returned; see [`Channel::settle_blocks`] for the two exceptions.
    ///
    /// More than a request holds go by several, one after another, as in `store` and `fetch`: what makes one but the first fail is
    /// then the status of its blocks and of those behind it, and no error, but for the two exceptions.
    ///
    /// # Errors
    /// Nothing was copied: `NotFound`: the lease is over. `Range`, `Again`; `Limit`: more than 2^20 blocks; `TimedOut`, `Daemon`: see
    /// above, parts of it may have been. Blocks that fail by themselves are no error: [`Copied::failed`] names them.
    pub fn load(&mut self, lease: SeqId, first: u32, blocks: &[u32], timeout: Duration) -> Result<Copied> {
        self.in_parts(LOAD, blocks.len(), BLOCKS_MAX as usize, timeout, |part| {
            Some(Request::Load { lease, first: first.checked_add(part.start as u32)?, blocks: &blocks[part] })
        })
    }

    /// Makes blocks of the engine's own memory cached under `hashes`; `first` is the index of the first one in its prefix,
    /// `parent` the hash of the block before it, 0 at the root: where room is short that stays for certain only while a lease holds it. None is found before all of it has been copied; from the first that fails
    /// on all do. Waits until all of them have reached `level`, or cannot.
    ///
    /// # Errors
    /// As [`Channel::load`]; `NoSpace`: there is no room for them. `Invalid`: as many hashes as blocks are needed, and a parent but at
    /// the root.
    pub fn store(
        &mut self,
        (first, parent): (u32, u128),
        hashes: &[u128],
        blocks: &[u32],
        level: Level,
        timeout: Duration,
    ) -> Result<Copied> {
        if hashes.len() != blocks.len() {
            return Err(Error::call(STORE, blocks.len() as u64, Status::Invalid));
        }
        self.in_parts(STORE, blocks.len(), HASHED_BLOCKS_MAX, timeout, |part| {
            // What one part has stored the next one stands on.
            let parent = part.start.checked_sub(1).map_or(parent, |last| hashes[last]);
            let first = first.checked_add(part.start as u32)?;
            Some(Request::Store { first, parent, hashes: &hashes[part.clone()], blocks: &blocks[part], level })
        })
    }

    /// Brings blocks of a lease that are on NVMe up into host memory, as far as there is room.
    ///
    /// # Errors
    /// As [`Channel::load`].
    pub fn fetch(&mut self, lease: SeqId, first: u32, count: u32, timeout: Duration) -> Result<Copied> {
        self.in_parts(FETCH, count as usize, BLOCKS_MAX as usize, timeout, |part| {
            let first = first.checked_add(part.start as u32)?;
            Some(Request::Fetch { lease, first, count: part.len() as u32 })
        })
    }

    /// Returns when nothing that was asked by then, and has ended for its caller without the daemon's word, touches the engine's own
    /// memory any more: a call that timed out was cancelled, and copies that had begun go on for a moment; of those that the daemon's
    /// death has ended none begins any more.
    ///
    /// # Errors
    /// `TimedOut`.
    pub fn settle_blocks(&mut self, timeout: Duration) -> Result<()> {
        const DOING: &str = "settle the blocks of channel";
        let on = u64::from(self.index);
        let (state, session) = self.parts(DOING, on)?;
        let deadline = super::deadline(timeout);
        let settled = state.wait_until(session, deadline, |state| (!state.is_copying()).then_some(()));
        // One round of the pump at a time: whoever had it has ended its copies.
        drop(session.pump());
        settled.map_err(|status| Error::call(DOING, on, status))
    }

    /// Runs a call on `count` blocks as requests of at most `most`, one after another. `None` from `request`: the part is out of range.
    fn in_parts<'a>(
        &mut self,
        doing: &'static str,
        count: usize,
        most: usize,
        timeout: Duration,
        request: impl Fn(Range<usize>) -> Option<Request<'a>>,
    ) -> Result<Copied> {
        let failed = |status| Error::call(doing, count as u64, status);
        if count > CALL_BLOCKS_MAX {
            return Err(failed(Status::Limit));
        }
        let deadline = super::deadline(timeout);
        let mut all = Copied { failed: Vec::new(), status: Status::Ok, level: Level::Durable };
        if count == 0 {
            return Ok(all);
        }
        let mut at = 0;
        loop {
            let end = count.min(at + most);
            let left = deadline.saturating_duration_since(Instant::now());
            let part = match request(at..end) {
                Some(request) => self.copy(doing, count, request, left),
                None => Err(failed(Status::Range)),
            };
            let stops = match part {
                Ok(copied) => all.add(&copied, at) && doing == STORE,
                // Copies may go on, or the session is over: nobody can say what was done.
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

    fn copy(&mut self, doing: &'static str, on: usize, request: Request<'_>, timeout: Duration) -> Result<Copied> {
        match self.blocking(doing, on as u64, request, timeout)? {
            Outcome::Copied { failed, status, level } => Ok(Copied { failed, status, level }),
            _ => Err(Error::call(doing, on as u64, Status::Internal)),
        }
    }
}

impl Copied {
    /// What a part brought that begins at block `at` of the call. Returns whether something of it failed.
    fn add(&mut self, part: &Copied, at: usize) -> bool {
        self.failed.extend(part.failed.iter().map(|index| index + at as u32));
        if self.status == Status::Ok {
            self.status = part.status;
        }
        self.level = self.level.min(part.level);
        part.status != Status::Ok
    }
}

/// Blocks of one call: gigabytes in any model, and failures that fit into memory.
pub(super) const CALL_BLOCKS_MAX: usize = 1 << 20;

pub(super) const LOOKUP: &str = "look up the prefix of so many blocks:";
const LOAD: &str = "load blocks, so many:";
const STORE: &str = "store blocks, so many:";
const FETCH: &str = "fetch blocks, so many:";
