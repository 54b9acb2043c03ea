//! The index logs of the disks: their records survive the daemon.

use crate::Disk;
use kvtide_tiering::api::*;
use std::collections::{BTreeMap, VecDeque};

/// Record of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    pub generation: u32,
    pub shard: u16,
    pub hash: u128,
    pub parent: u128,
    pub planes: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    Record(DiskSlot, Recorded),
    Erase(DiskSlot),
    Flush,
}

#[derive(Clone, Debug)]
pub struct LogRequest {
    pub id: u32,
    pub wanted: Wanted,
    pub urgent: bool,
}

impl LogRequest {
    pub fn slab(&self) -> u32 {
        match self.wanted {
            Wanted::Record(at, _) | Wanted::Erase(at) => at.slab,
            Wanted::Flush => u32::MAX,
        }
    }
}

#[derive(Default)]
pub struct Log {
    pub flight: VecDeque<LogRequest>,
    /// (slab, slot) → record.
    pub records: BTreeMap<(u32, u32), Recorded>,
    /// Statuses with which the next log requests end without being executed.
    pub fail_next: VecDeque<Status>,
    /// Log requests executed.
    pub written: u64,
    pub erased: u64,
    pub flushed: u64,
}

fn hash(words: &[u32]) -> u128 {
    words.iter().rev().fold(0, |hash, &word| hash << 32 | u128::from(word))
}

impl Log {
    pub fn begin(&mut self, action: Action, list: &[u32], disk: &Disk) {
        let request = match action {
            Action::Record { id, at, shard, urgent, .. } => {
                let (generation, planes) = (at.generation, list[8..].to_vec());
                let rec = Recorded { generation, shard, hash: hash(&list[..4]), parent: hash(&list[4..8]), planes };
                assert!(rec.hash != 0);
                let present = |plane: u16| rec.planes[usize::from(plane) / 32] >> (plane % 32) & 1 == 1;
                for plane in (0..rec.planes.len() as u16 * 32).filter(|&p| present(p)) {
                    let page = disk.pages.get(&(at.slab, at.slot, plane));
                    assert_eq!(
                        page.map(|p| p.1),
                        Some(generation),
                        "{action:?} names plane {plane}, which is not there"
                    );
                }
                LogRequest { id, urgent, wanted: Wanted::Record(at, rec) }
            }
            Action::Erase { id, at, urgent } => LogRequest { id, urgent, wanted: Wanted::Erase(at) },
            Action::Flush { id } => LogRequest { id, urgent: true, wanted: Wanted::Flush },
            other => panic!("{other:?} is no request"),
        };
        assert!(self.flight.iter().all(|n| n.id != request.id), "request ids are unique in flight");
        self.flight.push_back(request);
    }

    /// Execute a log request; return its status.
    pub fn carry_out(&mut self, request: &LogRequest) -> Status {
        if let Some(status) = self.fail_next.pop_front().filter(|&s| s != Status::Ok) {
            return status;
        }
        match &request.wanted {
            Wanted::Record(at, rec) => {
                self.records.insert((at.slab, at.slot), rec.clone());
                self.written += 1;
            }
            Wanted::Erase(at) => {
                self.records.remove(&(at.slab, at.slot)).inspect(|r| assert_eq!(r.generation, at.generation));
                self.erased += 1;
            }
            Wanted::Flush => self.flushed += 1,
        }
        Status::Ok
    }

    /// Check, before a slot is written under a generation, that no record names its earlier content.
    pub fn written(&self, at: DiskSlot) {
        let before = self.records.get(&(at.slab, at.slot));
        assert!(before.is_none_or(|r| r.generation == at.generation), "{at:?} is written over {before:?}");
    }

    /// Return the hashes that a restart finds, by shard: those reachable from their roots.
    pub fn reachable(&self) -> Vec<(u16, u128)> {
        let of = |shard: u16, hash: u128| self.records.values().find(|r| r.shard == shard && r.hash == hash);
        let reach = |r: &Recorded| {
            let (mut here, mut steps) = (r, 0);
            while here.parent != 0 {
                match of(r.shard, here.parent) {
                    Some(parent) if steps < 10_000 => (here, steps) = (parent, steps + 1),
                    _ => return false,
                }
            }
            true
        };
        self.records.values().filter(|r| reach(r)).map(|r| (r.shard, r.hash)).collect()
    }
}
