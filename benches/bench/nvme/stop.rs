//! SIGINT, SIGTERM and SIGHUP end the benchmark in an orderly way, so that its files are removed.

use super::BenchError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum time between two checks for a signal.
pub(in crate::bench) const LOOK: Duration = Duration::from_millis(100);

/// Flag that is set by a signal.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Handle the signals from now on.
    ///
    /// # Errors
    /// A handler cannot be registered.
    pub fn on_signals() -> Result<Stop, BenchError> {
        let came = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&came))
                .map_err(|e| failed("register signal handlers", e))?;
        }
        Ok(Stop(came))
    }

    /// Return an error if a signal was received.
    ///
    /// # Errors
    /// A signal was received.
    pub fn check(&self) -> Result<(), BenchError> {
        if self.0.load(Ordering::Relaxed) { Err(BenchError::Interrupted) } else { Ok(()) }
    }
}

/// Return the error of a failed system call.
pub fn failed(tried: impl Into<String>, source: impl Into<io::Error>) -> BenchError {
    BenchError::System { tried: tried.into(), source: source.into() }
}
