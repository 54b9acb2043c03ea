//! Simulator tests of `cargo test`; a million operations and all mutants run through its binary in release mode.

use kvtide_sim::episode;
use kvtide_sim::failure::{Caught, Failure};
use kvtide_sim::mutant::Mutant;
use kvtide_sim::run::{episode_seed, hunt, run};

/// Operations that a debug build simulates in far less than a minute.
const OPS: u64 = 50_000;

#[test]
fn fifty_thousand_operations_agree_with_the_model() {
    let summary = run(1, OPS, 2, &|_| {}).unwrap_or_else(|failure| panic!("{}", last_words(&failure)));
    assert!(summary.ops >= OPS);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let runs = |seed| episode::run(seed, None, false).map(|report| (report.hash, report.ops, report.events)).ok();
    let seeds: Vec<u64> = (0..4).map(|index| episode_seed(2, index)).collect();
    let first: Vec<_> = seeds.iter().map(|seed| runs(*seed)).collect();
    assert!(first.iter().all(Option::is_some));
    // On another thread: no difference between threads or hash maps may affect the result.
    let again = std::thread::spawn(move || seeds.iter().map(|seed| runs(*seed)).collect::<Vec<_>>());
    assert_eq!(first, again.join().expect("it does not panic"));
    let hashes: std::collections::BTreeSet<_> = first.iter().flatten().map(|run| run.0).collect();
    assert_eq!(hashes.len(), 4, "different seeds give different traces");
}

#[test]
fn a_mutant_is_caught_and_its_seed_replays() {
    let mutant = Mutant::named("NoBoundaryWait").expect("it exists");
    let (failure, _) = hunt(3, mutant, 100_000);
    let failure = failure.expect("it is caught");
    let again = episode::run(failure.seed, Some(mutant), true).expect_err("its seed replays");
    assert_eq!((again.caught, again.ops, again.at_us), (failure.caught, failure.ops, failure.at_us));
    assert!(!again.events.is_empty());
    assert!(again.to_string().contains(&format!("--seed {} --mutant NoBoundaryWait", failure.seed)));
    assert!(episode::run(failure.seed, None, false).is_ok(), "without the mutant the episode passes");
}

#[test]
fn a_daemon_that_hides_what_its_disk_did_is_caught() {
    for name in ["ShortIsOk", "UncheckedRead", "EarlyIoDone"] {
        let mutant = Mutant::named(name).expect("it exists");
        let (failure, done) = hunt(4, mutant, 200_000);
        let failure = failure.unwrap_or_else(|| panic!("{name} survived {done} operations"));
        // Either a reader saw it, or two users of the same memory met.
        assert!(matches!(failure.caught, Caught::WrongContent | Caught::Overlap), "{}", last_words(&failure));
    }
}

#[test]
fn what_the_block_api_must_not_do_is_caught() {
    for name in ["GatherEndsEarly", "StoreWithoutParent", "LeaseEndsEarly", "LookupTakesPartial"] {
        let mutant = Mutant::named(name).expect("it exists");
        let (failure, done) = hunt(5, mutant, 100_000);
        let failure = failure.unwrap_or_else(|| panic!("{name} survived {done} operations"));
        let seen = [Caught::Overlap, Caught::WrongContent, Caught::WrongAnswer, Caught::UnjustifiedError];
        assert!(seen.contains(&failure.caught), "{}", last_words(&failure));
    }
}

#[test]
fn what_the_feed_must_not_tell_is_caught_by_its_readers() {
    for name in ["FeedOmitsRemoved", "FeedTellsPartial", "FeedTrustsNumber"] {
        let mutant = Mutant::named(name).expect("it exists");
        let (failure, done) = hunt(6, mutant, 200_000);
        let failure = failure.unwrap_or_else(|| panic!("{name} survived {done} operations"));
        assert_eq!(failure.caught, Caught::WrongAnswer, "{}", last_words(&failure));
    }
}

/// Return the end of a failure's report: the finding and the command to replay it.
fn last_words(failure: &Failure) -> String {
    let text = failure.to_string();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
