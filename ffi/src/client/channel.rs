//! A channel: the calls of one engine thread.

use super::{
    Error, Result,
    options::SeqId,
    request::{Completed, Outcome, PageRange, Pin, Request, Ticket},
};
use kvtide_wire::{
    entry::{Advice, Level},
    status::Status,
};
use std::{os::fd::BorrowedFd, time::Duration};

/// The calls of one engine thread. A sequence belongs to the channel that created it: its other calls come by that channel,
/// so that they keep their order.
///
/// Blocking calls take a timeout and return `TimedOut` when it has passed; the request is cancelled then. Every call may
/// return `Daemon` (the daemon is gone), `Fork` (this is another process than the one that attached), and, if the ring is
/// full and the call does not block, `Again`.
pub struct Channel {
    _private: (),
}

/// Stands in until the session is connected.
fn unconnected<T>(doing: &'static str) -> Result<T> {
    Err(Error::call(doing, 0, Status::Daemon))
}

impl Channel {
    /// Round trip to the daemon without effect.
    ///
    /// # Errors
    /// See [`Channel`].
    pub fn nop(&mut self, timeout: Duration) -> Result<()> {
        let _ = timeout;
        unconnected("nop")
    }

    /// Creates an empty sequence. Local: the daemon is told without waiting.
    ///
    /// # Errors
    /// `Limit`: `seqs_max` sequences live already.
    pub fn seq_create(&mut self) -> Result<SeqId> {
        unconnected("create a sequence")
    }

    /// Drops a sequence and its pins. Never waits.
    ///
    /// # Errors
    /// `NotFound`; `State`: it is in a lane's step.
    pub fn seq_drop(&mut self, seq: SeqId) -> Result<()> {
        let _ = seq;
        unconnected("drop sequence")
    }

    /// Makes room for positions below `tokens`: afterwards the pages up to there are resident and writable. Waits for room
    /// if work in flight can make some.
    ///
    /// # Errors
    /// `NoSpace`: no tier has room and nothing may be evicted; blocks granted so far stay with the sequence. `TooBig`,
    /// `Limit`, `TimedOut`.
    pub fn reserve(&mut self, seq: SeqId, tokens: u64, timeout: Duration) -> Result<()> {
        let _ = (seq, tokens, timeout);
        unconnected("reserve for sequence")
    }

    /// Adds `blocks` blocks to the session's own reserve, from which [`Channel::append`] takes, and makes that the level
    /// which the session keeps it filled to in the background. Returns the blocks granted.
    ///
    /// # Errors
    /// As [`Channel::reserve`].
    pub fn reserve_session(&mut self, blocks: u32, timeout: Duration) -> Result<usize> {
        let _ = (blocks, timeout);
        unconnected("reserve for the session")
    }

    /// Makes room for `tokens` more tokens than the sequence has committed, with blocks of the session's reserve. Local:
    /// no round trip.
    ///
    /// # Errors
    /// `Again`: the reserve is empty; it is being filled, or `reserve` waits for it.
    pub fn append(&mut self, seq: SeqId, tokens: u64) -> Result<()> {
        let _ = (seq, tokens);
        unconnected("append to sequence")
    }

    /// The sequence's tokens below `tokens` are final: seals every page that they fill. Never waits.
    ///
    /// # Errors
    /// `State`: beyond what is reserved, or below what is committed.
    pub fn commit(&mut self, seq: SeqId, tokens: u64) -> Result<()> {
        let _ = (seq, tokens);
        unconnected("commit to sequence")
    }

    /// A child that shares the sealed blocks and has copies of the unsealed ones. The parent must not be in a lane's step.
    ///
    /// # Errors
    /// `State`, `Limit`, `NoSpace`, `TimedOut`.
    pub fn fork(&mut self, seq: SeqId, timeout: Duration) -> Result<SeqId> {
        let _ = (seq, timeout);
        unconnected("fork sequence")
    }

    /// Rolls back to `tokens`. A cut inside a sealed block copies that block.
    ///
    /// # Errors
    /// `Range`: more than committed. `Busy`: a page beyond the cut is pinned. `State`, `NoSpace`, `TimedOut`.
    pub fn truncate(&mut self, seq: SeqId, tokens: u64, timeout: Duration) -> Result<()> {
        let _ = (seq, tokens, timeout);
        unconnected("truncate sequence")
    }

    /// Gives `hashes.len()` sealed blocks from block index `first` their content hashes; `parent` is the hash of the block
    /// before them, 0 at the root. Returns the level reached.
    ///
    /// # Errors
    /// `NotAdmitted`; `State`: a block is not sealed.
    pub fn publish(
        &mut self,
        seq: SeqId,
        first: u32,
        parent: u128,
        hashes: &[u128],
        level: Level,
        timeout: Duration,
    ) -> Result<Level> {
        let _ = (seq, first, parent, hashes, level, timeout);
        unconnected("publish blocks of sequence")
    }

    /// Attaches the longest cached prefix of `hashes` to an empty sequence. Returns its blocks.
    ///
    /// # Errors
    /// `State`: the sequence is not empty.
    pub fn map(&mut self, seq: SeqId, hashes: &[u128], timeout: Duration) -> Result<usize> {
        let _ = (seq, hashes, timeout);
        unconnected("map a prefix into sequence")
    }

    /// Lets an idle sequence leave tier 0, its tail included; `due`: when it is expected back, zero if unknown. Never waits.
    ///
    /// # Errors
    /// `State`: it is in a lane's step. `Again`.
    pub fn park(&mut self, seq: SeqId, due: Duration) -> Result<()> {
        let _ = (seq, due);
        unconnected("park sequence")
    }

    /// Brings a parked sequence back; returns when its tail is writable.
    ///
    /// # Errors
    /// `NoSpace`, `Lost`, `TimedOut`.
    pub fn resume(&mut self, seq: SeqId, timeout: Duration) -> Result<()> {
        let _ = (seq, timeout);
        unconnected("resume sequence")
    }

    /// Says what will be done with blocks `first .. first + count`; `priority` counts for `Advice::Priority` only. Never waits.
    ///
    /// # Errors
    /// `Range`, `Again`.
    pub fn advise(&mut self, seq: SeqId, first: u32, count: u32, advice: Advice, priority: u8) -> Result<()> {
        let _ = (seq, first, count, advice, priority);
        unconnected("advise on sequence")
    }

    /// Pins a range in tier 0, after loading what is missing. Local when all of it is resident.
    ///
    /// # Errors
    /// `TooBig`: more pages than tier 0 can pin. `Range`, `Limit`, `TimedOut`, `Lost`.
    pub fn acquire(&mut self, range: PageRange, timeout: Duration) -> Result<Pin> {
        let _ = (range, timeout);
        unconnected("acquire pages of sequence")
    }

    /// Unpins.
    ///
    /// # Errors
    /// `State`: released before.
    pub fn release(&mut self, pin: Pin) -> Result<()> {
        let _ = pin;
        unconnected("release a pin")
    }

    /// Sends a request without waiting for its end. `user` comes back with it.
    ///
    /// # Errors
    /// `Again`: `depth` requests are in flight.
    pub fn submit(&mut self, request: Request<'_>, timeout: Duration, user: u64) -> Result<Ticket> {
        let _ = (request, timeout, user);
        unconnected("submit a request")
    }

    /// The end of one request, if it has ended; does not wait. After `Some` or an error the ticket is spent.
    ///
    /// # Errors
    /// How the request failed; `NotFound`: no such ticket.
    pub fn poll(&mut self, ticket: Ticket) -> Result<Option<Outcome>> {
        let _ = ticket;
        unconnected("poll a request")
    }

    /// The end of any submitted request that has ended.
    pub fn poll_any(&mut self) -> Option<Completed> {
        None
    }

    /// Waits for the end of a request and takes it; how it ended stands in the result. An error is the wait's own: on
    /// `TimedOut` the request goes on and the ticket stays good.
    ///
    /// # Errors
    /// `NotFound`: no such ticket; `TimedOut`.
    pub fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Result<Completed> {
        let _ = (ticket, timeout);
        unconnected("wait for a request")
    }

    /// The descriptor that becomes readable when a request ends after [`Channel::arm`], or the daemon is gone. For event
    /// loops: to be polled only, never read.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Asks for a wake-up through [`Channel::fd`]. `true`: something has ended already; poll first, for the descriptor may
    /// stay silent.
    ///
    /// # Errors
    /// `Daemon`, `Fork`.
    pub fn arm(&mut self) -> Result<bool> {
        unconnected("arm the descriptor of a channel")
    }

    /// Asks to cancel a request. It still ends, with `Canceled` or, if that was first, as it would have.
    ///
    /// # Errors
    /// `NotFound`: no such ticket. `Again`.
    pub fn cancel(&mut self, ticket: Ticket) -> Result<()> {
        let _ = ticket;
        unconnected("cancel a request")
    }
}
