//! The engine thread of a lane: steps over the shipped reader, writing new tokens plane by plane and comparing the pages in its
//! table at arbitrary points between two boundaries.

use super::attention::Signals;
use super::context::{Check, Context, Ev, wrong};
use super::session::{Pending, Session};
use crate::coverage::Met;
use crate::failure::Caught;
use crate::model::{Text, needed};
use kvtide_client::agent::attention::{Candidate, Contract};
use kvtide_client::agent::protocol::step::{Fault, Found, Reader, StepSeq};
use kvtide_client::agent::protocol::{LaneView, Shared};
use kvtide_wire::entry::{Op, Submission};
use kvtide_wire::geometry::PlaneKind;
use kvtide_wire::status::Status;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Simulated microseconds that a lane may spend in one plane before it counts as hung; a fault's deadline is shorter.
const PLANE_US: u64 = 1_000_000;
/// Faults of one step that may fail before its engine gives up.
const RETRIES: u32 = 2;

/// A sequence in a step.
pub(super) struct Member {
    /// Sequence slot.
    pub slot: u32,
    /// Reading contract in this step.
    pub contract: Contract,
    /// Content before the step.
    before: Text,
    /// Content after the step has written all its planes.
    pub text: Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Write the new tokens of the plane.
    Write,
    /// Pass a boundary.
    Boundary,
    /// Read `left` more times before the next boundary.
    Read { left: u32, last: bool },
    /// End the step.
    End,
}

/// An open step.
pub(super) struct Run {
    /// Its sequences.
    pub members: Vec<Member>,
    /// Current plane.
    pub plane: u16,
    phase: Phase,
    /// Pages of the plane that were handed out.
    pub handed: BTreeSet<(u32, u32)>,
    /// Wait for late picked pages for a while, instead of skipping them at once.
    pub hopes: bool,
    /// Pages of the plane that were picked for `approx` sequences, and whether the step may skip them.
    pub picked: BTreeSet<(u32, u32, bool)>,
    /// Candidates from which they were picked, by sequence.
    pub candidates: Vec<Vec<Candidate>>,
    /// Pages that must be read before the next boundary.
    fresh: Vec<(u32, u32)>,
    plane_since_us: u64,
    wait_us: u64,
    retries: u32,
    /// The error of a fault, to be handled.
    failed: Option<Status>,
    announce: bool,
}

/// A lane of a session.
pub struct Lane {
    /// The shipped steps and the lane's own table.
    pub reader: Reader,
    /// Its attention signals.
    pub signals: Signals,
    run: Option<Run>,
    /// The end of a step that is still to be sent.
    owed: Option<u64>,
}

impl Lane {
    /// Create an idle lane.
    #[must_use]
    pub fn new(shared: &Arc<Shared>, lane: u16) -> Option<Lane> {
        let signals = Signals::new(shared.geometry().plane_count());
        Some(Lane { reader: Reader::new(LaneView::new(shared.clone(), lane)?), signals, run: None, owed: None })
    }

    /// Return whether no step is open and nothing is to be sent.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.run.is_none() && self.owed.is_none()
    }
}

impl Session {
    /// Let the engine thread of `lane` act once.
    pub fn lane_event(&mut self, cx: &mut Context, lane: usize) -> Check {
        if !self.alive {
            return Ok(());
        }
        let mut again_us = cx.rng.between(0, 5);
        match self.lanes[lane].run.take() {
            None if self.draining && self.lanes[lane].idle() => return Ok(()),
            None if self.declaring.is_some() || (self.slot.is_none() && cx.rng.chance(900)) => again_us += 20,
            None => {
                self.begin(cx, lane)?;
                if self.lanes[lane].run.is_none() {
                    again_us = cx.rng.delay(1, 30, 20);
                }
            }
            Some(mut run) => {
                if cx.now() > run.plane_since_us + PLANE_US && !self.stuck && self.slot.is_some() {
                    return self.hung(lane, &run);
                }
                let goes_on = self.go_on(cx, lane, &mut run)?;
                again_us += run.wait_us;
                if goes_on {
                    self.lanes[lane].run = Some(run);
                } else {
                    self.end(cx, lane, run)?;
                    // Mostly time passes before the next step; sometimes there is no moment in which the lane is seen idle.
                    if cx.rng.chance(300) && !self.draining && self.declaring.is_none() {
                        self.begin(cx, lane)?;
                    }
                }
            }
        }
        // Threads that continue also check the jobs, and wake the copy thread.
        if cx.rng.chance(700) {
            self.run_copy_loop(cx)?;
        } else {
            let later = cx.rng.between(0, 3);
            cx.queue.after(later, Ev::CopyLoop { session: self.index });
        }
        cx.queue.after(again_us, Ev::Lane { session: self.index, lane });
        Ok(())
    }

    fn hung(&self, lane: usize, run: &Run) -> Check {
        let detail = format!("s{} lane {lane}: plane {} is not complete after {PLANE_US} us", self.index, run.plane);
        wrong(Caught::Hang, detail)
    }

    /// Pick sequences and begin a step over them.
    fn begin(&mut self, cx: &mut Context, lane: usize) -> Check {
        if let Some(step) = self.lanes[lane].owed {
            if self.tell_end(cx, lane, step) {
                self.lanes[lane].owed = None;
            }
            return Ok(());
        }
        let page_tokens = cx.geometry.config.page_tokens;
        let mut members: Vec<Member> = Vec::new();
        let batch = cx.rng.between(1, 3) as usize;
        // Long sequences are filled by larger steps: a prefill in chunks.
        let chunk = if cx.geometry.seq_blocks > 14 { 8 } else { 2 };
        let first = cx.rng.index(self.seqs.len());
        for at in 0..self.seqs.len() {
            let slot = (first + at) % self.seqs.len();
            let Some(seq) = &self.seqs[slot] else { continue };
            if members.len() == batch || seq.closed || seq.doomed || seq.lane.is_some() || seq.blocks.is_empty() {
                continue;
            }
            let room = seq.blocks.len() as u64 * u64::from(page_tokens) - seq.text.len();
            let most = if cx.rng.chance(600) { room.min(1) } else { room.min(chunk * u64::from(page_tokens)) };
            let new =
                if most == 0 || (!seq.text.is_empty() && cx.rng.chance(150)) { 0 } else { cx.rng.between(1, most) };
            if seq.text.len() + new == 0 {
                continue;
            }
            let mut text = seq.text.clone();
            for _ in 0..new {
                let own = cx.rng.bits();
                let token = seq.prompt.map_or(own, |prompt| cx.library.token(prompt, text.len()));
                text.push(token, page_tokens);
            }
            members.push(Member { slot: slot as u32, contract: seq.contract, before: seq.text.clone(), text });
        }
        if members.is_empty() {
            return Ok(());
        }
        if self.shared.wants_quiet() {
            self.run_copy_loop(cx)?;
        }
        let wanted: Vec<StepSeq> = members.iter().map(|m| StepSeq { seq: m.slot, tokens: m.text.len() }).collect();
        let me = self.index;
        let announce = match self.lanes[lane].reader.begin(&wanted) {
            Ok(announce) => announce,
            // A page is being moved, and this thread carries that out before it continues.
            Err(Status::Again) => {
                cx.coverage.met(Met::GateClosed);
                if self.slot.is_none() {
                    self.mover.give_up_moves();
                }
                return self.run_copy_loop(cx);
            }
            Err(status) => {
                return wrong(Caught::WrongAnswer, format!("s{me} lane {lane}: begin of {wanted:?}: {status:?}"));
            }
        };
        self.same_table(lane)?;
        cx.ops += 1;
        let step = self.lanes[lane].reader.step();
        cx.trace.fold(&[6, me as u64, lane as u64, step, u64::from(announce)]);
        cx.say(|| format!("s{me} lane {lane} begins step {step} over {wanted:?}, announce {announce}"));
        if !announce {
            cx.coverage.met(Met::StepResident);
        }
        for member in &members {
            if let Some(seq) = self.seq_mut(member.slot) {
                seq.lane = Some(lane);
            }
        }
        let mut run = Run {
            hopes: cx.rng.chance(500),
            picked: BTreeSet::new(),
            candidates: vec![Vec::new(); members.len()],
            members,
            plane: 0,
            phase: Phase::Write,
            handed: BTreeSet::new(),
            fresh: Vec::new(),
            plane_since_us: cx.now(),
            wait_us: 0,
            retries: 0,
            failed: None,
            announce,
        };
        self.announce(cx, lane, &mut run);
        self.lanes[lane].run = Some(run);
        Ok(())
    }

    /// Check that a lane that begins has the mover's table: it has applied all updates and holds nothing.
    fn same_table(&self, lane: usize) -> Check {
        let view = self.lanes[lane].reader.view();
        for block in self.seqs.iter().flatten().flat_map(|seq| seq.blocks.iter().copied()) {
            for plane in 0..self.shared.geometry().plane_count() as u16 {
                let (ours, movers) = (view.frame(block, plane), self.shared.resident(block, plane));
                if ours != movers {
                    let me = self.index;
                    let detail = format!(
                        "s{me} lane {lane} begins with block {block} plane {plane} in {ours:?}, the mover has {movers:?}"
                    );
                    return wrong(Caught::WrongTable, detail);
                }
            }
        }
        Ok(())
    }

    /// Send the announcement of a step with missing pages, if it is due.
    fn announce(&mut self, cx: &mut Context, lane: usize, run: &mut Run) {
        if !run.announce {
            return;
        }
        run.announce = false;
        let step = self.lanes[lane].reader.step();
        let list: Vec<u32> = run.members.iter().map(|m| m.slot).collect();
        let entry = Submission {
            op: Op::Step as u16,
            lane: lane as u16,
            value: step,
            count: list.len() as u32,
            ..Submission::default()
        };
        let channel = usize::from(cx.geometry.channels) + lane;
        if !self.send(cx, channel, entry, &list, Pending::new(Op::Step, u32::MAX)) {
            self.lanes[lane].reader.announce_failed();
        }
    }

    fn tell_end(&mut self, cx: &mut Context, lane: usize, step: u64) -> bool {
        let entry = Submission { op: Op::StepEnd as u16, lane: lane as u16, value: step, ..Submission::default() };
        let channel = usize::from(cx.geometry.channels) + lane;
        self.send(cx, channel, entry, &[], Pending::new(Op::StepEnd, u32::MAX))
    }

    /// Do the next action of a step; return false if the step is over.
    fn go_on(&mut self, cx: &mut Context, lane: usize, run: &mut Run) -> Check<bool> {
        run.wait_us = 0;
        match run.phase {
            Phase::Write => {
                self.write(cx, lane, run)?;
                run.phase = Phase::Boundary;
            }
            Phase::Boundary => self.boundary(cx, lane, run)?,
            Phase::Read { left, last } => self.read(cx, lane, run, left, last)?,
            Phase::End => return Ok(false),
        }
        Ok(true)
    }

    /// Write the new tokens of the plane to pages that must be writable.
    fn write(&mut self, cx: &mut Context, lane: usize, run: &Run) -> Check {
        let page_tokens = cx.geometry.config.page_tokens;
        let plane = run.plane;
        let spec = cx.geometry.config.planes[usize::from(plane)];
        for member in &run.members {
            let (from, to) = (member.before.len(), member.text.len());
            let blocks = from / u64::from(page_tokens)..to.div_ceil(u64::from(page_tokens));
            for block in blocks.filter(|_| to > from) {
                let Some(frame) = self.lanes[lane].reader.page(member.slot, block as u32, plane) else {
                    let detail = format!(
                        "s{} lane {lane}: the unsealed page {block} of seq {} (block {:?}, for the mover in frame {:?}) in plane {plane} cannot \
                         be written",
                        self.index,
                        member.slot,
                        self.shared.seqs().block(member.slot, block as u32),
                        self.shared
                            .seqs()
                            .block(member.slot, block as u32)
                            .and_then(|b| self.shared.resident(b, plane))
                    );
                    return wrong(Caught::WrongAnswer, detail);
                };
                if !self.has_frame(cx, frame) {
                    let detail = format!("s{} lane {lane} writes frame {frame}, which has no memory", self.index);
                    return wrong(Caught::Protocol, detail);
                }
                for slot in 0..cx.geometry.slots() {
                    let token = block * u64::from(page_tokens) + slot as u64;
                    let state = spec.kind == PlaneKind::State;
                    if !state && !(from..to).contains(&token) {
                        continue;
                    }
                    let tag = member.text.expected(&spec, plane, self.shard, (block as u32, slot), to, page_tokens);
                    let place = crate::memory::Place { arena: self.tier0, frame };
                    cx.arenas.write(place, slot, tag.unwrap_or(0));
                }
            }
        }
        Ok(())
    }

    fn boundary(&mut self, cx: &mut Context, lane: usize, run: &mut Run) -> Check {
        let me = self.index;
        let plane = run.plane;
        if let Some(status) = run.failed.take() {
            run.retries += 1;
            self.lanes[lane].reader.fault_ended();
            if status == Status::Lost || run.retries > RETRIES {
                cx.say(|| format!("s{me} lane {lane} gives up its step: {status:?}"));
                cx.coverage.met(Met::StepFailed);
                run.members.iter().for_each(|m| self.doom(m.slot));
                run.phase = Phase::End;
                return Ok(());
            }
        }
        if self.lanes[lane].reader.plane() != Some(plane) {
            self.pick(cx, lane, run)?;
        }
        let found = self.lanes[lane].reader.boundary(plane);
        // A lane that keeps waiting would fill the report.
        if found != Ok(Found::Nothing { announce: false, fault: None }) {
            let ready = self.lanes[lane].reader.ready();
            cx.say(|| format!("s{me} lane {lane} boundary of plane {plane}: {found:?} {ready:?}"));
        }
        match found {
            Err(status) => {
                return wrong(Caught::WrongAnswer, format!("s{me} lane {lane}: boundary of {plane}: {status:?}"));
            }
            Ok(Found::All) => {
                let pages = self.wanted_pages(cx, run);
                if !run.handed.is_empty() {
                    return wrong(
                        Caught::SkippedPage,
                        format!("s{me} lane {lane}: all of plane {plane} after a part of it"),
                    );
                }
                run.fresh = pages.iter().copied().collect();
                run.handed = pages;
                run.phase = Phase::Read { left: cx.rng.between(1, 2) as u32, last: true };
            }
            Ok(Found::Part { last }) => {
                cx.coverage.met(Met::StepParts);
                run.fresh = self.lanes[lane].reader.ready().iter().map(|r| (r.position, r.index)).collect();
                for page in &run.fresh {
                    if !run.handed.insert(*page) {
                        return wrong(
                            Caught::SkippedPage,
                            format!("s{me} lane {lane}: page {page:?} of plane {plane} twice"),
                        );
                    }
                }
                run.phase = Phase::Read { left: cx.rng.between(1, 2) as u32, last };
            }
            Ok(Found::Nothing { announce, fault }) => {
                run.wait_us = cx.rng.between(1, 12);
                run.announce |= announce;
                self.announce(cx, lane, run);
                if let Some(fault) = fault {
                    self.fault(cx, lane, fault);
                }
                if self.do_without(cx, lane) {
                    run.fresh.clear();
                    run.phase = Phase::Read { left: 1, last: true };
                }
            }
        }
        Ok(())
    }

    fn fault(&mut self, cx: &mut Context, lane: usize, fault: Fault) {
        cx.coverage.met(Met::StepFault);
        let entry = Submission {
            op: Op::Fault as u16,
            lane: lane as u16,
            value: fault.use_pos,
            seq: fault.seq,
            first: fault.index,
            flags: fault.plane,
            ..Submission::default()
        };
        let mut pending = Pending::new(Op::Fault, fault.seq);
        pending.lane = Some(lane);
        (pending.first, pending.count) = (fault.index, self.lanes[lane].reader.step());
        let channel = usize::from(cx.geometry.channels) + lane;
        if !self.send(cx, channel, entry, &[], pending) {
            self.lanes[lane].reader.fault_ended();
        }
    }

    /// Handle the response to a fault of `lane`.
    pub(super) fn faulted(&mut self, lane: usize, step: u64, status: Status) {
        let lane = &mut self.lanes[lane];
        // The step of the fault may be over, and the next one begun.
        let Some(run) = lane.run.as_mut().filter(|_| lane.reader.step() == step) else { return };
        match status {
            Status::Ok => lane.reader.fault_ended(),
            _ => run.failed = Some(status),
        }
    }

    /// Return whether the step that a fault was for is still open.
    pub(super) fn in_step(&self, pending: &Pending) -> bool {
        pending
            .lane
            .is_some_and(|lane| self.lanes[lane].run.is_some() && self.lanes[lane].reader.step() == pending.count)
    }

    /// Read pages: those that were just handed out, and again some that the table still shows.
    fn read(&mut self, cx: &mut Context, lane: usize, run: &mut Run, left: u32, last: bool) -> Check {
        // The last reads come just before the next boundary: pages handed out must have been correct until then.
        for (position, index) in run.fresh.iter().copied() {
            if left > 1 && cx.rng.chance(500) {
                continue;
            }
            if !self.compare(cx, lane, run, (position, index, run.plane))? {
                let slot = run.members[position as usize].slot;
                let detail = format!(
                    "s{} lane {lane}: page {index} of seq {slot} in plane {} was handed out and is not in the table",
                    self.index, run.plane
                );
                return wrong(Caught::WrongAnswer, detail);
            }
            cx.coverage.met(Met::PageRead);
        }
        for _ in 0..cx.rng.below(3) {
            let position = cx.rng.index(run.members.len());
            let blocks = run.members[position].text.len().div_ceil(u64::from(cx.geometry.config.page_tokens));
            let index = cx.rng.below(blocks) as u32;
            let plane = cx.rng.below(u64::from(cx.geometry.planes())) as u16;
            if self.compare(cx, lane, run, (position as u32, index, plane))? {
                cx.coverage.met(Met::PageReread);
            }
        }
        run.phase = match (left, last) {
            (2.., _) => Phase::Read { left: left - 1, last },
            (_, false) => Phase::Boundary,
            (_, true) => self.plane_done(cx, lane, run)?,
        };
        Ok(())
    }

    /// At the end of a plane: check that it was handed out completely.
    fn plane_done(&mut self, cx: &mut Context, lane: usize, run: &mut Run) -> Check<Phase> {
        let mut pages = self.omissions(cx, lane, run)?;
        pages.extend(&run.handed);
        let wanted = self.wanted_pages(cx, run);
        if wanted != pages {
            let missed: Vec<_> = wanted.symmetric_difference(&pages).collect();
            return wrong(
                Caught::SkippedPage,
                format!("s{} lane {lane}: plane {} without or beyond {missed:?}", self.index, run.plane),
            );
        }
        self.tell_mass(cx, lane, run);
        run.handed.clear();
        run.fresh.clear();
        run.plane += 1;
        run.plane_since_us = cx.now();
        Ok(if run.plane == cx.geometry.planes() { Phase::End } else { Phase::Write })
    }

    /// Compare a page with the model if the lane's table shows it; return false if it does not.
    fn compare(&self, cx: &Context, lane: usize, run: &Run, (position, index, plane): (u32, u32, u16)) -> Check<bool> {
        let member = &run.members[position as usize];
        let Some(frame) = self.lanes[lane].reader.page(member.slot, index, plane) else { return Ok(false) };
        // Planes up to this one contain the new tokens, the others do not yet.
        let text = if plane <= run.plane { &member.text } else { &member.before };
        let what = format_args!("lane {lane} step {} plane {plane}", self.lanes[lane].reader.step()).to_string();
        self.compare_page(cx, text, (member.slot, index, plane), frame, &what)?;
        Ok(true)
    }

    /// Compare the content of a frame with the expected content of a page.
    pub(super) fn compare_page(
        &self,
        cx: &Context,
        text: &Text,
        page: (u32, u32, u16),
        frame: u32,
        reader: &str,
    ) -> Check {
        let (seq, index, plane) = page;
        let spec = cx.geometry.config.planes[usize::from(plane)];
        let page_tokens = cx.geometry.config.page_tokens;
        let place = self.shown_at(frame);
        let Some(arena) = cx.arenas.get(place.arena) else { return Ok(()) };
        let tags = arena.frame(place.frame);
        for (slot, tag) in tags.iter().enumerate() {
            let expected = text.expected(&spec, plane, self.shard, (index, slot), text.len(), page_tokens);
            if expected.is_some_and(|expected| expected != *tag) {
                let detail = format!(
                    "s{} {reader}: page {index} of seq {seq} (block {:?}) in plane {plane}, shown in frame {frame}, \
                     holds {tag:x} in slot {slot} instead of {:x}; whole page {tags:x?}",
                    self.index,
                    self.seq(seq).and_then(|s| s.blocks.get(index as usize)),
                    expected.unwrap_or(0),
                );
                return wrong(Caught::WrongContent, detail);
            }
        }
        Ok(())
    }

    /// End a step; commit all, some or none of its tokens.
    fn end(&mut self, cx: &mut Context, lane: usize, run: Run) -> Check {
        let me = self.index;
        let step = self.lanes[lane].reader.step();
        match self.lanes[lane].reader.end() {
            Err(status) => {
                return wrong(Caught::WrongAnswer, format!("s{me} lane {lane}: end of step {step}: {status:?}"));
            }
            Ok(true) if !self.tell_end(cx, lane, step) => self.lanes[lane].owed = Some(step),
            Ok(_) => {}
        }
        cx.say(|| format!("s{me} lane {lane} ends step {step}"));
        let whole = |m: &Member| m.contract == Contract::Exact && self.seq(m.slot).is_some_and(|seq| !seq.doomed);
        if run.members.iter().all(whole) && deep(cx, &run) {
            cx.coverage.met(Met::StepThreeTiers);
        }
        cx.trace.fold(&[7, me as u64, lane as u64, step]);
        for member in run.members {
            let Some(seq) = self.seq_mut(member.slot) else { continue };
            seq.lane = None;
            if seq.doomed {
                continue;
            }
            seq.text = member.text;
            let (committed, written) = (seq.owed.unwrap_or(seq.committed), seq.text.len());
            // Mostly all; sometimes speculated tokens are not accepted, or not yet.
            let accepted = if cx.rng.chance(850) { written } else { cx.rng.between(committed, written) };
            if cx.rng.chance(300) {
                seq.text.reject(accepted, cx.geometry.config.page_tokens);
            }
            if accepted > committed {
                seq.owed = Some(accepted);
                self.pay(cx, member.slot);
            }
        }
        Ok(())
    }

    /// Send the outstanding commit of a sequence, if the ring has room.
    pub(super) fn pay(&mut self, cx: &mut Context, slot: u32) {
        let Some(tokens) = self.seq(slot).and_then(|seq| seq.owed) else { return };
        if self.commit(cx, slot, tokens) {
            self.shared.seqs().commit(slot, tokens);
            if let Some(seq) = self.seq_mut(slot) {
                seq.committed = tokens;
                seq.owed = None;
            }
        }
    }

    /// Abandon an open step after the daemon's death: its tokens are void.
    pub(super) fn abandon(&mut self, lane: usize) {
        let Some(run) = self.lanes[lane].run.take() else { return };
        for member in run.members.iter().filter(|m| m.text.len() > m.before.len()) {
            if let Some(seq) = self.seq_mut(member.slot) {
                seq.text.spoil();
            }
        }
    }

    fn doom(&mut self, slot: u32) {
        if let Some(seq) = self.seq_mut(slot) {
            seq.doomed = true;
        }
    }
}

/// Return the block indices that attention needs of a sequence in a plane.
pub(super) fn pages_needed(cx: &Context, member: &Member, plane: u16) -> std::ops::Range<u32> {
    needed(&cx.geometry.config.planes[usize::from(plane)], member.text.len(), cx.geometry.config.page_tokens)
}

/// Return whether the pages that a step read fill more than tier 0 and host together.
fn deep(cx: &Context, run: &Run) -> bool {
    let page_tokens = cx.geometry.config.page_tokens;
    let pages = |plane: usize| -> u64 {
        let spec = &cx.geometry.config.planes[plane];
        run.members.iter().map(|m| needed(spec, m.text.len(), page_tokens).len() as u64).sum()
    };
    let stride = |plane: usize| u64::from(kvtide_wire::geometry::stride(cx.geometry.config.planes[plane].page_bytes));
    (0..cx.geometry.config.planes.len()).map(|plane| pages(plane) * stride(plane)).sum::<u64>()
        > cx.geometry.upper_bytes()
}
