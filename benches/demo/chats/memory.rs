//! The engine's KV: blocks of its own memory, given to the chats in use, and filled from the cache where it has them.

use std::path::Path;
use std::time::Duration;

use kvtide_client::{Channel, Client, Options, SpaceSpec};
use kvtide_wire::entry::Level;
use kvtide_wire::geometry::Plane;
use kvtide_wire::status::Status;
use sha2::{Digest, Sha256};
use zerocopy::FromBytes;

use super::plan::{CHATS, Plan, hashes};
use crate::demo::attention::{HEAD_DIM, Heads, KV_HEADS, PAGE_TOKENS, Page, Partials, merge, pages_of, split, write};
use crate::demo::kv::{Kv, Rows};
use crate::demo::model::{CONFIG_JSON, WEIGHTS};

/// Deadline of every request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a lease may last: a question with its answer takes a second.
const LEASE: Duration = Duration::from_secs(60);

/// Errors of the engine's KV.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A client call failed.
    #[error(transparent)]
    Client(#[from] kvtide_client::Error),
    /// A block cannot be accessed.
    #[error("block {block} of the engine's memory, plane {plane}: no page of {} bytes", Page::BYTES)]
    Block {
        /// The block.
        block: u32,
        /// The plane.
        plane: usize,
    },
    /// One chat needs more blocks than there are.
    #[error("a chat needs {needed} blocks, but the engine's memory has {all}")]
    Small {
        /// Blocks of the chat.
        needed: usize,
        /// Blocks in all.
        all: usize,
    },
}

/// Blocks of a chat.
#[derive(Default)]
struct Held {
    table: Vec<u32>,
    /// Tokens whose KV is in these blocks.
    tokens: usize,
    /// Full blocks known to be cached.
    cached: usize,
    /// Time of the last use; 0: never.
    used: u64,
}

/// Where the KV of a prompt was found, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// In the engine's memory.
    pub own: usize,
    /// In the daemon's host memory.
    pub host: usize,
    /// On NVMe.
    pub nvme: usize,
}

impl Found {
    /// Return the tokens that need not be computed.
    pub fn tokens(&self) -> usize {
        self.own + self.host + self.nvme
    }
}

/// The engine's memory and its session.
pub struct Memory {
    channel: Channel,
    client: Client,
    free: Vec<u32>,
    held: Vec<Held>,
    clock: u64,
    /// The chat whose question is being answered, and the lease on its cached blocks.
    chat: usize,
    lease: Option<kvtide_client::SeqId>,
    tokens: usize,
    /// Times that a chat lost its blocks to another one.
    pub preempted: usize,
    /// Blocks that the cache did not take.
    pub not_stored: usize,
    /// Flip one bit of the next block that is loaded.
    pub flip: bool,
}

impl Memory {
    /// Attach to a daemon, with empty memory.
    pub fn attach(socket: &Path, plan: &Plan) -> Result<Memory, MemoryError> {
        let fingerprint = Sha256::new().chain_update(CONFIG_JSON).chain_update(WEIGHTS).finalize().into();
        let space = SpaceSpec::new(
            "demo-chats",
            fingerprint,
            PAGE_TOKENS as u32,
            vec![Plane::full(Page::BYTES as u32); plan.planes],
        );
        let client = Client::attach(Options { timeout: TIMEOUT, ..Options::new(socket.into(), space, vec![0]) })?;
        let channel = client.channel(0)?;
        let blocks = plan.engine_blocks() as u32;
        client.allocate_blocks(blocks)?;
        Ok(Memory {
            channel,
            client,
            free: (0..blocks).rev().collect(),
            held: std::iter::repeat_with(Held::default).take(CHATS).collect(),
            clock: 0,
            chat: 0,
            lease: None,
            tokens: 0,
            preempted: 0,
            not_stored: 0,
            flip: false,
        })
    }

    /// Make room for `room` tokens of a chat, and bring in the KV of its prompt as far as the cache has it. At least the last token
    /// is left to be computed.
    pub fn begin(&mut self, chat: usize, prompt: &[u16], room: usize) -> Result<Found, MemoryError> {
        self.chat = chat;
        self.clock += 1;
        self.held[chat].used = self.clock;
        self.allocate(pages_of(room))?;
        let computable = prompt.len() - 1;
        let own = self.held[chat].tokens.min(computable);
        let names = hashes(&prompt[..computable]);
        let found = self.channel.lookup(&names, TIMEOUT)?.blocks as usize;
        self.held[chat].cached = found;
        let (first, mut loaded) = (own / PAGE_TOKENS, Found { own, ..Found::default() });
        if found <= first {
            return Ok(loaded);
        }
        let lease = self.channel.lease(names[found - 1], found as u32, LEASE, TIMEOUT)?;
        self.lease = Some(lease.seq);
        let table = &self.held[chat].table[first..found];
        let copied = self.channel.load(lease.seq, first as u32, table, TIMEOUT)?;
        // Blocks after one that failed are computed, like those that are not cached.
        let whole = copied.failed.iter().min().map_or(found - first, |index| *index as usize);
        if whole == 0 {
            return Ok(loaded);
        }
        if std::mem::take(&mut self.flip) {
            // Half of the value of one channel of a key: a lower bit may be lost in the rounding of a score.
            self.page(table[0], 0, |page| {
                let key = &mut page[0].keys[0][0][0];
                *key = f32::from_bits(key.to_bits() ^ 1 << 22);
            })?;
        }
        // The blocks' order is that of the prefix; its end leaves host memory first.
        let host = (lease.in_host as usize).clamp(first, first + whole) - first;
        loaded.own = first * PAGE_TOKENS;
        loaded.host = host * PAGE_TOKENS;
        loaded.nvme = (whole - host) * PAGE_TOKENS;
        Ok(loaded)
    }

    /// Give the chat in use `needed` blocks, if need be those of the chats that were used longest ago.
    fn allocate(&mut self, needed: usize) -> Result<(), MemoryError> {
        let all = self.free.len() + self.held.iter().map(|held| held.table.len()).sum::<usize>();
        while self.held[self.chat].table.len() + self.free.len() < needed {
            let others = (0..CHATS).filter(|chat| *chat != self.chat && !self.held[*chat].table.is_empty());
            let victim = others.min_by_key(|chat| self.held[*chat].used).ok_or(MemoryError::Small { needed, all })?;
            let victim = &mut self.held[victim];
            self.free.append(&mut victim.table);
            victim.tokens = 0;
            self.preempted += 1;
        }
        let more = needed.saturating_sub(self.held[self.chat].table.len());
        let from = self.free.len() - more;
        self.held[self.chat].table.extend(self.free.drain(from..).rev());
        Ok(())
    }

    /// Store the full blocks of the chat in use that are not cached yet, so that they survive a kill of the daemon. `tokens`: all
    /// tokens whose KV was computed.
    pub fn end(&mut self, tokens: &[u16]) -> Result<(), MemoryError> {
        let names = hashes(tokens);
        let held = &mut self.held[self.chat];
        held.tokens = tokens.len();
        let first = held.cached.min(names.len());
        if first < names.len() {
            let parent = first.checked_sub(1).map_or(0, |last| names[last]);
            let (at, blocks) = ((first as u32, parent), &held.table[first..names.len()]);
            let copied = self.channel.store(at, &names[first..], blocks, Level::Stored, TIMEOUT)?;
            self.not_stored += copied.failed.len();
        }
        match self.lease.take() {
            Some(lease) => Ok(self.channel.end_lease(lease)?),
            None => Ok(()),
        }
    }

    fn page<T>(&self, block: u32, plane: usize, look: impl FnOnce(&mut Heads) -> T) -> Result<T, MemoryError> {
        let look = |bytes: &mut [u8]| Heads::mut_from_bytes(bytes).ok().map(look);
        self.client.with_block(block, plane as u16, look).flatten().ok_or(MemoryError::Block { block, plane })
    }
}

impl Kv for Memory {
    type Error = MemoryError;

    fn open(&mut self, tokens: usize) -> Result<(), MemoryError> {
        self.tokens = tokens;
        Ok(())
    }

    fn attend(
        &mut self,
        plane: usize,
        rows: Rows<'_>,
        partials: &mut Partials,
        out: &mut [f32],
    ) -> Result<(), MemoryError> {
        let (width, table) = (KV_HEADS * HEAD_DIM, &self.held[self.chat].table);
        for (t, (k, v)) in rows.k.chunks_exact(width).zip(rows.v.chunks_exact(width)).enumerate() {
            let position = rows.start + t;
            self.page(table[position / PAGE_TOKENS], plane, |page| write(page, position % PAGE_TOKENS, k, v))?;
        }
        partials.begin(rows.k.len() / width);
        for (index, block) in table[..pages_of(self.tokens)].iter().enumerate() {
            self.page(*block, plane, |page| split(page, index, rows.q, rows.start, partials.page_mut(index)))?;
        }
        merge(partials, rows.start, out);
        Ok(())
    }

    fn close(&mut self) -> Result<(), MemoryError> {
        Ok(())
    }
}

impl MemoryError {
    /// Return true if the daemon has ended.
    pub fn is_daemon(&self) -> bool {
        matches!(self, MemoryError::Client(error) if error.status() == Status::Daemon)
    }
}
