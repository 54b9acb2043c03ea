//! Persistence: index logs that fail and answer in any order, disks that go out of service, daemons that die and restart.

use super::{Chaos, SESSIONS};
use kvtide_fake::{Done, Wanted};
use kvtide_tiering::api::*;
use std::collections::BTreeSet;

impl Chaos {
    /// End a log request, as its log does or with an error.
    pub fn run_log(&mut self) {
        let n = self.w.log.flight.len() as u64;
        if n == 0 {
            return;
        }
        let at = if self.rng.one_in(4) { self.rng.below(n) } else { 0 };
        if self.failures && self.rng.one_in(7) {
            // After an error the record may be in the log nevertheless; a full log takes none.
            let request = self.w.log.flight.remove(at as usize).unwrap();
            let status = if self.rng.one_in(2) { Status::Io } else { Status::NoSpace };
            let taken = status == Status::Io && matches!(request.wanted, Wanted::Record(..)) && self.rng.one_in(2);
            if taken && !self.w.disk.dead.contains(&request.slab()) {
                self.w.log.carry_out(&request);
            }
            self.w.end_log_request(request.id, status);
        } else {
            self.w.run_log_request(at as usize);
        }
        self.w.settle();
        self.collect();
    }

    /// Check that blocks reported as stored are in the logs, with all ancestors.
    pub fn publish_ended(&mut self, s: SessionId, hashes: &[u128], level: Level, done: &Done) {
        if done.status != Status::Ok {
            assert!(done.value < level as u64 || level == Level::Published, "{done:?} of {level:?}");
            return;
        }
        assert_eq!(done.value, level as u64);
        if level == Level::Stored {
            let there: BTreeSet<_> = self.w.log.reachable().into_iter().collect();
            let shard = s % self.shards;
            assert!(hashes.iter().all(|&h| there.contains(&(shard, h))), "{hashes:?} are stored, there are {there:?}");
            self.stored += 1;
        }
    }

    /// Take a disk out of service, with all its slabs.
    pub fn lose_disk(&mut self) {
        let slabs: Vec<u32> = self.w.disk.slabs.keys().copied().collect();
        if !self.disks_die || slabs.is_empty() {
            return;
        }
        let disk = self.w.disk.disk_of(slabs[self.rng.below(slabs.len() as u64) as usize]);
        for slab in slabs {
            if self.w.disk.disk_of(slab) == disk {
                self.w.kill_disk(slab);
            }
        }
        self.collect();
    }

    /// Kill the daemon and all engines, and restart the daemon with the recorded blocks.
    pub fn restart(&mut self) {
        if self.w.core.config().limits.nvme_bytes_max == 0 {
            return;
        }
        // Each transfer in flight was either executed or not.
        while let Some(t) = self.w.disk.take(0) {
            if self.rng.one_in(2) {
                self.w.disk.carry_out(&t, &mut self.w.host);
            }
        }
        while let Some(request) = self.w.log.flight.pop_front() {
            if self.rng.one_in(2) && !self.w.disk.dead.contains(&request.slab()) {
                self.w.log.carry_out(&request);
            }
        }
        let reachable = self.w.log.reachable().len();
        self.end_core();
        self.w.restart(self.node_frames.clone());
        let restored = self.w.core.counters().restored;
        assert!(restored as usize <= reachable, "{restored} contents restored of {reachable}");
        self.restored += restored;
        (self.seqs, self.pending, self.steps) = Default::default();
        (self.busy, self.pins, self.zombies, self.ghosts) = Default::default();
        for s in 0..SESSIONS {
            self.attach(s);
        }
    }
}
