//! Inputs and outputs of the core: plain data without behaviour.
//!
//! The core is sans-IO: `Core::handle(now_us, event, &mut actions)`. It owns no socket, thread, clock, file or KV data. One thread
//! owns the core of one space.

mod config;

pub use config::{Attention, Limits, Policy, Retention, SpaceConfig};
pub use kvtide_types::{
    Admission, Advice, BlockId, Cause, Contract, Eviction, FeedEvent, FrameId, HostFrame, IoClass, IoKind, Job, LaneId,
    Level, NONE, Plane, PlaneKind, Request, ScoreKind, SeqId, Status, Tier, Victim,
};
use serde::{Deserialize, Serialize};

/// Session of the space: an index, reused only after [`Action::SessionGone`].
pub type SessionId = u16;

/// Location of a block on NVMe: one slot for all pages of the block ([`kvtide_format::SlotLayout`]).
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
        /// 0 for an engine that keeps its KV in its own memory. If the session has mapped frames (no memory of their
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
    /// The node holds NVMe space from an earlier run. The core did not request it; the event comes before any session attaches.
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
        /// Planes with a present page: bit `plane % 32` of word `plane / 32`. The other pages are out of window.
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
        /// `Corrupt`: planes with bad host copies.
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
    /// The operator pins the prefix that ends with this hash, so that it is not evicted, or unpins it. Nothing happens if it is not
    /// cached, or if the pins would exceed their limit: [`Core::entry`](crate::Core::entry) tells.
    Pin {
        /// Hash of the last block.
        hash: u128,
        /// Pin it, or unpin it.
        pinned: bool,
    },
    /// The operator evicts a cached block with all blocks after it, or all cached blocks; those that are in use or pinned stay. One
    /// event evicts a limited number, so the daemon repeats it until nothing is left.
    Evict {
        /// Hash of the block; `None`: all.
        hash: Option<u128>,
    },
    /// Time passed: check deadlines and watermarks.
    Tick,
    /// The daemon stops, or the space is retired: write what the write budget allows, and keep nothing of it for later. Ticks follow
    /// as long as [`Core::is_admitting`](crate::Core::is_admitting).
    Ending,
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
        /// Result (see [`Request`]).
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
    /// the hash of its parent (4 words, 0: none), and one bit per plane with a present page (⌈planes / 32⌉ words).
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
