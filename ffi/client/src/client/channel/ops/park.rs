//! Park an idle sequence, and resume it.

use super::{Answered, Operation, Refusal, Reply, Sequences, Session, Started, Status, WireRequest, Work};
use std::time::Duration;

/// A park that fails stays parked as far as it got; [`Resume`] undoes it.
#[derive(Debug)]
pub struct Park {
    seq: u32,
    due_us: u64,
}

impl Park {
    pub fn begin(sequences: &mut Sequences, seq: u32, due: Duration) -> Result<Started, Refusal> {
        let due_us = u64::try_from(due.as_micros()).unwrap_or(u64::MAX);
        if !sequences.park(seq)? {
            // Only the expected time of return changes.
            return Ok(Started::Send(Work::plain(WireRequest::Park { seq, due_us })));
        }
        Ok(Started::Send(Work::Park(Park { seq, due_us })))
    }
}

impl Operation for Park {
    fn request(&self) -> WireRequest<'_> {
        WireRequest::Park { seq: self.seq, due_us: self.due_us }
    }

    fn take_back(&self, sequences: &mut Sequences, _: &Session) {
        sequences.unpark(self.seq);
    }
}

/// Opens the sequence to lanes with the answer.
#[derive(Debug)]
pub struct Resume {
    seq: u32,
}

impl Resume {
    pub fn begin(sequences: &mut Sequences, seq: u32) -> Result<Started, Refusal> {
        if !sequences.steady(seq)?.parked {
            return Err(Refusal::because(Status::State, "the sequence is not parked"));
        }
        Ok(Started::Send(Work::Resume(Resume { seq })))
    }
}

impl Operation for Resume {
    fn request(&self) -> WireRequest<'_> {
        WireRequest::Resume { seq: self.seq }
    }

    fn answered(&mut self, sequences: &mut Sequences, _: &Session, reply: &Reply) -> Answered {
        if reply.status == Status::Ok {
            sequences.unpark(self.seq);
        }
        reply.done()
    }
}
