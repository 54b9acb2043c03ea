//! Inputs and outputs of the core: plain data without behaviour.
//!
//! The core is sans-IO: `Core::handle(now_us, event, &mut actions)`. It owns no socket, thread, clock, file or KV data. One thread
//! owns the core of one space.

pub use crate::predict::Scoring;
use serde::{Deserialize, Serialize};

/// Block id, dense within a space. A block is the pages of all planes of one shard at one page index.
pub type BlockId = u32;
/// Frame of one session's tier 0, dense over all size classes: class by class, in class order.
pub type FrameId = u32;
/// Index of a sequence among those of its session.
pub type SeqId = u32;
/// Lane of a session.
pub type LaneId = u16;
/// Session of the space: an index, reused only after [`Action::SessionGone`].
pub type SessionId = u16;
/// No block, frame or sequence.
pub const NONE: u32 = u32::MAX;

/// Result of a request or a job. The names equal the status codes of the C ABI; the daemon maps them one to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)] // documented once, at kvtide_wire::Status
pub enum Status {
    Ok,
    Again,
    Invalid,
    NotFound,
    Range,
    NoSpace,
    TooBig,
    Busy,
    TimedOut,
    Canceled,
    Lost,
    Io,
    NotAdmitted,
    Limit,
    State,
    Internal,
    Corrupt,
}

/// Contents of a plane's pages, and the pages that a step reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PlaneKind {
    /// Attention over all tokens.
    Full,
    /// Attention over the last `tokens` tokens.
    Window {
        /// Width of the window.
        tokens: u32,
    },
    /// Recurrent state: only the newest snapshot is read.
    State,
}

/// One plane of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plane {
    /// Bytes of one page.
    pub page_bytes: u32,
    /// Contents, and the pages that a step reads.
    pub kind: PlaneKind,
}

/// Properties of a space that are fixed for its lifetime. Planes with equal `page_bytes` form a size class. Classes are numbered in
/// the order in which their first plane appears.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceConfig {
    /// Tokens per page.
    pub page_tokens: u32,
    /// Planes of one shard, in the order in which a step visits them. All shards have the same planes.
    pub planes: Vec<Plane>,
    /// Number of shards: tensor-, pipeline- or context-parallel ranks. A lookup finds a block only when every shard has published
    /// its part.
    pub shards: u16,
    /// Limits. A request above a limit fails with [`Status::Limit`].
    pub limits: Limits,
    /// Policy.
    pub policy: Policy,
}

/// Limits of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum number of sessions attached at the same time.
    pub sessions_max: u16,
    /// Maximum number of blocks of the space, sealed or not, in any tier.
    pub blocks_max: u32,
    /// Maximum number of sequences per session.
    pub seqs_max: u32,
    /// Maximum number of blocks per sequence.
    pub seq_blocks_max: u32,
    /// Maximum number of lanes per session.
    pub lanes_max: u16,
    /// Maximum number of jobs in flight per session: the depth of its job ring.
    pub jobs_max: u32,
    /// Maximum number of requests in flight per session: channels × depth.
    pub requests_max: u32,
    /// Maximum bytes of host frames that the space holds over all classes.
    pub host_bytes_max: u64,
    /// Maximum bytes of NVMe slots that the space holds; 0: no NVMe tier.
    pub nvme_bytes_max: u64,
    /// Maximum number of transfers between host and NVMe in flight.
    pub ios_max: u32,
    /// Maximum number of cached blocks, including those only on NVMe.
    pub contents_max: u32,
    /// Maximum number of requests to the index logs in flight: records, erasures, flushes.
    pub notes_max: u32,
}

/// Which published blocks are written to NVMe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Admission {
    /// All published blocks. While the write budget is short, previously used blocks come first.
    #[default]
    All,
    /// Blocks that were looked up again, or for which a request asked for [`Level::Stored`] or more.
    SecondTouch,
    /// All blocks, or only those looked up again, as the write budget allows.
    Budget,
}

/// Order in which unreferenced published blocks are evicted from host memory and NVMe. In every order, a block is evicted after its
/// descendants in the prefix tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// Least recently used first; of blocks used at the same time, the deepest first.
    Lru,
    /// S3-FIFO: a small queue for blocks used once, a main queue for the rest; used blocks get a second chance instead of a move.
    S3Fifo,
    /// ARC: balances recency against frequency, and learns the balance from hits on recently evicted blocks.
    Arc,
    /// Smallest expected gain first: probability of reuse × saving of a hit.
    CostAware,
    /// The policy, or blend of policies, with the best sampled hit rate.
    #[default]
    Auto,
}

/// Which pages of `approx` sequences are kept in tier 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attention {
    /// How pages are ranked.
    pub policy: Scoring,
    /// Drop pages that are not kept instead of demoting them. A dropped page without another reference cannot be read any more.
    pub drop: bool,
    /// Number of first pages of a sequence that are always kept; at least 1.
    pub sinks: u16,
    /// Number of last sealed pages that are always kept; at least 2.
    pub recent: u16,
    /// Percent of the measured host-to-tier-0 bandwidth that predicted loads may use, 1 to 100.
    pub bandwidth_percent: u8,
}

impl Default for Attention {
    fn default() -> Self {
        Attention { policy: Scoring::Attention, drop: false, sinks: 1, recent: 2, bandwidth_percent: 90 }
    }
}

impl Eviction {
    /// All policies with their names in configuration files and tools.
    pub const NAMES: [(&'static str, Eviction); 5] = [
        ("lru", Eviction::Lru),
        ("s3-fifo", Eviction::S3Fifo),
        ("arc", Eviction::Arc),
        ("cost-aware", Eviction::CostAware),
        ("auto", Eviction::Auto),
    ];

    /// Return the policy's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Eviction::NAMES.iter().find(|(_, e)| *e == self).map_or("", |(name, _)| name)
    }

    /// Return the policy with this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Eviction> {
        Eviction::NAMES.iter().find(|(n, _)| *n == name).map(|(_, e)| *e)
    }
}

/// Further rules for how long unreferenced published blocks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Retention {
    /// Maximum age in microseconds since the last use; an older block is evicted after at most another tenth of it. 0: no maximum.
    pub ttl_us: u64,
    /// While blocks of high-priority sequences are at most this percentage of all blocks, they are evicted after all others.
    pub high_share_percent: u8,
    /// Tokens per second that the engine computes at the beginning of a sequence, over all shards. 0: unknown; every hit then has
    /// equal value.
    pub recompute_tokens_per_s: u32,
    /// Position in tokens at which attention over the preceding tokens takes as long as all other computation for a token. 0:
    /// attention takes no time.
    pub attention_doubles_at: u32,
    /// A sequence with at most this number of remaining tokens is nearly finished: its blocks will soon be free. 0: no sequence
    /// counts as nearly finished.
    pub ending_tokens: u32,
}

impl Retention {
    /// No maximum age, half of the capacity for high priority, and the computing speed of a model with 8B parameters on one GPU.
    ///
    /// Such a model (32 layers of 4,096 query channels) needs 2 × 7.5 × 10^9 operations per token for its weights. Attention needs
    /// 4 × 32 × 4,096 more for each preceding token (Chowdhery et al., PaLM, appendix B: 12 per training token, a third of it
    /// forward). Both are equal at 28,600 tokens. A GPU of 990 × 10^12 dense bf16 operations per second (H100 SXM data sheet) at
    /// half of its peak computes 33,000 tokens per second.
    pub const DEFAULT: Retention = Retention {
        ttl_us: 0,
        high_share_percent: 50,
        recompute_tokens_per_s: 30_000,
        attention_doubles_at: 30_000,
        ending_tokens: 32,
    };
}

impl Default for Retention {
    fn default() -> Retention {
        Retention::DEFAULT
    }
}

/// Policy of a space: settings that never change a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Write-back of a tier-0 class starts when less than this percentage of its frames is free or clean.
    pub clean_low_percent: u8,
    /// Write-back of a tier-0 class stops at this percentage.
    pub clean_high_percent: u8,
    /// Percentage of host frames in use above which unreferenced published blocks are evicted from host memory, in the order of
    /// `eviction`: to NVMe, or dropped if there is none.
    pub host_high_percent: u8,
    /// Percentage of host frames in use at which that eviction stops.
    pub host_low_percent: u8,
    /// Write-back to NVMe starts when less than this percentage of a class's host frames is free or has a copy on NVMe.
    pub host_clean_low_percent: u8,
    /// Percentage at which that write-back stops.
    pub host_clean_high_percent: u8,
    /// Host frames per class that stream the pages of a scan larger than tier 0 and host together. The other frames keep a fixed
    /// part of the scan.
    pub host_scan_frames: u32,
    /// Percentage of NVMe slots in use above which unreferenced published blocks are dropped, in the order of `eviction`.
    pub nvme_high_percent: u8,
    /// Percentage of NVMe slots in use at which dropping stops.
    pub nvme_low_percent: u8,
    /// Which published blocks are written to NVMe.
    pub nvme_admission: Admission,
    /// Bytes that may be written to NVMe per day; 0: unlimited.
    pub nvme_bytes_per_day: u64,
    /// Order in which unreferenced published blocks are evicted.
    pub eviction: Eviction,
    /// Further rules for how long they are kept.
    pub retention: Retention,
    /// Tier-0 frames per class that stream the pages of a cyclic scan. The other frames keep a fixed part of the scan resident.
    pub scan_frames: u32,
    /// Attention-driven prefetch for `approx` sequences.
    pub attention: Attention,
    /// Deadline in microseconds of requests that specify none.
    pub request_timeout_us: u64,
    /// Maximum duration of a lease, in microseconds.
    pub lease_us_max: u64,
    /// Maximum percentage of the capacity of host and NVMe that the leases of one session may pin, if its shard has other sessions.
    pub lease_percent: u8,
}

/// Durability of a published block, as requested and as reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// Findable while the daemon lives.
    Published,
    /// Survives `kill -9`.
    Stored,
    /// Survives power loss.
    Durable,
}

/// Hint from an engine about its future use of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)] // documented once, at kvtide_wire::entry::Advice
pub enum Advice {
    WillNeed,
    DontNeed,
    Sequential,
    Cold,
    Priority(u8),
    Remaining(u32),
}

/// How much of a sequence attention must read. Every sequence starts as [`Contract::Exact`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Contract {
    /// Every page; a late page is awaited.
    #[default]
    Exact,
    /// The best pages.
    Approx {
        /// Thousandths of a plane's pages, 1 to 1000.
        permille: u16,
    },
    /// Every page except those that provably hold almost no attention mass.
    Bounded {
        /// Millionths of a query head's mass that may be skipped, 0 to 1,000,000.
        ppm: u32,
    },
}

/// Meaning of the shares in [`Event::Scores`]; documented at `kvtide_wire::score::ScoreKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ScoreKind {
    Mass,
    Query,
    Ahead,
}

/// A request of an engine; the operations are documented at `kvtide_wire::entry::Op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Request<'a> {
    Nop,
    SeqCreate {
        seq: SeqId,
    },
    SeqDrop {
        seq: SeqId,
    },
    /// `seq` is `None` for the session's own reserve.
    Reserve {
        seq: Option<SeqId>,
        count: u32,
    },
    Bind {
        seq: SeqId,
        block: BlockId,
    },
    Commit {
        seq: SeqId,
        tokens: u64,
    },
    Fork {
        parent: SeqId,
        child: SeqId,
    },
    Truncate {
        seq: SeqId,
        tokens: u64,
    },
    Publish {
        seq: SeqId,
        first: u32,
        parent: u128,
        hashes: &'a [u128],
        level: Level,
    },
    Map {
        seq: SeqId,
        hashes: &'a [u128],
    },
    Park {
        seq: SeqId,
        due_us: u64,
    },
    Resume {
        seq: SeqId,
    },
    Advise {
        seq: SeqId,
        first: u32,
        count: u32,
        advice: Advice,
    },
    Acquire {
        seq: SeqId,
        plane: u16,
        planes: u16,
        first: u32,
        count: u32,
    },
    Release {
        seq: SeqId,
        plane: u16,
        planes: u16,
        first: u32,
        count: u32,
    },
    Step {
        lane: LaneId,
        step: u64,
        seqs: &'a [SeqId],
    },
    StepEnd {
        lane: LaneId,
        step: u64,
    },
    Fault {
        lane: LaneId,
        use_pos: u64,
        seq: SeqId,
        index: u32,
        plane: u16,
    },
    Cancel {
        tag: u16,
    },
    Declare {
        seq: SeqId,
        index: u32,
        tokens: u64,
        frames: &'a [FrameId],
    },
    Tier0Resize {
        class: u8,
        frames: u32,
    },
    Contract {
        seq: SeqId,
        contract: Contract,
    },
    Lookup {
        hashes: &'a [u128],
    },
    Lease {
        seq: SeqId,
        hash: u128,
        count: u32,
        lease_us: u64,
    },
    LoadBlocks {
        seq: SeqId,
        first: u32,
        engine: &'a [u32],
    },
    StoreBlocks {
        first: u32,
        parent: u128,
        hashes: &'a [u128],
        engine: &'a [u32],
        level: Level,
    },
    FetchBlocks {
        seq: SeqId,
        first: u32,
        count: u32,
    },
}

/// Location of a host frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostFrame {
    /// Grant of host memory (one memfd).
    pub slab: u32,
    /// Frame within the slab; byte offset = slot × stride of the slab's class.
    pub slot: u32,
}

/// Location of a block on NVMe: one slot for all pages of the block (`format::SlotLayout`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DiskSlot {
    /// Grant of NVMe space.
    pub slab: u32,
    /// Slot within the slab.
    pub slot: u32,
    /// Number of blocks that the slot has held, including this one. Checksums cover it, so an earlier block in the slot is never
    /// mistaken for this one.
    pub generation: u32,
}

/// Direction of a transfer between host and NVMe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IoKind {
    /// NVMe to host.
    Read,
    /// Host to NVMe.
    Write,
}

/// Urgency of a transfer. A more urgent transfer overtakes the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum IoClass {
    /// A request or a lane waits for it.
    Demand,
    /// Expected to be needed.
    Prefetch,
    /// Write-back.
    WriteBack,
}

/// Page that a frame shows, which must be invalidated on every lane before the frame is overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    /// Block of the page.
    pub block: BlockId,
    /// Plane of the page.
    pub plane: u16,
    /// Lane whose use of the page must end first, and the position (step × planes + plane) of that use. `None`: each lane's next
    /// boundary.
    pub after: Option<(LaneId, u64)>,
}

/// Work for the agent; the kinds are documented at `kvtide_wire::entry::JobKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Job {
    Map { block: BlockId, plane: u16, frame: FrameId, victim: Option<Victim> },
    Load { block: BlockId, plane: u16, frame: FrameId, from: HostFrame, victim: Option<Victim> },
    Store { block: BlockId, plane: u16, frame: FrameId, to: HostFrame },
    Copy { block: BlockId, plane: u16, frame: FrameId, from: FrameId, victim: Option<Victim> },
    LoadCopy { block: BlockId, plane: u16, frame: FrameId, source: BlockId, from: HostFrame, victim: Option<Victim> },
    Drop { block: BlockId },
    Evict { block: BlockId, plane: u16, frame: FrameId },
    Cancel { job: u32 },
    Move { block: BlockId, plane: u16, frame: FrameId, from: FrameId },
    Gather { block: BlockId, plane: u16, engine: u32, to: HostFrame },
    Scatter { block: BlockId, plane: u16, engine: u32, from: HostFrame },
}

/// Input of the core.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A shard of an engine replica attached. `handle` returns `Err` to reject it.
    Attach {
        /// Unused session index.
        session: SessionId,
        /// Shard of the space.
        shard: u16,
        /// Number of lanes in use.
        lanes: u16,
        /// Tier-0 frames per size class, in class order: the maximum for the session's lifetime, all in use until a resize. All are
        /// 0 for an engine that keeps its KV in its own memory. If the session has mapped frames (window frames: no memory of their
        /// own, they show a page where it is in host memory), their number per size class follows. The mapped frames of a class are
        /// numbered after its tier-0 frames.
        frames: &'a [u32],
    },
    /// A request arrived. It ends with exactly one [`Action::Complete`] of the same session, channel and tag.
    Request {
        /// Session that sent it.
        session: SessionId,
        /// Channel that carried it.
        channel: u16,
        /// Tag, unique among the channel's requests in flight (the daemon checks this).
        tag: u16,
        /// Deadline in microseconds from now; 0: the policy's default.
        timeout_us: u64,
        /// The request.
        request: Request<'a>,
    },
    /// A job ended; `Ok` only if all bytes were moved.
    JobDone {
        /// Session that executed it.
        session: SessionId,
        /// Id of the job.
        job: u32,
        /// `Ok`, `Busy`, `Canceled`, `Io`, `Invalid` or `Corrupt`. `Corrupt`: the loaded bytes differ from the stored ones, so the
        /// host copy is bad. After `Io` and `Corrupt` the victim is invalidated and the frame shows no page.
        status: Status,
    },
    /// The node granted host memory: `frames` frames of `class` under the id `slab`.
    SlabGranted {
        /// Size class.
        class: u8,
        /// Id of the grant, dense, below 65,536.
        slab: u32,
        /// Frames in it.
        frames: u32,
    },
    /// The node has no host memory to grant now.
    SlabRefused {
        /// Size class.
        class: u8,
    },
    /// The node granted NVMe space: `slots` slots under the id `slab`.
    DiskGranted {
        /// Id of the grant, dense, below 65,536.
        slab: u32,
        /// Slots in it.
        slots: u32,
        /// Disk of the slab.
        disk: u16,
        /// Generations of its slots start above this one.
        generation: u32,
    },
    /// The node holds NVMe space from an earlier run. The core did not ask for it; the event comes before any session attaches.
    DiskAdopted {
        /// Id of the grant, dense, below 65,536.
        slab: u32,
        /// Slots in it.
        slots: u32,
        /// Disk of the slab.
        disk: u16,
        /// The next generation of each slot is above this one.
        generation: u32,
    },
    /// A slot of an adopted slab holds a block of an earlier run. Its ancestors come first. The core erases the block if it cannot
    /// take it: no room, or an ancestor is missing.
    Restored {
        /// The slot, with the generation in its record.
        at: DiskSlot,
        /// Shard of the block.
        shard: u16,
        /// Hash of the block.
        hash: u128,
        /// Hash of its parent; 0: none.
        parent: u128,
        /// Planes whose pages are present: bit `plane % 32` of word `plane / 32`. The other pages are out of window.
        planes: &'a [u32],
    },
    /// A log request (record, erasure, flush) ended.
    LogDone {
        /// Id of the log request.
        id: u32,
        /// `Ok`: see the action. `NoSpace`: the log is full. `Io`: the disk failed.
        status: Status,
    },
    /// The disk of a slab went out of service: the slab cannot be read or written any more. Transfers and log requests in flight
    /// still end. The slab is not returned.
    DiskGone {
        /// Id of the grant.
        slab: u32,
    },
    /// The node has no NVMe space to grant now.
    DiskRefused,
    /// A transfer between host and NVMe ended; it no longer accesses its host frames.
    IoDone {
        /// Id of the transfer.
        id: u32,
        /// `Ok`: all bytes were moved. `Io`, `NoSpace`: the device failed or moved too few bytes; none of the pages is valid at its
        /// destination. `TimedOut`, `Canceled`: the transfer did not start. `Corrupt`: host pages differed from the stored ones,
        /// and nothing was written.
        status: Status,
        /// After a read with `Ok`: planes with a checksum mismatch, ascending; the other planes are valid. After a write with
        /// `Corrupt`: planes whose host copies are bad.
        bad: &'a [u32],
    },
    /// Attention scores: the pages that a step's attention read, or is expected to read. They come from the engine and are not
    /// trusted: malformed, late or contradictory entries, and those of unknown sequences, are counted and otherwise ignored. Scores
    /// never change the result of a request.
    Scores {
        /// Session.
        session: SessionId,
        /// Sequence of the session.
        seq: SeqId,
        /// Plane.
        plane: u16,
        /// Step of the lane that the sequence is in.
        step: u64,
        /// Meaning of the shares.
        kind: ScoreKind,
        /// Logarithm of the total share of all pages that are not in `top`, as the bits of a binary16.
        rest: u16,
        /// Page indices, and the logarithms of their shares as the bits of a binary16.
        top: &'a [(u32, u16)],
    },
    /// The session disconnected or its process exited. Its jobs in flight never complete; host frames that they may write are
    /// quarantined.
    SessionLost {
        /// Session.
        session: SessionId,
    },
    /// The session's process has exited, or is known to copy no more: its frames have no writer.
    SessionExited {
        /// Session.
        session: SessionId,
    },
    /// Another space needs host memory. Return one slab of each size class that has an unused slab, and keep none in reserve.
    Reclaim {
        /// If no slab is unused, empty one of unreferenced cached blocks and return it when it is empty
        /// ([`Core::is_reclaiming`](crate::Core::is_reclaiming)).
        cached: bool,
    },
    /// The node has host memory again: the core may repeat requests for slabs that were refused.
    Freed,
    /// The operator changed the policy and the limits; the new values hold from now on. Sizes fixed earlier stay: the host frames
    /// of scans and the presence of an NVMe tier until the space ends, the tier-0 frames of a session's scans until the session
    /// ends. Capacity above a lowered limit is released when it is no longer needed. If the policy contradicts itself, `handle`
    /// returns `Err` and nothing changes.
    Reconfigure {
        /// The new policy.
        policy: Policy,
        /// The new [`Limits::host_bytes_max`].
        host_bytes_max: u64,
        /// The new [`Limits::nvme_bytes_max`].
        nvme_bytes_max: u64,
    },
    /// Time passed: check deadlines and watermarks.
    Tick,
}

/// Output of the core, for the daemon to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Send a job to the session's agent.
    Job {
        /// Receiver.
        session: SessionId,
        /// Id, unique among the session's jobs in flight.
        id: u32,
        /// The job.
        job: Job,
    },
    /// End a session: copies that its agent did not end in time hold more host memory than one session may hold.
    EndSession {
        /// The session.
        session: SessionId,
        /// Bytes held by those copies.
        late_bytes: u64,
        /// Maximum bytes.
        bytes_max: u64,
    },
    /// Complete a request. The list is `ActionBuf::list(list)`.
    Complete {
        /// Receiver.
        session: SessionId,
        /// Channel of the request.
        channel: u16,
        /// Tag of the request.
        tag: u16,
        /// Status of the request.
        status: Status,
        /// Result (see `kvtide_wire::entry::Op`).
        value: u64,
        /// Result list: start and length in the buffer's list arena.
        list: (u32, u32),
    },
    /// Ask the node for host memory of a class; answered by `SlabGranted` or `SlabRefused`.
    NeedSlab {
        /// Size class.
        class: u8,
    },
    /// Return a slab of host memory that is no longer used.
    ReturnSlab {
        /// Id of the grant.
        slab: u32,
    },
    /// Ask the node for NVMe space; answered by `DiskGranted` or `DiskRefused`.
    NeedDisk {
        /// Preferred disk; `u16::MAX`: any.
        disk: u16,
    },
    /// Return a slab on NVMe that is no longer used.
    ReturnDisk {
        /// Id of the grant.
        slab: u32,
    },
    /// Move pages of one block between host frames and the block's slot; answered by `IoDone`. Adjacent pages in the slot move in
    /// one device request. The list has three words per page, by ascending plane: plane, host slab, host slot.
    Io {
        /// Id, unique among the space's transfers in flight.
        id: u32,
        /// Direction.
        kind: IoKind,
        /// Urgency.
        class: IoClass,
        /// Slot on NVMe.
        at: DiskSlot,
        /// Pages: start and length in the buffer's list arena.
        list: (u32, u32),
    },
    /// Raise the urgency of a transfer in flight; no effect if it is already at the device.
    Urge {
        /// Id of the transfer.
        id: u32,
        /// New urgency.
        class: IoClass,
    },
    /// Write a record of a slot into the index log of its disk, after all pages of the slot were written. Answered by `LogDone`:
    /// `Ok` once the record survives the end of the daemon. The list has the hash of the block (4 words, least significant first),
    /// the hash of its parent (4 words, 0: none), and one bit per plane whose page is present (⌈planes / 32⌉ words).
    Record {
        /// Id, unique among the space's log requests in flight.
        id: u32,
        /// The slot.
        at: DiskSlot,
        /// Shard of the block.
        shard: u16,
        /// A request waits for it.
        urgent: bool,
        /// The list: start and length in the buffer's list arena.
        list: (u32, u32),
    },
    /// Write into the index log that the slot's record is void. Answered by `LogDone`: `Ok` once the erasure survives a power cut,
    /// so that the slot may be written again.
    Erase {
        /// Id, unique among the space's log requests in flight.
        id: u32,
        /// The slot, with the generation in its record.
        at: DiskSlot,
        /// Free slots are short.
        urgent: bool,
    },
    /// Make all pages and records on the space's disks that were written successfully survive a power cut; answered by `LogDone`.
    Flush {
        /// Id, unique among the space's log requests in flight.
        id: u32,
    },
    /// The session index may be used again.
    SessionGone {
        /// Session.
        session: SessionId,
    },
}
