//! The space's core with its flight recorder, its output and its deadline: all input passes here, so that an incident can be
//! replayed.
//!
//! A recording is written to `space-N.kvtrec` in the daemon's directory: on SIGUSR2, at the first internal error, and when the core
//! thread panics. `kvtide-sim --replay FILE` replays it.

use crate::error::Error;
use crate::status;
use kvtide_tiering::api::Event;
use kvtide_tiering::recorder::Recorder;
use kvtide_tiering::{ActionBuf, Core, Error as CoreError, LIST_MAX};
use std::ops::Deref;
use std::path::PathBuf;

/// Interval at which a busy thread asks the core for its next deadline; deadlines are milliseconds away or more.
const ASK_US: u64 = 100;
/// Capacity of the action buffer: many times what one event usually causes.
const ACTIONS: usize = 1024;
/// Capacity of its list, in words.
const WORDS: usize = 16 * LIST_MAX;

/// Owns the core: others read it, and change it by events alone.
#[derive(Debug)]
pub(super) struct Flight {
    core: Core,
    /// Actions that the last input caused.
    actions: ActionBuf,
    /// Next deadline of the core.
    due_us: Option<u64>,
    /// Time at which it was last queried.
    asked_us: u64,
    recorder: Option<Recorder>,
    path: PathBuf,
    /// A recording of an internal error was written; errors caused by it must not overwrite it.
    failed: bool,
}

impl Flight {
    /// Create it; records at most `bytes` of input, 0: nothing.
    pub fn new(core: Core, bytes: u64, path: PathBuf) -> Flight {
        let recorder = (bytes > 0).then(|| Recorder::new(&core, bytes as usize));
        let actions = ActionBuf::new(ACTIONS, WORDS);
        Flight { core, actions, due_us: None, asked_us: 0, recorder, path, failed: false }
    }

    /// [`Core::handle`]; the actions replace the last ones.
    pub fn handle(&mut self, now_us: u64, event: Event<'_>) -> Result<(), CoreError> {
        self.actions.clear();
        match &mut self.recorder {
            Some(recorder) => recorder.handle(&mut self.core, now_us, event, &mut self.actions),
            None => self.core.handle(now_us, event, &mut self.actions),
        }
    }

    /// [`Core::poll`]; the actions replace the last ones.
    pub fn poll(&mut self, now_us: u64) {
        self.actions.clear();
        match &mut self.recorder {
            Some(recorder) => recorder.poll(&mut self.core, now_us, &mut self.actions),
            None => self.core.poll(now_us, &mut self.actions),
        }
    }

    /// Return the actions that the last input caused.
    pub fn actions(&self) -> &ActionBuf {
        &self.actions
    }

    /// Return true if the core's deadline has come. After work, it may have a new one.
    pub fn is_due(&mut self, now_us: u64, worked: bool) -> bool {
        if worked && now_us.saturating_sub(self.asked_us) >= ASK_US {
            self.ask_due(now_us);
        }
        self.due_us.is_some_and(|due_us| due_us <= now_us)
    }

    /// Query the core's next deadline.
    pub fn ask_due(&mut self, now_us: u64) -> Option<u64> {
        self.asked_us = now_us;
        self.due_us = self.core.next_deadline();
        self.due_us
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
