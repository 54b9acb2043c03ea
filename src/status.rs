//! What the daemon tells of itself: counters, and a dump of how everything stands.
//!
//! Code counts through the `metrics` macros. Until an exporter reads them, [`Metrics`] does: they stand in the dump
//! (`status.json`, written at SIGUSR1 and at the end) and in the log's last lines.

use crate::error::Error;
use crate::host::HostStatus;
use crate::session::SessionInfo;
use crate::space::SpaceStatus;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How everything stands.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Dump {
    /// Sessions, those included that linger.
    pub sessions: Vec<SessionInfo>,
    /// Spaces.
    pub spaces: Vec<SpaceStatus>,
    /// Host memory.
    pub host: HostStatus,
    /// Counters by name.
    pub counters: BTreeMap<String, u64>,
}

/// Writes a dump whole: who reads the path sees the old one or the new one.
pub(crate) fn write(path: &Path, dump: &Dump) -> Result<(), Error> {
    let failed = |source| Error::File { action: "write the status dump", path: path.into(), source };
    let text = serde_json::to_vec_pretty(dump).map_err(|error| failed(error.into()))?;
    replace(path, "write the status dump", &text)
}

/// Puts bytes at a path, whole.
pub(crate) fn replace(path: &Path, action: &'static str, bytes: &[u8]) -> Result<(), Error> {
    let failed = |source| Error::File { action, path: path.into(), source };
    let new = path.with_extension("new");
    fs::write(&new, bytes).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)
}

/// Counters by name; the process's recorder.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    counters: Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>,
}

impl Metrics {
    /// Becomes the process's recorder. A second daemon in one process keeps counting into the first one's.
    pub fn install() -> Metrics {
        let metrics = Metrics::default();
        if metrics::set_global_recorder(metrics.clone()).is_err() {
            tracing::debug!("this process counts its metrics elsewhere already");
        }
        metrics
    }

    /// Every counter's value.
    pub fn snapshot(&self) -> BTreeMap<String, u64> {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.iter().map(|(name, value)| (name.clone(), value.load(Ordering::Relaxed))).collect()
    }
}

impl Recorder for Metrics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        Counter::from_arc(Arc::clone(counters.entry(key.name().to_owned()).or_default()))
    }

    // The daemon has counters only: what else it tells stands in the dump as what it is.
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_one_name_are_one() {
        let metrics = Metrics::default();
        metrics::with_local_recorder(&metrics, || {
            metrics::counter!("a_total").increment(2);
            metrics::counter!("a_total").increment(3);
            metrics::counter!("b_total").increment(1);
        });
        assert_eq!(metrics.snapshot(), BTreeMap::from([("a_total".into(), 5), ("b_total".into(), 1)]));
    }
}
