//! Sketches of a lane with tier 0 on a device. They are built and queried on the lane's stream. Answers are reported, and used to
//! select pages, once they arrive.

use super::{
    Refusal, ScoreKind, StepSeq,
    attention::{page_of, pages_of},
    messages::Reported,
};
use crate::{
    agent::{
        protocol::step::Reader,
        session::Session,
        stream::{Answer, Asked, LaneStream, Sketches},
    },
    client::options::SeqId,
    memory::cuda::status_of,
};
use kvtide_kernels::{
    Stream,
    params::{SKETCH_OPEN, SKETCH_UNKNOWN},
};
use kvtide_wire::status::Status;
use std::{collections::HashMap, sync::Arc};

/// Sketches of pages' keys on the lane's stream, if the session keeps any, and their answers.
#[derive(Default)]
pub(super) struct Sketched {
    sketches: Option<(Box<Sketches>, Arc<LaneStream>)>,
    /// The newest answer for each sequence and plane, of this step or the previous one: the share of each page.
    answered: HashMap<(SeqId, u16), (Asked, Vec<f32>)>,
}

impl Sketched {
    pub fn new(sketches: Option<Box<Sketches>>, stream: Arc<LaneStream>) -> Sketched {
        Sketched { sketches: sketches.map(|sketches| (sketches, stream)), answered: HashMap::new() }
    }

    /// Prepare for a step that has begun.
    pub fn begin(&mut self, step: u64) {
        self.answered.retain(|_, (asked, _)| asked.step + 1 >= step);
    }

    /// Return the sketches, stream and device side, if the lane is bound to a stream.
    fn bound(&mut self) -> Option<(&mut Sketches, Arc<Stream>, &LaneStream)> {
        let (sketches, side) = self.sketches.as_mut()?;
        Some((sketches, side.stream()?, side))
    }

    /// Enqueue the building of sketches for pages in the lane's table: for those without a sketch, or with `anew` for all of them,
    /// replacing old sketches. A page left out for lack of room owes its sketch and is built when it is read again, except pages
    /// that the step wrote: these may never be sealed. Return false if pages were left out.
    pub fn build(&mut self, session: &Session, reader: &Reader, pages: impl Iterator<Item = u32>, anew: bool) -> bool {
        let planes = session.shared.geometry().plane_count();
        let Some(mut digests) = session.attention.digests_mut() else { return true };
        let address = |page: u32| {
            let frame = reader.view().frame(page / planes, (page % planes) as u16)?;
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
        let built = match self.bound() {
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
        built == items.len()
    }

    /// Query the device's sketches. The answer is taken later.
    pub fn ask(
        &mut self,
        session: &Session,
        reader: &Reader,
        kind: ScoreKind,
        (step, plane): (StepSeq, u16),
        queries: &[f32],
    ) -> Result<(), Refusal> {
        let (needed, sealed) = pages_of(session, step, plane);
        let Some(digests) = session.attention.digests() else { return Ok(()) };
        let Some((sketches, stream, side)) = self.bound() else { return Ok(()) };
        if needed.is_empty() {
            return Ok(());
        }
        let (first, pages) = (needed.start, needed.len() as u32);
        let version = session.shared.seqs().version(step.seq);
        let asked = Asked { seq: step.seq, version, plane, kind, step: reader.step(), first, pages };
        let places = needed.map(|index| {
            if index >= sealed {
                return SKETCH_OPEN;
            }
            let page = page_of(session, step.seq, index, plane);
            page.and_then(|page| digests.place(page)).unwrap_or(SKETCH_UNKNOWN)
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

    /// Take the answers that have arrived: give them to `report`, and keep the newest for page selection.
    pub fn take(&mut self, session: &Session, reader: &Reader, mut report: impl FnMut(Reported, (u64, u32), &[f32])) {
        let Some((sketches, _)) = &mut self.sketches else { return };
        let mut take = |Answer { asked, shares }: Answer<'_>| {
            let Asked { seq, version, plane, kind, step, first, .. } = asked;
            // The sequence id may have been reused.
            if reader.position_of(seq).is_none() || session.shared.seqs().version(seq) != version {
                return;
            }
            if step + 1 >= reader.step() {
                self.answered.insert((seq, plane), (asked, shares.to_vec()));
            }
            report((kind, seq, plane), (step, first), shares);
        };
        // Device errors are reported by the calls that enqueue work.
        while matches!(sketches.answer(&mut take), Ok(true)) {}
    }

    /// Return the shares of a plane's pages from `first` on, if a query for them was answered. It was an earlier query or a
    /// look-ahead query.
    pub fn shares(&self, session: &Session, seq: SeqId, plane: u16, first: u32) -> Option<&[f32]> {
        let (asked, shares) = self.answered.get(&(seq, plane))?;
        (asked.first == first && asked.version == session.shared.seqs().version(seq)).then_some(&shares[..])
    }
}
