//! What a lane tells and is told of attention: scores out to the daemon, pages picked for `approx`, pages proved needless for
//! `bounded`.
//!
//! Everything here changes speed, or what a contract other than exact allows to be omitted; never what is read is.

use super::{Lane, State};
use crate::{
    Error, Result,
    agent::{
        attention::{Candidate, Contract, Known, Picker, Proof, RECENT, SINKS, Scorer, bounds, estimate, group_of},
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
use std::{ops::Range, time::Instant};

pub use kvtide_wire::score::ScoreKind;

/// What a step did not read of a sequence in a plane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Omission {
    /// Pages that attention would have read by the contract `exact`.
    pub needed: u32,
    /// Of them, those that were not read.
    pub omitted: u32,
    /// Of those, the ones that `approx` had picked and that were not there, or not in time.
    pub waived: u32,
    /// The share of attention that they hold: by `approx` an estimate, made when the step's mass was told, before that 0; by
    /// `bounded` what was proved to be the most that any query head loses.
    pub share: f32,
}

/// A sequence of the open step. Kept from step to step for its memory.
#[derive(Default)]
struct Member {
    contract: Contract,
    /// The plane whose query was told, and the query.
    queried: Option<u16>,
    queries: Vec<f32>,
    /// Shares that digests give it, by candidate.
    shares: Vec<f32>,
    /// The plane that was picked for, and its pages.
    picked: Option<u16>,
    candidates: Vec<Candidate>,
    /// The plane that something is proved of.
    proving: Option<u16>,
    proof: Proof,
    omission: Omission,
}

/// A lane's side of attention.
pub(crate) struct Attention {
    members: Vec<Member>,
    /// A sequence of the open step is read by another contract than exact.
    pub inexact: bool,
    picker: Picker,
    scorer: Scorer,
    pages: Vec<Known>,
    shares: Vec<f32>,
    top: Vec<Top>,
    /// Until when late pages of the plane are waited for.
    pub hope: Option<Instant>,
}

impl Attention {
    pub fn new(planes: u32) -> Attention {
        Attention {
            members: Vec::new(),
            inexact: false,
            picker: Picker::new(planes),
            scorer: Scorer::default(),
            pages: Vec::new(),
            shares: Vec::new(),
            top: Vec::new(),
            hope: None,
        }
    }
}

/// The page indices that a sequence needs in a plane, and how many of the sequence are sealed.
fn pages_of(session: &Session, step: StepSeq, plane: u16) -> (Range<u32>, u32) {
    let geometry = session.shared.geometry();
    let sealed = session.shared.seqs().committed(step.seq) / u64::from(geometry.bounds().page_tokens);
    (geometry.needed(plane, step.tokens), u32::try_from(sealed).unwrap_or(u32::MAX))
}

fn has_keys(geometry: &Geometry, plane: u16) -> bool {
    geometry.planes().get(usize::from(plane)).is_some_and(|spec| spec.kind != PlaneKind::State as u16)
}

impl State {
    fn page_of(session: &Session, seq: u32, index: u32, plane: u16) -> Option<u32> {
        session.shared.geometry().page(session.shared.seqs().block(seq, index)?, plane)
    }

    /// A step has begun.
    pub(super) fn begin_attention(&mut self, session: &Session) {
        let seqs = session.shared.seqs();
        let contract = |seq| Contract::of_word(seqs.contract(seq));
        self.attention.hope = None;
        self.attention.inexact = self.reader.members().any(|seq| contract(seq) != Contract::Exact);
        if !self.attention.inexact && self.attention.members.is_empty() {
            return; // nobody told anything yet
        }
        let count = self.reader.members().len();
        if self.attention.members.len() < count {
            self.attention.members.resize_with(count, Member::default);
        }
        for (member, seq) in self.attention.members.iter_mut().zip(self.reader.members()) {
            member.contract = contract(seq);
            (member.queried, member.picked, member.proving) = (None, None, None);
            member.omission = Omission::default();
        }
    }

    /// The place of a sequence in the open step, with room for what is told of it.
    fn told_of(&mut self, seq: SeqId, plane: u16) -> std::result::Result<(usize, StepSeq), Status> {
        let planes = self.reader.view().shared().geometry().plane_count();
        let position = self.reader.position_of(seq).filter(|_| self.reader.view().active()).ok_or(Status::State)?;
        if u32::from(plane) >= planes {
            return Err(Status::Range);
        }
        let step = self.reader.member(position).ok_or(Status::State)?;
        let position = position as usize;
        if self.attention.members.len() <= position {
            self.attention.members.resize_with(self.reader.members().len(), Member::default);
        }
        Ok((position, step))
    }

    /// Before the first boundary of a plane: picks pages for sequences that are read by `approx`.
    pub(super) fn pick(&mut self, session: &Session, plane: u16) {
        self.attention.hope = (!session.max_stall.is_zero()).then(|| Instant::now() + session.max_stall);
        let absent = if session.max_stall.is_zero() { Absent::Omit } else { Absent::Hope };
        self.reader.choose_all(); // a boundary that was refused may have left something
        let attention = &mut self.attention;
        let members = self.reader.members().len();
        for position in 0..members {
            let (Some(member), Some(step)) = (attention.members.get_mut(position), self.reader.member(position as u32))
            else {
                continue;
            };
            let Contract::Approx { permille } = member.contract else { continue };
            let (needed, sealed) = pages_of(session, step, plane);
            let told = member.queried == Some(plane) && member.shares.len() == needed.len();
            let history = session.attention.history();
            member.candidates.clear();
            member.candidates.extend(needed.clone().map(|index| {
                let page = State::page_of(session, step.seq, index, plane);
                let digest = told.then(|| member.shares[(index - needed.start) as usize]).filter(|share| *share > 0.0);
                let hard = index < SINKS || index.saturating_add(RECENT) >= sealed;
                let history = page.map_or((0.0, 0.0), |page| history.get(page));
                Candidate { index, digest, history, hard, ..Candidate::default() }
            }));
            attention.picker.pick(plane, permille, &mut member.candidates);
            member.picked = Some(plane);
            let chosen = member
                .candidates
                .iter()
                .filter(|page| page.picked)
                .map(|page| Chosen { index: page.index, absent: if page.hard { Absent::Wait } else { absent } });
            self.reader.choose(position as u32, chosen);
            let unpicked = member.candidates.iter().filter(|page| !page.picked).count();
            session.counters.pages_unpicked.add(unpicked as u64);
        }
    }

    /// Shares that digests give to queries, of all pages that the step needs of a sequence in a plane. False: none are kept.
    fn shares(
        &mut self,
        session: &Session,
        step: StepSeq,
        plane: u16,
        queries: &[f32],
    ) -> std::result::Result<bool, Status> {
        if !session.attention.keeps_digests() || !has_keys(session.shared.geometry(), plane) {
            return Ok(false);
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
        let Some(digests) = session.attention.digests() else { return Ok(false) };
        let fits = attention.scorer.shares(&digests, &attention.pages, queries, &mut attention.shares);
        if fits { Ok(true) } else { Err(Status::Range) }
    }

    /// Builds the digests of sealed pages that have none and are readable: those that came with a map.
    fn build_readable(&mut self, session: &Session) {
        let planes = session.shared.geometry().plane_count();
        let lacking = {
            let Some(digests) = session.attention.digests() else { return };
            let lacks = |known: &Known| matches!(known, Known::Sealed(page) if !digests.has(*page));
            self.attention.pages.iter().any(lacks)
        };
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

    /// The bytes of a page that this lane's table shows.
    fn readable(&self, session: &Session, block: u32, plane: u16) -> Option<&[u8]> {
        if !session.tier0.is_host() {
            return None;
        }
        let (at, bytes) = session.tier0.frame(self.reader.view().frame(block, plane)?)?;
        // SAFETY: the lane is in a step and its table shows the page in this frame of tier 0, so it is initialised and not
        // overwritten before this lane's next boundary or end (protocol rule 5), which need `&mut self`; the engine writes
        // unsealed pages by `Lane::page_mut` alone, which needs the lane too.
        Some(unsafe { std::slice::from_raw_parts(at, bytes) })
    }

    /// Before the step ends: digests of the pages that it filled. A page that is filled again before it is committed has them
    /// built again, and one that is filled no more has none.
    pub(super) fn build_filled(&mut self, session: &Session) {
        if !session.attention.keeps_digests() || !session.tier0.is_host() {
            return;
        }
        let geometry = session.shared.geometry();
        let page_tokens = u64::from(geometry.bounds().page_tokens);
        for position in 0..self.reader.members().len() as u32 {
            let Some(step) = self.reader.member(position) else { continue };
            let sealed = session.shared.seqs().committed(step.seq) / page_tokens;
            let full = step.tokens / page_tokens;
            for index in sealed..step.tokens.div_ceil(page_tokens) {
                let Some(block) = session.shared.seqs().block(step.seq, index as u32) else { continue };
                if index < full {
                    self.build_block(session, block);
                } else {
                    session.attention.unfilled(block);
                }
            }
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

    /// Tells the daemon the shares in `attention.shares`, of pages from `first` on: the largest by name, the others as a sum. A
    /// share that is no number says nothing of its page.
    fn tell(&mut self, session: &Session, kind: ScoreKind, seq: SeqId, plane: u16, first: u32) {
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
        let step = self.reader.step();
        if let Some(scores) = Scores::new(kind, seq, plane, step, top, logarithm(rest)) {
            self.words.scores.write(&scores);
            session.counters.scores.add(1);
            // What is wanted a plane later is wanted now; all else is seen with the step's end, or the next message.
            if kind == ScoreKind::Ahead && self.reader.is_announced() {
                self.port.nudge();
            }
        }
    }

    fn query(
        &mut self,
        session: &Session,
        kind: ScoreKind,
        (seq, plane): (SeqId, u16),
        queries: &[f32],
    ) -> std::result::Result<(), Status> {
        let (position, step) = self.told_of(seq, plane)?;
        let own = kind == ScoreKind::Query;
        let bounded = matches!(self.attention.members[position].contract, Contract::Bounded { .. });
        if own {
            let member = &mut self.attention.members[position];
            member.queried = Some(plane);
            member.queries.clear();
            member.queries.extend_from_slice(queries);
            member.shares.clear();
        }
        if bounded || !self.shares(session, step, plane, queries)? {
            return Ok(()); // what is read does not depend on shares; or nothing is known of keys
        }
        if own {
            self.attention.members[position].shares.clone_from(&self.attention.shares);
        }
        let (needed, _) = pages_of(session, step, plane);
        self.tell(session, kind, seq, plane, needed.start);
        Ok(())
    }

    fn mass(&mut self, session: &Session, seq: SeqId, plane: u16, masses: &[f32]) -> std::result::Result<(), Status> {
        let (position, step) = self.told_of(seq, plane)?;
        let (needed, _) = pages_of(session, step, plane);
        if masses.len() < needed.end as usize {
            return Err(Status::Range);
        }
        let read = &masses[needed.start as usize..needed.end as usize];
        let Attention { members, picker, shares, .. } = &mut self.attention;
        shares.clear();
        shares.extend_from_slice(read);
        let (member, history) = (&mut members[position], session.attention.history());
        let page_of = |index| State::page_of(session, seq, index, plane);
        if member.picked == Some(plane) && member.candidates.len() == read.len() {
            let (omitted, factor) = estimate(&member.candidates, read.iter().copied());
            for (page, share) in member.candidates.iter().zip(read) {
                let share = if share.is_finite() { *share } else { factor * page.predicted };
                page_of(page.index).inspect(|id| history.saw(*id, share * (1.0 - omitted)));
            }
            picker.learn(plane, &member.candidates, read.iter().copied());
            member.omission.share = omitted;
            session.counters.omissions.add(1);
            session.counters.omitted_ppm.add((f64::from(omitted) * 1e6) as u64);
        } else {
            for (index, share) in needed.clone().zip(read).filter(|(_, share)| share.is_finite()) {
                page_of(index).inspect(|id| history.saw(*id, *share));
            }
        }
        self.tell(session, ScoreKind::Mass, seq, plane, needed.start);
        Ok(())
    }

    fn prove(&mut self, session: &Session, seq: SeqId, plane: u16, sums: &[f32]) -> std::result::Result<bool, Status> {
        let (position, step) = self.told_of(seq, plane)?;
        let member = &mut self.attention.members[position];
        let Contract::Bounded { ppm } = member.contract else { return Err(Status::State) };
        if self.reader.plane() != Some(plane) || member.queried != Some(plane) {
            return Err(Status::State);
        }
        let Some(digests) = session.attention.digests() else { return Ok(false) };
        let group = group_of(&digests, &member.queries).ok_or(Status::Range)?;
        if sums.len() != group * usize::from(digests.keys().heads) {
            return Err(Status::Range);
        }
        let at = position as u32;
        if member.proving.replace(plane) != Some(plane) {
            member.proof.begin(sums.len());
            let page_tokens = session.shared.geometry().bounds().page_tokens;
            for index in self.reader.missing_of(at) {
                let page = State::page_of(session, step.seq, index, plane);
                member.proof.page(index, page_tokens, bounds(&digests, page, &member.queries, group));
            }
        } else {
            let missing: Vec<u32> = self.reader.missing_of(at).collect();
            member.proof.keep(|index| missing.binary_search(&index).is_ok());
        }
        drop(digests);
        let reader = &mut self.reader;
        let share = member.proof.skip(f64::from(ppm) / 1e6, sums, |index| {
            reader.skip(at, index);
        });
        member.omission.share = share.map_or(member.omission.share, |share| share as f32);
        Ok(self.reader.is_complete())
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
            Contract::Bounded { .. } => Omission { needed, omitted: waived, ..member.omission },
            Contract::Approx { .. } if member.picked == Some(plane) => {
                let unpicked = member.candidates.iter().filter(|page| !page.picked).count() as u32;
                Omission { needed, omitted: unpicked + waived, waived, ..member.omission }
            }
            Contract::Approx { .. } => Omission { needed, ..Omission::default() },
        })
    }
}

impl Lane {
    /// Tells the queries with which attention is about to read a sequence of the open step in `plane`: `[query heads][channels]`,
    /// after position encoding, scaled as the softmax is. Digests make scores of them, which the daemon is told and by which the
    /// plane's first boundary picks for `approx`; `bounded` proves by them. To be called before that boundary.
    ///
    /// # Errors
    /// `State`: no step is open, or the sequence is not in it. `Range`: no such plane, or not a number of queries that the layout
    /// of keys allows.
    pub fn query(&mut self, seq: SeqId, plane: u16, queries: &[f32]) -> Result<()> {
        self.told("tell the query of plane", plane, |state, session| {
            state.query(session, ScoreKind::Query, (seq, plane), queries)
        })
    }

    /// Tells a guess of the queries of a plane that is still to come, as many and of the same form as in [`Lane::query`]: what its
    /// projections make of an earlier plane's input. The daemon prefetches by it.
    ///
    /// # Errors
    /// As [`Lane::query`].
    pub fn ahead(&mut self, seq: SeqId, plane: u16, queries: &[f32]) -> Result<()> {
        self.told("tell the look-ahead query of plane", plane, |state, session| {
            state.query(session, ScoreKind::Ahead, (seq, plane), queries)
        })
    }

    /// Tells what the step's attention read of a sequence in `plane`, the plane of the last boundary: by page index the share of
    /// attention, mean over query heads, of all that was read; NaN for pages that were not. For `approx` this makes the estimate of
    /// what was omitted ([`Lane::omission`]), and what later steps pick by.
    ///
    /// # Errors
    /// As [`Lane::query`]; `Range` also: fewer shares than pages.
    pub fn mass(&mut self, seq: SeqId, plane: u16, masses: &[f32]) -> Result<()> {
        self.told("tell the attention of plane", plane, |state, session| state.mass(session, seq, plane, masses))
    }

    /// Tells shares that the engine has made itself, by page index; NaN says nothing of a page. For engines whose kernels score;
    /// [`Lane::query`], [`Lane::ahead`] and [`Lane::mass`] tell by themselves.
    ///
    /// # Errors
    /// As [`Lane::query`].
    pub fn scores(&mut self, kind: ScoreKind, seq: SeqId, plane: u16, shares: &[f32]) -> Result<()> {
        self.told("tell scores of plane", plane, |state, session| {
            state.told_of(seq, plane)?;
            state.attention.shares.clear();
            state.attention.shares.extend_from_slice(shares);
            state.tell(session, kind, seq, plane, 0);
            Ok(())
        })
    }

    /// For a sequence that is read by `bounded`, in the plane of the last boundary: what the plane still misses may be skipped as
    /// far as digests prove that it holds too little, beside `sums`, for each query head of [`Lane::query`] the logarithm of the sum
    /// of exponentials of all scores that were read. True: the plane is complete with that. Otherwise the next boundary goes on.
    ///
    /// # Errors
    /// `State`: the sequence is read by another contract, or the plane's query was not told. Else as [`Lane::query`].
    pub fn prove(&mut self, seq: SeqId, plane: u16, sums: &[f32]) -> Result<bool> {
        self.told("prove pages needless of plane", plane, |state, session| state.prove(session, seq, plane, sums))
    }

    /// What the step does not read of a sequence in `plane`, the plane of the last boundary; `None` for others.
    #[must_use]
    pub fn omission(&self, seq: SeqId, plane: u16) -> Option<Omission> {
        self.state()?.omission(&self.inner.session, seq, plane)
    }

    /// Whether a sequence is read by the contract exact.
    #[cfg(feature = "cuda")]
    pub(crate) fn reads_exactly(&self, seq: SeqId) -> bool {
        Contract::of_word(self.inner.session.shared.seqs().contract(seq)) == Contract::Exact
    }

    fn told<T>(
        &mut self,
        doing: &'static str,
        plane: u16,
        tell: impl FnOnce(&mut State, &Session) -> std::result::Result<T, Status>,
    ) -> Result<T> {
        let (state, session) = self.parts(doing)?;
        tell(state, session).map_err(|status| Error::call(doing, u64::from(plane), status))
    }
}
