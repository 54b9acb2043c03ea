//! Hostile engines with the real core: any submissions in any order, translated as in the daemon, and any results of the core's
//! jobs and disk transfers. The core never panics, answers every request once, keeps its invariants, and is vacant after all
//! sessions have ended.
#![no_main]

use kvtide_fake::{Node, World};
use kvtide_fuzz::Bytes;
use kvtide_tiering::api::{Event, IoKind, Limits, Plane, PlaneKind, Policy, SessionId, SpaceConfig, Status};
use kvtide_tiering::{ActionBuf, Error};
use kvtide_wire::entry::{JobDone, Submission};
use kvtide_wire::job::{self, Ask};
use kvtide_wire::request;
use libfuzzer_sys::fuzz_target;

const SESSIONS: u16 = 2;
const TAGS: u16 = 16;
const FRAMES: [u32; 2] = [12, 6];
const CHECK_EVERY: u32 = 16;

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

/// Process one event and all actions that follow. Return whether the core ends this session.
fn event(world: &mut World, event: Event<'_>) -> bool {
    match world.event(event) {
        Err(refused @ (Error::Slab { .. } | Error::Transfer { .. })) => {
            panic!("an event of this test's daemon was rejected: {refused:?}")
        }
        refused => refused.is_err(),
    }
}

/// End a session as the daemon does. (For late jobs the daemon would, too. Here the agent may continue, and they end late.)
fn end(world: &mut World, session: SessionId) {
    if world.agents.contains_key(&session) {
        event(world, Event::SessionLost { session });
        world.agents.remove(&session);
        event(world, Event::SessionExited { session });
        assert_eq!(world.gone.pop(), Some(session), "an ended session's entry is free");
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
    let Some(tag) = (0..TAGS).find(|&tag| !world.pending.contains(&(session, tag))) else { return };
    let submission = submission(bytes);
    let list: Vec<u32> = (0..submission.list_len.min(32)).map(|_| u32::from(bytes.byte()) % 24).collect();
    if let Ok(request) = request::decode(&submission, &list, scratch) {
        let timeout_us = submission.timeout_us;
        if event(world, Event::Request { session, channel: 0, tag, timeout_us, request }) {
            end(world, session);
        }
    }
}

/// End a job that was not executed: an engine may lie.
fn end_job(world: &mut World, session: SessionId, bytes: &mut Bytes<'_>) {
    let jobs = &mut world.agents.get_mut(&session).expect("attached").jobs;
    let which = usize::from(bytes.byte());
    let (id, short) = match jobs.len() {
        0 => (u32::from(bytes.byte()), false),
        n => (jobs.remove(which % n).map_or(0, |(id, _)| id), which >= 240),
    };
    let status = if which < 200 { 0 } else { i32::from(bytes.byte() % 23) };
    let done = JobDone { id, status, bytes: u64::from(short), ..JobDone::default() };
    let broken = match job::job_done(&done, 0, Ask::Nothing) {
        Ok((status, _)) => event(world, Event::JobDone { session, job: id, status }),
        Err(_) => true,
    };
    if broken {
        end(world, session);
    }
}

fn end_transfer(world: &mut World, bytes: &mut Bytes<'_>) {
    if world.disk.flight.is_empty() {
        return;
    }
    let (how, which) = (bytes.byte(), usize::from(bytes.byte()) % world.disk.flight.len());
    let transfer = world.disk.take(which).expect("in flight");
    let status = match how % 16 {
        0 => Status::Io,
        1 if transfer.kind == IoKind::Write => Status::NoSpace,
        2 => Status::TimedOut,
        3 => Status::Canceled,
        _ => Status::Ok,
    };
    // Engines have written nothing.
    transfer.pages.iter().for_each(|&(_, place)| _ = world.host.entry(place).or_insert(1));
    world.disk.fail_next.push_back(status);
    world.disk.carry_out(&transfer, &mut world.host);
    let torn = [u32::from(how >> 4) % 3];
    let bad = if transfer.kind == IoKind::Read && how >> 4 > 12 { &torn[..] } else { &[] };
    event(world, Event::IoDone { id: transfer.id, status, bad });
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let mut scratch = request::Scratch::new();
    let mut world = World::new(config());
    (world.eager, world.checks, world.buf) = (false, false, ActionBuf::new(8, 512));
    (world.node, world.node.reuses) = (Node::new(vec![18, 12], 6), true);
    (world.disk.node_slots, world.disk.slab_slots) = (12, 4);
    let mut steps = 0;
    while !bytes.is_empty() {
        let what = bytes.byte();
        let session = SessionId::from(what & 1);
        if !world.agents.contains_key(&session) {
            world.attach(session, 2, &FRAMES);
        }
        match what >> 1 {
            0..70 => request(&mut world, session, &mut bytes, &mut scratch),
            70..108 => end_job(&mut world, session, &mut bytes),
            108..118 => end_transfer(&mut world, &mut bytes),
            118..126 => {
                world.now += 1 << (bytes.byte() % 16);
                event(&mut world, Event::Tick);
            }
            _ => end(&mut world, session),
        }
        steps += 1;
        if steps % CHECK_EVERY == 0 {
            world.core.check().expect("invariants");
        }
    }
    world.core.check().expect("invariants");
    (0..SESSIONS).for_each(|session| end(&mut world, session));
    world.core.check().expect("invariants");
});
