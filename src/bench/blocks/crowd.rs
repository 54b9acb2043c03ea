//! Four threads of one client and four clients that are processes, all at once at one daemon: how long a look-up takes at most then, and
//! whether the sum of what they get through is what one of them gets alone.
//!
//! Each does the same over and over: it looks a prefix of 1,024 blocks up, leases the part of it that it wants, loads that, and lets it
//! go. What the machine itself adds is measured the same way: by the same clients at the same work, which in place of each look-up send
//! a byte to a thread that does nothing else but send it back.

use super::client::{Tally, Work};
use super::{BenchError, Engine, daemon, median};
use crate::bench::nvme::failed;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Threads of this process, and processes beside it.
const THREADS: u16 = 4;
const PROCESSES: u16 = 4;
const ROUNDS: usize = 5;
/// How long one client alone is measured in a round, and all of them.
const TIME: Duration = Duration::from_millis(600);

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// Of the look-ups of all clients at once.
    pub(super) max_us: f64,
    pub(super) p99_us: f64,
    /// The same of the bytes that are sent back instead.
    pub(super) machine_max_us: f64,
    pub(super) machine_p99_us: f64,
    /// The sum of all against one alone, of each round.
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
            "one client alone {:.2} GB/s and as many look-ups as loads of 2 MiB; {THREADS} threads and {PROCESSES} processes together {:.2} GB/s",
            median(&self.alone) / 1e9,
            median(&self.all) / 1e9
        )
    }
}

/// A client in a process of its own, told by lines what to do.
struct Other {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for Other {
    fn drop(&mut self) {
        // It ends by itself at the end of its orders, unless it hangs. Both fail only if it has ended.
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
            return Err(BenchError::Odd("a client has no pipes".into()));
        };
        let mut other = Other { child, orders, answers: BufReader::new(answers) };
        other.answer()?;
        Ok(other)
    }

    fn order(&mut self, order: &str) -> Result<(), BenchError> {
        self.orders.write_all(order.as_bytes()).map_err(|e| failed("tell a client what to do", e))
    }

    fn answer(&mut self) -> Result<String, BenchError> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line).map_err(|e| failed("read what a client says", e))?;
        if read == 0 {
            return Err(BenchError::Odd("a client has ended; what it said is above".into()));
        }
        Ok(line)
    }
}

/// Sends every byte back that comes over a connection, to the end of all of them.
fn echo(path: &Path) -> Result<(), BenchError> {
    let listener = UnixListener::bind(path).map_err(|e| failed(format!("listen on {}", path.display()), e))?;
    let answer = move || {
        for _ in 0..THREADS + PROCESSES {
            let Ok((mut peer, _)) = listener.accept() else { return };
            // One thread for each: who is to be woken is then the scheduler's choice alone.
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
        channels.push(super::trying("take a channel", client.channel(index))?);
    }
    for (number, channel) in (0..THREADS).zip(channels) {
        ours.push(Work::new(channel, connect()?, number, u32::from(number) * Work::OWN));
    }
    let others = (THREADS..THREADS + PROCESSES).map(|number| Other::start(daemon.socket(), &path, number));
    let mut others = others.collect::<Result<Vec<Other>, BenchError>>()?;
    let mut crowd = Crowd::default();
    let (mut lookups, mut bytes) = (Tally::default(), Tally::default());
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
    let us = |tally: &mut Tally, percent| tally.percentile_ns(percent) as f64 / 1e3;
    (crowd.max_us, crowd.p99_us) = (us(&mut lookups, 100), us(&mut lookups, 99));
    (crowd.machine_max_us, crowd.machine_p99_us) = (us(&mut bytes, 100), us(&mut bytes, 99));
    Ok(crowd)
}

/// All clients at once; with look-ups, or with bytes that are sent back.
fn together(ours: &mut [Work], others: &mut [Other], lookups: bool) -> Result<Tally, BenchError> {
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
    let mut all = Tally::default();
    for tally in ended {
        all.beside(tally?);
    }
    for other in others {
        all.beside(Tally::parse(&other.answer()?)?);
    }
    Ok(all)
}
