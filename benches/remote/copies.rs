//! Rates of copies to the store and back, alternated with the store's crate alone; and blocks compared byte by byte.

use super::error::Error;
use super::machine::{Block, Compared, LOOK, Machine, PREFIX};
use super::store::{OBJECT_BYTES, PARALLEL, Way};
use super::{Bench, LONG};
use bytes::Bytes;
use kvtide_relay::config::When;
use std::sync::Arc;
use std::time::Instant;

/// An eighth of the layers of a model of 8 billion parameters, 16 tokens in bf16: one of four GPUs, half of the layers.
pub(super) const BLOCK: Block = Block { planes: 16, page_bytes: 32 << 10 };
/// Blocks that are compared.
const COMPARED_BLOCK: Block = Block { planes: 8, page_bytes: 8 << 10 };
const COMPARED_PREFIXES: u64 = 16;

/// Ratios and rates of each round.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pub(super) write_ratios: Vec<f64>,
    pub(super) read_ratios: Vec<f64>,
    /// Bytes a second: relay's writes, raw writes, relay's reads, raw reads.
    pub(super) rates: [Vec<f64>; 4],
}

/// Measure rounds, each with new daemons: raw writes, the relay's writes, raw reads, the relay's reads.
pub(super) fn measure(bench: &Bench<'_>, encrypt: bool) -> Result<Copies, Error> {
    let bytes = u64::from(bench.args.mib) << 20;
    let prefixes = (bytes / (BLOCK.bytes() * u64::from(PREFIX))).max(1);
    let (blocks, objects) = (prefixes * u64::from(PREFIX), (bytes as usize / OBJECT_BYTES).max(1));
    let (moved, source) = ((blocks * BLOCK.bytes()) as f64, Bytes::from(vec![7; OBJECT_BYTES]));
    let mut copies = Copies::default();
    // The first round is not counted: it maps memory.
    for round in 0..=u64::from(bench.args.rounds) {
        bench.stop.check()?;
        let prefixes: Vec<u64> = (0..prefixes).map(|i| bench.fresh(round * prefixes + i)).collect();
        let raw = |way| bench.runtime.block_on(bench.raw.all(way, objects, &source));
        let mut first = Machine::start(BLOCK, blocks as u32)?;
        first.store(&prefixes)?;
        let raw_write = raw(Way::Put)?;
        let relay = first.relay(&bench.target, (When::Stored, encrypt), &bench.stop)?;
        let began = Instant::now();
        relay.until("blocks_out_total", blocks, &bench.stop)?;
        let write = moved / began.elapsed().as_secs_f64();
        drop((relay, first));
        let mut second = Machine::start(BLOCK, blocks as u32)?;
        let relay = second.relay(&bench.target, (When::Never, encrypt), &bench.stop)?;
        let raw_read = raw(Way::Get)?;
        let began = Instant::now();
        relay.recall_all(&prefixes)?;
        let read = moved / began.elapsed().as_secs_f64();
        let Compared { loaded, wrong, .. } = second.compare(&prefixes)?;
        if (loaded, wrong) != (blocks, 0) {
            return Err(Error::Odd(format!("of {blocks} blocks {loaded} were loaded, {wrong} with wrong bytes")));
        }
        drop((relay, second));
        raw(Way::Delete)?;
        forget(bench, BLOCK, &prefixes, encrypt)?;
        if round > 0 {
            copies.write_ratios.push(write / raw_write);
            copies.read_ratios.push(read / raw_read);
            copies.rates.iter_mut().zip([write, raw_write, read, raw_read]).for_each(|(all, rate)| all.push(rate));
        }
    }
    Ok(copies)
}

/// Delete the runs of prefixes from the store.
pub(super) fn forget(bench: &Bench<'_>, block: Block, prefixes: &[u64], encrypt: bool) -> Result<(), Error> {
    let names = Arc::new(block.names(prefixes, encrypt));
    bench.runtime.block_on(async {
        let tasks: Vec<_> = (0..PARALLEL)
            .map(|task| {
                let (names, store) = (Arc::clone(&names), Arc::clone(&bench.store));
                tokio::spawn(async move {
                    for name in names.iter().skip(task).step_by(PARALLEL) {
                        store.delete(name).await?;
                    }
                    Ok::<_, Error>(())
                })
            })
            .collect();
        for task in tasks {
            task.await.map_err(|error| Error::Odd(error.to_string()))??;
        }
        Ok(())
    })
}

/// Wait until the store has all runs of prefixes. The count of copied blocks does not tell: of a prefix that the feed reports in parts,
/// the first part goes out as runs of its own too.
pub(super) fn until_there(bench: &Bench<'_>, block: Block, prefixes: &[u64], encrypt: bool) -> Result<(), Error> {
    let (names, deadline) = (block.names(prefixes, encrypt), Instant::now() + LONG);
    while !bench.runtime.block_on(bench.store.present(&names))?.iter().all(|there| *there) {
        bench.stop.check()?;
        if Instant::now() > deadline {
            let blocks = prefixes.len() as u64 * u64::from(PREFIX);
            return Err(Error::Odd(format!("the relay did not copy {blocks} blocks within {LONG:?}")));
        }
        // PACE: the deadline above ends the loop.
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Write blocks at one machine, encrypted, and compare them at another.
pub(super) fn compare(bench: &Bench<'_>) -> Result<Compared, Error> {
    let prefixes: Vec<u64> = (0..COMPARED_PREFIXES).map(|i| bench.fresh(1 << 20 | i)).collect();
    let blocks = COMPARED_PREFIXES * u64::from(PREFIX);
    let mut first = Machine::start(COMPARED_BLOCK, blocks as u32)?;
    let relay = first.relay(&bench.target, (When::Stored, true), &bench.stop)?;
    first.store(&prefixes)?;
    until_there(bench, COMPARED_BLOCK, &prefixes, true)?;
    drop((relay, first));
    let mut second = Machine::start(COMPARED_BLOCK, blocks as u32)?;
    let relay = second.relay(&bench.target, (When::Never, true), &bench.stop)?;
    relay.recall_all(&prefixes)?;
    let compared = second.compare(&prefixes)?;
    drop(relay);
    forget(bench, COMPARED_BLOCK, &prefixes, true)?;
    Ok(compared)
}

/// Ask for the small objects of a prefix, which are written before: return the milliseconds of each search.
pub(super) fn presence(bench: &Bench<'_>) -> Result<Vec<f64>, Error> {
    use kvtide_relay::endpoint::{Endpoint, EndpointConfig};
    use kvtide_relay::name::{SharedKey, SpaceKeys};
    use kvtide_relay::presence::{Presence, PresenceConfig};
    const NAMES: u32 = 1024;
    const SEARCHES: usize = 50;
    let keys = SpaceKeys::new(&SharedKey::new([0x70; 32]), "bench", &[0x70; 32], 0, false);
    let hashes = super::machine::hashes(bench.fresh(1 << 21), NAMES);
    let runs: Vec<Vec<_>> = hashes.iter().map(|hash| vec![keys.run_name((0, 0), &[*hash])]).collect();
    let put_all = async |delete: bool| {
        for run in &runs {
            match delete {
                true => bench.store.delete(&run[0]).await?,
                false => drop(bench.store.put_run(&run[0], Bytes::from_static(b"run")).await?),
            }
        }
        Ok::<_, Error>(())
    };
    bench.runtime.block_on(async {
        put_all(false).await?;
        let mut times = Vec::new();
        let endpoint = Arc::new(Endpoint::new(Arc::clone(&bench.store), EndpointConfig::default()));
        for _ in 0..SEARCHES {
            let presence = Presence::new(Arc::clone(&endpoint), PresenceConfig::default());
            let began = Instant::now();
            let found = presence.longest(&runs).await?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
            if found != runs.len() {
                return Err(Error::Odd(format!("the store has {found} of {NAMES} runs; check that it has room")));
            }
        }
        put_all(true).await?;
        Ok(times)
    })
}
