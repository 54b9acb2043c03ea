//! Probe I/O features at start. A required feature that does not work is an error; a fallback is logged.

use super::engine::{Command, Done, Engine, Piece, Uring, UringSetup, Wait};
use super::error::DiskError;
use super::memory::Aligned;
use super::settings::{FeatureUse, IoEngine, Settings};
use super::store::Store;
use kvtide_format::SUPERBLOCK_BYTES;
use kvtide_types::IoKind;
use kvtide_wire::os::bell::bell;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// A locked-memory limit above this counts as unlimited; memory that later cannot be registered is counted.
const LOCKED_MOST: u64 = 64 << 20;
/// Bytes beyond the limit that the probe registers.
const BEYOND: u64 = 1 << 20;
/// Timeout of the trial read.
const TRIAL: Duration = Duration::from_secs(10);

/// I/O mode of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mode {
    /// True: io_uring; false: threads.
    pub uring: bool,
    /// Host memory is registered with the ring.
    pub registered: bool,
    /// Name in logs and metrics: `io_uring+direct+fixed`.
    pub text: String,
}

/// Determine the mode.
pub(super) fn probe(settings: &Settings, store: &Store) -> Result<Mode, DiskError> {
    let demanded =
        |demand, why: &str| DiskError::Demanded { path: settings.place.path().into(), demand, why: why.into() };
    let cache = if store.buffered.is_some() { "buffered" } else { "direct" };
    let (ring, reason) = match settings.engine {
        IoEngine::Threads => (None, "disabled by the configuration".to_owned()),
        IoEngine::Auto | IoEngine::Uring => match ring(settings, store) {
            Ok(setup) => (Some(setup), String::new()),
            Err(error) => (None, explain(&error)),
        },
    };
    let Some(setup) = ring else {
        if settings.engine == IoEngine::Uring {
            return Err(demanded("io = \"io_uring\"", &reason));
        }
        if settings.registered == FeatureUse::Required {
            return Err(demanded("registered = \"required\"", &format!("io_uring is not used: {reason}")));
        }
        let mode = Mode { uring: false, registered: false, text: format!("threads+{cache}") };
        report(settings, store, &mode, &format!("no io_uring: {reason}"));
        return Ok(mode);
    };
    let registered = match settings.registered {
        FeatureUse::Off => Err("disabled by the configuration".to_owned()),
        FeatureUse::Auto | FeatureUse::Required => registered(&setup),
    };
    if let (FeatureUse::Required, Err(why)) = (settings.registered, &registered) {
        return Err(demanded("registered = \"required\"", why));
    }
    let memory = if registered.is_ok() { "fixed" } else { "unregistered" };
    let mode = Mode { uring: true, registered: registered.is_ok(), text: format!("io_uring+{cache}+{memory}") };
    let note = match registered {
        Ok(()) => format!("completions {}", setup.completion),
        Err(why) => format!("completions {}, memory is pinned per request: {why}", setup.completion),
    };
    report(settings, store, &mode, &note);
    Ok(mode)
}

fn report(settings: &Settings, store: &Store, mode: &Mode, note: &str) {
    let (dir, align) = (settings.place.path().display(), store.align);
    let cache = match &store.buffered {
        Some(why) => format!("page cache: {why}"),
        None => format!("units of {} bytes, addresses of {}", align.offset, align.memory),
    };
    let fallen_back = store.buffered.is_some() || !mode.uring || !mode.registered;
    let text = format!("disk {} ({dir}): {} ({note}; {cache})", settings.number, mode.text);
    if fallen_back {
        tracing::warn!("{text}");
    } else {
        tracing::info!("{text}");
    }
}

/// Create a ring, after a trial read of the file.
fn ring(settings: &Settings, store: &Store) -> io::Result<UringSetup> {
    let (_ringer, sleepable) = bell().map_err(io::Error::other)?;
    let setup = UringSetup::new(settings.depth, false)?;
    let mut engine = Uring::new(setup, Arc::clone(&store.file), sleepable.as_fd().try_clone_to_owned()?)?;
    let mut page = Aligned::new(SUPERBLOCK_BYTES)?;
    let piece = Piece::new(page.as_ptr(), page.len());
    let command = Command { token: 0, kind: IoKind::Read, offset: 0, pieces: &raw const piece, count: 1, buffer: None };
    // SAFETY: page and piece live until the engine is dropped below; there are no other references to the page.
    unsafe { engine.push(&command) };
    let mut done: Vec<Done> = Vec::new();
    let called = engine.enter(Wait { want: 1, batch_us: 0, most: Some(TRIAL) }, &mut done);
    if done.is_empty() {
        // The kernel may still write to the page.
        page.leak();
    }
    called?;
    match done.first().map(|done| done.result) {
        Some(Ok(bytes)) if bytes as usize == SUPERBLOCK_BYTES => {}
        Some(Ok(bytes)) => return Err(io::Error::other(format!("short trial read of a sector: {bytes} bytes"))),
        Some(Err(errno)) => return Err(io::Error::from_raw_os_error(errno)),
        None => return Err(io::Error::other("the trial read of a sector timed out")),
    }
    drop(engine);
    UringSetup::new(settings.depth, settings.registered != FeatureUse::Off)
}

/// Check that host memory can be registered beyond the limit of locked memory.
fn registered(setup: &UringSetup) -> Result<(), String> {
    if !setup.buffers {
        return Err("the kernel does not support sparse buffer tables (needs Linux 5.13)".into());
    }
    let limit = getrlimit(Resource::Memlock).current;
    let bytes = limit.unwrap_or(LOCKED_MOST).min(LOCKED_MOST) + BEYOND;
    let memory = Aligned::new(bytes as usize).map_err(|e| format!("cannot allocate memory for the test: {e}"))?;
    match setup.try_buffer(&memory) {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(Errno::NOMEM.raw_os_error()) => Err(match limit {
            Some(limit) => format!("the limit of locked memory is {limit} bytes (set LimitMEMLOCK=infinity)"),
            None => "the kernel is out of memory".into(),
        }),
        Err(error) => Err(format!("cannot register a buffer: {error}")),
    }
}

/// Describe an io_uring error for operators.
fn explain(error: &io::Error) -> String {
    let hint = match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => " (blocked by a seccomp filter or the sysctl kernel.io_uring_disabled)",
        Some(Errno::NOSYS) => " (not built into the kernel, or hidden by a seccomp filter)",
        Some(Errno::NOMEM) => " (limit of locked memory; applies before Linux 5.12)",
        _ => "",
    };
    format!("{error}{hint}")
}
