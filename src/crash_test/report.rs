//! What a run came to, as text and as JSON.

use super::plan::{Phase, Plan};
use super::round::Outcome;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Wrong pages and broken calls that are spelled out.
const SHOWN: usize = 10;

/// The whole run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Kills under load.
    rounds: u32,
    /// Blocks reported stored or durable while nothing had to be evicted, each counted once.
    stored: u64,
    /// Of those, the ones that were there, and right, after the kill that followed.
    recovered: u64,
    /// Pages that were not what their hash says, in all rounds, before and after kills.
    wrong: u64,
    /// Blocks reported stored while nothing had to be evicted that were not there after a kill, or could not be read.
    lost_stored: u64,
    /// Calls that a healthy daemon must never answer so, with what they said.
    broken: Vec<String>,
    /// Wrong pages, the first of them.
    wrong_pages: Vec<String>,
    /// Why blocks could not be read, the first reasons.
    unreadable: Vec<String>,
    /// Reads of blocks after kills that had been found after an earlier one.
    read_again: u64,
    /// The second phase, in which the NVMe tier evicts.
    evicting: Evicting,
    /// Daemons killed while they started.
    killed_starting: u32,
    /// From a start to the first engine that may attach: the longest.
    restart_ms_max: u64,
    /// Calls of the load that failed, by status; those that end with the daemon among them.
    failed: BTreeMap<String, u64>,
    /// What a run with the same flags needs to kill at the same moments.
    seed: u64,
    /// Codec of the NVMe tier.
    codec: String,
    /// Whether it was encrypted.
    encrypted: bool,
    /// Where stores are that were kept because something was wrong.
    kept: Vec<String>,
}

/// The second phase.
#[derive(Debug, Default, Serialize)]
struct Evicting {
    rounds: u32,
    stored: u64,
    /// Of those, the ones that were there, and right, after the kill that followed.
    recovered: u64,
    /// Of those and of earlier ones, the ones that were not: evicted by design.
    missing: u64,
}

impl Report {
    /// Of a run that has not begun.
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

    /// Adds a round.
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

    /// Blocks that were reported stored in a phase.
    pub fn stored(&self, phase: Phase) -> u64 {
        match phase {
            Phase::Keeping => self.stored,
            Phase::Evicting => self.evicting.stored,
        }
    }

    /// Whether every byte was right and everything stored was there.
    pub fn is_good(&self) -> bool {
        self.wrong == 0 && self.lost_stored == 0 && self.broken.is_empty()
    }

    /// A store was left where it is.
    pub fn keep(&mut self, dir: &Path) {
        self.kept.push(dir.display().to_string());
    }

    /// One object and nothing else.
    pub fn json(&self) -> String {
        let json = serde_json::to_string(self);
        json.expect("numbers, texts and paths of texts are JSON") + "\n"
    }

    /// For people.
    pub fn text(&self) -> String {
        let Evicting { rounds, stored, recovered, missing } = self.evicting;
        let mut text = format!(
            "rounds       {} (and {} daemons killed while they started)\n\
             stored       {} blocks\n\
             recovered    {}\n\
             lost stored  {}\n\
             wrong pages  {}\n\
             evicting     {rounds} of the rounds: {stored} blocks stored, {recovered} recovered, {missing} missing by design\n\
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
        text.extend(self.kept.iter().map(|dir| format!("the store was kept in {dir}\n")));
        text + if self.is_good() { "every byte was right, and everything stored was there\n" } else { "FAILED\n" }
    }
}
