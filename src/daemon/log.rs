//! The daemon's log on stderr. Its filter comes from the configuration and can be reloaded; repeated lines are rate-limited.

mod limit;

use crate::error::Error;
use limit::Limits;
use std::io::{self, IsTerminal};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// Handle of the running log.
#[derive(Clone, Debug)]
pub struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
    /// `RUST_LOG` is set; it overrides the configuration.
    from_environment: bool,
    limits: Limits,
}

impl Log {
    /// Start logging, with the directives of `RUST_LOG` or, if unset, with `directives`.
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

    /// Log how many repeated lines were left out since the last call. Call it every few seconds and at the end.
    pub fn tell_left_out(&self) {
        self.limits.tell();
    }

    /// Change the directives, unless `RUST_LOG` overrides them.
    ///
    /// # Errors
    /// The directives are invalid.
    pub fn change(&self, directives: &str) -> Result<(), Error> {
        if self.from_environment {
            tracing::info!("daemon.log is ignored because RUST_LOG is set");
            return Ok(());
        }
        let failed = |error: &dyn std::error::Error| {
            Error::system(format!("set the log directives {directives:?}"), io::Error::other(error.to_string()))
        };
        let filter = EnvFilter::try_new(directives).map_err(|error| failed(&error))?;
        self.filter.reload(filter).map_err(|error| failed(&error))
    }
}
