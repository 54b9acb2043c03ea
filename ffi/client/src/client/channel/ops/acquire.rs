//! Acquire: pin pages in tier 0.

use super::{
    Answered, Operation, Outcome, Refusal, Reply, Sequences, Session, Started, Status, WireRequest, Work, check_range,
};
use crate::{
    agent::protocol::{PageRange, PinId},
    client::request::Pin,
};

/// The pin is taken before the request and kept if it succeeds.
#[derive(Debug)]
pub struct Acquire {
    range: PageRange,
    pin: PinId,
}

impl Acquire {
    /// Pin a range. Send a request only if a page of it is missing.
    pub fn begin(sequences: &mut Sequences, session: &Session, range: PageRange) -> Result<Started, Refusal> {
        let PageRange { seq, first, count, plane, planes } = range;
        let shared = &session.shared;
        sequences.steady(seq)?;
        let all = shared.geometry().plane_count();
        check_range(first, count, shared.seqs().len(seq))?;
        if u32::from(plane) + u32::from(planes) > all {
            let why = format!("{planes} planes from plane {plane} on; the space has {all}");
            return Err(Refusal::because(Status::Range, why));
        }
        let full = || Refusal::because(Status::Limit, "the session has no room for another pin: release some first");
        let pin = shared.pins().pin(shared.seqs(), &range).ok_or_else(full)?;
        let resident = (first..first + count).filter_map(|index| shared.seqs().block(seq, index)).all(|block| {
            // A page in a mapped frame is not in tier 0; the daemon must bring it there.
            (shared.geometry().mapped_frames() == 0 && shared.resident_pages(block) == all)
                || (plane..plane + planes).all(|plane| shared.in_tier0(block, plane))
        });
        if resident {
            sequences.pinned(seq, pin, false)?;
            return Ok(Started::Done(Outcome::Pin(pin_of(pin))));
        }
        Ok(Started::Send(Work::Acquire(Acquire { range, pin })))
    }

    fn unpin(&self, session: &Session) {
        session.shared.pins().release(session.shared.seqs(), self.pin);
    }
}

impl Operation for Acquire {
    fn request(&self) -> WireRequest<'_> {
        let PageRange { seq, first, count, plane, planes } = self.range;
        WireRequest::Acquire { seq, plane, planes, first, count }
    }

    fn answered(&mut self, sequences: &mut Sequences, session: &Session, reply: &Reply) -> Answered {
        let pinned = reply.check(true).and_then(|()| sequences.pinned(self.range.seq, self.pin, true));
        pinned.inspect_err(|_| self.unpin(session))?;
        Ok(Some(Outcome::Pin(pin_of(self.pin))))
    }

    fn take_back(&self, _: &mut Sequences, session: &Session) {
        self.unpin(session);
    }
}

/// Convert a pin to the caller's form.
fn pin_of(id: PinId) -> Pin {
    Pin(u64::from(id.generation) << 32 | u64::from(id.slot))
}
