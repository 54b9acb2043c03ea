//! Hostile engines with the real core: any submissions in any order, translated as in the daemon, and any results of the core's
//! jobs and disk transfers. The core never panics, answers every request once, keeps its invariants, and is vacant after all
//! sessions have ended.
#![no_main]

use kvtide_fuzz::Bytes;
use kvtide_tiering::api::{
    Action, Event, IoKind, Job, Limits, Plane, PlaneKind, Policy, SessionId, SpaceConfig, Status,
};
use kvtide_tiering::{ActionBuf, Core, Error};
use kvtide_wire::entry::{JobDone, Submission};
use kvtide_wire::job::{self, Ask};
use kvtide_wire::request;
use libfuzzer_sys::fuzz_target;
use std::collections::VecDeque;

const SESSIONS: u16 = 2;
const TAGS: u16 = 16;
const FRAMES: [u32; 2] = [12, 6];
const CHECK_EVERY: u32 = 16;
const DISK_SLABS: usize = 3;
const DISK_SLOTS: u32 = 4;

fn config() -> SpaceConfig {
    let plane = |page_bytes, kind| Plane { page_bytes, kind };
    SpaceConfig {
        page_tokens: 4,
        planes: vec![
            plane(1000, PlaneKind::Full),
            plane(64, PlaneKind::Window { tokens: 8 }),
            plane(1000, PlaneKind::State),
        ],
        shards: 1,
        limits: Limits {
            sessions_max: SESSIONS,
            blocks_max: 24,
            seqs_max: 4,
            seq_blocks_max: 16,
            lanes_max: 2,
            jobs_max: 8,
            requests_max: u32::from(TAGS),
            host_bytes_max: 24 << 10,
            nvme_bytes_max: 64 << 10,
            ios_max: 8,
            entries_max: 24,
            log_requests_max: 16,
        },
        policy: Policy::plain(),
    }
}

#[derive(Default)]
struct Engine {
    attached: bool,
    jobs: VecDeque<(u32, Job)>,
    /// Tags of requests in flight.
    pending: [bool; TAGS as usize],
}

struct World {
    core: Core,
    buf: ActionBuf,
    now: u64,
    engines: [Engine; SESSIONS as usize],
    slabs: Vec<bool>,
    disk_slabs: [bool; DISK_SLABS],
    /// Transfers in flight, and their directions.
    transfers: Vec<(u32, IoKind)>,
}

impl World {
    /// Process one event and all actions that follow. Return whether the core ends this session.
    fn event(&mut self, event: Event<'_>) -> bool {
        let refused = self.core.handle(self.now, event, &mut self.buf).err();
        self.take();
        match refused {
            Some(Error::Slab { .. } | Error::Transfer { .. }) => {
                panic!("an event of this test's daemon was rejected: {refused:?}")
            }
            Some(_) => true,
            None => false,
        }
    }

    fn take(&mut self) {
        loop {
            let actions = self.buf.actions().to_vec();
            self.buf.clear();
            for action in &actions {
                self.act(action);
            }
            if self.buf.is_empty() && !self.core.has_output() {
                return;
            }
            if self.buf.is_empty() {
                self.core.poll(self.now, &mut self.buf);
            }
        }
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Job { session, id, job } => {
                let jobs = &mut self.engines[usize::from(session)].jobs;
                assert!(jobs.iter().all(|(other, _)| *other != id), "job ids are unique in flight");
                jobs.push_back((id, job));
            }
            Action::Complete { session, tag, .. } => {
                let pending = &mut self.engines[usize::from(session)].pending[usize::from(tag)];
                assert!(std::mem::replace(pending, false), "tag {tag} was answered twice");
            }
            Action::NeedSlab { class } => {
                let free = self.slabs.iter().position(|live| !live);
                let event = match free {
                    Some(slab) => {
                        self.slabs[slab] = true;
                        Event::SlabGranted { class, slab: slab as u32, frames: 6 }
                    }
                    None => Event::SlabRefused { class },
                };
                let granted = self.core.handle(self.now, event, &mut self.buf);
                granted.expect("it was asked for");
            }
            Action::ReturnSlab { slab } => {
                assert!(std::mem::replace(&mut self.slabs[slab as usize], false), "slab {slab} was returned twice");
            }
            Action::NeedDisk { .. } => {
                let event = match self.disk_slabs.iter().position(|live| !live) {
                    Some(slab) => {
                        self.disk_slabs[slab] = true;
                        Event::DiskGranted { slab: slab as u32, slots: DISK_SLOTS, disk: 0, generation: 0 }
                    }
                    None => Event::DiskRefused,
                };
                self.core.handle(self.now, event, &mut self.buf).expect("it was asked for");
            }
            Action::ReturnDisk { slab } => {
                assert!(
                    std::mem::replace(&mut self.disk_slabs[slab as usize], false),
                    "slab {slab} was returned twice"
                );
            }
            Action::Io { id, kind, at, .. } => {
                assert!(self.transfers.iter().all(|t| t.0 != id), "transfer ids are unique in flight");
                assert!(self.disk_slabs[at.slab as usize] && at.slot < DISK_SLOTS, "the slot was granted");
                self.transfers.push((id, kind));
            }
            Action::Record { id, .. } | Action::Erase { id, .. } | Action::Flush { id } => {
                let done = Event::LogDone { id, status: Status::Ok };
                self.core.handle(self.now, done, &mut self.buf).expect("it is in flight");
            }
            Action::Urge { id, .. } => {
                assert!(self.transfers.iter().any(|t| t.0 == id), "an urgent transfer is in flight")
            }
            // The daemon would end the session. Here its agent may continue, and its jobs end late.
            Action::EndSession { .. } => {}
            Action::SessionGone { session } => self.engines[usize::from(session)].attached = false,
        }
    }

    fn attach(&mut self, session: SessionId) {
        let engine = &mut self.engines[usize::from(session)];
        if !engine.attached {
            *engine = Engine { attached: true, ..Engine::default() };
            let event = Event::Attach { session, shard: 0, lanes: 2, frames: &FRAMES };
            assert!(!self.event(event), "an attach that fits");
        }
    }

    /// End a session as the daemon does.
    fn end(&mut self, session: SessionId) {
        if self.engines[usize::from(session)].attached {
            self.engines[usize::from(session)] = Engine { attached: true, ..Engine::default() };
            self.event(Event::SessionLost { session });
            self.event(Event::SessionExited { session });
            assert!(!self.engines[usize::from(session)].attached, "an ended session's entry is free");
        }
    }
}

/// Read a submission with small numbers, so that they often refer to existing objects.
fn submission(bytes: &mut Bytes<'_>) -> Submission {
    let mut small = |most: u32| match bytes.byte() {
        255 => u32::MAX,
        byte => u32::from(byte) % most,
    };
    Submission {
        op: small(22) as u16,
        lane: small(3) as u16,
        flags: small(6) as u16,
        seq: small(5),
        block: small(25),
        first: small(18),
        count: small(9),
        list_len: small(17),
        value: u64::from(small(70)),
        timeout_us: u64::from(small(200)),
        hash: [u64::from(small(3)), 0],
        ..Submission::default()
    }
}

fn request(world: &mut World, session: SessionId, bytes: &mut Bytes<'_>, scratch: &mut request::Scratch) {
    let engine = &mut world.engines[usize::from(session)];
    let Some(tag) = (0..TAGS).find(|tag| !engine.pending[usize::from(*tag)]) else { return };
    let submission = submission(bytes);
    let list: Vec<u32> = (0..submission.list_len.min(32)).map(|_| u32::from(bytes.byte()) % 24).collect();
    if let Ok(request) = request::decode(&submission, &list, scratch) {
        engine.pending[usize::from(tag)] = true;
        let timeout_us = submission.timeout_us;
        if world.event(Event::Request { session, channel: 0, tag, timeout_us, request }) {
            world.end(session);
        }
    }
}

fn end_job(world: &mut World, session: SessionId, bytes: &mut Bytes<'_>) {
    let jobs = &mut world.engines[usize::from(session)].jobs;
    let which = usize::from(bytes.byte());
    let (id, short) = match jobs.len() {
        0 => (u32::from(bytes.byte()), false),
        n => (jobs.remove(which % n).map_or(0, |(id, _)| id), which >= 240),
    };
    let status = if which < 200 { 0 } else { i32::from(bytes.byte() % 23) };
    let done = JobDone { id, status, bytes: u64::from(short), ..JobDone::default() };
    let broken = match job::job_done(&done, 0, Ask::Nothing) {
        Ok((status, _)) => world.event(Event::JobDone { session, job: id, status }),
        Err(_) => true,
    };
    if broken {
        world.end(session);
    }
}

fn end_transfer(world: &mut World, bytes: &mut Bytes<'_>) {
    if world.transfers.is_empty() {
        return;
    }
    let (how, which) = (bytes.byte(), usize::from(bytes.byte()) % world.transfers.len());
    let (id, kind) = world.transfers.remove(which);
    let status = match how % 16 {
        0 => Status::Io,
        1 if kind == IoKind::Write => Status::NoSpace,
        2 => Status::TimedOut,
        3 => Status::Canceled,
        _ => Status::Ok,
    };
    let torn = [u32::from(how >> 4) % 3];
    let bad = if kind == IoKind::Read && how >> 4 > 12 { &torn[..] } else { &[] };
    world.event(Event::IoDone { id, status, bad });
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let mut scratch = request::Scratch::new();
    let core = Core::new(config()).expect("a valid configuration");
    let slabs = vec![false; 5];
    let mut world = World {
        core,
        buf: ActionBuf::new(8, 512),
        now: 1,
        engines: Default::default(),
        slabs,
        disk_slabs: [false; DISK_SLABS],
        transfers: Vec::new(),
    };
    let mut steps = 0;
    while !bytes.is_empty() {
        let what = bytes.byte();
        let session = SessionId::from(what & 1);
        world.attach(session);
        match what >> 1 {
            0..70 => request(&mut world, session, &mut bytes, &mut scratch),
            70..108 => end_job(&mut world, session, &mut bytes),
            108..118 => end_transfer(&mut world, &mut bytes),
            118..126 => {
                world.now += 1 << (bytes.byte() % 16);
                world.event(Event::Tick);
            }
            _ => world.end(session),
        }
        steps += 1;
        if steps % CHECK_EVERY == 0 {
            world.core.check().expect("invariants");
        }
    }
    world.core.check().expect("invariants");
    (0..SESSIONS).for_each(|session| world.end(session));
    world.core.check().expect("invariants");
});
