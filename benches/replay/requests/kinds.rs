//! Synthetic traces of several kinds of services, from a seed, so that policies are not judged by one kind only.

use super::super::trace::Requests;
use std::fmt::Write;

/// Random numbers (PCG by O'Neill 2014, without its permutation: the high bits are sufficient here).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn from(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// Return an index by Zipf's law.
    fn popular(&mut self, many: usize) -> usize {
        let weight = |i: usize| 1_000_000 / (i as u64 + 1);
        let mut at = self.below((0..many).map(weight).sum());
        (0..many).find(|&i| at.checked_sub(weight(i)).map(|left| at = left).is_none()).unwrap_or(0)
    }
}

/// A trace under construction.
struct Making {
    random: Random,
    text: String,
    blocks: u64,
    uses: usize,
    time_ms: u64,
}

impl Making {
    fn new(seed: u64) -> Making {
        Making { random: Random(seed), text: String::new(), blocks: 0, uses: 0, time_ms: 0 }
    }

    /// Return new blocks.
    fn fresh(&mut self, many: std::ops::Range<u64>) -> Vec<u64> {
        let first = self.blocks;
        self.blocks += self.random.from(many);
        (first..self.blocks).collect()
    }

    fn documents(&mut self, many: usize, blocks: std::ops::Range<u64>) -> Vec<Vec<u64>> {
        (0..many).map(|_| self.fresh(blocks.clone())).collect()
    }

    /// Add a request: a prefix, and new blocks after it.
    fn ask(&mut self, prefix: &[u64], own: std::ops::Range<u64>) {
        let ids = [prefix, &self.fresh(own)].concat();
        self.time_ms += self.random.from(50..400);
        self.uses += ids.len();
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{{\"timestamp\": {}, \"hash_ids\": {ids:?}}}", self.time_ms);
    }
}

/// Blocks requested by a trace of each kind.
const USES: usize = 30_000;

/// Function that adds the next request of a kind of service.
pub(super) type Step = fn(&mut Kind);

/// The kinds by name.
pub(super) const KINDS: [(&str, Step); 7] = [
    ("documents", documents),
    ("scans", scans),
    ("chats", chats),
    ("loops", loops),
    ("drift", drift),
    ("bursts", bursts),
    ("agents", agents),
];

/// State of a kind of service.
pub(super) struct Kind {
    making: Making,
    documents: Vec<Vec<u64>>,
    /// Conversations in progress: time of the next turn, blocks so far, and remaining turns.
    live: Vec<(u64, Vec<u64>, u64)>,
    turn: u64,
}

/// Return a trace of a kind.
pub(super) fn trace(step: Step, seed: u64) -> Requests {
    let mut kind = Kind { making: Making::new(seed), documents: Vec::new(), live: Vec::new(), turn: 0 };
    while kind.making.uses < USES {
        step(&mut kind);
        kind.turn += 1;
    }
    Requests::read(kind.making.text.as_bytes()).expect("well-formed")
}

impl Kind {
    fn begin(&mut self, many: usize, blocks: std::ops::Range<u64>) {
        if self.turn == 0 {
            self.documents = self.making.documents(many, blocks);
        }
    }

    fn ask_popular(&mut self, own: std::ops::Range<u64>) {
        let at = self.making.random.popular(self.documents.len());
        let document = std::mem::take(&mut self.documents[at]);
        self.making.ask(&document, own);
        self.documents[at] = document;
    }
}

/// Questions about documents, some of which are popular.
fn documents(kind: &mut Kind) {
    kind.begin(400, 4..40);
    kind.ask_popular(1..6);
}

/// The same, with occasional long requests that do not recur.
fn scans(kind: &mut Kind) {
    kind.begin(120, 4..30);
    match kind.turn % 12 {
        0 => kind.making.ask(&[], 60..150),
        _ => kind.ask_popular(1..4),
    }
}

/// Conversations of several turns after a few prompts, with pauses between turns.
fn chats(kind: &mut Kind) {
    kind.begin(5, 2..12);
    let turn = kind.turn;
    if turn.is_multiple_of(3) || kind.live.is_empty() {
        let prompt = kind.making.random.popular(5);
        let turns = kind.making.random.from(1..8);
        kind.live.push((turn, kind.documents[prompt].clone(), turns));
    }
    let due = kind.live.iter().enumerate().min_by_key(|(_, chat)| chat.0).map_or(0, |(at, _)| at);
    let (_, mut said, turns) = kind.live.swap_remove(due);
    said.extend(kind.making.fresh(1..10));
    kind.making.ask(&said, 1..2);
    if turns > 1 {
        // Most continue soon, a few after a long time.
        let soon = kind.making.random.from(1..6);
        let pause = (0..soon).fold(4, |pause, _| pause * kind.making.random.from(1..4));
        kind.live.push((turn + pause, said, turns - 1));
    }
}

/// Agents that cycle through a set of contexts slightly larger than a tenth of all blocks, and requests that do not recur.
pub(super) fn loops(kind: &mut Kind) {
    kind.begin(90, 20..21);
    match kind.making.random.below(10) {
        0..7 => {
            let document = kind.documents[kind.turn as usize % 90].clone();
            kind.making.ask(&document, 1..3);
        }
        _ => kind.making.ask(&[], 10..40),
    }
}

/// Popularity changes all the time.
fn drift(kind: &mut Kind) {
    kind.begin(200, 4..40);
    if kind.turn.is_multiple_of(10) {
        let at = kind.making.random.below(200) as usize;
        kind.documents[at] = kind.making.fresh(4..40);
    }
    kind.ask_popular(1..5);
}

/// One item is requested by all for a while, and then never again.
fn bursts(kind: &mut Kind) {
    kind.begin(250, 4..30);
    if kind.turn.is_multiple_of(300) {
        let hot = kind.making.fresh(20..80);
        kind.live = vec![(0, hot, 0)];
    }
    match kind.making.random.below(6) {
        0 => {
            let hot = kind.live[0].1.clone();
            kind.making.ask(&hot, 1..2);
        }
        1 | 2 => kind.making.ask(&[], 5..40),
        _ => kind.ask_popular(1..4),
    }
}

/// Agents with contexts that grow with every tool call until they finish, after few long prompts.
fn agents(kind: &mut Kind) {
    kind.begin(4, 20..30);
    while kind.live.len() < 12 {
        let tools = kind.making.random.below(4) as usize;
        let calls = kind.making.random.from(3..25);
        let own = kind.making.fresh(1..20);
        kind.live.push((0, [kind.documents[tools].as_slice(), &own].concat(), calls));
    }
    let at = kind.making.random.below(kind.live.len() as u64) as usize;
    let more = kind.making.fresh(1..4);
    kind.live[at].1.extend(more);
    kind.live[at].2 -= 1;
    let said = kind.live[at].1.clone();
    kind.making.ask(&said, 0..1);
    if kind.live[at].2 == 0 {
        kind.live.swap_remove(at);
    }
}
