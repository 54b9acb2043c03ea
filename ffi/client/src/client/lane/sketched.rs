//! Sketches of a lane with tier 0 on a device. They are built and queried on the lane's stream. Answers are reported, and used to
//! select pages, once they arrive.

use super::{
    Refusal, ScoreKind, State, StepSeq,
    attention::{Answered, pages_of},
};
use crate::{
    agent::{
        session::Session,
        stream::{Answer, Asked, LaneStream, Sketches},
    },
    memory::cuda::status_of,
};
use kvtide_kernels::{
    Stream,
    params::{SKETCH_OPEN, SKETCH_UNKNOWN},
};
use kvtide_wire::status::Status;
use std::sync::Arc;

impl State {
    /// Return the lane's sketches, stream and device side, if it has them.
    fn sketching(&mut self) -> Option<(&mut Sketches, Arc<Stream>, Arc<LaneStream>)> {
        let side = self.stream.clone()?;
        let stream = side.stream()?;
        Some((self.sketches.as_deref_mut()?, stream, side))
    }

    /// Enqueue the building of sketches for pages in the lane's table: for those without a sketch, or with `anew` for all of them,
    /// replacing old sketches. A page left out for lack of room owes its sketch and is built when it is read again, except pages
    /// that the step wrote: these may never be sealed.
    pub(super) fn build_on_device(&mut self, session: &Session, pages: impl Iterator<Item = u32>, anew: bool) {
        let planes = session.shared.geometry().plane_count();
        let Some(mut digests) = session.attention.digests_mut() else { return };
        let address = |page: u32| {
            let frame = self.reader.view().frame(page / planes, (page % planes) as u16)?;
            session.tier0.frame(frame).map(|(at, _)| at.addr() as u64)
        };
        let wanted = pages.filter(|page| anew || !digests.has(*page)).filter_map(|page| Some((page, address(page)?)));
        let mut wanted: Vec<(u32, u64)> = wanted.collect();
        // Forks share pages, and a launch may write each sketch only once.
        wanted.sort_unstable();
        wanted.dedup_by_key(|(page, _)| *page);
        // Leave out a page if a later page of this list took its slot.
        let taken: Vec<(u64, u32)> =
            wanted.iter().map(|(page, at)| (*at, digests.take(*page).unwrap_or(u32::MAX))).collect();
        let kept = |(page, (at, slot)): (&(u32, u64), &(u64, u32))| {
            (digests.place(page.0) == Some(*slot)).then_some((*at, *slot))
        };
        let items: Vec<(u64, u32)> = wanted.iter().zip(&taken).filter_map(kept).collect();
        let built = match self.sketching() {
            // A failed lane emits nothing.
            Some((sketches, stream, side)) if side.failed().is_none() => {
                sketches.build(&stream, side.status_word(), &items)
            }
            _ => Ok(0),
        };
        // A lost device ends the session at the session's next call. Until then these pages have no sketch.
        let built = built.unwrap_or(0);
        for (_, slot) in &items[built..] {
            digests.void(*slot, !anew);
        }
        session.counters.sketches_left_out.add((items.len() - built) as u64);
        self.attention.owing |= !anew && built < items.len();
    }

    /// Query the device's sketches. The answer is taken later.
    pub(super) fn ask_device(
        &mut self,
        session: &Session,
        kind: ScoreKind,
        step: StepSeq,
        plane: u16,
        queries: &[f32],
    ) -> std::result::Result<(), Refusal> {
        self.take_answers(session);
        let (needed, sealed) = pages_of(session, step, plane);
        let number = self.reader.step();
        let Some(digests) = session.attention.digests() else { return Ok(()) };
        let Some((sketches, stream, side)) = self.sketching() else { return Ok(()) };
        if needed.is_empty() {
            return Ok(());
        }
        let first = needed.start;
        let version = session.shared.seqs().version(step.seq);
        let asked = Asked { seq: step.seq, version, plane, kind, step: number, first, pages: needed.len() as u32 };
        let places = needed.map(|index| {
            if index >= sealed {
                return SKETCH_OPEN;
            }
            State::page_of(session, step.seq, index, plane)
                .and_then(|page| digests.place(page))
                .unwrap_or(SKETCH_UNKNOWN)
        });
        match sketches.ask(&stream, side.status_word(), asked, queries, places) {
            Ok(asked) => {
                // Too many queries in flight: leave this one out, as scores may be.
                session.counters.sketches_left_out.add(u64::from(!asked));
                Ok(())
            }
            Err(error @ kvtide_kernels::Error::Invalid { .. }) => {
                Err(Refusal::because(Status::Range, error.to_string()))
            }
            Err(error) => Err(status_of(&error).into()),
        }
    }

    /// Take the answers that have arrived: report them, and keep the newest for page selection.
    pub(super) fn take_answers(&mut self, session: &Session) {
        let mut answered = None;
        while let Some(sketches) = self.sketches.as_deref_mut() {
            let shares = &mut self.attention.shares;
            let took = sketches.answer(|Answer { asked, shares: found }| {
                shares.clear();
                shares.extend_from_slice(found);
                answered = Some(asked);
            });
            // Device errors are reported by the calls that enqueue work.
            if !matches!(took, Ok(true)) {
                return;
            }
            let Some(Asked { seq, version, plane, kind, step, first, .. }) = answered.take() else { continue };
            // The sequence id may have been reused.
            if self.reader.position_of(seq).is_none() || session.shared.seqs().version(seq) != version {
                continue;
            }
            if step + 1 >= self.reader.step() {
                let shares = self.attention.shares.clone();
                self.attention.answered.insert((seq, plane), Answered { step, version, first, shares });
            }
            self.tell_of(session, kind, (seq, plane), step, first);
        }
    }
}
