//! Errors of calls on a device: action, object, cause, and the requirement if something is missing.

use crate::driver::Version;
use std::time::Duration;

/// Result of a call on a device.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no CUDA driver, or none that can be loaded.
    #[error(
        "no CUDA driver: loading {library} failed: {why}. Needed: an NVIDIA GPU and its driver, {needed} or newer. \
         Without one tier 0 can be plain memory (device `cpu`)",
        needed = Version::NEEDED
    )]
    NoDriver {
        /// Name of the library.
        library: String,
        /// The loader's message.
        why: String,
    },
    /// The library is an incomplete driver.
    #[error("{library} is not a usable driver: it lacks {}. Needed: {} or newer", missing.join(", "), Version::NEEDED)]
    Symbols {
        /// The loaded library.
        library: String,
        /// Missing functions.
        missing: Vec<&'static str>,
    },
    /// The driver is too old.
    #[error("the CUDA driver ({library}) speaks {found}. Needed: {needed} or newer")]
    DriverTooOld {
        /// The loaded library.
        library: String,
        /// Its version.
        found: Version,
        /// Required version.
        needed: Version,
    },
    /// The driver was found but does not start.
    #[error("the CUDA driver ({library}) does not start: cuInit: {name} ({code}): {hint}")]
    Start {
        /// The loaded library.
        library: String,
        /// CUDA's number.
        code: u32,
        /// CUDA's name of it.
        name: String,
        /// Usual cause.
        hint: &'static str,
    },
    /// The requested device does not exist.
    #[error("there is no CUDA device {asked}. There are: {there}")]
    NoSuchDevice {
        /// Requested device.
        asked: String,
        /// Existing devices.
        there: String,
    },
    /// A call of the driver failed.
    #[error("{call} on {on}: {name} ({code})")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// Object of the call.
        on: String,
        /// CUDA's number.
        code: u32,
        /// CUDA's name of it.
        name: String,
    },
    /// The device, or the pinnable host memory, is full.
    #[error("{call} on {on}: out of memory{}; {free} of {total} bytes of the device are free", asked(*wanted))]
    OutOfMemory {
        /// The driver's function.
        call: &'static str,
        /// Object of the call.
        on: String,
        /// Requested bytes; 0 if the call does not specify them.
        wanted: u64,
        /// Free bytes of the device.
        free: u64,
        /// Total bytes of the device.
        total: u64,
    },
    /// The device, or this process's context on it, is lost: nothing works on it any more. Other devices and processes are not
    /// affected.
    #[error("{device} is lost: {call} on {on}: {name} ({code}). This process needs to be restarted to use it again")]
    Lost {
        /// Device.
        device: String,
        /// The driver's function that reported the loss.
        call: &'static str,
        /// Object of the call.
        on: String,
        /// CUDA's number.
        code: u32,
        /// CUDA's name of it.
        name: String,
    },
    /// The driver refused a kernel's code.
    #[error("kernels `{module}` do not load on {device}: {name} ({code}){}{log}", if log.is_empty() { "" } else { ": " })]
    Kernels {
        /// Name of the source.
        module: &'static str,
        /// Device.
        device: String,
        /// CUDA's number.
        code: u32,
        /// CUDA's name of it.
        name: String,
        /// The JIT compiler's message.
        log: String,
    },
    /// The device, the driver or these kernels do not support a feature.
    #[error("{what} is not supported: {needs}")]
    Unsupported {
        /// Feature.
        what: String,
        /// Requirement.
        needs: String,
    },
    /// Invalid argument.
    #[error("{what}: {why}")]
    Invalid {
        /// Name of the argument.
        what: &'static str,
        /// Reason for the error.
        why: String,
    },
    /// A limit was reached: try again when something has ended.
    #[error("{what}: {limit} at a time, all in use")]
    Busy {
        /// Name of the resource.
        what: &'static str,
        /// Limit.
        limit: usize,
    },
    /// A wait reached its time limit.
    #[error("{what}: not done within {after:?}")]
    TimedOut {
        /// Event that did not occur.
        what: String,
        /// Time limit.
        after: Duration,
    },
    /// The parent of this process has started CUDA; a forked child cannot use it.
    #[error(
        "{what}: CUDA was started before fork() by process {parent}; a child must be started by exec, or fork before CUDA starts"
    )]
    Forked {
        /// Action.
        what: &'static str,
        /// Process that started CUDA.
        parent: u32,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    System {
        /// Action.
        doing: String,
        /// The system's error.
        source: std::io::Error,
    },
}

fn asked(wanted: u64) -> String {
    if wanted == 0 { String::new() } else { format!(": {wanted} bytes requested") }
}

impl Error {
    /// Return whether the device is lost to this process.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Return whether memory ran out.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. })
    }

    /// Return whether work may still run on a device after a bounded wait for its end: not if all has ended, nor on a lost device.
    /// Then memory that the work uses must be leaked.
    #[must_use]
    pub fn may_run(settled: &Result<bool>) -> bool {
        match settled {
            Ok(ended) => !ended,
            Err(e) => !e.is_lost(),
        }
    }

    /// Return an error for an invalid argument.
    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { what, why: why.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::Error;

    #[test]
    fn work_of_unknown_state_may_run_and_work_on_a_lost_device_does_not() {
        let lost = Error::Lost {
            device: String::new(),
            call: "cuEventQuery",
            on: String::new(),
            code: 700,
            name: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned(),
        };
        let unknown = Error::invalid("event", "its state is unknown");
        assert!(Error::may_run(&Ok(false)) && Error::may_run(&Err(unknown)));
        assert!(!Error::may_run(&Ok(true)) && !Error::may_run(&Err(lost)));
    }
}
