//! Handling of messages to a core thread.

use super::messages::{Granted, Reconfigure, SpaceMessage};
use super::serve::Space;
use crate::host::NodeMessage;
use kvtide_tiering::api::{Event, Limits, Policy};

impl Space {
    /// Handle a message. Return true if the thread shall end.
    pub fn read(&mut self, now_us: u64, message: SpaceMessage) -> bool {
        match message {
            SpaceMessage::Attach(request) => self.attach_or_queue(now_us, request),
            SpaceMessage::Granted(granted) => self.granted(now_us, granted),
            SpaceMessage::Refused { class } => self.tell(now_us, Event::SlabRefused { class }),
            // Handled later in the round, after the sessions that have left are ended.
            SpaceMessage::Reclaim { cached } => self.reclaim = Some(cached),
            SpaceMessage::Freed => self.tell(now_us, Event::Freed),
            SpaceMessage::DiskGranted(region) => self.disk_granted(now_us, &region),
            SpaceMessage::Adopted { regions, other_identity } => {
                // A running space was used later than one that has only regions.
                if self.other_identity.is_empty() {
                    self.other_identity = other_identity;
                }
                self.adopt(now_us, regions);
            }
            SpaceMessage::DiskGone { slab } => self.disk_gone(now_us, slab),
            SpaceMessage::DiskRefused => self.disk_refused(now_us),
            SpaceMessage::Rate { nvme_bytes_per_day } => {
                self.nvme_bytes_per_day = Some(nvme_bytes_per_day);
                let config = self.core.config();
                let Limits { host_bytes_max, nvme_bytes_max, .. } = config.limits;
                let policy = Policy { nvme_bytes_per_day, ..config.policy };
                self.tell(now_us, Event::Reconfigure { policy, host_bytes_max, nvme_bytes_max });
            }
            SpaceMessage::Reconfigure(new) => {
                let Reconfigure { mut policy, host_bytes_max, nvme_bytes_max, done } = *new;
                // The node sets the space's write rate: it divides the disks' limits among spaces.
                policy.nvme_bytes_per_day = self.nvme_bytes_per_day.unwrap_or(policy.nvme_bytes_per_day);
                self.tell(now_us, Event::Reconfigure { policy, host_bytes_max, nvme_bytes_max });
                // The receiver may have stopped waiting.
                let _ = done.try_send(());
            }
            SpaceMessage::Drain { until } => {
                self.drain_until_us = Some(self.clock.of(until));
                // Relays wait for events, which would take the whole grace period.
                self.end_relays();
                self.admit_all(now_us);
                self.tell(now_us, Event::Ending);
            }
            SpaceMessage::Retire => return self.retire(now_us),
            SpaceMessage::Operate(asked) => self.operate(now_us, *asked),
            SpaceMessage::Record(written) => {
                self.core.write();
                // The receiver may have stopped waiting.
                let _ = written.try_send(());
            }
        }
        false
    }

    fn granted(&mut self, now_us: u64, granted: Granted) {
        let (id, class, frames) = (granted.slab.slab, granted.slab.class as u8, granted.slab.frames);
        let notice = match self.slabs.add(granted) {
            Ok(notice) => notice,
            Err(error) => {
                tracing::error!("space {}: cannot use slab {id}: {error}", self.number);
                self.node.send(NodeMessage::Return { space: self.number, slab: id, memfd: None });
                return self.tell(now_us, Event::SlabRefused { class });
            }
        };
        self.sample.granted(id, frames);
        // Engines are notified before the first job that refers to it.
        for (session_id, session) in self.session_entries.sessions() {
            if let Err(end) = session.notify(notice.clone()) {
                self.ending.push((session_id, end));
            }
        }
        self.tell(now_us, Event::SlabGranted { class, slab: id, frames });
    }
}
