//! What a call on a device may end with: what was tried, on what, why it failed, and what is needed where something is missing.

use crate::driver::Version;
use std::time::Duration;

/// Result of a call on a device.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no CUDA driver, or none that loads.
    #[error(
        "no CUDA driver: loading {library} failed: {why}. Needed: an NVIDIA GPU and its driver, {needed} or newer. \
         Without one tier 0 can be plain memory (device `cpu`)",
        needed = Version::NEEDED
    )]
    NoDriver {
        /// What was looked for.
        library: String,
        /// The loader's words.
        why: String,
    },
    /// The library is a driver, but not all of one.
    #[error("{library} is no driver that can be used: it lacks {}. Needed: {} or newer", missing.join(", "), Version::NEEDED)]
    Symbols {
        /// What was loaded.
        library: String,
        /// The functions that it lacks.
        missing: Vec<&'static str>,
    },
    /// The driver is older than what is needed.
    #[error("the CUDA driver ({library}) speaks {found}. Needed: {needed} or newer")]
    DriverTooOld {
        /// What was loaded.
        library: String,
        /// What it speaks.
        found: Version,
        /// What is needed.
        needed: Version,
    },
    /// The driver is there and does not start.
    #[error("the CUDA driver ({library}) does not start: cuInit: {name} ({code}): {hint}")]
    Start {
        /// What was loaded.
        library: String,
        /// CUDA's number.
        code: u32,
        /// CUDA's name of it.
        name: String,
        /// What that usually means.
        hint: &'static str,
    },
    /// The device asked for is not there.
    #[error("there is no CUDA device {asked}. There are: {there}")]
    NoSuchDevice {
        /// What was asked for.
        asked: String,
        /// What there is.
        there: String,
    },
    /// A call of the driver failed.
    #[error("{call} on {on}: {name} ({code})")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// On what.
        on: String,
        /// CUDA's number.
        code: u32,
        /// CUDA's name of it.
        name: String,
    },
    /// The device, or what may be pinned of the host, is full.
    #[error("{call} on {on}: out of memory{}; {free} of {total} bytes of the device are free", asked(*wanted))]
    OutOfMemory {
        /// The driver's function.
        call: &'static str,
        /// On what.
        on: String,
        /// How much was asked for; 0 where the call does not say.
        wanted: u64,
        /// What the device had left.
        free: u64,
        /// What the device has.
        total: u64,
    },
    /// The device, or this process's context on it, is lost: nothing works on it any more. Other devices and processes live on.
    #[error("{device} is lost: {call} on {on}: {name} ({code}). This process needs to be restarted to use it again")]
    Lost {
        /// Which device.
        device: String,
        /// The driver's function that reported it.
        call: &'static str,
        /// On what.
        on: String,
        /// CUDA's number.
        code: u32,
        /// CUDA's name of it.
        name: String,
    },
    /// The driver refused a kernel's code.
    #[error("kernels `{module}` do not load on {device}: {name} ({code}){}{log}", if log.is_empty() { "" } else { ": " })]
    Kernels {
        /// Which source.
        module: &'static str,
        /// On which device.
        device: String,
        /// CUDA's number.
        code: u32,
        /// CUDA's name of it.
        name: String,
        /// The JIT compiler's words.
        log: String,
    },
    /// Something that this device, this driver or these kernels cannot do.
    #[error("{what} is not supported: {needs}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What it would need.
        needs: String,
    },
    /// An argument that cannot be.
    #[error("{what}: {why}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A bound was reached: to be tried again when something has ended.
    #[error("{what}: {limit} at a time, all in use")]
    Busy {
        /// Of what there are no more.
        what: &'static str,
        /// How many there are.
        limit: usize,
    },
    /// A bounded wait has ended without what was waited for.
    #[error("{what}: not done within {after:?}")]
    TimedOut {
        /// What was waited for.
        what: String,
        /// For how long.
        after: Duration,
    },
    /// CUDA was started by the parent of this process; a forked child cannot use it.
    #[error(
        "{what}: CUDA was started before fork() by process {parent}; a child must be started by exec, or fork before CUDA starts"
    )]
    Forked {
        /// What was tried.
        what: &'static str,
        /// Who started CUDA.
        parent: u32,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    System {
        /// What was tried.
        doing: String,
        /// What the system said.
        source: std::io::Error,
    },
}

fn asked(wanted: u64) -> String {
    if wanted == 0 { String::new() } else { format!(": {wanted} bytes asked for") }
}

impl Error {
    /// Whether the device is lost to this process.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Whether memory ran out.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. })
    }

    /// An argument that cannot be.
    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { what, why: why.into() }
    }
}
