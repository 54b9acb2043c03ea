//! The orderly end: nothing new, what is in flight may end within the grace, then everybody is told.

use super::Control;
use super::spaces::RETRY;
use crate::attach::Pending;
use crate::error::Error;
use crate::session::SessionTotals;
use kvtide_wire::os::poll::readable;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long core threads may take beyond the grace: they only have sockets to close.
const OVERTIME: Duration = Duration::from_secs(5);

impl Control {
    /// Ends everything. The status dump is written while the spaces still know how they stand.
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
                tracing::error!("{} core threads did not end; leaving them behind", self.spaces.len());
                break;
            }
            let left = if self.spaces.flush() { left } else { left.min(RETRY) };
            self.roll.control().sleep(Some(left));
            readable(&[self.reports.as_fd()], left)
                .map_err(|source| Error::Wire { action: "wait for the core threads to end", source })?;
            self.roll.control().round();
            self.reports.quiet();
            while let Some(report) = self.reports.take() {
                self.spaces.heed(report);
            }
        }
        let Control { host, disks, registry, watch, http, spaces, log, .. } = self;
        drop(spaces);
        host.end();
        disks.end();
        if let Some(http) = http {
            http.end();
        }
        watch.end();
        log.tell_left_out();
        let SessionTotals { attached, ended, expelled, refused } = registry.totals();
        tracing::info!(
            "sessions: {attached} attached, {ended} ended ({expelled} of them by the daemon), {refused} refused"
        );
        tracing::info!("ended");
        Ok(())
    }
}
