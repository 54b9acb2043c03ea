//! The trace of a run: a hash over all events, and, on request, the last events as text.
//!
//! Text costs time, so it is kept only when a failing seed is replayed for its report.

use std::collections::VecDeque;

/// Maximum events as text in a report.
const KEPT: usize = 40_000;

/// Fold one word into a hash (the finaliser of splitmix64 over the sum; order matters).
#[must_use]
pub fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash.rotate_left(5) ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Hash and, on request, text.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    words: Option<VecDeque<String>>,
    /// The first line: how the run is drawn.
    first: Option<String>,
}

impl Trace {
    /// Create a trace that keeps the last events as text if `verbose`.
    #[must_use]
    pub fn new(verbose: bool) -> Trace {
        Trace { hash: 0, words: verbose.then(VecDeque::new), first: None }
    }

    /// Fold an event into the hash.
    pub fn fold(&mut self, words: &[u64]) {
        self.hash = words.iter().fold(self.hash, |hash, word| mix(hash, *word));
    }

    /// Return whether text is kept.
    #[must_use]
    pub fn is_verbose(&self) -> bool {
        self.words.is_some()
    }

    /// Record an event as text; `text` is evaluated only if text is kept.
    pub fn say(&mut self, at_us: u64, text: impl FnOnce() -> String) {
        if let Some(words) = &mut self.words {
            let text = format!("{at_us:>9} {}", text());
            if self.first.is_none() {
                self.first = Some(text);
                return;
            }
            if words.len() == KEPT {
                words.pop_front();
            }
            words.push_back(text);
        }
    }

    /// Return the hash of the run: equal for equal seeds.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Return the last events as text, oldest first; empty unless requested.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        self.first.iter().chain(self.words.iter().flatten()).cloned().collect()
    }
}
