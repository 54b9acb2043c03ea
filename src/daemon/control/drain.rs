//! Graceful shutdown: no new connections or requests; requests in flight may finish within the grace period; then all sessions are
//! closed.

use super::Control;
use super::spaces::RETRY;
use crate::attach::Pending;
use crate::error::Error;
use crate::session::SessionTotals;
use kvtide_wire::os::poll::readable;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Time for core threads beyond the grace period; they only have sockets to close.
const OVERTIME: Duration = Duration::from_secs(5);

impl Control {
    /// Shut down everything. The status dump is written first, while the spaces still have their state.
    pub(super) fn drain(mut self) -> Result<(), Error> {
        self.pending = Pending::default();
        self.listener = None;
        self.dumper.want();
        self.dumper.end();
        let until = Instant::now() + self.config.daemon.drain;
        self.spaces.drain(until);
        let give_up = until + OVERTIME;
        while self.spaces.len() > 0 {
            let left = give_up.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::error!("{} core threads did not stop in time; exiting without them", self.spaces.len());
                break;
            }
            let left = if self.spaces.flush() { left } else { left.min(RETRY) };
            self.thread_registry.control().sleep(Some(left));
            readable(&[self.reports.as_fd()], left)
                .map_err(|source| Error::Wire { action: "wait for the core threads to stop", source })?;
            self.thread_registry.control().round();
            self.reports.quiet();
            while let Some(report) = self.reports.take() {
                self.spaces.handle(report);
            }
        }
        let Control { host, disks, registry, monitor, http, spaces, identities, log, .. } = self;
        let exporter = spaces.end();
        host.end();
        disks.end();
        identities.end();
        // After the disks are closed: a collector may be slow.
        if let Some(exporter) = exporter {
            exporter.end();
        }
        http.end();
        monitor.end();
        log.tell_left_out();
        let SessionTotals { attached, ended, expelled, refused } = registry.totals();
        tracing::info!(
            "sessions: {attached} attached, {ended} ended ({expelled} of them by the daemon); {refused} attaches rejected"
        );
        tracing::info!("shutdown complete");
        Ok(())
    }
}
