//! Copies between the engine's own memory and the cache: load, store, fetch, and a relay's load by hashes.

use super::{
    Answered, BLOCKS_MAX, Begin, Operation, Outcome, Reply, Session, Started, State, Status, WireRequest, Work,
};
use crate::agent::session::Copying;
use kvtide_types::Level;
use kvtide_wire::lists::HASHED_BLOCKS_MAX;
use std::sync::Arc;

/// A relay's load by hashes, to begin.
#[derive(Clone, Copy, Debug)]
pub struct LoadHashed<'a> {
    /// Hashes of the blocks.
    pub hashes: &'a [u128],
    /// Where each goes in the relay's memory.
    pub blocks: &'a [u32],
}

impl Begin for LoadHashed<'_> {
    fn begin(self, _: &mut State, session: &Arc<Session>) -> Result<Started, Status> {
        if self.hashes.is_empty() || self.hashes.len() != self.blocks.len() {
            return Err(Status::Invalid);
        }
        if self.hashes.len() > HASHED_BLOCKS_MAX {
            return Err(Status::Limit);
        }
        let kind = Kind::LoadHashed { hashes: self.hashes.to_vec(), engine: self.blocks.to_vec() };
        CopyBlocks::begin(session, self.blocks, kind)
    }
}

/// A load, store or fetch.
#[derive(Debug)]
pub struct CopyBlocks {
    kind: Kind,
    /// Keeps the engine's blocks registered and their names unchanged while the request is in flight.
    _copying: Copying,
}

#[derive(Debug)]
enum Kind {
    Load { seq: u32, first: u32, engine: Vec<u32> },
    Store { first: u32, parent: u128, hashes: Vec<u128>, engine: Vec<u32>, level: Level },
    Fetch { seq: u32, first: u32, count: u32 },
    LoadHashed { hashes: Vec<u128>, engine: Vec<u32> },
}

impl CopyBlocks {
    pub(super) fn load(
        state: &mut State,
        session: &Arc<Session>,
        seq: u32,
        first: u32,
        blocks: &[u32],
    ) -> Result<Started, Status> {
        state.steady(seq)?;
        if blocks.is_empty() {
            return Err(Status::Invalid);
        }
        if blocks.len() > BLOCKS_MAX as usize {
            return Err(Status::Limit);
        }
        CopyBlocks::begin(session, blocks, Kind::Load { seq, first, engine: blocks.to_vec() })
    }

    pub(super) fn store(
        session: &Arc<Session>,
        (first, parent): (u32, u128),
        hashes: &[u128],
        blocks: &[u32],
        level: Level,
    ) -> Result<Started, Status> {
        if hashes.is_empty() || hashes.len() != blocks.len() || (parent == 0) != (first == 0) {
            return Err(Status::Invalid);
        }
        if hashes.len() > HASHED_BLOCKS_MAX {
            return Err(Status::Limit);
        }
        let (hashes, engine) = (hashes.to_vec(), blocks.to_vec());
        CopyBlocks::begin(session, blocks, Kind::Store { first, parent, hashes, engine, level })
    }

    pub(super) fn fetch(
        state: &mut State,
        session: &Arc<Session>,
        seq: u32,
        first: u32,
        count: u32,
    ) -> Result<Started, Status> {
        state.steady(seq)?;
        CopyBlocks::begin(session, &[], Kind::Fetch { seq, first, count })
    }

    fn begin(session: &Arc<Session>, blocks: &[u32], kind: Kind) -> Result<Started, Status> {
        Ok(Started::Send(Work::CopyBlocks(CopyBlocks { kind, _copying: session.hold(blocks)? })))
    }

    fn count(&self) -> u32 {
        match &self.kind {
            Kind::Load { engine, .. } | Kind::Store { engine, .. } | Kind::LoadHashed { engine, .. } => {
                engine.len() as u32
            }
            Kind::Fetch { count, .. } => *count,
        }
    }
}

impl Operation for CopyBlocks {
    fn request(&self) -> WireRequest<'_> {
        match self.kind {
            Kind::Load { seq, first, ref engine } => WireRequest::LoadBlocks { seq, first, engine },
            Kind::Store { first, parent, ref hashes, ref engine, level } => {
                WireRequest::StoreBlocks { first, parent, hashes, engine, level }
            }
            Kind::Fetch { seq, first, count } => WireRequest::FetchBlocks { seq, first, count },
            Kind::LoadHashed { ref hashes, ref engine } => WireRequest::LoadHashed { hashes, engine },
        }
    }

    fn answered(&mut self, _: &mut State, _: &Session, reply: &Reply<'_>) -> Answered {
        let (count, ok) = (self.count(), reply.status == Status::Ok);
        if reply.list.len() > count as usize || reply.list.iter().any(|index| *index >= count) {
            return Err(Status::Protocol);
        }
        if !ok && reply.list.is_empty() {
            return Err(reply.status);
        }
        let level = match self.kind {
            Kind::Store { level, .. } if ok && level > Level::Published => reply.level().ok_or(Status::Protocol)?,
            _ => Level::Published,
        };
        Ok(Some(Outcome::Copied { failed: reply.list.to_vec(), status: reply.status, level }))
    }
}
