//! Hostile scores with the real core: any words in a lane's slots, read as in the daemon. The core's sequences need more frames
//! than tier 0 has. The core never panics, keeps its invariants, sends no invalid action, and is vacant in the end.
#![no_main]

use kvtide_fuzz::Bytes;
use kvtide_tiering::api::*;
use kvtide_tiering::{ActionBuf, Core};
use kvtide_wire::half::F16;
use kvtide_wire::score::{ScoreReader, ScoreSlot, ScoreWriter, Scores, Top};
use kvtide_wire::score_areas::{Joined, SCORES_TURN, ScoreAreas};
use kvtide_wire::sync::Ordering;
use libfuzzer_sys::fuzz_target;
use std::collections::VecDeque;
use std::sync::Arc;

const SLOTS: usize = 4;
const FRAMES: u32 = 24;
const BLOCKS: u32 = 12;
const SEQS: u32 = 2;
const PLANES: u16 = 3;
const CHECK_EVERY: u32 = 16;

fn config() -> SpaceConfig {
    let plane = |kind| Plane { page_bytes: 512, kind };
    SpaceConfig {
        page_tokens: 1,
        planes: vec![plane(PlaneKind::Full), plane(PlaneKind::Window { tokens: 3 }), plane(PlaneKind::Full)],
        shards: 1,
        limits: Limits {
            sessions_max: 1,
            blocks_max: 2 * BLOCKS * SEQS,
            seqs_max: SEQS,
            seq_blocks_max: BLOCKS,
            lanes_max: 1,
            jobs_max: 16,
            requests_max: 16,
            host_bytes_max: 1 << 20,
            nvme_bytes_max: 0,
            ios_max: 4,
            entries_max: 64,
            log_requests_max: 4,
        },
        policy: Policy { eviction: Eviction::Auto, ..Policy::plain() },
    }
}

/// A core, with the agent and the host memory that answer it.
struct World {
    core: Core,
    buf: ActionBuf,
    now: u64,
    jobs: VecDeque<u32>,
    slabs: u32,
    tag: u16,
    blocks: u32,
}

impl World {
    fn new(config: SpaceConfig) -> World {
        let core = Core::new(config).expect("a valid configuration");
        let buf = ActionBuf::new(16, 512);
        let mut world = World { core, buf, now: 1, jobs: VecDeque::new(), slabs: 0, tag: 0, blocks: 0 };
        world.event(Event::Attach { session: 0, shard: 0, lanes: 1, frames: &[FRAMES] });
        for seq in 0..SEQS {
            world.ask(Request::SeqCreate { seq });
            for done in 1..=BLOCKS {
                // One block at a time, while blocks fit.
                world.ask(Request::Reserve { seq, count: 1 });
                world.end_jobs(usize::MAX);
                world.ask(Request::Commit { seq, tokens: done.into() });
                world.end_jobs(usize::MAX);
            }
            world.ask(Request::Contract { seq, contract: Contract::Approx { permille: 300 } });
        }
        assert!(world.blocks > BLOCKS, "{} blocks: too few to exceed tier 0", world.blocks);
        world
    }

    fn event(&mut self, event: Event<'_>) {
        self.core.handle(self.now, event, &mut self.buf).expect("scores do not end the session");
        loop {
            let actions = self.buf.actions().to_vec();
            self.buf.clear();
            for action in &actions {
                self.act(action);
            }
            if self.buf.is_empty() {
                if !self.core.has_output() {
                    return;
                }
                self.core.poll(self.now, &mut self.buf);
            }
        }
    }

    fn act(&mut self, action: &Action) {
        match *action {
            Action::Job { id, .. } => {
                assert!(!self.jobs.contains(&id), "job ids are unique in flight");
                self.jobs.push_back(id);
            }
            Action::NeedSlab { class } => {
                let event = Event::SlabGranted { class, slab: self.slabs, frames: 8 };
                self.slabs += 1;
                self.core.handle(self.now, event, &mut self.buf).expect("it was asked for");
            }
            Action::Complete { status: Status::Ok, list, .. } => self.blocks += list.1,
            _ => {}
        }
    }

    fn ask(&mut self, request: Request<'_>) {
        self.tag = (self.tag + 1) % 1024;
        self.event(Event::Request { session: 0, channel: 0, tag: self.tag, timeout_us: 0, request });
    }

    /// End `count` jobs successfully.
    fn end_jobs(&mut self, count: usize) {
        for _ in 0..count {
            let Some(job) = self.jobs.pop_front() else { return };
            self.event(Event::JobDone { session: 0, job, status: Status::Ok });
        }
    }
}

/// Return a small number, so that it often refers to an existing object.
fn small(bytes: &mut Bytes<'_>, most: u32) -> u32 {
    match bytes.byte() {
        255 => bytes.word(),
        byte => u32::from(byte) % most,
    }
}

fn scores(bytes: &mut Bytes<'_>, step: u64) -> Option<Scores> {
    let kind = ScoreKind::ALL[usize::from(bytes.byte()) % ScoreKind::ALL.len()];
    let (seq, plane) = (small(bytes, SEQS + 1), small(bytes, u32::from(PLANES) + 1) as u16);
    let share = |bytes: &mut Bytes<'_>| F16(u16::from_le_bytes(bytes.array()));
    let count = bytes.byte() % 8;
    let top: Vec<Top> = (0..count).map(|_| Top { index: small(bytes, BLOCKS + 1), log_mass: share(bytes) }).collect();
    Scores::new(kind, seq, plane, step, &top, share(bytes))
}

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = Bytes(bytes);
    let mut world = World::new(config());
    let slots: Arc<[ScoreSlot]> = (0..SLOTS).map(|_| ScoreSlot::new()).collect();
    let mut writer = ScoreWriter::new(slots.clone());
    let mut areas = ScoreAreas::new(vec![ScoreReader::new(slots.clone())]);
    let (mut step, mut rounds) = (0_u64, 0);
    while !bytes.is_empty() {
        match bytes.byte() % 16 {
            0..9 => {
                if let Some(scores) = scores(&mut bytes, step) {
                    writer.write(&scores);
                }
            }
            9 => step = step.wrapping_add((bytes.byte() % 3).into()), // a hostile engine counts on past the end
            10 => step = u64::from_le_bytes(bytes.array()),
            11 => {
                let slot = &slots[usize::from(bytes.byte()) % SLOTS];
                slot.version.store(u64::from_le_bytes(bytes.array()), Ordering::Relaxed);
            }
            12 => {
                let slot = &slots[usize::from(bytes.byte()) % SLOTS];
                slot.words[usize::from(bytes.byte()) % 8].store(u64::from_le_bytes(bytes.array()), Ordering::Relaxed);
            }
            13 => world.end_jobs(usize::from(bytes.byte() % 8)),
            14 => {
                world.now += 1 << (bytes.byte() % 12);
                world.event(Event::Tick);
            }
            _ => {
                let seq = u32::from(bytes.byte()) % SEQS;
                let contract = match bytes.byte() % 3 {
                    0 => Contract::Exact,
                    permille => Contract::Approx { permille: u16::from(permille) * 200 },
                };
                world.ask(Request::Contract { seq, contract });
            }
        }
        for _ in 0..SCORES_TURN {
            let Some(Joined { seq, plane, step, kind, rest }) = areas.next(0) else { break };
            let top = areas.top().to_vec();
            world.event(Event::Scores { session: 0, seq, plane, step, kind, rest, top: &top });
        }
        rounds += 1;
        if rounds % CHECK_EVERY == 0 {
            world.core.check().expect("invariants");
        }
    }
    world.core.check().expect("invariants");
    assert_eq!(world.core.counters().pages_lost, 0, "scores lose no page");
    world.event(Event::SessionLost { session: 0 });
    world.event(Event::SessionExited { session: 0 });
    world.core.check().expect("invariants");
    let left = world.core.occupancy();
    assert_eq!((left.blocks, left.sessions), (0, 0));
});
