//! Memory of a session with tier 0 on a CUDA device: its arenas, the device's view of host slabs, and copies that the device makes
//! and the copy loop polls.
//!
//! Every copy waits for the marks of all lanes (`marks`): work that a lane had enqueued when it gave a frame up, or when it wrote
//! the data now being stored, comes first. Called by the agent's copy loop. It knows frames, slabs and events, but not pages or
//! tables.

mod arena;
mod digests;
mod gate;
mod mapped;
mod marks;
mod slabs;

pub(super) use arena::DeviceMemory;
pub(crate) use gate::Gate;
pub(crate) use mapped::MappedFrames;
pub(crate) use marks::Marks;

use super::{Counts, EngineBlocks, Tier0, TierMemory, host_place, slabs::check_slab};
use crate::{
    Error, Result,
    agent::protocol::{Copied, CopyOp, Geometry, Place},
    client::{
        DeviceCopies,
        options::{CudaDevice, DeviceChoice},
    },
    process,
};
use digests::{Digests, Landed};
use kvtide_kernels::{
    Device, Driver, Uuid, Which,
    copy::{self, COPIES_MAX, Copier, Copy, Ticket, Way},
};
use kvtide_wire::{hello::Slab, status::Status};
use slabs::DeviceSlab;
use std::{
    collections::{HashMap, VecDeque},
    mem::ManuallyDrop,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

/// Time limit for copies when the memory is dropped.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// Jobs of a round: one batch of copies for all of them. A batch costs several calls of the driver, whatever it holds.
const ROUND_JOBS: usize = 256;

/// Return the status of a device error.
pub(crate) fn status_of(error: &kvtide_kernels::Error) -> Status {
    use kvtide_kernels::Error as E;
    match error {
        E::Invalid { .. } | E::Unsupported { .. } => Status::Invalid,
        E::Busy { .. } => Status::Limit,
        E::TimedOut { .. } => Status::TimedOut,
        E::Forked { .. } => Status::Fork,
        E::System { .. } => Status::System,
        _ => Status::Device,
    }
}

/// Convert a device error into the client's error.
#[must_use]
pub fn error(doing: &str, error: kvtide_kernels::Error) -> Error {
    let status = status_of(&error);
    Error::System { doing: doing.to_owned(), status, source: std::io::Error::other(error) }
}

/// Open the device that the options name; `None`: they name none.
pub(crate) fn open(choice: &DeviceChoice) -> Result<Option<Arc<Device>>> {
    let device = match choice {
        DeviceChoice::Cpu => return Ok(None),
        DeviceChoice::Cuda { device, .. } | DeviceChoice::GivenCuda { device, .. } => device,
    };
    let which = match *device {
        CudaDevice::Ordinal(ordinal) => Which::Ordinal(ordinal),
        CudaDevice::Uuid { bytes, mig } => Which::Uuid(Uuid { bytes, mig }),
    };
    let opened = Driver::probe().and_then(|driver| Device::open(&driver, which));
    opened.map(Some).map_err(|e| error("open the device of tier 0", e))
}

/// A batch of copies in flight, all in the same direction.
struct Batch {
    ticket: Ticket,
    ops: Vec<CopyOp>,
}

/// Tier 0 on a device.
pub(crate) struct CudaMemory {
    tier0: Arc<Tier0>,
    device: Arc<Device>,
    marks: Arc<[Marks]>,
    gate: Arc<Gate>,
    /// Number of times each lane's mark had been set when the copier's streams were last ordered after it.
    seen: Vec<u64>,
    /// Page bytes and stride of each size class.
    classes: Vec<(u32, u32)>,
    slabs: ManuallyDrop<HashMap<u32, DeviceSlab>>,
    gone: Vec<u32>,
    parts: ManuallyDrop<Parts>,
    batches: VecDeque<Batch>,
    /// Copies that could not be started and are to be reported.
    failed: Vec<CopyOp>,
    /// The slab of the host frame that each mapped frame shows.
    showing: Vec<Option<u32>>,
    counts: Counts,
    list: Vec<Copy>,
    owner: u32,
}

/// The copier and the digests.
struct Parts {
    copier: Copier,
    digests: Digests,
}

impl CudaMemory {
    /// Create memory around a tier 0 of the same geometry, ordered after the marks of the session's lanes.
    pub fn new(geometry: &Geometry, tier0: Arc<Tier0>, marks: Arc<[Marks]>, gate: Arc<Gate>) -> Result<CudaMemory> {
        let device = tier0.device().cloned().ok_or(Error::call("copy on a device", 0, Status::Internal))?;
        let classes: Vec<(u32, u32)> = (0..geometry.classes())
            .filter_map(|class| geometry.class(class))
            .map(|(bytes, stride, _)| (bytes, stride))
            .collect();
        let bytes_max = classes.iter().map(|c| u64::from(c.0)).max().unwrap_or(0);
        let copier =
            Copier::new(&device, copy::Options::default()).map_err(|e| error("start the copies of tier 0", e))?;
        let digests = Digests::new(&device, bytes_max).map_err(|e| error("start the digests of tier 0", e))?;
        Ok(CudaMemory {
            seen: vec![0; marks.len()],
            tier0,
            device,
            marks,
            gate,
            classes,
            slabs: ManuallyDrop::new(HashMap::new()),
            gone: Vec::new(),
            parts: ManuallyDrop::new(Parts { copier, digests }),
            batches: VecDeque::new(),
            failed: Vec::new(),
            showing: vec![None; geometry.classes() * geometry.mapped_frames() as usize],
            counts: Counts::default(),
            list: Vec::with_capacity(geometry.bounds().jobs_max as usize),
            owner: process::id(),
        })
    }

    /// Return the device address of a place, if it holds `bytes` bytes, and the registration that it is in (0: none).
    fn locate(&mut self, place: Place, bytes: u32) -> Option<(u64, u64)> {
        match place {
            Place::Frame(frame) => {
                let (at, room) = self.tier0.frame(frame)?;
                (room >= bytes as usize).then_some((at.addr() as u64, 0))
            }
            Place::MappedFrame(_) | Place::Nothing | Place::Engine(_) => None,
            Place::Host { slab, slot } => {
                let slab = self.slabs.get_mut(&slab)?;
                let room = self.classes.get(slab.class())?.0;
                let offset = slab.offset(slot)?;
                // Registered when it was announced. If that failed, this copy tries again, and fails with it.
                let start = slab.address(&mut self.counts).ok()?;
                (room >= bytes).then_some((start + offset, start))
            }
        }
    }

    /// Return the device copy of an op; `None`: its source or destination does not exist.
    fn copy_of(&mut self, op: &CopyOp) -> Option<Copy> {
        let Place::MappedFrame(frame) = op.to else {
            let ((from, one), (to, other)) = (self.locate(op.from, op.bytes)?, self.locate(op.to, op.bytes)?);
            return Some(Copy { from, to, bytes: op.bytes as usize, region: one.max(other) });
        };
        let (mapped, _) = self.tier0.mapped_frame(frame)?;
        let page = if op.from == Place::Nothing { 0 } else { self.locate(op.from, op.bytes)?.0 };
        let (from, to) = self.tier0.device_mapped_frames()?.entry(mapped, page)?;
        Some(Copy { from, to, bytes: mapped::ENTRY, region: 0 })
    }

    /// Update the host's record of the page that a mapped frame shows, after the copy that changed it.
    fn shown(&mut self, op: &CopyOp) {
        let Place::MappedFrame(frame) = op.to else { return };
        let Some((mapped, _)) = self.tier0.mapped_frame(frame) else { return };
        let page = self.locate(op.from, op.bytes).map_or(0, |(page, _)| page);
        self.tier0.set_mapped_frame(mapped, std::ptr::without_provenance_mut(page as usize));
        self.showing[mapped] = host_place(op).map(|(slab, _)| slab);
    }

    /// Order all copies submitted from now on after the lanes' marks.
    fn behind_marks(&mut self) -> std::result::Result<(), Status> {
        let copier = &self.parts.copier;
        for (marks, seen) in self.marks.iter().zip(&mut self.seen) {
            // Without the ordering no copy is safe, whatever the reason.
            marks.follow(seen, |mark| copier.order_after(mark)).map_err(|_| Status::Device)?;
        }
        Ok(())
    }

    /// Start the first of `copies`, as far as they go in the same direction. Return how many were started.
    fn start_some(&mut self, copies: &[CopyOp]) -> std::result::Result<usize, Status> {
        let Some(first) = copies.first() else { return Ok(0) };
        let way = way(first);
        let count = copies.iter().take(COPIES_MAX).take_while(|op| self::way(op) == way).count();
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        let mut ops = Vec::with_capacity(count);
        let failed = self.failed.len();
        for op in &copies[..count] {
            match self.copy_of(op) {
                Some(copy) => {
                    list.push(copy);
                    ops.push(*op);
                }
                None => self.failed.push(*op),
            }
        }
        if list.is_empty() {
            self.list = list;
            return Ok(count);
        }
        // SAFETY: every place was found in memory that stays until the copy is reported (frames belong to the mover, host frames to
        // the job). The copies are ordered after every lane's mark, and no two of the mover's jobs in flight write the same frame.
        let submitted = unsafe {
            let waits = self.gate.enter();
            match *waits {
                0 => self.parts.copier.submit(way, &list),
                _ => self.parts.copier.submit_by_engines(way, &list),
            }
        };
        self.list = list;
        match submitted {
            Ok(ticket) => {
                self.batches.push_back(Batch { ticket, ops });
                Ok(count)
            }
            Err(kvtide_kernels::Error::Busy { .. }) => {
                self.failed.truncate(failed); // they are passed again with the others
                Ok(0)
            }
            Err(e) if e.is_lost() => Err(Status::Device),
            Err(_) => {
                self.failed.extend(ops);
                Ok(count)
            }
        }
    }

    /// Take the batches that have ended. Copies in the integrity sample are hashed next.
    fn land(
        &mut self,
        ended: &mut dyn FnMut(&CopyOp, std::result::Result<Copied, Status>),
    ) -> std::result::Result<usize, Status> {
        let mut count = 0;
        let mut at = 0;
        while let Some(batch) = self.batches.get(at) {
            let landed = match self.parts.copier.poll(batch.ticket) {
                Ok(false) => {
                    at += 1; // the other directions do not wait for it
                    continue;
                }
                Ok(true) => true,
                Err(e) if e.is_lost() => return Err(Status::Device),
                Err(_) => false,
            };
            let Some(batch) = self.batches.remove(at) else { break };
            for op in &batch.ops {
                if landed {
                    self.shown(op);
                }
                let frame = in_tier0(op).and_then(|frame| self.tier0.frame(frame));
                match (landed, op.sampled, frame) {
                    (true, true, Some((at, _))) => {
                        self.parts.digests.want(Landed { op: *op, address: at.addr() as u64 })
                    }
                    (true, false, _) => {
                        ended(op, Ok(Copied { bytes: u64::from(op.bytes), digest: 0 }));
                        count += 1;
                    }
                    _ => {
                        ended(op, Err(Status::Io));
                        count += 1;
                    }
                }
            }
        }
        Ok(count)
    }

    /// Unmap slabs that are gone and that nothing uses. Not while a stream waits for a word: the driver may wait for the whole device
    /// when memory is unregistered, and this thread is the one that ends the stream's wait. No wait can begin meanwhile.
    fn unmap_idle(&mut self) {
        let gate = Arc::clone(&self.gate);
        let waits = gate.enter();
        if *waits > 0 {
            return;
        }
        let uses = |slab: u32| {
            if self.showing.contains(&Some(slab)) {
                return true;
            }
            let uses = |op: &CopyOp| host_place(op).is_some_and(|(s, _)| s == slab);
            self.batches.iter().any(|batch| batch.ops.iter().any(uses)) || self.failed.iter().any(uses)
        };
        let gone: Vec<u32> = self.gone.iter().copied().filter(|slab| !uses(*slab)).collect();
        self.gone.retain(|slab| !gone.contains(slab));
        for slab in gone {
            self.slabs.remove(&slab);
        }
    }
}

/// Return the direction of a copy.
fn way(op: &CopyOp) -> Way {
    match (op.from, op.to) {
        (Place::Host { .. }, _) => Way::Up,
        (_, Place::Host { .. }) => Way::Down,
        // The entry of a mapped frame comes from host memory.
        (_, Place::MappedFrame(_)) => Way::Up,
        _ => Way::Within,
    }
}

/// Return the tier-0 frame that a copy's digest covers: the frame that it writes, otherwise the one that it reads.
fn in_tier0(op: &CopyOp) -> Option<u32> {
    match (op.to, op.from) {
        (Place::Frame(frame) | Place::MappedFrame(frame), _) | (_, Place::Frame(frame)) => Some(frame),
        _ => None,
    }
}

impl TierMemory for CudaMemory {
    fn tier0(&self) -> &Arc<Tier0> {
        &self.tier0
    }

    fn add_slab(&mut self, slab: &Slab, memfd: OwnedFd) -> Result<()> {
        check_slab(slab, self.classes.get(usize::from(slab.class)).map(|c| c.1), self.slabs.contains_key(&slab.slab))?;
        let mut mapped = DeviceSlab::new(&self.device, slab, memfd)?;
        // Now, and not in front of the first copy. Not while a stream waits for a word: the driver may wait for the stream.
        if *self.gate.enter() == 0 {
            let _ = mapped.address(&mut self.counts); // after a failure, the first copy tries again
        }
        self.slabs.insert(slab.slab, mapped);
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
        !self.gone.contains(&slab) && self.slabs.get(&slab).is_some_and(|s| s.holds(class, slot))
    }

    fn set_blocks(&mut self, blocks: Option<EngineBlocks>) -> std::result::Result<Option<EngineBlocks>, Status> {
        if blocks.is_some() { Err(Status::Invalid) } else { Ok(None) }
    }

    fn own_block(&mut self, _: u32, _: u16) -> Option<&mut [u8]> {
        None
    }

    fn start(&mut self, copies: &[CopyOp]) -> std::result::Result<usize, Status> {
        self.behind_marks()?;
        let mut started = 0;
        while started < copies.len() {
            match self.start_some(&copies[started..])? {
                0 => break,
                count => started += count,
            }
        }
        Ok(started)
    }

    fn poll(
        &mut self,
        ended: &mut dyn FnMut(&CopyOp, std::result::Result<Copied, Status>),
    ) -> std::result::Result<usize, Status> {
        let mut count = self.failed.len();
        self.failed.drain(..).for_each(|op| ended(&op, Err(Status::Io)));
        count += self.land(ended)?;
        let Parts { copier, digests } = &mut *self.parts;
        let hashed = digests.poll(copier, &self.gate, &mut |op, digest| {
            let copied = |digest| Copied { bytes: u64::from(op.bytes), digest };
            ended(op, digest.map(copied).map_err(|()| Status::Io));
            count += 1;
        });
        hashed.map_err(|_| Status::Device)?;
        if !self.gone.is_empty() {
            self.unmap_idle();
        }
        Ok(count)
    }

    fn in_flight(&self) -> usize {
        let copying: usize = self.batches.iter().map(|batch| batch.ops.len()).sum();
        copying + self.failed.len() + self.parts.digests.in_flight()
    }

    fn settle(&mut self, deadline: Instant) -> std::result::Result<(), Status> {
        let settled = |done: kvtide_kernels::Result<bool>| match done {
            Ok(true) => Ok(()),
            Ok(false) => Err(Status::TimedOut),
            Err(e) => Err(status_of(&e)),
        };
        settled(self.parts.copier.settle(deadline))?;
        settled(self.parts.digests.settle(deadline))?;
        self.marks.iter().try_for_each(|marks| settled(marks.reached_by(deadline)))
    }

    fn device_copies(&self) -> Option<DeviceCopies> {
        let (copier, below) = (&self.parts.copier, self.parts.copier.crossover());
        let made = copier.stats();
        Some(DeviceCopies {
            up_below: below.bytes(Way::Up),
            down_below: below.bytes(Way::Down),
            within_below: below.bytes(Way::Within),
            batched: copier.is_batched(),
            engine_bytes: made.engine_bytes,
            kernel_bytes: made.kernel_bytes,
            launches: made.launches,
            failed: made.failed,
        })
    }

    fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }
}

impl Drop for CudaMemory {
    /// Leaves slabs that a copy may still access mapped and registered. A forked child has none of this.
    fn drop(&mut self) {
        if self.owner != process::id() {
            return;
        }
        let settled = self.parts.copier.settle(Instant::now() + SETTLE_MAX);
        // SAFETY: dropped once, here; nothing uses them afterwards.
        unsafe { ManuallyDrop::drop(&mut self.parts) };
        // SAFETY: as above. They are left mapped if copies are in flight.
        let slabs = unsafe { ManuallyDrop::take(&mut self.slabs) };
        if kvtide_kernels::Error::may_run(&settled) {
            slabs.into_values().for_each(DeviceSlab::forget);
        }
    }
}
