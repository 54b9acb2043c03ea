//! Calls of engines that keep their KV in memory of their own: look a prefix up, lease it, load it, store what is new.

use super::{Channel, Error, Leased, Level, Outcome, Request, Result, SeqId, Status};
use kvtide_wire::lists::HASHES_MAX;
use std::time::{Duration, Instant};

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
        // All below `known` are cached, none from `open` on.
        let (mut known, mut open) = (0, hashes.len());
        let mut share = None;
        while known < open {
            let width = open - known;
            // The last one of each of as many parts as a list holds: two rounds find their way through its length squared.
            let count = width.min(HASHES_MAX);
            let at = |i: usize| last_of(known, width, count, i);
            let probes: Vec<u128> = (0..count).map(|i| hashes[at(i)]).collect();
            let left = deadline.saturating_duration_since(Instant::now());
            let request = Request::Lookup { probes: &probes };
            let Outcome::Found { blocks, in_host } = self.blocking(LOOKUP, hashes.len() as u64, request, left)? else {
                return Err(Error::call(LOOKUP, hashes.len() as u64, Status::Internal));
            };
            let found = (blocks as usize).min(count);
            share.get_or_insert((in_host, blocks));
            let first_missing = (found < count).then(|| at(found));
            let last_found = found.checked_sub(1).map(at);
            known = last_found.map_or(known, |last| last + 1);
            open = first_missing.unwrap_or(open);
        }
        let (in_host, found) = share.unwrap_or_default();
        let in_host_permille = in_host * 1000 / found.max(1);
        Ok(Found { blocks: known as u32, in_host_permille })
    }

    /// Holds a cached prefix for `time`: its `count` blocks, `hash` being that of the last one. It ends with [`Channel::seq_drop`], or by
    /// itself after that time, but not while it is being loaded from; the number is in use until [`Channel::seq_drop`] in any case.
    ///
    /// # Errors
    /// `NotFound`: it is not cached any more. `Invalid`: the prefix has another number of blocks. `NoSpace`, `Limit`, `TimedOut`.
    pub fn lease(&mut self, hash: u128, count: u32, time: Duration, timeout: Duration) -> Result<Leased> {
        const DOING: &str = "lease a prefix of blocks";
        match self.blocking(DOING, u64::from(count), Request::Lease { hash, count, time }, timeout)? {
            Outcome::Lease(leased) => Ok(leased),
            _ => Err(Error::call(DOING, u64::from(count), Status::Internal)),
        }
    }

    /// Copies blocks of a lease, from block index `first` on, into blocks of the engine's own memory, at most 512. Whatever it returns,
    /// nothing writes there any more when it has returned; see [`Channel::settle_blocks`] for the two exceptions.
    ///
    /// # Errors
    /// Nothing was copied: `NotFound`: the lease is over. `Range`, `Limit`, `Again`; `TimedOut`, `Daemon`: see above. Blocks that fail by
    /// themselves are no error: [`Copied::failed`] names them.
    pub fn load(&mut self, lease: SeqId, first: u32, blocks: &[u32], timeout: Duration) -> Result<Copied> {
        self.copy(LOAD, blocks.len(), Request::Load { lease, first, blocks }, timeout)
    }

    /// Makes blocks of the engine's own memory, at most 102, cached under `hashes`; `first` is the index of the first one in its prefix,
    /// `parent` the hash of the block before it, 0 at the root: where room is short that stays for certain only while a lease holds it. None is found before all of it has been copied; from the first that fails
    /// on all do. Waits until all of them have reached `level`, or cannot.
    ///
    /// # Errors
    /// As [`Channel::load`]; `NoSpace`: there is no room for them.
    pub fn store(
        &mut self,
        (first, parent): (u32, u128),
        hashes: &[u128],
        blocks: &[u32],
        level: Level,
        timeout: Duration,
    ) -> Result<Copied> {
        self.copy(STORE, blocks.len(), Request::Store { first, parent, hashes, blocks, level }, timeout)
    }

    /// Brings blocks of a lease, at most 512, that are on NVMe up into host memory, as far as there is room.
    ///
    /// # Errors
    /// As [`Channel::load`].
    pub fn fetch(&mut self, lease: SeqId, first: u32, count: u32, timeout: Duration) -> Result<Copied> {
        self.copy(FETCH, count as usize, Request::Fetch { lease, first, count }, timeout)
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

    fn copy(&mut self, doing: &'static str, on: usize, request: Request<'_>, timeout: Duration) -> Result<Copied> {
        match self.blocking(doing, on as u64, request, timeout)? {
            Outcome::Copied { failed, status, level } => Ok(Copied { failed, status, level }),
            _ => Err(Error::call(doing, on as u64, Status::Internal)),
        }
    }
}

const LOOKUP: &str = "look up the prefix of so many blocks:";
const LOAD: &str = "load blocks, so many:";
const STORE: &str = "store blocks, so many:";
const FETCH: &str = "fetch blocks, so many:";

/// The last block of part `i` of `count`, of `width` blocks from `from` on.
fn last_of(from: usize, width: usize, count: usize, i: usize) -> usize {
    from + (width * (i + 1)).div_ceil(count) - 1
}
