//! Deliberate bugs for tests that must detect them. In builds with the feature `mutants`, each thread can select one at run
//! time. Without the feature the check is a constant and leaves no code.

/// A bug that can be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(not(feature = "mutants"), allow(dead_code))] // named by the code that would contain the bugs
pub enum Mutant {
    /// A frame is overwritten without waiting for lanes' boundaries.
    NoBoundaryWait,
    /// A victim is overwritten without being invalidated.
    VictimStaysInstalled,
    /// An invalidation clears an entry that already shows another frame.
    UnconditionalInvalidate,
    /// A page is installed before its copy is done.
    InstallBeforeCopyDone,
    /// A copy of too few bytes counts as done.
    ShortCopyIsOk,
    /// A pinned page is removed.
    NoPinCheck,
    /// A lane that was lapped by the log continues without a rebuild.
    RebuildSkipped,
    /// A lane begins without applying the updates that were logged while it was quiescent.
    BeginSkipsCatchUp,
    /// A cancelled copy that has begun is reported as ended at once.
    CancelFreesAtOnce,
    /// A cancelled job leaves its victim invalidated.
    CancelLosesVictim,
    /// The end of a step leaves the lane's holds in place.
    EndKeepsHolds,
    /// Loaded bytes that differ from the stored ones are installed.
    SampleIgnored,
    /// A page is moved while a lane is in a step.
    MoveInStep,
    /// A lane begins while a page is being moved.
    BeginIgnoresGate,
    /// A copy out of an engine's own block is reported as ended when it begins.
    GatherEndsEarly,
    /// A lane gives up pages of a gated step before its end.
    GatedStepKeepsNothing,
}

#[cfg(feature = "mutants")]
impl Mutant {
    /// Every mutant.
    pub const ALL: [Mutant; 16] = [
        Mutant::NoBoundaryWait,
        Mutant::VictimStaysInstalled,
        Mutant::UnconditionalInvalidate,
        Mutant::InstallBeforeCopyDone,
        Mutant::ShortCopyIsOk,
        Mutant::NoPinCheck,
        Mutant::RebuildSkipped,
        Mutant::BeginSkipsCatchUp,
        Mutant::CancelFreesAtOnce,
        Mutant::CancelLosesVictim,
        Mutant::EndKeepsHolds,
        Mutant::SampleIgnored,
        Mutant::MoveInStep,
        Mutant::BeginIgnoresGate,
        Mutant::GatherEndsEarly,
        Mutant::GatedStepKeepsNothing,
    ];

    /// Return the mutant's name, as tests print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Mutant::NoBoundaryWait => "NoBoundaryWait",
            Mutant::VictimStaysInstalled => "VictimStaysInstalled",
            Mutant::UnconditionalInvalidate => "UnconditionalInvalidate",
            Mutant::InstallBeforeCopyDone => "InstallBeforeCopyDone",
            Mutant::ShortCopyIsOk => "ShortCopyIsOk",
            Mutant::NoPinCheck => "NoPinCheck",
            Mutant::RebuildSkipped => "RebuildSkipped",
            Mutant::BeginSkipsCatchUp => "BeginSkipsCatchUp",
            Mutant::CancelFreesAtOnce => "CancelFreesAtOnce",
            Mutant::CancelLosesVictim => "CancelLosesVictim",
            Mutant::EndKeepsHolds => "EndKeepsHolds",
            Mutant::SampleIgnored => "SampleIgnored",
            Mutant::MoveInStep => "MoveInStep",
            Mutant::BeginIgnoresGate => "BeginIgnoresGate",
            Mutant::GatherEndsEarly => "GatherEndsEarly",
            Mutant::GatedStepKeepsNothing => "GatedStepKeepsNothing",
        }
    }
}

#[cfg(feature = "mutants")]
std::thread_local! {
    static CHOSEN: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Select the bug of this thread.
#[cfg(feature = "mutants")]
pub fn select(mutant: Option<Mutant>) {
    CHOSEN.set(mutant);
}

/// Report whether this bug is on.
#[cfg(feature = "mutants")]
pub(super) fn on(mutant: Mutant) -> bool {
    CHOSEN.get() == Some(mutant)
}

/// Report whether this bug is on: never.
#[cfg(not(feature = "mutants"))]
pub(super) const fn on(_: Mutant) -> bool {
    false
}
