//! Deliberate faults, picked at run time, that the simulator must catch. Without the feature `mutants` none exists: `on` is a
//! constant false and the branches vanish.

/// A fault at one point of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// A freed block's id is reused without unpublishing its pages first.
    DropJobSkipped,
    /// Pages of unsealed blocks may be evicted.
    EvictUnsealed,
    /// A dirty page is evicted as if it were clean.
    EvictDirty,
    /// A cancelled or timed-out request frees the target of a Store in flight.
    CancelFreesStoreTarget,
    /// A load that failed counts as a success.
    FailedLoadIsSuccess,
    /// A store that failed counts as a success.
    FailedStoreIsSuccess,
    /// Host frames that a lost session may still write are reused at once.
    NoQuarantine,
    /// Fork does not count its references to shared blocks.
    ForkWithoutReference,
    /// Fork shares the unsealed tail instead of copying it.
    ForkSharesTail,
    /// Truncate inside a sealed block keeps the block instead of copying it.
    TruncateWithoutCopy,
    /// A window's page retires one page too early.
    WindowRetiredEarly,
    /// Reserve admits more than fits.
    ReserveOverCapacity,
    /// A job that takes over a frame does not name the page that the frame shows.
    VictimOmitted,
    /// A frame with a store in flight may be taken over.
    TwoJobsOnOneFrame,
    /// Commit seals the page that its last token only begins.
    CommitSealsPartialPage,
    /// Map ignores which shard a cached block belongs to.
    MapWrongShard,
    /// Map attaches a block whose ancestors are not cached.
    MapSkipsParent,
    /// A resumed tail keeps its host copy, which the engine then makes stale.
    StaleHostCopy,
    /// A page gets a new frame while the one that it gave up may still show it.
    ReloadWhileLeaving,
    /// Acquire does not pin.
    AcquireWithoutPin,
    /// A read from disk that failed counts as a success.
    FailedReadIsSuccess,
    /// A page whose checksum does not fit counts as read.
    BadPageIsValid,
    /// A write to disk that failed counts as a success.
    FailedWriteIsClean,
    /// A host frame whose page is not on disk may be evicted.
    EvictDirtyHost,
    /// A host frame that a load reads may be evicted.
    EvictHostWhileLoading,
    /// A host frame that a transfer writes is free at once when its page gives it up.
    FreeWhileWriting,
    /// A resumed tail keeps its copy on disk, which the engine then makes stale.
    StaleDiskCopy,
    /// A block's slot is free while a transfer still names it.
    SlotFreedWhileMoving,
    /// A shrink ends before the frames that must go are empty.
    ShrinkEndsEarly,
    /// Free frames that must go stay free: pages are given them.
    ShrinkKeepsFreeFrames,
    /// A page that is only in a frame that must go is evicted as if it were clean.
    ShrinkEvictsDirty,
    /// A host frame that a window shows may be evicted.
    EvictHostInWindow,
    /// A content is dropped from under those that stand on it.
    ParentDroppedAlone,
    /// What a store under way stands on goes like any other content.
    DropsWhatStoresStandOn,
    /// Content that lacks pages of windows is as good as any: whoever has them stores nothing.
    ThinStays,
    /// A content that is dropped keeps its place in the order of what goes next.
    DroppedStaysInOrder,
    /// A copy out of an engine's own block that failed counts as a success.
    FailedGatherIsSuccess,
    /// A copy into an engine's own block that failed counts as a success.
    FailedScatterIsSuccess,
    /// What is stored becomes findable though what it stands on was dropped.
    StoreStandsOnNothing,
    /// A lookup finds contents of which a shard has no part.
    LookupTakesParts,
    /// A lease holds its prefix for half the time that was asked for.
    LeaseEndsEarly,
    /// A lease ends at its time though it is being loaded from.
    LeaseEndsUnderLoad,
    /// Scores are believed whatever sequence, plane or page they name.
    ScoresUnchecked,
    /// A page that attention does not need goes as if it were clean.
    LetGoUnstored,
    /// Pages that others read are given up for good.
    DropShared,
    /// Pages that every step reads are ranked like others, and given up for good.
    DropWhatIsRead,
    /// Predictions may ask for any number of loads.
    PrefetchUnbounded,
    /// Pages are ranked and moved although everything fits.
    PrefetchUnpressed,
    /// Loads that are not wanted any more are not called off.
    CancelForgotten,
    /// A load for a prediction takes the frame of a page that a running step needs.
    PromotionTakesNeeded,
    /// The pages that are predicted to be read least are loaded first.
    RankedBackwards,
    /// What attention read teaches nothing.
    MassForgotten,
    /// What queued sequences need takes the frames of what a running step needs.
    IntentTakesNeeded,
    /// The queued sequence that is due last is brought in first.
    IntentOutOfOrder,
    /// Queued sequences are brought in when they are queued, however long before they are due.
    IntentIgnoresDue,
}

impl Mutant {
    /// All of them.
    pub const ALL: &[Mutant] = &[
        Mutant::DropJobSkipped,
        Mutant::EvictUnsealed,
        Mutant::EvictDirty,
        Mutant::CancelFreesStoreTarget,
        Mutant::FailedLoadIsSuccess,
        Mutant::FailedStoreIsSuccess,
        Mutant::NoQuarantine,
        Mutant::ForkWithoutReference,
        Mutant::ForkSharesTail,
        Mutant::TruncateWithoutCopy,
        Mutant::WindowRetiredEarly,
        Mutant::ReserveOverCapacity,
        Mutant::VictimOmitted,
        Mutant::TwoJobsOnOneFrame,
        Mutant::CommitSealsPartialPage,
        Mutant::MapWrongShard,
        Mutant::MapSkipsParent,
        Mutant::StaleHostCopy,
        Mutant::ReloadWhileLeaving,
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
        Mutant::EvictHostInWindow,
        Mutant::ParentDroppedAlone,
        Mutant::DropsWhatStoresStandOn,
        Mutant::ThinStays,
        Mutant::DroppedStaysInOrder,
        Mutant::FailedGatherIsSuccess,
        Mutant::FailedScatterIsSuccess,
        Mutant::StoreStandsOnNothing,
        Mutant::LookupTakesParts,
        Mutant::LeaseEndsEarly,
        Mutant::LeaseEndsUnderLoad,
        Mutant::ScoresUnchecked,
        Mutant::LetGoUnstored,
        Mutant::DropShared,
        Mutant::DropWhatIsRead,
        Mutant::PrefetchUnbounded,
        Mutant::PrefetchUnpressed,
        Mutant::CancelForgotten,
        Mutant::PromotionTakesNeeded,
        Mutant::RankedBackwards,
        Mutant::MassForgotten,
        Mutant::IntentTakesNeeded,
        Mutant::IntentOutOfOrder,
        Mutant::IntentIgnoresDue,
    ];

    /// Those that cost time or memory, and never a result: no model of contents can see them. `tests/prefetch.rs`,
    /// `tests/queued.rs`, `tests/blocks.rs` and `tests/heal.rs` do.
    pub const SLOW: &[Mutant] = &[
        Mutant::DropsWhatStoresStandOn,
        Mutant::ThinStays,
        Mutant::PrefetchUnbounded,
        Mutant::PrefetchUnpressed,
        Mutant::CancelForgotten,
        Mutant::PromotionTakesNeeded,
        Mutant::RankedBackwards,
        Mutant::MassForgotten,
        Mutant::IntentTakesNeeded,
        Mutant::IntentOutOfOrder,
        Mutant::IntentIgnoresDue,
    ];

    /// Its name, as the command line takes it.
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

    /// Picks the fault of this thread's cores, or none.
    pub fn select(mutant: Option<Mutant>) {
        PICKED.with(|p| p.set(mutant));
    }

    /// Whether this fault is picked on this thread.
    #[must_use]
    pub fn on(mutant: Mutant) -> bool {
        PICKED.with(|p| p.get() == Some(mutant))
    }
}

#[cfg(feature = "mutants")]
pub use picked::{on, select};

/// Whether this fault is picked: never, in a build without the feature.
#[cfg(not(feature = "mutants"))]
#[must_use]
#[inline(always)]
pub const fn on(_mutant: Mutant) -> bool {
    false
}
