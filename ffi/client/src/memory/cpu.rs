//! Memory of a CPU engine: the thread that polls makes the copies. Copies into tier 0 use memcpy, which leaves the page in the
//! cache of the thread that waits for it. All other copies bypass the cache.

use super::{
    Counts, EngineBlocks, Tier0, TierMemory, host_place,
    slabs::{HostSlab, check_slab, map_slab},
    stream,
};
use crate::{
    Result,
    agent::protocol::{Copied, CopyOp, Geometry, Place},
    client::DeviceCopies,
    process,
};
use kvtide_wire::{hello::Slab, status::Status};
use std::{
    collections::{HashMap, VecDeque},
    mem::ManuallyDrop,
    os::fd::OwnedFd,
    sync::Arc,
    time::Instant,
};

/// Jobs of a round. The thread copies them itself.
const ROUND_JOBS: usize = 32;

/// Maximum bytes that one poll copies before it reports. This bounds the time of a helping thread, and the daemon learns of the
/// first pages while the others are being copied. Four 64 KiB pages: about 25 µs at 10 GB/s.
const POLL_BYTES: u64 = 256 << 10;

/// Return the CRC-32C of a page in tier 0.
fn digest(page: *const u8, bytes: usize) -> u32 {
    // SAFETY: `CpuMemory` has just found the range in tier 0 or in a slab. The frame belongs to the copy until the copy has ended:
    // nothing else writes it, and the source of a store is sealed. An engine that writes it nevertheless changes the resulting
    // digest, and nothing else: the function's control flow depends on the length alone.
    let page = unsafe { std::slice::from_raw_parts(page, bytes) };
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, page) as u32
}

/// Tier 0 in the engine's plain memory.
pub struct CpuMemory {
    tier0: Arc<Tier0>,
    /// Page bytes and stride of each size class.
    classes: Vec<(u32, u32)>,
    slabs: ManuallyDrop<HashMap<u32, HostSlab>>,
    gone: Vec<u32>,
    queue: VecDeque<CopyOp>,
    /// The engine's own blocks.
    blocks: Option<EngineBlocks>,
    /// The slab of the host frame that each mapped frame shows.
    shown: Vec<Option<u32>>,
    owner: u32,
}

impl CpuMemory {
    /// Create memory around a tier 0 of the same geometry.
    #[must_use]
    pub fn new(geometry: &Geometry, tier0: Arc<Tier0>) -> CpuMemory {
        let classes = (0..geometry.classes()).filter_map(|class| geometry.class(class));
        CpuMemory {
            shown: vec![None; geometry.classes() * geometry.mapped_frames() as usize],
            tier0,
            classes: classes.map(|(bytes, stride, _)| (bytes, stride)).collect(),
            slabs: ManuallyDrop::new(HashMap::new()),
            gone: Vec::new(),
            blocks: None,
            queue: VecDeque::with_capacity(geometry.bounds().jobs_max as usize),
            owner: process::id(),
        }
    }

    /// Return the address and the size of a place.
    fn locate(&self, place: Place) -> Option<(*mut u8, usize)> {
        match place {
            Place::Frame(frame) => self.tier0.frame(frame),
            Place::MappedFrame(_) | Place::Nothing | Place::Engine(_) => None,
            Place::Host { slab, slot } => {
                let slab = self.slabs.get(&slab).filter(|s| slot < s.frames)?;
                let start = slab.start()?;
                Some((start.wrapping_add(slot as usize * slab.stride), self.classes.get(slab.class)?.0 as usize))
            }
        }
    }

    /// Set the page that a mapped frame shows, or unmap it.
    fn show(&mut self, op: &CopyOp, frame: u32) -> std::result::Result<Copied, Status> {
        let (mapped, bytes) = self.tier0.mapped_frame(frame).ok_or(Status::Io)?;
        let (slab, at) = match op.from {
            Place::Nothing => (None, std::ptr::null_mut()),
            Place::Host { slab, .. } => {
                let found = self.locate(op.from).filter(|(_, room)| *room >= bytes);
                (Some(slab), found.ok_or(Status::Io)?.0)
            }
            Place::Frame(_) | Place::MappedFrame(_) | Place::Engine(_) => return Err(Status::Io),
        };
        let digest = if op.sampled && !at.is_null() { digest(at, bytes) } else { 0 };
        self.tier0.set_mapped_frame(mapped, at);
        self.shown[mapped] = slab;
        Ok(Copied { bytes: u64::from(op.bytes), digest })
    }

    fn copy(&mut self, op: &CopyOp) -> std::result::Result<Copied, Status> {
        match (op.from, op.to) {
            (_, Place::MappedFrame(frame)) => return self.show(op, frame),
            (Place::Engine(block), host) => return self.copy_pieces(op, block, host, false),
            (host, Place::Engine(block)) => return self.copy_pieces(op, block, host, true),
            _ => {}
        }
        let bytes = op.bytes as usize;
        let fits = |place| self.locate(place).filter(|(_, room)| *room >= bytes).map(|(at, _)| at);
        let (Some(from), Some(to)) = (fits(op.from), fits(op.to)) else { return Err(Status::Io) };
        // SAFETY: both ranges lie in mapped memory of at least `bytes` (checked above) and are distinct frames. The mover yields a
        // copy only after every lane has given the destination up, and reserves the source while the copy runs; host frames belong
        // to this job until it is reported done.
        let in_tier0 = unsafe {
            match op.to {
                Place::Frame(_) => {
                    std::ptr::copy_nonoverlapping(from, to, bytes);
                    to
                }
                _ => {
                    stream::copy(from, to, bytes);
                    from
                }
            }
        };
        let digest = if op.sampled { digest(in_tier0, bytes) } else { 0 };
        Ok(Copied { bytes: u64::from(op.bytes), digest })
    }

    /// Copy a page between a host frame and the pieces of an engine's block. The digest is that of the bytes in the engine's block.
    fn copy_pieces(&self, op: &CopyOp, block: u32, host: Place, scatter: bool) -> std::result::Result<Copied, Status> {
        let frame = self.locate(host).filter(|(_, room)| *room >= op.bytes as usize).ok_or(Status::Io)?.0;
        let pieces = self.blocks.as_ref().and_then(|blocks| blocks.pieces(block, op.plane)).ok_or(Status::Io)?;
        let mut digest = op.sampled.then(|| crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi));
        let mut copied = 0;
        for (piece, bytes) in pieces {
            let in_host = frame.wrapping_add(copied);
            let (from, to) = if scatter { (in_host, piece) } else { (piece, in_host) };
            // SAFETY: the pieces of a plane have as many bytes as its page (checked when they were given), so the host side stays
            // within its frame. The caller that gave the pieces has promised that their memory stays until it takes them back,
            // which this thread's lock orders after the copy. The host frame belongs to this job until it is reported done.
            unsafe { stream::copy(from, to, bytes) };
            if let Some(digest) = &mut digest {
                // SAFETY: as above. An engine that writes meanwhile changes the resulting digest, and nothing else.
                digest.update(unsafe { std::slice::from_raw_parts(piece, bytes) });
            }
            copied += bytes;
        }
        Ok(Copied { bytes: copied as u64, digest: digest.map_or(0, |digest| digest.finalize() as u32) })
    }

    fn unmap_idle(&mut self) {
        let (slabs, queue, shown) = (&mut self.slabs, &self.queue, &self.shown);
        self.gone.retain(|slab| {
            let used =
                shown.contains(&Some(*slab)) || queue.iter().any(|op| host_place(op).is_some_and(|(s, _)| s == *slab));
            if !used {
                slabs.remove(slab);
            }
            used
        });
    }
}

impl TierMemory for CpuMemory {
    fn tier0(&self) -> &Arc<Tier0> {
        &self.tier0
    }

    fn add_slab(&mut self, slab: &Slab, memfd: OwnedFd) -> Result<()> {
        check_slab(slab, self.classes.get(usize::from(slab.class)).map(|c| c.1), self.slabs.contains_key(&slab.slab))?;
        self.slabs.insert(slab.slab, map_slab(slab, memfd)?);
        Ok(())
    }

    fn round_jobs(&self) -> usize {
        ROUND_JOBS
    }

    fn remove_slab(&mut self, slab: u32) {
        self.gone.push(slab);
        self.unmap_idle();
    }

    fn has_slab(&self, slab: u32) -> bool {
        self.slabs.contains_key(&slab)
    }

    fn knows(&self, class: usize, slab: u32, slot: u32) -> bool {
        let gone = self.gone.contains(&slab);
        !gone && self.slabs.get(&slab).is_some_and(|s| s.class == class && slot < s.frames)
    }

    fn set_blocks(&mut self, blocks: Option<EngineBlocks>) -> std::result::Result<Option<EngineBlocks>, Status> {
        Ok(std::mem::replace(&mut self.blocks, blocks)) // no copy runs between two polls
    }

    fn own_block(&mut self, block: u32, plane: u16) -> Option<&mut [u8]> {
        self.blocks.as_mut()?.own(block, plane)
    }

    fn start(&mut self, copies: &[CopyOp]) -> std::result::Result<usize, Status> {
        self.queue.extend(copies);
        Ok(copies.len())
    }

    fn poll(
        &mut self,
        ended: &mut dyn FnMut(&CopyOp, std::result::Result<Copied, Status>),
    ) -> std::result::Result<usize, Status> {
        let (mut bytes, mut count) = (0, 0);
        while bytes < POLL_BYTES {
            let Some(op) = self.queue.pop_front() else { break };
            let result = self.copy(&op);
            ended(&op, result);
            bytes += u64::from(op.bytes);
            count += 1;
        }
        if !self.gone.is_empty() {
            self.unmap_idle();
        }
        Ok(count)
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }

    fn settle(&mut self, _: Instant) -> std::result::Result<(), Status> {
        Ok(()) // queued copies have not begun, and lanes read at once
    }

    fn device_copies(&self) -> Option<DeviceCopies> {
        None
    }

    fn take_counts(&mut self) -> Counts {
        Counts::default()
    }
}

impl Drop for CpuMemory {
    fn drop(&mut self) {
        if self.owner == process::id() {
            // SAFETY: dropped once, here; nothing uses it afterwards. A forked child never had the mappings and leaves them alone.
            unsafe { ManuallyDrop::drop(&mut self.slabs) };
        }
    }
}
