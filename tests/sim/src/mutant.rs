//! Deliberate faults of the core, of the agent and of the daemon under one type: each must be caught.

use kvtide_client::agent::protocol::mutants::{self as agent, Mutant as AgentMutant};
use kvtide_tiering::mutants::Mutant as CoreMutant;

/// A fault that is compiled in, and inactive unless selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// In the core.
    Core(CoreMutant),
    /// In the agent's protocol.
    Agent(AgentMutant),
    /// In the layer between the core and the disk, which the simulator implements itself.
    Daemon(DaemonMutant),
}

/// A fault of the disk's side of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonMutant {
    /// A short transfer is reported as complete, and checksums are ignored.
    ShortIsOk,
    /// Pages with other bytes than those written are not reported.
    UncheckedRead,
    /// The end of a transfer is reported when it begins.
    EarlyIoDone,
}

impl DaemonMutant {
    const ALL: [DaemonMutant; 3] = [DaemonMutant::ShortIsOk, DaemonMutant::UncheckedRead, DaemonMutant::EarlyIoDone];
}

/// Faults that this simulator cannot show, with reasons. They do not affect its result; the tests of their crates cover them.
const HIDDEN: [(&str, &str); 6] = [
    ("AcquireWithoutPin", "the shipped agent pins before it asks, and answers Busy"),
    ("ReloadWhileInvalidating", "costs jobs that the shipped agent refuses, not content"),
    ("UnconditionalInvalidate", "shows in an order of jobs that the shipped core avoids; ffi's protocol model has it"),
    ("SampleIgnored", "the simulated daemon samples no page; ffi's protocol model flips bits in host memory"),
    ("EndKeepsHolds", "delays a job until the lane is next idle; ffi's protocol model sees it"),
    ("GatedStepKeepsNothing", "no simulated lane has gated steps; those of ffi's protocol model have"),
];

impl Mutant {
    /// Return the reason why the simulator cannot show it, if so.
    #[must_use]
    pub fn hidden(self) -> Option<&'static str> {
        if matches!(self, Mutant::Core(mutant) if CoreMutant::SLOW.contains(&mutant)) {
            return Some("costs time, not content; tiering's tests of prefetch notice");
        }
        let name = self.name();
        HIDDEN.iter().find(|(hidden, _)| *hidden == name).map(|(_, why)| *why)
    }

    /// Return all mutants, the core's first.
    pub fn all() -> impl Iterator<Item = Mutant> {
        let core = CoreMutant::ALL.iter().copied().map(Mutant::Core);
        let agent = AgentMutant::ALL.iter().copied().map(Mutant::Agent);
        core.chain(agent).chain(DaemonMutant::ALL.into_iter().map(Mutant::Daemon))
    }

    /// Return the daemon's fault, if it is one.
    #[must_use]
    pub fn daemon(self) -> Option<DaemonMutant> {
        match self {
            Mutant::Daemon(mutant) => Some(mutant),
            Mutant::Core(_) | Mutant::Agent(_) => None,
        }
    }

    /// Return the mutant of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Mutant> {
        Mutant::all().find(|mutant| mutant.name() == name)
    }

    /// Return its name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Mutant::Core(mutant) => format!("{mutant:?}"),
            Mutant::Agent(mutant) => format!("{mutant:?}"),
            Mutant::Daemon(mutant) => format!("{mutant:?}"),
        }
    }

    /// Enable the fault, or none, for this thread.
    pub fn select(mutant: Option<Mutant>) {
        let (core, agent_mutant) = match mutant {
            None | Some(Mutant::Daemon(_)) => (None, None),
            Some(Mutant::Core(mutant)) => (Some(mutant), None),
            Some(Mutant::Agent(mutant)) => (None, Some(mutant)),
        };
        kvtide_tiering::mutants::select(core);
        agent::select(agent_mutant);
    }
}
