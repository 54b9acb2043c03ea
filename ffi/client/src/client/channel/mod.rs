//! A channel: the calls of one engine thread.
//!
//! `owned` mirrors the channel's sequences, `calls` are the requests in flight and what their ends mean, `submit` turns calls
//! into requests, `wait` waits.

mod blocks;
mod call;
mod calls;
mod owned;
mod publish;
mod search;
mod submit;
mod wait;

pub use blocks::{Copied, Found};
pub(crate) use calls::State;
pub(in crate::client) use submit::contract_of;

use super::{
    Client, Error, Result,
    inner::Inner,
    options::{SeqId, deadline},
    request::{Completed, Leased, Outcome, PageRange, Pin, Request, Ticket},
};
use crate::agent::{attention::Contract, protocol::PinId, session::Session};
use kvtide_wire::{
    entry::{Advice, Level},
    status::Status,
};
use std::{os::fd::BorrowedFd, sync::Arc, time::Duration};

/// A pin as the caller has it.
fn pin_of(id: PinId) -> Pin {
    Pin(u64::from(id.generation) << 32 | u64::from(id.slot))
}

fn pin_id(pin: &Pin) -> PinId {
    PinId { slot: pin.0 as u32, generation: (pin.0 >> 32) as u32 }
}

/// The calls of one engine thread. A sequence belongs to the channel that created it: its other calls come by that channel,
/// so that they keep their order.
///
/// Blocking calls take a timeout and return `TimedOut` when it has passed; the request is cancelled then. Every call may
/// return `Daemon` (the daemon is gone), `Fork` (this is another process than the one that attached), and, if the ring is
/// full and the call does not block, `Again`.
pub struct Channel {
    inner: Arc<Inner>,
    state: Option<Box<State>>,
    index: u16,
}

impl Channel {
    pub(super) fn new(client: &Client, index: u16) -> Result<Channel> {
        let state = client.inner.take_channel(index)?;
        Ok(Channel { inner: Arc::clone(&client.inner), state: Some(state), index })
    }

    /// The channel's state and session, for calls of this process.
    fn parts(&mut self, doing: &'static str, on: u64) -> Result<(&mut State, &Arc<Session>)> {
        let session = &self.inner.session;
        match (session.ours(), self.state.as_deref_mut()) {
            (Ok(()), Some(state)) => Ok((state, session)),
            _ => Err(Error::call(doing, on, Status::Fork)),
        }
    }

    /// Runs a call that does not wait.
    fn at_once<T>(
        &mut self,
        doing: &'static str,
        on: u64,
        call: impl FnOnce(&mut State) -> std::result::Result<T, Status>,
    ) -> Result<T> {
        let (state, _) = self.parts(doing, on)?;
        state.progress();
        let result = call(state);
        state.port.ring();
        result.map_err(|status| Error::call(doing, on, status))
    }

    /// Runs a request to its end.
    fn blocking(&mut self, doing: &'static str, on: u64, request: Request<'_>, timeout: Duration) -> Result<Outcome> {
        let (state, session) = self.parts(doing, on)?;
        state.run(session, request, timeout).unwrap_or_else(|status| Err(Error::call(doing, on, status)))
    }
    /// Round trip to the daemon without effect.
    ///
    /// # Errors
    /// See [`Channel`].
    pub fn nop(&mut self, timeout: Duration) -> Result<()> {
        self.blocking("round trip on channel", u64::from(self.index), Request::Nop, timeout).map(|_| ())
    }

    /// Creates an empty sequence. Local: the daemon is told without waiting.
    ///
    /// # Errors
    /// `Limit`: `seqs_max` sequences live already.
    pub fn seq_create(&mut self) -> Result<SeqId> {
        self.at_once("create a sequence on channel", u64::from(self.index), State::create)
    }

    /// Drops a sequence and its pins. Never waits.
    ///
    /// # Errors
    /// `NotFound`; `State`: it is in a lane's step.
    pub fn seq_drop(&mut self, seq: SeqId) -> Result<()> {
        self.at_once("drop sequence", u64::from(seq), |state| state.drop_seq(seq))
    }

    /// Makes room for positions below `tokens`: afterwards the pages up to there are resident and writable. Waits for room
    /// if work in flight can make some.
    ///
    /// # Errors
    /// `NoSpace`: no tier has room and nothing may be evicted; blocks granted so far stay with the sequence. `TooBig`,
    /// `Limit`, `TimedOut`.
    pub fn reserve(&mut self, seq: SeqId, tokens: u64, timeout: Duration) -> Result<()> {
        let request = Request::Reserve { seq, tokens };
        self.blocking("reserve for sequence", u64::from(seq), request, timeout).map(|_| ())
    }

    /// Adds `blocks` blocks to the session's own reserve, from which [`Channel::append`] takes, and makes that the level
    /// which the session keeps it filled to in the background. Returns the blocks granted.
    ///
    /// # Errors
    /// As [`Channel::reserve`].
    pub fn reserve_session(&mut self, blocks: u32, timeout: Duration) -> Result<usize> {
        let request = Request::ReserveSession { blocks };
        match self.blocking("reserve for the session", 0, request, timeout)? {
            Outcome::Blocks(blocks) => Ok(blocks),
            _ => Err(Error::call("reserve for the session", 0, Status::Internal)),
        }
    }

    /// Makes room for `tokens` more tokens than the sequence has committed, with blocks of the session's reserve. Local:
    /// no round trip.
    ///
    /// # Errors
    /// `Again`: the reserve is empty; it is being filled, or `reserve` waits for it.
    pub fn append(&mut self, seq: SeqId, tokens: u64) -> Result<()> {
        self.at_once("append to sequence", u64::from(seq), |state| state.append(seq, tokens))
    }

    /// The sequence's tokens below `tokens` are final: seals every page that they fill. Never waits.
    ///
    /// # Errors
    /// `State`: beyond what is reserved, or below what is committed; with tier 0 on a device also: in a lane's step, whose `end`
    /// is to come first.
    pub fn commit(&mut self, seq: SeqId, tokens: u64) -> Result<()> {
        self.at_once("commit to sequence", u64::from(seq), |state| state.commit(seq, tokens))
    }

    /// A child that shares the sealed blocks and has copies of the unsealed ones. The parent must not be in a lane's step.
    ///
    /// # Errors
    /// `State`, `Limit`, `NoSpace`, `TimedOut`.
    pub fn fork(&mut self, seq: SeqId, timeout: Duration) -> Result<SeqId> {
        match self.blocking("fork sequence", u64::from(seq), Request::Fork { seq }, timeout)? {
            Outcome::Seq(child) => Ok(child),
            _ => Err(Error::call("fork sequence", u64::from(seq), Status::Internal)),
        }
    }

    /// Rolls back to `tokens`. A cut inside a sealed block copies that block.
    ///
    /// # Errors
    /// `Range`: more than committed. `Busy`: a page beyond the cut is pinned. `State`, `NoSpace`, `TimedOut`.
    pub fn truncate(&mut self, seq: SeqId, tokens: u64, timeout: Duration) -> Result<()> {
        let request = Request::Truncate { seq, tokens };
        self.blocking("truncate sequence", u64::from(seq), request, timeout).map(|_| ())
    }

    /// Gives `hashes.len()` sealed blocks from block index `first` their content hashes; `parent` is the hash of the block
    /// before them, 0 at the root. Waits until all of them have reached `level`, or cannot, and returns the level reached.
    ///
    /// # Errors
    /// `NotAdmitted`: not all of them will be kept; they may be findable while the daemon lives. `TimedOut`: the level was not
    /// reached in time; they are findable, and may reach it later. `State`: a block is not sealed.
    pub fn publish(
        &mut self,
        seq: SeqId,
        first: u32,
        parent: u128,
        hashes: &[u128],
        level: Level,
        timeout: Duration,
    ) -> Result<Level> {
        let request = Request::Publish { seq, first, parent, hashes, level };
        match self.blocking("publish blocks of sequence", u64::from(seq), request, timeout)? {
            Outcome::Level(level) => Ok(level),
            _ => Err(Error::call("publish blocks of sequence", u64::from(seq), Status::Internal)),
        }
    }

    /// Attaches the longest cached prefix of `hashes` to an empty sequence. Returns its blocks.
    ///
    /// # Errors
    /// `State`: the sequence is not empty.
    pub fn map(&mut self, seq: SeqId, hashes: &[u128], timeout: Duration) -> Result<usize> {
        match self.blocking("map a prefix into sequence", u64::from(seq), Request::Map { seq, hashes }, timeout)? {
            Outcome::Blocks(blocks) => Ok(blocks),
            _ => Err(Error::call("map a prefix into sequence", u64::from(seq), Status::Internal)),
        }
    }

    /// Lets an idle sequence leave tier 0, its tail included; `due`: when it is expected back, zero if unknown. For one that is parked
    /// already that time moves. Never waits.
    ///
    /// # Errors
    /// `State`: it is in a lane's step. `Again`.
    pub fn park(&mut self, seq: SeqId, due: Duration) -> Result<()> {
        self.at_once("park sequence", u64::from(seq), |state| state.park(seq, due, None))
    }

    /// Brings a parked sequence back; returns when its tail is writable.
    ///
    /// # Errors
    /// `NoSpace`, `Lost`, `TimedOut`.
    pub fn resume(&mut self, seq: SeqId, timeout: Duration) -> Result<()> {
        self.blocking("resume sequence", u64::from(seq), Request::Resume { seq }, timeout).map(|_| ())
    }

    /// Says what will be done with blocks `first .. first + count`. `value`: the priority of `Advice::Priority`, the tokens to come of
    /// `Advice::Remaining` (the whole sequence's, whatever the range), else ignored. Never waits.
    ///
    /// # Errors
    /// `Range`, `Again`.
    pub fn advise(&mut self, seq: SeqId, first: u32, count: u32, advice: Advice, value: u32) -> Result<()> {
        let request = Request::Advise { seq, first, count, advice, value };
        self.at_once("advise on sequence", u64::from(seq), |state| state.start(&request, None))
    }

    /// How a sequence is read from its next step on, once this has returned. Its forks read as it does.
    ///
    /// # Errors
    /// `Range`: a contract's number that is out of its range. `TimedOut`.
    pub fn contract(&mut self, seq: SeqId, contract: Contract, timeout: Duration) -> Result<()> {
        let request = Request::Contract { seq, contract };
        self.blocking("set the reading contract of sequence", u64::from(seq), request, timeout).map(|_| ())
    }

    /// Pins a range in tier 0, after loading what is missing. Local when all of it is resident.
    ///
    /// # Errors
    /// `TooBig`: more pages than tier 0 can pin. `Range`, `Limit`, `TimedOut`, `Lost`.
    pub fn acquire(&mut self, range: PageRange, timeout: Duration) -> Result<Pin> {
        let seq = u64::from(range.seq);
        match self.blocking("acquire pages of sequence", seq, Request::Acquire { range }, timeout)? {
            Outcome::Pin(pin) => Ok(pin),
            _ => Err(Error::call("acquire pages of sequence", seq, Status::Internal)),
        }
    }

    /// Unpins.
    ///
    /// # Errors
    /// `State`: released before.
    pub fn release(&mut self, pin: Pin) -> Result<()> {
        self.at_once("release pin", pin.0, |state| state.release(pin))
    }

    /// Lets a size class of tier 0 have its first `frames` frames from now on, of those that the session attached with, and
    /// returns that number: memory behind the others goes back to the system or to the device, and comes back with a larger
    /// number. Frames and tables stay where they are. Steps go on meanwhile: pages in frames that go are evicted at the lanes'
    /// boundaries, those that must stay (unsealed) get other frames at a moment in which no lane is in a step, which is why an
    /// engine that calls between its steps has the memory at once.
    ///
    /// # Errors
    /// The class is as it was before. `Range`: no such class, more frames than it attached with, or fewer than a block has pages
    /// in the class (or than 2). `Busy`: pages that must stay (unsealed, acquired) need more. `NoSpace`: pages would have to
    /// leave that find no place below. `State`: it is being resized, or a call that
    /// timed out has yet to end. `TimedOut`: pages in the way were acquired, or a lane was in
    /// a step all the time. Growing: `System`, `Device`: there is no memory.
    pub fn tier0_resize(&mut self, class: usize, frames: u32, timeout: Duration) -> Result<u32> {
        const DOING: &str = "resize tier-0 class";
        match self.blocking(DOING, class as u64, Request::Tier0Resize { class, frames }, timeout)? {
            Outcome::Frames(frames) => Ok(frames),
            _ => Err(Error::call(DOING, class as u64, Status::Internal)),
        }
    }

    /// Frames that a size class of tier 0 has memory for now; 0 if there is no such class.
    #[must_use]
    pub fn tier0_frames(&self, class: usize) -> u32 {
        self.inner.session.tier0.frames(class)
    }

    /// Sends a request without waiting for its end. `user` comes back with it.
    ///
    /// # Errors
    /// `Again`: `depth` requests are in flight.
    pub fn submit(&mut self, request: Request<'_>, timeout: Duration, user: u64) -> Result<Ticket> {
        const DOING: &str = "submit a request on channel";
        let on = u64::from(self.index);
        self.at_once(DOING, on, |state| state.submit(&request, timeout, user))
    }

    /// The end of one request, if it has ended; does not wait. After `Some` or an error the ticket is spent.
    ///
    /// # Errors
    /// How the request failed; `NotFound`: no such ticket.
    pub fn poll(&mut self, ticket: Ticket) -> Result<Option<Outcome>> {
        let (state, _) = self.parts("poll request", ticket.0)?;
        state.progress();
        match state.take(ticket) {
            Ok(Some(completed)) => completed.result.map(Some),
            Ok(None) => Ok(None),
            Err(status) => Err(Error::call("poll request", ticket.0, status)),
        }
    }

    /// The end of any submitted request that has ended.
    pub fn poll_any(&mut self) -> Option<Completed> {
        let (state, _) = self.parts("poll channel", u64::from(self.index)).ok()?;
        state.progress();
        let _ = state.flush(); // what finds no room goes with the next call
        state.port.ring();
        state.finished.pop_front()
    }

    /// Waits for the end of a request and takes it; how it ended stands in the result. An error is the wait's own: on
    /// `TimedOut` the request goes on and the ticket stays good.
    ///
    /// # Errors
    /// `NotFound`: no such ticket; `TimedOut`.
    pub fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Result<Completed> {
        let (state, session) = self.parts("wait for request", ticket.0)?;
        let deadline = deadline(timeout);
        let taken = state.wait_until(session, deadline, |state| state.take(ticket).transpose());
        taken.and_then(|result| result).map_err(|status| Error::call("wait for request", ticket.0, status))
    }

    /// The descriptor that becomes readable when a request ends after [`Channel::arm`], or the daemon is gone. For event
    /// loops: to be polled only, never read.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.state.as_deref().map(|state| state.port.bell())
    }

    /// Asks for a wake-up through [`Channel::fd`]. `true`: something has ended already; poll first, for the descriptor may
    /// stay silent.
    ///
    /// # Errors
    /// `Daemon`, `Fork`.
    pub fn arm(&mut self) -> Result<bool> {
        let on = u64::from(self.index);
        let (state, session) = self.parts("arm channel", on)?;
        state.port.disarm();
        let answered = state.port.arm();
        if session.alive() {
            Ok(answered || !state.finished.is_empty())
        } else {
            Err(Error::call("arm channel", on, Status::Daemon))
        }
    }

    /// Asks to cancel a request. It still ends, with `Canceled` or, if that was first, as it would have.
    ///
    /// # Errors
    /// `NotFound`: no such ticket. `Again`.
    pub fn cancel(&mut self, ticket: Ticket) -> Result<()> {
        self.at_once("cancel request", ticket.0, |state| state.cancel(ticket))
    }
}

impl Drop for Channel {
    /// The channel can be taken again; its sequences stay.
    fn drop(&mut self) {
        if self.inner.session.ours().is_err() {
            return;
        }
        if let Some(mut state) = self.state.take() {
            let _ = state.flush(); // the next owner's first call sends the rest
            state.port.ring();
            self.inner.give_channel(self.index, state);
        }
    }
}
