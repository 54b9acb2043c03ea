//! Page selection of `approx` for pages that another session wrote: as good as for the session's own pages, once they were read.

use crate::BOUND;
use crate::nvme::{Dir, NVME_BYTES, nvme_options};
use kvtide_bench::private_daemon::PrivateDaemon;
use kvtide_client::{
    Channel, Client, Contract, DigestOptions, Element, KeyLayout, Lane, Options, Pass, SeqId, SpaceSpec, StepSeq,
};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::Plane;
use std::path::Path;

const PLANES: u16 = 2;
const PAGE_TOKENS: usize = 16;
const CHANNELS: usize = 32;
const KEY_BYTES: usize = PAGE_TOKENS * CHANNELS * size_of::<f32>();
const PAGE_BYTES: usize = 2 * KEY_BYTES;
const BLOCKS: u32 = 48;
const TOKENS: u64 = BLOCKS as u64 * PAGE_TOKENS as u64;
/// Less than half of the pages, digests included.
const FRAMES: u32 = 40;
/// Blocks written in one step.
const CHUNK: u32 = 8;
const STEPS: u64 = 6;
const PICKED: Contract = Contract::Approx { permille: 250 };

/// Pseudorandom numbers between −1 and 1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Return a page's keys: each near one of two points of the page.
fn keys(plane: u16, index: u32) -> Vec<f32> {
    let mut noise = Noise(u64::from(plane) << 32 | u64::from(index));
    let points: Vec<f32> = (0..2 * CHANNELS).map(|_| noise.next()).collect();
    let key = |token: usize, noise: &mut Noise| {
        let point = &points[token % 2 * CHANNELS..][..CHANNELS];
        point.iter().map(|x| x + 0.3 * noise.next()).collect::<Vec<f32>>()
    };
    (0..PAGE_TOKENS).flat_map(|token| key(token, &mut noise)).collect()
}

/// Return the query of a step. It attends to three pages, which differ between steps and planes.
fn query(plane: u16, step: u64) -> Vec<f32> {
    let mut noise = Noise(1 << 40 | u64::from(plane) << 32 | step);
    let mut query = vec![0.0; CHANNELS];
    for _ in 0..3 {
        let index = ((noise.next() + 1.0) * 0.5 * BLOCKS as f32) as u32;
        query.iter_mut().zip(keys(plane, index.min(BLOCKS - 1))).for_each(|(q, k)| *q += 0.7 * k);
    }
    query
}

/// Return the sum of a page's exponentials.
fn mass(query: &[f32], keys: &[f32]) -> f32 {
    let score = |key: &[f32]| key.iter().zip(query).map(|(k, q)| k * q).sum::<f32>().exp();
    keys.chunks_exact(CHANNELS).map(score).sum()
}

struct Engine {
    lane: Lane,
    channel: Channel,
}

impl Engine {
    fn attach(socket: &Path) -> Engine {
        let plane = Plane::full(PAGE_BYTES as u32);
        let space = SpaceSpec::new("sketches", [3; 32], PAGE_TOKENS as u32, vec![plane; usize::from(PLANES)]);
        let keys = KeyLayout {
            element: Element::F32,
            heads: 1,
            channels: CHANNELS as u16,
            tile_tokens: PAGE_TOKENS as u16,
            offset: 0,
            head_stride: 0,
            tile_stride: 0,
            token_stride: (CHANNELS * size_of::<f32>()) as u32,
            channel_stride: size_of::<f32>() as u32,
        };
        let digests = DigestOptions { keys, pages: BLOCKS * u32::from(PLANES), groups: 8 };
        let options = Options {
            seqs_max: 4,
            timeout: BOUND,
            max_stall: BOUND, // what is read is what is picked, however fast bytes move
            digests: Some(digests),
            ..Options::new(socket.into(), space, vec![FRAMES])
        };
        let client = Client::attach(options).unwrap();
        Engine { lane: client.lane(0).unwrap(), channel: client.channel(0).unwrap() }
    }

    /// Create a committed sequence of `blocks` blocks.
    fn write(&mut self, blocks: u32) -> SeqId {
        let seq = self.channel.create_seq().unwrap();
        for begin in (0..blocks).step_by(CHUNK as usize) {
            let end = (begin + CHUNK).min(blocks);
            let tokens = u64::from(end) * PAGE_TOKENS as u64;
            self.channel.reserve(seq, tokens, BOUND).unwrap();
            self.lane.begin(&[StepSeq { seq, tokens }]).unwrap();
            for (plane, index) in (0..PLANES).flat_map(|plane| (begin..end).map(move |index| (plane, index))) {
                let page = self.lane.page_mut(seq, index, plane).unwrap();
                let bytes = keys(plane, index).into_iter().flat_map(f32::to_le_bytes);
                page.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
            }
            self.lane.end().unwrap();
            self.channel.commit(seq, tokens).unwrap();
        }
        seq
    }

    /// Read a plane; return for each page whether it was read.
    fn read(&mut self, seq: SeqId, plane: u16) -> Vec<bool> {
        let mut read = vec![false; BLOCKS as usize];
        loop {
            let pass = self.lane.boundary(plane).unwrap();
            match pass {
                Pass::All => read.fill(true),
                Pass::Part { .. } => self.lane.ready().iter().for_each(|ready| read[ready.index as usize] = true),
            }
            for index in (0..BLOCKS).filter(|index| read[*index as usize]) {
                if let Some(page) = self.lane.page(seq, index, plane) {
                    let first = f32::from_le_bytes(page[..4].try_into().unwrap());
                    assert_eq!(first, keys(plane, index)[0], "WRONG BYTES: block {index}, plane {plane}");
                }
            }
            if matches!(pass, Pass::All | Pass::Part { last: true, .. }) {
                return read;
            }
        }
    }

    /// Run a step that reads all pages.
    fn exact(&mut self, seq: SeqId) {
        self.lane.begin(&[StepSeq { seq, tokens: TOKENS }]).unwrap();
        for plane in 0..PLANES {
            assert!(self.read(seq, plane).iter().all(|read| *read));
        }
        self.lane.end().unwrap();
    }

    /// Run steps that read a quarter of the pages. Return, for each step and plane, the number of pages read and their share of
    /// the attention.
    fn approx(&mut self, seq: SeqId) -> Vec<(usize, f32)> {
        self.channel.contract(seq, PICKED, BOUND).unwrap();
        let mut found = Vec::new();
        for step in 0..STEPS {
            self.lane.begin(&[StepSeq { seq, tokens: TOKENS }]).unwrap();
            for plane in 0..PLANES {
                let query = query(plane, step);
                self.lane.query(seq, plane, &query).unwrap();
                let read = self.read(seq, plane);
                let masses: Vec<f32> = (0..BLOCKS).map(|index| mass(&query, &keys(plane, index))).collect();
                let seen = |(at, mass): (usize, &f32)| if read[at] { *mass } else { 0.0 };
                let sum: f32 = masses.iter().enumerate().map(seen).sum();
                let shares = masses.iter().zip(&read).map(|(mass, read)| if *read { mass / sum } else { f32::NAN });
                self.lane.mass(seq, plane, &shares.collect::<Vec<f32>>()).unwrap();
                assert_eq!(self.lane.omission(seq, plane).unwrap().waived, 0, "the step waits for all selected pages");
                found.push((read.iter().filter(|read| **read).count(), sum / masses.iter().sum::<f32>()));
            }
            self.lane.end().unwrap();
        }
        found
    }

    fn map(&mut self, hashes: &[u128]) -> SeqId {
        let seq = self.channel.create_seq().unwrap();
        assert_eq!(self.channel.attach_prefix(seq, hashes, BOUND).unwrap(), hashes.len());
        seq
    }
}

fn mean(found: &[(usize, f32)]) -> f32 {
    found.iter().map(|(_, share)| share).sum::<f32>() / found.len() as f32
}

/// Return whether each step read a quarter of the pages, give or take one; planes may differ.
fn reads_a_quarter(found: &[(usize, f32)]) -> bool {
    let quarter = usize::from(PLANES) * BLOCKS as usize / 4;
    let mut steps = found.chunks(PLANES.into());
    steps.all(|step| step.iter().map(|(read, _)| read).sum::<usize>().abs_diff(quarter) <= 1)
}

/// Publish a prefix and restart the daemon. Return the daemon, the hashes, and what `approx` read in the session that wrote it.
fn stored(dir: &Dir) -> (PrivateDaemon, Vec<u128>, Vec<(usize, f32)>) {
    let options = nvme_options(dir, NVME_BYTES, "", "");
    let mut daemon = PrivateDaemon::start(&options).unwrap();
    let hashes: Vec<u128> = (1..=u128::from(BLOCKS)).collect();
    let mut engine = Engine::attach(daemon.socket());
    let seq = engine.write(BLOCKS);
    assert_eq!(engine.channel.publish(seq, 0, 0, &hashes, Level::Stored, BOUND).unwrap(), Level::Stored);
    let fresh = engine.approx(seq);
    drop(engine);
    assert!(daemon.stop().unwrap().success(), "{}", daemon.log());
    (PrivateDaemon::start(&options).unwrap(), hashes, fresh)
}

#[test]
fn a_prefix_from_an_earlier_run_is_picked_from_like_one_s_own() {
    let dir = Dir::new();
    let (daemon, hashes, fresh) = stored(&dir);
    assert!(reads_a_quarter(&fresh) && mean(&fresh) > 0.8, "{fresh:?}");
    // A step that reads all pages, like the prefill after the prefix. It streams them through tier 0. The session's sketches
    // are then identical to those of pages that it wrote itself.
    let mut engine = Engine::attach(daemon.socket());
    let seq = engine.map(&hashes);
    engine.exact(seq);
    assert_eq!(engine.approx(seq), fresh, "{}", daemon.log());
    engine.channel.drop_seq(seq).unwrap();
    // Without such a step, the first step reads all pages without sketches once, regardless of its budget.
    drop(engine);
    let mut engine = Engine::attach(daemon.socket());
    let seq = engine.map(&hashes);
    let found = engine.approx(seq);
    let (first, later) = found.split_at(usize::from(PLANES));
    assert!(first.iter().all(|(read, share)| *read == BLOCKS as usize && *share > 0.999), "{found:?}");
    assert!(reads_a_quarter(later), "{found:?}");
    assert!(mean(later) > mean(&fresh[usize::from(PLANES)..]) - 0.02, "{later:?}, in the writing session {fresh:?}");
}
