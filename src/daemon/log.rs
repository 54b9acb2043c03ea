//! The daemon's log on stderr. Its filter comes from the configuration and can be reloaded; repeated lines are rate-limited.

use crate::config::ConfigError;
use crate::error::Error;
use kvtide_http::log::{Limits, filter};
use std::env;
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

/// Environment variable with directives that override the configuration.
const VARIABLE: &str = "RUST_LOG";

/// Return the filter of `RUST_LOG`; `None`: the variable is not set.
///
/// # Errors
/// Its directives are invalid.
pub(crate) fn environment() -> Result<Option<EnvFilter>, ConfigError> {
    let Some(value) = env::var_os(VARIABLE) else { return Ok(None) };
    let filter = value.to_str().map_or_else(|| Err("UTF-8".to_owned()), filter);
    filter.map(Some).map_err(|expected| ConfigError::Variable {
        name: VARIABLE,
        value: value.to_string_lossy().into_owned(),
        expected,
    })
}

impl Log {
    /// Start logging, with the filter of `RUST_LOG` or, if unset, with the directives of the configuration.
    ///
    /// # Errors
    /// `RUST_LOG` is invalid.
    pub fn start(directives: &str) -> Result<Log, ConfigError> {
        let environment = environment()?;
        let from_environment = environment.is_some();
        // The directives of the configuration are valid: it was checked.
        let (filter, handle) = reload::Layer::new(environment.unwrap_or_else(|| EnvFilter::new(directives)));
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .with_target(false);
        let limits = Limits::default();
        tracing_subscriber::registry().with(filter).with(limits.clone()).with(lines).init();
        Ok(Log { filter: handle, from_environment, limits })
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
        let failed =
            |error: String| Error::system(format!("set the log directives {directives:?}"), io::Error::other(error));
        let filter = filter(directives).map_err(failed)?;
        self.filter.reload(filter).map_err(|error| failed(error.to_string()))
    }
}
