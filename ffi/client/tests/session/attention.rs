//! Reading contracts: pages that are picked or waived, and the attention scores that the daemon receives.

use super::fake::{Command, FRAMES, Fake, LONG, PAGE, PLANES, Script, TOKENS, options};
use kvtide_client::{
    Channel, Client, Contract, DigestOptions, Element, Error, KeyLayout, Lane, Omission, Options, Pass, ScoreKind,
    StepSeq,
};
use kvtide_wire::{entry::Op, half::F16, status::Status};
use std::time::{Duration, Instant};

const BLOCKS: u32 = 8;
const STEP_TOKENS: u64 = BLOCKS as u64 * TOKENS;
/// Score of each block's keys against [`QUERY`].
const SCORES: [f32; BLOCKS as usize] = [0.0, -6.0, 5.0, -7.0, -2.0, -1.0, 0.0, 1.0];
/// Two query heads of one KV head with four channels.
const QUERY: [f32; 8] = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0];
const DIGESTS: DigestOptions = DigestOptions {
    keys: KeyLayout {
        element: Element::F32,
        heads: 1,
        channels: 4,
        tile_tokens: TOKENS as u16,
        offset: 8,
        head_stride: 0,
        tile_stride: 0,
        token_stride: 16,
        channel_stride: 4,
    },
    pages: 40,
    groups: 1,
};

/// A session with a sequence of eight sealed blocks.
struct Rig {
    fake: Fake,
    client: Client,
    channel: Channel,
    lane: Lane,
    seq: u32,
}

/// Create a session in which pages 1, 2 and 3 of plane 0 are only in host memory.
fn rig(max_stall: Duration, contract: Contract) -> Rig {
    let rig = whole(max_stall, contract);
    let blocks = rig.client.seq_blocks(rig.seq).expect("blocks");
    for index in [1, 2, 3] {
        assert_eq!(rig.fake.evict(blocks[index], 0), Status::Ok);
    }
    rig
}

/// Create a session in which every page is in tier 0.
fn whole(max_stall: Duration, contract: Contract) -> Rig {
    let fake = Fake::start();
    let options = Options { digests: Some(DIGESTS), max_stall, ..options(fake.socket.clone()) };
    let client = Client::attach(options).expect("attach");
    let mut channel = client.channel(0).expect("channel");
    let mut lane = client.lane(0).expect("lane");
    let seq = channel.create_seq().expect("create");
    channel.reserve(seq, STEP_TOKENS, LONG).expect("reserve");
    lane.begin(&[StepSeq { seq, tokens: STEP_TOKENS }]).expect("begin");
    for index in 0..BLOCKS {
        for plane in 0..PLANES {
            let page = lane.page_mut(seq, index, plane).expect("writable");
            page.fill(0);
            for key in page[8..].chunks_exact_mut(16).take(TOKENS as usize) {
                key[..4].copy_from_slice(&SCORES[index as usize].to_le_bytes());
            }
        }
    }
    lane.end().expect("end");
    channel.commit(seq, STEP_TOKENS).expect("commit");
    channel.contract(seq, contract, LONG).expect("contract");
    Rig { fake, client, channel, lane, seq }
}

impl Rig {
    /// Begin a step and report plane 0's query.
    fn begin(&mut self) {
        self.lane.begin(&[StepSeq { seq: self.seq, tokens: STEP_TOKENS }]).expect("begin");
        self.lane.query(self.seq, 0, &QUERY).expect("query");
    }

    /// Pass one boundary of plane 0. Return the pages that it hands out, and whether they are the last.
    fn boundary(&mut self) -> (Vec<u32>, bool) {
        match self.lane.boundary(0).expect("boundary") {
            Pass::All => panic!("some pages are missing, so not all can be readable"),
            Pass::Part { count, last } => {
                let ready: Vec<u32> = self.lane.ready().iter().map(|ready| ready.index).collect();
                assert_eq!(ready.len(), count);
                (ready, last)
            }
        }
    }

    /// Return, for each query head, the logarithm of the sum over the pages that were read.
    fn sums(read: &[u32]) -> [f32; 2] {
        let sum: f32 = read.iter().map(|index| TOKENS as f32 * SCORES[*index as usize].exp()).sum();
        [sum.ln(); 2]
    }

    fn omission(&self) -> Omission {
        self.lane.omission(self.seq, 0).expect("the plane of the last boundary")
    }
}

#[test]
fn approx_reads_the_best_pages_and_does_without_those_that_are_not_there() {
    let mut rig = rig(Duration::ZERO, Contract::Approx { permille: 500 });
    let before = rig.client.stats();
    rig.begin();
    // Four pages: the first, the last two, and the best of the others. That one is in host memory, so the next best page in
    // tier 0 replaces it.
    assert_eq!(rig.boundary(), (vec![0, 5, 6, 7], true));
    assert_eq!(rig.omission(), Omission { needed: 8, omitted: 4, waived: 1, ..Omission::default() });
    // True scores of the pages that were read: e⁰, e⁻¹, e⁰, e¹.
    let masses = [1.0, f32::NAN, f32::NAN, f32::NAN, f32::NAN, (-1f32).exp(), 1.0, 1f32.exp()];
    let total: f32 = masses.iter().filter(|mass| mass.is_finite()).sum();
    rig.lane.mass(rig.seq, 0, &masses.map(|mass| mass / total)).expect("mass");
    // The true loss is about e⁵ of e⁵ + e¹ + 2e⁰ and smaller terms: 97 %.
    let told = rig.omission();
    assert!((0.9..1.0).contains(&told.share) && told.worst >= told.share, "{told:?}");
    // The other plane is complete: the best page is read.
    rig.lane.query(rig.seq, 1, &QUERY).expect("query");
    assert_eq!(rig.lane.boundary(1).expect("boundary"), Pass::Part { count: 4, last: true });
    assert_eq!(rig.lane.ready().iter().map(|ready| ready.index).collect::<Vec<_>>(), [0, 2, 6, 7]);
    assert_eq!(rig.lane.omission(rig.seq, 0), None);
    rig.lane.end().expect("end");
    let after = rig.client.stats();
    assert_eq!((after.faults, after.stalls), (before.faults, before.stalls), "the step waited for no page");
    assert_eq!((after.pages_waived, after.pages_unpicked, after.omissions), (1, 3 + 4, 1));
    assert!(after.omitted_ppm > 900_000);
    // With the exact contract again, everything is read.
    rig.channel.contract(rig.seq, Contract::Exact, LONG).expect("contract");
    assert!(
        super::pages::read_indices(&mut rig.lane, rig.seq, BLOCKS)
            .iter()
            .all(|plane| *plane == (0..BLOCKS).collect::<Vec<_>>())
    );
}

#[test]
fn what_each_head_read_makes_the_estimate_closer() {
    let mut rig = rig(Duration::ZERO, Contract::Approx { permille: 500 });
    let status = |error: Error| error.status();
    rig.begin();
    assert_eq!(rig.lane.sums(rig.seq, 0, &[0.0; 2]).map_err(status), Err(Status::State), "before the boundary");
    let (read, _) = rig.boundary();
    let sums = Rig::sums(&read);
    let mut masses = [f32::NAN; BLOCKS as usize];
    read.iter().for_each(|i| masses[*i as usize] = TOKENS as f32 * SCORES[*i as usize].exp() / sums[0].exp());
    assert_eq!(rig.lane.sums(rig.seq, 0, &sums[..1]).map_err(status), Err(Status::Range));
    assert_eq!(rig.lane.sums(rig.seq, 1, &sums).map_err(status), Err(Status::State), "not the boundary's plane");
    // The second head read a hundred times as much, so it lost little.
    rig.lane.sums(rig.seq, 0, &[sums[0], sums[1] + 100f32.ln()]).expect("sums");
    rig.lane.mass(rig.seq, 0, &masses).expect("mass");
    let told = rig.omission();
    assert!(told.worst > 0.9 && told.share < 0.8, "{told:?}");
}

#[test]
fn what_is_there_as_a_whole_is_read_as_a_whole_and_nothing_is_scored() {
    let mut rig = whole(Duration::ZERO, Contract::Approx { permille: 250 });
    assert_eq!(rig.lane.wants_mass(rig.seq).map_err(|error| error.status()), Err(Status::State), "no step is open");
    assert_eq!(rig.lane.wants_ahead(rig.seq).map_err(|error| error.status()), Err(Status::State), "no step is open");
    rig.begin();
    assert!(!rig.lane.wants_ahead(rig.seq).expect("asked"));
    rig.lane.ahead(rig.seq, 1, &QUERY).expect("ahead");
    assert_eq!(rig.lane.boundary(0).expect("boundary"), Pass::All);
    assert_eq!(rig.lane.sums(rig.seq, 0, &[0.0; 3]).map_err(|error| error.status()), Err(Status::Range));
    rig.lane.sums(rig.seq, 0, &[0.0; 2]).expect("sums");
    rig.lane.mass(rig.seq, 0, &[0.125; BLOCKS as usize]).expect("mass");
    assert_eq!(rig.omission(), Omission { needed: BLOCKS, ..Omission::default() });
    assert_eq!(rig.lane.boundary(1).expect("boundary"), Pass::All);
    rig.lane.end().expect("end");
    let told = rig.fake.scores();
    assert_eq!(told.iter().map(|scores| (scores.kind, scores.plane)).collect::<Vec<_>>(), [(ScoreKind::Mass, 0)]);
    let stats = rig.client.stats();
    assert_eq!((stats.messages_before_steps, stats.pages_unpicked, stats.omissions), (0, 0, 0));
    // One page has left tier 0, so the budget applies.
    let block = rig.client.seq_blocks(rig.seq).expect("blocks")[4];
    assert_eq!(rig.fake.evict(block, 1), Status::Ok);
    rig.begin();
    assert_eq!(rig.boundary(), (vec![0, 6, 7], true));
}

#[test]
fn a_query_told_while_all_was_there_counts_when_a_page_leaves_before_the_boundary() {
    let mut rig = whole(Duration::ZERO, Contract::Approx { permille: 500 });
    rig.begin();
    assert_eq!(rig.fake.scores().len(), 0, "a sequence that is read completely is not scored");
    let block = rig.client.seq_blocks(rig.seq).expect("blocks")[4];
    let (answer, ended) = std::sync::mpsc::channel();
    rig.fake.tell(Command::Evict { block, plane: 1, answer });
    // The eviction ends when this lane has seen it. The other lane shows when there is something to see.
    let mut other = rig.client.lane(1).expect("lane");
    let until = Instant::now() + LONG;
    let mut shown = true;
    while shown && Instant::now() < until {
        other.begin(&[]).expect("begin");
        shown = other.pte(block, 1).is_some();
        other.end().expect("end");
        std::thread::yield_now();
    }
    assert!(!shown, "the page leaves tier 0");
    assert_eq!(rig.boundary(), (vec![0, 2, 6, 7], true));
    assert_eq!(ended.recv_timeout(LONG).expect("the eviction ends"), Status::Ok);
    assert_eq!(rig.fake.scores().len(), 1);
}

/// A step keeps the contract with which it began: a mix of two contracts would satisfy neither.
#[test]
fn a_contract_that_changes_in_a_step_is_the_next_one_s() {
    let mut rig = rig(Duration::ZERO, Contract::Approx { permille: 500 });
    rig.begin();
    assert_eq!(rig.boundary(), (vec![0, 5, 6, 7], true));
    rig.channel.contract(rig.seq, Contract::Exact, LONG).expect("contract");
    rig.lane.query(rig.seq, 1, &QUERY).expect("query");
    assert_eq!(rig.lane.boundary(1).expect("boundary"), Pass::Part { count: 4, last: true });
    rig.lane.end().expect("end");
    let faults = rig.client.stats().faults;
    // The next step reads everything and waits for missing pages. Changing the contract back during the step has no effect on
    // it.
    rig.begin();
    let (mut read, mut last) = rig.boundary();
    rig.channel.contract(rig.seq, Contract::Approx { permille: 500 }, LONG).expect("contract");
    while !last {
        let (more, end) = rig.boundary();
        read.extend(more);
        last = end;
    }
    read.sort_unstable();
    assert_eq!((read, rig.omission().omitted), ((0..BLOCKS).collect(), 0));
    rig.lane.query(rig.seq, 1, &QUERY).expect("query");
    assert_eq!(rig.lane.boundary(1).expect("boundary"), Pass::All);
    rig.lane.end().expect("end");
    assert!(rig.client.stats().faults > faults);
}

#[test]
fn approx_waits_for_what_it_picked_as_long_as_it_may() {
    let mut patient = rig(LONG, Contract::Approx { permille: 500 });
    patient.begin();
    assert_eq!(patient.boundary(), (vec![0, 6, 7], false));
    assert_eq!(patient.boundary(), (vec![2], true));
    assert_eq!(patient.omission(), Omission { needed: 8, omitted: 4, waived: 0, ..Omission::default() });
    assert_eq!(patient.client.stats().faults, 1);
    patient.lane.end().expect("end");

    let mut hasty = rig(Duration::from_millis(5), Contract::Approx { permille: 500 });
    hasty.fake.tell(Command::Answer { op: Op::Fault, with: Script::Silence });
    hasty.begin();
    assert_eq!(hasty.boundary(), (vec![0, 6, 7], false));
    assert_eq!(hasty.boundary(), (vec![], true));
    assert_eq!(hasty.omission(), Omission { needed: 8, omitted: 5, waived: 1, ..Omission::default() });
    assert!(hasty.lane.boundary(0).is_err_and(|error| error.status() == Status::State), "the plane is complete");
    hasty.lane.end().expect("end");
    assert_eq!(hasty.client.stats().pages_waived, 1);
}

#[test]
fn shares_of_what_is_there_as_a_whole_are_wanted_at_every_eighth_step() {
    let mut rig = whole(Duration::ZERO, Contract::Approx { permille: 250 });
    let ask = |rig: &mut Rig| {
        rig.begin();
        let wanted = rig.lane.wants_mass(rig.seq).expect("asked");
        rig.lane.end().expect("end");
        wanted
    };
    let steps: Vec<usize> = (0..24).filter(|_| ask(&mut rig)).collect();
    assert_eq!((steps.len(), steps[1] - steps[0], steps[2] - steps[1]), (3, 8, 8), "{steps:?}");
    rig.channel.contract(rig.seq, Contract::Exact, LONG).expect("contract");
    assert!((0..8).all(|_| !ask(&mut rig)));
}

#[test]
fn the_daemon_is_told_shares_and_nothing_that_is_none() {
    let mut rig = rig(Duration::ZERO, Contract::Approx { permille: 500 });
    rig.begin();
    assert!(rig.lane.wants_ahead(rig.seq).expect("asked") && rig.lane.wants_mass(rig.seq).expect("asked"));
    rig.lane.ahead(rig.seq, 1, &QUERY).expect("ahead");
    rig.boundary();
    let none = f32::NAN;
    rig.lane.mass(rig.seq, 0, &[0.5, none, none, none, none, none, 0.25, 0.25]).expect("mass");
    rig.lane.scores(ScoreKind::Mass, rig.seq, 1, &[0.0, 1.0, -3.0, none, 7.0]).expect("scores");
    rig.lane.end().expect("end");
    let told = rig.fake.scores();
    let heads: Vec<_> = told.iter().map(|s| (s.kind, s.seq, s.plane, s.top().len())).collect();
    let seq = rig.seq;
    assert_eq!(
        heads,
        [
            (ScoreKind::Query, seq, 0, 8),
            (ScoreKind::Ahead, seq, 1, 8),
            (ScoreKind::Mass, seq, 0, 3),
            (ScoreKind::Mass, seq, 1, 2),
        ]
    );
    let best = told[0].top().iter().max_by(|a, b| a.log_mass.to_f32().total_cmp(&b.log_mass.to_f32()));
    assert_eq!(best.map(|top| top.index), Some(2));
    assert_eq!(told[2].top().iter().map(|top| top.index).collect::<Vec<_>>(), [0, 6, 7]);
    assert!((told[2].top()[0].log_mass.to_f32() - 0.5f32.ln()).abs() < 1e-3 && told[2].rest == F16::NEG_INFINITY);
    assert_eq!(
        told[3].top().iter().map(|top| (top.index, top.log_mass.to_f32())).collect::<Vec<_>>(),
        [(1, 0.0), (4, 0.0)]
    );
    assert_eq!(rig.client.stats().scores, 4);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut rig = rig(Duration::ZERO, Contract::Approx { permille: 500 });
    let status = |error: Error| error.status();
    let seq = rig.seq;
    assert_eq!(rig.lane.query(seq, 0, &QUERY).map_err(status), Err(Status::State), "no step is open");
    rig.begin();
    assert_eq!(rig.lane.query(seq, 0, &QUERY[..3]).map_err(status), Err(Status::Range));
    assert_eq!(rig.lane.query(seq, PLANES, &QUERY).map_err(status), Err(Status::Range));
    assert_eq!(rig.lane.query(seq + 1, 0, &QUERY).map_err(status), Err(Status::State));
    assert_eq!(rig.lane.mass(seq, 0, &[0.5; 7]).map_err(status), Err(Status::Range));
    rig.lane.end().expect("end");
    for permille in [0, 1001] {
        let contract = Contract::Approx { permille };
        assert_eq!(rig.channel.contract(seq, contract, LONG).map_err(status), Err(Status::Range));
    }
    // A contract that the daemon rejects does not take effect.
    rig.channel.contract(seq, Contract::Exact, LONG).expect("contract");
    rig.fake.tell(Command::Answer { op: Op::Contract, with: Script::Status(Status::NoSpace) });
    let refused = rig.channel.contract(seq, Contract::Approx { permille: 1 }, LONG);
    assert_eq!(refused.map_err(status), Err(Status::NoSpace));
    rig.begin();
    assert_eq!(rig.boundary(), (vec![0, 4, 5, 6, 7], false), "the contract is still exact");
}

#[test]
fn digests_that_do_not_fit_are_refused_before_anything_is_allocated() {
    let refused = |digests: DigestOptions, why: &str| {
        let options = Options { digests: Some(digests), ..options("/nowhere".into()) };
        match Client::attach(options) {
            Err(error @ Error::Options { option: "digests", .. }) => {
                assert!(error.to_string().contains(why), "{error}")
            }
            other => panic!("{:?}", other.map(|_| ())),
        }
    };
    refused(DigestOptions { groups: 20, ..DIGESTS }, "exceed 1/20 of a page");
    refused(DigestOptions { groups: 0, ..DIGESTS }, "0 groups");
    refused(DigestOptions { pages: FRAMES * 1024, ..DIGESTS }, "frames");
    let keys = KeyLayout { offset: PAGE as u32, ..DIGESTS.keys };
    refused(DigestOptions { keys, ..DIGESTS }, "the last key ends");
}
