//! The log of a disk read at start, and written anew.

use super::super::code::Keyring;
use super::super::error::DiskError;
use super::super::settings::Settings;
use super::super::store::Store;
use super::report::{Desk, RecoveryReport};
use super::{BoxedStorage, DiskLog};
use kvtide_tiering::log::{Log, Progress, Recovered};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often progress is told.
const TOLD: Duration = Duration::from_millis(500);

/// A log that takes records, and what the start found in it.
pub(in crate::io) struct OpenLog {
    /// The log.
    pub log: DiskLog,
    /// What it held.
    pub recovered: Recovered,
    /// Where its thread will leave how it stands.
    pub desk: Desk,
}

/// Reads the log and writes what counts into its other half, telling `progress` how far it is now and then.
///
/// # Errors
/// The device cannot be read, or not be written.
pub(in crate::io) fn open(
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
                "disk {number} ({}): index log: {} MiB read, of {} at most, {} records",
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
        tracing::error!("{text}; both halves of the log are damaged: this is a part of what was recorded");
    } else if corrupt > 0 || unreadable > 0 {
        tracing::error!("{text}");
    } else if torn > 0 || lost_unflushed > 0 {
        tracing::warn!("{text}");
    } else {
        tracing::info!("{text}");
    }
    keyring.begin(recovered.run).map_err(|source| DiskError::Keys { path: path.into(), source })?;
    drop_unreadable(number, keyring, &mut recovered);
    Ok(OpenLog { log, recovered, desk: Desk::new(report) })
}

/// Leaves out slabs that nobody can read: their keys are gone, as was wished, or their codec is of a later version. Their regions
/// are free.
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
        tracing::warn!("disk {number}: {slabs} slabs of domain {domain:?} cannot be read and are dropped: {why}");
    }
}
