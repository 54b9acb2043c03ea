//! Handling of messages to a core thread.

use super::letters::{Granted, Letter, Reconfigure};
use super::serve::Space;
use crate::host::NodeLetter;
use kvtide_tiering::api::{Event, Limits, Policy};

impl Space {
    /// Handle a message. Return true if the thread shall end.
    pub fn read(&mut self, now_us: u64, letter: Letter) -> bool {
        match letter {
            Letter::Attach(newcomer) => self.arrive(now_us, newcomer),
            Letter::Granted(granted) => self.granted(now_us, granted),
            Letter::Refused { class } => self.tell(now_us, Event::SlabRefused { class }),
            // Handled later in the round, after the sessions that have left are ended.
            Letter::Reclaim { cached } => self.reclaim = Some(cached),
            Letter::Freed => self.tell(now_us, Event::Freed),
            Letter::DiskGranted(region) => self.disk_granted(now_us, &region),
            Letter::Adopted(regions) => self.adopt(now_us, regions),
            Letter::DiskGone { slab } => self.disk_gone(now_us, slab),
            Letter::DiskRefused => self.disk_refused(now_us),
            Letter::Rate { nvme_bytes_per_day } => {
                self.nvme_bytes_per_day = Some(nvme_bytes_per_day);
                let config = self.core.config();
                let Limits { host_bytes_max, nvme_bytes_max, .. } = config.limits;
                let policy = Policy { nvme_bytes_per_day, ..config.policy };
                self.tell(now_us, Event::Reconfigure { policy, host_bytes_max, nvme_bytes_max });
            }
            Letter::Reconfigure(new) => {
                let Reconfigure { mut policy, host_bytes_max, nvme_bytes_max, done } = *new;
                // The node sets the space's write rate: it divides the disks' limits among spaces.
                policy.nvme_bytes_per_day = self.nvme_bytes_per_day.unwrap_or(policy.nvme_bytes_per_day);
                self.tell(now_us, Event::Reconfigure { policy, host_bytes_max, nvme_bytes_max });
                // The receiver may have stopped waiting.
                let _ = done.try_send(());
            }
            Letter::Drain { until } => {
                self.drain_until_us = Some(self.clock.of(until));
                self.admit_all(now_us);
            }
            Letter::Retire => return self.retire(now_us),
            Letter::Record(written) => {
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
                self.node.send(NodeLetter::Return { space: self.number, slab: id, memfd: None });
                return self.tell(now_us, Event::SlabRefused { class });
            }
        };
        self.canary.granted(id, frames);
        // Engines are notified before the first job that refers to it.
        for (slot, session) in self.seats.sessions() {
            if let Err(end) = session.notify(notice.clone()) {
                self.ending.push((slot, end));
            }
        }
        self.tell(now_us, Event::SlabGranted { class, slab: id, frames });
    }
}
