//! One episode: a random space, random engines and random faults, all from one seed, until its operations are done.

use crate::coverage::Coverage;
use crate::failure::{Caught, Failure};
use crate::mutant::Mutant;
use crate::world::World;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Report of a successful episode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Requests and steps.
    pub ops: u64,
    /// Simulated events.
    pub events: u64,
    /// Hash over all events.
    pub hash: u64,
    /// Counts of events.
    pub coverage: Coverage,
}

/// Run the episode of `seed`, with a deliberate fault if one is given; `verbose` keeps the last events as text.
///
/// # Errors
/// The failure, which may be a panic of the system under test.
pub fn run(seed: u64, mutant: Option<Mutant>, verbose: bool) -> Result<Report, Box<Failure>> {
    Mutant::select(mutant);
    let mut world = World::new(seed, verbose, mutant.and_then(Mutant::daemon));
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    Mutant::select(None);
    let (caught, detail) = match outcome {
        Ok(Ok(())) => return Ok(world.report()),
        Ok(Err(wrong)) => (wrong.caught, wrong.detail),
        Err(panic) => (Caught::Panic, message(panic.as_ref())),
    };
    let report = world.report();
    let events = world.context().trace.words();
    let (at_us, core) = (world.context().now(), verbose.then(|| world.core()).flatten());
    Err(Box::new(Failure { seed, mutant, caught, detail, at_us, ops: report.ops, events, core }))
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
}
