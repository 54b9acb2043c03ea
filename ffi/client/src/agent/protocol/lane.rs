//! A lane's own page table: which changes take effect at its boundaries, and when.

use super::{
    ABSENT, Shared, Tracks, entry_of, frame_of,
    log::Update,
    mutants::{self, Mutant},
    shared::QUIESCENT,
    zeroed,
};
use kvtide_wire::sync::{Ordering, fence};
use std::sync::Arc;

/// Value of `first_at` before the step's first boundary.
const NOT_YET: u64 = u64::MAX;

/// An invalidation that waits until this lane's use is over (rule 4).
#[derive(Clone, Copy)]
struct Held {
    page: u32,
    frame: u32,
    slot: u32,
    use_pos: u64,
}

/// The lane's knowledge of a frame.
#[derive(Clone, Copy, Default)]
struct Shown {
    /// Number + 1 of the last page that was mapped to this frame; 0: none.
    page: u32,
    /// Boundary at which it was set.
    at: u64,
}

/// One lane's page table. Owned by the lane's thread.
pub struct LaneView {
    shared: Arc<Shared>,
    lane: u16,
    /// Entry of each page.
    table: Box<[u32]>,
    frames: Box<[Shown]>,
    /// Number of readable pages of each block, in planes that a step reads completely.
    full: Box<[u16]>,
    held: Vec<Held>,
    /// Pages installed by the last boundary's catch-up.
    fresh: Vec<u32>,
    cursor: u64,
    active: bool,
    epoch: u64,
    moves: u64,
    /// Counts boundaries, including begins.
    boundaries: u64,
    /// Step × planes + plane.
    position: u64,
    /// First boundary at this position.
    first_at: u64,
    /// Device copy of the table, if there is one (rule 11).
    tracks: Option<Box<dyn Tracks>>,
}

impl LaneView {
    /// Create the view of lane `lane`. Return `None` if there is no such lane, or the system has no memory for its table. There
    /// must be one view for each lane.
    #[must_use]
    pub fn new(shared: Arc<Shared>, lane: u16) -> Option<LaneView> {
        let geometry = shared.geometry();
        if usize::from(lane) >= shared.lanes.len() {
            return None;
        }
        Some(LaneView {
            table: zeroed::words(geometry.pages() as usize)?,
            frames: vec![Shown::default(); geometry.frames() as usize].into_boxed_slice(),
            full: zeroed::words(geometry.table_blocks() as usize)?,
            held: Vec::with_capacity(geometry.bounds().jobs_max as usize),
            fresh: Vec::with_capacity(geometry.frames() as usize),
            cursor: 0,
            active: false,
            epoch: 0,
            moves: 0,
            boundaries: 0,
            position: 0,
            first_at: NOT_YET,
            tracks: None,
            shared,
            lane,
        })
    }

    /// Report all table changes to `tracks` from now on, starting with the current entries (rule 11). Only between steps.
    pub fn track(&mut self, tracks: Box<dyn Tracks>) {
        self.tracks = Some(tracks);
        self.replay();
    }

    /// Report all current entries of the table to its `Tracks`.
    pub fn replay(&mut self) {
        let Some(tracks) = &mut self.tracks else { return };
        for (frame, shown) in self.frames.iter().enumerate() {
            let entry = entry_of(frame as u32);
            if let Some(page) = shown.page.checked_sub(1).filter(|page| self.table[*page as usize] == entry) {
                tracks.entry(page, entry);
            }
        }
    }

    /// Return the session's shared state.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Return the lane's number.
    #[must_use]
    pub fn lane(&self) -> u16 {
        self.lane
    }

    /// Report whether a step is open.
    #[must_use]
    pub fn active(&self) -> bool {
        self.active
    }

    /// Return the position of the last boundary: step × planes + plane.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Return a counter of the events that the mover may wait for: changes applied and holds released.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Report whether there are changes that this lane has not applied.
    #[must_use]
    pub fn behind(&self) -> bool {
        self.shared.updates() != self.cursor
    }

    /// Return a counter of the entries that this table lost. While it is unchanged, every readable page stays readable.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Open a step: the lane becomes active and applies all earlier changes. Return false, having done nothing, if a page is
    /// being moved. Retry after the mover made progress (see [`Shared::wants_quiet`]).
    pub fn begin(&mut self, step: u64) -> bool {
        // Release: the mover may load this word without ever seeing the quiescent one before it; the last step's reads must
        // come first.
        self.words().applied.store(self.cursor, Ordering::Release);
        fence(Ordering::SeqCst); // rules 6, 7 and 12: pairs with the mover's fences
        if self.shared.gate_closed() && !mutants::on(Mutant::BeginIgnoresGate) {
            self.words().applied.store(QUIESCENT, Ordering::Release);
            return false;
        }
        self.position = step * u64::from(self.shared.geometry().plane_count());
        self.first_at = NOT_YET;
        self.active = true;
        self.boundaries += 1;
        if self.shared.log.lapped(self.cursor) {
            self.rebuild();
        }
        if !mutants::on(Mutant::BeginSkipsCatchUp) {
            self.catch_up(false, |_, _| false);
        }
        true
    }

    /// Pass a boundary of `plane`: apply changes. From here on the lane reads only pages that are readable now, not those that
    /// only earlier boundaries made readable.
    pub fn boundary(&mut self, plane: u16) {
        let planes = u64::from(self.shared.geometry().plane_count());
        let position = self.position - self.position % planes + u64::from(plane);
        self.boundaries += 1;
        if position != self.position || self.first_at == NOT_YET {
            self.position = position;
            self.first_at = self.boundaries;
        }
        self.fresh.clear();
        if !self.held.is_empty() {
            self.release_held(false);
        }
        self.catch_up(true, |_, _| false);
    }

    /// Apply changes within a boundary, without giving up any page that this boundary may read.
    pub fn refresh(&mut self) {
        self.refresh_keeping(|_, _| false);
    }

    /// Apply changes within a gated step, and keep until its end the pages that the device may read already: `keeps` decides by
    /// block and plane (rule 4).
    pub fn refresh_keeping(&mut self, keeps: impl Fn(u32, u16) -> bool) {
        self.fresh.clear();
        self.catch_up(true, keeps);
    }

    /// Close the step: the lane reads nothing and holds nothing.
    pub fn end(&mut self) {
        self.mark();
        self.release_held(true);
        self.active = false;
        self.words().applied.store(QUIESCENT, Ordering::Release); // rule 2
    }

    /// Return the frame that shows a page to this lane. If the lane is active, its bytes may be read until the next boundary.
    #[must_use]
    pub fn frame(&self, block: u32, plane: u16) -> Option<u32> {
        let page = self.shared.geometry().page(block, plane)?;
        frame_of(self.table[page as usize])
    }

    /// Return the table: one entry for each page id (see `kvtide_wire::table`).
    #[must_use]
    pub fn table(&self) -> &[u32] {
        &self.table
    }

    /// Return the number of readable pages of a block, in planes that a step reads completely.
    #[must_use]
    pub fn full_pages(&self, block: u32) -> u32 {
        self.full.get(block as usize).map_or(0, |n| u32::from(*n))
    }

    /// Return the pages that the last boundary installed. A page may appear more than once, and may already be gone again.
    #[must_use]
    pub fn fresh(&self) -> &[u32] {
        &self.fresh
    }

    fn words(&self) -> &super::shared::LaneWords {
        &self.shared.lanes[usize::from(self.lane)]
    }

    /// Mark the work that this lane has enqueued (rule 11).
    fn mark(&mut self) {
        if let Some(tracks) = &mut self.tracks {
            tracks.mark();
        }
    }

    /// Follow the marks of the other lanes (rule 11).
    fn follow(&mut self) {
        if let Some(tracks) = &mut self.tracks {
            tracks.follow();
        }
    }

    /// Apply the log up to its end. With `hold`, rule 4 applies, for the pages that `keeps` names too; otherwise every invalidation
    /// takes effect at once.
    fn catch_up(&mut self, hold: bool, keeps: impl Fn(u32, u16) -> bool) {
        let end = self.shared.log.end();
        if end == self.cursor {
            return;
        }
        let mut blank = false;
        while self.cursor < end {
            let update = self.shared.log.read(self.cursor);
            self.cursor += 1;
            if update.install {
                self.install(update.page, update.frame);
                self.fresh.push(update.page);
                blank |= update.blank;
            } else if hold && (self.wants(&update) || self.keeps(&update, &keeps)) {
                self.words().holds[update.slot as usize].store(self.cursor, Ordering::Relaxed);
                let Update { page, frame, slot, use_pos, .. } = update;
                self.held.push(Held { page, frame, slot, use_pos });
            } else {
                self.clear(update.page, update.frame);
            }
        }
        if blank {
            self.follow();
        }
        self.moves += 1;
        self.mark();
        // Rule 2. Release also orders the holds above: a thread that sees an invalidation as applied also sees its hold.
        self.words().applied.store(self.cursor, Ordering::Release);
    }

    /// Report whether an invalidation must wait until this lane's use is over.
    fn wants(&self, update: &Update) -> bool {
        let ours = update.use_lane == self.lane && self.table[update.page as usize] == entry_of(update.frame);
        ours && !self.past(update.use_pos, update.frame)
    }

    /// Report whether an invalidation must wait until the gated step's end.
    fn keeps(&self, update: &Update, keeps: &impl Fn(u32, u16) -> bool) -> bool {
        let planes = self.shared.geometry().plane_count();
        let shown = self.table[update.page as usize] == entry_of(update.frame);
        let kept = shown && keeps(update.page / planes, (update.page % planes) as u16);
        kept && !mutants::on(Mutant::GatedStepKeepsNothing)
    }

    /// Report whether the use at `use_pos` of a frame's page is over. It is over if the position is greater; or if it is equal
    /// and a boundary has followed the first one at which the page was readable there.
    fn past(&self, use_pos: u64, frame: u32) -> bool {
        let readable_at = self.frames[frame as usize].at.max(self.first_at);
        self.position > use_pos
            || (self.position == use_pos && self.first_at != NOT_YET && self.boundaries > readable_at)
    }

    /// Clear the held entries that are no longer in use, or all of them.
    fn release_held(&mut self, all: bool) {
        let mut held = std::mem::take(&mut self.held);
        let mut marked = all; // `end` has already marked
        held.retain(|h| {
            let over = all || self.past(h.use_pos, h.frame);
            if over {
                if !std::mem::replace(&mut marked, true) {
                    self.mark();
                }
                self.clear(h.page, h.frame);
                self.drop_hold(h.slot, all);
                self.moves += 1;
            }
            !over
        });
        self.held = held;
    }

    /// Tell the mover that nothing is held for a job any more. Release: pairs with the mover's load in `passed`.
    fn drop_hold(&self, slot: u32, at_end: bool) {
        if !(at_end && mutants::on(Mutant::EndKeepsHolds)) {
            self.words().holds[slot as usize].store(0, Ordering::Release);
        }
    }

    fn install(&mut self, page: u32, frame: u32) {
        // A cancelled job puts its victim back, so the hold on the frame is void.
        if let Some(at) = self.held.iter().position(|h| h.frame == frame) {
            let held = self.held.swap_remove(at);
            self.drop_hold(held.slot, false);
        }
        self.frames[frame as usize] = Shown { page: page + 1, at: self.boundaries };
        let before = self.set(page, entry_of(frame));
        if frame_of(before).is_none() {
            self.count(page, 1);
        }
    }

    /// Set an entry and return the previous one.
    fn set(&mut self, page: u32, entry: u32) -> u32 {
        if let Some(tracks) = &mut self.tracks {
            tracks.entry(page, entry);
        }
        std::mem::replace(&mut self.table[page as usize], entry)
    }

    /// Clear an entry if it still shows the frame (rule 3).
    fn clear(&mut self, page: u32, frame: u32) {
        let shows = self.table[page as usize];
        if shows == entry_of(frame) || (frame_of(shows).is_some() && mutants::on(Mutant::UnconditionalInvalidate)) {
            self.set(page, ABSENT);
            self.count(page, -1);
            self.epoch += 1;
        }
    }

    fn count(&mut self, page: u32, by: i16) {
        let planes = self.shared.geometry().plane_count();
        let (block, plane) = (page / planes, page % planes);
        if self.shared.geometry().reads_all(plane as u16) {
            let full = &mut self.full[block as usize];
            *full = full.wrapping_add_signed(by);
        }
    }

    /// Rebuild the table from the frame words: the log's old entries were overwritten (rule 7). The frame words may be newer
    /// than `end`. The entries from `end` on then repeat them, which is harmless by rule 3.
    #[cold]
    fn rebuild(&mut self) {
        let end = self.shared.log.end();
        if !mutants::on(Mutant::RebuildSkipped) {
            for frame in 0..self.frames.len() as u32 {
                if let Some(page) = self.frames[frame as usize].page.checked_sub(1) {
                    self.clear(page, frame);
                }
            }
            for frame in 0..self.frames.len() as u32 {
                if let Some(page) = self.shared.shown(frame) {
                    self.install(page, frame);
                }
            }
        }
        self.epoch += 1;
        self.cursor = end;
        self.follow(); // some of these pages may have been installed without a copy
        self.mark();
        self.words().applied.store(end, Ordering::Release);
    }
}
