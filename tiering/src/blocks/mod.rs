//! Blocks: their pages, what holds them, and what they are charged to. It owns the tables of all tiers, because a page is in several.
//!
//! - `block`, `page`, `frame`, `lane`, `sequence`, `tier0`: records and tables
//! - `refs`: references, from the first to the return of the id
//! - `frames`: which tier-0 frame shows which page, and the list that each frame is in
//! - `classes`, `lanes`: sizes and shortages of tier 0; announced steps
//! - `hosts`: the list that a page's host frame is in; loads from it; requests for host memory
//! - `mapped`: mapped frames, which show a page where it is in host
//! - `jobs`: the jobs that give a page a frame, from plan to end
//! - `charge`: committed capacity
//! - `change`: what layers above read, and what they change of pages and blocks
//! - `sequences`: block lists
//! - `late`: jobs that others stop to wait for
//!
//! It promises that a frame is in the right list after each change of its page or block (`settle`), that an unreferenced block dies and its
//! id is free only after all jobs that name it, and that sums equal what they sum up. It decides nothing: what moves, and what leaves, is
//! the matter of the layers above.
//!
//! Invariants: a page has at most one frame in each session; a host frame belongs to one page; `in_flight` of a block counts the jobs,
//! transfers and requests that name it; `committed` of a host class is what the live pages may need at once.

mod block;
mod change;
mod charge;
mod classes;
mod frame;
mod frames;
mod hosts;
mod jobs;
mod lane;
mod lanes;
mod late;
mod mapped;
mod page;
mod refs;
mod sequence;
mod sequences;
mod tier0;

pub(crate) use block::{Block, BlockState, Blocks, PersistState};
pub(crate) use frame::{Frame, FrameState, On, Tier0Class};
pub(crate) use frames::Pick;
pub(crate) use jobs::NewJob;
pub(crate) use lane::Lane;
pub(crate) use page::Page;
pub(crate) use sequence::{CHUNK, Chunks, NEUTRAL_PRIORITY, Seq, Sequences};
pub(crate) use tier0::Tier0;

use crate::api::{SessionId, SpaceConfig};
use crate::config::Geometry;
use crate::error::Error;
use crate::layer::stands_on;
use crate::sessions::{Life, PerSession, Sessions};
use crate::tables::disk::Disk;
use crate::tables::host::Host;
use crate::tables::index::Index;
use serde::{Deserialize, Serialize};

/// No session.
pub(crate) const NO_SESSION: u16 = u16::MAX;
/// No lane.
pub(crate) const NO_LANE: u16 = u16::MAX;

/// The blocks of a space, their pages, and what holds these: tier-0 frames, host frames, NVMe slots, cache entries.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BlockTable {
    below: Sessions,
    pages: Vec<Page>,
    blocks: Blocks,
    tier0: PerSession<Tier0>,
    lists: PerSession<Sequences>,
    chunks: Chunks,
    pub(crate) host: Host,
    pub(crate) disk: Disk,
    pub(crate) index: Index,
    /// A caller waits for a page to be invalidated in the frame that it gave up.
    pub(crate) invalidating_wanted: bool,
    /// Blocks that were freed, while predictions are kept about their pages.
    freed: Option<Vec<u32>>,
}

stands_on!(BlockTable, Sessions);

impl BlockTable {
    pub fn new(cfg: SpaceConfig) -> Result<BlockTable, Error> {
        let geo = Geometry::new(&cfg)?;
        let l = cfg.limits;
        // Room for two references to every block, plus one partly filled chunk for each sequence.
        let chunks = (2 * u64::from(l.blocks_max)).div_ceil(u64::from(CHUNK))
            + u64::from(l.seqs_max.min(l.blocks_max)) * u64::from(l.sessions_max);
        if chunks * u64::from(CHUNK) >= u64::from(u32::MAX) {
            return Err(Error::Config {
                what: "blocks_max and seqs_max × sessions_max exceed the range of chunk ids",
                value: chunks,
            });
        }
        Ok(BlockTable {
            pages: Vec::with_capacity(l.blocks_max as usize * geo.planes.len()),
            blocks: Blocks::new(l.blocks_max),
            tier0: PerSession::new(l.sessions_max),
            lists: PerSession::new(l.sessions_max),
            chunks: Chunks::new(chunks as u32),
            host: Host::new(geo.classes.len()),
            disk: Disk::new(&cfg, geo.windowed.len()),
            index: Index::new(l.entries_max, cfg.shards, cfg.page_tokens, cfg.policy.eviction, cfg.policy.retention),
            invalidating_wanted: false,
            freed: None,
            below: Sessions::new(cfg, geo),
        })
    }

    /// Return the bytes of all tables, from their allocated capacities.
    pub fn bytes(&self) -> usize {
        self.below.bytes()
            + self.freed.as_ref().map_or(0, |freed| freed.capacity() * size_of::<u32>())
            + self.pages.capacity() * size_of::<Page>()
            + self.blocks.recs.capacity() * size_of::<Block>()
            + self.tier0.bytes()
            + self.tier0.iter().map(Tier0::bytes).sum::<usize>()
            + self.lists.bytes()
            + self.lists.iter().map(Sequences::bytes).sum::<usize>()
            + self.chunks.bytes()
            + self.host.bytes()
            + self.disk.bytes()
            + self.index.bytes()
    }

    /// Attach a session to an empty entry, with all tables that it will use.
    pub fn attach(&mut self, s: SessionId, shard: u16, lanes: u16, frames: &[u32]) {
        self.below.attach(s, shard);
        let cfg = self.below.cfg();
        self.tier0[s] = Tier0::new(self.below.geo(), &cfg.policy, lanes, frames);
        self.lists[s] = Sequences::new(&cfg.limits);
    }

    /// End a session. Its frames, sequences and jobs were released.
    pub fn detach(&mut self, s: SessionId, life: Life) {
        (self.tier0[s], self.lists[s]) = Default::default();
        self.below.detach(s, life);
    }

    /// Keep the ids of blocks that are freed from now on, for [`BlockTable::pop_freed`].
    pub fn keep_freed(&mut self) {
        self.freed = Some(Vec::with_capacity(self.blocks.max as usize));
    }

    /// Return the id of a block that was freed.
    pub fn pop_freed(&mut self) -> Option<u32> {
        self.freed.as_mut()?.pop()
    }
}
