//! `kvtide-bench-remote`: blocks that are copied to a store and back by relays, each in this process with a private daemon.
//!
//! - `store`: the store, a private server by default, and its crate alone as the limit
//! - `machine`: a daemon, its engine, and its relay
//! - `copies`: rates of copies, blocks compared byte by byte, and the question which runs the store has
//! - `beside`: an engine's look-ups and loads while a relay copies, or while its store hangs
//! - `outage`: time until blocks come again after the store was away
//!
//! `write_ratio`: an engine has stored all blocks, then a relay starts; the time from the moment it lists the cache until all blocks are
//! in the store. `read_ratio`: all prefixes are recalled at the same time; the time until the last is done. Both are divided by the
//! rate of the store's crate with objects of 4 MiB, 4 at a time, measured just before. A relay has 4 writes in flight and up to 16
//! reads. Its objects have 4 MiB of blocks too.
//!
//! `presence_1024_ms`: `Presence::longest` without cached answers over a prefix of 1,024 runs of one block, one name for each, all of
//! which the store has; the names are computed before. Connections are open.

mod beside;
mod copies;
mod error;
mod machine;
mod outage;
mod store;

use clap::Parser;
use error::Error;
use kvtide_bench::bench::{BenchError, Output, Report, Stop, Target as Aim, failed, print, progress};
use kvtide_relay::store::Store;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use store::{Raw, Server, Target};
use tokio::runtime::Runtime;

/// Maximum time of a copy of all blocks.
const LONG: Duration = Duration::from_secs(60);
/// Threads of the requests without a relay: as many as a relay has.
const THREADS: usize = 2;

/// Relay and store: copies relative to the store's crate alone, engines beside it, an outage of the store
#[derive(Clone, Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  kvtide-bench-remote\n  kvtide-bench-remote --url redis://127.0.0.1:6379 --json"
)]
struct Args {
    #[command(flatten)]
    output: Output,
    /// Store: redis://, s3://, gs://, az:// or file:/// (default: a private redis-server or valkey-server, from PATH)
    #[arg(long)]
    url: Option<String>,
    /// Option of the store, as in [store.options] of the relay's configuration; may be repeated
    #[arg(long, value_name = "KEY=VALUE", requires = "url", value_parser = option)]
    option: Vec<(String, String)>,
    /// MiB copied in each direction per round
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(32..=2048))]
    mib: u32,
    /// Rounds; ratios are medians over them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds for which the store is away
    #[arg(long, default_value_t = 30.0)]
    outage_s: f64,
}

fn option(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    pair.map(|(key, value)| (key.into(), value.into())).ok_or_else(|| "expected KEY=VALUE".into())
}

/// Shared by all measurements.
struct Bench<'a> {
    args: &'a Args,
    target: Target,
    store: Arc<dyn Store>,
    raw: Raw,
    runtime: Runtime,
    stop: Stop,
    /// Differs between runs, so that a store has no block of an earlier one.
    run: u64,
}

impl Bench<'_> {
    /// Return the number of a prefix that no other run uses.
    fn fresh(&self, number: u64) -> u64 {
        self.run << 32 | number
    }
}

/// Return the path of the tool `kvtide`, which has the private daemons: beside this program.
fn tool() -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(|error| failed("find this program's own binary", error))?;
    let tool = own.with_file_name("kvtide");
    match tool.is_file() {
        true => Ok(tool),
        false => Err(Error::Odd(format!("{} is missing: build it with `cargo build -p kvtide`", tool.display()))),
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    print(measure(&args), args.output)
}

/// Run the benchmark.
fn measure(args: &Args) -> Result<Report, Error> {
    if !(0.0..=3600.0).contains(&args.outage_s) {
        let value = args.outage_s.max(0.0) as u64;
        return Err(BenchError::Setting { what: "--outage-s", value, expected: "0 to 3600".into() }.into());
    }
    let stop = Stop::on_signals()?;
    // A round has its bytes twice: from the relay, and from the crate alone.
    let room = (u64::from(args.mib) << 20) * 3 + (512 << 20);
    let (_server, target) = match &args.url {
        Some(url) => (None, Target::new(url, &args.option)?),
        None => {
            let server = Server::start(room)?;
            let target = Target::new(&server.url, &[])?;
            (Some(server), target)
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    let runtime = runtime.map_err(|e| failed("start threads for requests", e))?;
    let store = target.open()?;
    let raw = runtime.block_on(Raw::open(&target))?;
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let run = (since.as_nanos() as u64) >> 32 << 8 | u64::from(std::process::id() & 0xff);
    let bench = Bench { args, target, store, raw, runtime, stop, run: run & 0xffff_ffff };
    let mut report = Report::default();
    report_copies(&bench, &mut report)?;
    progress("presence of 1,024 runs");
    let presence = median(&copies::presence(&bench)?);
    let what = "presence of 1,024 runs of one block, p50";
    report.fine("presence_1024_ms", what, (presence, 2), "ms", Some(Aim::AtMost(5.0)));
    progress("an engine beside a relay that copies");
    let copying = beside::copying(&bench)?;
    report_beside(&mut report, "copying", "beside a relay that copies ÷ beside equal writes", copying);
    progress("an engine beside a relay with a hung store");
    report_beside(&mut report, "hung", "beside a relay with a hung store ÷ without", beside::hung(&bench)?);
    let what = "first remote hit after an outage";
    match bench.target.plain_server() {
        Some(server) => {
            progress("an outage");
            let recovered = outage::measure(&bench, &server)?;
            report.fine("recovery_s", what, (recovered, 2), "s", Some(Aim::AtMost(5.0)));
        }
        None => report.missing("recovery_s", what, "needs a store at redis://"),
    }
    progress("bytes of 1,024 blocks");
    let compared = copies::compare(&bench)?;
    report.count("found", "blocks of another machine that were found, of 1,024", compared.found, "", None);
    report.count("loaded", "of these, loaded", compared.loaded, "", None);
    report.count("wrong", "of these, with a wrong byte", compared.wrong, "", Some(Aim::AtMost(0.0)));
    Ok(report)
}

fn report_copies(bench: &Bench<'_>, report: &mut Report) -> Result<(), Error> {
    for (encrypt, suffix, how, aim) in
        [(false, "", "plain", Some(Aim::AtLeast(0.8))), (true, "_encrypted", "encrypted", None)]
    {
        progress(&format!("copies, {how}"));
        let copies = copies::measure(bench, encrypt)?;
        for (key, ratios) in [("write", &copies.write_ratios), ("read", &copies.read_ratios)] {
            let what = format!("{key}s of blocks, {how} ÷ the store's crate alone");
            report.number(format!("{key}_ratio{suffix}"), what, median(ratios), "x", aim);
        }
        let [write, raw_write, read, raw_read] = copies.rates.each_ref().map(|rates| median(rates) / 1e9);
        report.note(format!(
            "{how}: writes {write:.2} GB/s, crate alone {raw_write:.2}; reads {read:.2} GB/s, crate alone {raw_read:.2}"
        ));
    }
    Ok(())
}

fn report_beside(report: &mut Report, key: &str, what: &str, ratios: beside::Ratios) {
    let aim = Some(Aim::AtMost(1.1));
    for (figure, value, aim) in [
        ("lookup", ratios.lookup, aim),
        ("load", ratios.load, aim),
        ("lookup_p99", ratios.lookup_p99, None),
        ("load_p99", ratios.load_p99, None),
    ] {
        let (name, tail) = figure.split_once("_p99").map_or((figure, "p50"), |(name, _)| (name, "p99"));
        let key = if tail == "p50" { format!("{name}_ratio_{key}") } else { format!("{name}_p99_ratio_{key}") };
        report.number(key, format!("{name} {what}, {tail}"), value, "x", aim);
    }
}

/// Return the median.
fn median(figures: &[f64]) -> f64 {
    let mut figures = figures.to_vec();
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}
