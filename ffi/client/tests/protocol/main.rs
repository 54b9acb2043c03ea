//! The agent's protocol against a plain model. At every moment, every table entry of every active lane shows a frame that holds
//! that page's bytes; every job ends once; nothing is lost. Failures print the seed and the command that replays it.
#![cfg(not(loom))]

mod directed;
mod model;
#[cfg(feature = "mutants")]
mod mutants;

use model::Model;

/// Operations in one run.
const OPERATIONS: usize = 4_000;

/// Return the seeds of this run: one from the environment, or the fixed range.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("KVTIDE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => (0..count).collect(),
    }
}

#[test]
fn no_lane_ever_reads_a_frame_of_another_page() {
    for seed in seeds(60) {
        let mut model = Model::new(seed);
        if let Err(why) = model.run(OPERATIONS) {
            panic!(
                "seed {seed}: {why}\nreplay: KVTIDE_SEED={seed} cargo test -p kvtide-client --test protocol no_lane"
            );
        }
        let jobs = model.jobs_ended();
        assert!(jobs > 300, "seed {seed}: only {jobs} jobs ended, too few for this check");
    }
}
