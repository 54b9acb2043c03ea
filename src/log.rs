//! The log: lines on stderr, filtered by the configuration, which can be reloaded, and rate-limited.

mod limit;

use crate::error::Error;
use limit::Limits;
use std::io::{self, IsTerminal};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// The filter of the running log.
#[derive(Clone, Debug)]
pub struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
    /// The environment's `RUST_LOG` wins over the configuration.
    from_environment: bool,
    limits: Limits,
}

impl Log {
    /// Begins to log, with the environment's directives or, without any, with these.
    #[must_use]
    pub fn start(directives: &str) -> Log {
        let environment = EnvFilter::try_from_default_env();
        let from_environment = environment.is_ok();
        let (filter, handle) = reload::Layer::new(environment.unwrap_or_else(|_| EnvFilter::new(directives)));
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .with_target(false);
        let limits = Limits::default();
        tracing_subscriber::registry().with(filter).with(limits.clone()).with(lines).init();
        Log { filter: handle, from_environment, limits }
    }

    /// Logs how many lines that repeat were left out since this was last called. To be called every few seconds, and at the end.
    pub fn tell_left_out(&self) {
        self.limits.tell();
    }

    /// Logs by other directives from now on, unless the environment's hold.
    ///
    /// # Errors
    /// They do not parse.
    pub fn change(&self, directives: &str) -> Result<(), Error> {
        if self.from_environment {
            tracing::info!("daemon.log is of no effect: RUST_LOG is set");
            return Ok(());
        }
        let failed = |error: &dyn std::error::Error| {
            Error::system(format!("log by {directives:?}"), io::Error::other(error.to_string()))
        };
        let filter = EnvFilter::try_new(directives).map_err(|error| failed(&error))?;
        self.filter.reload(filter).map_err(|error| failed(&error))
    }
}
