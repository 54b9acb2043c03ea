//! The canary's digests of pages on a device: computed there, a batch at a time, by the agent's own stream of low priority; or,
//! while a stream waits for a word of ours (`gate`), by the host, from a copy that a copy engine brings.

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

/// Pages of one launch.
const PAGES_MAX: usize = 16;
/// Launches whose sums are not read yet.
const LAUNCHES_MAX: usize = 4;
/// How long a digest that is dropped waits for its launches.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// A page whose copy has landed: the job's copy and where the page is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landed {
    pub op: CopyOp,
    pub address: u64,
}

/// A launch under way.
struct Launch {
    ops: Vec<CopyOp>,
    slot: usize,
    done: Event,
}

/// The digests of one session.
pub(super) struct Digests {
    kernel: Crc,
    stream: Stream,
    /// For each slot of a launch: its list, then its sums.
    lists: ManuallyDrop<Pinned>,
    segments_max: usize,
    slot_bytes: usize,
    waiting: VecDeque<Landed>,
    launches: VecDeque<Launch>,
    /// The page that the host is computing: where a copy engine puts it, and for which copy.
    staged: ManuallyDrop<Pinned>,
    fetching: Option<(Ticket, CopyOp)>,
    free: Vec<(usize, Event)>,
}

impl Digests {
    /// Digests of pages of at most so many bytes.
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

    /// Copies that wait for their digests.
    pub fn in_flight(&self) -> usize {
        self.waiting.len()
            + usize::from(self.fetching.is_some())
            + self.launches.iter().map(|launch| launch.ops.len()).sum::<usize>()
    }

    /// Wants a page's digest. Its frame belongs to the copy until that is reported.
    pub fn want(&mut self, landed: Landed) {
        self.waiting.push_back(landed);
    }

    /// Launches what waits and reports what has ended.
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

    /// Fetches the next page for the host to compute.
    fn fetch(
        &mut self,
        copier: &mut Copier,
        ended: &mut dyn FnMut(&CopyOp, std::result::Result<u32, ()>),
    ) -> Result<()> {
        if self.fetching.is_some() {
            return Ok(());
        }
        let Some(landed) = self.waiting.front().copied() else { return Ok(()) };
        let copy = Copy { from: landed.address, to: self.staged.address(), bytes: landed.op.bytes as usize };
        // SAFETY: the page's frame belongs to its job until that is reported; the staged page is written by one copy at a time.
        let submitted = unsafe { copier.submit_by_engines(Way::Down, &[copy]) };
        match submitted {
            Ok(ticket) => self.fetching = Some((ticket, landed.op)),
            Err(Error::Busy { .. }) => return Ok(()), // later
            Err(error) if error.is_lost() => return Err(error),
            Err(_) => ended(&landed.op, Err(())),
        }
        self.waiting.pop_front();
        Ok(())
    }

    /// Computes the digest of a page that has been fetched.
    fn fetched(
        &mut self,
        copier: &mut Copier,
        ended: &mut dyn FnMut(&CopyOp, std::result::Result<u32, ()>),
    ) -> Result<()> {
        let Some((ticket, op)) = self.fetching else { return Ok(()) };
        let digest = match copier.poll(ticket) {
            Ok(false) => return Ok(()),
            Ok(true) => {
                // SAFETY: the copy into it has ended and there is no other; it is as long as the longest page.
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

    /// Launches kernels for what waits.
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

    /// Reads the sums of launches that have ended.
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
        // SAFETY: list and sums stay until the event behind the launch is done; the pages' copies have landed, and their frames
        // belong to their jobs until these are reported, so nobody writes them.
        unsafe { self.kernel.crc32c(&self.stream, &list) }?;
        self.stream.record(done)
    }

    /// The digest of a launch's page: its segments' sums, combined.
    fn sum(&self, slot: usize, index: usize, ops: &[CopyOp]) -> u32 {
        let longest = ops.iter().map(|op| u64::from(op.bytes)).max().unwrap_or(0);
        let segments = (crc_segments(longest) as usize).min(self.segments_max);
        let first = self.sums_at(slot) + index * segments * size_of::<u32>();
        // SAFETY: within the slot; the kernel that wrote it has ended, its event is done.
        let word = |segment| unsafe { self.lists.as_ptr().add(first).cast::<u32>().add(segment).read_volatile() };
        (0..segments).fold(0, |sum, segment| sum ^ word(segment))
    }

    /// Waits until nothing is under way, or the deadline.
    pub fn settle(&self, deadline: Instant) -> Result<bool> {
        self.launches.iter().try_fold(true, |all, launch| Ok::<bool, Error>(launch.done.wait_until(deadline)? && all))
    }
}

impl Drop for Digests {
    /// Lists that a kernel may still read stay for ever.
    fn drop(&mut self) {
        let settled = self.settle(Instant::now() + SETTLE_MAX);
        if !matches!(settled, Ok(false)) {
            // SAFETY: dropped once, here; no launch that reads or writes them is left.
            unsafe { ManuallyDrop::drop(&mut self.lists) };
        }
        if self.fetching.is_none() {
            // SAFETY: as above: no copy writes it.
            unsafe { ManuallyDrop::drop(&mut self.staged) };
        }
    }
}
