//! Gated steps: a captured graph waits for its pages, step after step.

use super::{
    fake::{Command, FRAMES, LONG, PAGE, PLANES, SLOTS, Script, TOKENS, byte},
    rig::{BLOCKS, Bound, Scene, Sim, attached_with, bytes, child, filled, passed, standing_in},
};
use kvtide_client::{Options, Pass, cuda::Pinned};
use kvtide_cuda_sim::Graph;
use kvtide_wire::{entry::Op, geometry::PlaneKind, status::Status};
use std::time::Duration;

/// Bytes between two frames.
const STRIDE: usize = 1024;

/// Create a sequence, and another one that no step reads.
fn scene(timeout: Duration) -> (Scene, u32) {
    scene_of(|options| options.timeout = timeout)
}

fn scene_of(change: impl FnOnce(&mut Options)) -> (Scene, u32) {
    let (fake, client, mut channel, mut bound) = attached_with(change);
    let seqs = [(); 2].map(|()| filled(&mut channel, &mut bound, BLOCKS));
    channel.nop(LONG).expect("the daemon answers");
    (Scene { fake, client, bound, seq: seqs[0] }, seqs[1])
}

/// A graph that passes all gates, and keeps behind each the lane's table and all frames as they are then.
struct Replay {
    graph: Graph,
    seen: Vec<(Pinned, Pinned)>,
}

impl Replay {
    fn new(s: &mut Scene) -> Replay {
        let pinned = |bytes| Pinned::new(&s.bound.device, bytes).expect("pinned");
        let device = s.bound.lane.device().expect("on a device");
        let (table_bytes, tier_bytes) = (4 * device.entries as usize, FRAMES as usize * STRIDE);
        let seen: Vec<_> = (0..PLANES).map(|_| (pinned(table_bytes), pinned(tier_bytes))).collect();
        let tier = s.client.frame_ptr(0).expect("a frame").addr() as u64;
        let graph = Graph::capture(s.bound.device.context(), s.bound.stream.raw(), || {
            for (plane, (table, frames)) in seen.iter().enumerate() {
                s.bound.lane.gate(plane as u16).expect("captured");
                // SAFETY: as long as said; both stay until the stream has passed the last replay.
                unsafe { s.bound.stream.copy(table.address(), device.table, table_bytes).expect("captured") };
                // Frames of later planes may be written meanwhile.
                // SAFETY: as above.
                Sim::snapshots(|| unsafe {
                    s.bound.stream.copy(frames.address(), tier, tier_bytes).expect("captured")
                });
            }
        });
        Replay { graph: graph.expect("a valid capture"), seen }
    }

    fn launch(&self, s: &Scene) {
        self.graph.launch(s.bound.stream.raw());
    }

    /// Begin a step whose gates are open.
    fn begin(&self, s: &mut Scene) {
        s.begin();
        s.bound.lane.open_gates().expect("at once");
        self.launch(s);
    }

    /// Return the table as the kernels behind the gate of a plane read it.
    fn table(&self, plane: u16) -> Vec<u32> {
        let words = bytes(&self.seen[usize::from(plane)].0);
        words.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().expect("4 bytes"))).collect()
    }

    /// Return a page as the kernels behind the gate of plane `at` read it.
    fn page(&self, at: u16, block: u32, plane: u16) -> Option<Vec<u8>> {
        let entry = self.table(at)[block as usize * usize::from(PLANES) + usize::from(plane)];
        let frame = entry.checked_sub(1)?;
        Some(bytes(&self.seen[usize::from(at)].1)[frame as usize * STRIDE..][..PAGE].to_vec())
    }

    /// Check that every page of the planes up to this one was readable behind its gate.
    fn check(&self, s: &Scene, plane: u16) {
        let (table, frames) = (self.table(plane), bytes(&self.seen[usize::from(plane)].1));
        let blocks = s.client.seq_blocks(s.seq).expect("blocks");
        for (index, block) in blocks.iter().enumerate() {
            for of in 0..=plane {
                let entry = table[*block as usize * usize::from(PLANES) + usize::from(of)];
                let frame =
                    entry.checked_sub(1).unwrap_or_else(|| panic!("block {index} of plane {of} at gate {plane}"));
                let page = &frames[frame as usize * STRIDE..][..PAGE];
                let expected = byte(s.seq, index as u32, of);
                assert!(page.iter().all(|b| *b == expected), "block {index} of plane {of} at gate {plane}");
            }
        }
    }
}

#[test]
fn a_graph_is_replayed_while_pages_come_and_go() {
    let (mut s, _) = scene(LONG);
    let replay = Replay::new(&mut s);
    let evictions: [&[(usize, u16)]; 6] =
        [&[], &[(0, 0), (2, 1)], &[(1, 1)], &[(0, 0), (1, 0), (2, 0)], &[], &[(2, 1)]];
    for (round, evicted) in evictions.into_iter().enumerate() {
        evicted.iter().for_each(|&(index, plane)| s.evict(index, plane));
        replay.begin(&mut s);
        s.bound.lane.end().expect("end");
        s.bound.done();
        s.bound.lane.check().unwrap_or_else(|error| panic!("round {round}: {error}"));
        (0..PLANES).for_each(|plane| replay.check(&s, plane));
        s.bound.same_table();
    }
    // The engine may open gates and launch nothing.
    s.evict(1, 0);
    s.begin();
    s.bound.lane.open_gates().expect("at once");
    s.bound.lane.end().expect("end");
    s.bound.same_table();
    // The same lane goes on without gates. The page gets another frame, and a stray replay does not undo that.
    s.evict(0, 0);
    s.evict(1, 0);
    assert!(s.bound.read_all(s.seq, BLOCKS) > 0);
    replay.launch(&s);
    s.bound.same_table();
    assert_eq!(s.client.stats().sample_failed, 0);
}

/// Evictions take effect before the step, between two planes of it, or after it.
#[test]
fn pages_may_be_evicted_at_any_time() {
    let (mut s, _) = scene(LONG);
    let replay = Replay::new(&mut s);
    let blocks = s.client.seq_blocks(s.seq).expect("blocks");
    let pages = u64::from(BLOCKS) * u64::from(PLANES);
    let mut random = u64::from(std::process::id());
    println!("random numbers from {random}");
    // Each eviction takes a new host frame of the small daemon.
    let mut left = SLOTS as usize;
    for round in 0.. {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let chosen: Vec<u64> = (0..pages).filter(|page| random >> (40 + page) & 1 == 1).collect();
        left = match left.checked_sub(chosen.len()) {
            Some(left) => left,
            None => return,
        };
        let (answer, ended) = std::sync::mpsc::channel();
        let evict = |page: u64| {
            let (block, plane) = (blocks[(page / u64::from(PLANES)) as usize], (page % u64::from(PLANES)) as u16);
            s.fake.tell(Command::Evict { block, plane, answer: answer.clone() });
        };
        chosen.into_iter().for_each(evict);
        if round % 2 == 0 {
            // PACE: at most 255 µs, so that evictions meet different moments of the step.
            std::thread::sleep(Duration::from_micros(random >> 56));
        }
        replay.begin(&mut s);
        s.bound.lane.end().expect("end");
        s.bound.done();
        s.bound.lane.check().unwrap_or_else(|error| panic!("round {round}: {error}"));
        (0..PLANES).for_each(|plane| replay.check(&s, plane));
        drop(answer);
        assert!(ended.iter().all(|status| matches!(status, Status::Ok | Status::NotFound)), "round {round}");
        // A load that began before an eviction is in the tables only now.
        s.begin();
        for plane in 0..PLANES {
            while !matches!(s.bound.lane.boundary(plane).expect("loaded"), Pass::All | Pass::Part { last: true, .. }) {}
        }
        s.bound.lane.end().expect("end");
        s.bound.same_table();
    }
}

#[test]
fn a_gate_waits_only_for_pages_in_its_planes_window() {
    let (mut s, _) = scene_of(|options| options.space.planes[1].kind = PlaneKind::Window { tokens: TOKENS as u32 });
    let replay = Replay::new(&mut s);
    let blocks = s.client.seq_blocks(s.seq).expect("blocks");
    s.evict(0, 1);
    for round in 0..3 {
        // One page in the window, and one of the plane without a window.
        [(2, 1), (1, 0)].into_iter().for_each(|(index, plane)| s.evict(index, plane));
        replay.begin(&mut s);
        s.bound.lane.end().expect("end");
        s.bound.done();
        s.bound.lane.check().unwrap_or_else(|error| panic!("round {round}: {error}"));
        replay.check(&s, 0);
        assert_eq!(replay.page(1, blocks[0], 1), None, "no step reads this page");
        assert_eq!(replay.page(1, blocks[2], 1), Some(vec![byte(s.seq, 2, 1); PAGE]), "round {round}");
    }
    let asked = s.fake.die();
    let faults = asked.iter().filter(|asked| asked.op == Op::Fault as u16);
    let faults: Vec<(u32, u16)> = faults.map(|asked| (asked.first, asked.flags)).collect();
    assert!(faults.contains(&(2, 1)) && !faults.contains(&(0, 1)), "{faults:?}");
}

#[test]
fn a_step_with_every_page_reads_the_words_of_one_plane() {
    // In a process of its own, because loads are counted for all streams.
    let name = "gates::a_step_with_every_page_reads_the_words_of_one_plane";
    if !standing_in() {
        return;
    }
    if let Some(output) = child(name, &[]) {
        return passed(&output);
    }
    let (mut s, _) = scene(LONG);
    let replay = Replay::new(&mut s);
    for _ in 0..3 {
        s.begin();
        s.bound.lane.open_gates().expect("at once");
        let before = Sim::word_loads();
        replay.launch(&s);
        s.bound.done();
        assert_eq!(Sim::word_loads() - before, 4, "the word, and what it completes, of the first plane");
        s.bound.lane.end().expect("end");
        (0..PLANES).for_each(|plane| replay.check(&s, plane));
    }
}

#[test]
fn the_host_runs_ahead_of_the_device() {
    let (mut s, other) = scene(LONG);
    let replays = [Replay::new(&mut s), Replay::new(&mut s), Replay::new(&mut s)];
    s.bound.done();
    let (word, target) = s.bound.hold();
    let mut channel = s.client.channel(0).expect("channel");
    let mut tables = Vec::new();
    for replay in &replays {
        replay.begin(&mut s);
        tables.push(s.bound.lane.table().to_vec());
        s.bound.lane.end().expect("end");
        // Shows new pages to the next step only.
        channel.reserve(other, u64::from(BLOCKS + tables.len() as u32) * TOKENS, LONG).expect("reserve");
    }
    assert!(tables[0] != tables[1] && tables[1] != tables[2]);
    word.release(target);
    s.bound.done();
    for (replay, table) in replays.iter().zip(tables) {
        (0..PLANES).for_each(|plane| assert_eq!(replay.table(plane), table, "the updates of its own step"));
        replay.check(&s, PLANES - 1);
    }
}

/// The first plane is complete and the second is not. A page of the first is evicted, though the device may read it at any time.
#[test]
fn a_page_of_a_complete_plane_stays_until_the_end() {
    let (mut s, other) = scene(LONG);
    let replay = Replay::new(&mut s);
    let (blocks, others) = (s.client.seq_blocks(s.seq).expect("blocks"), s.client.seq_blocks(other).expect("blocks"));
    s.evict(2, 1);
    assert_eq!(s.fake.evict(others[0], 0), Status::Ok);
    s.fake.tell(Command::Answer { op: Op::Fault, with: Script::Silence });
    s.begin();
    let (kept, idle) = (s.bound.lane.pte(blocks[0], 0).expect("shown"), s.bound.lane.pte(others[1], 1).expect("shown"));
    s.bound.lane.open_gates().expect("at once");
    let over = s.fake.load_over(others[0], 0, kept, (blocks[0], 0));
    let missing = s.fake.load_over(blocks[2], 1, idle, (others[1], 1));
    assert_eq!(missing.recv_timeout(LONG).expect("loaded"), Status::Ok);
    replay.launch(&s);
    s.bound.done();
    assert!(over.try_recv().is_err(), "the frame is not overwritten during the step");
    (0..PLANES).for_each(|plane| replay.check(&s, plane));
    s.bound.lane.check().expect("nothing failed");
    s.bound.lane.end().expect("end");
    assert_eq!(over.recv_timeout(LONG).expect("after the step"), Status::Ok);
    s.begin();
    assert!(s.bound.lane.pte(blocks[0], 0).is_none());
    s.bound.lane.end().expect("end");
    s.bound.same_table();
}

#[test]
fn of_a_complete_plane_only_the_pages_in_its_window_stay() {
    let (mut s, other) = scene_of(|options| options.space.planes[0].kind = PlaneKind::Window { tokens: TOKENS as u32 });
    let replay = Replay::new(&mut s);
    let (blocks, others) = (s.client.seq_blocks(s.seq).expect("blocks"), s.client.seq_blocks(other).expect("blocks"));
    s.evict(2, 1);
    others[..2].iter().for_each(|block| assert_eq!(s.fake.evict(*block, 0), Status::Ok));
    s.fake.tell(Command::Answer { op: Op::Fault, with: Script::Silence });
    s.begin();
    let shown = |block, plane| s.bound.lane.pte(block, plane).expect("shown");
    let (kept, unread, idle) = (shown(blocks[2], 0), shown(blocks[0], 0), shown(others[1], 1));
    s.bound.lane.open_gates().expect("at once");
    let over = s.fake.load_over(others[0], 0, kept, (blocks[2], 0));
    let freed = s.fake.load_over(others[1], 0, unread, (blocks[0], 0));
    assert_eq!(freed.recv_timeout(LONG).expect("the step does not read it"), Status::Ok);
    let missing = s.fake.load_over(blocks[2], 1, idle, (others[1], 1));
    assert_eq!(missing.recv_timeout(LONG).expect("loaded"), Status::Ok);
    replay.launch(&s);
    s.bound.done();
    assert!(over.try_recv().is_err(), "the frame is not overwritten during the step");
    assert_eq!(replay.page(1, blocks[2], 0), Some(vec![byte(s.seq, 2, 0); PAGE]));
    s.bound.lane.check().expect("nothing failed");
    s.bound.lane.end().expect("end");
    assert_eq!(over.recv_timeout(LONG).expect("after the step"), Status::Ok);
}

#[test]
fn a_frame_is_overwritten_only_after_the_graph_has_read_it() {
    let (mut s, other) = scene(LONG);
    let replay = Replay::new(&mut s);
    let (blocks, others) = (s.client.seq_blocks(s.seq).expect("blocks"), s.client.seq_blocks(other).expect("blocks"));
    assert_eq!(s.fake.evict(others[0], 0), Status::Ok);
    s.begin();
    let frame = s.bound.lane.pte(blocks[1], 0).expect("shown");
    s.bound.lane.open_gates().expect("at once");
    let (word, target) = s.bound.hold();
    replay.launch(&s);
    s.bound.lane.end().expect("end");
    let over = s.fake.load_over(others[0], 0, frame, (blocks[1], 0));
    assert!(over.recv_timeout(Duration::from_millis(50)).is_err(), "the graph has not read it yet");
    word.release(target);
    s.bound.done();
    (0..PLANES).for_each(|plane| replay.check(&s, plane));
    assert_eq!(over.recv_timeout(LONG).expect("after the graph"), Status::Ok);
}

#[test]
fn a_page_that_never_comes_ends_the_step_after_the_timeout() {
    let (mut s, _) = scene(Duration::from_millis(300));
    let replay = Replay::new(&mut s);
    s.evict(1, 1);
    s.fake.tell(Command::Answer { op: Op::Fault, with: Script::Silence });
    replay.begin(&mut s);
    s.bound.done();
    replay.check(&s, 0);
    assert_eq!(s.status_word(), Status::TimedOut.code() as u32);
    assert_eq!(s.bound.lane.check().expect_err("late").status(), Status::TimedOut);
    assert_eq!(s.bound.lane.boundary(1).expect_err("a gated step has none").status(), Status::State);
    s.bound.lane.end().expect("end");
    // The next step gets the page.
    replay.begin(&mut s);
    s.bound.lane.end().expect("end");
    s.bound.done();
    (0..PLANES).for_each(|plane| replay.check(&s, plane));
    s.bound.same_table();
}

#[test]
fn the_daemons_death_ends_the_step_with_an_error() {
    let (mut s, _) = scene(LONG);
    let replay = Replay::new(&mut s);
    s.evict(1, 0);
    s.fake.tell(Command::Answer { op: Op::Fault, with: Script::Silence });
    replay.begin(&mut s);
    s.fake.die();
    s.bound.done();
    assert_eq!(s.status_word(), Status::Daemon.code() as u32);
    assert_eq!(s.bound.lane.check().expect_err("a page is missing").status(), Status::Daemon);
    s.bound.lane.end().expect("a step ends without a daemon");
    // Now the failure is known at once, and the device passes.
    s.begin();
    assert_eq!(s.bound.lane.open_gates().expect_err("no daemon loads the page").status(), Status::Daemon);
    replay.launch(&s);
    s.bound.lane.end().expect("end");
    s.bound.done();
    assert_eq!(s.status_word(), Status::Daemon.code() as u32);
}

#[test]
fn a_driver_call_that_waits_for_the_device_does_not_hold_the_graph() {
    // In a process of its own, because the call could be another test's.
    let name = "gates::a_driver_call_that_waits_for_the_device_does_not_hold_the_graph";
    if !standing_in() {
        return;
    }
    if let Some(output) = child(name, &[("KVTIDE_SIM_STRICT", "0")]) {
        return passed(&output);
    }
    let (mut s, _) = scene(Duration::from_millis(200));
    let replay = Replay::new(&mut s);
    let block = s.client.seq_blocks(s.seq).expect("blocks")[1];
    s.evict(1, 1);
    s.fake.tell(Command::Answer { op: Op::Fault, with: Script::Silence });
    replay.begin(&mut s);
    // Only the copy thread makes this call, and stays in it while the stream waits.
    Sim::block("cuMemcpyBatchAsync");
    let stored = s.fake.store(block, 0);
    s.bound.done();
    assert_eq!(s.status_word(), Status::TimedOut.code() as u32);
    assert_eq!(s.bound.lane.check().expect_err("late").status(), Status::TimedOut);
    s.bound.lane.end().expect("end");
    assert_eq!(stored.recv_timeout(LONG).expect("the copy ends"), Status::Ok);
    assert!(s.bound.read_all(s.seq, BLOCKS) > 0, "the next step gets the page");
    s.bound.same_table();
}

#[test]
fn a_lane_that_is_dropped_lets_its_graph_go() {
    let (mut s, _) = scene(Duration::from_millis(300));
    let replay = Replay::new(&mut s);
    s.evict(1, 0);
    s.fake.tell(Command::Answer { op: Op::Fault, with: Script::Silence });
    replay.begin(&mut s);
    let Scene { fake, client, bound, .. } = s;
    let Bound { lane, stream, device, .. } = bound;
    drop(lane);
    // Without a step it reads no word and waits for nothing.
    replay.graph.launch(stream.raw());
    let event = kvtide_client::cuda::Event::new(&device).expect("event");
    stream.record(&event).expect("recorded");
    assert!(event.wait_until(std::time::Instant::now() + LONG).expect("nothing failed"));
    drop((client, fake, stream));
}

#[test]
fn gates_are_refused_where_the_stream_could_not_wait() {
    let (mut s, _) = scene(LONG);
    let state = |result: kvtide_client::Result<()>| assert_eq!(result.expect_err("refused").status(), Status::State);
    state(s.bound.lane.open_gates()); // no step
    assert_eq!(s.bound.lane.gate(PLANES).expect_err("no plane").status(), Status::Range);
    s.bound.lane.gate(0).expect("closed");
    s.bound.done();
    s.begin();
    let (context, stream) = (s.bound.device.context(), s.bound.stream.raw());
    assert!(kvtide_cuda_sim::captured(context, stream, || {
        assert_eq!(s.bound.lane.open_gates().expect_err("captured").status(), Status::Invalid);
    }));
    s.bound.lane.boundary(0).expect("resident");
    state(s.bound.lane.open_gates()); // after a boundary
    s.bound.lane.end().expect("end");
    s.begin();
    s.bound.lane.open_gates().expect("opened");
    state(s.bound.lane.open_gates());
    state(s.bound.lane.boundary_async(0));
    s.bound.lane.end().expect("end");
    let other = Bound::new(&s.client, 1);
    s.begin();
    state(s.bound.lane.open_gates()); // streams share queues
    s.bound.lane.boundary(0).expect("as before");
    s.bound.lane.end().expect("end");
    drop(other);
}
