//! Digests of sampled pages on a device, for the integrity sample. Kernels compute them in batches on the agent's own low-priority
//! stream. While an engine's stream waits for a memory word (`gate`), the host computes them instead, from a copy made by a copy
//! engine.

use super::Gate;
use crate::agent::protocol::CopyOp;
use kvtide_kernels::{
    Device, Error, Event, Pinned, Priority, Result, Stream,
    copy::{Copier, Copy, Ticket, Way},
    launch::{Crc, CrcList, crc_segments},
    params::CrcItem,
};
use std::{
    collections::VecDeque,
    mem::ManuallyDrop,
    sync::Arc,
    time::{Duration, Instant},
};

/// Maximum pages of one launch.
const PAGES_MAX: usize = 16;
/// Maximum launches with sums that have not been read.
const LAUNCHES_MAX: usize = 4;
/// Time limit for launches when the digests are dropped.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// A page after its copy has completed: the job's copy, and the page's address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landed {
    pub op: CopyOp,
    pub address: u64,
}

/// A launch in flight.
struct Launch {
    ops: Vec<CopyOp>,
    slot: usize,
    done: Event,
}

/// Digests of one session.
pub(super) struct Digests {
    kernel: Crc,
    stream: Stream,
    /// For each launch slot: its list, then its sums.
    lists: ManuallyDrop<Pinned>,
    segments_max: usize,
    slot_bytes: usize,
    waiting: VecDeque<Landed>,
    launches: VecDeque<Launch>,
    /// Buffer and copy of the page that the host hashes.
    staged: ManuallyDrop<Pinned>,
    fetching: Option<(Ticket, CopyOp)>,
    free: Vec<(usize, Event)>,
}

impl Digests {
    /// Create digests for pages of at most `bytes_max` bytes.
    pub fn new(device: &Arc<Device>, bytes_max: u64) -> Result<Digests> {
        let segments_max = crc_segments(bytes_max) as usize;
        let slot_bytes = (PAGES_MAX * (size_of::<CrcItem>() + segments_max * size_of::<u32>())).next_multiple_of(64);
        Ok(Digests {
            kernel: Crc::new(device)?,
            stream: Stream::new(device, Priority::Low)?,
            lists: ManuallyDrop::new(Pinned::new(device, LAUNCHES_MAX * slot_bytes)?),
            segments_max,
            slot_bytes,
            staged: ManuallyDrop::new(Pinned::new(device, bytes_max.max(1) as usize)?),
            fetching: None,
            waiting: VecDeque::new(),
            launches: VecDeque::with_capacity(LAUNCHES_MAX),
            free: (0..LAUNCHES_MAX).map(|slot| Ok((slot, Event::new(device)?))).collect::<Result<_>>()?,
        })
    }

    /// Return the number of copies that wait for their digests.
    pub fn in_flight(&self) -> usize {
        self.waiting.len()
            + usize::from(self.fetching.is_some())
            + self.launches.iter().map(|launch| launch.ops.len()).sum::<usize>()
    }

    /// Request a page's digest. Its frame belongs to the copy until the digest is reported.
    pub fn want(&mut self, landed: Landed) {
        self.waiting.push_back(landed);
    }

    /// Launch waiting work and report completed digests.
    pub fn poll(
        &mut self,
        copier: &mut Copier,
        gate: &Gate,
        ended: &mut dyn FnMut(&CopyOp, std::result::Result<u32, ()>),
    ) -> Result<()> {
        self.fetched(copier, ended)?;
        {
            let waits = gate.enter();
            if *waits == 0 { self.launch_waiting(ended)? } else { self.fetch(copier, ended)? }
        }
        self.launched(ended)
    }

    /// Start to copy the next page for the host.
    fn fetch(
        &mut self,
        copier: &mut Copier,
        ended: &mut dyn FnMut(&CopyOp, std::result::Result<u32, ()>),
    ) -> Result<()> {
        if self.fetching.is_some() {
            return Ok(());
        }
        let Some(landed) = self.waiting.front().copied() else { return Ok(()) };
        let copy = Copy { from: landed.address, to: self.staged.address(), bytes: landed.op.bytes as usize, region: 0 };
        // SAFETY: the page's frame belongs to its job until that is reported; the staging page is written by one copy at a time.
        let submitted = unsafe { copier.submit_by_engines(Way::Down, &[copy]) };
        match submitted {
            Ok(ticket) => self.fetching = Some((ticket, landed.op)),
            Err(Error::Busy { .. }) => return Ok(()), // retried later
            Err(error) if error.is_lost() => return Err(error),
            Err(_) => ended(&landed.op, Err(())),
        }
        self.waiting.pop_front();
        Ok(())
    }

    /// Compute the digest of a page that was copied to the host.
    fn fetched(
        &mut self,
        copier: &mut Copier,
        ended: &mut dyn FnMut(&CopyOp, std::result::Result<u32, ()>),
    ) -> Result<()> {
        let Some((ticket, op)) = self.fetching else { return Ok(()) };
        let digest = match copier.poll(ticket) {
            Ok(false) => return Ok(()),
            Ok(true) => {
                // SAFETY: the copy into the buffer has ended and there is no other; the buffer is as long as the longest page.
                let page = unsafe { std::slice::from_raw_parts(self.staged.as_ptr(), op.bytes as usize) };
                Ok(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, page) as u32)
            }
            Err(error) if error.is_lost() => return Err(error),
            Err(_) => Err(()),
        };
        self.fetching = None;
        ended(&op, digest);
        Ok(())
    }

    /// Launch kernels for the waiting pages.
    fn launch_waiting(&mut self, ended: &mut dyn FnMut(&CopyOp, std::result::Result<u32, ()>)) -> Result<()> {
        while !self.waiting.is_empty() {
            let Some((slot, done)) = self.free.pop() else { break };
            let count = self.waiting.len().min(PAGES_MAX);
            let landed: Vec<Landed> = self.waiting.drain(..count).collect();
            match self.launch(slot, &landed, &done) {
                Ok(()) => {
                    let ops = landed.into_iter().map(|l| l.op).collect();
                    self.launches.push_back(Launch { ops, slot, done });
                }
                Err(error) => {
                    self.free.push((slot, done));
                    landed.iter().for_each(|l| ended(&l.op, Err(())));
                    return if error.is_lost() { Err(error) } else { Ok(()) };
                }
            }
        }
        Ok(())
    }

    /// Read the sums of completed launches.
    fn launched(&mut self, ended: &mut dyn FnMut(&CopyOp, std::result::Result<u32, ()>)) -> Result<()> {
        while let Some(launch) = self.launches.front() {
            if !launch.done.query()? {
                break;
            }
            let Some(launch) = self.launches.pop_front() else { break };
            for (at, op) in launch.ops.iter().enumerate() {
                ended(op, Ok(self.sum(launch.slot, at, &launch.ops)));
            }
            self.free.push((launch.slot, launch.done));
        }
        Ok(())
    }

    fn sums_at(&self, slot: usize) -> usize {
        slot * self.slot_bytes + PAGES_MAX * size_of::<CrcItem>()
    }

    fn launch(&self, slot: usize, landed: &[Landed], done: &Event) -> Result<()> {
        let at = slot * self.slot_bytes;
        for (index, page) in landed.iter().enumerate() {
            let item = CrcItem { address: page.address, bytes: u64::from(page.op.bytes) };
            // SAFETY: within the slot, which no launch uses.
            unsafe { self.lists.as_ptr().add(at).cast::<CrcItem>().add(index).write(item) };
        }
        let list = CrcList {
            items: self.lists.address() + at as u64,
            sums: self.lists.address() + self.sums_at(slot) as u64,
            count: landed.len() as u32,
            bytes_max: landed.iter().map(|l| u64::from(l.op.bytes)).max().unwrap_or(0),
        };
        // SAFETY: list and sums stay until the event after the launch is done. The pages' copies have completed, and their frames
        // belong to their jobs until these are reported, so nothing writes them.
        unsafe { self.kernel.crc32c(&self.stream, &list) }?;
        self.stream.record(done)
    }

    /// Return the digest of a launch's page: the combined sums of its segments.
    fn sum(&self, slot: usize, index: usize, ops: &[CopyOp]) -> u32 {
        let longest = ops.iter().map(|op| u64::from(op.bytes)).max().unwrap_or(0);
        let segments = (crc_segments(longest) as usize).min(self.segments_max);
        let first = self.sums_at(slot) + index * segments * size_of::<u32>();
        // SAFETY: within the slot; the kernel that wrote it has ended, its event is done.
        let word = |segment| unsafe { self.lists.as_ptr().add(first).cast::<u32>().add(segment).read_volatile() };
        (0..segments).fold(0, |sum, segment| sum ^ word(segment))
    }

    /// Wait until no launch is in flight, or until the deadline.
    pub fn settle(&self, deadline: Instant) -> Result<bool> {
        self.launches.iter().try_fold(true, |all, launch| Ok::<bool, Error>(launch.done.wait_until(deadline)? && all))
    }
}

impl Drop for Digests {
    /// Leaks lists that a kernel may still read.
    fn drop(&mut self) {
        let settled = self.settle(Instant::now() + SETTLE_MAX);
        if !Error::may_run(&settled) {
            // SAFETY: dropped once, here; no launch that reads or writes them is left.
            unsafe { ManuallyDrop::drop(&mut self.lists) };
        }
        if self.fetching.is_none() {
            // SAFETY: as above: no copy writes it.
            unsafe { ManuallyDrop::drop(&mut self.staged) };
        }
    }
}
