//! Trace hash: a cheap 64-bit hash of all actions, to compare two runs by one number.

use crate::api::{Action, Job, Victim};
use serde::{Deserialize, Serialize};

/// Running hash of all actions of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    hash: u64,
    actions: u64,
}

impl Default for Trace {
    fn default() -> Self {
        Trace { hash: 0x9e37_79b9_7f4a_7c15, actions: 0 }
    }
}

impl Trace {
    /// Return the current hash.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Return the number of actions hashed.
    #[must_use]
    pub fn actions(&self) -> u64 {
        self.actions
    }

    fn word(&mut self, word: u64) {
        // Multiply-rotate hash; the odd constant is the first prime of xxHash64.
        self.hash = (self.hash ^ word).wrapping_mul(0x9e37_79b1_85eb_ca87).rotate_left(29);
    }

    fn pair(&mut self, high: u32, low: u32) {
        self.word(u64::from(high) << 32 | u64::from(low));
    }

    fn victim(&mut self, victim: Option<Victim>) {
        if let Some(v) = victim {
            self.pair(v.block, u32::from(v.plane) + 1);
            if let Some((lane, pos)) = v.after {
                self.word(pos << 16 | u64::from(lane));
            }
        }
    }

    /// Hash one action and the words of its list.
    pub(crate) fn fold(&mut self, action: &Action, list: &[u32]) {
        self.actions += 1;
        match *action {
            Action::Job { session, id, job } => {
                self.pair(0x100 | u32::from(session) << 12, id);
                self.job(&job);
            }
            Action::Complete { session, channel, tag, status, value, .. } => {
                self.pair(0x200 | u32::from(session) << 12, u32::from(channel) << 16 | u32::from(tag));
                self.pair(status as u32, list.len() as u32);
                self.word(value);
                list.iter().for_each(|&w| self.word(u64::from(w)));
            }
            Action::NeedSlab { class } => self.pair(0x300, u32::from(class)),
            Action::ReturnSlab { slab } => self.pair(0x400, slab),
            Action::NeedDisk { disk } => self.pair(0x600, u32::from(disk)),
            Action::ReturnDisk { slab } => self.pair(0x601, slab),
            Action::Io { id, kind, class, at, .. } => {
                self.pair(0x700 | (kind as u32) << 4 | class as u32, id);
                self.pair(at.slab, at.slot);
                self.pair(at.generation, list.len() as u32);
                list.iter().for_each(|&w| self.word(u64::from(w)));
            }
            Action::Record { id, at, shard, urgent, .. } => {
                self.pair(0x900 | u32::from(urgent), id);
                self.pair(at.slab, at.slot);
                self.pair(at.generation, u32::from(shard) << 16 | list.len() as u32);
                list.iter().for_each(|&w| self.word(u64::from(w)));
            }
            Action::Erase { id, at, urgent } => {
                self.pair(0xa00 | u32::from(urgent), id);
                self.pair(at.slab, at.slot);
                self.word(u64::from(at.generation));
            }
            Action::Flush { id } => self.pair(0xb00, id),
            Action::Urge { id, class } => self.pair(0x800 | class as u32, id),
            Action::EndSession { session, late_bytes, .. } => {
                self.pair(0xc00, u32::from(session));
                self.word(late_bytes);
            }
            Action::SessionGone { session } => self.pair(0x500, u32::from(session)),
        }
    }

    fn job(&mut self, job: &Job) {
        match *job {
            Job::Install { block, plane, frame, victim } => {
                self.pair(block, 1 << 16 | u32::from(plane));
                self.word(u64::from(frame));
                self.victim(victim);
            }
            Job::CopyIn { block, plane, frame, from, victim } => {
                self.pair(block, 2 << 16 | u32::from(plane));
                self.pair(frame, from.slab);
                self.word(u64::from(from.slot));
                self.victim(victim);
            }
            Job::CopyOut { block, plane, frame, to } => {
                self.pair(block, 3 << 16 | u32::from(plane));
                self.pair(frame, to.slab);
                self.word(u64::from(to.slot));
            }
            Job::Copy { block, plane, frame, from, victim } => {
                self.pair(block, 4 << 16 | u32::from(plane));
                self.pair(frame, from);
                self.victim(victim);
            }
            Job::CopyInAs { block, plane, frame, source, from, victim } => {
                self.pair(block, 5 << 16 | u32::from(plane));
                self.pair(frame, source);
                self.pair(from.slab, from.slot);
                self.victim(victim);
            }
            Job::Drop { block } => self.pair(block, 6 << 16),
            Job::Evict { block, plane, frame } => {
                self.pair(block, 7 << 16 | u32::from(plane));
                self.word(u64::from(frame));
            }
            Job::Cancel { job } => self.pair(job, 8 << 16),
            Job::Move { block, plane, frame, from } => {
                self.pair(block, 9 << 16 | u32::from(plane));
                self.pair(frame, from);
            }
            Job::Gather { block, plane, engine, to: host } => {
                self.pair(block, 10 << 16 | u32::from(plane));
                self.pair(engine, host.slab);
                self.word(u64::from(host.slot));
            }
            Job::Scatter { block, plane, engine, from: host } => {
                self.pair(block, 11 << 16 | u32::from(plane));
                self.pair(engine, host.slab);
                self.word(u64::from(host.slot));
            }
        }
    }
}
