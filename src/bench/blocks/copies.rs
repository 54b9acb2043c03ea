//! Stores and loads of 1 MiB blocks against plain memcpy of the same bytes, on as many threads: one.
//!
//! The memcpy is between memory of the same kinds: from what the allocator gives, as the engine's blocks are, to memory on huge pages, as
//! host frames are where the system has them, and back. The near side of it was written as lately as the engine's blocks were.
//!
//! What a loss here was made of: two threads of the engine, the one that waits and the copy thread, that took turns at the copies (since
//! then the copy thread leaves them to whoever waits), and three threads that spun on two cores (since then they offer their core, and
//! sleep where it is taken). Copies past the cache for large pieces were not tried in place.

use super::super::percentile;
use super::{BenchError, Engine, TIMEOUT, daemon, trying};
use crate::bench::nvme::failed;

use kvtide_wire::status::Status;
use memmap2::{Advice, MmapMut};
use std::hint::black_box;
use std::time::{Duration, Instant};

const BLOCK_BYTES: u32 = 1 << 20;
const ROUNDS: usize = 12;
/// Blocks of one call.
const CALL: usize = 64;

/// Of each round: time that memcpy takes, over the time of the copies, in thousandths; and the rates of the last round.
#[derive(Debug, Default)]
pub(super) struct Copies {
    stores: Vec<u64>,
    loads: Vec<u64>,
    bytes: u64,
    last: [Duration; 4],
}

impl Copies {
    /// The median over rounds: a round in which somebody else had the memory bus says nothing.
    pub(super) fn store_ratio(&mut self) -> f64 {
        percentile(&mut self.stores, 50) as f64 / 1000.0
    }

    /// The same.
    pub(super) fn load_ratio(&mut self) -> f64 {
        percentile(&mut self.loads, 50) as f64 / 1000.0
    }

    pub(super) fn note(&self) -> String {
        let rate = |time: Duration| format!("{:.1}", self.bytes as f64 / time.as_secs_f64() / 1e9);
        let [store, plain_out, load, plain_in] = self.last.map(rate);
        format!("last round in GB/s: store {store} (memcpy {plain_out}), load {load} (memcpy {plain_in})")
    }
}

pub(super) fn measure(mib: u32) -> Result<Copies, BenchError> {
    let bytes = u64::from(mib) * u64::from(BLOCK_BYTES);
    // Each round stores content of its own beside that of the round before, which goes.
    let mut daemon = daemon(3 * bytes + (64 << 20), 4 * mib)?;
    let mut engine = Engine::attach(daemon.socket(), BLOCK_BYTES, mib)?;
    let mut near = vec![1u8; bytes as usize];
    let mut far = huge(bytes as usize)?;
    let own: Vec<u32> = (0..mib).collect();
    let mut copies = Copies { bytes, ..Copies::default() };
    for round in 0..=ROUNDS {
        // Every round's blocks say which round they are of.
        own.iter().for_each(|block| _ = engine.client.with_block(*block, 0, |bytes| bytes.fill(round as u8 + 1)));
        let hashes: Vec<u128> = (0..mib).map(|i| (round as u128 + 1) << 64 | u128::from(i + 1)).collect();
        let store = store(&mut engine, &hashes, &own)?;
        near.fill(round as u8 + 1);
        let out = copy(&near, &mut far);
        own.iter().for_each(|block| _ = engine.client.with_block(*block, 0, |bytes| bytes.fill(0)));
        let load = load(&mut engine, &hashes, &own)?;
        near.fill(0);
        let back = copy(&far, &mut near);
        if near.iter().any(|byte| *byte != round as u8 + 1) {
            return Err(BenchError::Odd("memcpy has copied something else".into()));
        }
        check(&engine, round)?;
        // The first rounds map memory and are not counted.
        if round > 3 {
            copies.stores.push(ratio(out, store));
            copies.loads.push(ratio(back, load));
            copies.last = [store, out, load, back];
        }
    }
    daemon.stop()?;
    Ok(copies)
}

/// What was loaded is what was stored.
fn check(engine: &Engine, round: usize) -> Result<(), BenchError> {
    let whole = engine.client.with_block(0, 0, |bytes| bytes.iter().all(|byte| *byte == round as u8 + 1));
    if whole == Some(true) {
        Ok(())
    } else {
        Err(BenchError::Odd("a loaded block differs from the stored block".into()))
    }
}

fn ratio(plain: Duration, ours: Duration) -> u64 {
    (plain.as_secs_f64() / ours.as_secs_f64() * 1000.0) as u64
}

/// Memory on huge pages, as host frames are.
fn huge(bytes: usize) -> Result<MmapMut, BenchError> {
    const HUGE: usize = 2 << 20;
    let mut memory = MmapMut::map_anon(bytes.next_multiple_of(HUGE)).map_err(|e| failed("map memory", e))?;
    // A system without huge pages refuses the advice, and has none for host frames either.
    let _ = memory.advise(Advice::HugePage);
    memory.fill(2);
    Ok(memory)
}

fn copy(from: &[u8], to: &mut [u8]) -> Duration {
    let began = Instant::now();
    for (to, from) in to.chunks_exact_mut(BLOCK_BYTES as usize).zip(from.chunks_exact(BLOCK_BYTES as usize)) {
        to.copy_from_slice(black_box(from));
    }
    began.elapsed()
}

fn store(engine: &mut Engine, hashes: &[u128], own: &[u32]) -> Result<Duration, BenchError> {
    let (began, mut held) = (Instant::now(), None);
    for (i, (part, blocks)) in hashes.chunks(CALL).zip(own.chunks(CALL)).enumerate() {
        let first = i * CALL;
        let parent = if first == 0 { 0 } else { hashes[first - 1] };
        engine.store((first as u32, parent), part, blocks)?;
        // What the next ones stand on shall not make room for them.
        let (last, count) = (hashes[first + part.len() - 1], (first + part.len()) as u32);
        let lease = trying("lease what was stored", engine.channel.lease(last, count, TIMEOUT, TIMEOUT))?;
        if let Some(before) = held.replace(lease.seq) {
            trying("end a lease", engine.channel.seq_drop(before))?;
        }
    }
    held.map_or(Ok(()), |lease| trying("end a lease", engine.channel.seq_drop(lease)))?;
    Ok(began.elapsed())
}

fn load(engine: &mut Engine, hashes: &[u128], own: &[u32]) -> Result<Duration, BenchError> {
    let began = Instant::now();
    let last = hashes.last().copied().unwrap_or_default();
    let lease = trying("lease a prefix", engine.channel.lease(last, hashes.len() as u32, TIMEOUT, TIMEOUT))?;
    for (i, blocks) in own.chunks(CALL).enumerate() {
        let copied = trying("load blocks", engine.channel.load(lease.seq, (i * CALL) as u32, blocks, TIMEOUT))?;
        if copied.status != Status::Ok {
            return Err(BenchError::Odd(format!(
                "{} blocks were not loaded: {:?}",
                copied.failed.len(),
                copied.status
            )));
        }
    }
    trying("end a lease", engine.channel.seq_drop(lease.seq))?;
    Ok(began.elapsed())
}
