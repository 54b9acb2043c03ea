//! The engine's handle of a channel, and its calls on sequences. `blocks` and `feed` have the others.

use super::{State, ops::Begin};
use crate::{
    agent::attention::Contract,
    client::{
        Client, Error, Refusal, Result,
        inner::Inner,
        options::{SeqId, deadline},
        request::{Completed, Outcome, PageRange, Pin, Request, Ticket},
    },
};
use kvtide_wire::{
    entry::{Advice, Level},
    status::Status,
    trace::TraceContext,
};
use std::{os::fd::BorrowedFd, sync::Arc, time::Duration};

/// The calls of one engine thread. A sequence belongs to the channel that created it: all its calls go through that channel, which
/// keeps them in order.
///
/// Blocking calls take a timeout. When it has passed they cancel the request and return `TimedOut`. Every call may return `Daemon`
/// (the daemon is gone) and `Fork` (another process attached). A call that does not block returns `Again` if the ring is full.
pub struct Channel {
    inner: Arc<Inner>,
    state: Option<Box<State>>,
    index: u16,
}

impl Channel {
    pub(in crate::client) fn new(client: &Client, index: u16) -> Result<Channel> {
        let mut state = client.inner.channels.take(&client.inner.session, index)?;
        state.set_trace(None);
        Ok(Channel { inner: Arc::clone(&client.inner), state: Some(state), index })
    }

    /// Run a call on the channel's state. Fails in a forked child.
    pub(super) fn call<T, E: Into<Refusal>>(
        &mut self,
        doing: &'static str,
        on: impl Into<u64>,
        call: impl FnOnce(&mut State) -> std::result::Result<T, E>,
    ) -> Result<T> {
        let on = on.into();
        let ours = self.state.as_deref_mut().filter(|_| self.inner.session.ours().is_ok());
        call(ours.ok_or_else(|| Error::call(doing, on, Status::Fork))?).map_err(|why| Error::refused(doing, on, why))
    }

    /// Run a call that does not wait.
    fn at_once<T>(
        &mut self,
        doing: &'static str,
        on: impl Into<u64>,
        call: impl FnOnce(&mut State) -> std::result::Result<T, Refusal>,
    ) -> Result<T> {
        self.call(doing, on, |state| state.at_once(call))
    }

    /// Run a request to its end, and take its `outcome`.
    pub(super) fn blocking<T>(
        &mut self,
        doing: &'static str,
        on: impl Into<u64>,
        request: impl Begin + Copy,
        timeout: Duration,
        outcome: impl FnOnce(Outcome) -> Option<T>,
    ) -> Result<T> {
        let on = on.into();
        let ended = self.call(doing, on, |state| state.run(request, timeout))??;
        outcome(ended).ok_or_else(|| Error::call(doing, on, Status::Internal))
    }

    /// Return whether the daemon makes spans of traced requests, as [`Client::traces`].
    #[must_use]
    pub fn traces(&self) -> bool {
        self.inner.traces
    }

    /// Set the trace that the calls on this channel belong to from now on: the daemon makes a span of each of their requests, a child
    /// of the context's span. `None`: no trace. No effect unless the daemon traces ([`Client::traces`]).
    ///
    /// # Errors
    /// `Fork`.
    pub fn trace(&mut self, context: Option<TraceContext>) -> Result<()> {
        let context = context.filter(|_| self.inner.traces);
        self.call("set the trace of channel", self.index, |state| {
            state.set_trace(context);
            Ok::<_, Refusal>(())
        })
    }

    /// Make a round trip to the daemon, without effect.
    ///
    /// # Errors
    /// See [`Channel`].
    pub fn nop(&mut self, timeout: Duration) -> Result<()> {
        self.blocking("round trip on channel", self.index, Request::Nop, timeout, |_| Some(()))
    }

    /// Create an empty sequence. Local: the message to the daemon needs no answer.
    ///
    /// # Errors
    /// `Limit`: the session has `seqs_max` live sequences already.
    pub fn create_seq(&mut self) -> Result<SeqId> {
        self.at_once("create a sequence on channel", self.index, State::create)
    }

    /// Drop a sequence and its pins. Never waits.
    ///
    /// # Errors
    /// `NotFound`. `State`: it is in a lane's step.
    pub fn drop_seq(&mut self, seq: SeqId) -> Result<()> {
        self.at_once("drop sequence", seq, |state| state.drop_seq(seq))
    }

    /// End a lease. Never waits. Loads from it that are in flight end with `NotFound`.
    ///
    /// # Errors
    /// `NotFound`: no such lease. `Again`.
    pub fn end_lease(&mut self, lease: SeqId) -> Result<()> {
        self.at_once("end lease", lease, |state| state.end_lease(lease))
    }

    /// Reserve room for positions below `tokens`. Afterwards the pages up to there are resident and writable. Waits for room if
    /// work in flight can free some. Makes no round trip if the sequence has the room already.
    ///
    /// # Errors
    /// `NoSpace`: no tier has room and nothing can be evicted; blocks granted so far stay with the sequence. `TooBig`, `Limit`,
    /// `TimedOut`.
    pub fn reserve(&mut self, seq: SeqId, tokens: u64, timeout: Duration) -> Result<()> {
        self.blocking("reserve for sequence", seq, Request::Reserve { seq, tokens }, timeout, |_| Some(()))
    }

    /// Commit the tokens below `tokens`: they are final, and every page that they fill is sealed. Never waits.
    ///
    /// # Errors
    /// `State`: more than reserved, or less than committed. With tier 0 on a device also: the sequence is in a lane's step; call
    /// `end` first.
    pub fn commit(&mut self, seq: SeqId, tokens: u64) -> Result<()> {
        self.at_once("commit to sequence", seq, |state| state.commit(seq, tokens))
    }

    /// Create a child that shares the sealed blocks and has copies of the unsealed ones. The parent must not be in a lane's step.
    ///
    /// # Errors
    /// `State`, `Limit`, `NoSpace`, `TimedOut`.
    pub fn fork(&mut self, seq: SeqId, timeout: Duration) -> Result<SeqId> {
        let child = |outcome| if let Outcome::Seq(child) = outcome { Some(child) } else { None };
        self.blocking("fork sequence", seq, Request::Fork { seq }, timeout, child)
    }

    /// Roll back to `tokens`. If the cut is inside a sealed block, that block is copied.
    ///
    /// # Errors
    /// `Range`: more than committed. `Busy`: a page beyond the cut is pinned. `State`, `NoSpace`, `TimedOut`.
    pub fn truncate(&mut self, seq: SeqId, tokens: u64, timeout: Duration) -> Result<()> {
        self.blocking("truncate sequence", seq, Request::Truncate { seq, tokens }, timeout, |_| Some(()))
    }

    /// Publish `hashes.len()` sealed blocks, from block index `first` on, under their content hashes. `parent` is the hash of the
    /// block before them, 0 at the root. Waits until all of them have reached `level` or cannot reach it. Return the level reached.
    ///
    /// # Errors
    /// `NotAdmitted`: not all of them will be persisted; lookups may find them while the daemon runs. `OverBudget`: the write budget is
    /// used up; they are persisted when it refills. `TimedOut`: the level was not
    /// reached in time; lookups can find the blocks, which may reach the level later. `State`: a block is not sealed.
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
        let level = |outcome| if let Outcome::Level(level) = outcome { Some(level) } else { None };
        self.blocking("publish blocks of sequence", seq, request, timeout, level)
    }

    /// Attach the longest cached prefix of `hashes` to an empty sequence. Return its number of blocks.
    ///
    /// # Errors
    /// `State`: the sequence is not empty.
    pub fn attach_prefix(&mut self, seq: SeqId, hashes: &[u128], timeout: Duration) -> Result<usize> {
        self.attach_cached(seq, hashes, false, timeout)
    }

    /// As [`Channel::attach_prefix`], for a prefix that a lookup has found: statistics count it once.
    ///
    /// # Errors
    /// As [`Channel::attach_prefix`].
    pub fn attach_looked_up(&mut self, seq: SeqId, hashes: &[u128], timeout: Duration) -> Result<usize> {
        self.attach_cached(seq, hashes, true, timeout)
    }

    fn attach_cached(&mut self, seq: SeqId, hashes: &[u128], looked_up: bool, timeout: Duration) -> Result<usize> {
        let request = Request::AttachPrefix { seq, hashes, looked_up };
        let blocks = |outcome| if let Outcome::Blocks(blocks) = outcome { Some(blocks) } else { None };
        self.blocking("attach a prefix to sequence", seq, request, timeout, blocks)
    }

    /// Park an idle sequence: its pages may leave tier 0, the unsealed tail included. `due` is the time until its expected return,
    /// zero if unknown. If the sequence is parked already, only `due` changes. Never waits.
    ///
    /// # Errors
    /// `State`: it is in a lane's step. `Again`.
    pub fn park(&mut self, seq: SeqId, due: Duration) -> Result<()> {
        self.at_once("park sequence", seq, |state| state.start(Request::Park { seq, due }))
    }

    /// Resume a parked sequence. Returns when its tail is writable.
    ///
    /// # Errors
    /// `NoSpace`, `Lost`, `TimedOut`.
    pub fn resume(&mut self, seq: SeqId, timeout: Duration) -> Result<()> {
        self.blocking("resume sequence", seq, Request::Resume { seq }, timeout, |_| Some(()))
    }

    /// Advise the daemon how blocks `first .. first + count` will be used. `Advice::Remaining` concerns the whole
    /// sequence whatever the range. Never waits.
    ///
    /// # Errors
    /// `Range`, `Again`.
    pub fn advise(&mut self, seq: SeqId, first: u32, count: u32, advice: Advice) -> Result<()> {
        let request = Request::Advise { seq, first, count, advice };
        self.at_once("advise on sequence", seq, |state| state.start(request))
    }

    /// Set the reading contract of a sequence. It takes effect with the first step after this call has returned. Forks inherit it.
    ///
    /// # Errors
    /// `Range`: the contract's value is out of range. `TimedOut`.
    pub fn contract(&mut self, seq: SeqId, contract: Contract, timeout: Duration) -> Result<()> {
        let request = Request::Contract { seq, contract };
        self.blocking("set the reading contract of sequence", seq, request, timeout, |_| Some(()))
    }

    /// Pin a range in tier 0, after loading its missing pages. Local if all of it is resident.
    ///
    /// # Errors
    /// `TooBig`: more pages than tier 0 can pin. `Range`, `Limit`, `TimedOut`, `Lost`.
    pub fn acquire(&mut self, range: PageRange, timeout: Duration) -> Result<Pin> {
        let pin = |outcome| if let Outcome::Pin(pin) = outcome { Some(pin) } else { None };
        self.blocking("acquire pages of sequence", range.seq, Request::Acquire { range }, timeout, pin)
    }

    /// Release a pin.
    ///
    /// # Errors
    /// `State`: it was released before.
    pub fn release(&mut self, pin: Pin) -> Result<()> {
        self.at_once("release pin", pin.0, |state| state.release(pin))
    }

    /// Resize a size class of tier 0 to its first `frames` frames, at most the number given at attach. Return that number.
    ///
    /// The memory behind the other frames is returned to the system or the device. A larger number allocates it again. Frames and
    /// tables keep their addresses. Steps continue meanwhile: pages in frames that go are evicted at the lanes' boundaries.
    /// Unsealed pages must stay; they move to other frames while no lane is in a step. An engine that calls this between its steps
    /// therefore has the memory at once.
    ///
    /// # Errors
    /// The class stays as it was.
    /// - `Range`: no such class, more frames than given at attach, or fewer than a block has pages in the class (or fewer than 2).
    /// - `Busy`: pages that must stay (unsealed or acquired) need more frames.
    /// - `NoSpace`: the pages to evict find no room in lower tiers.
    /// - `State`: the class is being resized, or a call that timed out has not ended yet.
    /// - `TimedOut`: pages to evict stayed acquired, or a lane was in a step all the time.
    /// - `System`, `Device`: no memory for more frames.
    pub fn resize_tier0(&mut self, class: usize, frames: u32, timeout: Duration) -> Result<u32> {
        let request = Request::Tier0Resize { class, frames };
        let frames = |outcome| if let Outcome::Frames(frames) = outcome { Some(frames) } else { None };
        self.blocking("resize tier-0 class", class as u64, request, timeout, frames)
    }

    /// Return the number of frames of a size class that have memory now; 0 if there is no such class.
    #[must_use]
    pub fn tier0_frames(&self, class: usize) -> u32 {
        self.inner.session.tier0.frames(class)
    }

    /// Send a request without waiting for its end. `user` is returned with the result.
    ///
    /// # Errors
    /// `Again`: `depth` requests are in flight. Mistakes of the caller, as by the blocking form.
    pub fn submit(&mut self, request: Request<'_>, timeout: Duration, user: u64) -> Result<Ticket> {
        self.at_once("submit a request on channel", self.index, |state| state.submit(request, timeout, user))
    }

    /// Return the result of a request if it has ended. Does not wait. After `Some` or an error the ticket is no longer valid.
    ///
    /// # Errors
    /// The request's own error. `NotFound`: no such ticket.
    pub fn poll(&mut self, ticket: Ticket) -> Result<Option<Outcome>> {
        let completed = self.call("poll request", ticket.0, |state| state.poll(ticket))?;
        completed.map(|completed| completed.result).transpose()
    }

    /// Return the result of any submitted request that has ended.
    pub fn poll_any(&mut self) -> Option<Completed> {
        self.call("poll channel", self.index, |state| Ok::<_, Refusal>(state.poll_any())).ok()?
    }

    /// Wait for a request and take its result, which contains the request's own error. An error of this call concerns the wait:
    /// after `TimedOut` the request continues and the ticket stays valid.
    ///
    /// # Errors
    /// `NotFound`: no such ticket. `TimedOut`.
    pub fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Result<Completed> {
        self.call("wait for request", ticket.0, |state| state.wait(ticket, deadline(timeout)))
    }

    /// Wait until no copy of an earlier call touches the engine's memory any more. Needed after calls that returned before the
    /// daemon had answered: a call that timed out was cancelled, but a copy that had begun continues for a moment. After the
    /// daemon's death no new copy begins.
    ///
    /// # Errors
    /// `TimedOut`.
    pub fn settle(&mut self, timeout: Duration) -> Result<()> {
        self.call("settle the blocks of channel", self.index, |state| state.settle(deadline(timeout)))
    }

    /// Return the descriptor that becomes readable when a request ends after [`Channel::arm`], or when the daemon is gone. For
    /// event loops: poll it, never read it.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.state.as_deref().map(|state| state.bell())
    }

    /// Request a wake-up through [`Channel::fd`]. `true`: a request has ended already, so poll first; the descriptor may stay
    /// silent.
    ///
    /// # Errors
    /// `Daemon`, `Fork`.
    pub fn arm(&mut self) -> Result<bool> {
        self.call("arm channel", self.index, State::arm)
    }

    /// Cancel a request. It still ends: with `Canceled`, or with its own result if it ended first.
    ///
    /// # Errors
    /// `NotFound`: no such ticket. `Again`.
    pub fn cancel(&mut self, ticket: Ticket) -> Result<()> {
        self.at_once("cancel request", ticket.0, |state| state.cancel(ticket))
    }
}

impl Drop for Channel {
    /// Return the channel to the client. Its sequences stay.
    fn drop(&mut self) {
        if self.inner.session.ours().is_err() {
            return;
        }
        if let Some(mut state) = self.state.take() {
            state.send_changes(); // the next owner's first call sends the rest
            self.inner.channels.give(self.index, state);
        }
    }
}
