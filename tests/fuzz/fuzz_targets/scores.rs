//! Hostile scores with the real core: any words in a lane's slots, read as in the daemon. The core's sequences need more frames
//! than tier 0 has. The core never panics, keeps its invariants, sends no invalid action, and is vacant in the end.
#![no_main]

use kvtide_fake::{World, config};
use kvtide_fuzz::Bytes;
use kvtide_tiering::api::*;
use kvtide_wire::half::F16;
use kvtide_wire::score::{ScoreReader, ScoreSlot, ScoreWriter, Scores, Top};
use kvtide_wire::score_areas::{Joined, SCORES_TURN, ScoreAreas};
use kvtide_wire::sync::Ordering;
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

const SLOTS: usize = 4;
const FRAMES: u32 = 24;
const BLOCKS: u32 = 12;
const SEQS: u32 = 2;
const PLANES: u16 = 3;
const CHECK_EVERY: u32 = 16;

fn world() -> World {
    let plane = |kind| Plane { page_bytes: 512, kind };
    let planes = vec![plane(PlaneKind::Full), plane(PlaneKind::Window { tokens: 3 }), plane(PlaneKind::Full)];
    let mut config = SpaceConfig { page_tokens: 1, ..config(planes) };
    config.limits = Limits {
        blocks_max: 2 * BLOCKS * SEQS,
        seqs_max: SEQS,
        seq_blocks_max: BLOCKS,
        host_bytes_max: 1 << 20,
        ..config.limits
    };
    config.policy = Policy { eviction: Eviction::Auto, ..Policy::plain() };
    let mut world = World::new(config);
    (world.eager, world.checks, world.node.slab_frames) = (false, false, 8);
    world.attach(0, 1, &[FRAMES]);
    let mut blocks = 0;
    for seq in 0..SEQS {
        world.ask(0, Request::SeqCreate { seq });
        for tokens in 1..=u64::from(BLOCKS) {
            // One block at a time, while blocks fit.
            let tag = world.ask(0, Request::Reserve { seq, count: 1 });
            end_jobs(&mut world, usize::MAX);
            blocks += world.answer(0, tag).map_or(0, |done| done.list.len());
            world.ask(0, Request::Commit { seq, tokens });
            end_jobs(&mut world, usize::MAX);
        }
        world.ask(0, Request::Contract { seq, contract: Contract::Approx { permille: 300 } });
    }
    assert!(blocks > BLOCKS as usize, "{blocks} blocks: too few to exceed tier 0");
    world
}

/// End `count` jobs successfully.
fn end_jobs(world: &mut World, count: usize) {
    (0..count).take_while(|_| world.run_job(0)).count();
    world.settle();
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
    let mut world = world();
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
            13 => end_jobs(&mut world, usize::from(bytes.byte() % 8)),
            14 => {
                world.now += 1 << (bytes.byte() % 12);
                world.event(Event::Tick).expect("time passes");
            }
            _ => {
                let seq = u32::from(bytes.byte()) % SEQS;
                let contract = match bytes.byte() % 3 {
                    0 => Contract::Exact,
                    permille => Contract::Approx { permille: u16::from(permille) * 200 },
                };
                world.ask(0, Request::Contract { seq, contract });
            }
        }
        for _ in 0..SCORES_TURN {
            let Some(Joined { seq, plane, step, kind, rest }) = areas.next(0) else { break };
            let top = areas.top().to_vec();
            let scores = Event::Scores { session: 0, seq, plane, step, kind, rest, top: &top };
            world.event(scores).expect("scores do not end the session");
        }
        rounds += 1;
        if rounds % CHECK_EVERY == 0 {
            world.core.check().expect("invariants");
        }
    }
    world.core.check().expect("invariants");
    assert_eq!(world.core.counters().pages_lost, 0, "scores lose no page");
    world.event(Event::SessionLost { session: 0 }).expect("it is attached");
    world.event(Event::SessionExited { session: 0 }).expect("it is lost");
    world.core.check().expect("invariants");
    let left = world.core.occupancy();
    assert_eq!((left.blocks, left.sessions), (0, 0));
});
