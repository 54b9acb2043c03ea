//! Boundaries of a lane: updates to the table, and block tables built from it.

/// Value of the status word after an update for a page beyond the table, or a boundary with more updates than the ring holds.
pub const BAD_UPDATE: u32 = 0xffff_fffe;

/// One change of a lane's table: the page's id and its new entry (0: absent, else frame + 1).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundaryUpdate {
    /// Page id: block × planes + plane.
    pub page: u32,
    /// The entry, as `kvtide_wire::table` encodes it.
    pub entry: u32,
}

/// Read by `boundary_apply` at run time from host memory that the device can access, 16-byte aligned. The host writes it before it
/// releases the word for which the stream waits.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundaryWords {
    /// Free-running index of the first update.
    pub first: u32,
    /// Number of updates. If the ring holds fewer, none is applied and the status word is set.
    pub count: u32,
    /// 0, or the reason why this boundary failed: written to the lane's status word, which keeps the first failure.
    pub status: u32,
    /// 0.
    pub reserved: u32,
}

/// `boundary_apply`: one CTA writes a ring's updates to a lane's table, in ring order; the later of two updates for a page wins.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BoundaryApplyParams {
    /// `u32[pages]`: the table.
    pub table: u64,
    /// `BoundaryUpdate[mask + 1]`: the ring, on the device or in host memory.
    pub updates: u64,
    /// `BoundaryWords`, or 0: then `first` and `count` below apply.
    pub words: u64,
    /// `u32`: the lane's status word, or 0.
    pub status: u64,
    /// Free-running index of the first update.
    pub first: u32,
    /// Number of updates, at most mask + 1.
    pub count: u32,
    /// Slots of the ring, a power of two, less one.
    pub mask: u32,
    /// Entries of the table. An update beyond it is not applied and sets the status word.
    pub pages: u32,
}

/// State of a lane's gates, in device memory. Only kernels of the lane's stream access it. All zero: the gates are closed, and every
/// gate returns at once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateState {
    /// Number of the gated step, from 1.
    pub step: u64,
    /// Equal to `step` once every plane of the step is complete and its updates are applied.
    pub ready: u64,
    /// Free-running index of the next update to apply.
    pub next: u32,
    /// 0.
    pub reserved: u32,
}

/// What the host supplies for a plane of a gated step, in host memory that the device can access.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateWords {
    /// Number of the last step in which the plane is complete. Written last, with release.
    pub word: u64,
    /// Free-running index after the last update of the plane.
    pub end: u32,
    /// 0, or the reason why this plane failed: written to the lane's status word, which keeps the first failure.
    pub status: u32,
    /// 1: the later planes of the step are complete too, with these updates.
    pub all: u32,
    /// 0.
    pub reserved: [u32; 3],
}

/// `gate_open`: one thread begins a gated step.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GateOpenParams {
    /// [`GateState`].
    pub state: u64,
    /// Number of the step.
    pub step: u64,
    /// Free-running index of the step's first update.
    pub next: u32,
    /// 0.
    pub reserved: u32,
}

/// `boundary_gate`: one CTA waits until a plane of the gated step is complete, then writes the updates since the last gate to the
/// lane's table, as `boundary_apply` does. It holds nothing of one step, so a captured graph may contain it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BoundaryGateParams {
    /// [`GateState`].
    pub state: u64,
    /// `GateWords[slots_mask + 1][planes]`, 16-byte aligned: step `s` uses slot `s & slots_mask`.
    pub words: u64,
    /// `u32[pages]`: the table.
    pub table: u64,
    /// `BoundaryUpdate[mask + 1]`: the ring, on the device or in host memory.
    pub updates: u64,
    /// `u32`: the lane's status word, or 0.
    pub status: u64,
    /// Plane of the gate.
    pub plane: u32,
    /// Planes of the table.
    pub planes: u32,
    /// Slots of words, a power of two, less one.
    pub slots_mask: u32,
    /// Slots of the ring, a power of two, less one.
    pub mask: u32,
    /// Entries of the table. An update beyond it is not applied and sets the status word.
    pub pages: u32,
    /// 0.
    pub reserved: u32,
}

/// `boundary_tables`: builds block tables and miss bits of a batch for a range of planes of one class.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BoundaryTablesParams {
    /// `u32[blocks × planes]`: the table.
    pub table: u64,
    /// `i32[seqs][max_blocks]`: block ids; negative is no block.
    pub block_ids: u64,
    /// `i32[seqs]`: tokens that attention covers.
    pub lengths: u64,
    /// `i32[seqs]`: first token that attention covers (a window), or 0 for none.
    pub starts: u64,
    /// Out, `i32[plane_count][seqs][max_blocks]`: frame − first_frame, or `absent`; or 0.
    pub block_tables: u64,
    /// Out, `u32[plane_count][seqs][⌈max_blocks / 32⌉]`: bit i of word w is set if page 32w + i is needed and absent; or 0.
    pub misses: u64,
    /// `u32`: the lane's status word, or 0. While it is set, every page is absent.
    pub status: u64,
    /// Sequences of the batch.
    pub seqs: u32,
    /// Columns of `block_ids`.
    pub max_blocks: u32,
    /// Planes of the table.
    pub planes: u32,
    /// The first plane of the range.
    pub plane: u32,
    /// Number of planes.
    pub plane_count: u32,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Blocks of the table. A block id beyond it is absent.
    pub blocks: u32,
    /// First frame of the planes' class.
    pub first_frame: u32,
    /// Entry of an absent page: −1, or a number that an unmodified kernel may read without harm.
    pub absent: i32,
    /// Frames of the class, from its first, that tables may contain. A page in another frame is absent.
    pub frames: u32,
}
