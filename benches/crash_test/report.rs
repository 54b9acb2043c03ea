//! Results of a run, as text and JSON.

use super::plan::{Phase, Plan};
use super::round::Outcome;
use kvtide_daemon::output;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Maximum number of wrong pages and unexpected errors that are listed.
const SHOWN: usize = 10;

/// Results of the whole run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Kills under load.
    rounds: u32,
    /// Blocks reported stored or durable in the phase without eviction, each counted once.
    stored: u64,
    /// Stored blocks that were found and correct after the next kill.
    recovered: u64,
    /// Pages with bytes that did not match their hash, in all rounds, before and after kills.
    wrong: u64,
    /// Blocks reported stored in the phase without eviction that were not found or could not be read after a kill.
    lost_stored: u64,
    /// Errors that a healthy daemon must not return.
    broken: Vec<String>,
    /// The first wrong pages.
    wrong_pages: Vec<String>,
    /// The first errors of reads of stored blocks.
    unreadable: Vec<String>,
    /// Reads of blocks that had been found after an earlier kill.
    read_again: u64,
    /// The second phase, in which the NVMe tier evicts.
    evicting: Evicting,
    /// Daemons killed during their start.
    killed_starting: u32,
    /// Maximum milliseconds from a start until engines can attach.
    restart_ms_max: u64,
    /// Failed calls of the load by status, including those that failed because of the kill.
    failed: BTreeMap<String, u64>,
    /// Seed of the run, for a run with the same kill times.
    seed: u64,
    /// Codec of the NVMe tier.
    codec: String,
    /// The NVMe tier was encrypted.
    encrypted: bool,
    /// Directories of stores that were kept because of errors.
    kept: Vec<String>,
}

/// Results of the second phase.
#[derive(Debug, Default, Serialize)]
struct Evicting {
    rounds: u32,
    stored: u64,
    /// Stored blocks that were found and correct after the next kill.
    recovered: u64,
    /// Stored blocks, of this and earlier rounds, that were evicted.
    missing: u64,
}

impl Report {
    /// Create an empty report.
    pub fn new(plan: &Plan) -> Report {
        Report {
            rounds: 0,
            stored: 0,
            recovered: 0,
            wrong: 0,
            lost_stored: 0,
            broken: Vec::new(),
            wrong_pages: Vec::new(),
            unreadable: Vec::new(),
            read_again: 0,
            evicting: Evicting::default(),
            killed_starting: 0,
            restart_ms_max: 0,
            failed: BTreeMap::new(),
            seed: plan.seed,
            codec: plan.codec.clone(),
            encrypted: plan.encrypted,
            kept: Vec::new(),
        }
    }

    /// Add a round.
    pub fn add(&mut self, phase: Phase, outcome: &Outcome) {
        let Outcome { checked, seen, .. } = outcome;
        self.rounds += 1;
        match phase {
            Phase::Keeping => {
                self.stored += outcome.stored;
                self.recovered += checked.recovered;
                self.lost_stored += checked.missing;
            }
            Phase::Evicting => {
                self.evicting.rounds += 1;
                self.evicting.stored += outcome.stored;
                self.evicting.recovered += checked.recovered;
                self.evicting.missing += checked.missing;
            }
        }
        self.read_again += checked.again;
        self.wrong += (checked.wrong.len() + seen.wrong.len()) as u64;
        let pages = checked.wrong.iter().chain(&seen.wrong).map(ToString::to_string);
        self.wrong_pages.extend(pages.take(SHOWN.saturating_sub(self.wrong_pages.len())));
        let why = checked.unreadable.iter().cloned();
        self.unreadable.extend(why.take(SHOWN.saturating_sub(self.unreadable.len())));
        self.broken.extend(seen.broken.iter().take(SHOWN.saturating_sub(self.broken.len())).cloned());
        for (status, count) in &seen.failed {
            *self.failed.entry(status.clone()).or_default() += count;
        }
        self.killed_starting += outcome.killed_again;
        self.restart_ms_max = self.restart_ms_max.max(outcome.restart.as_millis() as u64);
    }

    /// Return the number of blocks reported stored in a phase.
    pub fn stored(&self, phase: Phase) -> u64 {
        match phase {
            Phase::Keeping => self.stored,
            Phase::Evicting => self.evicting.stored,
        }
    }

    /// Return true if all bytes were correct and no stored block was lost.
    pub fn is_good(&self) -> bool {
        self.wrong == 0 && self.lost_stored == 0 && self.broken.is_empty()
    }

    /// Record a store that is kept.
    pub fn keep(&mut self, dir: &Path) {
        self.kept.push(dir.display().to_string());
    }

    /// Return one JSON object.
    pub fn json(&self) -> String {
        output::json_line(self)
    }

    /// Return the report as text.
    pub fn text(&self) -> String {
        let Evicting { rounds, stored, recovered, missing } = self.evicting;
        let mut text = format!(
            "rounds       {} (and {} daemons killed during their start)\n\
             stored       {} blocks\n\
             recovered    {} blocks\n\
             lost         {} blocks\n\
             wrong pages  {}\n\
             evicting     {rounds} rounds: {stored} blocks stored, {recovered} recovered, {missing} evicted\n\
             restart      {} ms at most\n\
             seed         {}\n",
            self.rounds,
            self.killed_starting,
            self.stored,
            self.recovered,
            self.lost_stored,
            self.wrong,
            self.restart_ms_max,
            self.seed,
        );
        let bad = [("wrong", &self.wrong_pages), ("unreadable", &self.unreadable), ("broken", &self.broken)];
        for (what, lines) in bad {
            text.extend(lines.iter().map(|line| format!("{what}: {line}\n")));
        }
        text.extend(self.kept.iter().map(|dir| format!("store kept in {dir}\n")));
        text + if self.is_good() { "PASSED: all bytes correct, no stored block lost\n" } else { "FAILED\n" }
    }
}
