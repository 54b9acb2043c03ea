//! Transfers between host memory and disks: the core's wishes as boxes that I/O threads carry out, and their ends as its events.
//!
//! Boxes, their lists and the tables of checksums are made with the space and with its slabs: a transfer allocates nothing.
//! A box on its way keeps the memory that it names alive, whatever becomes of the space.

use super::slabs::Slabs;
use crate::error::Error;
use crate::io::{Disk, DiskLetter, Part, SlotKey, Transfer};
use crate::mail::{Mailbox, Outbox, mailbox};
use kvtide_tiering::api::{DiskSlot, IoClass, IoKind, SpaceConfig, Status};
use kvtide_tiering::format::SlotLayout;
use kvtide_tiering::node::DiskGrant;
use kvtide_wire::geometry::stride;

/// Words of an [`kvtide_tiering::api::Action::Io`]'s list for each page: plane, host slab, host slot.
const WORDS: usize = 3;

/// The NVMe tier as one space has it.
#[derive(Debug)]
pub(super) struct Nvme {
    space: u32,
    layout: SlotLayout,
    /// Bytes of each plane's page.
    page_bytes: Box<[u32]>,
    disks: Vec<Door>,
    slabs: Vec<Option<DiskSlab>>,
    /// Ends of transfers.
    ended: Mailbox<Box<Transfer>>,
    /// Boxes for transfers to come.
    #[expect(clippy::vec_box, reason = "boxes travel between threads: what is kept is what is sent")]
    idle: Vec<Box<Transfer>>,
    /// Transfers on their way.
    on_their_way: Vec<Sent>,
    /// Transfers that could not be sent, to be ended at the next look.
    unsent: Vec<(u32, Status)>,
    /// Notes to index logs, to be ended as failed at the next look.
    notes: Vec<u32>,
    /// Planes of the last read that ended whose bytes are not what was written.
    bad: Vec<u32>,
}

/// A disk, and what it has no room for yet.
#[derive(Debug)]
struct Door {
    disk: Disk,
    letters: Outbox<DiskLetter>,
}

/// A transfer on its way.
#[derive(Clone, Copy, Debug)]
struct Sent {
    id: u32,
    disk: usize,
    at: DiskSlot,
}

/// A region of a disk.
#[derive(Debug)]
struct DiskSlab {
    disk: usize,
    region: u32,
    /// Checksum of each page that was written, slot by slot, in order of planes.
    crcs: Box<[u32]>,
}

/// How a transfer ended; the planes that came back with other bytes are [`Nvme::bad`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// Its id.
    pub id: u32,
    /// How.
    pub status: Status,
}

impl Nvme {
    /// For a space of this configuration over these disks.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(space: u32, config: &SpaceConfig, disks: &[Disk]) -> Result<Nvme, Error> {
        let page_bytes: Box<[u32]> = config.planes.iter().map(|plane| plane.page_bytes).collect();
        // Without disks nothing is ever on its way; one box keeps the bell's other end, for a bell that nobody can ring any more
        // counts as rung for ever, and the thread would never sleep.
        let most = if disks.is_empty() { 1 } else { config.limits.ios_max as usize };
        let failed = |source| Error::Wire { action: "make a space's mailbox for transfers", source };
        let (reply, ended) = mailbox(most).map_err(failed)?;
        let blank = || Transfer {
            space,
            id: 0,
            kind: IoKind::Read,
            class: IoClass::Demand,
            offset: 0,
            bytes: 0,
            whole: false,
            key: SlotKey::default(),
            code: None,
            salt: 0,
            parts: Vec::with_capacity(page_bytes.len()),
            reply: reply.clone(),
            status: Status::Ok,
            errno: 0,
            waited_us: 0,
            device_us: 0,
        };
        Ok(Nvme {
            space,
            layout: SlotLayout::new(&config.planes),
            idle: (0..most).map(|_| Box::new(blank())).collect(),
            disks: disks.iter().map(|disk| Door { disk: disk.clone(), letters: Outbox::new(disk.letters()) }).collect(),
            slabs: Vec::new(),
            ended,
            on_their_way: Vec::with_capacity(most),
            unsent: Vec::with_capacity(most),
            notes: Vec::with_capacity(config.limits.notes_max as usize),
            bad: Vec::with_capacity(page_bytes.len()),
            page_bytes,
        })
    }

    /// A region was granted.
    pub fn add(&mut self, grant: DiskGrant) {
        let DiskGrant { slab, disk, region, slots } = grant;
        let slab = slab as usize;
        if self.slabs.len() <= slab {
            self.slabs.resize_with(slab + 1, || None);
        }
        let crcs = vec![0; slots as usize * self.page_bytes.len()].into_boxed_slice();
        self.slabs[slab] = Some(DiskSlab { disk: disk as usize, region, crcs });
    }

    /// A region goes back.
    pub fn remove(&mut self, slab: u32) {
        if let Some(slab) = self.slabs.get_mut(slab as usize) {
            *slab = None;
        }
    }

    /// Slabs held, by id; none afterwards.
    pub fn take_slabs(&mut self) -> impl Iterator<Item = u32> {
        let slabs = std::mem::take(&mut self.slabs);
        slabs.into_iter().zip(0..).filter_map(|(slab, id)| slab.map(|_| id))
    }

    /// Regions held.
    pub fn slabs(&self) -> usize {
        self.slabs.iter().flatten().count()
    }

    /// Transfers on their way.
    pub fn in_flight(&self) -> usize {
        self.on_their_way.len() + self.unsent.len()
    }

    /// Sends a transfer to its disk. One that the core should not have asked for is logged and ends as failed.
    pub fn begin(&mut self, id: u32, kind: IoKind, class: IoClass, at: DiskSlot, pages: &[u32], host: &Slabs) {
        let Some(mut transfer) = self.idle.pop() else {
            return self.refuse(id, format_args!("more transfers than limits.ios_max are on their way"));
        };
        transfer.parts.clear();
        (transfer.id, transfer.kind, transfer.class) = (id, kind, class);
        let filled = self.fill(&mut transfer, at, pages, host);
        let door = filled.as_ref().ok().and_then(|disk| self.disks.get_mut(*disk));
        match (filled, door) {
            (Ok(disk), Some(door)) => {
                self.on_their_way.push(Sent { id, disk, at });
                door.letters.post(DiskLetter::Transfer(transfer));
            }
            (filled, _) => {
                self.idle.push(transfer);
                let why = filled.err().unwrap_or("its slab is on no disk");
                self.refuse(id, format_args!("{why}: {at:?}, pages {pages:?}"));
            }
        }
    }

    /// Writes a transfer's fields; the disk that it goes to.
    fn fill(
        &mut self,
        transfer: &mut Transfer,
        at: DiskSlot,
        pages: &[u32],
        host: &Slabs,
    ) -> Result<usize, &'static str> {
        let planes = self.page_bytes.len();
        let slab = self.slabs.get(at.slab as usize).and_then(Option::as_ref).ok_or("it names no slab")?;
        let first = at.slot as usize * planes;
        let crcs = slab.crcs.get(first..first + planes).ok_or("it names no slot")?;
        for page in pages.chunks_exact(WORDS) {
            let (plane, host_slab, slot) = (page[0] as u16, page[1], page[2]);
            let bytes = *self.page_bytes.get(page[0] as usize).ok_or("it names no plane")?;
            let begin = self.layout.offset(plane).ok_or("it names no plane")?;
            let memory = host.memory(host_slab).ok_or("it names host memory that is not there")?;
            let offset = u64::from(slot) * u64::from(stride(bytes));
            let crc = crcs[usize::from(plane)];
            transfer.parts.push(Part {
                plane,
                at: begin,
                bytes,
                memory: memory.clone(),
                offset,
                crc,
                sectors: 0,
                tag: [0; 16],
                digest: None,
                sampled: false,
                ok: false,
            });
        }
        if transfer.parts.is_empty() {
            return Err("it names no page");
        }
        // Planes may stand in the slot in another order; sorting in place takes no memory.
        transfer.parts.sort_unstable_by_key(|part| part.at);
        let door = self.disks.get(slab.disk).ok_or("its slab is on no disk")?;
        transfer.bytes = self.layout.bytes();
        transfer.offset = door.disk.offset(slab.region, u64::from(at.slot) * self.layout.bytes());
        transfer.key = SlotKey { region: slab.region, slot: at.slot, generation: at.generation };
        transfer.whole = transfer.parts.len() == planes;
        Ok(slab.disk)
    }

    fn refuse(&mut self, id: u32, why: std::fmt::Arguments<'_>) {
        tracing::error!("space {}: transfer {id} cannot be sent: {why}", self.space);
        self.unsent.push((id, Status::Io));
    }

    /// The core has a note for an index log; no disk keeps one yet.
    pub fn note(&mut self, id: u32) {
        self.notes.push(id);
    }

    /// The next note that has ended.
    pub fn next_noted(&mut self) -> Option<u32> {
        self.notes.pop()
    }

    /// A transfer has become more urgent.
    pub fn urge(&mut self, id: u32, class: IoClass) {
        let Some(sent) = self.on_their_way.iter().find(|sent| sent.id == id) else { return };
        if let Some(door) = self.disks.get_mut(sent.disk) {
            door.letters.post(DiskLetter::Urge { space: self.space, id, class });
        }
    }

    /// Hands on what was begun. True if no disk's queue is full.
    pub fn flush(&mut self) -> bool {
        let Nvme { space, disks, ended: _, idle, on_their_way, unsent, .. } = self;
        let mut all = true;
        for door in disks {
            let number = door.disk.number();
            all &= door.letters.flush_or(|letter| {
                // The disk's thread has ended, which it does before its spaces only by a fault of ours.
                let DiskLetter::Transfer(mut transfer) = letter else { return };
                tracing::error!(
                    "space {space}: transfer {} is lost: the thread of disk {number} has ended",
                    transfer.id
                );
                on_their_way.retain(|sent| sent.id != transfer.id);
                unsent.push((transfer.id, Status::Io));
                transfer.parts.clear();
                idle.push(transfer);
            });
        }
        all
    }

    /// The next transfer that has ended.
    pub fn next_ended(&mut self) -> Option<Ended> {
        self.bad.clear();
        if let Some((id, status)) = self.unsent.pop() {
            return Some(Ended { id, status });
        }
        loop {
            let mut transfer = self.ended.take()?;
            let Some(place) = self.on_their_way.iter().position(|sent| sent.id == transfer.id) else {
                tracing::error!("space {}: transfer {} ended and was not on its way", self.space, transfer.id);
                continue;
            };
            let Sent { id, at, .. } = self.on_their_way.swap_remove(place);
            let status = match transfer.status {
                Status::Ok => {
                    self.take_results(&transfer, at);
                    Status::Ok
                }
                status @ (Status::Io | Status::NoSpace | Status::TimedOut | Status::Canceled) => status,
                status => {
                    tracing::error!("space {}: transfer {id} was refused as {status:?}: {transfer:?}", self.space);
                    Status::Io
                }
            };
            transfer.parts.clear();
            self.idle.push(transfer);
            return Some(Ended { id, status });
        }
    }

    /// Of a write, the checksums; of a read, the planes whose bytes are not what was written.
    fn take_results(&mut self, transfer: &Transfer, at: DiskSlot) {
        let first = at.slot as usize * self.page_bytes.len();
        match transfer.kind {
            IoKind::Read => {
                self.bad.extend(transfer.parts.iter().filter(|part| !part.ok).map(|part| u32::from(part.plane)));
                self.bad.sort_unstable();
            }
            IoKind::Write => {
                let Some(slab) = self.slabs.get_mut(at.slab as usize).and_then(Option::as_mut) else { return };
                for part in &transfer.parts {
                    slab.crcs[first + usize::from(part.plane)] = part.crc;
                }
            }
        }
    }

    /// Planes, ascending, of the transfer that [`Nvme::next_ended`] returned last whose bytes are not what was written.
    pub fn bad(&self) -> &[u32] {
        &self.bad
    }

    /// Whether no end of a transfer waits to be taken.
    pub fn is_quiet(&self) -> bool {
        self.unsent.is_empty() && self.notes.is_empty() && self.ended.is_empty()
    }

    /// Where ends of transfers ring.
    pub fn bell(&self) -> &Mailbox<Box<Transfer>> {
        &self.ended
    }
}

#[cfg(test)]
mod tests;
