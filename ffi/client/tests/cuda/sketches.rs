//! Sketches that a device keeps: built after the keys are written, queried without waiting, reported and used for picks when
//! they answer.

use super::{
    fake::{Command, Fake, LONG, PAGE, PLANES, Script, TOKENS},
    rig::{Bound, on_device},
};
use kvtide_client::{
    Channel, Client, Contract, DigestOptions, Element, KeyLayout, Options, Pass, ScoreKind, StepSeq, cuda::Pinned,
};
use kvtide_wire::{
    digest::sketch,
    entry::{Completion, Op},
    half::F16,
    status::Status,
};
use std::time::Duration;

const BLOCKS: u32 = 8;
const CHANNELS: usize = 8;
const GROUPS: usize = 4;
const STEP: u64 = BLOCKS as u64 * TOKENS;
/// Approximate score of each block's keys against [`QUERY`].
const SCORES: [f32; BLOCKS as usize] = [0.0, -6.0, 5.0, -7.0, -2.0, -1.0, 0.0, 1.0];
/// Two query heads of one KV head.
const QUERY: [f32; 2 * CHANNELS] = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -0.5];
const DIGESTS: DigestOptions = DigestOptions {
    keys: KeyLayout {
        element: Element::F16,
        heads: 1,
        channels: CHANNELS as u16,
        tile_tokens: TOKENS as u16,
        offset: 32,
        head_stride: 0,
        tile_stride: 0,
        token_stride: 2 * CHANNELS as u32,
        channel_stride: 2,
    },
    pages: 40,
    groups: GROUPS as u16,
};

/// Return the keys of a page: about its score in the first channel, and a value that differs by token in the last.
fn keys(index: u32, plane: u16) -> Vec<f32> {
    let key = |token: u32| {
        let mut key = [0.0; CHANNELS];
        key[0] = SCORES[index as usize] + f32::from(plane) * 0.25;
        key[CHANNELS - 1] = (token % 3) as f32 - 1.0;
        key
    };
    (0..TOKENS as u32).flat_map(key).collect()
}

/// Return the shares that the CPU computes for the queries, by page.
fn expected(plane: u16) -> Vec<f32> {
    let mut shares = vec![0.0; BLOCKS as usize];
    let mut scratch = vec![0.0; sketch::scratch(TOKENS as usize, CHANNELS, GROUPS)];
    for query in QUERY.chunks_exact(CHANNELS) {
        let sum = |index| {
            let (mut made, mut sum) = (vec![0; sketch::bytes(CHANNELS, GROUPS)], [0.0]);
            sketch::build(&keys(index, plane), CHANNELS, &mut scratch, &mut made).expect("sizes");
            sketch::score(query, CHANNELS, &made, 1.0, &mut sum).expect("sizes");
            sum[0]
        };
        let sums: Vec<f32> = (0..BLOCKS).map(sum).collect();
        sketch::add_shares(&sums, 0.5, &mut shares);
    }
    shares
}

const HALF: Contract = Contract::Approx { permille: 500 };

/// Write the keys of a sequence in the open step, on the stream.
fn write(client: &Client, bound: &Bound, seq: u32) -> Vec<Pinned> {
    let blocks = client.seq_blocks(seq).expect("blocks");
    let places = (0..BLOCKS).flat_map(|index| (0..PLANES).map(move |plane| (index, plane)));
    let page = |(index, plane): (u32, u16)| {
        let page = Pinned::new(&bound.device, PAGE).expect("pinned");
        let frame = bound.lane.pte(blocks[index as usize], plane).expect("in the lane's table");
        let at = client.frame_ptr(frame).expect("a frame").addr() as u64;
        for (i, key) in keys(index, plane).into_iter().enumerate() {
            // SAFETY: the keys end before the page does, and no other code has the page.
            unsafe { page.as_ptr().add(32).cast::<u16>().add(i).write_unaligned(F16::nearest(key).0) };
        }
        // SAFETY: both are as long as said and stay until the stream is done; the frame is the sequence's unsealed page.
        unsafe { bound.stream.copy(at, page.address(), PAGE) }.expect("enqueued");
        page
    };
    places.map(page).collect()
}

/// Create a committed sequence.
fn written(client: &Client, channel: &mut Channel, bound: &mut Bound) -> u32 {
    let seq = channel.create_seq().expect("create");
    channel.reserve(seq, STEP, LONG).expect("reserve");
    bound.lane.begin(&[StepSeq { seq, tokens: STEP }]).expect("begin");
    let pages = write(client, bound, seq);
    bound.lane.end().expect("end");
    channel.commit(seq, STEP).expect("commit");
    bound.done();
    drop(pages);
    seq
}

/// Return the pages of a boundary that picks half of them.
fn picked(bound: &mut Bound, plane: u16) -> Vec<u32> {
    let pass = bound.lane.boundary(plane).expect("boundary");
    assert_eq!(pass, Pass::Part { count: 4, last: true });
    bound.lane.ready().iter().map(|ready| ready.index).collect()
}

/// Create a sequence to which another one's blocks are attached, under names that this session does not know.
fn mapped(fake: &Fake, channel: &mut Channel, blocks: &[u32]) -> u32 {
    let seq = channel.create_seq().expect("create");
    let answer = Completion { value: blocks.len() as u64, ..Completion::new(Op::AttachPrefix as u16, 0, Status::Ok) };
    fake.tell(Command::Answer { op: Op::AttachPrefix, with: Script::Raw(answer, blocks.to_vec()) });
    let hashes: Vec<u128> = (1..=blocks.len() as u128).collect();
    assert_eq!(channel.attach_prefix(seq, &hashes, LONG).expect("mapped"), blocks.len());
    seq
}

fn options(fake: &Fake) -> Options {
    Options { lanes: 1, digests: Some(DIGESTS), ..on_device(fake) }
}

#[test]
fn a_device_s_sketches_are_told_and_picked_by_once_they_answer() {
    let fake = Fake::start();
    let client = Client::attach(options(&fake)).expect("attach");
    let mut channel = client.channel(0).expect("channel");
    let mut bound = Bound::new(&client, 0);
    let seq = written(&client, &mut channel, &mut bound);
    let step = StepSeq { seq, tokens: STEP };
    let blocks = client.seq_blocks(seq).expect("blocks");
    channel.contract(seq, HALF, LONG).expect("contract");
    // If every page is resident, every page is read. So evict a page with a low score.
    for plane in 0..PLANES {
        assert_eq!(fake.evict(blocks[1], plane), Status::Ok);
    }
    bound.lane.begin(&[step]).expect("begin");
    let (word, target) = bound.hold();
    bound.lane.query(seq, 0, &QUERY).expect("asked");
    bound.lane.ahead(seq, 1, &QUERY).expect("asked");
    assert_eq!(bound.lane.query(seq, 0, &QUERY[..CHANNELS]).expect_err("one head").status(), Status::Range);
    // No answer has arrived: all pages rank equally, and the newest are picked.
    assert_eq!(picked(&mut bound, 0), [0, 5, 6, 7]);
    // All queries of a step find room; further ones are dropped and counted. Two were made above.
    let questions = (2 * u32::from(PLANES) * options(&fake).seqs_max).max(32);
    for left_out in [0, 1] {
        let asked = if left_out == 0 { questions - 2 } else { 1 };
        (0..asked).for_each(|_| bound.lane.ahead(seq, 1, &QUERY).expect("asked"));
        assert_eq!(client.stats().sketches_left_out, left_out);
    }
    word.release(target);
    bound.done();
    // The guess of plane 1's query has been answered in time.
    assert_eq!(picked(&mut bound, 1), [0, 2, 6, 7]);
    bound.lane.end().expect("end");
    // Plane 0 is picked by the query of the step before.
    bound.lane.begin(&[step]).expect("begin");
    assert_eq!(picked(&mut bound, 0), [0, 2, 6, 7]);
    bound.lane.end().expect("end");
    // Two steps later that answer is too old.
    bound.lane.begin(&[step]).expect("begin");
    assert_eq!(picked(&mut bound, 0), [0, 5, 6, 7]);
    bound.lane.end().expect("end");
    let (answer, told) = std::sync::mpsc::channel();
    fake.tell(Command::Scores(answer));
    let told = told.recv_timeout(LONG).expect("scores");
    for (kind, plane) in [(ScoreKind::Query, 0), (ScoreKind::Ahead, 1)] {
        let of = told.iter().find(|scores| (scores.kind, scores.plane) == (kind, plane)).expect("sent");
        assert_eq!((of.seq, of.top().len()), (seq, BLOCKS as usize), "{of:?}");
        let expected = expected(plane);
        for top in of.top() {
            let (found, expected) = (top.log_mass.to_f32(), expected[top.index as usize].ln());
            assert!((found - expected).abs() < 0.02, "{kind:?} {top:?}: {found} for {expected}");
        }
    }
}

/// Attached pages have no sketches until a step has read them, and are read completely until then. This also holds if the stream
/// waits for the step's boundaries, and for two sequences that share the pages.
#[test]
fn what_is_owed_is_built_behind_boundaries_that_the_stream_waits_for() {
    let fake = Fake::start();
    let client = Client::attach(Options { seqs_max: 4, ..options(&fake) }).expect("attach");
    let mut channel = client.channel(0).expect("channel");
    let mut bound = Bound::new(&client, 0);
    let own = written(&client, &mut channel, &mut bound);
    let blocks = client.seq_blocks(own).expect("blocks");
    let seq = mapped(&fake, &mut channel, &blocks);
    let forked = Completion { value: blocks.len() as u64, ..Completion::new(Op::Fork as u16, 0, Status::Ok) };
    fake.tell(Command::Answer { op: Op::Fork, with: Script::Raw(forked, Vec::new()) });
    let child = channel.fork(seq, LONG).expect("forked");
    let steps = [seq, child].map(|seq| StepSeq { seq, tokens: STEP });
    // Like a prefill of what follows the prefix: it reads everything, and the host sees none of its pages.
    bound.lane.begin(&steps).expect("begin");
    (0..PLANES).for_each(|plane| bound.lane.boundary_async(plane).expect("at once"));
    bound.lane.check().expect("nothing failed");
    bound.lane.end().expect("end");
    bound.done();
    assert_eq!(client.stats().sketches_left_out, 0);
    // The pages now have sketches under their attached names: the budget applies, and the query finds the best page.
    assert_eq!(fake.evict(blocks[1], 0), Status::Ok);
    for seq in [seq, child] {
        channel.contract(seq, HALF, LONG).expect("contract");
        let step = StepSeq { seq, tokens: STEP };
        bound.lane.begin(&[step]).expect("begin");
        bound.lane.query(seq, 0, &QUERY).expect("asked");
        bound.done();
        assert_eq!(picked(&mut bound, 0), [0, 2, 6, 7], "sequence {seq}");
        bound.lane.end().expect("end");
    }
}

/// A failed lane launches nothing more. Nothing is known of the pages that its step wrote, and pending sketches stay pending.
#[test]
fn a_failed_lane_builds_no_sketches_and_owes_what_it_owed() {
    let fake = Fake::start();
    let client = Client::attach(Options { timeout: Duration::from_millis(1500), ..options(&fake) }).expect("attach");
    let mut channel = client.channel(0).expect("channel");
    let mut bound = Bound::new(&client, 0);
    let own = written(&client, &mut channel, &mut bound);
    let blocks = client.seq_blocks(own).expect("blocks");
    let seq = mapped(&fake, &mut channel, &blocks);
    let step = StepSeq { seq, tokens: STEP };
    assert_eq!(fake.evict(blocks[1], 0), Status::Ok);
    // A page never arrives.
    fake.tell(Command::Answer { op: Op::Fault, with: Script::Silence });
    bound.lane.begin(&[step]).expect("begin");
    bound.lane.boundary_async(0).expect("at once");
    bound.done();
    assert_eq!(bound.lane.check().expect_err("late").status(), Status::TimedOut);
    bound.lane.end().expect("end");
    assert!(client.stats().sketches_left_out > 0, "sketches were due when the step ended");
    // All sketches are pending, so every page is read once, whatever the budget is.
    channel.contract(seq, HALF, LONG).expect("contract");
    let read = |bound: &mut Bound| {
        bound.lane.begin(&[step]).expect("begin");
        let mut read = Vec::new();
        while let Pass::Part { last, .. } = bound.lane.boundary(0).expect("boundary") {
            read.extend(bound.lane.ready().iter().map(|ready| ready.index));
            if last {
                break;
            }
        }
        bound.lane.end().expect("end");
        bound.done();
        read.sort_unstable();
        read
    };
    assert_eq!(read(&mut bound), (0..BLOCKS).collect::<Vec<_>>());
    assert_eq!(fake.evict(blocks[1], 0), Status::Ok);
    assert_eq!(read(&mut bound).len(), BLOCKS as usize / 2);
}

#[test]
fn what_a_device_cannot_keep_is_refused() {
    let fake = Fake::start();
    let digests = |digests| Options { digests: Some(digests), ..options(&fake) };
    let element = DigestOptions { keys: KeyLayout { element: Element::F32, ..DIGESTS.keys }, ..DIGESTS };
    let offset = DigestOptions { keys: KeyLayout { offset: 8, ..DIGESTS.keys }, ..DIGESTS };
    let no_groups = DigestOptions { groups: 0, ..DIGESTS };
    for options in [digests(element), digests(offset), digests(no_groups), Options { lanes: 2, ..options(&fake) }] {
        assert_eq!(Client::attach(options).err().expect("refused").status(), Status::Invalid);
    }
}
