//! Look-ups and loads of an engine beside a relay that copies, or one with a hung store.

use super::copies::{BLOCK, forget};
use super::error::Error;
use super::machine::{Machine, PREFIX, hashes};
use super::store::{OBJECT_BYTES, PARALLEL, Target, Way};
use super::{Bench, LONG, median};
use kvtide_bench::bench::failed;
use kvtide_bench::bench::percentile;
use kvtide_bench::bench::{TIMEOUT, trying};
use kvtide_relay::config::When;
use kvtide_wire::status::Status;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Blocks of one load.
const LOAD: u32 = 4;
/// Prefixes that are looked up and loaded in turn: few, because leases may cover a part of the cache only.
const LEASED: usize = 4;
/// Pause between two pairs of requests.
const PAUSE: Duration = Duration::from_micros(500);
/// Time of a measurement with a store that hangs, and without a relay.
const HUNG: Duration = Duration::from_millis(1000);

/// Nanoseconds of an engine's look-ups and loads.
#[derive(Debug, Default)]
struct Samples {
    lookups: Vec<u64>,
    loads: Vec<u64>,
}

/// Ratios of one comparison: look-ups and loads, p50 and p99. The p50 are medians over rounds, the p99 are of all rounds together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ratios {
    pub(super) lookup: f64,
    pub(super) load: f64,
    pub(super) lookup_p99: f64,
    pub(super) load_p99: f64,
}

fn ratios(with: &mut [Samples], without: &mut [Samples]) -> Ratios {
    let pick = |of: fn(&mut Samples) -> &mut Vec<u64>, with: &mut [Samples], without: &mut [Samples]| {
        let pairs = with.iter_mut().zip(without.iter_mut());
        let ratio = |(with, without): (&mut Samples, &mut Samples)| {
            percentile(of(with), 50) as f64 / percentile(of(without), 50).max(1) as f64
        };
        let p50: Vec<f64> = pairs.map(ratio).collect();
        let all = |samples: &mut [Samples]| {
            percentile(&mut samples.iter_mut().flat_map(|round| of(round).clone()).collect::<Vec<_>>(), 99) as f64
        };
        (median(&p50), all(with) / all(without).max(1.0))
    };
    let (lookup, lookup_p99) = pick(|samples| &mut samples.lookups, with, without);
    let (load, load_p99) = pick(|samples| &mut samples.loads, with, without);
    Ratios { lookup, load, lookup_p99, load_p99 }
}

/// Look up and load while `goes_on`, which gets the elapsed time.
fn sample(
    machine: &mut Machine,
    prefixes: &[u64],
    mut goes_on: impl FnMut(Duration) -> Result<bool, Error>,
) -> Result<Samples, Error> {
    let (mut samples, began) = (Samples::default(), Instant::now());
    let chains: Vec<Vec<u128>> = prefixes.iter().take(LEASED).map(|&prefix| hashes(prefix, PREFIX)).collect();
    let leases: Vec<_> = chains
        .iter()
        .map(|chain| trying("lease a prefix", machine.channel.lease(chain[PREFIX as usize - 1], PREFIX, LONG, TIMEOUT)))
        .collect::<Result<_, _>>()?;
    let own: Vec<u32> = (0..LOAD).collect();
    let mut turn = 0;
    while goes_on(began.elapsed())? {
        turn += 1;
        let at = Instant::now();
        let found = trying("look up a prefix", machine.channel.lookup(&chains[turn % chains.len()], TIMEOUT))?;
        samples.lookups.push(at.elapsed().as_nanos() as u64);
        let lease = leases[turn % leases.len()].seq;
        let first = (turn as u32 * LOAD) % PREFIX;
        let at = Instant::now();
        let copied = trying("load blocks", machine.channel.load(lease, first, &own, TIMEOUT))?;
        samples.loads.push(at.elapsed().as_nanos() as u64);
        if found.blocks != PREFIX || copied.status != Status::Ok {
            return Err(Error::Odd(format!("found {} of {PREFIX} blocks, load: {:?}", found.blocks, copied.status)));
        }
        // PACE: an engine's requests; the caller bounds the loop.
        std::thread::sleep(PAUSE);
    }
    for lease in leases {
        trying("release a lease", machine.channel.drop_seq(lease.seq))?;
    }
    Ok(samples)
}

/// Measure beside a relay that copies all blocks as fast as it can, and beside tasks that copy as many bytes of memory to the store at
/// the same rate, without the daemon.
pub(super) fn copying(bench: &Bench<'_>) -> Result<Ratios, Error> {
    let bytes = u64::from(bench.args.mib) << 20;
    let count = (bytes / (BLOCK.bytes() * u64::from(PREFIX))).max(1);
    let blocks = count * u64::from(PREFIX);
    let prefixes: Vec<u64> = (0..count).map(|i| bench.fresh(1 << 22 | i)).collect();
    let mut machine = Machine::start(BLOCK, blocks as u32)?;
    machine.store(&prefixes)?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..=bench.args.rounds {
        bench.stop.check()?;
        let relay = machine.relay_at_once(&bench.target, (When::Stored, false))?;
        let mut looked = Duration::ZERO;
        let mut took = Duration::ZERO;
        let beside_relay = sample(&mut machine, &prefixes, |elapsed| {
            took = elapsed;
            // A look at the metrics costs time; seldom, so that it hardly counts.
            if elapsed - looked < Duration::from_millis(20) {
                return Ok(true);
            }
            looked = elapsed;
            if elapsed > LONG {
                return Err(Error::Odd(format!("the relay did not copy {blocks} blocks within {LONG:?}")));
            }
            Ok(relay.metric("blocks_out_total")? < blocks)
        })?;
        drop(relay);
        forget(bench, BLOCK, &prefixes, false)?;
        let objects = (bytes as usize / OBJECT_BYTES).max(1);
        let ended = AtomicBool::new(false);
        let beside_puts = std::thread::scope(|scope| {
            let putting = scope.spawn(|| {
                let put = put_at_rate(bench, objects, took);
                ended.store(true, Ordering::Relaxed);
                put
            });
            let sampled = sample(&mut machine, &prefixes, |_| Ok(!ended.load(Ordering::Relaxed)));
            putting.join().map_err(|_| Error::Odd("a thread panicked".into()))??;
            sampled
        })?;
        let source = bytes::Bytes::from(vec![7; OBJECT_BYTES]);
        bench.runtime.block_on(bench.raw.all(Way::Delete, objects, &source))?;
        if round > 0 {
            with.push(beside_relay);
            without.push(beside_puts);
        }
    }
    Ok(ratios(&mut with, &mut without))
}

/// Copy memory to the store, object by object, evenly over a time.
fn put_at_rate(bench: &Bench<'_>, objects: usize, time: Duration) -> Result<(), Error> {
    let memory: Arc<Vec<u8>> = Arc::new(vec![7; objects.min(16) * OBJECT_BYTES]);
    bench.runtime.block_on(async {
        let began = Instant::now();
        let tasks: Vec<_> = (0..PARALLEL)
            .map(|task| {
                let (mut raw, memory) = (bench.raw.clone(), Arc::clone(&memory));
                tokio::spawn(async move {
                    for index in (task..objects).step_by(PARALLEL) {
                        let due = began + time.mul_f64(index as f64 / objects as f64);
                        tokio::time::sleep_until(due.into()).await;
                        let from = index * OBJECT_BYTES % memory.len();
                        raw.copy_and_put(index, &memory[from..from + OBJECT_BYTES]).await?;
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

/// Measure beside a relay with a store that accepts connections and never answers, and without a relay.
pub(super) fn hung(bench: &Bench<'_>) -> Result<Ratios, Error> {
    let hangs = Hangs::start()?;
    let prefixes: Vec<u64> = (0..2).map(|i| bench.fresh(1 << 23 | i)).collect();
    let mut machine = Machine::start(BLOCK, 2 * PREFIX)?;
    machine.store(&prefixes)?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..bench.args.rounds {
        bench.stop.check()?;
        let relay = machine.relay(&hangs.target, (When::Stored, false), &bench.stop)?;
        with.push(sample(&mut machine, &prefixes, |elapsed| Ok(elapsed < HUNG))?);
        drop(relay);
        without.push(sample(&mut machine, &prefixes, |elapsed| Ok(elapsed < HUNG))?);
    }
    Ok(ratios(&mut with, &mut without))
}

/// A listener that accepts connections, and answers none of them. It ends with the value.
struct Hangs {
    target: Target,
    over: Arc<AtomicBool>,
    address: std::net::SocketAddr,
}

impl Hangs {
    fn start() -> Result<Hangs, Error> {
        let listen = |e| failed("listen as a store that hangs", e);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        std::thread::spawn(move || {
            let mut open = Vec::new();
            while let Ok((connection, _)) = listener.accept() {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                open.push(connection);
            }
        });
        Ok(Hangs { target: Target::new(&format!("redis://{address}/"), &[])?, over, address })
    }
}

impl Drop for Hangs {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Wakes the thread. It fails only if the thread has ended.
        let _ = TcpStream::connect_timeout(&self.address, TIMEOUT);
    }
}
