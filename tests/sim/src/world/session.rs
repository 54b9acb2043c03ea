//! One engine process: its rings, its sequences as in the plain model, and its shipped agent.

use super::blocks::{Asked, OwnMemory};
use super::context::{Check, Context, Ev, Wrong, wrong};
use super::reader::Reader;
use super::reattach::Declaring;
use super::steps::Lane;
use crate::failure::Caught;
use crate::memory::{ArenaId, Place};
use crate::model::Text;
use crate::ring::Ring;
use kvtide_client::agent::attention::{Contract, History};
use kvtide_client::agent::protocol::geometry::Bounds;
use kvtide_client::agent::protocol::{CopyOp, Geometry, Mover, PageRange, PinId, Shared};
use kvtide_tiering::api::SessionId;
use kvtide_wire::entry::{Completion, Job, JobDone, Op, Submission};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A submission with its list.
pub type Request = (Submission, Vec<u32>);
/// A completion with its list.
pub type Answer = (Completion, Vec<u32>);

/// A pin that an engine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinRange {
    /// The pinned range.
    pub range: PageRange,
    /// The agent's id for it.
    pub id: PinId,
    /// The daemon granted it and must receive its release.
    pub remote: bool,
}

/// A sequence as its engine sees it.
#[derive(Clone, Debug)]
pub struct Seq {
    /// Channel of the thread that owns it.
    pub channel: usize,
    /// Written tokens.
    pub text: Text,
    /// Its prompt; `None`: its own tokens.
    pub prompt: Option<u64>,
    /// Committed tokens.
    pub committed: u64,
    /// Its blocks, in order.
    pub blocks: Vec<u32>,
    /// A request on it is in flight; its channel waits for the end.
    pub busy: bool,
    /// That request, or its parking, keeps lanes away from it.
    pub closed: bool,
    /// Tokens of a commit that did not fit into the ring.
    pub owed: Option<u64>,
    /// The lane of the step that reads it.
    pub lane: Option<usize>,
    /// It is parked.
    pub parked: bool,
    /// Pins.
    pub pins: Vec<PinRange>,
    /// Its step failed or its pages are lost: the engine drops it.
    pub doomed: bool,
    /// Blocks published.
    pub published: u32,
    /// Reading contract of its steps.
    pub contract: Contract,
}

/// A request in flight.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Operation.
    pub op: Op,
    /// Code that was sent: that of `op`, or an invalid one.
    pub code: u16,
    /// Sequence.
    pub seq: u32,
    /// The other sequence: a fork's child.
    pub other: u32,
    /// Count of the operation: tokens, blocks or others.
    pub count: u64,
    /// First index.
    pub first: u32,
    /// Text of the sequence that a prefix is attached to.
    pub text: Option<Text>,
    /// The pin that an acquire requested.
    pub pin: Option<PinRange>,
    /// Time of sending.
    pub sent_us: u64,
    /// Time by which it must have ended.
    pub until_us: u64,
    /// A cancel was sent.
    pub cancelled: bool,
    /// It declares a page of the old daemon to a new one.
    pub declared: bool,
    /// It is invalid: it must fail.
    pub nonsense: bool,
    /// A lane waits for it.
    pub lane: Option<usize>,
    /// Position at which a lookup's chain is broken on purpose.
    pub hole: Option<u32>,
    /// Number of the lookup's hashes that must be found.
    pub must_find: u32,
    /// When it was sent, the session's guarantee covered it. It may have been refused then, and the answer be read much later.
    pub covered: bool,
    /// Data of a request about blocks.
    pub blocks: Option<Box<Asked>>,
}

/// A channel: a pair of rings and the requests in flight on it.
pub struct Channel {
    /// To the daemon.
    pub submissions: Ring<Request>,
    /// From the daemon.
    pub completions: Ring<Answer>,
    /// By tag.
    pub pending: Vec<Option<Pending>>,
}

impl Channel {
    fn new(depth: u16) -> Channel {
        Channel {
            submissions: Ring::new(usize::from(depth)),
            completions: Ring::new(usize::from(depth)),
            pending: vec![None; usize::from(depth)],
        }
    }
}

/// An engine process that is or was attached.
pub struct Session {
    /// Index in the world.
    pub index: usize,
    /// Replica.
    pub replica: usize,
    /// Shard.
    pub shard: u16,
    /// Its slot at the daemon, while the daemon has it.
    pub slot: Option<SessionId>,
    /// It has no tier 0.
    pub bare: bool,
    /// It reads the feed, and does nothing else.
    pub reader: Option<Reader>,
    /// Its process has not been killed.
    pub alive: bool,
    /// It only drops its data.
    pub draining: bool,
    /// Its tier 0.
    pub tier0: ArenaId,
    /// Frames of each size class that have memory.
    pub sizes: Vec<u32>,
    /// Classes with a resize in flight.
    pub resizing: Vec<bool>,
    /// Classes with a size that the new daemon knows.
    pub sizes_told: Vec<bool>,
    /// Guaranteed blocks.
    pub guaranteed: u32,
    /// A guarantee is requested.
    pub asks_guarantee: bool,
    /// Channels of the engine's threads, then one for each lane.
    pub channels: Vec<Channel>,
    /// Jobs from the daemon, each with the place of its host frame.
    pub jobs: Ring<(Job, Option<Place>)>,
    /// Completions of jobs.
    pub done: Ring<JobDone>,
    /// Lanes.
    pub lanes: Vec<Lane>,
    /// Sequences, by slot.
    pub seqs: Vec<Option<Seq>>,
    /// The engine's own memory, and its leases.
    pub own: OwnMemory,
    /// The agent's page table, sequences and pins.
    pub shared: Arc<Shared>,
    /// The agent's mover.
    pub mover: Mover,
    /// Host slabs mapped by its agent.
    pub slabs: BTreeMap<u32, ArenaId>,
    /// The mover's copies on devices, by token.
    pub copies: Vec<Option<CopyOp>>,
    /// Place of the page of each mapped frame.
    pub mapped_frames: BTreeMap<u32, Place>,
    /// Declarations left for a new daemon.
    pub declaring: Option<Declaring>,
    /// Attention history of pages.
    pub history: History,
    /// It has pinned pages before: pins of an engine can block its own lanes.
    pub pinned: bool,
    /// One of its copies will never end.
    pub stuck: bool,
}

impl Session {
    /// Create a process that has attached.
    pub fn new(cx: &mut Context, index: usize, replica: usize, shard: u16) -> Check<Session> {
        let limits = cx.geometry.config.limits;
        let bounds = Bounds {
            page_tokens: cx.geometry.config.page_tokens,
            blocks_max: limits.blocks_max,
            seqs_max: limits.seqs_max,
            seq_blocks_max: limits.seq_blocks_max,
            lanes: cx.geometry.lanes,
            jobs_max: limits.jobs_max,
            // Small, so that lanes lag and the mover waits for them.
            log_entries: (2 * u32::from(cx.geometry.planes()) + 4).next_power_of_two() << cx.rng.below(3),
            pins_max: 8,
        };
        let tier0 = cx.geometry.tier0_of(replica);
        let bad =
            |why: String| Wrong { caught: Caught::Protocol, detail: format!("the agent refused its geometry: {why}") };
        let geometry = Geometry::new(&cx.geometry.config.planes, &tier0, bounds)
            .and_then(|geometry| geometry.with_mapped_frames(cx.geometry.mapped_frames_of(replica)))
            .map_err(|e| bad(e.to_string()))?;
        let shared = Arc::new(Shared::new(geometry).map_err(|e| bad(e.to_string()))?);
        let depth = cx.geometry.depth;
        let channels = cx.geometry.channels + cx.geometry.lanes;
        let jobs_max = limits.jobs_max as usize;
        let lanes: Option<Vec<Lane>> = (0..cx.geometry.lanes).map(|lane| Lane::new(&shared, lane)).collect();
        let history = History::new(limits.blocks_max, cx.geometry.planes().into());
        let (Some(lanes), Some(mover), Some(history)) = (lanes, Mover::new(shared.clone()), history) else {
            return Err(bad("no room".to_owned()));
        };
        let (blocks, members) = (cx.geometry.own.blocks, cx.geometry.own.members);
        let own = OwnMemory::new(&mut cx.arenas, blocks, members, cx.geometry.planes(), cx.geometry.slots());
        Ok(Session {
            index,
            replica,
            shard,
            slot: None,
            bare: cx.geometry.is_bare(replica),
            reader: cx.geometry.is_reader(replica).then(Reader::default),
            alive: true,
            draining: false,
            tier0: cx.arenas.add(shared.geometry().frames(), cx.geometry.slots()),
            sizes: tier0,
            resizing: vec![false; cx.geometry.tier0.len()],
            guaranteed: 0,
            asks_guarantee: false,
            sizes_told: vec![false; cx.geometry.tier0.len()],
            channels: (0..channels).map(|_| Channel::new(depth)).collect(),
            jobs: Ring::new(jobs_max),
            done: Ring::new(jobs_max),
            lanes,
            seqs: vec![None; limits.seqs_max as usize],
            own,
            mover,
            shared,
            slabs: BTreeMap::new(),
            mapped_frames: BTreeMap::new(),
            copies: Vec::new(),
            declaring: None,
            history,
            pinned: false,
            stuck: false,
        })
    }

    /// Create new rings to a new daemon.
    pub fn reset_rings(&mut self, cx: &Context) {
        let jobs_max = cx.geometry.config.limits.jobs_max as usize;
        self.channels = (0..self.channels.len()).map(|_| Channel::new(cx.geometry.depth)).collect();
        (self.jobs, self.done) = (Ring::new(jobs_max), Ring::new(jobs_max));
        self.reader = self.reader.take().map(|_| Reader::default());
        self.own.reset();
        self.slabs.clear();
        self.mapped_frames.clear();
        self.resizing.fill(false);
        self.sizes_told.fill(false);
        (self.guaranteed, self.asks_guarantee) = (0, false);
    }

    /// Schedule its threads.
    pub fn wake(&self, cx: &mut Context) {
        let session = self.index;
        for channel in 0..usize::from(cx.geometry.channels) {
            let delay = cx.rng.between(0, 50);
            cx.queue.after(delay, Ev::Channel { session, channel });
        }
        for lane in (0..self.lanes.len()).filter(|_| !self.bare) {
            let delay = cx.rng.between(0, 100);
            cx.queue.after(delay, Ev::Lane { session, lane });
        }
    }

    /// Return a sequence.
    #[must_use]
    pub fn seq(&self, slot: u32) -> Option<&Seq> {
        self.seqs.get(slot as usize).and_then(Option::as_ref)
    }

    /// Return a sequence.
    pub fn seq_mut(&mut self, slot: u32) -> Option<&mut Seq> {
        self.seqs.get_mut(slot as usize).and_then(Option::as_mut)
    }

    /// Send the daemon's response to a request.
    pub fn complete(&mut self, cx: &mut Context, channel: u16, answer: Answer) -> Check {
        let session = self.index;
        let at = cx.now() + cx.hop();
        match self.channels[usize::from(channel)].completions.push(at, answer) {
            Ok(seen) => {
                cx.queue.at(seen, Ev::Answers { session, channel: usize::from(channel) });
                Ok(())
            }
            Err(_) => wrong(Caught::Protocol, format!("s{session}.c{channel}: completion ring overrun")),
        }
    }
}

impl Seq {
    /// Create an empty sequence.
    #[must_use]
    pub fn new(channel: usize, prompt: Option<u64>) -> Seq {
        Seq {
            channel,
            text: Text::default(),
            prompt,
            committed: 0,
            blocks: Vec::new(),
            busy: false,
            closed: false,
            owed: None,
            lane: None,
            parked: false,
            pins: Vec::new(),
            doomed: false,
            published: 0,
            contract: Contract::Exact,
        }
    }

    /// Return the number of sealed blocks.
    #[must_use]
    pub fn sealed(&self, page_tokens: u32) -> u32 {
        (self.committed / u64::from(page_tokens)) as u32
    }
}

impl Pending {
    /// Return the record of a request of `op` on `seq`.
    #[must_use]
    pub fn new(op: Op, seq: u32) -> Pending {
        Pending {
            op,
            code: op as u16,
            seq,
            other: u32::MAX,
            count: 0,
            first: 0,
            text: None,
            pin: None,
            sent_us: 0,
            until_us: 0,
            cancelled: false,
            declared: false,
            nonsense: false,
            lane: None,
            hole: None,
            must_find: 0,
            covered: false,
            blocks: None,
        }
    }
}
