//! Transfers between host memory and slots; each covers pages of one block.

use super::super::integrity_sample::IntegritySample;
use super::super::slabs::Slabs;
use super::Nvme;
use kvtide_nvme::{DiskMessage, Part, SlotKey, Transfer};
use kvtide_rt::mail::Mailbox;
use kvtide_tiering::api::{DiskSlot, HostFrame, IoClass, IoKind, Status};
use kvtide_wire::geometry::stride;
use kvtide_wire::os::poll::readable;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Words per page in the list of an [`kvtide_tiering::api::Action::Io`]: plane, host slab, host slot.
const WORDS: usize = 3;

/// Longest sleep while an ending space waits for its transfers; each completion wakes it.
const SETTLE_LOOK: Duration = Duration::from_millis(100);

/// A transfer in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub disk: usize,
    pub at: DiskSlot,
}

/// Result of a transfer; planes that failed verification are in [`Nvme::bad`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::space) struct Ended {
    /// Its id.
    pub id: u32,
    /// Its status.
    pub status: Status,
}

/// Completions in processing order: reads and writes alternate, because a request waits for a read, and thousands of small writes
/// may have completed before it.
#[derive(Debug)]
pub(super) struct Completions {
    reads: VecDeque<Box<Transfer>>,
    writes: VecDeque<Box<Transfer>>,
    /// The last completion returned was a read.
    after_read: bool,
}

impl Completions {
    /// Capacity for `most` transfers of each kind.
    pub fn new(most: usize) -> Completions {
        Completions { reads: VecDeque::with_capacity(most), writes: VecDeque::with_capacity(most), after_read: false }
    }

    pub(super) fn put(&mut self, transfer: Box<Transfer>) {
        match transfer.kind {
            IoKind::Read => self.reads.push_back(transfer),
            IoKind::Write => self.writes.push_back(transfer),
        }
    }

    pub(super) fn next(&mut self) -> Option<Box<Transfer>> {
        let read = !self.reads.is_empty() && (!self.after_read || self.writes.is_empty());
        self.after_read = read;
        if read { self.reads.pop_front() } else { self.writes.pop_front() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }
}

/// A page of a read; the integrity sample needs its digest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampled {
    transfer: u32,
    plane: u16,
    frame: HostFrame,
}

/// Return the number that identifies a page on NVMe for the integrity sample.
fn page_of(at: DiskSlot, plane: u16) -> u64 {
    u64::from(at.slab) << 48 | u64::from(at.slot) << 16 | u64::from(plane)
}

/// Prepare for a read that overwrites frames: drop their digests, and list the sampled pages.
fn overwrite((transfer, at): (u32, DiskSlot), pages: &[u32], sample: &mut IntegritySample, sampled: &mut Vec<Sampled>) {
    for page in pages.chunks_exact(WORDS) {
        let (plane, frame) = (page[0] as u16, HostFrame { slab: page[1], slot: page[2] });
        sample.forget(frame);
        if sample.contains(page_of(at, plane)) {
            sampled.push(Sampled { transfer, plane, frame });
        }
    }
}

impl Nvme {
    /// Send a transfer to its disk. An invalid transfer of the core is logged and fails.
    pub fn begin(
        &mut self,
        (id, kind, class): (u32, IoKind, IoClass),
        at: DiskSlot,
        pages: &[u32],
        host: &Slabs,
        sample: &mut IntegritySample,
    ) {
        let Some(mut transfer) = self.idle.pop() else {
            return self.refuse(id, format_args!("more than limits.ios_max transfers are in flight"));
        };
        transfer.parts.clear();
        (transfer.id, transfer.kind, transfer.class) = (id, kind, class);
        let filled = self.fill(&mut transfer, at, pages, host, sample);
        let handle = filled.as_ref().ok().and_then(|disk| self.disks.get_mut(*disk));
        match (filled, handle) {
            (Ok(disk), Some(handle)) => {
                if kind == IoKind::Read {
                    overwrite((id, at), pages, sample, &mut self.sampled);
                }
                self.on_their_way.insert(id, Sent { disk, at });
                handle.messages.post(DiskMessage::Transfer(transfer));
            }
            (filled, _) => {
                self.idle.push(transfer);
                let why = filled.err().unwrap_or("its slab is not on a disk");
                self.refuse(id, format_args!("{why}: {at:?}, pages {pages:?}"));
            }
        }
    }

    /// Set a transfer's fields; return its disk.
    fn fill(
        &mut self,
        transfer: &mut Transfer,
        at: DiskSlot,
        pages: &[u32],
        host: &Slabs,
        sample: &IntegritySample,
    ) -> Result<usize, &'static str> {
        let slab = self.slab(at)?;
        for page in pages.chunks_exact(WORDS) {
            let (plane, host_slab, slot) = (page[0] as u16, page[1], page[2]);
            let bytes = *self.page_bytes.get(page[0] as usize).ok_or("no such plane")?;
            let begin = self.layout.offset(plane).ok_or("no such plane")?;
            let memory = host.memory(host_slab).ok_or("no such host slab")?;
            let offset = u64::from(slot) * u64::from(stride(bytes));
            let memory = memory.clone();
            let frame = HostFrame { slab: host_slab, slot };
            let (digest, sampled) = match transfer.kind {
                IoKind::Read => (None, sample.contains(page_of(at, plane))),
                IoKind::Write => (sample.known(frame), false),
            };
            let (crc, sectors, tag, ok) = (0, 0, [0; 16], false);
            let part = Part { plane, at: begin, bytes, memory, offset, crc, sectors, tag, digest, sampled, ok };
            transfer.parts.push(part);
        }
        if transfer.parts.is_empty() {
            return Err("it has no pages");
        }
        // Planes may be in another order in the slot; sorting in place allocates nothing.
        transfer.parts.sort_unstable_by_key(|part| part.at);
        let handle = self.disks.get(slab.disk).ok_or("its slab is not on a disk")?;
        transfer.bytes = self.layout.bytes();
        transfer.offset = handle.disk.offset(slab.region, u64::from(at.slot) * self.layout.bytes());
        transfer.key = SlotKey { region: slab.region, slot: at.slot, generation: at.generation };
        slab.fill(transfer);
        transfer.whole = transfer.parts.len() == self.page_bytes.len();
        Ok(slab.disk)
    }

    fn refuse(&mut self, id: u32, why: std::fmt::Arguments<'_>) {
        tracing::error!("space {}: cannot send transfer {id}: {why}", self.space);
        self.unsent.push((id, Status::Io));
    }

    /// Raise the class of a transfer.
    pub fn urge(&mut self, id: u32, class: IoClass) {
        let Some(sent) = self.on_their_way.get(&id) else { return };
        if let Some(handle) = self.disks.get_mut(sent.disk) {
            handle.messages.post(DiskMessage::Urge { space: self.space, id, class });
        }
    }

    /// Send the waiting transfers. Return true if no disk's mailbox is full.
    pub(super) fn flush_transfers(&mut self) -> bool {
        let Nvme { space, disks, ended: _, idle, on_their_way, unsent, .. } = self;
        let mut all = true;
        for handle in disks {
            let number = handle.disk.number();
            all &= handle.messages.flush_or(|message| {
                // The disk's thread ends before its spaces only because of a bug.
                let DiskMessage::Transfer(mut transfer) = message else { return };
                tracing::error!(
                    "space {space}: transfer {} failed: the I/O thread of disk {number} has ended",
                    transfer.id
                );
                on_their_way.remove(&transfer.id);
                unsent.push((transfer.id, Status::Io));
                transfer.parts.clear();
                idle.push(transfer);
            });
        }
        all
    }

    /// Return the next transfer that has ended.
    pub fn next_ended(&mut self, sample: &mut IntegritySample) -> Option<Ended> {
        self.bad.clear();
        if let Some((id, status)) = self.unsent.pop() {
            return Some(Ended { id, status });
        }
        loop {
            while let Some(transfer) = self.ended.take() {
                self.completions.put(transfer);
            }
            let mut transfer = self.completions.next()?;
            let id = transfer.id;
            let Some(Sent { at, .. }) = self.on_their_way.remove(&id) else {
                tracing::error!("space {}: transfer {} ended but was not in flight", self.space, transfer.id);
                continue;
            };
            let status = match transfer.status {
                Status::Ok => {
                    self.take_results(&transfer, at, sample);
                    Status::Ok
                }
                Status::Corrupt => {
                    // Nothing was written: the pages in host memory differ from their digests.
                    self.take_bad(&transfer);
                    sample.count_written(self.bad.len() as u64, self.bad.len() as u64);
                    Status::Corrupt
                }
                status @ (Status::Io | Status::NoSpace | Status::TimedOut | Status::Canceled) => status,
                status => {
                    tracing::error!("space {}: transfer {id} was refused ({status:?}): {transfer:?}", self.space);
                    Status::Io
                }
            };
            self.sampled.retain(|sampled| sampled.transfer != id);
            transfer.parts.clear();
            transfer.code = None;
            self.idle.push(transfer);
            return Some(Ended { id, status });
        }
    }

    /// Wait until all transfers have ended, so that the regions can go to other spaces. Return false at the deadline.
    pub fn settle(&mut self, until: Instant, sample: &mut IntegritySample) -> bool {
        while self.in_flight() > 0 {
            let flushed = self.flush_transfers();
            if self.next_ended(sample).is_some() {
                continue;
            }
            let now = Instant::now();
            if now >= until {
                return false;
            }
            let most = if flushed { SETTLE_LOOK } else { Duration::from_millis(1) };
            self.ended.announce();
            if self.ended.is_empty() && self.completions.is_empty() {
                // An error only means that the queue is checked too early.
                let _ = readable(&[self.ended.as_fd()], most.min(until - now));
            }
            self.ended.awake();
            self.ended.quiet();
        }
        true
    }

    /// Take the results: checksums of a write, failed planes of a read.
    fn take_results(&mut self, transfer: &Transfer, at: DiskSlot, sample: &mut IntegritySample) {
        match transfer.kind {
            IoKind::Read => {
                let doubtful = self.slab(at).is_ok_and(|slab| slab.is_doubtful(at.slot));
                let bad = transfer.parts.iter().filter(|part| !part.ok).count() as u64;
                *(if doubtful { &mut self.stats.lost_unflushed } else { &mut self.stats.corrupt }) += bad;
                self.take_bad(transfer);
                let mine = self.sampled.iter().filter(|sampled| sampled.transfer == transfer.id);
                for Sampled { plane, frame, .. } in mine {
                    let part = transfer.parts.iter().find(|part| part.plane == *plane);
                    if let Some(digest) = part.and_then(|part| part.digest) {
                        sample.learn(*frame, digest);
                    }
                }
            }
            IoKind::Write => {
                let Some(slab) = self.slabs.get_mut(at.slab as usize).and_then(Option::as_mut) else { return };
                slab.wrote(transfer);
                let compared = transfer.parts.iter().filter(|part| part.digest.is_some()).count();
                sample.count_written(compared as u64, 0);
            }
        }
    }

    fn take_bad(&mut self, transfer: &Transfer) {
        self.bad.extend(transfer.parts.iter().filter(|part| !part.ok).map(|part| u32::from(part.plane)));
        self.bad.sort_unstable();
    }

    /// Return the planes, ascending, that failed verification in the transfer last returned by [`Nvme::next_ended`].
    pub fn bad(&self) -> &[u32] {
        &self.bad
    }

    /// Return true if no answer to a transfer waits.
    pub(super) fn transfers_are_quiet(&self) -> bool {
        self.unsent.is_empty() && self.ended.is_empty() && self.completions.is_empty()
    }

    /// Return the mailbox that receives answers.
    pub fn bell(&self) -> &Mailbox<Box<Transfer>> {
        &self.ended
    }
}
