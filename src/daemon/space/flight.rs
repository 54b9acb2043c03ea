//! The space's core with its flight recorder: all input passes here, so that an incident can be replayed.
//!
//! A recording is written to `space-N.kvtrec` in the daemon's directory: on SIGUSR2, at the first internal error, and when the core
//! thread panics. `kvtide-sim --replay FILE` replays it.

use crate::error::Error;
use crate::status;
use kvtide_tiering::api::Event;
use kvtide_tiering::recorder::Recorder;
use kvtide_tiering::{ActionBuf, Core, Error as CoreError};
use std::ops::Deref;
use std::path::PathBuf;

/// A core with an optional recorder.
#[derive(Debug)]
pub(super) struct Flight {
    core: Core,
    recorder: Option<Recorder>,
    path: PathBuf,
    /// A recording of an internal error was written; errors caused by it must not overwrite it.
    failed: bool,
}

impl Flight {
    /// Create it; records at most `bytes` of input, 0: nothing.
    pub fn new(core: Core, bytes: u64, path: PathBuf) -> Flight {
        let recorder = (bytes > 0).then(|| Recorder::new(&core, bytes as usize));
        Flight { core, recorder, path, failed: false }
    }

    /// [`Core::handle`].
    pub fn handle(&mut self, now_us: u64, event: Event<'_>, actions: &mut ActionBuf) -> Result<(), CoreError> {
        match &mut self.recorder {
            Some(recorder) => recorder.handle(&mut self.core, now_us, event, actions),
            None => self.core.handle(now_us, event, actions),
        }
    }

    /// [`Core::poll`].
    pub fn poll(&mut self, now_us: u64, actions: &mut ActionBuf) {
        match &mut self.recorder {
            Some(recorder) => recorder.poll(&mut self.core, now_us, actions),
            None => self.core.poll(now_us, actions),
        }
    }

    /// Handle an internal error: write the recording, once.
    pub fn failed(&mut self) {
        if !std::mem::replace(&mut self.failed, true) {
            self.write();
        }
    }

    /// Write the recording, if there is one.
    pub fn write(&self) {
        let Some(recorder) = &self.recorder else { return };
        let written = recorder
            .dump(&self.core)
            .map_err(|error| Error::system("encode the flight recording", std::io::Error::other(error)));
        match written.and_then(|bytes| status::replace(&self.path, "write the flight recording", &bytes)) {
            Ok(()) => {
                tracing::info!("flight recording of {} inputs written to {}", recorder.inputs(), self.path.display())
            }
            Err(error) => tracing::error!("{error}"),
        }
    }
}

impl Deref for Flight {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.failed();
        }
    }
}
