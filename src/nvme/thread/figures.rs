//! Status of a disk for readers: published by its I/O thread, completed with that of its log thread.

use crate::health::Health;
use crate::log::SharedLogStatus;
use crate::stats::DiskStatus;
use kvtide_rt::published::{Published, Reading, Ticket};
use std::sync::Arc;
use std::time::Instant;

/// Stats of a disk; clones share them.
#[derive(Clone, Debug)]
pub struct DiskFigures {
    pub(super) published: Published<DiskStatus>,
    /// `None`: the disk was missing at start.
    pub(super) log_status: Option<Arc<SharedLogStatus>>,
    pub(super) health: Arc<Health>,
}

impl DiskFigures {
    /// Request stats that include everything done before this call; does not wait.
    pub fn request(&self) -> Ticket {
        self.published.request()
    }

    /// Return the newest stats: the requested ones if the I/O thread publishes them before the deadline. None: the thread has
    /// ended.
    pub fn read(&self, ticket: Ticket, deadline: Instant) -> Option<Reading<DiskStatus>> {
        let mut reading = self.published.read(ticket, deadline)?;
        if let Some(status) = reading.snapshot.as_mut().map(Arc::make_mut) {
            if let Some(log_status) = &self.log_status {
                status.log = log_status.report();
            }
            (status.out_of_service, status.errors) = (self.health.out(), self.health.errors());
            self.health.why().clone_into(&mut status.why_out);
        }
        Some(reading)
    }
}
