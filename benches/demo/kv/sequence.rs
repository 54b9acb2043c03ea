//! One sequence in its own session: room for new tokens, commits, and the session's counters.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kvtide_client::{
    Channel, Client, Contract, DeviceChoice, DigestOptions, Lane, Options, SeqId, SpaceSpec, Stats, StepSeq,
};
use kvtide_wire::geometry::Plane;

use super::TieredError;
use crate::demo::attention::PAGE_TOKENS;

/// Deadline of every request. The demo's longest one, a plane streamed from host memory, takes milliseconds.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of a session.
#[derive(Clone, Debug)]
pub struct SessionSpec {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Name of its space.
    pub space: String,
    /// Identity of the weights.
    pub fingerprint: [u8; 32],
    /// Planes.
    pub planes: usize,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Frames of tier 0.
    pub frames: u32,
    /// Mapped frames.
    pub windows: u32,
    /// Which memory tier 0 is.
    pub device: DeviceChoice,
    /// Digests to keep.
    pub digests: Option<DigestOptions>,
    /// Time that a step under `approx` waits in a plane for selected pages.
    pub max_stall: Duration,
    /// Report look-aheads and attention, from which the daemon prefetches.
    pub prefetch: bool,
}

/// A sequence and its session.
pub struct Sequence {
    /// Its lane, dropped first.
    pub lane: Lane,
    channel: Channel,
    client: Client,
    seq: SeqId,
    tokens: usize,
    /// Tokens that the sequence has room for.
    room: usize,
    waited: Duration,
}

impl Sequence {
    /// Attach and create the sequence.
    ///
    /// # Errors
    /// The daemon cannot be reached or refuses, or the device is missing or full.
    pub fn attach(spec: SessionSpec) -> Result<Sequence, TieredError> {
        let plane = Plane::full(spec.page_bytes);
        let space = SpaceSpec::new(spec.space, spec.fingerprint, PAGE_TOKENS as u32, vec![plane; spec.planes]);
        let options = Options {
            seqs_max: 1,
            mapped_frames: spec.windows,
            timeout: TIMEOUT,
            device: spec.device,
            digests: spec.digests,
            max_stall: spec.max_stall,
            ..Options::new(spec.socket, space, vec![spec.frames])
        };
        let client = Client::attach(options)?;
        let (mut channel, lane) = (client.channel(0)?, client.lane(0)?);
        let seq = channel.create_seq()?;
        Ok(Sequence { lane, channel, client, seq, tokens: 0, room: 0, waited: Duration::ZERO })
    }

    /// Return its session.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Return its id.
    #[must_use]
    pub fn id(&self) -> SeqId {
        self.seq
    }

    /// Return the tokens that the open step covers.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Return the session's counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.client.stats()
    }

    /// Return the time spent waiting for room for new tokens.
    #[must_use]
    pub fn waited_for_room(&self) -> Duration {
        self.waited
    }

    /// Set the contract from the next step on.
    ///
    /// # Errors
    /// The daemon refuses or has ended.
    pub fn contract(&mut self, contract: Contract) -> Result<(), TieredError> {
        Ok(self.channel.contract(self.seq, contract, TIMEOUT)?)
    }

    /// Make room for a step that covers `tokens` tokens, which the lane then begins. A step within the last page sends nothing.
    ///
    /// # Errors
    /// There is no room, or the daemon has ended.
    pub fn prepare(&mut self, tokens: usize) -> Result<StepSeq, TieredError> {
        self.tokens = tokens;
        if tokens > self.room {
            let began = Instant::now();
            self.channel.reserve(self.seq, tokens as u64, TIMEOUT)?;
            self.waited += began.elapsed();
            self.room = tokens.next_multiple_of(PAGE_TOKENS);
        }
        Ok(StepSeq { seq: self.seq, tokens: tokens as u64 })
    }

    /// End the lane's step and commit its tokens.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn end(&mut self) -> Result<(), TieredError> {
        self.lane.end()?;
        self.channel.commit(self.seq, self.tokens as u64)?;
        Ok(())
    }
}
