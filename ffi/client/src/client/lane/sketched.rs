//! Sketches of a lane whose tier 0 is on a device: built and asked on its stream, told and picked by when the answers are there.

use super::{
    ScoreKind, State, StepSeq,
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
    /// The lane's stream and its sketches, if it has both.
    fn sketching(&mut self) -> Option<(&mut Sketches, Arc<Stream>, Arc<LaneStream>)> {
        let side = self.stream.clone()?;
        let stream = side.stream()?;
        Some((self.sketches.as_deref_mut()?, stream, side))
    }

    /// Enqueues the building of the sketches of pages that the lane's table shows: of those that have none, or of all, over what
    /// they had. What finds no room owes them, and is built when it is read again; but what the step wrote may never be sealed.
    pub(super) fn build_on_device(&mut self, session: &Session, pages: impl Iterator<Item = u32>, anew: bool) {
        let planes = session.shared.geometry().plane_count();
        let Some(mut digests) = session.attention.digests_mut() else { return };
        let address = |page: u32| {
            let frame = self.reader.view().frame(page / planes, (page % planes) as u16)?;
            session.tier0.frame(frame).map(|(at, _)| at.addr() as u64)
        };
        let wanted = pages.filter(|page| anew || !digests.has(*page)).filter_map(|page| Some((page, address(page)?)));
        let mut wanted: Vec<(u32, u64)> = wanted.collect();
        // Forks have pages in common, and a launch may write each sketch once.
        wanted.sort_unstable();
        wanted.dedup_by_key(|(page, _)| *page);
        // A page that took its slot from an earlier one of these has it.
        let taken: Vec<(u64, u32)> =
            wanted.iter().map(|(page, at)| (*at, digests.take(*page).unwrap_or(u32::MAX))).collect();
        let kept = |(page, (at, slot)): (&(u32, u64), &(u64, u32))| {
            (digests.place(page.0) == Some(*slot)).then_some((*at, *slot))
        };
        let items: Vec<(u64, u32)> = wanted.iter().zip(&taken).filter_map(kept).collect();
        let built = match self.sketching() {
            // A lane that has failed emits nothing.
            Some((sketches, stream, side)) if side.failed().is_none() => {
                sketches.build(&stream, side.status_word(), &items)
            }
            _ => Ok(0),
        };
        // A device that is lost ends the session at its next call; until then nothing is known of these pages.
        let built = built.unwrap_or(0);
        for (_, slot) in &items[built..] {
            digests.void(*slot, !anew);
        }
        session.counters.sketches_left_out.add((items.len() - built) as u64);
        self.attention.owing |= !anew && built < items.len();
    }

    /// Asks the device what a query would read; the answer is taken later.
    pub(super) fn ask_device(
        &mut self,
        session: &Session,
        kind: ScoreKind,
        step: StepSeq,
        plane: u16,
        queries: &[f32],
    ) -> std::result::Result<(), Status> {
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
                // Too many questions: this one is left out, as scores may be.
                session.counters.sketches_left_out.add(u64::from(!asked));
                Ok(())
            }
            Err(kvtide_kernels::Error::Invalid { .. }) => Err(Status::Range),
            Err(error) => Err(status_of(&error)),
        }
    }

    /// Takes the answers that have come: tells them, and keeps the newest to pick by.
    pub(super) fn take_answers(&mut self, session: &Session) {
        let mut answered = None;
        while let Some(sketches) = self.sketches.as_deref_mut() {
            let shares = &mut self.attention.shares;
            let took = sketches.answer(|Answer { asked, shares: found }| {
                shares.clear();
                shares.extend_from_slice(found);
                answered = Some(asked);
            });
            // An error of the device is met by the calls that enqueue.
            if !matches!(took, Ok(true)) {
                return;
            }
            let Some(Asked { seq, version, plane, kind, step, first, .. }) = answered.take() else { continue };
            // The number may be another sequence's by now.
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
