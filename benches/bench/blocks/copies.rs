//! Stores and loads of 1 MiB blocks, compared with single-threaded memcpy of the same bytes.
//!
//! The memcpy uses memory of the same kinds: normal allocations, like the engine's blocks, and huge pages, like host frames on
//! systems that have them. Its source was written as recently as the engine's blocks.
//!
//! Earlier losses had two causes. Two threads of the engine, the waiting one and the copy thread, took turns at the copies; now the
//! copy thread leaves them to the waiting thread. And three threads spun on two cores; now they yield their core, and sleep if
//! another thread takes it. Non-temporal copies for large pieces were not tried here.

use super::super::percentile;
use super::{BenchError, BlockEngine, attach, daemon};
use crate::bench::nvme::failed;

use kvtide_wire::entry::Level;
use memmap2::{Advice, MmapMut};
use std::hint::black_box;
use std::time::{Duration, Instant};

const BLOCK_BYTES: u32 = 1 << 20;
const ROUNDS: usize = 12;
/// Blocks of one call.
const CALL: usize = 64;

/// For each round, time of memcpy divided by the time of the copies, in thousandths; and the rates of the last round.
#[derive(Debug, Default)]
pub(super) struct Copies {
    stores: Vec<u64>,
    loads: Vec<u64>,
    bytes: u64,
    last: [Duration; 4],
}

impl Copies {
    /// Return the median over rounds. Rounds with other load on the memory bus are outliers.
    pub(super) fn store_ratio(&mut self) -> f64 {
        percentile(&mut self.stores, 50) as f64 / 1000.0
    }

    /// Return the same for loads.
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
    // Each round stores new content while the previous round's content is evicted.
    let mut daemon = daemon(3 * bytes + (64 << 20), 4 * mib)?;
    let mut engine = attach(daemon.socket(), BLOCK_BYTES, mib)?;
    let mut near = vec![1u8; bytes as usize];
    let mut far = huge(bytes as usize)?;
    let own: Vec<u32> = (0..mib).collect();
    let mut copies = Copies { bytes, ..Copies::default() };
    for round in 0..=ROUNDS {
        // The blocks contain the number of their round.
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
            return Err(BenchError::Odd("memcpy copied wrong bytes".into()));
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

/// Check that the loaded bytes are the stored bytes.
fn check(engine: &BlockEngine, round: usize) -> Result<(), BenchError> {
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

/// Allocate memory on huge pages, like host frames.
fn huge(bytes: usize) -> Result<MmapMut, BenchError> {
    const HUGE: usize = 2 << 20;
    let mut memory = MmapMut::map_anon(bytes.next_multiple_of(HUGE)).map_err(|e| failed("map memory", e))?;
    // A system without huge pages rejects the advice, and has none for host frames either.
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

fn store(engine: &mut BlockEngine, hashes: &[u128], own: &[u32]) -> Result<Duration, BenchError> {
    let (began, mut held) = (Instant::now(), None);
    for (i, (part, blocks)) in hashes.chunks(CALL).zip(own.chunks(CALL)).enumerate() {
        let first = i * CALL;
        let parent = if first == 0 { 0 } else { hashes[first - 1] };
        engine.store((first as u32, parent), part, blocks, Level::Published)?;
        // The lease keeps the parents of the next blocks from being evicted for them.
        let lease = engine.lease(&hashes[..first + part.len()])?;
        if let Some(before) = held.replace(lease.seq) {
            engine.release(before)?;
        }
    }
    held.map_or(Ok(()), |lease| engine.release(lease))?;
    Ok(began.elapsed())
}

fn load(engine: &mut BlockEngine, hashes: &[u128], own: &[u32]) -> Result<Duration, BenchError> {
    let began = Instant::now();
    let lease = engine.lease(hashes)?.seq;
    for (i, blocks) in own.chunks(CALL).enumerate() {
        engine.load(lease, (i * CALL) as u32, blocks)?;
    }
    engine.release(lease)?;
    Ok(began.elapsed())
}
