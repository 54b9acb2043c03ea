//! One client of the concurrent benchmark: its work loop, its counters, and the process that runs it (`kvtide bench blocks-client`,
//! started by `kvtide bench blocks`).

use super::{BenchError, Engine, TIMEOUT, trying};
use crate::bench::nvme::failed;
use kvtide_client::client::Channel;
use kvtide_daemon::output;
use kvtide_wire::status::Status;
use std::io::{BufRead, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Flags of `kvtide bench blocks-client`.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::bench) struct ClientArgs {
    /// Socket of the daemon
    #[arg(long)]
    socket: PathBuf,
    /// Socket of the echo server
    #[arg(long)]
    echo: PathBuf,
    /// Number of this client
    #[arg(long)]
    number: u16,
}

/// Report readiness, then run for the time given by each line of stdin and answer with the counters.
pub(in crate::bench) fn run(args: &ClientArgs) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::say(format_args!("kvtide bench: client {}: {error}", args.number));
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &ClientArgs) -> Result<(), BenchError> {
    let engine = Engine::attach(&args.socket, Work::BLOCK_BYTES, Work::OWN)?;
    let echo = UnixStream::connect(&args.echo);
    let echo = echo.map_err(|e| failed(format!("connect to {}", args.echo.display()), e))?;
    let mut work = Work::new(engine.channel, echo, args.number, 0);
    let say = |text: String| {
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| failed("write an answer", e))
    };
    say("there\n".into())?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| failed("read an order", e))?;
        let mut words = line.split(' ').map(str::parse::<u64>);
        let (Some(Ok(ms)), Some(Ok(lookups))) = (words.next(), words.next()) else {
            return Err(BenchError::Odd(format!("invalid order `{line}`")));
        };
        say(work.run(Duration::from_millis(ms), lookups == 1)?.line())?;
    }
    Ok(())
}

/// Work done by a client, or by several at the same time.
#[derive(Debug, Default)]
pub(super) struct Stats {
    /// Nanoseconds of each lookup, or of each echoed byte.
    ns: Vec<u64>,
    bytes: u64,
    seconds: f64,
}

impl Stats {
    /// Return the bytes loaded a second.
    pub(super) fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    /// Add the work of another client at the same time.
    pub(super) fn beside(&mut self, other: Stats) {
        self.ns.extend(other.ns);
        self.bytes += other.bytes;
        self.seconds = self.seconds.max(other.seconds);
    }

    /// Add work done at another time.
    pub(super) fn add(&mut self, other: Stats) {
        let seconds = self.seconds + other.seconds;
        self.beside(other);
        self.seconds = seconds;
    }

    pub(super) fn percentile_ns(&mut self, percent: usize) -> u64 {
        super::super::percentile(&mut self.ns, percent)
    }

    fn line(&self) -> String {
        let numbers: Vec<String> = self.ns.iter().map(u64::to_string).collect();
        format!("{} {} {}\n", self.bytes, self.seconds, numbers.join(" "))
    }

    pub(super) fn parse(line: &str) -> Result<Stats, BenchError> {
        let mut words = line.trim_end().splitn(3, ' ');
        let (bytes, seconds) = (words.next().map(str::parse), words.next().map(str::parse));
        let ns: Result<Vec<u64>, _> = words.next().unwrap_or_default().split(' ').map(str::parse).collect();
        match (bytes, seconds, ns) {
            (Some(Ok(bytes)), Some(Ok(seconds)), Ok(ns)) => Ok(Stats { ns, bytes, seconds }),
            _ => Err(BenchError::Odd(format!("invalid answer of a client: {:.60}", line))),
        }
    }
}

/// The work loop of a client.
pub(super) struct Work {
    channel: Channel,
    echo: UnixStream,
    turn: u32,
    own: Vec<u32>,
}

impl Work {
    pub(super) const BLOCK_BYTES: u32 = 64 << 10;
    /// Blocks of a chain, and hashes of a lookup.
    const CHAIN: u32 = 1024;
    /// Number of cached chains.
    const CHAINS: u32 = 4;
    /// Number of cached blocks.
    pub(super) const CACHED: u32 = Work::CHAIN * Work::CHAINS;
    pub(super) const CACHED_BYTES: u64 = Work::CACHED as u64 * Work::BLOCK_BYTES as u64;
    /// Blocks of one load, and of the client's own tensor.
    pub(super) const OWN: u32 = 32;

    fn hash(chain: u32, block: u32) -> u128 {
        (u128::from(chain + 1) << 64 | u128::from(block + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
            | 1
    }

    /// Store all chains.
    pub(super) fn fill(engine: &mut Engine) -> Result<(), BenchError> {
        let own: Vec<u32> = (0..Work::OWN).collect();
        for chain in 0..Work::CHAINS {
            for first in (0..Work::CHAIN).step_by(own.len()) {
                let hashes: Vec<u128> = (first..first + Work::OWN).map(|block| Work::hash(chain, block)).collect();
                let parent = if first == 0 { 0 } else { Work::hash(chain, first - 1) };
                engine.store((first, parent), &hashes, &own)?;
            }
        }
        Ok(())
    }

    /// Create a client with its own blocks from `first` on.
    pub(super) fn new(channel: Channel, echo: UnixStream, number: u16, first: u32) -> Work {
        let turn = u32::from(number).wrapping_mul(0x9e37_79b1) | 1;
        Work { channel, echo, turn, own: (first..first + Work::OWN).collect() }
    }

    /// Run for `time`, with lookups or, without, with echoed bytes.
    pub(super) fn run(&mut self, time: Duration, lookups: bool) -> Result<Stats, BenchError> {
        let (began, mut stats) = (Instant::now(), Stats::default());
        while began.elapsed() < time {
            // xorshift32
            self.turn ^= self.turn << 13;
            self.turn ^= self.turn >> 17;
            self.turn ^= self.turn << 5;
            let chain = self.turn % Work::CHAINS;
            let known = Work::OWN + (self.turn >> 8) % (Work::CHAIN - Work::OWN);
            let ns = if lookups { self.look_up(chain, known)? } else { self.send_a_byte()? };
            stats.ns.push(ns);
            self.load(chain)?;
            stats.bytes += u64::from(Work::OWN) * u64::from(Work::BLOCK_BYTES);
        }
        stats.seconds = began.elapsed().as_secs_f64();
        Ok(stats)
    }

    fn look_up(&mut self, chain: u32, known: u32) -> Result<u64, BenchError> {
        let hash = |block| if block < known { Work::hash(chain, block) } else { Work::hash(chain, block) ^ 2 };
        let hashes: Vec<u128> = (0..Work::CHAIN).map(hash).collect();
        let began = Instant::now();
        let found = trying("look up a prefix", self.channel.lookup(&hashes, TIMEOUT))?;
        let ns = super::lookup::nanos(began.elapsed());
        if found.blocks != known {
            return Err(BenchError::Odd(format!("found {} of {known} blocks", found.blocks)));
        }
        Ok(ns)
    }

    fn send_a_byte(&mut self) -> Result<u64, BenchError> {
        let began = Instant::now();
        let sent = self.echo.write_all(&[1]).and_then(|()| self.echo.read_exact(&mut [0]));
        sent.map_err(|e| failed("echo a byte", e))?;
        Ok(super::lookup::nanos(began.elapsed()))
    }

    fn load(&mut self, chain: u32) -> Result<(), BenchError> {
        let last = Work::hash(chain, Work::OWN - 1);
        let lease = trying("lease a prefix", self.channel.lease(last, Work::OWN, TIMEOUT, TIMEOUT))?;
        let copied = trying("load blocks", self.channel.load(lease.seq, 0, &self.own, TIMEOUT))?;
        trying("release a lease", self.channel.drop_seq(lease.seq))?;
        match copied.status {
            Status::Ok => Ok(()),
            status => Err(BenchError::Odd(format!("{} blocks not loaded: {status:?}", copied.failed.len()))),
        }
    }
}
