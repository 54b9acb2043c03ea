//! Park an idle sequence, and resume it.

use super::{Answered, Operation, Refusal, Reply, Session, Started, State, Status, WireRequest, Work, close};
use std::time::Duration;

/// A park that fails stays parked as far as it got; [`Resume`] undoes it.
#[derive(Debug)]
pub struct Park {
    seq: u32,
    due_us: u64,
}

impl Park {
    pub(super) fn begin(state: &mut State, session: &Session, seq: u32, due: Duration) -> Result<Started, Refusal> {
        let owned = state.steady(seq)?;
        let due_us = u64::try_from(due.as_micros()).unwrap_or(u64::MAX);
        if owned.parked {
            // Only the expected time of return changes.
            return Ok(Started::Send(Work::plain(WireRequest::Park { seq, due_us })));
        }
        close(session, seq)?;
        owned.parked = true;
        Ok(Started::Send(Work::Park(Park { seq, due_us })))
    }
}

impl Operation for Park {
    fn request(&self) -> WireRequest<'_> {
        WireRequest::Park { seq: self.seq, due_us: self.due_us }
    }

    fn take_back(&self, state: &mut State, _: &Session) {
        state.unpark(self.seq);
    }
}

/// Opens the sequence to lanes with the answer.
#[derive(Debug)]
pub struct Resume {
    seq: u32,
}

impl Resume {
    pub(super) fn begin(state: &mut State, seq: u32) -> Result<Started, Refusal> {
        if !state.steady(seq)?.parked {
            return Err(Refusal::because(Status::State, "the sequence is not parked"));
        }
        Ok(Started::Send(Work::Resume(Resume { seq })))
    }
}

impl Operation for Resume {
    fn request(&self) -> WireRequest<'_> {
        WireRequest::Resume { seq: self.seq }
    }

    fn answered(&mut self, state: &mut State, _: &Session, reply: &Reply<'_>) -> Answered {
        if reply.status == Status::Ok {
            state.unpark(self.seq);
        }
        reply.done()
    }
}

impl State {
    fn unpark(&mut self, seq: u32) {
        if let Some(owned) = self.owned.get_mut(&seq) {
            owned.parked = false;
        }
        self.session().shared.seqs().open(seq);
    }
}
