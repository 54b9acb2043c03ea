//! A disk that holds content tags, a node that grants its slots, and their failures.

use kvtide_tiering::api::*;
use kvtide_tiering::node::Disks;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A transfer in flight: planes and host frames.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub id: u32,
    pub kind: IoKind,
    pub class: IoClass,
    pub at: DiskSlot,
    pub pages: Vec<(u16, (u32, u32))>,
}

impl Transfer {
    pub fn new(id: u32, kind: IoKind, class: IoClass, at: DiskSlot, list: &[u32]) -> Transfer {
        let pages: Vec<_> = list.chunks_exact(3).map(|w| (w[0] as u16, (w[1], w[2]))).collect();
        assert!(list.len().is_multiple_of(3) && !pages.is_empty(), "three words a page: {list:?}");
        assert!(pages.windows(2).all(|w| w[0].0 < w[1].0), "planes ascend: {pages:?}");
        Transfer { id, kind, class, at, pages }
    }
}

#[derive(Default)]
pub struct Disk {
    /// (slab, slot, plane) → content and the generation under which it was written.
    pub pages: BTreeMap<(u32, u32, u16), (u64, u32)>,
    pub flight: VecDeque<Transfer>,
    /// Slots that the node can still grant (`node_slots`), and slots per grant (`slab_slots`).
    pub node_slots: u32,
    pub slab_slots: u32,
    /// Slots by slab.
    pub slabs: BTreeMap<u32, u32>,
    /// Number of disks over which the slabs are spread.
    pub disks: u16,
    /// A real node that grants instead, to a space 0 that has joined it.
    pub node: Option<Disks>,
    /// Disk of each slab granted by that node.
    pub placed: BTreeMap<u32, u16>,
    /// Slabs that went out of service.
    pub dead: BTreeSet<u32>,
    /// Starts of the daemon before this one.
    pub starts: u32,
    /// Statuses with which the next transfers end without being executed.
    pub fail_next: VecDeque<Status>,
    /// Pages that reads find changed.
    pub rotten: BTreeSet<(u32, u32, u16)>,
    /// Pages read and written.
    pub read: u64,
    pub written: u64,
    pub urged: u64,
    /// Grants so far.
    pub granted: u32,
    /// Transfers begun, by kind.
    pub begun: (u64, u64),
}

impl Disk {
    pub fn grant(&mut self, wanted: u16) -> Event<'static> {
        if let Some(node) = &mut self.node {
            let wanted = (wanted != u16::MAX).then_some(u32::from(wanted));
            let Ok((grant, None)) = node.grant(0, wanted) else { return Event::DiskRefused };
            self.slabs.insert(grant.slab, grant.slots);
            self.placed.insert(grant.slab, grant.disk as u16);
            let (slab, slots, disk) = (grant.slab, grant.slots, grant.disk as u16);
            return Event::DiskGranted { slab, slots, disk, generation: 0 };
        }
        let slots = self.slab_slots.min(self.node_slots);
        if slots == 0 {
            return Event::DiskRefused;
        }
        self.node_slots -= slots;
        self.granted += 1;
        assert!(self.granted < 10_000, "regions are granted without an end");
        let slab = (0..).find(|s| !self.slabs.contains_key(s) && !self.dead.contains(s)).unwrap();
        self.slabs.insert(slab, slots);
        let disk = self.disk_of(slab);
        Event::DiskGranted { slab, slots, disk, generation: self.starts << 16 }
    }

    pub fn take_back(&mut self, slab: u32) {
        self.node_slots += self.slabs.remove(&slab).expect("only granted slabs are returned");
        assert!(self.flight.iter().all(|t| t.at.slab != slab), "a slab in use went back");
    }

    pub fn begin(&mut self, t: Transfer) {
        assert!(self.flight.iter().all(|other| other.id != t.id), "transfer ids are unique in flight");
        assert!(t.at.slot < self.slabs[&t.at.slab] && !self.dead.contains(&t.at.slab), "{t:?} is in no slab");
        let clash = |o: &Transfer| {
            let same = (o.at.slab, o.at.slot) == (t.at.slab, t.at.slot);
            assert!(!same || o.at.generation == t.at.generation, "{t:?} in the slot of {o:?}");
            let frames = o.pages.iter().any(|p| t.pages.iter().any(|q| p.1 == q.1));
            let planes = same && o.pages.iter().any(|p| t.pages.iter().any(|q| p.0 == q.0));
            frames || planes
        };
        assert!(!self.flight.iter().any(clash), "{t:?} meets another transfer");
        match t.kind {
            IoKind::Read => self.begun.0 += 1,
            IoKind::Write => self.begun.1 += 1,
        }
        self.flight.push_back(t);
    }

    pub fn disk_of(&self, slab: u32) -> u16 {
        (slab % u32::from(self.disks.max(1))) as u16
    }

    /// Lose the disk of a slab.
    pub fn kill(&mut self, slab: u32) {
        self.dead.insert(slab);
        self.pages.retain(|key, _| key.0 != slab);
    }

    pub fn urge(&mut self, id: u32, class: IoClass) {
        let t = self.flight.iter_mut().find(|t| t.id == id).expect("an urged transfer is in flight");
        assert!(class < t.class);
        t.class = class;
        self.urged += 1;
    }

    pub fn take(&mut self, at: usize) -> Option<Transfer> {
        self.flight.remove(at)
    }

    /// Move the pages; return the status and the planes with other bytes than those written.
    pub fn carry_out(&mut self, t: &Transfer, host: &mut BTreeMap<(u32, u32), u64>) -> (Status, Vec<u32>) {
        if let Some(status) = self.fail_next.pop_front().filter(|&s| s != Status::Ok) {
            self.fail(t, status, host);
            return (status, Vec::new());
        }
        if self.dead.contains(&t.at.slab) {
            self.fail(t, Status::Io, host);
            return (Status::Io, Vec::new());
        }
        let mut bad = Vec::new();
        for &(plane, place) in &t.pages {
            let key = (t.at.slab, t.at.slot, plane);
            match t.kind {
                IoKind::Write => {
                    self.pages.insert(key, (host[&place], t.at.generation));
                    self.rotten.remove(&key);
                    self.written += 1;
                }
                IoKind::Read => {
                    let (content, generation) = self.pages[&key];
                    assert_eq!(generation, t.at.generation, "{t:?} reads another block's page");
                    self.read += 1;
                    // A failed write left undefined bytes: no checksum matches.
                    if self.rotten.contains(&key) || content == 0 {
                        bad.push(u32::from(plane));
                        host.insert(place, 0);
                    } else {
                        host.insert(place, content);
                    }
                }
            }
        }
        (Status::Ok, bad)
    }

    /// Fail a transfer halfway: the destination may hold anything.
    pub fn fail(&mut self, t: &Transfer, status: Status, host: &mut BTreeMap<(u32, u32), u64>) {
        if matches!(status, Status::TimedOut | Status::Canceled) {
            return;
        }
        for &(plane, place) in &t.pages {
            match t.kind {
                IoKind::Read => _ = host.insert(place, 0),
                IoKind::Write => {
                    _ = self.pages.insert((t.at.slab, t.at.slot, plane), (0, t.at.generation));
                }
            }
        }
    }
}
