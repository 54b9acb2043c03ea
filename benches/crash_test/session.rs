//! One thread of an engine: its channel and lane, and operations for both the load and the reading back.

use super::content::{Chain, fill, first_wrong};
use super::plan::{LIVE_MAX, PAGE_BYTES, PAGE_TOKENS, Plan, THREADS};
use kvtide_client::{Channel, Client, Error, Lane, Options, Pass, SeqId, StepSeq};
use kvtide_types::hash_hex;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Deadline of every request. A live daemon is much faster, and a kill ends waits at once.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// A page with bytes that do not match its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongPage {
    hash: u128,
    plane: u16,
    /// The first byte that differs; `None` if the plane was complete without the page.
    at: Option<usize>,
}

impl fmt::Display for WrongPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongPage { hash, plane, at } = self;
        let hash = hash_hex(*hash);
        match at {
            Some(at) => write!(f, "block {hash}, plane {plane}: differs from byte {at}"),
            None => write!(f, "block {hash}, plane {plane}: plane complete without this page"),
        }
    }
}

/// Return the tokens of whole blocks and of a tail, if any.
fn tokens(hashes: &[u128], tail: Option<u128>) -> u64 {
    hashes.len() as u64 * PAGE_TOKENS + tail.map_or(0, |_| PAGE_TOKENS / 2)
}

/// Attach an engine with one channel and lane per thread.
pub fn attach(plan: &Plan, socket: &Path) -> Result<Client, Error> {
    Client::attach(Options {
        lanes: THREADS,
        channels: THREADS,
        // A slot is free again only after the daemon has processed the end of its sequence.
        seqs_max: u32::from(THREADS) * 8 * LIVE_MAX as u32,
        timeout: TIMEOUT,
        ..Options::new(socket.to_owned(), plan.space(), Plan::tier0_frames())
    })
}

/// One thread's part of a session.
pub struct Hand {
    /// Channel of the thread.
    pub channel: Channel,
    lane: Lane,
    /// Wrong pages found in reads.
    pub wrong: Vec<WrongPage>,
}

impl Hand {
    /// Create the part with this index.
    pub fn new(client: &Client, index: u16) -> Result<Hand, Error> {
        Ok(Hand { channel: client.channel(index)?, lane: client.lane(index)?, wrong: Vec::new() })
    }

    /// Read a sequence in one step: `hashes` are those of its blocks, `tail` that of a partial block after them. Pages of blocks
    /// for which `compared` is true are compared.
    pub fn read(
        &mut self,
        seq: SeqId,
        hashes: &[u128],
        tail: Option<u128>,
        compared: impl FnMut(usize) -> bool,
    ) -> Result<(), Error> {
        let tokens = tokens(hashes, tail);
        let hashes: Vec<u128> = hashes.iter().copied().chain(tail).collect();
        let compared: Vec<bool> = (0..hashes.len()).map(compared).collect();
        self.lane.begin(&[StepSeq { seq, tokens }])?;
        let read = (0..PAGE_BYTES.len() as u16).try_for_each(|plane| self.read_plane(seq, plane, &hashes, &compared));
        self.lane.end()?;
        read
    }

    fn read_plane(&mut self, seq: SeqId, plane: u16, hashes: &[u128], compared: &[bool]) -> Result<(), Error> {
        let mut left = vec![true; hashes.len()];
        loop {
            let pass = self.lane.boundary(plane)?;
            let handed: Vec<usize> = match pass {
                Pass::All => (0..hashes.len()).collect(),
                Pass::Part { .. } => self.lane.ready().iter().map(|ready| ready.index as usize).collect(),
            };
            for index in handed {
                let Some(left) = left.get_mut(index) else { continue };
                *left = false;
                if compared[index] {
                    self.look(seq, index, plane, hashes[index]);
                }
            }
            if matches!(pass, Pass::All | Pass::Part { last: true, .. }) {
                break;
            }
        }
        let forgotten = left.iter().zip(hashes).filter(|(left, _)| **left);
        self.wrong.extend(forgotten.map(|(_, hash)| WrongPage { hash: *hash, plane, at: None }));
        Ok(())
    }

    fn look(&mut self, seq: SeqId, index: usize, plane: u16, hash: u128) {
        let at = match self.lane.page(seq, index as u32, plane) {
            Some(page) => first_wrong(hash, plane, page),
            None => Some(0),
        };
        if at.is_some() {
            self.wrong.push(WrongPage { hash, plane, at });
        }
    }

    /// Write the blocks of a chain from index `first` on, write a partial block with `tail`, if any, and commit.
    pub fn write(&mut self, seq: SeqId, chain: &Chain, first: usize, tail: Option<u128>) -> Result<(), Error> {
        let tokens = tokens(&chain.hashes, tail);
        self.channel.reserve(seq, tokens, TIMEOUT)?;
        self.lane.begin(&[StepSeq { seq, tokens }])?;
        let fresh = chain.hashes.iter().chain(&tail).enumerate().skip(first);
        for (index, hash) in fresh {
            for plane in 0..PAGE_BYTES.len() as u16 {
                match self.lane.page_mut(seq, index as u32, plane) {
                    Some(page) => fill(*hash, plane, page),
                    None => self.wrong.push(WrongPage { hash: *hash, plane, at: Some(0) }),
                }
            }
        }
        self.lane.end()?;
        self.channel.commit(seq, tokens)
    }
}
