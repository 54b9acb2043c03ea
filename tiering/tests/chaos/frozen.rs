//! What the core did with each seed, compared with the recorded hashes.

use super::Chaos;

#[path = "../../../tests/frozen/mod.rs"]
mod file;
#[allow(dead_code)] // no text is kept here
#[path = "../../../tests/sim/src/base/trace.rs"]
mod trace;

use trace::mix;

impl Chaos {
    /// Fold the actions and the final figures of a core, which ends, into the hashes.
    pub fn end_core(&mut self) {
        let core = &self.w.core;
        let figures = postcard::to_stdvec(&(core.counters(), core.occupancy())).unwrap();
        let [actions, state] = self.hashes;
        let state = figures.iter().fold(state, |hash, &byte| mix(hash, u64::from(byte)));
        self.hashes = [mix(actions, core.trace().hash()), state];
    }
}

/// Compare the hashes of all seeds, a line each.
pub fn compare(lines: &str) {
    let title = "# seed, hash of all actions, hash of counters and occupancy\n";
    file::compare(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chaos/frozen.txt"), &(title.to_owned() + lines));
}
