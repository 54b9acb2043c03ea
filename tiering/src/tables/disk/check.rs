//! Consistency checks of the NVMe tier, for tests and the simulator.

use super::{Disk, LogRequestKind, Logged, Place};
use crate::api::IoKind;
use crate::error::ensure;
use std::collections::BTreeMap;

impl Disk {
    /// Check the counters, and that each slot is in the state that its log request, if any, requires.
    pub fn check(&self) -> Result<(), String> {
        let writes = self.transfers().filter(|t| t.kind == IoKind::Write).count() as u32;
        ensure!(writes == self.writes(), "writes in flight: {}, counted {writes}", self.writes());
        let (counted, listed) = self.count();
        let kept = self.counts();
        ensure!(counted == kept, "slots free, used, index-only, awaiting erasure, bad: {kept:?}, counted {counted:?}");
        let mut in_flight: BTreeMap<u32, LogRequestKind> = BTreeMap::new();
        for request in self.log_requests.live().filter(|n| n.kind != LogRequestKind::Flush) {
            ensure!(
                in_flight.insert(request.slot, request.kind).is_none(),
                "two log requests for slot {}",
                request.slot
            );
        }
        let flushes = self.log_requests.live().filter(|n| n.kind == LogRequestKind::Flush).count();
        ensure!(flushes == usize::from(self.log.flushing), "{flushes} flushes in flight");
        let (mut queued, mut gone) = (0, false);
        for at in 0..self.owners.len() as u32 {
            let (place, logged) = (self.place(at), self.logged(at));
            gone |= place == Place::Gone;
            if place == Place::Gone {
                continue;
            }
            let want = match logged {
                Logged::Recording | Logged::RecordingStale => Some(LogRequestKind::Record),
                Logged::Erasing => Some(LogRequestKind::Erase),
                Logged::No | Logged::Recorded | Logged::Stale => None,
            };
            ensure!(in_flight.get(&at).copied() == want, "slot {at} is {logged:?}, in flight {:?}", in_flight.get(&at));
            let nobodys = matches!(place, Place::AwaitingErasure | Place::Bad);
            queued += u32::from(nobodys && logged == Logged::Stale);
            let fits = match place {
                Place::Free => logged == Logged::No,
                Place::AwaitingErasure => !matches!(logged, Logged::No | Logged::Recording | Logged::Recorded),
                Place::Bad => !matches!(logged, Logged::Recording | Logged::Recorded),
                _ => true,
            };
            ensure!(fits, "slot {at} is {place:?} and {logged:?}");
        }
        ensure!(listed == queued || gone && listed > queued, "slots to erase: {listed} queued, counted {queued}");
        Ok(())
    }
}
