//! The status as a file, for operators who cannot use HTTP: written by a thread of its own, since the control thread must wait neither for
//! figures nor for a disk.

use crate::daemon::{DUMPED, say};
use crate::error::Error;
use crate::status::{self, Watch};
use crossbeam::channel::{Receiver, Sender, bounded};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a dump waits for exact figures: the host thread may be prefaulting a slab. Those of a thread that hangs are written with
/// their age.
const EXACT: Duration = Duration::from_secs(1);

/// The thread that writes dumps.
#[derive(Debug)]
pub(super) struct Dumper {
    wanted: Sender<()>,
    thread: JoinHandle<()>,
}

impl Dumper {
    /// Starts it.
    pub fn start(watch: Watch, path: PathBuf) -> Result<Dumper, Error> {
        // One that waits begins after it was wanted: a second one would tell the same.
        let (wanted, dumps) = bounded(1);
        let builder = std::thread::Builder::new().name("kvtide-dump".into());
        let thread = builder.spawn(move || run(&watch, &path, &dumps));
        let thread = thread.map_err(|e| Error::system("start the thread that writes the status dump", e))?;
        Ok(Dumper { wanted, thread })
    }

    /// Has the status written soon.
    pub fn want(&self) {
        // Full: it will be written anyway.
        let _ = self.wanted.try_send(());
    }

    /// Ends it; what was wanted is written.
    pub fn end(self) {
        drop(self.wanted);
        if self.thread.join().is_err() {
            tracing::error!("the thread that writes the status dump had panicked");
        }
    }
}

fn run(watch: &Watch, path: &Path, dumps: &Receiver<()>) {
    for () in dumps {
        let Some(snapshot) = watch.snapshot(EXACT) else {
            tracing::error!("no status is written: the watch thread does not go round");
            continue;
        };
        match status::write(path, &snapshot) {
            Ok(()) => say(DUMPED, path),
            Err(error) => tracing::error!("{error}"),
        }
    }
}
