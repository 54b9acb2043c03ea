//! A lane's side of attention: scores reported to the daemon, pages selected for `approx`.
//!
//! This affects only speed, and which pages an inexact contract omits; it never changes the contents of pages that are read.

use super::{
    Lane, Pass, Refusal, Sketched,
    digests::{OwedDigests, has_keys},
    messages::{Messages, Reported},
};
#[cfg(feature = "cuda")]
use crate::agent::stream::{LaneStream, Sketches};
use crate::{
    agent::{
        attention::{Candidate, Contract, Heads, Known, Lost, Picker, RECENT, SINKS, Scorer, estimate, group_of},
        protocol::step::{Absent, Chosen, Reader, StepSeq},
        session::Session,
    },
    client::options::SeqId,
};
use kvtide_wire::status::Status;
#[cfg(feature = "cuda")]
use std::sync::Arc;
use std::{ops::Range, time::Instant};

pub use kvtide_wire::score::ScoreKind;

/// One step in this many reports shares by page while all pages are resident. Shares change little from step to step, and a
/// shortage of room does not arise within this many tokens.
const MASS_STEPS: u64 = 8;

/// The part of a sequence that a step did not read in a plane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Omission {
    /// Pages that attention reads under the contract `exact`.
    pub needed: u32,
    /// Needed pages that were not read.
    pub omitted: u32,
    /// Omitted pages that `approx` had selected and that were not resident, or not in time.
    pub waived: u32,
    /// Share of attention of the omitted pages: an estimate, made when [`Lane::mass`] reports the step's attention, and 0 before
    /// that.
    pub share: f32,
    /// The estimate for the worst query head. With tier 0 on a device, the same as `share`.
    pub worst: f32,
}

/// A sequence of the open step. Kept between steps to reuse its memory.
#[derive(Default)]
struct Member {
    contract: Contract,
    /// The plane of the last reported query, and the query.
    queried: Option<u16>,
    queries: Vec<f32>,
    /// Shares of the plane's pages, computed from digests: per head, and their mean.
    heads: Heads,
    shares: Vec<f32>,
    /// Log-sum-exp of the scores read, per query head, if reported.
    sums: Vec<f32>,
    /// The plane that pages were selected for, and the candidate pages.
    picked: Option<u16>,
    candidates: Vec<Candidate>,
    omission: Omission,
}

/// An open step, and what attention does with it: it selects pages in the reader, and reports scores by the messages.
pub(super) struct Open<'a> {
    pub session: &'a Session,
    pub reader: &'a mut Reader,
    pub messages: &'a mut Messages,
}

/// The attention of a lane's step: the reading contracts in force, queries and shares that the engine reported, and the pages
/// selected by them.
pub(super) struct Attention {
    members: Vec<Member>,
    /// True if a sequence of the open step is read under another contract than `exact`.
    inexact: bool,
    picker: Picker,
    scorer: Scorer,
    /// Of the last score: its pages, and their shares. Kept to reuse their memory.
    pages: Vec<Known>,
    heads: Heads,
    shares: Vec<f32>,
    /// Deadline for late pages of the plane.
    hope: Option<Instant>,
    owed: OwedDigests,
    sketched: Sketched,
}

/// Return the page indices that a sequence needs in a plane, and the number of its sealed pages.
pub(super) fn pages_of(session: &Session, step: StepSeq, plane: u16) -> (Range<u32>, u32) {
    let geometry = session.shared.geometry();
    let sealed = session.shared.seqs().committed(step.seq) / u64::from(geometry.bounds().page_tokens);
    (geometry.needed(plane, step.tokens), u32::try_from(sealed).unwrap_or(u32::MAX))
}

pub(super) fn page_of(session: &Session, seq: u32, index: u32, plane: u16) -> Option<u32> {
    session.shared.geometry().page(session.shared.seqs().block(seq, index)?, plane)
}

impl Open<'_> {
    /// Report shares of pages from `first` on to the daemon.
    fn report(&mut self, of: Reported, first: u32, shares: &[f32]) {
        self.messages.scores(self.session, self.reader, of, (self.reader.step(), first), shares);
    }
}

impl Attention {
    pub fn new(planes: u32) -> Attention {
        let ((members, scorer, pages, heads, shares), (hope, owed, sketched)) = Default::default();
        let picker = Picker::new(planes);
        Attention { members, inexact: false, picker, scorer, pages, heads, shares, hope, owed, sketched }
    }

    #[cfg(feature = "cuda")]
    pub fn on(&mut self, sketches: Option<Box<Sketches>>, stream: Arc<LaneStream>) {
        self.sketched = Sketched::new(sketches, stream);
    }

    pub fn hope(&self) -> Option<Instant> {
        self.hope
    }

    /// Prepare for a step that has begun.
    pub fn begin(&mut self, session: &Session, reader: &Reader) {
        let contract = |seq| Contract::of_word(session.shared.seqs().contract(seq));
        self.hope = None;
        self.inexact = reader.members().any(|seq| contract(seq) != Contract::Exact);
        self.sketched.begin(reader.step());
        self.owed.begin(session, reader);
        if !self.inexact && self.members.is_empty() {
            return; // no attention was ever reported
        }
        self.make_room(reader);
        for (member, seq) in self.members.iter_mut().zip(reader.members()) {
            member.contract = contract(seq);
            (member.queried, member.picked) = (None, None);
            member.omission = Omission::default();
        }
    }

    fn make_room(&mut self, reader: &Reader) {
        let count = reader.members().len().max(self.members.len());
        self.members.resize_with(count, Member::default);
    }

    /// Select pages before the first boundary of a plane, if a sequence is not read by `exact`.
    pub fn arrive(&mut self, open: &mut Open<'_>, plane: u16) -> Result<(), Status> {
        if self.inexact && open.reader.plane() != Some(plane) {
            open.reader.arrive(plane)?;
            self.pick(open, plane);
        }
        Ok(())
    }

    /// Build owed digests of pages that a boundary hands out.
    pub fn handed_out(&mut self, session: &Session, reader: &Reader, plane: u16, pass: Pass) {
        self.owed.build(session, reader, &mut self.sketched, plane, pass);
    }

    /// Take answers and build digests before the step ends.
    pub fn end(&mut self, open: &mut Open<'_>) {
        self.take_answers(open);
        self.owed.end(open.session, open.reader, &mut self.sketched);
    }

    /// Report the device's answers that have arrived.
    fn take_answers(&mut self, open: &mut Open<'_>) {
        let Open { session, reader, messages } = open;
        self.sketched.take(session, reader, |of, at, shares| messages.scores(session, reader, of, at, shares));
    }

    /// Find the position of a sequence in the open step, and make room for its reports.
    fn told_of(&mut self, reader: &Reader, seq: SeqId, plane: u16) -> Result<(usize, StepSeq), Refusal> {
        let planes = reader.view().shared().geometry().plane_count();
        let absent = || Refusal::because(Status::State, format!("sequence {seq} is not in an open step of this lane"));
        let position = reader.position_of(seq).filter(|_| reader.view().active()).ok_or_else(absent)?;
        if u32::from(plane) >= planes {
            return Err(Refusal::because(Status::Range, format!("the space has {planes} planes")));
        }
        let step = reader.member(position).ok_or_else(absent)?;
        self.make_room(reader);
        Ok((position as usize, step))
    }

    /// Select pages for `approx` sequences, in the first boundary of a plane.
    fn pick(&mut self, open: &mut Open<'_>, plane: u16) {
        let session = open.session;
        self.hope = (!session.max_stall.is_zero()).then(|| Instant::now() + session.max_stall);
        let absent = if session.max_stall.is_zero() { Absent::Omit } else { Absent::Hope };
        open.reader.choose_all(); // a boundary that failed may have left a selection
        self.take_answers(open);
        let members = open.reader.members().len();
        for position in 0..members {
            let contract = self.members.get(position).map(|member| member.contract);
            let (Some(Contract::Approx { permille }), Some(step)) = (contract, open.reader.member(position as u32))
            else {
                continue;
            };
            if open.reader.reads_whole(position as u32) {
                continue;
            }
            self.score_late(open, position, (step, plane));
            let member = &mut self.members[position];
            let (needed, sealed) = pages_of(session, step, plane);
            let answer = self.sketched.shares(session, step.seq, plane, needed.start);
            if let Some(answer) = answer {
                // Pages added since then are recent, and recent pages are read anyway.
                member.shares.clear();
                member.shares.extend_from_slice(answer);
                member.shares.resize(needed.len(), 0.0);
            }
            let told = answer.is_some() || member.queried == Some(plane) && member.shares.len() == needed.len();
            if !told {
                member.heads.clear();
            }
            let (history, digests) = (session.attention.history(), session.attention.digests());
            let owes = |page: Option<u32>| page.zip(digests.as_ref()).is_some_and(|(page, digests)| digests.owes(page));
            let view = open.reader.view();
            member.candidates.clear();
            member.candidates.extend(needed.clone().map(|index| {
                let block = session.shared.seqs().block(step.seq, index);
                let page = block.and_then(|block| session.shared.geometry().page(block, plane));
                let there = block.is_some_and(|block| view.frame(block, plane).is_some());
                let digest = told.then(|| member.shares[(index - needed.start) as usize]).filter(|share| *share > 0.0);
                // A page that owes its digest is read once, whatever the budget, so that the digest can be built.
                let always_kept = index < SINKS || index.saturating_add(RECENT) >= sealed || owes(page);
                let history = page.map_or((0.0, 0.0), |page| history.get(page));
                Candidate { index, digest, history, always_kept, there, ..Candidate::default() }
            }));
            self.picker.pick(plane, permille, &mut member.candidates, &member.heads);
            if absent == Absent::Omit {
                self.picker.stand_in(&mut member.candidates);
            }
            member.picked = Some(plane);
            let wanted = member.candidates.iter().filter(|page| page.wanted());
            let chosen = wanted
                .map(|page| Chosen { index: page.index, absent: if page.always_kept { Absent::Wait } else { absent } });
            open.reader.choose(position as u32, chosen);
            let unpicked = member.candidates.iter().filter(|page| !page.wanted()).count();
            session.counters.pages_unpicked.add(unpicked as u64);
        }
    }

    /// Compute the shares of all pages that the step needs of a sequence in a plane, from digests. False: no digests are kept.
    fn shares(&mut self, open: &Open<'_>, (step, plane): (StepSeq, u16), queries: &[f32]) -> bool {
        let session = open.session;
        if !session.attention.keeps_digests() || !has_keys(session.shared.geometry(), plane) {
            return false;
        }
        let (needed, sealed) = pages_of(session, step, plane);
        let Attention { scorer, pages, heads, shares, .. } = self;
        pages.clear();
        pages.extend(needed.map(|index| {
            let page = page_of(session, step.seq, index, plane).filter(|_| index < sealed);
            page.map_or(Known::Open, Known::Sealed)
        }));
        self.owed.build_readable(session, open.reader, &mut self.sketched, pages);
        let Some(digests) = session.attention.digests() else { return false };
        let scored = scorer.shares(&digests, pages, queries, heads);
        heads.mean(pages.len(), shares);
        scored
    }

    fn query(&mut self, open: &mut Open<'_>, of: Reported, queries: &[f32]) -> Result<(), Refusal> {
        let (kind, seq, plane) = of;
        let session = open.session;
        let (position, step) = self.told_of(open.reader, seq, plane)?;
        if session.attention.digests().is_some_and(|digests| group_of(&digests, queries).is_none()) {
            let why = format!("{} numbers do not make whole queries for the heads of keys in `digests`", queries.len());
            return Err(Refusal::because(Status::Range, why));
        }
        if kind == ScoreKind::Query {
            let member = &mut self.members[position];
            member.queried = Some(plane);
            member.queries.clear();
            member.queries.extend_from_slice(queries);
            member.shares.clear();
            member.heads.clear();
            member.sums.clear();
        }
        // A sequence with all its pages resident needs no prefetch.
        if open.reader.reads_whole(position as u32) {
            return Ok(());
        }
        if !session.tier0.is_host() {
            self.take_answers(open);
            return self.sketched.ask(session, open.reader, kind, (step, plane), queries);
        }
        self.score(open, kind, position, (step, plane), queries);
        Ok(())
    }

    /// Score a query, report it to the daemon, and keep the scores of the step's own query for page selection.
    fn score(&mut self, open: &mut Open<'_>, kind: ScoreKind, position: usize, at: (StepSeq, u16), queries: &[f32]) {
        if !self.shares(open, at, queries) {
            return; // no digests of keys
        }
        if kind == ScoreKind::Query {
            self.members[position].shares.clone_from(&self.shares);
            std::mem::swap(&mut self.members[position].heads, &mut self.heads);
        }
        let (step, plane) = at;
        let (needed, _) = pages_of(open.session, step, plane);
        open.report((kind, step.seq, plane), needed.start, &self.shares);
    }

    /// Score a query that was reported while all pages were resident, if some have been evicted since. Not on a device: its
    /// answer would come too late for this boundary.
    fn score_late(&mut self, open: &mut Open<'_>, position: usize, at: (StepSeq, u16)) {
        let member = &mut self.members[position];
        if member.queried != Some(at.1) || !member.shares.is_empty() || !open.session.tier0.is_host() {
            return;
        }
        let queries = std::mem::take(&mut member.queries);
        self.score(open, ScoreKind::Query, position, at, &queries);
        self.members[position].queries = queries;
    }

    fn mass(&mut self, open: &mut Open<'_>, seq: SeqId, plane: u16, masses: &[f32]) -> Result<(), Refusal> {
        let session = open.session;
        let (position, step) = self.told_of(open.reader, seq, plane)?;
        let (needed, _) = pages_of(session, step, plane);
        if masses.len() < needed.end as usize {
            let why = format!("{} shares; sequence {seq} has {} pages", masses.len(), needed.end);
            return Err(Refusal::because(Status::Range, why));
        }
        let read = &masses[needed.start as usize..needed.end as usize];
        let (member, history) = (&mut self.members[position], session.attention.history());
        let page_of = |index| page_of(session, seq, index, plane);
        if member.picked == Some(plane) && member.candidates.len() == read.len() {
            let Lost { mean, worst, factor } = estimate(&member.candidates, read, &member.heads, &member.sums);
            for (page, share) in member.candidates.iter().zip(read) {
                let share = if share.is_finite() { *share } else { factor * page.predicted };
                page_of(page.index).inspect(|id| history.saw(*id, share * (1.0 - mean)));
            }
            self.picker.learn(plane, &member.candidates, read.iter().copied());
            (member.omission.share, member.omission.worst) = (mean, worst);
            session.counters.omissions.add(1);
            session.counters.omitted_ppm.add((f64::from(mean) * 1e6) as u64);
        } else {
            for (index, share) in needed.clone().zip(read).filter(|(_, share)| share.is_finite()) {
                page_of(index).inspect(|id| history.saw(*id, *share));
            }
        }
        open.report((ScoreKind::Mass, seq, plane), needed.start, read);
        Ok(())
    }

    fn sums(&mut self, open: &Open<'_>, seq: SeqId, plane: u16, sums: &[f32]) -> Result<(), Refusal> {
        let (position, _) = self.told_of(open.reader, seq, plane)?;
        let member = &mut self.members[position];
        if open.reader.plane() != Some(plane) || member.queried != Some(plane) {
            let why = "it is not the plane of the last boundary, or its query was not reported";
            return Err(Refusal::because(Status::State, why));
        }
        // Without digests the length of a query is not known.
        let channels = open.session.attention.digests().map(|digests| usize::from(digests.keys().channels));
        let fits = match channels {
            Some(channels) => sums.len() * channels == member.queries.len(),
            None => !sums.is_empty() && member.queries.len().is_multiple_of(sums.len()),
        };
        if !fits {
            let why = format!("{} sums; there must be one for each query head", sums.len());
            return Err(Refusal::because(Status::Range, why));
        }
        member.sums.clear();
        member.sums.extend_from_slice(sums);
        Ok(())
    }

    fn omission(&self, session: &Session, reader: &Reader, seq: SeqId, plane: u16) -> Option<Omission> {
        let position = reader.position_of(seq).filter(|_| reader.plane() == Some(plane))?;
        let member = self.members.get(position as usize)?;
        let step = reader.member(position)?;
        let (needed, _) = pages_of(session, step, plane);
        let waived = reader.waived().iter().filter(|(at, _)| *at == position).count() as u32;
        let needed = needed.len() as u32;
        Some(match member.contract {
            Contract::Exact => Omission { needed, ..Omission::default() },
            Contract::Approx { .. } if member.picked == Some(plane) => {
                let unpicked = member.candidates.iter().filter(|page| !page.wanted()).count() as u32;
                Omission { needed, omitted: unpicked + waived, waived, ..member.omission }
            }
            Contract::Approx { .. } => Omission { needed, ..Omission::default() },
        })
    }
}

impl Lane {
    /// Report the queries that attention is about to use for a sequence of the open step in `plane`: `[query heads][channels]`,
    /// after position encoding, with the softmax scale applied. Call it before the plane's first boundary.
    ///
    /// The queries are scored against digests. The daemon receives the scores, and `approx` selects pages by them in the plane's
    /// first boundary. With tier 0 on a device this only enqueues work; answers are used once they arrive. There the session's first
    /// query sets the number of query heads, at most 256.
    ///
    /// # Errors
    /// `State`: no step is open, or the sequence is not in it. `Range`: no such plane, or a number of queries that does not match
    /// the layout of keys.
    pub fn query(&mut self, seq: SeqId, plane: u16, queries: &[f32]) -> crate::Result<()> {
        let of = (ScoreKind::Query, seq, plane);
        self.told("set the query of plane", plane, |attention, open| attention.query(open, of, queries))
    }

    /// Return whether a look-ahead query ([`Lane::ahead`]) for a sequence of the open step is worth computing: the sequence is read
    /// under `approx`, and not all pages that it needs are resident.
    ///
    /// # Errors
    /// `State`: no step is open, or the sequence is not in it.
    pub fn wants_ahead(&mut self, seq: SeqId) -> crate::Result<bool> {
        self.told("check for look-ahead queries in plane", 0, |attention, open| {
            let (position, _) = attention.told_of(open.reader, seq, 0)?;
            let approx = matches!(attention.members[position].contract, Contract::Approx { .. });
            Ok(approx && !open.reader.reads_whole(position as u32))
        })
    }

    /// Return whether shares by page ([`Lane::sums`], [`Lane::mass`]) for a sequence of the open step are worth computing. Never
    /// under `exact`. Under `approx`: if some needed pages are not resident, and otherwise in every eighth step of the lane, so that
    /// shares are known when room becomes short.
    ///
    /// # Errors
    /// As [`Lane::wants_ahead`].
    pub fn wants_mass(&mut self, seq: SeqId) -> crate::Result<bool> {
        self.told("check for attention shares in plane", 0, |attention, open| {
            let (position, _) = attention.told_of(open.reader, seq, 0)?;
            let exact = matches!(attention.members[position].contract, Contract::Exact);
            let step = open.reader.view().position() / u64::from(open.session.shared.geometry().plane_count());
            Ok(!exact && (step.is_multiple_of(MASS_STEPS) || !open.reader.reads_whole(position as u32)))
        })
    }

    /// Report a guess of the queries of a later plane, in the same number and form as in [`Lane::query`]: that plane's projections
    /// of an earlier plane's input. The daemon prefetches by it.
    ///
    /// # Errors
    /// As [`Lane::query`].
    pub fn ahead(&mut self, seq: SeqId, plane: u16, queries: &[f32]) -> crate::Result<()> {
        let of = (ScoreKind::Ahead, seq, plane);
        self.told("set the look-ahead query of plane", plane, |attention, open| attention.query(open, of, queries))
    }

    /// Report, for each query head of [`Lane::query`] in the plane of the last boundary, the logarithm of the sum of exponentials
    /// of all scores that were read, as attention kernels return it. Call it before [`Lane::mass`]: it improves that call's
    /// estimate for `approx`. With tier 0 on a device, shares are means over heads, and sums have no effect.
    ///
    /// # Errors
    /// `State`: not the plane of the last boundary, or its query was not reported. `Range`: not one sum for each query head.
    pub fn sums(&mut self, seq: SeqId, plane: u16, sums: &[f32]) -> crate::Result<()> {
        self.told("set the sums of plane", plane, |attention, open| attention.sums(open, seq, plane, sums))
    }

    /// Report the attention of the step to a sequence in `plane`, the plane of the last boundary: by page index, the page's share
    /// of attention among all that was read, as the mean over query heads; NaN for pages that were not read. For `approx` this
    /// yields the estimate of the omitted share ([`Lane::omission`]) and improves the selection of later steps.
    ///
    /// # Errors
    /// As [`Lane::query`]; `Range` also: fewer shares than pages.
    pub fn mass(&mut self, seq: SeqId, plane: u16, masses: &[f32]) -> crate::Result<()> {
        self.told("set the attention mass of plane", plane, |attention, open| attention.mass(open, seq, plane, masses))
    }

    /// Report shares that the engine has computed itself, by page index; NaN: no share is known for the page. For engines with
    /// kernels that score pages. [`Lane::query`], [`Lane::ahead`] and [`Lane::mass`] report their own scores.
    ///
    /// # Errors
    /// As [`Lane::query`].
    pub fn scores(&mut self, kind: ScoreKind, seq: SeqId, plane: u16, shares: &[f32]) -> crate::Result<()> {
        self.told("report scores of plane", plane, |attention, open| {
            attention.told_of(open.reader, seq, plane)?;
            open.report((kind, seq, plane), 0, shares);
            Ok(())
        })
    }

    /// Return the part of a sequence that the step does not read in `plane`, the plane of the last boundary; `None` for other
    /// planes.
    #[must_use]
    pub fn omission(&self, seq: SeqId, plane: u16) -> Option<Omission> {
        let state = self.state()?;
        state.attention().omission(&self.inner.session, state.reader(), seq, plane)
    }

    /// Return the contract of a sequence in the open step: the one in force when the step began.
    #[must_use]
    pub fn contract(&self, seq: SeqId) -> Contract {
        let position = self.state().and_then(|state| state.reader().position_of(seq));
        let member = position.and_then(|at| self.state()?.attention().members.get(at as usize));
        member.map_or(Contract::Exact, |member| member.contract)
    }

    fn told<T>(
        &mut self,
        doing: &'static str,
        plane: u16,
        tell: impl FnOnce(&mut Attention, &mut Open<'_>) -> Result<T, Refusal>,
    ) -> crate::Result<T> {
        self.call(doing, u64::from(plane), |state, session| {
            let (attention, mut open) = state.attending(session);
            tell(attention, &mut open)
        })
    }
}
