//! Acquire: pin pages in tier 0; release: unpin them.

use super::{Answered, Operation, Outcome, Refusal, Reply, Session, Started, State, Status, WireRequest, Work, parked};
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
    pub(super) fn begin(state: &mut State, session: &Session, range: PageRange) -> Result<Started, Refusal> {
        let PageRange { seq, first, count, plane, planes } = range;
        let shared = &session.shared;
        let owned = state.steady(seq)?;
        let all = shared.geometry().plane_count();
        let blocks = shared.seqs().len(seq);
        if first.checked_add(count).is_none_or(|end| end > blocks) {
            let why = format!("{count} blocks from block {first} on; the sequence has {blocks}");
            return Err(Refusal::because(Status::Range, why));
        }
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
            owned.pins.push((pin, false));
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

    fn answered(&mut self, state: &mut State, session: &Session, reply: &Reply<'_>) -> Answered {
        let owned = state.owned.get_mut(&self.range.seq).ok_or(Status::NotFound);
        let owned = reply.check(true).and(owned).inspect_err(|_| self.unpin(session))?;
        owned.pins.push((self.pin, true));
        Ok(Some(Outcome::Pin(pin_of(self.pin))))
    }

    fn why(&self, _: &Session, status: Status) -> Option<String> {
        parked(status)
    }

    fn take_back(&self, _: &mut State, session: &Session) {
        self.unpin(session);
    }
}

impl State {
    pub(in crate::client::channel) fn release(&mut self, pin: Pin) -> Result<(), Refusal> {
        let session = self.session();
        let shared = &session.shared;
        let id = PinId { slot: pin.0 as u32, generation: (pin.0 >> 32) as u32 };
        let released = || Refusal::because(Status::State, "it was released before, or its sequence was dropped");
        let elsewhere = || Refusal::because(Status::NotFound, "another channel has it");
        let range = shared.pins().range(id).ok_or_else(released)?;
        let owned = self.owned.get_mut(&range.seq).ok_or_else(elsewhere)?;
        let at = owned.pins.iter().position(|(known, _)| *known == id).ok_or_else(elsewhere)?;
        let (_, remote) = owned.pins.swap_remove(at);
        shared.pins().release(shared.seqs(), id);
        if remote && session.alive() {
            let PageRange { seq, first, count, plane, planes } = range;
            self.releases.push_back(WireRequest::Release { seq, plane, planes, first, count });
            let _ = self.flush(); // what does not fit into the ring is sent with a later call
        }
        Ok(())
    }
}

/// Convert a pin to the caller's form.
fn pin_of(id: PinId) -> Pin {
    Pin(u64::from(id.generation) << 32 | u64::from(id.slot))
}
