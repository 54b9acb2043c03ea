//! Copies between tier 0 and host memory against plain memcpy of the same bytes, on as many threads: one.
//!
//! Down: sequences are filled until tier 0 must be cleaned for the next page. Up: a step reads ten times what tier 0 holds. Both
//! alternate with memcpy of pages between two private buffers of the sizes of tier 0 and of the host copies.

use super::{BenchError, Engine, HOST_BYTES, PAGE_BYTES, PAGE_TOKENS, trying};
use kvtide_client::client::{Pass, SeqId, StepSeq};
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

const FRAMES: u32 = 512;
/// Of the sequence that is read: 256 MiB, beyond any cache.
const BLOCKS: u64 = 4096;
/// Of the sequences that are written.
const NEW_BLOCKS: u64 = 2048;
const ROUNDS: usize = 8;

const _: () = assert!((BLOCKS + NEW_BLOCKS) * (PAGE_BYTES as u64) < HOST_BYTES * 3 / 4);

/// Bytes and time.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    bytes: u64,
    time: Duration,
}

impl Rate {
    fn add(&mut self, bytes: u64, time: Duration) {
        self.bytes += bytes;
        self.time += time;
    }

    fn gb_per_s(self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64() / 1e9
    }
}

/// What was reached.
#[derive(Debug, Default)]
pub(super) struct Copies {
    up: Rate,
    down: Rate,
    plain: Rate,
}

impl Copies {
    pub(super) fn ratio(&self) -> f64 {
        let (bytes, time) = (self.up.bytes + self.down.bytes, self.up.time + self.down.time);
        Rate { bytes, time }.gb_per_s() / self.plain.gb_per_s()
    }

    pub(super) fn note(&self) -> String {
        let (up, down, plain) = (self.up.gb_per_s(), self.down.gb_per_s(), self.plain.gb_per_s());
        format!("copies: host to tier 0 {up:.1} GB/s, tier 0 to host {down:.1} GB/s, memcpy {plain:.1} GB/s")
    }
}

pub(super) fn measure(socket: &Path) -> Result<Copies, BenchError> {
    let mut engine = Engine::attach(socket, "copy", 1, FRAMES, 8)?;
    let mut plain = Plain::new();
    let long = engine.sealed(BLOCKS)?;
    // The first of each maps memory and is not counted.
    read(&mut engine, long)?;
    write(&mut engine)?;
    plain.copy(BLOCKS as usize);
    let mut copies = Copies::default();
    for _ in 0..ROUNDS {
        let (bytes, time) = read(&mut engine, long)?;
        copies.up.add(bytes, time);
        let (bytes, time) = plain.copy(BLOCKS as usize);
        copies.plain.add(bytes, time);
        let (bytes, time) = write(&mut engine)?;
        copies.down.add(bytes, time);
        let (bytes, time) = plain.copy(NEW_BLOCKS as usize);
        copies.plain.add(bytes, time);
    }
    Ok(copies)
}

/// One step over all pages of a sequence; what the agent loaded for it.
fn read(engine: &mut Engine, seq: SeqId) -> Result<(u64, Duration), BenchError> {
    let (before, began) = (engine.client.stats(), Instant::now());
    trying("begin a step", engine.lane.begin(&[StepSeq { seq, tokens: BLOCKS * PAGE_TOKENS }]))?;
    loop {
        match trying("cross a boundary", engine.lane.boundary(0))? {
            Pass::All | Pass::Part { last: true, .. } => break,
            Pass::Part { .. } => {}
        }
    }
    trying("end a step", engine.lane.end())?;
    let time = began.elapsed();
    Ok((engine.client.stats().bytes_host_to_tier0 - before.bytes_host_to_tier0, time))
}

/// A new sequence larger than tier 0; what the agent stored for it.
fn write(engine: &mut Engine) -> Result<(u64, Duration), BenchError> {
    let (before, began) = (engine.client.stats(), Instant::now());
    let seq = engine.sealed(NEW_BLOCKS)?;
    let time = began.elapsed();
    let bytes = engine.client.stats().bytes_tier0_to_host - before.bytes_tier0_to_host;
    trying("drop a sequence", engine.channel.seq_drop(seq))?;
    Ok((bytes, time))
}

/// Two buffers of the sizes of tier 0 and of the host copies.
struct Plain {
    small: Vec<u8>,
    large: Vec<u8>,
    up: bool,
}

impl Plain {
    fn new() -> Plain {
        let page = PAGE_BYTES as usize;
        Plain { small: vec![1; FRAMES as usize * page], large: vec![2; BLOCKS as usize * page], up: true }
    }

    /// Copies so many pages, upward and downward in turn.
    fn copy(&mut self, pages: usize) -> (u64, Duration) {
        let page = PAGE_BYTES as usize;
        let began = Instant::now();
        for index in 0..pages {
            let (near, far) = (index % FRAMES as usize * page, index % BLOCKS as usize * page);
            let (small, large) = (&mut self.small[near..near + page], &mut self.large[far..far + page]);
            let (from, to) = if self.up { (large, small) } else { (small, large) };
            to.copy_from_slice(black_box(from));
        }
        let time = began.elapsed();
        self.up = !self.up;
        ((pages * page) as u64, time)
    }
}
