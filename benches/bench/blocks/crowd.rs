//! Four threads of one client and four client processes at one daemon: the longest lookup under concurrency, and their total
//! throughput compared with one client alone.
//!
//! Each client repeatedly looks up a prefix of 1,024 blocks, leases the part it needs, loads it, and releases the lease. The
//! machine's own share is measured with the same clients and loads, which instead of each lookup send a byte to a thread that
//! echoes it.

use super::client::{Stats, Work};
use super::{BenchError, Engine, daemon, median};
use crate::bench::nvme::failed;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Threads of this process, and additional processes.
const THREADS: u16 = 4;
const PROCESSES: u16 = 4;
const ROUNDS: usize = 5;
/// Measured time per round of one client alone, and of all clients.
const TIME: Duration = Duration::from_millis(600);

/// Results.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// Of the lookups of all clients.
    pub(super) max_us: f64,
    pub(super) p99_us: f64,
    /// Of the echoed bytes.
    pub(super) machine_max_us: f64,
    pub(super) machine_p99_us: f64,
    /// Total throughput divided by that of one client, for each round.
    ratios: Vec<f64>,
    alone: Vec<f64>,
    all: Vec<f64>,
}

impl Crowd {
    pub(super) fn ratio(&self) -> f64 {
        median(&self.ratios)
    }

    pub(super) fn note(&self) -> String {
        format!(
            "one client alone {:.2} GB/s, with as many lookups as loads of 2 MiB; {THREADS} threads and {PROCESSES} processes \
            together {:.2} GB/s",
            median(&self.alone) / 1e9,
            median(&self.all) / 1e9
        )
    }
}

/// A client process, controlled by lines on its stdin.
struct Other {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for Other {
    fn drop(&mut self) {
        // It ends when stdin is closed, unless it hangs. Both calls fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Other {
    fn start(socket: &Path, echo: &Path, number: u16) -> Result<Other, BenchError> {
        let binary = std::env::current_exe().map_err(|e| failed("find this process's own binary", e))?;
        let mut command = Command::new(binary);
        command.args(["bench", "blocks-client"]).arg("--socket").arg(socket).arg("--echo").arg(echo);
        command.arg("--number").arg(number.to_string());
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.map_err(|e| failed("start a client", e))?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(BenchError::Odd("a client process has no pipes".into()));
        };
        let mut other = Other { child, orders, answers: BufReader::new(answers) };
        other.answer()?;
        Ok(other)
    }

    fn order(&mut self, order: &str) -> Result<(), BenchError> {
        self.orders.write_all(order.as_bytes()).map_err(|e| failed("send an order to a client", e))
    }

    fn answer(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line).map_err(|e| failed("read a client's answer", e))?;
        if read == 0 {
            return Err(BenchError::Odd("a client process ended; its message is above".into()));
        }
        Ok(line)
    }
}

/// Echo every byte on every connection of a new socket at `path`.
fn echo(path: &Path) -> Result<(), BenchError> {
    let listener = UnixListener::bind(path).map_err(|e| failed(format!("listen on {}", path.display()), e))?;
    let answer = move || {
        for _ in 0..THREADS + PROCESSES {
            let Ok((mut peer, _)) = listener.accept() else { return };
            // One thread per connection, so that wake-ups depend on the scheduler only.
            let serve = move || {
                let mut byte = [0];
                while peer.read_exact(&mut byte).is_ok() && peer.write_all(&byte).is_ok() {}
            };
            if std::thread::Builder::new().name("echo".into()).spawn(serve).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("echo".into()).spawn(answer).map_err(|e| failed("start a thread", e))?;
    Ok(())
}

pub(super) fn measure() -> Result<Crowd, BenchError> {
    let mut daemon = daemon(Work::CACHED_BYTES * 2 + (64 << 20), 4 * Work::CACHED)?;
    let mut engine = Engine::with(daemon.socket(), Work::BLOCK_BYTES, Work::OWN * u32::from(THREADS), THREADS)?;
    Work::fill(&mut engine)?;
    let path = daemon.dir().join("echo.sock");
    echo(&path)?;
    let connect = || UnixStream::connect(&path).map_err(|e| failed(format!("connect to {}", path.display()), e));
    let mut ours = Vec::new();
    let Engine { channel, client } = engine;
    let mut channels = vec![channel];
    for index in 1..THREADS {
        channels.push(super::trying("get a channel", client.channel(index))?);
    }
    for (number, channel) in (0..THREADS).zip(channels) {
        ours.push(Work::new(channel, connect()?, number, u32::from(number) * Work::OWN));
    }
    let others = (THREADS..THREADS + PROCESSES).map(|number| Other::start(daemon.socket(), &path, number));
    let mut others = others.collect::<Result<Vec<Other>, BenchError>>()?;
    let mut crowd = Crowd::default();
    let (mut lookups, mut bytes) = (Stats::default(), Stats::default());
    for round in 0..=ROUNDS {
        let alone = ours[0].run(TIME, true)?;
        let all = together(&mut ours, &mut others, true)?;
        let beside = together(&mut ours, &mut others, false)?;
        // The first round maps memory and starts threads.
        if round > 0 {
            crowd.ratios.push(all.rate() / alone.rate());
            crowd.alone.push(alone.rate());
            crowd.all.push(all.rate());
            lookups.add(all);
            bytes.add(beside);
        }
    }
    drop(others);
    daemon.stop()?;
    let us = |stats: &mut Stats, percent| stats.percentile_ns(percent) as f64 / 1e3;
    (crowd.max_us, crowd.p99_us) = (us(&mut lookups, 100), us(&mut lookups, 99));
    (crowd.machine_max_us, crowd.machine_p99_us) = (us(&mut bytes, 100), us(&mut bytes, 99));
    Ok(crowd)
}

/// Run all clients at the same time, with lookups or with echoed bytes.
fn together(ours: &mut [Work], others: &mut [Other], lookups: bool) -> Result<Stats, BenchError> {
    let order = format!("{} {}\n", TIME.as_millis(), u8::from(lookups));
    others.iter_mut().try_for_each(|other| other.order(&order))?;
    let (told, ended) = mpsc::channel();
    std::thread::scope(|scope| {
        for work in ours.iter_mut() {
            let told = told.clone();
            // The receiver outlives the scope.
            scope.spawn(move || _ = told.send(work.run(TIME, lookups)));
        }
    });
    drop(told);
    let mut all = Stats::default();
    for stats in ended {
        all.beside(stats?);
    }
    for other in others {
        all.beside(Stats::parse(&other.answer()?)?);
    }
    Ok(all)
}
