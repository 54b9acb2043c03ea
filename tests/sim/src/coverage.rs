//! Counts of events in a run: a simulator that never meets a fault proves nothing about it.

use kvtide_wire::entry::{JobKind, Op};
use kvtide_wire::status::Status;
use std::fmt;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident => $text:literal,)+) => {
        /// Events other than requests and jobs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Met { $($(#[doc = $doc])+ $name,)+ }

        impl Met {
            /// All events, in order.
            pub const ALL: &[Met] = &[$(Met::$name,)+];

            /// Return the name in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Met::$name => $text,)+ }
            }
        }
    };
}

kinds! {
    /// A step read every page without a message.
    StepResident => "step: everything resident",
    /// A step read its pages in several parts.
    StepParts => "step: read in parts",
    /// A lane waited for a page.
    StepFault => "step: waited at a fault",
    /// A step ended early, with an error explained by an injected fault.
    StepFailed => "step: ended by an error",
    /// A page was compared with the model.
    PageRead => "page: read and compared",
    /// A page was read again, later within the same step.
    PageReread => "page: read again within its step",
    /// A pinned page was compared outside of steps.
    PinRead => "page: read under a pin",
    /// A pin was taken without a message.
    PinLocal => "pin: local",
    /// The agent refused a job because its victim is pinned.
    JobBusy => "job: refused with BUSY",
    /// The mover accepted no more jobs until lanes or copies had advanced.
    MoverFull => "job: mover full",
    /// A request was cancelled.
    Cancel => "request: cancelled",
    /// A request's deadline passed.
    Deadline => "request: timed out",
    /// A request was refused because of a lack of room.
    NoSpace => "request: no space",
    /// A page was lost with its only holder.
    Lost => "request: lost",
    /// A ring was full and its producer had to wait.
    RingFull => "ring: full",
    /// A transfer reported an error.
    TransferFailed => "transfer: failed",
    /// A transfer moved too little.
    TransferShort => "transfer: short",
    /// A transfer took a hundred times as long.
    TransferLate => "transfer: late",
    /// A transfer never ended.
    TransferEndless => "transfer: never-ending",
    /// A session died.
    SessionDied => "session: died",
    /// A session died while its device wrote host frames.
    Quarantine => "session: died with writes in flight",
    /// A session attached.
    SessionAttached => "session: attached",
    /// A mapped frame began to show a page.
    InPlace => "page: shown where it is in host",
    /// The daemon died and another took its place.
    DaemonDied => "daemon: died",
    /// A session that survived its daemon attached again and declared the pages that it holds.
    Reattached => "session: attached again and declared",
    /// The node granted a slab.
    SlabGranted => "slab: granted",
    /// The node had no memory to grant.
    SlabRefused => "slab: refused",
    /// The core gave a slab back.
    SlabReturned => "slab: returned",
    /// A block's pages were written to NVMe in the background.
    IoWritten => "disk: written back",
    /// A block's pages were written to NVMe because a request waited for their host frames.
    IoWrittenUrgent => "disk: written under pressure",
    /// Pages for which a request waited were read from NVMe.
    IoReadDemand => "disk: read on demand",
    /// Pages were read from NVMe before a request waited for them.
    IoReadPrefetch => "disk: read ahead",
    /// A transfer became more urgent while it waited.
    IoUrged => "disk: transfer urged",
    /// A transfer became more urgent when it was already on the device.
    IoUrgedLate => "disk: transfer urged on the device",
    /// A transfer failed with EIO.
    IoFailed => "disk: EIO",
    /// A write failed with ENOSPC.
    IoNoSpace => "disk: ENOSPC",
    /// A transfer moved too little.
    IoShort => "disk: short",
    /// A transfer was given up before it began.
    IoRejected => "disk: given up in the queue",
    /// A transfer stalled for longer than requests live.
    IoStuck => "disk: stuck",
    /// A transfer took a hundred times as long.
    IoLate => "disk: late",
    /// Bits were flipped in a transfer.
    IoFlipped => "disk: bits flipped",
    /// A page was read after its transfer or predecessor had failed.
    IoRetried => "disk: tried again",
    /// A page was read with bytes that differ from those written.
    BadPage => "disk: bad page reported",
    /// A page that the disk had failed to deliver was read correctly later.
    ReadAfterHarm => "disk: read well after it was not",
    /// A page was lost because the disk did not deliver it.
    LostToDisk => "disk: page lost",
    /// A page of a prefix that a lookup had found was read from NVMe.
    AttachedFromDisk => "disk: attached prefix read",
    /// A step with more pages than tier 0 and host memory ended.
    StepThreeTiers => "step: over three tiers",
    /// A slot was given to another block.
    SlotReused => "disk: slot reused",
    /// An index log took a block's record.
    BlockRecorded => "log: block recorded",
    /// An index log erased its record of a slot.
    SlotErased => "log: slot erased",
    /// The index logs were flushed.
    LogFlushed => "log: flushed",
    /// An index log rejected a log request.
    LogRequestFailed => "log: request failed",
    /// The node granted a slab on NVMe.
    DiskGranted => "disk: slab granted",
    /// The node had no NVMe space to grant.
    DiskRefused => "disk: slab refused",
    /// The core gave a slab on NVMe back.
    DiskReturned => "disk: slab returned",
    /// A session died while transfers were in flight.
    SessionDiedTransferring => "session: died under transfers",
    /// The daemon died while transfers were in flight.
    DaemonDiedTransferring => "daemon: died under transfers",
    /// A plane was read without pages that a sequence's contract skips.
    PlaneApprox => "attention: plane read in part by approx",
    /// A page picked by `approx` was not resident, or not in time.
    PageWaived => "attention: picked page done without",
    /// Lanes sent scores.
    ScoresTold => "attention: scores sent",
    /// Lanes sent invalid scores, or left other words in their slots.
    ScoresNonsense => "attention: nonsense scores",
    /// A daemon's core refused scores.
    ScoresRefused => "attention: scores refused",
    /// A daemon's core received scores of a finished step.
    ScoresLate => "attention: scores late",
    /// A daemon's core loaded pages for predictions.
    AttentionLoaded => "attention: pages loaded ahead",
    /// Some prefetched pages were read.
    AttentionUsed => "attention: prefetch used",
    /// Some prefetched pages were not read.
    AttentionWasted => "attention: prefetch wasted",
    /// Some prefetched pages came too late.
    AttentionLate => "attention: prefetch late",
    /// An engine announced that a sequence is about to end.
    EndTold => "sequence: announced end",
    /// The operator changed the policy.
    Reconfigured => "daemon: policy changed",
    /// The node requested idle memory, and got some.
    Reclaimed => "daemon: returned idle memory",
    /// A session's tier 0 shrank.
    Tier0Shrank => "tier 0: shrank",
    /// A guarantee was given or replaced.
    Guarantee => "guarantee given or replaced",
    /// A session's tier 0 grew.
    Tier0Grew => "tier 0: grew",
    /// A lane could not begin because a page was being moved.
    GateClosed => "step: waited for a moved page",
    /// An invalid request was sent.
    NonsenseRequest => "nonsense: request",
    /// An invalid completion of a job was sent.
    NonsenseJobDone => "nonsense: job completion",
    /// A lookup found blocks that another session published.
    AttachHit => "attach prefix: found",
    /// A lookup found nothing.
    AttachMiss => "attach prefix: missed",
    /// A session without tier 0 attached.
    AttachedBare => "session: attached without tier 0",
    /// An engine detached before its daemon had received the completion of some copies.
    SessionLeft => "session: detached in mid-copy",
    /// A session died while its own blocks were copied.
    SessionDiedCopying => "session: died while its blocks were copied",
    /// The daemon died while a session's own blocks were copied.
    DaemonDiedCopying => "daemon: died while blocks were copied",
    /// A lookup found a prefix.
    LookupHit => "blocks: prefix found",
    /// A lookup found nothing.
    LookupMiss => "blocks: nothing found",
    /// The hashes of a lookup were looked up one by one at one moment.
    LookupEach => "blocks: presence closed under ancestors",
    /// A lookup found all blocks of a lease.
    LeaseHeld => "lease: all of it found while pinned",
    /// Part of a leased prefix was on NVMe only.
    LeaseOnDisk => "lease: on NVMe in part",
    /// Part of a leased prefix was in another session's tier 0 only.
    LeaseElsewhere => "lease: in another tier 0 in part",
    /// The prefix to lease was not cached (any more).
    LeaseMissed => "lease: not cached",
    /// A lease expired.
    LeaseExpired => "lease: expired",
    /// A lease was dropped during a load from it.
    LeaseDroppedInUse => "lease: dropped during a load",
    /// A page was loaded into an engine's own memory and compared.
    BlockRead => "blocks: page loaded and compared",
    /// A page out of its sliding window was not loaded.
    WindowLeft => "blocks: page out of its window not loaded",
    /// A block of a lease was loaded.
    LoadOfLease => "load: block of a lease",
    /// A block of a sequence that steps read was loaded.
    LoadOfSequence => "load: block of a sequence",
    /// Some blocks of a load arrived, others did not.
    LoadInPart => "load: in part",
    /// A block with separate ids for its planes was loaded.
    MembersApart => "load: into planes with separate ids",
    /// A store made its blocks findable.
    StorePublished => "store: published",
    /// A store wrote its blocks to NVMe.
    StorePersisted => "store: stored or durable",
    /// A block of a store failed, and with it all blocks behind it.
    StoreCut => "store: cut short",
    /// A reader of the feed read an event.
    FeedRead => "feed: event read",
    /// A reader listed the cache.
    FeedListed => "feed: cache listed",
    /// A reader's view was compared with a listing.
    FeedCompared => "feed: view compared with a listing",
    /// A reader forgot an answer and asked again.
    FeedForgotten => "feed: answer forgotten and asked again",
    /// A reader asked for the same events twice at once.
    FeedAskedTwice => "feed: asked twice at once",
    /// A reader came late and got several events.
    FeedLate => "feed: read after a long rest",
    /// A reader died, and another took its place.
    FeedReaderDied => "feed: reader died",
    /// The recorder's dump was replayed with the same actions.
    Replayed => "recorder: replayed",
}

/// Codes of operations, including those of deleted ones.
const OPS: usize = Op::ALL[Op::ALL.len() - 1] as usize + 1;

/// Counters of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Completed requests, by operation and whether they succeeded.
    ops: [[u64; 2]; OPS],
    /// Ended jobs, by kind and whether they succeeded.
    jobs: [[u64; 2]; JobKind::ALL.len()],
    met: [u64; Met::ALL.len()],
    statuses: [u64; Status::ALL.len()],
}

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage {
            ops: Default::default(),
            jobs: Default::default(),
            met: [0; Met::ALL.len()],
            statuses: Default::default(),
        }
    }
}

impl Coverage {
    /// Count an event.
    pub fn met(&mut self, what: Met) {
        self.met[what as usize] += 1;
    }

    /// Count a completed request.
    pub fn op(&mut self, op: Op, status: Status) {
        self.ops[op as usize][usize::from(status == Status::Ok)] += 1;
        self.statuses[status as usize] += 1;
    }

    /// Count an ended job.
    pub fn job(&mut self, kind: JobKind, status: Status) {
        self.jobs[kind as usize][usize::from(status == Status::Ok)] += 1;
    }

    /// Add the counts of another run.
    pub fn add(&mut self, other: &Coverage) {
        let both = |a: &mut [u64], b: &[u64]| a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        self.ops.iter_mut().zip(&other.ops).for_each(|(a, b)| both(a, b));
        self.jobs.iter_mut().zip(&other.jobs).for_each(|(a, b)| both(a, b));
        both(&mut self.met, &other.met);
        both(&mut self.statuses, &other.statuses);
    }

    /// Return events that never happened: operations and jobs that never succeeded, and kinds that were never met.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        // Readers of the feed load no blocks; the model of this request is in tiering/tests/feed.rs.
        let asked = Op::ALL.iter().filter(|op| **op != Op::LoadHashed);
        let ops = asked.filter(|op| self.ops[**op as usize][1] == 0).map(|op| format!("request {op:?}"));
        let jobs = JobKind::ALL.iter().filter(|k| self.jobs[**k as usize][1] == 0).map(|k| format!("job {k:?}"));
        let met = Met::ALL.iter().filter(|m| self.met[**m as usize] == 0).map(|m| m.name().to_owned());
        ops.chain(jobs).chain(met).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<44}{:>12}{:>12}", "what", "ok", "refused")?;
        for op in Op::ALL {
            let [refused, ok] = self.ops[op as usize];
            writeln!(f, "request {:<36}{ok:>12}{refused:>12}", format!("{op:?}"))?;
        }
        for kind in JobKind::ALL {
            let [refused, ok] = self.jobs[kind as usize];
            writeln!(f, "job {:<40}{ok:>12}{refused:>12}", format!("{kind:?}"))?;
        }
        for status in Status::ALL.iter().filter(|s| self.statuses[**s as usize] > 0) {
            writeln!(f, "status {:<37}{:>12}", format!("{status:?}"), self.statuses[*status as usize])?;
        }
        for met in Met::ALL {
            writeln!(f, "{:<44}{:>12}", met.name(), self.met[*met as usize])?;
        }
        Ok(())
    }
}
