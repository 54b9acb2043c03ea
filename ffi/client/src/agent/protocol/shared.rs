//! What the mover and the lanes share: the log, the master table, the frame words, one word a lane.

use super::{ABSENT, Geometry, Pins, SeqTable, entry_of, frame_of, geometry::BadGeometry, log::Log, mutants, zeroed};
use kvtide_wire::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Master entry of a page that a job in flight will publish. Reads as absent.
const PENDING: u32 = u32::MAX;
/// A lane's word while it is quiescent: beyond every log index.
pub(super) const QUIESCENT: u64 = u64::MAX;

/// A lane's words, alone on their cache lines.
#[repr(align(128))]
pub(super) struct LaneWords {
    /// Log updates that the lane has applied, or [`QUIESCENT`].
    pub applied: AtomicU64,
    /// For each slot of the mover's jobs: the log index after the unpublish that the lane holds, or 0 (rule 4).
    pub holds: Box<[AtomicU64]>,
}

/// The shared part of one session's page table.
pub struct Shared {
    geometry: Geometry,
    pub(super) log: Log,
    /// Entry of each page, as the mover sees it; for lanes only their own table counts.
    master: Box<[AtomicU32]>,
    /// Page + 1 that each frame shows to lanes, 0 if none.
    shows: Box<[AtomicU32]>,
    /// Pages of each block that are in `master`.
    resident: Box<[AtomicU32]>,
    /// Counts the times that a page left `master`.
    epoch: AtomicU64,
    pub(super) lanes: Box<[LaneWords]>,
    /// 1 while no lane may begin a step (rule 12).
    gate: AtomicU32,
    /// Moves that wait for a moment in which no lane is in a step.
    moves: AtomicU32,
    pins: Pins,
    seqs: SeqTable,
}

impl Shared {
    /// An empty table.
    ///
    /// # Errors
    /// The system has no room for the tables of so many blocks.
    pub fn new(geometry: Geometry) -> Result<Shared, BadGeometry> {
        Self::allocate(geometry).ok_or(BadGeometry::NO_ROOM)
    }

    fn allocate(geometry: Geometry) -> Option<Shared> {
        let bounds = *geometry.bounds();
        let lane = || {
            let holds = zeroed::words(bounds.jobs_max as usize)?;
            Some(LaneWords { applied: AtomicU64::new(QUIESCENT), holds })
        };
        Some(Shared {
            log: Log::new(bounds.log_entries)?,
            master: zeroed::words(geometry.pages() as usize)?,
            shows: zeroed::words(geometry.frames() as usize)?,
            resident: zeroed::words(geometry.table_blocks() as usize)?,
            epoch: AtomicU64::new(0),
            lanes: (0..bounds.lanes).map(|_| lane()).collect::<Option<_>>()?,
            gate: AtomicU32::new(0),
            moves: AtomicU32::new(0),
            pins: Pins::new(geometry.table_blocks(), bounds.pins_max)?,
            seqs: SeqTable::new(bounds.seqs_max, bounds.seq_blocks_max)?,
            geometry,
        })
    }

    /// The sizes.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The pins.
    #[must_use]
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// The sequences.
    #[must_use]
    pub fn seqs(&self) -> &SeqTable {
        &self.seqs
    }

    /// Counts the times that a page left the master table: while it stands still, what was resident is resident.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Pages of a block that are resident for the mover.
    #[must_use]
    pub fn resident_pages(&self, block: u32) -> u32 {
        self.resident.get(block as usize).map_or(0, |n| n.load(Ordering::Acquire))
    }

    /// The frame that shows a page for the mover. Says nothing about any lane's table; not for reading the frame.
    #[must_use]
    pub fn resident(&self, block: u32, plane: u16) -> Option<u32> {
        let page = self.geometry.page(block, plane)?;
        self.master_frame(page)
    }

    /// Whether a page is resident in tier 0 itself, not in a window: others than our kernels find it there.
    #[must_use]
    pub fn in_tier0(&self, block: u32, plane: u16) -> bool {
        self.resident(block, plane).is_some_and(|frame| !self.geometry.is_window(frame))
    }

    /// Changes of the table so far.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.log.end()
    }

    /// Whether every lane is between end and begin.
    #[must_use]
    pub fn quiescent(&self) -> bool {
        self.lanes.iter().all(|lane| lane.applied.load(Ordering::Acquire) == QUIESCENT)
    }

    /// Whether a lane that is about to begin should let the mover work first: it may not begin, or it would keep a page from
    /// being moved that could be moved now.
    #[must_use]
    pub fn wants_quiet(&self) -> bool {
        self.gate_closed() || (self.moves.load(Ordering::Relaxed) > 0 && self.quiescent())
    }

    /// Mover: Moves that wait.
    pub(super) fn set_moves(&self, count: usize) {
        self.moves.store(count as u32, Ordering::Relaxed);
    }

    /// Mover: closes the gate unless a lane is in a step (rule 12).
    pub(super) fn close_gate(&self) -> bool {
        self.gate.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // pairs with the one in LaneView::begin
        let quiet = self.quiescent() || mutants::on(mutants::Mutant::MoveInStep);
        if !quiet {
            self.open_gate();
        }
        quiet
    }

    /// Mover: lanes may begin again, and see what was logged.
    pub(super) fn open_gate(&self) {
        self.gate.store(0, Ordering::Release); // pairs with the load below
    }

    /// Lane that is active, after its SeqCst fence: whether it must not be.
    pub(super) fn gate_closed(&self) -> bool {
        self.gate.load(Ordering::Acquire) != 0
    }

    pub(super) fn master_frame(&self, page: u32) -> Option<u32> {
        let entry = self.master[page as usize].load(Ordering::Acquire);
        if entry == PENDING { None } else { frame_of(entry) }
    }

    /// Whether a job in flight will publish the page.
    pub(super) fn master_pending(&self, page: u32) -> bool {
        self.master[page as usize].load(Ordering::Relaxed) == PENDING
    }

    pub(super) fn set_pending(&self, page: u32) {
        self.master[page as usize].store(PENDING, Ordering::Relaxed);
    }

    pub(super) fn clear_pending(&self, page: u32) {
        self.master[page as usize].store(ABSENT, Ordering::Relaxed);
    }

    /// Puts a page into the master table. Release: pairs with the pinner's and the channels' loads.
    pub(super) fn enter(&self, page: u32, frame: u32) {
        self.master[page as usize].store(entry_of(frame), Ordering::Release);
        self.resident[(page / self.geometry.plane_count()) as usize].fetch_add(1, Ordering::Release);
    }

    /// Takes a page out of the master table (lanes do not notice). The caller's SeqCst fence follows (rule 8).
    pub(super) fn leave(&self, page: u32) {
        self.epoch.fetch_add(1, Ordering::Release);
        self.master[page as usize].store(ABSENT, Ordering::Release);
        self.resident[(page / self.geometry.plane_count()) as usize].fetch_sub(1, Ordering::Release);
    }

    /// The page that a frame shows to lanes. Acquire: pairs with `show`, so that who finds it may read the frame's bytes.
    pub(super) fn shown(&self, frame: u32) -> Option<u32> {
        self.shows[frame as usize].load(Ordering::Acquire).checked_sub(1)
    }

    pub(super) fn show(&self, frame: u32, page: Option<u32>) {
        self.shows[frame as usize].store(page.map_or(0, |p| p + 1), Ordering::Release);
    }

    /// Log updates that every active lane has applied; [`QUIESCENT`] if no lane is active.
    pub(super) fn applied_by_all(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.applied.load(Ordering::Acquire)).min().unwrap_or(QUIESCENT)
    }

    /// Whether no lane can read what an unpublish took away (rule 5). `after` is the log index after it.
    pub(super) fn passed(&self, after: u64, use_lane: u16, slot: u32) -> bool {
        if mutants::on(mutants::Mutant::NoBoundaryWait) {
            return true;
        }
        self.lanes.iter().enumerate().all(|(index, lane)| {
            let applied = lane.applied.load(Ordering::Acquire);
            let held = || lane.holds[slot as usize].load(Ordering::Acquire) == after;
            applied == QUIESCENT || (applied >= after && !(index == usize::from(use_lane) && held()))
        })
    }

    /// Mover: claims log indices below `limit` and says whether active lanes leave room for them (rule 7).
    pub(super) fn claim(&self, limit: u64) -> bool {
        self.log.claim(limit);
        fence(Ordering::SeqCst); // pairs with the one in LaneView::begin
        let applied = self.applied_by_all();
        applied == QUIESCENT || limit - applied.min(limit) <= self.log.capacity()
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("updates", &self.log.end()).field("epoch", &self.epoch()).finish_non_exhaustive()
    }
}
