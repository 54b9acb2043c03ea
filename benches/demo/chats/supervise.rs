//! The daemons of the chats: one is killed with SIGKILL, the next one starts over the same NVMe directory.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::engine::Message;
use super::plan::{CHATS, Plan};
use super::{Measured, Results};
use crate::demo::attention::pages_of;
use crate::demo::console::Console;
use crate::demo::error::DemoError;
use crate::demo::processes::{Engine, Event, last_words, message, watch};
use crate::private_daemon::{Options, PrivateDaemon, remove_dir, temporary_dir};

/// Time limit for a killed daemon to end.
const KILL: Duration = Duration::from_secs(10);
/// Unit in which the space gets host memory.
const HOST_SLAB_BYTES: u64 = 1 << 20;
/// The same on NVMe.
const NVME_SLAB_BYTES: u64 = 8 << 20;

/// Where the parts of the demo keep their files.
#[derive(Clone, Copy, Debug)]
pub struct Dirs<'a> {
    /// Parent of the daemons' directories.
    pub dir: Option<&'a Path>,
    /// Parent of the NVMe directory.
    pub nvme: Option<&'a Path>,
}

/// A directory that outlives the daemons and is removed at the end.
struct Disk(PathBuf);

impl Drop for Disk {
    fn drop(&mut self) {
        remove_dir(&self.0);
    }
}

/// Run the chats. All their processes and files are removed when it returns.
///
/// # Errors
/// [`DemoError`].
pub fn chats(
    plan: &Plan,
    dirs: Dirs<'_>,
    flip_bit: bool,
    console: &mut Console,
    (sender, events): (&Sender<Event>, &Receiver<Event>),
) -> Result<Results, DemoError> {
    let disk = Disk(temporary_dir(dirs.nvme.or(dirs.dir))?);
    let options = options(plan, dirs, &disk.0);
    let mut daemon = PrivateDaemon::start(&options)?;
    watch(&daemon, sender)?;
    let engine = start_engine(plan, &daemon, flip_bit, sender)?;
    let (measured, restart_s) = relay(engine, plan, &options, console, &mut daemon, (sender, events))?;
    let blocks = |count: usize| count as u64 * plan.block_bytes();
    Ok(Results {
        kv_bytes: blocks(CHATS * pages_of(plan.tokens_max())),
        engine_bytes: blocks(plan.engine_blocks()),
        host_bytes: options.host_bytes.unwrap_or(0),
        document_tokens: plan.document_tokens,
        restart_s,
        measured,
        planned: (plan.questions(), plan.answer_tokens * plan.vocabulary),
    })
}

fn options(plan: &Plan, dirs: Dirs<'_>, disk: &Path) -> Options {
    let host = (plan.host_blocks() as u64 * plan.block_bytes()).next_multiple_of(HOST_SLAB_BYTES);
    // Twice the room: a block is written before an older one is erased.
    let nvme = (2 * plan.stored_blocks_max() as u64 * plan.block_bytes()).next_multiple_of(NVME_SLAB_BYTES);
    let config = format!(
        "[tiers.nvme]\nslab = {NVME_SLAB_BYTES}\n[[tiers.nvme.disks]]\ndir = {disk:?}\ncapacity = {nvme}\nreserve_free = 0\n"
    );
    Options {
        dir: dirs.dir.map(Path::to_path_buf),
        host_bytes: Some(host),
        slab_bytes: Some(HOST_SLAB_BYTES),
        config: Some(config),
        ..Options::default()
    }
}

fn start_engine(
    plan: &Plan,
    daemon: &PrivateDaemon,
    flip_bit: bool,
    events: &Sender<Event>,
) -> Result<Engine, DemoError> {
    let mut command = Engine::command("demo-chats")?;
    command.arg("--socket").arg(daemon.socket());
    command.args(["--document", &plan.document_tokens.to_string(), "--answer", &plan.answer_tokens.to_string()]);
    command.args(["--parent", &std::process::id().to_string()]).args(flip_bit.then_some("--flip-bit"));
    Engine::spawn(command, events)
}

/// Show the messages of the engine until it ends, and replace the daemon when it asks for it. Return the measurements, and the time
/// of the second start.
fn relay(
    mut engine: Engine,
    plan: &Plan,
    options: &Options,
    console: &mut Console,
    daemon: &mut PrivateDaemon,
    (sender, events): (&Sender<Event>, &Receiver<Event>),
) -> Result<(Measured, f64), DemoError> {
    let (mut measured, mut restart_s, mut answers) = (None, 0.0, 0);
    while let Some(message) = message(events, daemon, |daemon| died(daemon, answers))? {
        match message {
            Message::Answered { answers: so_far } => {
                answers = so_far;
                console.chats(answers, 2 * plan.questions());
            }
            Message::Restart => {
                daemon.signal(Signal::KILL)?;
                daemon.wait(KILL)?;
                let began = Instant::now();
                *daemon = PrivateDaemon::start(options)?;
                restart_s = began.elapsed().as_secs_f64();
                watch(daemon, sender)?;
                engine.go_on(&daemon.socket().to_string_lossy())?;
            }
            Message::Ended { measured: all } => measured = Some(all),
            Message::Failed { daemon: true, .. } => return Err(died(daemon, answers)),
            Message::Failed { error, .. } => return Err(DemoError::Chats { answers, error }),
        }
    }
    engine.ended()?;
    measured.map(|measured| (measured, restart_s)).ok_or(DemoError::Incomplete)
}

fn died(daemon: &mut PrivateDaemon, answers: usize) -> DemoError {
    let (ended, log) = last_words(daemon);
    DemoError::ChatDaemonDied { ended, answers, log }
}
