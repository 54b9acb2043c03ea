//! Updates in order, block tables, miss bits, and boundaries that the host completes later.

use crate::rig::{POISON, Rig, Rng};
use kvtide_kernels::launch::Boundary;
use kvtide_kernels::params::{
    BAD_UPDATE, BoundaryApplyParams, BoundaryGateParams, BoundaryTablesParams, BoundaryUpdate, BoundaryWords,
    GateOpenParams, GateState, GateWords,
};
use kvtide_kernels::reference::boundary as reference;
use kvtide_kernels::{Buffer, Pinned, WaitWord};
use std::sync::atomic::{AtomicU64, Ordering};

const RING: usize = 1024;

/// Return a ring that holds `updates` from the free-running index `first`.
fn ring(rig: &Rig, updates: &[BoundaryUpdate], first: u32) -> Pinned {
    let mut slots = vec![BoundaryUpdate { page: 0, entry: 0xdead }; RING];
    for (i, update) in updates.iter().enumerate() {
        slots[first.wrapping_add(i as u32) as usize % RING] = *update;
    }
    rig.pinned(&slots)
}

fn updates(random: &mut Rng, count: usize, pages: usize) -> Vec<BoundaryUpdate> {
    // Few pages, so that most are updated more than once.
    let few = random.within(1..pages.min(60));
    (0..count).map(|_| BoundaryUpdate { page: random.within(0..few) as u32, entry: random.next() as u32 }).collect()
}

#[test]
fn the_last_update_of_a_page_wins() {
    let (rig, mut random) = (Rig::new(), Rng::seeded());
    let boundary = Boundary::new(&rig.device).expect("kernels load");
    for count in [1, 2, 255, 256, 257, 700, RING] {
        let mut table: Vec<u32> = (0..300).map(|_| random.next() as u32).collect();
        let list = updates(&mut random, count, table.len());
        let first = u32::MAX - random.within(0..400) as u32;
        let (on_device, slots) = (rig.upload(&table), ring(&rig, &list, first));
        let params = BoundaryApplyParams {
            table: on_device.address(),
            updates: slots.address(),
            first,
            count: count as u32,
            mask: RING as u32 - 1,
            pages: table.len() as u32,
            ..Default::default()
        };
        // SAFETY: all memory lives until `finish` has returned.
        unsafe { boundary.apply(&rig.stream, &params) }.expect("launched");
        rig.finish();
        assert!(reference::apply(&mut table, &list));
        assert_eq!(rig.download::<u32>(&on_device, table.len()), table, "{count} updates");
    }
}

#[test]
fn an_update_beyond_the_table_is_reported_and_not_applied() {
    let (rig, mut random) = (Rig::new(), Rng::seeded());
    let boundary = Boundary::new(&rig.device).expect("kernels load");
    let mut list = updates(&mut random, 40, 100);
    list[17].page = 100;
    list[23].page = u32::MAX;
    let mut table = vec![7u32; 100];
    // More memory than the table has entries: the rest must not change.
    let (on_device, slots, status) = (rig.upload(&[7u32; 140]), ring(&rig, &list, 0), rig.upload(&[0u32]));
    let params = BoundaryApplyParams {
        table: on_device.address(),
        updates: slots.address(),
        status: status.address(),
        count: 40,
        mask: RING as u32 - 1,
        pages: 100,
        ..Default::default()
    };
    // SAFETY: all memory lives until `finish` has returned.
    unsafe { boundary.apply(&rig.stream, &params) }.expect("launched");
    rig.finish();
    assert!(!reference::apply(&mut table, &list));
    table.resize(140, 7);
    assert_eq!(rig.download::<u32>(&on_device, 140), table);
    assert_eq!(rig.download::<u32>(&status, 1), [BAD_UPDATE]);
}

/// The host gives the updates only when the launch already waits.
#[test]
fn a_boundary_can_be_completed_behind_the_launch() {
    let (rig, mut random) = (Rig::new(), Rng::seeded());
    let boundary = Boundary::new(&rig.device).expect("kernels load");
    let mut table = vec![0u32; 300];
    let (on_device, status) = (rig.upload(&table), rig.upload(&[0u32]));
    let word = WaitWord::new(&rig.device).expect("a word");
    // The first failure is kept, and the updates of a failed boundary are applied anyway.
    for (round, failure) in [0, 11, 0, 12].into_iter().enumerate() {
        let list = updates(&mut random, 300, table.len());
        let first = random.next() as u32;
        let (slots, words) = (rig.pinned(&[BoundaryUpdate::default(); RING]), rig.pinned(&[BoundaryWords::default()]));
        let params = BoundaryApplyParams {
            table: on_device.address(),
            updates: slots.address(),
            words: words.address(),
            status: status.address(),
            first: 0xbad,
            count: 1,
            mask: RING as u32 - 1,
            pages: table.len() as u32,
        };
        let target = word.arm().expect("armed");
        rig.stream.wait_word(&word, target).expect("the stream waits");
        // SAFETY: all memory lives until `finish` has returned; the ring is written before the word is released.
        unsafe { boundary.apply(&rig.stream, &params) }.expect("launched");
        for (i, update) in list.iter().enumerate() {
            let slot = first.wrapping_add(i as u32) as usize % RING;
            // SAFETY: within the ring; the kernel that reads it waits for the word.
            unsafe { slots.as_ptr().cast::<BoundaryUpdate>().add(slot).write_volatile(*update) };
        }
        let said = BoundaryWords { first, count: 300, status: failure, reserved: 0 };
        // SAFETY: as above.
        unsafe { words.as_ptr().cast::<BoundaryWords>().write_volatile(said) };
        word.release(target);
        rig.finish();
        reference::apply(&mut table, &list);
        assert_eq!(rig.download::<u32>(&on_device, table.len()), table, "round {round}");
        assert_eq!(rig.download::<u32>(&status, 1), [if round == 0 { 0 } else { 11 }], "round {round}");
    }
}

/// The host's words at run time are untrusted, too.
#[test]
fn more_updates_than_the_ring_holds_are_none() {
    let rig = Rig::new();
    let boundary = Boundary::new(&rig.device).expect("kernels load");
    let (table, status) = (rig.upload(&[7u32; 8]), rig.upload(&[0u32]));
    let slots = rig.pinned(&[BoundaryUpdate { page: 1, entry: 9 }; 4]);
    let words = rig.pinned(&[BoundaryWords { first: 0, count: 5, status: 0, reserved: 0 }]);
    let params = BoundaryApplyParams {
        table: table.address(),
        updates: slots.address(),
        words: words.address(),
        status: status.address(),
        mask: 3,
        pages: 8,
        ..Default::default()
    };
    // SAFETY: all memory lives until `finish` has returned.
    unsafe { boundary.apply(&rig.stream, &params) }.expect("launched");
    rig.finish();
    assert_eq!(rig.download::<u32>(&table, 8), [7; 8]);
    assert_eq!(rig.download::<u32>(&status, 1), [BAD_UPDATE]);
}

/// Gates of three planes with two slots of words.
struct Gates {
    rig: Rig,
    boundary: Boundary,
    state: Buffer,
    words: Pinned,
    table: Buffer,
    slots: Pinned,
    status: Buffer,
}

impl Gates {
    /// Return closed gates. Update `i` of the ring sets page `i` to `i + 1`.
    fn new() -> Gates {
        let rig = Rig::new();
        let updates: Vec<BoundaryUpdate> = (0..8).map(|i| BoundaryUpdate { page: i, entry: i + 1 }).collect();
        Gates {
            boundary: Boundary::new(&rig.device).expect("kernels load"),
            state: rig.upload(&[GateState::default()]),
            words: rig.pinned(&[GateWords::default(); 2 * PLANES]),
            table: rig.upload(&[0u32; 8]),
            slots: rig.pinned(&updates),
            status: rig.upload(&[0u32]),
            rig,
        }
    }

    fn open(&self, step: u64, next: u32) {
        let params = GateOpenParams { state: self.state.address(), step, next, reserved: 0 };
        // SAFETY: the state lives as long as `self`.
        unsafe { self.boundary.open_gates(&self.rig.stream, &params) }.expect("launched");
    }

    fn gate(&self, plane: u32) {
        let params = BoundaryGateParams {
            state: self.state.address(),
            words: self.words.address(),
            table: self.table.address(),
            updates: self.slots.address(),
            status: self.status.address(),
            plane,
            planes: PLANES as u32,
            slots_mask: 1,
            mask: 7,
            pages: 8,
            reserved: 0,
        };
        // SAFETY: all memory lives as long as `self`; words are written before their word.
        unsafe { self.boundary.gate(&self.rig.stream, &params) }.expect("launched");
    }

    /// Complete a plane of a step.
    fn complete(&self, step: u64, plane: usize, (end, status, all): (u32, u32, u32)) {
        let words = GateWords { word: step.wrapping_sub(2), end, status, all, reserved: [0; 3] };
        // SAFETY: within the memory and aligned; the kernel reads the words only after their word, which is first.
        unsafe {
            let at = self.words.as_ptr().cast::<GateWords>().add((step % 2) as usize * PLANES + plane);
            at.write_volatile(words);
            (*at.cast::<AtomicU64>()).store(step, Ordering::Release);
        }
    }

    fn table(&self) -> Vec<u32> {
        self.rig.finish();
        self.rig.download(&self.table, 8)
    }

    fn status(&self) -> u32 {
        self.rig.download::<u32>(&self.status, 1)[0]
    }
}

#[test]
fn a_gate_waits_until_its_plane_is_complete() {
    for step in [1, 7, u64::MAX, 1 << 63] {
        let g = Gates::new();
        // What an earlier step left.
        (0..PLANES).for_each(|plane| g.complete(step.wrapping_sub(2), plane, (0xbad, 0xbad, 1)));
        g.open(step, 2);
        (0..PLANES as u32).for_each(|plane| g.gate(plane));
        // PACE: 20 ms, in which a gate that does not wait would end.
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!g.rig.stream.is_idle().expect("no fault"), "it waits");
        g.complete(step, 0, (4, 0, 0));
        g.complete(step, 1, (4, 0, 0));
        g.complete(step, 2, (7, 0, 0));
        assert_eq!(g.table(), [0, 0, 3, 4, 5, 6, 7, 0], "step {step}");
        assert_eq!(g.status(), 0);
    }
}

/// The later planes' words do not say that they are complete, so a gate that looks at them waits for ever.
#[test]
fn one_plane_speaks_for_the_later_ones() {
    let g = Gates::new();
    g.open(5, 0);
    g.complete(5, 0, (1, 0, 0));
    g.gate(0);
    g.rig.finish();
    // The first gate has applied this slot, and no later one does.
    // SAFETY: within the ring, which no kernel reads now.
    unsafe { g.slots.as_ptr().cast::<BoundaryUpdate>().write_volatile(BoundaryUpdate { page: 0, entry: 99 }) };
    g.complete(5, 1, (3, 0, 1));
    (1..PLANES as u32).for_each(|plane| g.gate(plane));
    assert_eq!(g.table(), [1, 2, 3, 0, 0, 0, 0, 0]);
    // A second replay in the same step passes, and applies nothing.
    g.complete(5, 0, (6, 0, 0));
    (0..PLANES as u32).for_each(|plane| g.gate(plane));
    assert_eq!(g.table(), [1, 2, 3, 0, 0, 0, 0, 0]);
    g.open(6, 3);
    g.complete(6, 0, (4, 0, 1));
    (0..PLANES as u32).for_each(|plane| g.gate(plane));
    assert_eq!(g.table(), [1, 2, 3, 4, 0, 0, 0, 0]);
}

#[test]
fn closed_gates_read_no_word() {
    let g = Gates::new();
    (0..PLANES).for_each(|plane| g.complete(1, plane, (5, 9, 0)));
    (0..PLANES as u32).for_each(|plane| g.gate(plane));
    assert_eq!((g.table(), g.status()), (vec![0; 8], 0));
}

#[test]
fn a_gate_reports_the_first_failure() {
    let g = Gates::new();
    g.open(3, 0);
    g.complete(3, 0, (1, 0, 0));
    g.complete(3, 1, (2, 17, 0));
    g.complete(3, 2, (100, 0, 0)); // more updates than the ring holds
    (0..PLANES as u32).for_each(|plane| g.gate(plane));
    assert_eq!((g.table(), g.status()), (vec![1, 2, 0, 0, 0, 0, 0, 0], 17));
    g.open(4, 0);
    g.complete(4, 0, (100, 0, 1));
    let cleared = g.rig.upload(&[0u32]);
    let g = Gates { status: cleared, ..g };
    g.gate(0);
    assert_eq!((g.table(), g.status()), (vec![1, 2, 0, 0, 0, 0, 0, 0], BAD_UPDATE));
}

struct Lane {
    table: Vec<u32>,
    block_ids: Vec<i32>,
    lengths: Vec<i32>,
    starts: Vec<i32>,
}

const PLANES: usize = 3;
const BLOCKS: usize = 90;
const MAX_BLOCKS: usize = 70;
const PAGE_TOKENS: usize = 16;
const FIRST_FRAME: u32 = 1000;
/// Frames with memory; the frames of the table above this number are mapped frames.
const FRAMES: u32 = 450;

fn lane(random: &mut Rng) -> Lane {
    let entry = |random: &mut Rng| {
        if random.within(0..4) == 0 { 0 } else { 1 + FIRST_FRAME + random.within(0..500) as u32 }
    };
    let most = MAX_BLOCKS * PAGE_TOKENS;
    let lengths = vec![0, 1, 16, 17, 512, random.within(1..most) as i32, most as i32, -5, most as i32 + 40];
    let seqs = lengths.len();
    Lane {
        table: (0..BLOCKS * PLANES).map(|_| entry(random)).collect(),
        // Blocks are shared between sequences by chance; some ids are none, one is beyond the table.
        block_ids: (0..seqs * MAX_BLOCKS).map(|_| random.within(0..BLOCKS + 6) as i32 - 5).collect(),
        starts: lengths.iter().map(|&l: &i32| random.within(0..l.max(1) as usize) as i32).collect(),
        lengths,
    }
}

#[test]
fn block_tables_and_misses_are_the_reference_s() {
    let (rig, mut random) = (Rig::new(), Rng::seeded());
    let boundary = Boundary::new(&rig.device).expect("kernels load");
    for (windowed, absent, failed) in [(false, -1, 0), (true, 0, 0), (false, -1, 9)] {
        let lane = lane(&mut random);
        let (seqs, words) = (lane.lengths.len(), MAX_BLOCKS.div_ceil(32));
        let (plane, plane_count) = (1, 2);
        let table = rig.upload(&lane.table);
        let (ids, lengths) = (rig.upload(&lane.block_ids), rig.upload(&lane.lengths));
        let (starts, status) = (rig.upload(&lane.starts), rig.upload(&[failed]));
        let tables = rig.poisoned(4 * plane_count * seqs * MAX_BLOCKS);
        let misses = rig.poisoned(4 * plane_count * seqs * words);
        let params = BoundaryTablesParams {
            table: table.address(),
            block_ids: ids.address(),
            lengths: lengths.address(),
            starts: if windowed { starts.address() } else { 0 },
            block_tables: tables.address(),
            misses: misses.address(),
            status: status.address(),
            seqs: seqs as u32,
            max_blocks: MAX_BLOCKS as u32,
            planes: PLANES as u32,
            plane: plane as u32,
            plane_count: plane_count as u32,
            page_tokens: PAGE_TOKENS as u32,
            blocks: BLOCKS as u32,
            first_frame: FIRST_FRAME,
            absent,
            frames: FRAMES,
        };
        // SAFETY: all memory lives until `finish` has returned.
        unsafe { boundary.tables(&rig.stream, &params) }.expect("launched");
        rig.finish();
        let empty = vec![0; lane.table.len()];
        let expected = reference::Table {
            entries: if failed == 0 { &lane.table } else { &empty },
            planes: PLANES,
            first_frame: FIRST_FRAME,
            frames: FRAMES,
        };
        let batch = reference::Batch {
            block_ids: &lane.block_ids,
            lengths: &lane.lengths,
            starts: if windowed { &lane.starts } else { &[] },
            max_blocks: MAX_BLOCKS,
        };
        let found: Vec<i32> = rig.download(&tables, plane_count * seqs * MAX_BLOCKS);
        let bits: Vec<u32> = rig.download(&misses, plane_count * seqs * words);
        for i in 0..plane_count {
            let (want, want_bits) = reference::tables(&expected, &batch, plane + i, PAGE_TOKENS, absent);
            assert_eq!(found[i * seqs * MAX_BLOCKS..][..seqs * MAX_BLOCKS], want, "plane {i}, windowed {windowed}");
            assert_eq!(bits[i * seqs * words..][..seqs * words], want_bits, "plane {i}, windowed {windowed}");
        }
        // One output only; the other's memory must not change.
        let untouched = rig.poisoned(64);
        let only = BoundaryTablesParams { block_tables: 0, misses: misses.address(), ..params };
        // SAFETY: as above.
        unsafe { boundary.tables(&rig.stream, &only) }.expect("launched");
        rig.finish();
        assert_eq!(rig.download::<u8>(&untouched, 64), [POISON; 64]);
        assert_eq!(rig.download::<u32>(&misses, bits.len()), bits);
    }
}
