//! Open the log of a disk at start: read it, and compact it into its other half.

use super::super::code::Keyring;
use super::super::error::DiskError;
use super::super::settings::Settings;
use super::super::store::Store;
use super::report::{RecoveryReport, SharedLogStatus};
use super::{BoxedStorage, DiskLog};
use kvtide_format::log::{Log, Progress, Recovered};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between progress reports.
const TOLD: Duration = Duration::from_millis(500);

/// An open log, and the blocks found in it.
pub(crate) struct OpenLog {
    /// The log.
    pub log: DiskLog,
    /// The recovered slabs and blocks.
    pub recovered: Recovered,
    /// Status object that its thread will update.
    pub log_status: SharedLogStatus,
}

/// Read the log and write the live records into its other half. `progress` gets a report from time to time.
///
/// # Errors
/// The device cannot be read or written.
pub(crate) fn open(
    settings: &Settings,
    store: &Store,
    keyring: &Arc<Keyring>,
    storage: BoxedStorage,
    progress: &mut dyn FnMut(&str),
) -> Result<OpenLog, DiskError> {
    let (number, path) = (settings.number, settings.place.path());
    let began = Instant::now();
    let mut told = began;
    let mut tell = |at: &Progress| {
        if told.elapsed() >= TOLD {
            told = Instant::now();
            let text = format!(
                "disk {number} ({}): index log: {} of at most {} MiB read, {} records",
                path.display(),
                at.read_bytes >> 20,
                at.half_bytes >> 20,
                at.records
            );
            tracing::info!("{text}");
            progress(&text);
        }
    };
    let opened = Log::open(storage, &store.superblock, Some(keyring.cipher()), &mut tell);
    let (log, mut recovered) = opened.map_err(|source| DiskError::Log { path: path.into(), source })?;
    let took = began.elapsed();
    let sealed = recovered.slabs.iter().map(|slab| u64::from(slab.sealed)).sum();
    let report =
        RecoveryReport::new(&recovered.counts, (recovered.slabs.len() as u64, sealed), took.as_micros() as u64);
    let RecoveryReport { records, slabs, blocks, torn, stale, corrupt, lost_unflushed, unreadable, partial, .. } =
        report;
    let text = format!(
        "disk {number} ({}): start {}: {blocks} blocks in {slabs} slabs recovered from {records} records in {took:.2?}; \
         torn {torn}, stale {stale}, corrupt {corrupt}, lost unflushed {lost_unflushed}, unreadable {unreadable}, \
         sealed {sealed}",
        path.display(),
        recovered.run
    );
    if partial {
        tracing::error!("{text}; both halves of the log are damaged, only a part of the records was recovered");
    } else if corrupt > 0 || unreadable > 0 {
        tracing::error!("{text}");
    } else if torn > 0 || lost_unflushed > 0 {
        tracing::warn!("{text}");
    } else {
        tracing::info!("{text}");
    }
    keyring.begin(recovered.run).map_err(|source| DiskError::Keys { path: path.into(), source })?;
    drop_unreadable(number, keyring, &mut recovered);
    Ok(OpenLog { log, recovered, log_status: SharedLogStatus::new(report) })
}

/// Drop slabs that cannot be read: their keys were deleted on purpose, or their codec is of a later version. Their regions become
/// free.
fn drop_unreadable(number: u16, keyring: &Keyring, recovered: &mut Recovered) {
    let mut gone: BTreeMap<String, (u32, String)> = BTreeMap::new();
    recovered.slabs.retain(|slab| match keyring.code(&slab.header) {
        Ok(_) => true,
        Err(error) => {
            gone.entry(slab.header.domain.clone()).or_insert((0, error.to_string())).0 += 1;
            false
        }
    });
    for (domain, (slabs, why)) in gone {
        tracing::warn!("disk {number}: dropped {slabs} unreadable slabs of domain {domain:?}: {why}");
    }
}
