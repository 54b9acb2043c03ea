//! Deliberate faults, selected at run time, that the simulator must detect. Without the feature `mutants`, `on` is a constant false
//! and the branches disappear.

/// A fault at one point of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A freed block's id is reused before its pages are invalidated.
    DropJobSkipped,
    /// Pages of unsealed blocks may be evicted.
    EvictUnsealed,
    /// A dirty page is evicted as if it were clean.
    EvictDirty,
    /// A canceled or timed-out request frees the target of a `CopyOut` job in flight.
    CancelFreesCopyOutTarget,
    /// A failed copy in counts as a success.
    FailedCopyInIsSuccess,
    /// A failed copy out counts as a success.
    FailedCopyOutIsSuccess,
    /// Host frames that a lost session may still write are reused at once.
    NoQuarantine,
    /// Fork does not count its references to shared blocks.
    ForkWithoutReference,
    /// Fork shares the unsealed tail instead of copying it.
    ForkSharesTail,
    /// Truncate inside a sealed block keeps the block instead of copying it.
    TruncateWithoutCopy,
    /// A window's page is discarded one page too early.
    WindowDiscardedEarly,
    /// Reserve admits more than fits.
    ReserveOverCapacity,
    /// A job that reassigns a frame does not name the page shown in the frame.
    VictimOmitted,
    /// A frame with a `CopyOut` job in flight may be reassigned.
    TwoJobsOnOneFrame,
    /// Commit seals a page of which its last token only fills the first part.
    CommitSealsPartialPage,
    /// AttachPrefix ignores which shard a cached block belongs to.
    AttachWrongShard,
    /// AttachPrefix attaches a block without its ancestors being cached.
    AttachSkipsParent,
    /// A resumed tail keeps its host copy, which the engine then makes stale.
    StaleHostCopy,
    /// A page gets a new frame while the released one may still show it.
    ReloadWhileInvalidating,
    /// Acquire does not pin.
    AcquireWithoutPin,
    /// A failed read from disk counts as a success.
    FailedReadIsSuccess,
    /// A page with a checksum mismatch counts as read.
    BadPageIsValid,
    /// A failed write to disk counts as a success.
    FailedWriteIsClean,
    /// A host frame without a copy on disk may be evicted.
    EvictDirtyHost,
    /// A host frame may be evicted while a load reads it.
    EvictHostWhileLoading,
    /// A host frame is freed while a transfer writes it, as soon as its page releases it.
    FreeWhileWriting,
    /// A resumed tail keeps its copy on disk, which the engine then makes stale.
    StaleDiskCopy,
    /// A block's slot is freed while a transfer still names it.
    SlotFreedWhileMoving,
    /// A shrink ends before the removed frames are empty.
    ShrinkEndsEarly,
    /// Free frames to be removed stay available, so pages are placed in them.
    ShrinkKeepsFreeFrames,
    /// A page that is only in a frame to be removed is evicted as if it were clean.
    ShrinkEvictsDirty,
    /// A host frame may be evicted while a mapped frame maps it.
    EvictHostWhileMapped,
    /// A cached block is dropped before its descendants.
    ParentDroppedAlone,
    /// The ancestors of a store in progress are dropped like any other cached block.
    DropsParentsOfStores,
    /// A partial block (pages of windows are missing) counts as complete: an engine that has the missing pages stores nothing.
    PartialStays,
    /// A dropped cached block keeps its place in the eviction order.
    DroppedStaysInOrder,
    /// A failed copy out of an engine's own block counts as a success.
    FailedGatherIsSuccess,
    /// A failed copy into an engine's own block counts as a success.
    FailedScatterIsSuccess,
    /// A stored block becomes findable although its parent was dropped.
    StoreWithoutParent,
    /// A lookup finds cached blocks of which a shard has no copy.
    LookupTakesPartial,
    /// A lease pins its prefix for half of the requested time.
    LeaseEndsEarly,
    /// A lease expires while a load uses it.
    LeaseEndsUnderLoad,
    /// Scores are accepted without checking the sequence, plane or page that they name.
    ScoresUnchecked,
    /// A page that attention does not need is evicted as if it were clean.
    EvictFirstUnstored,
    /// The number of predicted loads is unlimited.
    PrefetchUnbounded,
    /// Pages are ranked and moved although all pages fit.
    PrefetchUnpressed,
    /// Predicted loads that are no longer wanted are not canceled.
    CancelForgotten,
    /// A predicted load takes the frame of a page that a running step needs.
    PromotionTakesNeeded,
    /// The pages with the lowest predicted share are loaded first.
    RankedBackwards,
    /// Reported attention does not update the predictions.
    MassForgotten,
    /// Loads for queued sequences take frames of pages that a running step needs.
    ScheduledTakesNeeded,
    /// The queued sequence with the latest due time is loaded first.
    ScheduledOutOfOrder,
    /// Queued sequences are loaded as soon as they are queued, however far away their due time is.
    ScheduledIgnoresDue,
    /// The feed does not tell that a block is gone.
    FeedOmitsRemoved,
    /// The feed tells of a block of which a shard has no part.
    FeedTellsPartial,
    /// A session's first answer from the feed is no gap if the feed has the number.
    FeedTrustsNumber,
    /// A request has no deadline.
    DeadlineForgotten,
    /// A `CopyOut` job that ended still counts as in flight in its size class.
    CopyOutCountedTwice,
    /// A sequence that was dropped still exists, without blocks.
    DroppedSequenceStays,
    /// A page that an acquire has pinned still counts as one that it will pin.
    PinPromiseKept,
    /// A freed host frame wakes nobody who waits for one.
    FreedHostWakesNobody,
    /// A page that leaves its window still counts for what its block may need.
    WindowStaysCharged,
    /// The loads of a lost session count after its process has exited.
    ReadingOfLostKept,
    /// A session's guaranteed blocks stay reserved after it is lost.
    GuaranteeOutlivesSession,
}

impl Mutant {
    /// All faults.
    pub const ALL: &[Mutant] = &[
        Mutant::DropJobSkipped,
        Mutant::EvictUnsealed,
        Mutant::EvictDirty,
        Mutant::CancelFreesCopyOutTarget,
        Mutant::FailedCopyInIsSuccess,
        Mutant::FailedCopyOutIsSuccess,
        Mutant::NoQuarantine,
        Mutant::ForkWithoutReference,
        Mutant::ForkSharesTail,
        Mutant::TruncateWithoutCopy,
        Mutant::WindowDiscardedEarly,
        Mutant::ReserveOverCapacity,
        Mutant::VictimOmitted,
        Mutant::TwoJobsOnOneFrame,
        Mutant::CommitSealsPartialPage,
        Mutant::AttachWrongShard,
        Mutant::AttachSkipsParent,
        Mutant::StaleHostCopy,
        Mutant::ReloadWhileInvalidating,
        Mutant::AcquireWithoutPin,
        Mutant::FailedReadIsSuccess,
        Mutant::BadPageIsValid,
        Mutant::FailedWriteIsClean,
        Mutant::EvictDirtyHost,
        Mutant::EvictHostWhileLoading,
        Mutant::FreeWhileWriting,
        Mutant::StaleDiskCopy,
        Mutant::SlotFreedWhileMoving,
        Mutant::ShrinkEndsEarly,
        Mutant::ShrinkKeepsFreeFrames,
        Mutant::ShrinkEvictsDirty,
        Mutant::EvictHostWhileMapped,
        Mutant::ParentDroppedAlone,
        Mutant::DropsParentsOfStores,
        Mutant::PartialStays,
        Mutant::DroppedStaysInOrder,
        Mutant::FailedGatherIsSuccess,
        Mutant::FailedScatterIsSuccess,
        Mutant::StoreWithoutParent,
        Mutant::LookupTakesPartial,
        Mutant::LeaseEndsEarly,
        Mutant::LeaseEndsUnderLoad,
        Mutant::ScoresUnchecked,
        Mutant::EvictFirstUnstored,
        Mutant::PrefetchUnbounded,
        Mutant::PrefetchUnpressed,
        Mutant::CancelForgotten,
        Mutant::PromotionTakesNeeded,
        Mutant::RankedBackwards,
        Mutant::MassForgotten,
        Mutant::ScheduledTakesNeeded,
        Mutant::ScheduledOutOfOrder,
        Mutant::ScheduledIgnoresDue,
        Mutant::FeedOmitsRemoved,
        Mutant::FeedTellsPartial,
        Mutant::FeedTrustsNumber,
        Mutant::DeadlineForgotten,
        Mutant::CopyOutCountedTwice,
        Mutant::DroppedSequenceStays,
        Mutant::PinPromiseKept,
        Mutant::FreedHostWakesNobody,
        Mutant::WindowStaysCharged,
        Mutant::ReadingOfLostKept,
        Mutant::GuaranteeOutlivesSession,
    ];

    /// Faults that cost only time or memory and never change a result, so a model of the contents cannot detect them.
    /// `tests/prefetch.rs`, `tests/queued.rs`, `tests/blocks.rs` and `tests/heal.rs` do.
    pub const SLOW: &[Mutant] = &[
        Mutant::DropsParentsOfStores,
        Mutant::PartialStays,
        Mutant::PrefetchUnbounded,
        Mutant::PrefetchUnpressed,
        Mutant::CancelForgotten,
        Mutant::PromotionTakesNeeded,
        Mutant::RankedBackwards,
        Mutant::MassForgotten,
        Mutant::ScheduledTakesNeeded,
        Mutant::ScheduledOutOfOrder,
        Mutant::ScheduledIgnoresDue,
    ];

    /// Return the fault's name, as the command line accepts it.
    #[must_use]
    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

#[cfg(feature = "mutants")]
mod picked {
    use super::Mutant;
    use std::cell::Cell;

    thread_local! {
        static PICKED: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Select the fault for this thread's cores; `None`: no fault.
    pub fn select(mutant: Option<Mutant>) {
        PICKED.with(|p| p.set(mutant));
    }

    /// Return whether this fault is selected on this thread.
    #[must_use]
    pub fn on(mutant: Mutant) -> bool {
        PICKED.with(|p| p.get() == Some(mutant))
    }
}

#[cfg(feature = "mutants")]
pub use picked::{on, select};

/// Return whether this fault is selected: never, in a build without the feature.
#[cfg(not(feature = "mutants"))]
#[must_use]
#[inline(always)]
pub const fn on(_mutant: Mutant) -> bool {
    false
}
