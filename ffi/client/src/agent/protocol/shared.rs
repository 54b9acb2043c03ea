//! State that the mover and the lanes share: the log, the master table, the frame words, and each lane's words.

use super::{ABSENT, Geometry, Pins, SeqTable, entry_of, frame_of, geometry::BadGeometry, log::Log, mutants, zeroed};
use kvtide_wire::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Master entry of a page that a job in flight will install. Reads as absent.
const PENDING: u32 = u32::MAX;
/// A lane's word while it is quiescent: beyond every log index.
pub(super) const QUIESCENT: u64 = u64::MAX;

/// A lane's words, on cache lines of their own.
#[repr(align(128))]
pub(super) struct LaneWords {
    /// Number of log updates that the lane has applied, or [`QUIESCENT`].
    pub applied: AtomicU64,
    /// For each slot of the mover's jobs, the log index after the last invalidation that the lane holds, or 0 (rule 4).
    pub holds: Box<[AtomicU64]>,
}

/// The shared part of one session's page table.
pub struct Shared {
    geometry: Geometry,
    pub(super) log: Log,
    /// Entry of each page, as the mover sees it. A lane reads by its own table only.
    master: Box<[AtomicU32]>,
    /// Page + 1 that each frame shows to lanes, 0 if none.
    shows: Box<[AtomicU32]>,
    /// Number of pages of each block that are in `master`.
    resident: Box<[AtomicU32]>,
    /// Counts how often a page was removed from `master`.
    epoch: AtomicU64,
    pub(super) lanes: Box<[LaneWords]>,
    /// 1 while no lane may begin a step (rule 12).
    gate: AtomicU32,
    /// Number of Moves that wait until no lane is in a step.
    moves: AtomicU32,
    pins: Pins,
    seqs: SeqTable,
}

impl Shared {
    /// Create an empty table.
    ///
    /// # Errors
    /// The system has no memory for the tables.
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

    /// Return the sizes.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Return the pins.
    #[must_use]
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Return the sequences.
    #[must_use]
    pub fn seqs(&self) -> &SeqTable {
        &self.seqs
    }

    /// Return how often a page was removed from the master table. While this count is unchanged, every resident page stays
    /// resident.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Return how many pages of a block are resident, as the mover sees it.
    #[must_use]
    pub fn resident_pages(&self, block: u32) -> u32 {
        self.resident.get(block as usize).map_or(0, |n| n.load(Ordering::Acquire))
    }

    /// Return the frame that shows a page, as the mover sees it. Lanes' tables may differ, so do not read the frame by it.
    #[must_use]
    pub fn resident(&self, block: u32, plane: u16) -> Option<u32> {
        let page = self.geometry.page(block, plane)?;
        self.master_frame(page)
    }

    /// Report whether a page is resident in tier 0 itself and not in a mapped frame. Only there can code other than
    /// our kernels find it.
    #[must_use]
    pub fn in_tier0(&self, block: u32, plane: u16) -> bool {
        self.resident(block, plane).is_some_and(|frame| !self.geometry.is_mapped_frame(frame))
    }

    /// Return the number of table changes so far.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.log.end()
    }

    /// Report whether every lane is between end and begin.
    #[must_use]
    pub fn quiescent(&self) -> bool {
        self.lanes.iter().all(|lane| lane.applied.load(Ordering::Acquire) == QUIESCENT)
    }

    /// Report whether a lane that is about to begin should let the mover work first. Either it may not begin, or a page could
    /// be moved now that could not be moved during the step.
    #[must_use]
    pub fn wants_quiet(&self) -> bool {
        self.gate_closed() || (self.moves.load(Ordering::Relaxed) > 0 && self.quiescent())
    }

    /// Mover: set the number of waiting Moves.
    pub(super) fn set_moves(&self, count: usize) {
        self.moves.store(count as u32, Ordering::Relaxed);
    }

    /// Mover: close the gate unless a lane is in a step (rule 12).
    pub(super) fn close_gate(&self) -> bool {
        self.gate.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // pairs with the fence in LaneView::begin
        let quiet = self.quiescent() || mutants::on(mutants::Mutant::MoveInStep);
        if !quiet {
            self.open_gate();
        }
        quiet
    }

    /// Mover: let lanes begin again; they see the logged updates.
    pub(super) fn open_gate(&self) {
        self.gate.store(0, Ordering::Release); // pairs with the load in `gate_closed`
    }

    /// Active lane, after its SeqCst fence: report whether it must not be active.
    pub(super) fn gate_closed(&self) -> bool {
        self.gate.load(Ordering::Acquire) != 0
    }

    pub(super) fn master_frame(&self, page: u32) -> Option<u32> {
        let entry = self.master[page as usize].load(Ordering::Acquire);
        if entry == PENDING { None } else { frame_of(entry) }
    }

    /// Report whether a job in flight will install the page.
    pub(super) fn master_pending(&self, page: u32) -> bool {
        self.master[page as usize].load(Ordering::Relaxed) == PENDING
    }

    pub(super) fn set_pending(&self, page: u32) {
        self.master[page as usize].store(PENDING, Ordering::Relaxed);
    }

    pub(super) fn clear_pending(&self, page: u32) {
        self.master[page as usize].store(ABSENT, Ordering::Relaxed);
    }

    /// Enter a page into the master table. Release: pairs with the pinner's and the channels' loads.
    pub(super) fn enter(&self, page: u32, frame: u32) {
        self.master[page as usize].store(entry_of(frame), Ordering::Release);
        self.resident[(page / self.geometry.plane_count()) as usize].fetch_add(1, Ordering::Release);
    }

    /// Remove a page from the master table; lanes' tables do not change. The caller's SeqCst fence must follow (rule 8).
    pub(super) fn leave(&self, page: u32) {
        self.epoch.fetch_add(1, Ordering::Release);
        self.master[page as usize].store(ABSENT, Ordering::Release);
        self.resident[(page / self.geometry.plane_count()) as usize].fetch_sub(1, Ordering::Release);
    }

    /// Return the page that a frame shows to lanes. Acquire: pairs with `show`, so a caller that finds a page may read the
    /// frame's bytes.
    pub(super) fn shown(&self, frame: u32) -> Option<u32> {
        self.shows[frame as usize].load(Ordering::Acquire).checked_sub(1)
    }

    pub(super) fn show(&self, frame: u32, page: Option<u32>) {
        self.shows[frame as usize].store(page.map_or(0, |p| p + 1), Ordering::Release);
    }

    /// Return the number of log updates that every active lane has applied; [`QUIESCENT`] if no lane is active.
    pub(super) fn applied_by_all(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.applied.load(Ordering::Acquire)).min().unwrap_or(QUIESCENT)
    }

    /// Report whether no lane can read the pages that a job's invalidations removed (rule 5), which have the log indices from `before`
    /// to `after`. A lane's hold word is the index after the last of them that it holds; a smaller value is left from the slot's
    /// earlier job.
    pub(super) fn passed(&self, (before, after): (u64, u64), slot: u32) -> bool {
        if mutants::on(mutants::Mutant::NoBoundaryWait) {
            return true;
        }
        self.lanes.iter().all(|lane| {
            let applied = lane.applied.load(Ordering::Acquire);
            let held = || (before + 1..=after).contains(&lane.holds[slot as usize].load(Ordering::Acquire));
            applied == QUIESCENT || (applied >= after && !held())
        })
    }

    /// Mover: claim the log indices below `limit`. Return whether active lanes leave room for them (rule 7).
    pub(super) fn claim(&self, limit: u64) -> bool {
        self.log.claim(limit);
        fence(Ordering::SeqCst); // pairs with the fence in LaneView::begin
        let applied = self.applied_by_all();
        applied == QUIESCENT || limit - applied.min(limit) <= self.log.capacity()
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("updates", &self.log.end()).field("epoch", &self.epoch()).finish_non_exhaustive()
    }
}
