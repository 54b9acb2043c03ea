//! A step's reads on one lane: which pages it needs, which are readable, and which must be requested. The caller does the
//! waiting, the sending and the timing.

use super::{LaneView, SeqTable, Tracks};
use kvtide_wire::status::Status;

/// A sequence of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSeq {
    /// Slot of the sequence.
    pub seq: u32,
    /// Number of tokens that attention covers in this step, including the new ones.
    pub tokens: u64,
}

/// A page that a step reads of a sequence when it does not read all pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Block index within the sequence.
    pub index: u32,
    /// How to treat the page while it is not readable.
    pub absent: Absent,
}

/// How to treat a chosen page while it is not readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// Wait for it, as for any page.
    Wait,
    /// Wait for it until it is waived.
    Hope,
    /// Do without it.
    Omit,
}

/// A page that a boundary hands out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Position of its sequence in the step.
    pub position: u32,
    /// Block index within the sequence.
    pub index: u32,
    /// Frame that shows it.
    pub frame: u32,
}

/// Result of a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// All pages of the plane are readable, and none was handed out before.
    All,
    /// [`Reader::ready`] holds pages that were not handed out before. If `last`, no more pages follow.
    Part {
        /// True if the plane is complete with these pages.
        last: bool,
    },
    /// Nothing new is readable. Retry the same boundary after the mover made progress.
    Nothing {
        /// The step must be announced (`Op::Step`) before any fault.
        announce: bool,
        /// A page to request (`Op::Fault`), unless that was already done.
        fault: Option<Fault>,
    },
}

/// A page that a lane waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Sequence.
    pub seq: u32,
    /// Block index.
    pub index: u32,
    /// Plane.
    pub plane: u16,
    /// Step × planes + plane.
    pub use_pos: u64,
    /// The lane keeps all pages that it uses there until it has this one.
    pub whole: bool,
}

/// What a lane has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Steps begun.
    pub steps: u64,
    /// Steps in which everything was readable at the begin.
    pub steps_resident: u64,
    /// Pages that were readable at their plane's first boundary.
    pub pages_resident: u64,
    /// Pages that were not readable then.
    pub pages_missed: u64,
    /// Chosen pages that a step did without, because they were not readable, or not in time.
    pub pages_waived: u64,
}

/// Result of the last check of a sequence.
#[derive(Clone, Copy, Default)]
struct Known {
    version: u32,
    epoch: u64,
    /// If `valid`: everything that a step of at least `tokens` tokens needs below block `blocks` was readable.
    tokens: u64,
    blocks: u32,
    valid: bool,
}

/// A sequence of the open step.
#[derive(Clone, Copy)]
struct Member {
    seq: u32,
    tokens: u64,
    blocks: u32,
}

/// A page that a plane still misses.
#[derive(Clone, Copy)]
struct Missing {
    position: u32,
    index: u32,
    block: u32,
    /// It was handed out or waived.
    gone: bool,
    /// It may be waived if it is late.
    hoped: bool,
}

/// The steps of one lane.
pub struct Reader {
    view: LaneView,
    /// Number of planes that a step reads completely, and the list of the other planes.
    full_planes: u32,
    special: Vec<u16>,
    known: Vec<Known>,
    /// Position + 1 of each sequence in the open step, 0 if it is not in the step.
    member_of: Vec<u32>,
    members: Vec<Member>,
    /// Choices for the plane that next reaches its first boundary: positions of the members that are not read completely, and the
    /// range of their pages in `picks`.
    chosen: Vec<(u32, std::ops::Range<usize>)>,
    picks: Vec<Chosen>,
    /// Position and index of the pages of the plane that the step does without.
    waived: Vec<(u32, u32)>,
    step: u64,
    open: bool,
    announced: bool,
    /// Epoch of the view at which the whole step was readable.
    whole_at: Option<u64>,
    /// Number of pages that the step needs in a plane that is read completely.
    pages_full: u64,
    plane: Option<u16>,
    /// The plane that has applied its first boundary but has handed out nothing yet.
    arrived: Option<u16>,
    complete: bool,
    /// The plane was only gathered so far: none of its pages was handed out.
    gathering: bool,
    /// The step's planes are gathered one after the other while the view stays at the first one's position (rule 4).
    gated: bool,
    /// For each block, the number (in 32 bits) of the last stamped step that had it; and that step. A step is stamped when it first
    /// needs it.
    stamps: Vec<u32>,
    stamped: u64,
    /// Pages that were missing at the plane's first boundary, in order; the same sorted by block; how many are left, and the
    /// first of them.
    missing: Vec<Missing>,
    by_block: Vec<u32>,
    left: usize,
    first: usize,
    /// Indices into `missing` of the pages that a boundary found.
    found: Vec<u32>,
    ready: Vec<Ready>,
    faulted: Option<(u16, u32, u32)>,
    counts: Counts,
}

impl Reader {
    /// Create a reader for a lane's steps.
    #[must_use]
    pub fn new(view: LaneView) -> Reader {
        let geometry = view.shared().geometry();
        let planes = 0..geometry.plane_count() as u16;
        let special: Vec<u16> = planes.filter(|p| !geometry.reads_all(*p)).collect();
        let seqs = geometry.bounds().seqs_max as usize;
        Reader {
            full_planes: geometry.plane_count() - special.len() as u32,
            special,
            known: vec![Known::default(); seqs],
            member_of: vec![0; seqs],
            members: Vec::with_capacity(seqs.min(1024)),
            chosen: Vec::new(),
            picks: Vec::new(),
            waived: Vec::new(),
            step: 0,
            open: false,
            announced: false,
            whole_at: None,
            pages_full: 0,
            plane: None,
            arrived: None,
            complete: false,
            gathering: false,
            gated: false,
            stamps: Vec::new(),
            stamped: 0,
            missing: Vec::new(),
            by_block: Vec::new(),
            left: 0,
            first: 0,
            found: Vec::new(),
            ready: Vec::new(),
            faulted: None,
            counts: Counts::default(),
            view,
        }
    }

    /// Return the lane's table.
    #[must_use]
    pub fn view(&self) -> &LaneView {
        &self.view
    }

    /// Return the number of the open step, or of the last one. The first step is 1.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Take what was counted since the last call.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Return the sequences of the open step.
    pub fn members(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.members.iter().map(|m| m.seq)
    }

    /// Return a sequence of the open step by its position.
    #[must_use]
    pub fn member(&self, position: u32) -> Option<StepSeq> {
        self.members.get(position as usize).map(|m| StepSeq { seq: m.seq, tokens: m.tokens })
    }

    /// Return the plane of the last boundary of the open step.
    #[must_use]
    pub fn plane(&self) -> Option<u16> {
        self.plane.filter(|_| self.open)
    }

    /// Report whether the open step was announced or must be: not everything that it needs was readable.
    #[must_use]
    pub fn is_announced(&self) -> bool {
        self.open && self.announced
    }

    /// Return the position of a sequence in the open step.
    #[must_use]
    pub fn position_of(&self, seq: u32) -> Option<u32> {
        self.member_of.get(seq as usize).and_then(|p| p.checked_sub(1))
    }

    /// Report whether the open step had no boundary yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.open && self.plane.is_none() && self.arrived.is_none()
    }

    /// Report whether the open step is gated.
    #[must_use]
    pub fn is_gated(&self) -> bool {
        self.open && self.gated
    }

    /// Return the pages that the last boundary handed out.
    #[must_use]
    pub fn ready(&self) -> &[Ready] {
        &self.ready
    }

    /// Open a step. Return true if the step must be announced (`Op::Step`), because not everything that it needs is readable.
    /// On an error, nothing has changed.
    ///
    /// # Errors
    /// `State`: a step is open, or a sequence is in another step or twice in this one. `NotFound`, `Lost`. `Range`: more tokens
    /// than blocks. `Again`: a page is being moved, see [`LaneView::begin`].
    pub fn begin(&mut self, seqs: &[StepSeq]) -> Result<bool, Status> {
        if self.open {
            return Err(Status::State);
        }
        for wanted in seqs {
            if let Err(status) = self.admit(*wanted) {
                self.dismiss();
                return Err(status);
            }
        }
        if !self.view.begin(self.step + 1) {
            self.dismiss();
            return Err(Status::Again);
        }
        self.step += 1;
        self.open = true;
        self.announced = false;
        (self.plane, self.arrived) = (None, None);
        (self.gathering, self.gated) = (false, false);
        self.faulted = None;
        self.ready.clear();
        self.missing.clear();
        self.choose_all();
        self.waived.clear();
        self.counts.steps += 1;
        self.pages_full = self.members.iter().map(|m| u64::from(m.blocks)).sum();
        let whole = (0..self.members.len()).all(|at| self.whole(at));
        self.whole_at = whole.then(|| self.view.epoch());
        self.counts.steps_resident += u64::from(whole);
        self.announced = !whole;
        Ok(!whole)
    }

    fn seqs(&self) -> &SeqTable {
        self.view.shared().seqs()
    }

    /// Take a sequence into the step.
    fn admit(&mut self, wanted: StepSeq) -> Result<(), Status> {
        let StepSeq { seq, tokens } = wanted;
        self.seqs().enter(seq, self.view.lane())?;
        let blocks = self.view.shared().geometry().blocks_for(tokens);
        self.members.push(Member { seq, tokens, blocks });
        self.member_of[seq as usize] = self.members.len() as u32;
        if blocks > self.seqs().len(seq) { Err(Status::Range) } else { Ok(()) }
    }

    /// Release all sequences of the step.
    fn dismiss(&mut self) {
        for member in &self.members {
            self.view.shared().seqs().leave(member.seq, self.view.lane());
            self.member_of[member.seq as usize] = 0;
        }
        self.members.clear();
    }

    /// Report whether everything that the sequence at `position` needs is readable now. Checks only what may have changed since
    /// the last check.
    pub fn reads_whole(&mut self, position: u32) -> bool {
        (position as usize) < self.members.len() && self.whole(position as usize)
    }

    fn whole(&mut self, at: usize) -> bool {
        let Member { seq, tokens, blocks } = self.members[at];
        let (version, epoch) = (self.seqs().version(seq), self.view.epoch());
        let known = self.known[seq as usize];
        let still = known.valid && known.version == version && known.epoch == epoch && known.tokens <= tokens;
        let from = if still { known.blocks.min(blocks) } else { 0 };
        let (seqs, view) = (self.view.shared().seqs(), &self.view);
        let readable = |index: u32| seqs.block(seq, index).is_some_and(|b| view.full_pages(b) == self.full_planes);
        let ok = (self.full_planes == 0 || (from..blocks).all(readable))
            && self.special.iter().all(|plane| {
                let mut needed = view.shared().geometry().needed(*plane, tokens);
                needed.start = needed.start.max(from);
                needed.into_iter().all(|i| seqs.block(seq, i).is_some_and(|b| view.frame(b, *plane).is_some()))
            });
        self.known[seq as usize] = Known { version, epoch, tokens, blocks, valid: ok };
        ok
    }

    /// Make the next boundary read everything, dropping earlier choices.
    pub fn choose_all(&mut self) {
        self.chosen.clear();
        self.picks.clear();
    }

    /// Make the next boundary, if it is the first of its plane, read only `pages` of the sequence at `position`. Page indices
    /// must rise, and calls must come in rising order of positions. Chosen pages are handed out even if everything is readable.
    pub fn choose(&mut self, position: u32, pages: impl Iterator<Item = Chosen>) {
        let from = self.picks.len();
        self.picks.extend(pages);
        self.chosen.push((position, from..self.picks.len()));
    }

    /// Return the pages of the plane that the step does without: position of their sequence, and index.
    #[must_use]
    pub fn waived(&self) -> &[(u32, u32)] {
        &self.waived
    }

    /// Report whether the plane still misses a page that may be waived for being late.
    #[must_use]
    pub fn hopes(&self) -> bool {
        self.plane().is_some() && !self.complete && self.missing.iter().any(|m| !m.gone && m.hoped)
    }

    /// Waive the missing pages that may be waived for being late. Return true if the plane is then complete.
    pub fn waive_late(&mut self) -> bool {
        if self.complete || self.plane().is_none() {
            return false;
        }
        let before = self.left;
        for missing in self.missing.iter_mut().filter(|m| !m.gone && m.hoped) {
            missing.gone = true;
            self.left -= 1;
            self.waived.push((missing.position, missing.index));
            if self.faulted.is_some_and(|(_, position, index)| (position, index) == (missing.position, missing.index)) {
                self.faulted = None;
            }
        }
        self.skip_gone();
        self.complete = self.left == 0;
        self.counts.pages_waived += (before - self.left) as u64;
        self.left < before && self.complete
    }

    fn skip_gone(&mut self) {
        while self.missing.get(self.first).is_some_and(|m| m.gone) {
            self.first += 1;
        }
    }

    /// Check that a boundary of `plane` may come. Return whether one came before.
    fn may_come(&self, plane: u16) -> Result<bool, Status> {
        if self.gated { Err(Status::State) } else { self.is_next(plane) }
    }

    fn is_next(&self, plane: u16) -> Result<bool, Status> {
        if u32::from(plane) >= self.view.shared().geometry().plane_count() {
            return Err(Status::Range);
        }
        let again = self.plane == Some(plane);
        if !self.open || (again && self.complete) || self.plane.is_some_and(|p| p > plane) {
            return Err(Status::State);
        }
        Ok(again)
    }

    /// Do the first half of the first boundary of `plane`: update the table that the boundary will hand out from. The choice of
    /// pages can then depend on it. [`Reader::boundary`] does the other half.
    ///
    /// # Errors
    /// As [`Reader::boundary`]; `State` also if the plane already had a boundary.
    /// As [`Reader::boundary`]; `State` also if it was a boundary's plane before.
    pub fn arrive(&mut self, plane: u16) -> Result<(), Status> {
        if self.may_come(plane)? {
            return Err(Status::State);
        }
        self.view.boundary(plane);
        self.arrived = Some(plane);
        Ok(())
    }

    /// Pass a boundary of `plane`.
    ///
    /// # Errors
    /// `State`: no step is open, the plane is complete, or a later one has begun. `Range`: no such plane.
    pub fn boundary(&mut self, plane: u16) -> Result<Found, Status> {
        let again = self.may_come(plane)?;
        if self.arrived.take() != Some(plane) {
            self.view.boundary(plane);
        }
        self.ready.clear();
        let gathered = std::mem::take(&mut self.gathering);
        if again && !gathered { Ok(self.rest(plane)) } else { Ok(self.first(plane)) }
    }

    /// Pass a boundary of `plane` that ends only when all its pages are readable at once. Until then, call it again for the
    /// same plane and for no other. Meanwhile it hands out nothing and gives up no page of the plane.
    ///
    /// # Errors
    /// As [`Reader::boundary`]; `State` also if a boundary has handed out some pages of the plane.
    pub fn gather(&mut self, plane: u16) -> Result<Found, Status> {
        let again = self.may_come(plane)?;
        if again && !self.gathering {
            return Err(Status::State); // some pages were already handed out
        }
        if again && !self.view.behind() {
            return Ok(self.nothing(plane));
        }
        self.gathering = true;
        if again {
            self.view.refresh();
        } else if self.arrived.take() != Some(plane) {
            self.view.boundary(plane);
        }
        Ok(self.gathered(plane, again))
    }

    /// Report whether the updates that were just applied complete the plane.
    fn gathered(&mut self, plane: u16, again: bool) -> Found {
        let counted = self.counts;
        self.ready.clear();
        let found = self.first(plane);
        if again {
            self.counts = counted;
        }
        match found {
            Found::Part { .. } => {
                self.ready.clear();
                self.nothing(plane)
            }
            found => found,
        }
    }

    /// Gather `plane` in a gated step: planes come in order from the first, and each is called again until it is complete. The view
    /// stays at the position of the first plane until the step's end, so that the daemon evicts no page of the step as used, and
    /// gives up no page of a plane that is complete: the device may read it at any time until the end (rule 4).
    ///
    /// # Errors
    /// As [`Reader::gather`]; `State` also if another boundary came before.
    pub fn gather_gated(&mut self, plane: u16) -> Result<Found, Status> {
        let again = self.is_next(plane)?;
        if !self.gated && (self.plane.is_some() || self.arrived.is_some()) {
            return Err(Status::State);
        }
        if again && !self.view.behind() {
            return Ok(self.nothing(plane));
        }
        self.choose_all();
        if std::mem::replace(&mut self.gated, true) {
            self.refresh_gated(plane);
        } else {
            self.view.boundary(plane);
        }
        Ok(self.gathered(plane, again))
    }

    /// Apply changes without giving up pages that the step needs in planes before `plane`.
    fn refresh_gated(&mut self, plane: u16) {
        if !self.view.behind() {
            return;
        }
        self.stamp();
        let shared = std::sync::Arc::clone(self.view.shared());
        let (geometry, seqs) = (shared.geometry(), shared.seqs());
        let (members, stamps, stamp) = (&self.members, &self.stamps, self.step as u32);
        self.view.refresh_keeping(|block, of| {
            let reads =
                |m: &Member| geometry.needed(of, m.tokens).into_iter().any(|i| seqs.block(m.seq, i) == Some(block));
            let ours = of < plane && stamps[block as usize] == stamp;
            ours && (geometry.reads_all(of) || members.iter().any(reads))
        });
    }

    /// Stamp the step's blocks, once a step.
    fn stamp(&mut self) {
        if std::mem::replace(&mut self.stamped, self.step) == self.step {
            return;
        }
        let shared = self.view.shared();
        self.stamps.resize(shared.geometry().table_blocks() as usize, 0);
        for member in &self.members {
            for block in (0..member.blocks).filter_map(|index| shared.seqs().block(member.seq, index)) {
                self.stamps[block as usize] = self.step as u32;
            }
        }
    }

    /// Report all changes of the lane's table to `tracks` (rule 11). Only between steps.
    pub fn track(&mut self, tracks: Box<dyn Tracks>) {
        self.view.track(tracks);
    }

    /// Report all current entries of the lane's table to its `Tracks`.
    pub fn replay(&mut self) {
        self.view.replay();
    }

    /// Report whether everything that the open step reads could be in tier 0 at once. `frames` returns the number of frames of
    /// a size class. Pages that several sequences share count once for each sequence.
    #[must_use]
    pub fn fits(&self, frames: impl Fn(usize) -> u32) -> bool {
        let geometry = self.view.shared().geometry();
        (0..geometry.classes()).all(|class| {
            let planes = (0..geometry.plane_count() as u16).filter(|p| geometry.class_of(*p) == Some(class as u8));
            planes.map(|plane| self.needed_pages(plane)).sum::<u64>() <= u64::from(frames(class))
        })
    }

    /// Do the first boundary of a plane.
    fn first(&mut self, plane: u16) -> Found {
        self.plane = Some(plane);
        self.complete = true;
        self.missing.clear();
        self.waived.clear();
        let chosen = std::mem::take(&mut self.chosen);
        if self.whole_at == Some(self.view.epoch()) && chosen.is_empty() {
            self.counts.pages_resident += self.needed_pages(plane);
            return Found::All;
        }
        let mut next = chosen.iter().peekable();
        for position in 0..self.members.len() as u32 {
            let member = self.members[position as usize];
            match next.next_if(|(at, _)| *at == position) {
                Some((_, range)) => {
                    for at in range.clone() {
                        let Chosen { index, absent } = self.picks[at];
                        self.look(plane, position, &member, index, absent);
                    }
                }
                None => {
                    for index in self.view.shared().geometry().needed(plane, member.tokens) {
                        self.look(plane, position, &member, index, Absent::Wait);
                    }
                }
            }
        }
        self.picks.clear();
        let all = chosen.is_empty();
        self.chosen = chosen;
        self.chosen.clear();
        self.counts.pages_resident += self.ready.len() as u64;
        self.counts.pages_missed += self.missing.len() as u64;
        if self.missing.is_empty() && all {
            self.ready.clear();
            return Found::All;
        }
        if self.missing.is_empty() {
            return Found::Part { last: true };
        }
        self.complete = false;
        self.left = self.missing.len();
        self.first = 0;
        self.by_block.clear();
        self.by_block.extend(0..self.missing.len() as u32);
        let missing = &self.missing;
        self.by_block.sort_unstable_by_key(|at| (missing[*at as usize].block, *at));
        if self.ready.is_empty() { self.nothing(plane) } else { Found::Part { last: false } }
    }

    /// Look up a page that a plane needs.
    fn look(&mut self, plane: u16, position: u32, member: &Member, index: u32, absent: Absent) {
        let Some(block) = self.view.shared().seqs().block(member.seq, index) else { return };
        match (self.view.frame(block, plane), absent) {
            (Some(frame), _) => self.ready.push(Ready { position, index, frame }),
            (None, Absent::Omit) => {
                self.counts.pages_waived += 1;
                self.waived.push((position, index));
            }
            (None, absent) => {
                let hoped = absent == Absent::Hope;
                self.missing.push(Missing { position, index, block, gone: false, hoped });
            }
        }
    }

    /// Do a later boundary of the same plane. A missing page can only have arrived with this boundary's updates.
    fn rest(&mut self, plane: u16) -> Found {
        let planes = self.view.shared().geometry().plane_count();
        let (missing, by_block) = (&mut self.missing, &self.by_block);
        self.found.clear();
        for page in self.view.fresh().iter().filter(|page| **page % planes == u32::from(plane)) {
            let block = page / planes;
            if self.view.frame(block, plane).is_none() {
                continue;
            }
            let from = by_block.partition_point(|at| missing[*at as usize].block < block);
            for at in by_block[from..].iter().copied() {
                let wanted = &mut missing[at as usize];
                if wanted.block != block {
                    break;
                }
                if !std::mem::replace(&mut wanted.gone, true) {
                    self.found.push(at);
                }
            }
        }
        self.found.sort_unstable();
        for at in &self.found {
            let Missing { position, index, block, .. } = missing[*at as usize];
            if let Some(frame) = self.view.frame(block, plane) {
                self.ready.push(Ready { position, index, frame });
            }
        }
        self.left -= self.found.len();
        self.skip_gone();
        if self.ready.is_empty() {
            return self.nothing(plane);
        }
        self.complete = self.left == 0;
        Found::Part { last: self.complete }
    }

    fn nothing(&mut self, plane: u16) -> Found {
        let announce = !self.announced;
        self.announced = true;
        let first = self.missing.get(self.first).copied();
        let fault = first.filter(|m| self.faulted != Some((plane, m.position, m.index))).map(|m| {
            self.faulted = Some((plane, m.position, m.index));
            let seq = self.members[m.position as usize].seq;
            Fault { seq, index: m.index, plane, use_pos: self.view.position(), whole: self.gathering || self.gated }
        });
        Found::Nothing { announce, fault }
    }

    /// Record the answer to a fault. If it is the current fault and its page is still missing, a boundary requests the page
    /// again.
    pub fn fault_answered(&mut self, fault: &Fault) {
        let asked = self.position_of(fault.seq).map(|position| (fault.plane, position, fault.index));
        if fault.use_pos == self.view.position() && self.faulted == asked {
            self.faulted = None;
        }
    }

    /// Record that the last fault could not be sent or is void. If its page is still missing, a boundary requests the page
    /// again.
    pub fn fault_ended(&mut self) {
        self.faulted = None;
    }

    /// Record that the announcement could not be sent: a boundary requests it again.
    pub fn announce_failed(&mut self) {
        self.announced = false;
    }

    /// Return the number of pages that the step needs in a plane.
    fn needed_pages(&self, plane: u16) -> u64 {
        let geometry = self.view.shared().geometry();
        if geometry.reads_all(plane) {
            return self.pages_full;
        }
        self.members.iter().map(|m| geometry.needed(plane, m.tokens).len() as u64).sum()
    }

    /// Return the frame of a page of a sequence in the open step, if it is readable now.
    #[must_use]
    pub fn page(&self, seq: u32, index: u32, plane: u16) -> Option<u32> {
        self.position_of(seq)?;
        self.view.frame(self.seqs().block(seq, index)?, plane)
    }

    /// Close the step. Return true if it was announced, so that its end must be reported too (`Op::StepEnd`).
    ///
    /// # Errors
    /// `State`: no step is open.
    pub fn end(&mut self) -> Result<bool, Status> {
        if !self.open {
            return Err(Status::State);
        }
        self.open = false;
        self.view.end();
        self.dismiss();
        Ok(self.announced)
    }
}

impl Drop for Reader {
    /// Close an open step, so that a dropped lane blocks no other.
    fn drop(&mut self) {
        if self.open {
            self.open = false;
            self.view.end();
            self.dismiss();
        }
    }
}
