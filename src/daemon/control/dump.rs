//! Status dump to a file, for operators without HTTP access. A separate thread writes it: the control thread must not wait for
//! stats or for a disk.

use crate::announce::{DUMPED, say};
use crate::error::Error;
use crate::status::{self, HealthMonitor};
use crossbeam::channel::{Receiver, Sender, bounded};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a dump waits for current stats: the host thread may be prefaulting a slab. Stats of a thread that hangs are written
/// with their age.
const EXACT: Duration = Duration::from_secs(1);

/// The thread that writes dumps.
#[derive(Debug)]
pub(super) struct Dumper {
    wanted: Sender<()>,
    thread: JoinHandle<()>,
}

impl Dumper {
    /// Start the thread.
    pub fn start(monitor: HealthMonitor, path: PathBuf) -> Result<Dumper, Error> {
        // One queued request is enough: its dump begins after all requests made before it.
        let (wanted, dumps) = bounded(1);
        let builder = std::thread::Builder::new().name("kvtide-dump".into());
        let thread = builder.spawn(move || run(&monitor, &path, &dumps));
        let thread = thread.map_err(|e| Error::system("start the thread that writes the status dump", e))?;
        Ok(Dumper { wanted, thread })
    }

    /// Request a dump; does not wait for it.
    pub fn want(&self) {
        // If the queue is full, a dump is already due.
        let _ = self.wanted.try_send(());
    }

    /// Stop the thread after it has written the requested dumps.
    pub fn end(self) {
        drop(self.wanted);
        if self.thread.join().is_err() {
            tracing::error!("the status dump thread panicked");
        }
    }
}

fn run(monitor: &HealthMonitor, path: &Path, dumps: &Receiver<()>) {
    for () in dumps {
        let Some(snapshot) = monitor.snapshot(EXACT) else {
            tracing::error!("status dump not written: the health monitor thread does not respond");
            continue;
        };
        match status::write(path, &snapshot) {
            Ok(()) => say(DUMPED, path),
            Err(error) => tracing::error!("{error}"),
        }
    }
}
