//! What goes into the core and what comes out of it: plain data, no behaviour.
//!
//! The core is sans-IO: `Core::handle(now_us, event, &mut actions)`. It owns no socket, thread, clock, file or byte of KV.
//! One thread owns one space's core.

pub use crate::predict::Scoring;
use serde::{Deserialize, Serialize};

/// A space's dense block id; a block is the pages of all planes of one shard at one page index.
pub type BlockId = u32;
/// A frame of one session's tier 0, dense over all size classes (class by class, in class order).
pub type FrameId = u32;
/// A session's own sequence slot.
pub type SeqId = u32;
/// A lane of a session.
pub type LaneId = u16;
/// A session of this space: a slot, reused only after its session is wholly gone.
pub type SessionId = u16;
/// No block, frame or sequence.
pub const NONE: u32 = u32::MAX;

/// What became of a request or a job. The names are those of the C ABI's status codes; the shell maps them one to one.
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

/// What a plane's pages hold and which of them a step reads.
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
    /// Which pages a step reads.
    pub kind: PlaneKind,
}

/// Everything fixed about a space for its lifetime. Planes with equal `page_bytes` form a size class; classes are numbered
/// in the order in which their first plane appears.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceConfig {
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Planes of one shard, in the order in which a step visits them. All shards have the same planes.
    pub planes: Vec<Plane>,
    /// Tensor-, pipeline-, context-parallel ranks. A block exists for lookup when every shard has published its part.
    pub shards: u16,
    /// Bounds. A request over one is refused with [`Status::Limit`].
    pub limits: Limits,
    /// Policy.
    pub policy: Policy,
}

/// Bounds of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Sessions attached at once.
    pub sessions_max: u16,
    /// Blocks of the space, sealed or not, in any tier.
    pub blocks_max: u32,
    /// Sequences of one session.
    pub seqs_max: u32,
    /// Blocks of one sequence.
    pub seq_blocks_max: u32,
    /// Lanes of one session.
    pub lanes_max: u16,
    /// Jobs in flight to one session: the depth of its job ring.
    pub jobs_max: u32,
    /// Requests in flight of one session: channels × depth.
    pub requests_max: u32,
    /// Host frames that the space may hold over all classes, in bytes.
    pub host_bytes_max: u64,
    /// NVMe slots that the space may hold, in bytes; 0: there is no NVMe tier.
    pub nvme_bytes_max: u64,
    /// Transfers between host and NVMe in flight at once.
    pub ios_max: u32,
    /// Contents that can be found, those included that are only on NVMe.
    pub contents_max: u32,
    /// Notes to the index logs of the disks in flight at once: records, erasures, flushes.
    pub notes_max: u32,
}

/// Which published blocks are written to NVMe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Admission {
    /// All of them; while the bytes that may be written are short, those that were used before come first.
    #[default]
    All,
    /// Those that were looked up again, or that somebody wants stored.
    SecondTouch,
    /// All, or only those looked up again, as the bytes that may be written allow.
    Budget,
}

/// In which order host memory and NVMe give up published contents that nobody refers to. Whatever the order, what other contents
/// stand on goes after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// Least recently used first; of one use, the deepest block first.
    Lru,
    /// S3-FIFO: what was used once in a small queue, the rest in a main one, second chances instead of moves.
    S3Fifo,
    /// ARC: recency against frequency, its balance learnt from what came back.
    Arc,
    /// Smallest expected gain first: chance of reuse times what a hit saves.
    CostAware,
    /// The one of them, or the balance between them, that sampled ghosts say is best now.
    #[default]
    Auto,
}

/// Which pages of `approx` sequences are kept in tier 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attention {
    /// How pages are ranked.
    pub policy: Scoring,
    /// What is not kept is given up for good, not only demoted: if nobody else has it, it cannot be read any more.
    pub drop: bool,
    /// First pages of a sequence that are kept whatever their rank; at least 1.
    pub sinks: u16,
    /// Last sealed pages that are kept whatever their rank; at least 2.
    pub recent: u16,
    /// Percent of the measured bandwidth from host that predictions may use, 1 to 100.
    pub bandwidth_percent: u8,
}

impl Default for Attention {
    fn default() -> Self {
        Attention { policy: Scoring::Attention, drop: false, sinks: 1, recent: 2, bandwidth_percent: 90 }
    }
}

impl Eviction {
    /// All of them, by the names that configurations and tools have for them.
    pub const NAMES: [(&'static str, Eviction); 5] = [
        ("lru", Eviction::Lru),
        ("s3-fifo", Eviction::S3Fifo),
        ("arc", Eviction::Arc),
        ("cost-aware", Eviction::CostAware),
        ("auto", Eviction::Auto),
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Eviction::NAMES.iter().find(|(_, e)| *e == self).map_or("", |(name, _)| name)
    }

    /// The one of that name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Eviction> {
        Eviction::NAMES.iter().find(|(n, _)| *n == name).map(|(_, e)| *e)
    }
}

/// What else decides how long published contents stay that nobody refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Retention {
    /// Microseconds after the last use at which a content is given up in any case, at most a tenth later; 0: never.
    pub ttl_us: u64,
    /// Contents of sequences of high priority go after all others while they are at most so many percent of all.
    pub high_share_percent: u8,
    /// Tokens a second that the engine computes at the beginning of a sequence, over all shards; 0: unknown, every hit is worth the
    /// same.
    pub recompute_tokens_per_s: u32,
    /// Position at which attention over what stands before a token takes as long as all else that computes it; 0: it takes nothing.
    pub attention_doubles_at: u32,
    /// A sequence that has at most so many tokens to come is nearly finished: what it holds will be free soon. 0: none ever is.
    pub ending_tokens: u32,
}

impl Retention {
    /// No age, half for high priority, computing as with a model of 8B parameters on one GPU.
    ///
    /// Such a model (32 layers of 4,096 query channels) takes 2 × 7.5 × 10^9 operations a token for its weights, and for attention 4 ×
    /// 32 × 4,096 more for each token before it (Chowdhery et al., PaLM, appendix B: 12 a training token, a third of it forward): as many
    /// at 28,600. A GPU of 990 × 10^12 dense bf16 operations a second (H100 SXM, its data sheet) that reaches half of them computes
    /// 33,000 tokens a second.
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

/// Policy of a space: what may differ without changing any result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Percent of a tier-0 class's frames that are free or clean below which cleaning starts.
    pub clean_low_percent: u8,
    /// Percent at which cleaning stops.
    pub clean_high_percent: u8,
    /// Percent of host frames in use at which published, unreferenced blocks start to leave them, least recently used first: for
    /// NVMe, or for good where there is none.
    pub host_high_percent: u8,
    /// Percent of host frames in use at which that stops.
    pub host_low_percent: u8,
    /// Percent of a class's host frames that are free or also on NVMe below which blocks start to be written down.
    pub host_clean_low_percent: u8,
    /// Percent at which that stops.
    pub host_clean_high_percent: u8,
    /// Host frames of a class that a scan of more than tier 0 and host hold streams through; the rest keeps a fixed part.
    pub host_scan_frames: u32,
    /// Percent of NVMe slots in use at which published, unreferenced blocks start to be dropped, least recently used first.
    pub nvme_high_percent: u8,
    /// Percent of NVMe slots in use at which dropping stops.
    pub nvme_low_percent: u8,
    /// Which published blocks are written to NVMe.
    pub nvme_admission: Admission,
    /// Bytes that may be written to NVMe in a day; 0: as many as come.
    pub nvme_bytes_per_day: u64,
    /// In which order published, unreferenced contents are given up.
    pub eviction: Eviction,
    /// And what else decides how long they stay.
    pub retention: Retention,
    /// Tier-0 frames of a class that a cyclic scan streams through; the rest keeps a fixed part resident.
    pub scan_frames: u32,
    /// What attention-driven prefetch does for `approx` sequences.
    pub attention: Attention,
    /// Deadline of requests that bring none, in microseconds.
    pub request_timeout_us: u64,
    /// A lease lasts at most this long, in microseconds.
    pub lease_us_max: u64,
    /// Percent of the capacity of host and NVMe that one session may pin alone by leases, if its shard has other sessions.
    pub lease_percent: u8,
}

/// How well a published block must be kept, and how well it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// Findable while the daemon lives.
    Published,
    /// Survives `kill -9`.
    Stored,
    /// Survives power loss.
    Durable,
}

/// What an engine knows about its future use of a range.
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

/// How much of a sequence attention must read. Every sequence begins as [`Contract::Exact`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Contract {
    /// Every page; one that is late is waited for.
    #[default]
    Exact,
    /// The best pages.
    Approx {
        /// Thousandths of a plane's pages, 1 to 1000.
        permille: u16,
    },
    /// Every page but those that provably hold next to nothing.
    Bounded {
        /// Millionths of a query head's mass that may be skipped, 0 to 1,000,000.
        ppm: u32,
    },
}

/// What the shares of [`Event::Scores`] are; described once, at `kvtide_wire::score::ScoreKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ScoreKind {
    Mass,
    Query,
    Ahead,
}

/// A request of an engine; the operations are described once, at `kvtide_wire::entry::Op`.
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
    /// `seq` None: the session's own reserve.
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

/// Where a host frame is: `slab` is the grant, `slot` the frame within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostFrame {
    /// Grant of host memory (one memfd).
    pub slab: u32,
    /// Frame within the slab; byte offset = slot × stride of the slab's class.
    pub slot: u32,
}

/// A block's place on NVMe: `slab` is the grant, `slot` the place within it, for all pages of the block (`format::SlotLayout`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DiskSlot {
    /// Grant of NVMe space.
    pub slab: u32,
    /// Slot within the slab.
    pub slot: u32,
    /// How many blocks the slot has held, this one included. Checksums cover it, so that a block before is never taken for
    /// this one.
    pub generation: u32,
}

/// Which way a transfer between host and NVMe goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IoKind {
    /// NVMe to host.
    Read,
    /// Host to NVMe.
    Write,
}

/// How urgent a transfer is; the more urgent overtake the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum IoClass {
    /// Somebody waits for it.
    Demand,
    /// It is expected to be needed.
    Prefetch,
    /// Cleaning.
    WriteBack,
}

/// The page that a frame shows and that must be unpublished on every lane before the frame is overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    /// Block of the page.
    pub block: BlockId,
    /// Plane of the page.
    pub plane: u16,
    /// Lane whose use must be over first and the position (step × planes + plane) of that use; `None`: any lane's next boundary.
    pub after: Option<(LaneId, u64)>,
}

/// What the agent shall do; the kinds are described once, at `kvtide_wire::entry::JobKind`.
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

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A shard of an engine replica attached. Refused by an `Err` of `handle`.
    Attach {
        /// Free session slot.
        session: SessionId,
        /// Which shard of the space.
        shard: u16,
        /// Lanes in use.
        lanes: u16,
        /// Tier-0 frames per size class, in class order: as many as it will ever have; none of any for an engine that keeps its KV in memory
        /// of its own. It has them all until it asks for fewer. After
        /// them, if it has any, window frames per size class: frames without memory, which show a page where it is in host. Those of
        /// a class have the numbers that follow its tier-0 frames.
        frames: &'a [u32],
    },
    /// A request arrived; it ends with exactly one [`Action::Complete`] of the same session, channel and tag.
    Request {
        /// Session that sent it.
        session: SessionId,
        /// Channel that it came by.
        channel: u16,
        /// Tag, unique among the channel's requests in flight (the shell checks it).
        tag: u16,
        /// Microseconds from now, 0 = the policy's default.
        timeout_us: u64,
        /// What is asked.
        request: Request<'a>,
    },
    /// A job ended; `Ok` only if all bytes were moved.
    JobDone {
        /// Session that carried it out.
        session: SessionId,
        /// Its id.
        job: u32,
        /// `Ok`, `Busy`, `Canceled`, `Io`, `Invalid`, or `Corrupt`: what was loaded is not what was stored, the host copy is bad; as
        /// with `Io` the victim is gone and the frame shows nothing.
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
    /// The node has no memory to grant now.
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
        /// Disk that it is on.
        disk: u16,
        /// The first generation of its slots is above this one.
        generation: u32,
    },
    /// The node still has NVMe space from an earlier run. It was not asked for, and comes before any session attaches.
    DiskAdopted {
        /// Id of the grant, dense, below 65,536.
        slab: u32,
        /// Slots in it.
        slots: u32,
        /// Disk that it is on.
        disk: u16,
        /// The next generation of its slots is above this one.
        generation: u32,
    },
    /// A slot of an adopted slab holds a block of an earlier run, its ancestors told before. What the core cannot take (no room, an
    /// ancestor missing) it erases.
    Restored {
        /// Where, with the generation that it was recorded under.
        at: DiskSlot,
        /// Which shard's part of its content.
        shard: u16,
        /// Hash of its content.
        hash: u128,
        /// Hash of the content before it; 0: it is the first.
        parent: u128,
        /// Planes whose pages are there: bit `plane % 32` of word `plane / 32`. The others are out of their window.
        planes: &'a [u32],
    },
    /// A note (record, erasure, flush) ended.
    LogDone {
        /// Its id.
        id: u32,
        /// `Ok`: see the action. `NoSpace`: the log is full. `Io`: the disk failed.
        status: Status,
    },
    /// The disk of a slab went out of service: nothing there can be read or written any more. Transfers and notes in flight still
    /// end. The slab is not returned.
    DiskGone {
        /// Id of the grant.
        slab: u32,
    },
    /// The node has no NVMe space to grant now.
    DiskRefused,
    /// A transfer between host and NVMe ended; its host frames are not touched any more.
    IoDone {
        /// Its id.
        id: u32,
        /// `Ok`: all bytes were moved. `Io`, `NoSpace`: the device failed or fell short; none of the pages is valid where it
        /// should have gone. `TimedOut`, `Canceled`: it was never begun. `Corrupt`: pages in host were not what had been stored there, and
        /// nothing was written.
        status: Status,
        /// After a read that was `Ok`: planes, ascending, whose bytes are not what was written (checksum). The others are valid. After
        /// a write that was `Corrupt`: planes whose host copies are bad.
        bad: &'a [u32],
    },
    /// What a step's attention looked at, or is expected to look at. A claim of the engine: what is malformed, late, contradictory or
    /// about a sequence that is not there is counted, and changes nothing. It never changes what any request is answered.
    Scores {
        /// Session.
        session: SessionId,
        /// Its sequence.
        seq: SeqId,
        /// Plane.
        plane: u16,
        /// Step of the lane that the sequence is in.
        step: u64,
        /// What the shares are.
        kind: ScoreKind,
        /// Logarithm of the share of all pages that `top` does not name, as the bits of a binary16.
        rest: u16,
        /// Page indices, and the logarithms of their shares as the bits of a binary16.
        top: &'a [(u32, u16)],
    },
    /// The session's lease ended (EOF, goodbye or exit). Its jobs in flight never complete; host frames they may write are quarantined.
    SessionLost {
        /// Session.
        session: SessionId,
    },
    /// The session's process has exited, or is known to copy nothing any more: nothing writes its frames.
    SessionExited {
        /// Session.
        session: SessionId,
    },
    /// Another space finds no host memory: a slab of each size class goes back, if one is wholly idle; none is kept in store.
    Reclaim {
        /// If none is idle, empty a slab of unreferenced cached blocks and return it when it is empty
        /// ([`Core::is_reclaiming`](crate::Core::is_reclaiming)).
        cached: bool,
    },
    /// Host memory came back to the node: who was refused may ask again.
    Freed,
    /// The operator changed the policy and what the space may hold: that holds from now on. What a space or a session was sized
    /// by stays as it was: the host frames of its scans and whether it has an NVMe tier until the space ends, the tier-0 frames of
    /// a session's scans until the session does. What is held beyond a lower bound is held on until nobody needs it. Refused, with
    /// nothing changed, by an `Err` of `handle` if the policy contradicts itself.
    Reconfigure {
        /// The new policy.
        policy: Policy,
        /// The new [`Limits::host_bytes_max`].
        host_bytes_max: u64,
        /// The new [`Limits::nvme_bytes_max`].
        nvme_bytes_max: u64,
    },
    /// Time passed: deadlines, watermarks.
    Tick,
}

/// What the shell shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Send a job to the session's agent.
    Job {
        /// To whom.
        session: SessionId,
        /// Id, unique among the session's jobs in flight.
        id: u32,
        /// What to do.
        job: Job,
    },
    /// End a session: copies that its agent did not end in time hold more host memory than one session's may.
    EndSession {
        /// Which.
        session: SessionId,
        /// Bytes that they hold.
        late_bytes: u64,
        /// Bytes that they may hold.
        bytes_max: u64,
    },
    /// Complete a request. The list is `ActionBuf::list(list)`.
    Complete {
        /// To whom.
        session: SessionId,
        /// Channel of the request.
        channel: u16,
        /// Tag of the request.
        tag: u16,
        /// How it ended.
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
    /// Nothing uses the slab any more.
    ReturnSlab {
        /// Id of the grant.
        slab: u32,
    },
    /// Ask the node for NVMe space; answered by `DiskGranted` or `DiskRefused`.
    NeedDisk {
        /// Rather on this disk; `u16::MAX`: on any.
        disk: u16,
    },
    /// Nothing uses the slab on NVMe any more.
    ReturnDisk {
        /// Id of the grant.
        slab: u32,
    },
    /// Move pages of one block between host frames and the block's slot; answered by `IoDone`. Pages that are neighbours in the
    /// slot move in one request. The list has three words a page, by ascending plane: plane, host slab, host slot.
    Io {
        /// Id, unique among the space's transfers in flight.
        id: u32,
        /// Which way.
        kind: IoKind,
        /// How urgent.
        class: IoClass,
        /// Where on NVMe.
        at: DiskSlot,
        /// Pages: start and length in the buffer's list arena.
        list: (u32, u32),
    },
    /// A transfer in flight has become more urgent; without effect if the device has it already.
    Urge {
        /// Its id.
        id: u32,
        /// How urgent it is now.
        class: IoClass,
    },
    /// Write into the index log of its disk what a slot holds, all its pages having been written; answered by `LogDone`: `Ok` once
    /// the record survives the end of the daemon. The list has the hash of its content (4 words, the least significant first), that
    /// of the content before it (4 words, 0: none), and a bit a plane whose page is there (⌈planes / 32⌉ words).
    Record {
        /// Id, unique among the space's notes in flight.
        id: u32,
        /// The slot.
        at: DiskSlot,
        /// Which shard's part of its content.
        shard: u16,
        /// Somebody waits for it.
        urgent: bool,
        /// The list: start and length in the buffer's list arena.
        list: (u32, u32),
    },
    /// Write into the index log that a slot does not hold what was recorded any more; answered by `LogDone`: `Ok` once that survives
    /// a power cut, so that the slot may be written again.
    Erase {
        /// Id, unique among the space's notes in flight.
        id: u32,
        /// The slot, with the generation that was recorded.
        at: DiskSlot,
        /// Slots are short.
        urgent: bool,
    },
    /// Make everything on the space's disks that ended well before survive a power cut; answered by `LogDone`.
    Flush {
        /// Id, unique among the space's notes in flight.
        id: u32,
    },
    /// The session slot may be used again.
    SessionGone {
        /// Session.
        session: SessionId,
    },
}
