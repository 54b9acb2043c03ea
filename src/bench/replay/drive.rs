//! The shipped core with an engine of one session and devices that end everything at once: each request of a trace maps what is
//! cached of its prefix, reads it into tier 0, computes the rest, publishes it, and goes.

use super::super::BenchError;
use super::trace;
use kvtide_tiering::api::{
    Action, Admission, Event, Eviction, Level, Limits, Plane, PlaneKind, Policy, Request, SpaceConfig, Status,
};
use kvtide_tiering::{ActionBuf, Core};
use std::collections::VecDeque;

/// Bytes of a block: one page of one plane. Only shares are told, so any size would do.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Tokens of a block of the trace.
const PAGE_TOKENS: u32 = 512;
/// Blocks that the engine computes at once.
const CHUNK: usize = 64;
/// Blocks that tier 0 holds: what one request computes at once, and little more.
const TIER0: u32 = CHUNK as u32 + 16;
/// Blocks of one grant of NVMe space.
const SLAB_SLOTS: u32 = 1 << 10;

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    /// Blocks that host memory holds.
    pub(super) host: u32,
    /// Blocks that NVMe holds.
    pub(super) nvme: u32,
    /// Blocks of the longest request.
    pub(super) longest: u32,
    pub(super) admission: Admission,
    /// Bytes that may be written in a day; 0: no bound.
    pub(super) bytes_per_day: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Blocks that requests asked for.
    pub(super) asked: u64,
    /// Of them, found behind a prefix that was found whole.
    pub(super) found: u64,
    /// Blocks written to NVMe.
    pub(super) written: u64,
    /// Blocks found that were on NVMe alone.
    pub(super) nvme_hits: u64,
}

struct Drive {
    core: Core,
    buf: ActionBuf,
    now_us: u64,
    ended: VecDeque<Ended>,
    answer: Option<(Status, u64)>,
    slabs: (u32, u32),
    slots_left: u32,
    host: u32,
    steps: u64,
}

/// What a device has done and the core is to be told.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Job(u32),
    Io(u32),
    Note(u32),
    Host(u8),
    Disk,
}

fn config(setup: Setup) -> SpaceConfig {
    let blocks_max = setup.host + TIER0 + 2 * setup.longest + 64;
    SpaceConfig {
        page_tokens: PAGE_TOKENS,
        planes: vec![Plane { page_bytes: BLOCK_BYTES as u32, kind: PlaneKind::Full }],
        shards: 1,
        limits: Limits {
            sessions_max: 1,
            blocks_max,
            seqs_max: 1,
            seq_blocks_max: setup.longest + 1,
            lanes_max: 1,
            jobs_max: 64,
            requests_max: 4,
            host_bytes_max: u64::from(setup.host) * BLOCK_BYTES,
            nvme_bytes_max: u64::from(setup.nvme) * BLOCK_BYTES,
            ios_max: 64,
            contents_max: blocks_max + setup.nvme,
            notes_max: 64,
        },
        policy: Policy {
            clean_low_percent: 100,
            clean_high_percent: 100,
            host_high_percent: 100,
            host_low_percent: 100,
            host_clean_low_percent: 10,
            host_clean_high_percent: 20,
            host_scan_frames: 8,
            nvme_high_percent: 100,
            nvme_low_percent: 100,
            nvme_admission: setup.admission,
            nvme_bytes_per_day: setup.bytes_per_day,
            eviction: Eviction::Lru,
            scan_frames: 8,
            request_timeout_us: u64::MAX / 2,
        },
    }
}

/// Replays a trace.
pub(super) fn replay(trace: &[trace::Request], setup: Setup) -> Result<Outcome, BenchError> {
    let mut drive = Drive {
        core: Core::new(config(setup))?,
        buf: ActionBuf::new(256, 1 << 14),
        now_us: 0,
        ended: VecDeque::new(),
        answer: None,
        slabs: (0, 0),
        slots_left: setup.nvme,
        host: setup.host,
        steps: 0,
    };
    drive.event(Event::Attach { session: 0, shard: 0, lanes: 1, frames: &[TIER0] })?;
    let mut outcome = Outcome::default();
    let mut hashes = Vec::new();
    for request in trace {
        // Times are those of the trace; the core's begins at some time of its own.
        drive.now_us = drive.now_us.max(1_000_000 + request.timestamp * 1000);
        drive.event(Event::Tick)?;
        hashes.clear();
        hashes.extend(request.hash_ids.iter().map(|&id| hash_of(id)));
        outcome.asked += hashes.len() as u64;
        outcome.found += drive.request(&hashes)?;
    }
    let counters = drive.core.counters();
    outcome.written = counters.host_to_nvme.total_pages();
    outcome.nvme_hits = counters.nvme_hits;
    Ok(outcome)
}

/// A hash for a block of the trace; 0 would be none.
fn hash_of(id: u64) -> u128 {
    let mix = |x: u64| (x ^ x >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    u128::from(mix(id + 1)) << 64 | u128::from(id + 1)
}

impl Drive {
    /// One request of the engine; returns how many of its blocks were cached.
    fn request(&mut self, hashes: &[u128]) -> Result<u64, BenchError> {
        let seq = 0;
        self.ask(Request::SeqCreate { seq })?;
        let mut found = 0;
        // A request of the client names so many hashes at most.
        for chunk in hashes.chunks(CHUNK) {
            let more = self.ask(Request::Map { seq, hashes: chunk })?;
            found += more as usize;
            if more < chunk.len() as u64 {
                break;
            }
        }
        for first in (0..found).step_by(CHUNK) {
            let (first, count) = (first as u32, CHUNK.min(found - first) as u32);
            self.ask(Request::Acquire { seq, plane: 0, planes: 1, first, count })?;
            self.ask(Request::Release { seq, plane: 0, planes: 1, first, count })?;
        }
        let mut done = found;
        while done < hashes.len() {
            let count = CHUNK.min(hashes.len() - done);
            self.ask(Request::Reserve { seq: Some(seq), count: count as u32 })?;
            self.ask(Request::Commit { seq, tokens: (done + count) as u64 * u64::from(PAGE_TOKENS) })?;
            let parent = if done == 0 { 0 } else { hashes[done - 1] };
            let hashes = &hashes[done..done + count];
            self.ask(Request::Publish { seq, first: done as u32, parent, hashes, level: Level::Published })?;
            done += count;
        }
        // One step of decode: time moves on for what is in memory.
        self.steps += 1;
        let (lane, step) = (0, self.steps);
        self.ask(Request::Step { lane, step, seqs: &[seq] })?;
        self.ask(Request::StepEnd { lane, step })?;
        self.ask(Request::SeqDrop { seq })?;
        Ok(found as u64)
    }

    fn ask(&mut self, request: Request<'_>) -> Result<u64, BenchError> {
        self.answer = None;
        self.event(Event::Request { session: 0, channel: 0, tag: 0, timeout_us: 0, request })?;
        // What waits for time to pass (a retry, an erasure) gets it.
        while self.answer.is_none() {
            let Some(at) = self.core.next_deadline() else { break };
            self.now_us = self.now_us.max(at);
            self.event(Event::Tick)?;
        }
        match self.answer {
            Some((Status::Ok, value)) => Ok(value),
            // Nothing of it is cached, or none of it fits.
            Some(_) if matches!(request, Request::Map { .. }) => Ok(0),
            // A block that is not findable is computed again by the next request.
            Some((Status::NotAdmitted, _)) => Ok(0),
            other => Err(BenchError::Odd(format!("the core answers {other:?} to {request:?}"))),
        }
    }

    /// Tells the core, and does what it wants until it wants nothing more.
    fn event(&mut self, event: Event<'_>) -> Result<(), BenchError> {
        self.core.handle(self.now_us, event, &mut self.buf)?;
        loop {
            self.take();
            let Some(ended) = self.ended.pop_front() else {
                if !self.core.has_output() {
                    return Ok(());
                }
                self.core.poll(self.now_us, &mut self.buf);
                continue;
            };
            let event = match ended {
                Ended::Job(job) => Event::JobDone { session: 0, job, status: Status::Ok },
                Ended::Io(id) => Event::IoDone { id, status: Status::Ok, bad: &[] },
                Ended::Note(id) => Event::LogDone { id, status: Status::Ok },
                Ended::Host(class) => self.grant_host(class),
                Ended::Disk => self.grant_disk(),
            };
            self.core.handle(self.now_us, event, &mut self.buf)?;
        }
    }

    fn take(&mut self) {
        for &action in self.buf.actions() {
            match action {
                Action::Job { id, .. } => self.ended.push_back(Ended::Job(id)),
                Action::Io { id, .. } => self.ended.push_back(Ended::Io(id)),
                Action::Record { id, .. } | Action::Erase { id, .. } | Action::Flush { id } => {
                    self.ended.push_back(Ended::Note(id));
                }
                Action::NeedSlab { class } => self.ended.push_back(Ended::Host(class)),
                Action::NeedDisk { .. } => self.ended.push_back(Ended::Disk),
                Action::Complete { status, value, .. } => self.answer = Some((status, value)),
                Action::Urge { .. } | Action::ReturnSlab { .. } | Action::SessionGone { .. } => {}
                // Its slots are not granted again: one that is wholly free while others are wanted is rare in a full tier.
                Action::ReturnDisk { .. } => {}
            }
        }
        self.buf.clear();
    }

    /// All of host memory at once.
    fn grant_host(&mut self, class: u8) -> Event<'static> {
        let frames = std::mem::take(&mut self.host);
        match frames {
            0 => Event::SlabRefused { class },
            _ => Event::SlabGranted { class, slab: 0, frames },
        }
    }

    fn grant_disk(&mut self) -> Event<'static> {
        let slots = self.slots_left.min(SLAB_SLOTS);
        self.slots_left -= slots;
        self.slabs.1 += 1;
        match slots {
            0 => Event::DiskRefused,
            _ => Event::DiskGranted { slab: self.slabs.1 - 1, slots, disk: 0, generation: 0 },
        }
    }
}
