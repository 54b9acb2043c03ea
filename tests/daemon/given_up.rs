//! `drop = true`: pages that attention does not need are dropped permanently. A request for one is an error, never wrong bytes.

use crate::{BOUND, options, until_status};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_client::{Channel, Client, Contract, Lane, Options as ClientOptions, Pass, SeqId, SpaceSpec, StepSeq};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::Plane;
use kvtide_wire::status::Status;

const PAGE_BYTES: u32 = 4096;
const PAGE_TOKENS: u64 = 16;
const PLANES: u16 = 2;
/// Frames of tier 0, and blocks of the sequence: two thirds of its pages must be outside of tier 0.
const FRAMES: u32 = 24;
const BLOCKS: u32 = 32;
/// Maximum number of steps until some page is dropped.
const STEPS: u32 = 2000;

struct Engine {
    lane: Lane,
    channel: Channel,
    _client: Client,
}

/// Return the bytes of a page; they differ between any two pages.
fn content(index: u32, plane: u16) -> Vec<u8> {
    let seed = u64::from(index) << 32 | u64::from(plane) << 16;
    let word = |n: u64| (seed + n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).to_le_bytes();
    (0..u64::from(PAGE_BYTES) / 8).flat_map(word).collect()
}

impl Engine {
    fn attach(daemon: &PrivateDaemon) -> Engine {
        let space =
            SpaceSpec::new("given-up", [1; 32], PAGE_TOKENS as u32, vec![Plane::full(PAGE_BYTES); usize::from(PLANES)]);
        let options =
            ClientOptions { timeout: BOUND, ..ClientOptions::new(daemon.socket().into(), space, vec![FRAMES]) };
        let client = Client::attach(options).unwrap();
        let (channel, lane) = (client.channel(0).unwrap(), client.lane(0).unwrap());
        Engine { lane, channel, _client: client }
    }

    /// Create a sequence of [`BLOCKS`] blocks, written one block at a time.
    fn write(&mut self) -> SeqId {
        let seq = self.channel.create_seq().unwrap();
        for block in 0..BLOCKS {
            let tokens = u64::from(block + 1) * PAGE_TOKENS;
            self.channel.reserve(seq, tokens, BOUND).unwrap();
            self.lane.begin(&[StepSeq { seq, tokens }]).unwrap();
            for plane in 0..PLANES {
                self.lane.page_mut(seq, block, plane).unwrap().copy_from_slice(&content(block, plane));
            }
            self.lane.end().unwrap();
            self.channel.commit(seq, tokens).unwrap();
        }
        seq
    }

    /// Run a step that reads the pages that its contract selects, and report that attention was on `best`. Return the number of
    /// pages read.
    fn step(&mut self, seq: SeqId, best: impl Fn(u32) -> bool) -> Result<u32, Status> {
        let tokens = u64::from(BLOCKS) * PAGE_TOKENS;
        self.lane.begin(&[StepSeq { seq, tokens }]).map_err(|e| e.status())?;
        let read = (0..PLANES).map(|plane| self.plane(seq, plane, &best)).sum();
        self.lane.end().map_err(|e| e.status()).and(read)
    }

    fn plane(&mut self, seq: SeqId, plane: u16, best: &impl Fn(u32) -> bool) -> Result<u32, Status> {
        let mut shares = vec![f32::NAN; BLOCKS as usize];
        loop {
            let pass = self.lane.boundary(plane).map_err(|e| e.status())?;
            let ready: Vec<u32> = match pass {
                Pass::All => (0..BLOCKS).collect(),
                Pass::Part { .. } => self.lane.ready().iter().map(|ready| ready.index).collect(),
            };
            for index in ready {
                let page = self.lane.page(seq, index, plane).unwrap();
                assert!(*page == *content(index, plane), "WRONG BYTES: block {index}, plane {plane}");
                shares[index as usize] = if best(index) { 1.0 } else { 0.001 };
            }
            if matches!(pass, Pass::All | Pass::Part { last: true, .. }) {
                break;
            }
        }
        let sum: f32 = shares.iter().filter(|share| !share.is_nan()).sum();
        shares.iter_mut().for_each(|share| *share /= sum);
        self.lane.mass(seq, plane, &shares).unwrap();
        Ok(shares.iter().filter(|share| !share.is_nan()).count() as u32)
    }
}

#[test]
fn what_is_given_up_is_told_and_never_read_wrong() {
    let mut daemon = PrivateDaemon::start(&options("[attention]\ndrop = true\n")).unwrap();
    let mut engine = Engine::attach(&daemon);
    let seq = engine.write();
    assert_eq!(engine.step(seq, |_| true), Ok(BLOCKS * u32::from(PLANES)), "exact: no page is dropped");
    engine.channel.contract(seq, Contract::Approx { permille: 250 }, BOUND).unwrap();
    let retired = |status: &serde_json::Value| status["spaces"][0]["core"]["pages_discarded"].as_u64();
    let mut steps = 0;
    let given_up = loop {
        // Attention is on the same few pages for a while, then on others.
        let read = engine.step(seq, |index| index % 8 == steps / 50 % 8).unwrap();
        assert!(read < BLOCKS * u32::from(PLANES));
        steps += 1;
        if steps % 50 == 0 {
            match retired(&daemon.status().unwrap()) {
                Some(0) => assert!(steps < STEPS, "no page was dropped\n{}", daemon.log()),
                Some(count) => break count,
                None => panic!("{:#}", daemon.status().unwrap()),
            }
        }
    };
    assert!(given_up < u64::from(BLOCKS * u32::from(PLANES)));

    // A mapped block is read completely, so a block with dropped pages is not published, and publish returns an error.
    let hashes: Vec<u128> = (1..=u128::from(BLOCKS)).map(|block| 1 << 64 | block).collect();
    let published = engine.channel.publish(seq, 0, 0, &hashes, Level::Published, BOUND);
    assert_eq!(published.map_err(|e| e.status()), Err(Status::NotAdmitted));
    // A step that must read all pages fails; a step that may skip pages succeeds.
    engine.channel.contract(seq, Contract::Exact, BOUND).unwrap();
    assert_eq!(engine.step(seq, |_| true), Err(Status::Lost));
    engine.channel.contract(seq, Contract::Approx { permille: 250 }, BOUND).unwrap();
    assert!(engine.step(seq, |_| true).is_ok());
    engine.channel.drop_seq(seq).unwrap();
    // Blocks published before the first dropped page stay cached, without the rest.
    until_status(&mut daemon, "all other blocks are free", |status| {
        let space = &status["spaces"][0];
        space["core"]["published"].as_u64().is_some_and(|n| n < u64::from(BLOCKS))
            && space["occupancy"]["blocks"] == space["core"]["published"]
    });
}
