//! Copies between tier 0 and host memory, compared with single-threaded memcpy of the same bytes.
//!
//! Tier 0 to host: sequences are filled until tier 0 must write back pages for each new page. Host to tier 0: a step reads four
//! times the pages of tier 0. Both alternate with memcpy in the same direction between two private buffers of the sizes of tier 0
//! and of the host copies.

use super::{BenchError, Engine, HOST_BYTES, PAGE_BYTES, PAGE_TOKENS, percentile, trying};
use kvtide_client::client::SeqId;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

const PLANES: u64 = 8;
const FRAMES: u32 = 1024;
/// Blocks of the sequence that is read: 256 MiB over all planes, larger than any cache.
const BLOCKS: u64 = 512;
/// Blocks of the sequences that are written.
const NEW_BLOCKS: u64 = 256;
const ROUNDS: usize = 24;

const _: () = assert!((BLOCKS + NEW_BLOCKS) * PLANES * (PAGE_BYTES as u64) < HOST_BYTES * 3 / 4);

/// Bytes and time.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    bytes: u64,
    time: Duration,
}

impl Rate {
    fn add(&mut self, other: Rate) {
        self.bytes += other.bytes;
        self.time += other.time;
    }

    fn gb_per_s(self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64() / 1e9
    }
}

/// Results, each with memcpy in the same direction.
#[derive(Debug, Default)]
pub(super) struct Copies {
    up: Rate,
    down: Rate,
    plain_up: Rate,
    plain_down: Rate,
    /// For each round, time of memcpy for the moved bytes divided by the time of the moves, in thousandths.
    ratios: Vec<u64>,
}

impl Copies {
    fn add(&mut self, up: Rate, plain_up: Rate, down: Rate, plain_down: Rate) {
        let plain = up.bytes as f64 / plain_up.gb_per_s() + down.bytes as f64 / plain_down.gb_per_s();
        self.ratios.push((plain / 1e6 / (up.time + down.time).as_secs_f64()) as u64);
        self.up.add(up);
        self.plain_up.add(plain_up);
        self.down.add(down);
        self.plain_down.add(plain_down);
    }

    /// Return the median over rounds. Rounds with other load on the memory bus are outliers.
    pub(super) fn ratio(&mut self) -> f64 {
        percentile(&mut self.ratios, 50) as f64 / 1000.0
    }

    pub(super) fn note(&self) -> String {
        let [up, down, plain_up, plain_down] =
            [self.up, self.down, self.plain_up, self.plain_down].map(|rate| format!("{:.1}", rate.gb_per_s()));
        format!("copies in GB/s: host to tier 0 {up} (memcpy {plain_up}), tier 0 to host {down} (memcpy {plain_down})")
    }
}

pub(super) fn measure(socket: &Path) -> Result<Copies, BenchError> {
    let mut engine = Engine::attach(socket, "copy", PLANES as u16, FRAMES, 8)?;
    let mut plain = Plain::new();
    let long = engine.sealed(BLOCKS)?;
    let mut copies = Copies::default();
    for round in 0..=ROUNDS {
        let (up, plain_up) = (read(&mut engine, long)?, plain.up(BLOCKS));
        let (down, plain_down) = (write(&mut engine)?, plain.down(NEW_BLOCKS));
        // The first round maps memory and is not counted.
        if round > 0 {
            copies.add(up, plain_up, down, plain_down);
        }
    }
    Ok(copies)
}

/// Run one step over all pages of a sequence. Return the agent's loads.
fn read(engine: &mut Engine, seq: SeqId) -> Result<Rate, BenchError> {
    let (before, began) = (engine.client.stats(), Instant::now());
    engine.step(seq, BLOCKS * PAGE_TOKENS)?;
    let time = began.elapsed();
    Ok(Rate { bytes: engine.client.stats().bytes_host_to_tier0 - before.bytes_host_to_tier0, time })
}

/// Create a sequence larger than tier 0. Return the agent's stores.
fn write(engine: &mut Engine) -> Result<Rate, BenchError> {
    let (before, began) = (engine.client.stats(), Instant::now());
    let seq = engine.sealed(NEW_BLOCKS)?;
    let time = began.elapsed();
    let bytes = engine.client.stats().bytes_tier0_to_host - before.bytes_tier0_to_host;
    trying("drop a sequence", engine.channel.drop_seq(seq))?;
    Ok(Rate { bytes, time })
}

/// Two buffers of the sizes of tier 0 and of the host copies.
struct Plain {
    small: Vec<u8>,
    large: Vec<u8>,
}

/// Copy `pages` pages, cyclically in both buffers.
fn plain(from: &[u8], to: &mut [u8], pages: u64) -> Rate {
    let (page, began) = (PAGE_BYTES as usize, Instant::now());
    for at in (0..pages as usize * page).step_by(page) {
        let (source, target) = (at % from.len(), at % to.len());
        to[target..target + page].copy_from_slice(black_box(&from[source..source + page]));
    }
    Rate { bytes: pages * u64::from(PAGE_BYTES), time: began.elapsed() }
}

impl Plain {
    fn new() -> Plain {
        let page = PAGE_BYTES as usize;
        Plain { small: vec![1; FRAMES as usize * page], large: vec![2; (BLOCKS * PLANES) as usize * page] }
    }

    fn up(&mut self, blocks: u64) -> Rate {
        plain(&self.large, &mut self.small, blocks * PLANES)
    }

    fn down(&mut self, blocks: u64) -> Rate {
        plain(&self.small, &mut self.large, blocks * PLANES)
    }
}
