//! A lane's own page table: what changes take effect at its boundaries, and when.

use super::{
    ABSENT, Shared, Tracks, entry_of, frame_of,
    log::Update,
    mutants::{self, Mutant},
    shared::QUIESCENT,
    zeroed,
};
use kvtide_wire::sync::{Ordering, fence};
use std::sync::Arc;

/// `first_at` before the step's first boundary.
const NOT_YET: u64 = u64::MAX;

/// An unpublish that waits for this lane's use to be over (rule 4).
#[derive(Clone, Copy)]
struct Held {
    page: u32,
    frame: u32,
    slot: u32,
    use_pos: u64,
}

/// What the lane's table knows of a frame.
#[derive(Clone, Copy, Default)]
struct Shown {
    /// Page + 1 whose entry was last set to this frame, 0 if none.
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
    /// Readable pages of each block in planes of which a step reads everything.
    full: Box<[u16]>,
    held: Vec<Held>,
    /// Pages published by the last boundary's catch-up.
    fresh: Vec<u32>,
    cursor: u64,
    active: bool,
    epoch: u64,
    moves: u64,
    /// Counts boundaries, begins included.
    boundaries: u64,
    /// Step × planes + plane.
    position: u64,
    /// First boundary at this position.
    first_at: u64,
    /// Rule 11.
    tracks: Option<Box<dyn Tracks>>,
}

impl LaneView {
    /// The view of lane `lane`; `None` if there is no such lane, or the system has no room for its table. One view a lane.
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

    /// Has `tracks` follow the table from now on; it is told first what the table shows (rule 11). Between steps only.
    pub fn track(&mut self, tracks: Box<dyn Tracks>) {
        self.tracks = Some(tracks);
        self.replay();
    }

    /// Tells what follows the table all that the table shows.
    pub fn replay(&mut self) {
        let Some(tracks) = &mut self.tracks else { return };
        for (frame, shown) in self.frames.iter().enumerate() {
            let entry = entry_of(frame as u32);
            if let Some(page) = shown.page.checked_sub(1).filter(|page| self.table[*page as usize] == entry) {
                tracks.entry(page, entry);
            }
        }
    }

    /// What the session shares.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Which lane it is.
    #[must_use]
    pub fn lane(&self) -> u16 {
        self.lane
    }

    /// Whether a step is open.
    #[must_use]
    pub fn active(&self) -> bool {
        self.active
    }

    /// Step × planes + plane of the last boundary.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Counts what the mover may wait for: changes applied and holds released.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Whether there are changes that this lane has not applied.
    #[must_use]
    pub fn behind(&self) -> bool {
        self.shared.updates() != self.cursor
    }

    /// Counts the entries that this table lost: while it stands still, what was readable is readable.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Opens a step: the lane is active, and has applied all that happened before. False: a page is being moved, nothing was
    /// done; to be tried again after the mover made progress (see [`Shared::wants_quiet`]).
    pub fn begin(&mut self, step: u64) -> bool {
        // Release: the mover may find this word and never the quiescent one before it; the last step's reads come first.
        self.words().applied.store(self.cursor, Ordering::Release);
        fence(Ordering::SeqCst); // rules 6, 7 and 12: pairs with those of the mover
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
            self.catch_up(false);
        }
        true
    }

    /// A boundary of `plane`: applies what changed. What earlier boundaries made readable is not read any more, but for
    /// what is readable now.
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
        self.catch_up(true);
    }

    /// Looks again within a boundary: applies what changed, and gives up nothing that this boundary may read.
    pub fn refresh(&mut self) {
        self.fresh.clear();
        self.catch_up(true);
    }

    /// Closes the step: the lane reads nothing and holds nothing.
    pub fn end(&mut self) {
        self.mark();
        self.release_held(true);
        self.active = false;
        self.words().applied.store(QUIESCENT, Ordering::Release); // rule 2
    }

    /// The frame that shows a page to this lane. Its bytes may be read until the next boundary, if the lane is active.
    #[must_use]
    pub fn frame(&self, block: u32, plane: u16) -> Option<u32> {
        let page = self.shared.geometry().page(block, plane)?;
        frame_of(self.table[page as usize])
    }

    /// The table: one entry a page id (see `kvtide_wire::table`).
    #[must_use]
    pub fn table(&self) -> &[u32] {
        &self.table
    }

    /// Readable pages of a block in planes of which a step reads everything.
    #[must_use]
    pub fn full_pages(&self, block: u32) -> u32 {
        self.full.get(block as usize).map_or(0, |n| u32::from(*n))
    }

    /// Pages that the last boundary published, perhaps more than once; some may be gone again.
    #[must_use]
    pub fn fresh(&self) -> &[u32] {
        &self.fresh
    }

    fn words(&self) -> &super::shared::LaneWords {
        &self.shared.lanes[usize::from(self.lane)]
    }

    /// Rule 11.
    fn mark(&mut self) {
        if let Some(tracks) = &mut self.tracks {
            tracks.mark();
        }
    }

    /// Rule 11.
    fn follow(&mut self) {
        if let Some(tracks) = &mut self.tracks {
            tracks.follow();
        }
    }

    /// Applies the log to its end; `hold`: as rule 4 says, or else at once.
    fn catch_up(&mut self, hold: bool) {
        let end = self.shared.log.end();
        if end == self.cursor {
            return;
        }
        let mut blank = false;
        while self.cursor < end {
            let update = self.shared.log.read(self.cursor);
            self.cursor += 1;
            if update.publish {
                self.publish(update.page, update.frame);
                self.fresh.push(update.page);
                blank |= update.blank;
            } else if hold && self.wants(&update) {
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
        // Rule 2. Release also orders the holds above: who sees that an unpublish was applied sees that it is held.
        self.words().applied.store(self.cursor, Ordering::Release);
    }

    /// Whether an unpublish must wait until this lane's use is over.
    fn wants(&self, update: &Update) -> bool {
        let ours = update.use_lane == self.lane && self.table[update.page as usize] == entry_of(update.frame);
        ours && !self.past(update.use_pos, update.frame)
    }

    /// Whether the use at `use_pos` of what a frame shows is over: the position is greater, or equal and a boundary has
    /// followed the one at which it was readable there for the first time.
    fn past(&self, use_pos: u64, frame: u32) -> bool {
        let readable_at = self.frames[frame as usize].at.max(self.first_at);
        self.position > use_pos
            || (self.position == use_pos && self.first_at != NOT_YET && self.boundaries > readable_at)
    }

    /// Clears the held entries whose use is over, or all.
    fn release_held(&mut self, all: bool) {
        let mut held = std::mem::take(&mut self.held);
        let mut marked = all; // `end` has marked
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

    /// Tells the mover that nothing is held for a job any more. Release: pairs with the mover's load in `passed`.
    fn drop_hold(&self, slot: u32, at_end: bool) {
        if !(at_end && mutants::on(Mutant::EndKeepsHolds)) {
            self.words().holds[slot as usize].store(0, Ordering::Release);
        }
    }

    fn publish(&mut self, page: u32, frame: u32) {
        // A cancelled job puts its victim back: what was held for it is void.
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

    /// Changes an entry; the one before.
    fn set(&mut self, page: u32, entry: u32) -> u32 {
        if let Some(tracks) = &mut self.tracks {
            tracks.entry(page, entry);
        }
        std::mem::replace(&mut self.table[page as usize], entry)
    }

    /// Rule 3.
    fn clear(&mut self, page: u32, frame: u32) {
        let shows = self.table[page as usize];
        if shows == entry_of(frame) || (frame_of(shows).is_some() && mutants::on(Mutant::UnconditionalUnpublish)) {
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

    /// Rule 7: the log's old entries are gone; the frame words say what the table must hold. They may be newer than `end`,
    /// which the entries from `end` on then repeat (rule 3 makes that harmless).
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
                    self.publish(page, frame);
                }
            }
        }
        self.epoch += 1;
        self.cursor = end;
        self.follow(); // some of these pages may be blank
        self.mark();
        self.words().applied.store(end, Ordering::Release);
    }
}
