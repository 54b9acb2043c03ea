//! A lane's side of attention: scores reported to the daemon, pages selected for `approx`.
//!
//! This affects only speed, and which pages an inexact contract omits; it never changes the contents of pages that are read.

use super::{Lane, Pass, Refusal, State};
use crate::{
    Error, Result,
    agent::{
        attention::{Candidate, Contract, Heads, Known, Lost, Picker, RECENT, SINKS, Scorer, estimate, group_of},
        protocol::{
            Geometry,
            step::{Absent, Chosen, StepSeq},
        },
        session::Session,
    },
    client::options::SeqId,
};
use kvtide_wire::{
    geometry::PlaneKind,
    half::F16,
    score::{Scores, TOP_MAX, Top},
    status::Status,
};
use std::{collections::HashMap, ops::Range, time::Instant};

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

/// Answer of a device's sketches to a query.
pub(super) struct Answered {
    /// The step of the query, and [`SeqTable::version`](crate::agent::protocol::seqs::SeqTable::version) of its sequence.
    pub step: u64,
    pub version: u32,
    /// Index of the first page, and the share of each page.
    pub first: u32,
    pub shares: Vec<f32>,
}

/// A lane's attention state.
pub(crate) struct Attention {
    members: Vec<Member>,
    /// True if a sequence of the open step is read under another contract than `exact`.
    pub inexact: bool,
    picker: Picker,
    scorer: Scorer,
    pages: Vec<Known>,
    heads: Heads,
    pub(super) shares: Vec<f32>,
    top: Vec<Top>,
    /// Deadline for late pages of the plane.
    pub hope: Option<Instant>,
    /// The newest answer for each sequence and plane, of this step or the previous one.
    pub(super) answered: HashMap<(SeqId, u16), Answered>,
    /// True if a sequence of the open step has pages that owe digests.
    pub(super) owing: bool,
}

impl Attention {
    pub fn new(planes: u32) -> Attention {
        Attention {
            members: Vec::new(),
            inexact: false,
            picker: Picker::new(planes),
            scorer: Scorer::default(),
            pages: Vec::new(),
            heads: Heads::default(),
            shares: Vec::new(),
            top: Vec::new(),
            hope: None,
            answered: HashMap::new(),
            owing: false,
        }
    }
}

/// Return the page indices that a sequence needs in a plane, and the number of its sealed pages.
pub(super) fn pages_of(session: &Session, step: StepSeq, plane: u16) -> (Range<u32>, u32) {
    let geometry = session.shared.geometry();
    let sealed = session.shared.seqs().committed(step.seq) / u64::from(geometry.bounds().page_tokens);
    (geometry.needed(plane, step.tokens), u32::try_from(sealed).unwrap_or(u32::MAX))
}

fn has_keys(geometry: &Geometry, plane: u16) -> bool {
    geometry.planes().get(usize::from(plane)).is_some_and(|spec| spec.kind != PlaneKind::State)
}

impl State {
    pub(super) fn page_of(session: &Session, seq: u32, index: u32, plane: u16) -> Option<u32> {
        session.shared.geometry().page(session.shared.seqs().block(seq, index)?, plane)
    }

    /// Prepare for a step that has begun.
    pub(super) fn begin_attention(&mut self, session: &Session) {
        let seqs = session.shared.seqs();
        let contract = |seq| Contract::of_word(seqs.contract(seq));
        self.attention.hope = None;
        self.attention.inexact = self.reader.members().any(|seq| contract(seq) != Contract::Exact);
        let step = self.reader.step();
        self.attention.answered.retain(|_, answer| answer.step + 1 >= step);
        let blocks = |seq| (0..seqs.len(seq)).filter_map(move |index| seqs.block(seq, index));
        self.attention.owing = session.attention.owing(self.reader.members().flat_map(blocks));
        if !self.attention.inexact && self.attention.members.is_empty() {
            return; // no attention was ever reported
        }
        let count = self.reader.members().len();
        if self.attention.members.len() < count {
            self.attention.members.resize_with(count, Member::default);
        }
        for (member, seq) in self.attention.members.iter_mut().zip(self.reader.members()) {
            member.contract = contract(seq);
            (member.queried, member.picked) = (None, None);
            member.omission = Omission::default();
        }
    }

    /// Find the position of a sequence in the open step, and make room for its reports.
    fn told_of(&mut self, seq: SeqId, plane: u16) -> std::result::Result<(usize, StepSeq), Refusal> {
        let planes = self.reader.view().shared().geometry().plane_count();
        let absent = || Refusal::because(Status::State, format!("sequence {seq} is not in an open step of this lane"));
        let position = self.reader.position_of(seq).filter(|_| self.reader.view().active()).ok_or_else(absent)?;
        if u32::from(plane) >= planes {
            return Err(Refusal::because(Status::Range, format!("the space has {planes} planes")));
        }
        let step = self.reader.member(position).ok_or_else(absent)?;
        let position = position as usize;
        if self.attention.members.len() <= position {
            self.attention.members.resize_with(self.reader.members().len(), Member::default);
        }
        Ok((position, step))
    }

    /// Return whether a sequence is read completely, whatever its contract: all pages that it needs are resident, so omitting some
    /// gains nothing.
    fn reads_whole(&mut self, position: usize) -> bool {
        self.reader.reads_whole(position as u32)
    }

    /// Select pages for `approx` sequences, in the first boundary of a plane.
    pub(super) fn pick(&mut self, session: &Session, plane: u16) {
        self.attention.hope = (!session.max_stall.is_zero()).then(|| Instant::now() + session.max_stall);
        let absent = if session.max_stall.is_zero() { Absent::Omit } else { Absent::Hope };
        self.reader.choose_all(); // a boundary that failed may have left a selection
        self.take_answers(session);
        let members = self.reader.members().len();
        for position in 0..members {
            let inexact = |member: &Member| matches!(member.contract, Contract::Approx { .. });
            if !self.attention.members.get(position).is_some_and(inexact) || self.reads_whole(position) {
                continue;
            }
            self.score_late(session, position, plane);
            let attention = &mut self.attention;
            let (Some(member), Some(step)) = (attention.members.get_mut(position), self.reader.member(position as u32))
            else {
                continue;
            };
            let Contract::Approx { permille } = member.contract else { continue };
            let (needed, sealed) = pages_of(session, step, plane);
            let version = session.shared.seqs().version(step.seq);
            let answer = attention.answered.get(&(step.seq, plane));
            let answer = answer.filter(|answer| answer.first == needed.start && answer.version == version);
            if let Some(answer) = answer {
                // The answer is for an earlier query or a look-ahead query. Pages added since then are recent, and recent pages are
                // read anyway.
                member.shares.clone_from(&answer.shares);
                member.shares.resize(needed.len(), 0.0);
            }
            let told = answer.is_some() || member.queried == Some(plane) && member.shares.len() == needed.len();
            if !told {
                member.heads.clear();
            }
            let (history, digests) = (session.attention.history(), session.attention.digests());
            let owes = |page: Option<u32>| page.zip(digests.as_ref()).is_some_and(|(page, digests)| digests.owes(page));
            let view = self.reader.view();
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
            attention.picker.pick(plane, permille, &mut member.candidates, &member.heads);
            if absent == Absent::Omit {
                attention.picker.stand_in(&mut member.candidates);
            }
            member.picked = Some(plane);
            let wanted = member.candidates.iter().filter(|page| page.wanted());
            let chosen = wanted
                .map(|page| Chosen { index: page.index, absent: if page.always_kept { Absent::Wait } else { absent } });
            self.reader.choose(position as u32, chosen);
            let unpicked = member.candidates.iter().filter(|page| !page.wanted()).count();
            session.counters.pages_unpicked.add(unpicked as u64);
        }
    }

    /// Compute the shares of all pages that the step needs of a sequence in a plane, from digests. False: no digests are kept.
    fn shares(&mut self, session: &Session, step: StepSeq, plane: u16, queries: &[f32]) -> bool {
        if !session.attention.keeps_digests() || !has_keys(session.shared.geometry(), plane) {
            return false;
        }
        let (needed, sealed) = pages_of(session, step, plane);
        let attention = &mut self.attention;
        attention.pages.clear();
        attention.pages.extend(needed.map(|index| {
            let page = State::page_of(session, step.seq, index, plane).filter(|_| index < sealed);
            page.map_or(Known::Open, Known::Sealed)
        }));
        self.build_readable(session);
        let attention = &mut self.attention;
        let Some(digests) = session.attention.digests() else { return false };
        let Attention { scorer, pages, heads, shares, .. } = attention;
        let scored = scorer.shares(&digests, pages, queries, heads);
        heads.mean(pages.len(), shares);
        scored
    }

    /// Build owed digests of pages that a boundary hands out. A step that does not fit into tier 0 has these pages only for this
    /// pass.
    pub(super) fn build_owed(&mut self, session: &Session, plane: u16, pass: Pass) {
        if !self.attention.owing {
            return;
        }
        let page_tokens = u64::from(session.shared.geometry().bounds().page_tokens);
        let seqs = session.shared.seqs();
        let attention = &mut self.attention;
        attention.pages.clear();
        let mut handed = |seq: SeqId, index: u32| {
            let sealed = u64::from(index) < seqs.committed(seq) / page_tokens;
            let page = State::page_of(session, seq, index, plane).filter(|_| sealed);
            attention.pages.extend(page.map(Known::Sealed));
        };
        match pass {
            Pass::Part { .. } => self.reader.ready().iter().for_each(|ready| {
                self.reader.member(ready.position).inspect(|step| handed(step.seq, ready.index));
            }),
            Pass::All => {
                (0..self.reader.members().len() as u32).filter_map(|at| self.reader.member(at)).for_each(|step| {
                    pages_of(session, step, plane).0.for_each(|index| handed(step.seq, index));
                })
            }
        }
        if let Some(digests) = session.attention.digests() {
            attention.pages.retain(|known| matches!(known, Known::Sealed(page) if digests.owes(*page)));
        }
        self.build_readable(session);
    }

    /// Build owed digests of all pages in the lane's table before the step ends. Needed for boundaries that its stream waited for,
    /// where the host found no page readable.
    pub(super) fn build_still_owed(&mut self, session: &Session) {
        if self.attention.owing && session.attention.owes() {
            let planes = session.shared.geometry().plane_count() as u16;
            (0..planes).for_each(|plane| self.build_owed(session, plane, Pass::All));
        }
    }

    /// Build missing digests of sealed pages that are readable. Such pages came with an attached prefix.
    fn build_readable(&mut self, session: &Session) {
        let planes = session.shared.geometry().plane_count();
        let lacking = {
            let Some(digests) = session.attention.digests() else { return };
            let lacks = |known: &Known| matches!(known, Known::Sealed(page) if !digests.has(*page));
            self.attention.pages.iter().any(lacks)
        };
        if lacking && !session.tier0.is_host() {
            let pages = std::mem::take(&mut self.attention.pages);
            let sealed =
                pages.iter().filter_map(|known| if let Known::Sealed(page) = known { Some(*page) } else { None });
            self.build_on_device(session, sealed, false);
            self.attention.pages = pages;
            return;
        }
        let Some(mut digests) = session.attention.digests_mut().filter(|_| lacking) else { return };
        for known in &self.attention.pages {
            if let Known::Sealed(page) = *known
                && !digests.has(page)
                && let Some(bytes) = self.readable(session, page / planes, (page % planes) as u16)
            {
                digests.build(page, bytes);
            }
        }
    }

    /// Return the bytes of a page in this lane's table.
    fn readable(&self, session: &Session, block: u32, plane: u16) -> Option<&[u8]> {
        if !session.tier0.is_host() {
            return None;
        }
        let (at, bytes) = session.tier0.frame(self.reader.view().frame(block, plane)?)?;
        // SAFETY: the lane is in a step and its table contains the page in this frame of tier 0, so it is initialised and not
        // overwritten before this lane's next boundary or end (protocol rule 5), which need `&mut self`. The engine writes unsealed
        // pages only through `Lane::page_mut`, which needs the lane too.
        Some(unsafe { std::slice::from_raw_parts(at, bytes) })
    }

    /// Build digests of the pages that the step filled, before it ends. A page filled again before its commit gets new digests; a
    /// page that is no longer full loses them.
    pub(super) fn build_filled(&mut self, session: &Session) {
        if !session.attention.keeps_digests() {
            return;
        }
        let geometry = session.shared.geometry();
        let page_tokens = u64::from(geometry.bounds().page_tokens);
        let mut filled = Vec::new();
        for position in 0..self.reader.members().len() as u32 {
            let Some(step) = self.reader.member(position) else { continue };
            let sealed = session.shared.seqs().committed(step.seq) / page_tokens;
            let full = step.tokens / page_tokens;
            for index in sealed..step.tokens.div_ceil(page_tokens) {
                let Some(block) = session.shared.seqs().block(step.seq, index as u32) else { continue };
                if index < full && session.tier0.is_host() {
                    self.build_block(session, block);
                } else if index < full {
                    let planes = (0..geometry.plane_count() as u16).filter(|plane| has_keys(geometry, *plane));
                    filled.extend(planes.filter_map(|plane| geometry.page(block, plane)));
                } else {
                    session.attention.unfilled(block);
                }
            }
        }
        if !filled.is_empty() {
            self.build_on_device(session, filled.into_iter(), true);
        }
    }

    fn build_block(&self, session: &Session, block: u32) {
        let geometry = session.shared.geometry();
        let Some(mut digests) = session.attention.digests_mut() else { return };
        for plane in (0..geometry.plane_count() as u16).filter(|plane| has_keys(geometry, *plane)) {
            if let (Some(page), Some(bytes)) = (geometry.page(block, plane), self.readable(session, block, plane)) {
                digests.build(page, bytes);
            }
        }
    }

    /// Report the shares in `attention.shares`, of pages from `first` on, to the daemon: the largest shares by page, the rest as a
    /// sum. A NaN share says nothing about its page.
    fn tell(&mut self, session: &Session, kind: ScoreKind, seq: SeqId, plane: u16, first: u32) {
        self.tell_of(session, kind, (seq, plane), self.reader.step(), first);
    }

    /// As [`State::tell`], for a step that may be over.
    pub(super) fn tell_of(
        &mut self,
        session: &Session,
        kind: ScoreKind,
        (seq, plane): (SeqId, u16),
        step: u64,
        first: u32,
    ) {
        let Attention { shares, top, .. } = &mut self.attention;
        let logarithm = |share: f32| F16::nearest(share.clamp(0.0, 1.0).ln());
        top.clear();
        let said = shares.iter().enumerate().filter(|(_, share)| **share > 0.0);
        top.extend(said.map(|(at, share)| Top { index: first + at as u32, log_mass: logarithm(*share) }));
        if top.len() > TOP_MAX {
            let larger =
                |a: &Top, b: &Top| b.log_mass.to_f32().total_cmp(&a.log_mass.to_f32()).then(a.index.cmp(&b.index));
            top.select_nth_unstable_by(TOP_MAX - 1, larger);
        }
        let rest = top.iter().skip(TOP_MAX).map(|t| t.log_mass.to_f32().exp()).sum::<f32>();
        top.truncate(TOP_MAX);
        if let Some(scores) = Scores::new(kind, seq, plane, step, top, logarithm(rest)) {
            self.words.scores.write(&scores);
            session.counters.scores.add(1);
            // Look-ahead scores are needed one plane later, so wake the daemon now. It sees all other scores at the step's end or
            // with the next message.
            if kind == ScoreKind::Ahead && self.reader.is_announced() {
                self.port.wake_daemon();
            }
        }
    }

    fn query(
        &mut self,
        session: &Session,
        kind: ScoreKind,
        (seq, plane): (SeqId, u16),
        queries: &[f32],
    ) -> std::result::Result<(), Refusal> {
        let (position, step) = self.told_of(seq, plane)?;
        if session.attention.digests().is_some_and(|digests| group_of(&digests, queries).is_none()) {
            let why = format!("{} numbers do not make whole queries for the heads of keys in `digests`", queries.len());
            return Err(Refusal::because(Status::Range, why));
        }
        let own = kind == ScoreKind::Query;
        if own {
            let member = &mut self.attention.members[position];
            member.queried = Some(plane);
            member.queries.clear();
            member.queries.extend_from_slice(queries);
            member.shares.clear();
            member.heads.clear();
            member.sums.clear();
        }
        // A sequence with all its pages resident needs no prefetch.
        if self.reads_whole(position) {
            return Ok(());
        }
        if !session.tier0.is_host() {
            return self.ask_device(session, kind, step, plane, queries);
        }
        self.score(session, kind, position, (step, plane), queries);
        Ok(())
    }

    /// Score a query, report it to the daemon, and keep the scores of the step's own query for page selection.
    fn score(
        &mut self,
        session: &Session,
        kind: ScoreKind,
        position: usize,
        (step, plane): (StepSeq, u16),
        queries: &[f32],
    ) {
        if !self.shares(session, step, plane, queries) {
            return; // no digests of keys
        }
        if kind == ScoreKind::Query {
            let Attention { members, heads, shares, .. } = &mut self.attention;
            members[position].shares.clone_from(shares);
            std::mem::swap(&mut members[position].heads, heads);
        }
        let (needed, _) = pages_of(session, step, plane);
        self.tell(session, kind, step.seq, plane, needed.start);
    }

    /// Score a query that was reported while all pages were resident, if some have been evicted since. Not on a device: its
    /// answer would come too late for this boundary.
    fn score_late(&mut self, session: &Session, position: usize, plane: u16) {
        let Some(step) = self.reader.member(position as u32) else { return };
        let member = &mut self.attention.members[position];
        if member.queried != Some(plane) || !member.shares.is_empty() || !session.tier0.is_host() {
            return;
        }
        let queries = std::mem::take(&mut member.queries);
        self.score(session, ScoreKind::Query, position, (step, plane), &queries);
        self.attention.members[position].queries = queries;
    }

    fn mass(&mut self, session: &Session, seq: SeqId, plane: u16, masses: &[f32]) -> std::result::Result<(), Refusal> {
        let (position, step) = self.told_of(seq, plane)?;
        let (needed, _) = pages_of(session, step, plane);
        if masses.len() < needed.end as usize {
            let why = format!("{} shares; sequence {seq} has {} pages", masses.len(), needed.end);
            return Err(Refusal::because(Status::Range, why));
        }
        let read = &masses[needed.start as usize..needed.end as usize];
        let Attention { members, picker, shares, .. } = &mut self.attention;
        shares.clear();
        shares.extend_from_slice(read);
        let (member, history) = (&mut members[position], session.attention.history());
        let page_of = |index| State::page_of(session, seq, index, plane);
        if member.picked == Some(plane) && member.candidates.len() == read.len() {
            let Lost { mean, worst, factor } = estimate(&member.candidates, read, &member.heads, &member.sums);
            for (page, share) in member.candidates.iter().zip(read) {
                let share = if share.is_finite() { *share } else { factor * page.predicted };
                page_of(page.index).inspect(|id| history.saw(*id, share * (1.0 - mean)));
            }
            picker.learn(plane, &member.candidates, read.iter().copied());
            (member.omission.share, member.omission.worst) = (mean, worst);
            session.counters.omissions.add(1);
            session.counters.omitted_ppm.add((f64::from(mean) * 1e6) as u64);
        } else {
            for (index, share) in needed.clone().zip(read).filter(|(_, share)| share.is_finite()) {
                page_of(index).inspect(|id| history.saw(*id, *share));
            }
        }
        self.tell(session, ScoreKind::Mass, seq, plane, needed.start);
        Ok(())
    }

    fn sums(&mut self, session: &Session, seq: SeqId, plane: u16, sums: &[f32]) -> std::result::Result<(), Refusal> {
        let (position, _) = self.told_of(seq, plane)?;
        let member = &mut self.attention.members[position];
        if self.reader.plane() != Some(plane) || member.queried != Some(plane) {
            let why = "it is not the plane of the last boundary, or its query was not reported";
            return Err(Refusal::because(Status::State, why));
        }
        // Without digests the length of a query is not known.
        let channels = session.attention.digests().map(|digests| usize::from(digests.keys().channels));
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

    fn omission(&self, session: &Session, seq: SeqId, plane: u16) -> Option<Omission> {
        let position = self.reader.position_of(seq).filter(|_| self.reader.plane() == Some(plane))?;
        let member = self.attention.members.get(position as usize)?;
        let step = self.reader.member(position)?;
        let (needed, _) = pages_of(session, step, plane);
        let waived = self.reader.waived().iter().filter(|(at, _)| *at == position).count() as u32;
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
    pub fn query(&mut self, seq: SeqId, plane: u16, queries: &[f32]) -> Result<()> {
        self.told("set the query of plane", plane, |state, session| {
            state.query(session, ScoreKind::Query, (seq, plane), queries)
        })
    }

    /// Return whether a look-ahead query ([`Lane::ahead`]) for a sequence of the open step is worth computing: the sequence is read
    /// under `approx`, and not all pages that it needs are resident.
    ///
    /// # Errors
    /// `State`: no step is open, or the sequence is not in it.
    pub fn wants_ahead(&mut self, seq: SeqId) -> Result<bool> {
        self.told("check for look-ahead queries in plane", 0, |state, _| {
            let (position, _) = state.told_of(seq, 0)?;
            let approx = matches!(state.attention.members[position].contract, Contract::Approx { .. });
            Ok(approx && !state.reads_whole(position))
        })
    }

    /// Return whether shares by page ([`Lane::sums`], [`Lane::mass`]) for a sequence of the open step are worth computing. Never
    /// under `exact`. Under `approx`: if some needed pages are not resident, and otherwise in every eighth step of the lane, so that
    /// shares are known when room becomes short.
    ///
    /// # Errors
    /// As [`Lane::wants_ahead`].
    pub fn wants_mass(&mut self, seq: SeqId) -> Result<bool> {
        self.told("check for attention shares in plane", 0, |state, session| {
            let (position, _) = state.told_of(seq, 0)?;
            let exact = matches!(state.attention.members[position].contract, Contract::Exact);
            let step = state.reader.view().position() / u64::from(session.shared.geometry().plane_count());
            Ok(!exact && (step.is_multiple_of(MASS_STEPS) || !state.reads_whole(position)))
        })
    }

    /// Report a guess of the queries of a later plane, in the same number and form as in [`Lane::query`]: that plane's projections
    /// of an earlier plane's input. The daemon prefetches by it.
    ///
    /// # Errors
    /// As [`Lane::query`].
    pub fn ahead(&mut self, seq: SeqId, plane: u16, queries: &[f32]) -> Result<()> {
        self.told("set the look-ahead query of plane", plane, |state, session| {
            state.query(session, ScoreKind::Ahead, (seq, plane), queries)
        })
    }

    /// Report, for each query head of [`Lane::query`] in the plane of the last boundary, the logarithm of the sum of exponentials
    /// of all scores that were read, as attention kernels return it. Call it before [`Lane::mass`]: it improves that call's
    /// estimate for `approx`. With tier 0 on a device, shares are means over heads, and sums have no effect.
    ///
    /// # Errors
    /// `State`: not the plane of the last boundary, or its query was not reported. `Range`: not one sum for each query head.
    pub fn sums(&mut self, seq: SeqId, plane: u16, sums: &[f32]) -> Result<()> {
        self.told("set the sums of plane", plane, |state, session| state.sums(session, seq, plane, sums))
    }

    /// Report the attention of the step to a sequence in `plane`, the plane of the last boundary: by page index, the page's share
    /// of attention among all that was read, as the mean over query heads; NaN for pages that were not read. For `approx` this
    /// yields the estimate of the omitted share ([`Lane::omission`]) and improves the selection of later steps.
    ///
    /// # Errors
    /// As [`Lane::query`]; `Range` also: fewer shares than pages.
    pub fn mass(&mut self, seq: SeqId, plane: u16, masses: &[f32]) -> Result<()> {
        self.told("set the attention mass of plane", plane, |state, session| state.mass(session, seq, plane, masses))
    }

    /// Report shares that the engine has computed itself, by page index; NaN: no share is known for the page. For engines with
    /// kernels that score pages. [`Lane::query`], [`Lane::ahead`] and [`Lane::mass`] report their own scores.
    ///
    /// # Errors
    /// As [`Lane::query`].
    pub fn scores(&mut self, kind: ScoreKind, seq: SeqId, plane: u16, shares: &[f32]) -> Result<()> {
        self.told("report scores of plane", plane, |state, session| {
            state.told_of(seq, plane)?;
            state.attention.shares.clear();
            state.attention.shares.extend_from_slice(shares);
            state.tell(session, kind, seq, plane, 0);
            Ok(())
        })
    }

    /// Return the part of a sequence that the step does not read in `plane`, the plane of the last boundary; `None` for other
    /// planes.
    #[must_use]
    pub fn omission(&self, seq: SeqId, plane: u16) -> Option<Omission> {
        self.state()?.omission(&self.inner.session, seq, plane)
    }

    /// Return the contract of a sequence in the open step: the one in force when the step began.
    #[must_use]
    pub fn contract(&self, seq: SeqId) -> Contract {
        let position = self.state().and_then(|state| state.reader.position_of(seq));
        let member = position.and_then(|at| self.state()?.attention.members.get(at as usize));
        member.map_or(Contract::Exact, |member| member.contract)
    }

    fn told<T>(
        &mut self,
        doing: &'static str,
        plane: u16,
        tell: impl FnOnce(&mut State, &Session) -> std::result::Result<T, Refusal>,
    ) -> Result<T> {
        let (state, session) = self.parts(doing)?;
        tell(state, session).map_err(|refusal| Error::refused(doing, u64::from(plane), refusal))
    }
}
