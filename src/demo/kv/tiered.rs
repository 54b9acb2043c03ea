//! A sequence of a kvtide space: pages are where the page table says, and come in passes when they do not all fit.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kvtide_client::{Channel, Client, Lane, Options, Pass, SeqId, SpaceSpec, Stats, StepSeq};
use kvtide_wire::geometry::{PlaneKind, PlaneSpec};
use kvtide_wire::status::Status;
use zerocopy::FromBytes;

use super::KvStore;
use crate::demo::attention::{PAGE_TOKENS, Page, pages_of};

/// Bound of every wait: the demo's longest, a plane streamed from host, takes milliseconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why the KV of a step could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TieredError {
    /// A call of the client failed.
    #[error(transparent)]
    Client(#[from] kvtide_client::Error),
    /// The lane said that a page is readable, or reserved and unsealed, and then did not show it as a whole page.
    #[error("page {index} of plane {plane} is not {what}")]
    Page {
        /// `readable` or `writable`.
        what: &'static str,
        /// Plane.
        plane: usize,
        /// Block index.
        index: usize,
    },
    /// The lane called a plane complete after another number of pages than it has.
    #[error("plane {plane} was complete after {read} of its {needed} pages")]
    Incomplete {
        /// Plane.
        plane: usize,
        /// Pages handed out.
        read: usize,
        /// Pages that attention needs.
        needed: usize,
    },
}

impl TieredError {
    /// The client's status, if this is one.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            TieredError::Client(error) => Some(error.status()),
            _ => None,
        }
    }
}

/// One sequence in one session.
pub struct Tiered {
    lane: Lane,
    channel: Channel,
    client: Client,
    seq: SeqId,
    committed: usize,
    tokens: usize,
    /// Whether the session has a reserve for decode steps.
    reserved: bool,
    waited: Duration,
}

impl Tiered {
    /// Attaches to the space `name` with a tier 0 of `frames` frames and creates the sequence. `fingerprint` stands for the weights.
    ///
    /// # Errors
    /// The daemon cannot be reached, or refuses.
    pub fn attach(
        socket: PathBuf,
        name: &str,
        planes: usize,
        frames: u32,
        fingerprint: [u8; 32],
    ) -> Result<Tiered, TieredError> {
        let plane = PlaneSpec { page_bytes: Page::BYTES as u32, kind: PlaneKind::Full as u16, ..PlaneSpec::default() };
        let space = SpaceSpec {
            name: name.into(),
            fingerprint,
            page_tokens: PAGE_TOKENS as u32,
            planes: vec![plane; planes],
            shards: 1,
            shard: 0,
        };
        let options = Options { seqs_max: 1, timeout: TIMEOUT, ..Options::new(socket, space, vec![frames]) };
        let client = Client::attach(options)?;
        let (mut channel, lane) = (client.channel(0)?, client.lane(0)?);
        let seq = channel.seq_create()?;
        Ok(Tiered { lane, channel, client, seq, committed: 0, tokens: 0, reserved: false, waited: Duration::ZERO })
    }

    /// What the session counted so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.client.stats()
    }

    /// Time spent so far waiting for room for new tokens.
    #[must_use]
    pub fn waited_for_room(&self) -> Duration {
        self.waited
    }

    /// Makes room for the step: decode steps take a block of the session's reserve, which needs no round trip.
    fn reserve(&mut self, tokens: usize) -> Result<(), TieredError> {
        let began = Instant::now();
        if tokens - self.committed == 1 {
            if !self.reserved {
                self.channel.reserve_session(1, TIMEOUT)?;
                self.reserved = true;
            }
            match self.channel.append(self.seq, 1) {
                Err(error) if error.status() == Status::Again => {}
                appended => return Ok(appended?),
            }
        }
        self.channel.reserve(self.seq, tokens as u64, TIMEOUT)?;
        self.waited += began.elapsed();
        Ok(())
    }

    fn show(&self, plane: usize, index: usize, read: &mut impl FnMut(usize, &Page)) -> Result<(), TieredError> {
        let page = self.lane.page(self.seq, index as u32, plane as u16);
        let page = page.and_then(|bytes| Page::ref_from_bytes(bytes).ok());
        read(index, page.ok_or(TieredError::Page { what: "readable", plane, index })?);
        Ok(())
    }
}

impl KvStore for Tiered {
    type Error = TieredError;

    fn begin(&mut self, tokens: usize) -> Result<(), TieredError> {
        self.reserve(tokens)?;
        self.lane.begin(&[StepSeq { seq: self.seq, tokens: tokens as u64 }])?;
        self.tokens = tokens;
        Ok(())
    }

    fn tail(&mut self, plane: usize, index: usize) -> Result<&mut Page, TieredError> {
        let page = self.lane.page_mut(self.seq, index as u32, plane as u16);
        let page = page.and_then(|bytes| Page::mut_from_bytes(bytes).ok());
        page.ok_or(TieredError::Page { what: "writable", plane, index })
    }

    fn visit(&mut self, plane: usize, mut read: impl FnMut(usize, &Page)) -> Result<(), TieredError> {
        let needed = pages_of(self.tokens);
        let mut seen = 0;
        loop {
            let last = match self.lane.boundary(plane as u16)? {
                Pass::All => {
                    for index in 0..needed {
                        self.show(plane, index, &mut read)?;
                    }
                    return Ok(());
                }
                Pass::Part { last, .. } => last,
            };
            for ready in self.lane.ready() {
                self.show(plane, ready.index as usize, &mut read)?;
            }
            seen += self.lane.ready().len();
            if last && seen == needed {
                return Ok(());
            }
            if last {
                return Err(TieredError::Incomplete { plane, read: seen, needed });
            }
        }
    }

    fn end(&mut self) -> Result<(), TieredError> {
        self.lane.end()?;
        self.channel.commit(self.seq, self.tokens as u64)?;
        self.committed = self.tokens;
        Ok(())
    }
}
