//! How a disk stands, for readers: what its I/O thread published, and what its log thread leaves beside it.

use crate::io::health::Health;
use crate::io::log::Desk;
use crate::io::stats::DiskStatus;
use crate::published::{Published, Reading, Ticket};
use std::sync::Arc;
use std::time::Instant;

/// The figures of a disk; clones read the same ones.
#[derive(Clone, Debug)]
pub(crate) struct DiskFigures {
    pub(super) published: Published<DiskStatus>,
    /// `None`: the disk was missing at start.
    pub(super) desk: Option<Arc<Desk>>,
    pub(super) health: Arc<Health>,
}

impl DiskFigures {
    /// Asks for figures that show all that was done before the call; does not wait.
    pub fn request(&self) -> Ticket {
        self.published.request()
    }

    /// The newest figures: those that were asked for, if the I/O thread publishes them until the deadline. Nothing: it has ended.
    pub fn read(&self, ticket: Ticket, deadline: Instant) -> Option<Reading<DiskStatus>> {
        let mut reading = self.published.read(ticket, deadline)?;
        if let Some(status) = reading.snapshot.as_mut().map(Arc::make_mut) {
            if let Some(desk) = &self.desk {
                status.log = desk.report();
            }
            (status.out_of_service, status.errors) = (self.health.out(), self.health.errors());
            self.health.why().clone_into(&mut status.why_out);
        }
        Some(reading)
    }
}
