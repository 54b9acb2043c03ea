//! Invalid input from engines: it causes errors, or ends only the session that sent it.

use crate::blocks;
use crate::clients::{self, PAGE_BYTES, PAGE_TOKENS};
use crate::nvme::{Dir, nvme_options};
use crate::raw::{DEPTH, Raw, hello, sub};
use crate::roles::park_four_blocks;
use crate::{BOUND, daemon, until};
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_client::{Contract, Lane, Pass, ScoreKind, SeqId, StepSeq};
use kvtide_types::random::Random;
use kvtide_wire::entry::{JobDone, LIST_WORDS, Level, Op, Submission};
use kvtide_wire::geometry::Plane;
use kvtide_wire::half::F16;
use kvtide_wire::hello::{Disconnect, FromDaemon, Hello};
use kvtide_wire::layout::{Layout, Shape};
use kvtide_wire::os::socket::{FDS_MAX, Socket};
use kvtide_wire::score::{Scores, TOP_MAX, Top};
use kvtide_wire::status::Status;

/// Return a value that is mostly small, sometimes at a limit, and sometimes arbitrary.
fn value(random: &mut Random) -> u64 {
    match random.next() % 4 {
        0 | 1 => random.next() % 9,
        2 => u64::MAX - random.next() % 3,
        _ => random.next(),
    }
}

/// Start a daemon with two sessions: the first must not be affected, the second will be disconnected.
fn scene() -> (PrivateDaemon, Raw, Raw) {
    let daemon = daemon("");
    let bystander = Raw::attach(daemon.socket());
    let hostile = Raw::attach(daemon.socket());
    (daemon, bystander, hostile)
}

fn goes_on(daemon: &PrivateDaemon, bystander: &mut Raw) {
    assert_eq!(bystander.status(sub(Op::Nop)), Status::Ok, "{}", daemon.log());
    assert_eq!(Raw::attach(daemon.socket()).status(sub(Op::Nop)), Status::Ok, "{}", daemon.log());
}

fn thrown_out(daemon: &PrivateDaemon, disconnect: Option<Disconnect>, why: &str) {
    let disconnect = disconnect.unwrap();
    assert_eq!(disconnect.status, Status::Protocol);
    assert!(disconnect.text.contains(why), "{}", disconnect.text);
    assert!(daemon.log().contains(why), "the log does not say why: {}", daemon.log());
}

#[test]
fn any_fields_under_a_free_tag_are_answered_once_each() {
    // Contexts of traces are input too. No collector listens there.
    let daemon = daemon("[tracing]\nendpoint = \"http://127.0.0.1:1\"\n");
    let (mut bystander, mut raw) = (Raw::attach(daemon.socket()), Raw::attach(daemon.socket()));
    let mut random = Random::new(1);
    for round in 0..20_000 {
        let list_len = if random.one_in(3) { value(&mut random) as u32 } else { (random.next() % 9) as u32 };
        let words: Vec<u32> = (0..list_len.min(LIST_WORDS as u32)).map(|_| value(&mut random) as u32).collect();
        let tag = (random.next() % u64::from(DEPTH)) as u16;
        raw.side.channels[0].requests.write(tag, &words).unwrap();
        let submission = Submission {
            op: if random.one_in(8) { random.next() as u16 } else { (random.next() % 20) as u16 },
            tag,
            lane: value(&mut random) as u16,
            flags: value(&mut random) as u16,
            seq: value(&mut random) as u32,
            block: value(&mut random) as u32,
            first: value(&mut random) as u32,
            count: value(&mut random) as u32,
            list_len,
            trace: (random.next() % 64).saturating_sub(61) as u32,
            value: value(&mut random),
            timeout_us: 1 + random.next() % 1000,
            hash: [random.next(), random.next()],
        };
        let completion = raw.call(submission);
        let status = Status::from_code(completion.status);
        assert!(status.is_some() && status != Some(Status::Internal), "round {round}: {submission:?}: {completion:?}");
        if round % 1000 == 0 {
            assert_eq!(bystander.status(sub(Op::Nop)), Status::Ok);
        }
    }
    goes_on(&daemon, &mut bystander);
}

#[test]
fn any_bytes_at_all_end_that_session_at_most() {
    let (daemon, mut bystander, _) = scene();
    for seed in 0..40 {
        let mut raw = Raw::attach(daemon.socket());
        let mut random = Random::new(seed);
        for _ in 0..DEPTH {
            let any: [u64; 8] = std::array::from_fn(|_| random.next());
            let submission: Submission = zerocopy::transmute!(any);
            raw.side.channels[1].submissions.push(&submission).unwrap();
            let done: JobDone = zerocopy::transmute!(any);
            raw.side.job_rings.done.push(&done).unwrap();
        }
        raw.side.job_rings.waker.wake();
        let disconnect = raw.expelled().unwrap();
        assert_eq!(disconnect.status, Status::Protocol, "{}", disconnect.text);
        assert_eq!(bystander.status(sub(Op::Nop)), Status::Ok, "{}", daemon.log());
    }
    goes_on(&daemon, &mut bystander);
}

#[test]
fn a_tag_beyond_the_depth_ends_the_session() {
    let (daemon, mut bystander, mut raw) = scene();
    raw.submit(0, &Submission { tag: DEPTH, ..sub(Op::Nop) });
    thrown_out(&daemon, raw.expelled(), "tag 8 is not below the channel's depth, 8");
    goes_on(&daemon, &mut bystander);
}

#[test]
fn a_tag_that_is_in_flight_ends_the_session() {
    let (daemon, mut bystander, mut raw) = scene();
    park_four_blocks(&mut raw, 0);
    // The request is in flight until this engine ends its jobs.
    raw.submit(0, &sub(Op::Resume));
    raw.submit(0, &sub(Op::Nop));
    thrown_out(&daemon, raw.expelled(), "tag 0 was reused before its completion");
    goes_on(&daemon, &mut bystander);
}

#[test]
fn answers_that_are_never_taken_end_the_session() {
    let (daemon, mut bystander, mut raw) = scene();
    // Tags are reused while their completions are still in the ring.
    for tag in (0..DEPTH).chain([0]) {
        until(|| "the ring stays full", || raw.side.channels[0].submissions.free(1).unwrap() != 0);
        raw.submit(0, &Submission { tag, ..sub(Op::Nop) });
    }
    thrown_out(&daemon, raw.expelled(), "tags were reused before their completions were read");
    goes_on(&daemon, &mut bystander);
}

#[test]
fn a_job_that_does_not_exist_ends_the_session() {
    let (daemon, mut bystander, mut raw) = scene();
    raw.side.job_rings.done.push(&JobDone { id: 77, ..JobDone::default() }).unwrap();
    raw.side.job_rings.waker.wake();
    thrown_out(&daemon, raw.expelled(), "job 77 was reported as ended but is not in flight");
    goes_on(&daemon, &mut bystander);
}

#[test]
fn a_message_after_the_hello_ends_the_session() {
    let (daemon, mut bystander, mut raw) = scene();
    raw.socket.send(&hello().encode().unwrap(), &[]).unwrap();
    let why = "unexpected message on the attach socket: only detach is allowed after the handshake";
    thrown_out(&daemon, raw.expelled(), why);
    goes_on(&daemon, &mut bystander);
}

#[test]
fn impossible_ring_indices_end_the_session() {
    let daemon = daemon("");
    let mut bystander = Raw::attach(daemon.socket());
    let hello = hello();
    let shape = Shape { channels: hello.channels, depth: hello.depth, jobs: 1024, lanes: hello.lanes };
    let engine = Layout::of(shape).ok().unwrap().engine;
    // A tail more than one ring ahead, a head ahead of its tail, an inconsistent completion ring.
    for (offset, why) in [(engine.tail(1), "tail"), (engine.job_tail, "tail")] {
        let socket = Socket::connect(daemon.socket()).unwrap();
        socket.send(&hello.encode().unwrap(), &[]).unwrap();
        let mut buffer = vec![0; 16384];
        let (_, fds) = socket.receive_within(&mut buffer, FDS_MAX, BOUND).unwrap();
        // The engine may write region E; the write system call needs no mapping.
        rustix::io::pwrite(&fds[0], &0x8000_0000u32.to_le_bytes(), offset).unwrap();
        rustix::io::write(&fds[2], &1u64.to_ne_bytes()).unwrap();
        let (len, _) = socket.receive_within(&mut buffer, 1, BOUND).unwrap();
        let FromDaemon::Disconnect(disconnect) = FromDaemon::decode(&buffer[..len]).unwrap() else {
            panic!("not a disconnect message")
        };
        thrown_out(&daemon, Some(disconnect), &format!("ring {why}: the peer's index"));
        goes_on(&daemon, &mut bystander);
    }
}

/// Report arbitrary data about attention; called before, between and after a step's planes.
fn rave(lane: &mut Lane, seqs: &[SeqId], random: &mut Random) {
    let seq = seqs[random.next() as usize % seqs.len()];
    let kind = ScoreKind::ALL[random.next() as usize % ScoreKind::ALL.len()];
    let plane = (random.next() % PAGE_BYTES.len() as u64) as u16;
    let share = |random: &mut Random| match random.next() % 5 {
        0 => f32::NAN,
        1 => f32::INFINITY,
        2 => -1.0,
        _ => (random.next() % 1000) as f32 / 100.0,
    };
    let shares: Vec<f32> = (0..random.next() % 300).map(|_| share(random)).collect();
    // Rejected for a sequence that is not in the step.
    let _ = lane.scores(kind, seq, plane, &shares);
}

/// Read the pages of a sequence that a step hands out; every byte must be the written one. Return the number of pages.
fn look(lane: &mut Lane, seqs: &[SeqId], seq: SeqId, blocks: u32, random: &mut Random) -> usize {
    lane.begin(&[StepSeq { seq, tokens: u64::from(blocks) * PAGE_TOKENS }]).unwrap();
    let mut seen = 0;
    for plane in 0..PAGE_BYTES.len() as u16 {
        rave(lane, seqs, random);
        loop {
            let pass = lane.boundary(plane).unwrap();
            let indices: Vec<u32> = match pass {
                Pass::All => (0..blocks).collect(),
                Pass::Part { .. } => lane.ready().iter().map(|ready| ready.index).collect(),
            };
            for index in indices {
                let page = lane.page(seq, index, plane).unwrap();
                let right = |byte: &u8| *byte == clients::content(index, plane);
                assert!(page.iter().all(right), "block {index}, plane {plane}");
                seen += 1;
            }
            if matches!(pass, Pass::All | Pass::Part { last: true, .. }) {
                break;
            }
        }
        rave(lane, seqs, random);
    }
    lane.end().unwrap();
    seen
}

#[test]
fn nonsense_about_attention_never_changes_what_is_read() {
    const BLOCKS: u32 = 24;
    let daemon = daemon("");
    let mut stranger = Raw::attach(daemon.socket());
    let (client, mut channel, mut lane) = clients::attach(daemon.socket(), 8);
    // Three times the capacity of tier 0.
    let seqs: Vec<SeqId> = (0..4).map(|_| clients::write(&mut channel, &mut lane, BLOCKS)).collect();
    for seq in [seqs[1], seqs[3]] {
        channel.contract(seq, Contract::Approx { permille: 300 }, BOUND).unwrap();
    }
    let mut random = Random::new(7);
    let mut some = 0;
    for round in 0..60 {
        let at = (random.next() % 4) as usize;
        let seen = look(&mut lane, &seqs, seqs[at], BLOCKS, &mut random);
        let all = BLOCKS as usize * PAGE_BYTES.len();
        assert!(seen == all || (at % 2 == 1 && seen > 0), "round {round}: {seen} of {all} pages of sequence {at}");
        some += usize::from(seen < all);
        // A session of another space sends invalid scores faster than the daemon reads them.
        for _ in 0..100 {
            let count = (random.next() % (TOP_MAX as u64 + 1)) as usize;
            let mass = |random: &mut Random| F16((random.next() as u16) | 0x8000);
            let top = |random: &mut Random| Top { index: value(random) as u32, log_mass: mass(random) };
            let top: Vec<Top> = (0..count).map(|_| top(&mut random)).collect();
            let kind = ScoreKind::ALL[random.next() as usize % ScoreKind::ALL.len()];
            let (seq, plane, step, rest) =
                (value(&mut random) as u32, value(&mut random) as u16, value(&mut random), mass(&mut random));
            let scores = Scores::new(kind, seq, plane, step, &top, rest).unwrap();
            stranger.side.lanes[0].scores.write(&scores);
        }
        assert_eq!(stranger.status(sub(Op::Nop)), Status::Ok, "{}", daemon.log());
    }
    assert!(some > 0 && client.stats().scores > 50, "no page was skipped, or no scores were sent");
    goes_on(&daemon, &mut stranger);
}

/// One engine never reports the copies of its stores: cancelled or not, with a short deadline or none. Meanwhile another engine
/// of the same model loads from NVMe and stores. The daemon ends the session of the first engine.
#[test]
fn copies_that_are_never_reported_hold_up_no_other_engine() {
    const STORED: u128 = 6;
    for (timeout_us, cancels) in [(u64::MAX, false), (1_000, false), (u64::MAX, true)] {
        let dir = Dir::new();
        let options = Options { host_bytes: Some(4 << 20), ..nvme_options(&dir, 64 << 20, "", "") };
        let daemon = PrivateDaemon::start(&options).unwrap();
        let (_client, mut channel, mut memory) = blocks::attach(daemon.socket(), 1, 0, 64);
        for prefix in 1..=STORED {
            blocks::store(&mut channel, &mut memory, prefix, 64, Level::Stored);
        }
        let plane = |page_bytes| Plane::full(page_bytes);
        let planes = blocks::PAGE_BYTES.map(plane).to_vec();
        let as_theirs = Hello { fingerprint: [9; 32], planes, tier0_frames: vec![0, 0], ..hello() };
        let mut raw = Raw::attach_as(daemon.socket(), &as_theirs).unwrap();
        for tag in 0..DEPTH - 2 {
            const COUNT: u32 = 100;
            let words = (0..COUNT).flat_map(|i| [i + 1, u32::from(tag), 7, 7]).chain(0..COUNT).collect::<Vec<u32>>();
            raw.side.channels[0].requests.write(tag, &words).unwrap();
            let (count, list_len, flags) = (COUNT, words.len() as u32, Level::Published as u16);
            let store = Submission { tag, count, list_len, flags, first: 0, timeout_us, ..sub(Op::StoreBlocks) };
            raw.submit(0, &store);
            if cancels {
                raw.submit(0, &Submission { tag: DEPTH - 1, value: tag.into(), ..sub(Op::Cancel) });
                while raw.completion_without_jobs(0).unwrap().tag != DEPTH - 1 {}
            }
        }
        until(|| "its copies did not begin", || raw.side.job_rings.jobs.available().unwrap() != 0);
        for prefix in 1..=STORED {
            blocks::load(&mut channel, &mut memory, prefix, 64);
        }
        blocks::store(&mut channel, &mut memory, STORED + 1, 64, Level::Stored);
        let disconnect = raw.expelled().unwrap();
        assert_eq!(disconnect.status, Status::Limit, "{}", disconnect.text);
        assert!(disconnect.text.contains("copies that did not finish in time"), "{}", disconnect.text);
        assert!(daemon.log().contains(&disconnect.text), "the log does not say why: {}", daemon.log());
        for prefix in 1..=STORED + 1 {
            blocks::load(&mut channel, &mut memory, prefix, 64);
        }
    }
}
