//! Copies between the engine's own memory and the cache: load, store, and a relay's load by hashes.

use super::{
    Answered, Begin, OTHER_PLACE, Operation, Outcome, Refusal, Reply, Sequences, Session, Started, Status, WireRequest,
    Work, place, too_long,
};
use crate::{
    agent::session::Copying,
    client::channel::blocks::{pair, too_many},
};
use kvtide_types::Level;
use kvtide_wire::lists::{HASHED_BLOCKS_MAX, WORDS_MAX};
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
    fn begin(self, _: &mut Sequences, session: &Arc<Session>) -> Result<Started, Refusal> {
        some(self.hashes.len(), HASHED_BLOCKS_MAX)?;
        pair(self.hashes, self.blocks)?;
        let kind = Kind::LoadHashed { hashes: self.hashes.to_vec(), engine: self.blocks.to_vec() };
        CopyBlocks::begin(session, self.blocks, kind)
    }
}

/// A load or store.
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
    LoadHashed { hashes: Vec<u128>, engine: Vec<u32> },
}

/// Check the number of blocks of one request.
fn some(count: usize, most: usize) -> Result<(), Refusal> {
    match count {
        0 => Err(Refusal::because(Status::Invalid, "there are no blocks")),
        count if count > most => Err(too_many(count, most)),
        _ => Ok(()),
    }
}

impl CopyBlocks {
    pub fn load(
        sequences: &mut Sequences,
        session: &Arc<Session>,
        seq: u32,
        first: u32,
        blocks: &[u32],
    ) -> Result<Started, Refusal> {
        some(blocks.len(), WORDS_MAX)?;
        if sequences.check_blocks(seq, first, blocks.len())?.changing {
            return Err(Status::Again.into());
        }
        CopyBlocks::begin(session, blocks, Kind::Load { seq, first, engine: blocks.to_vec() })
    }

    pub fn store(
        session: &Arc<Session>,
        (first, parent): (u32, u128),
        hashes: &[u128],
        blocks: &[u32],
        level: Level,
    ) -> Result<Started, Refusal> {
        some(hashes.len(), HASHED_BLOCKS_MAX)?;
        pair(hashes, blocks)?;
        place(first, parent, hashes)?;
        let (hashes, engine) = (hashes.to_vec(), blocks.to_vec());
        CopyBlocks::begin(session, blocks, Kind::Store { first, parent, hashes, engine, level })
    }

    fn begin(session: &Arc<Session>, blocks: &[u32], kind: Kind) -> Result<Started, Refusal> {
        Ok(Started::Send(Work::CopyBlocks(CopyBlocks { kind, _copying: session.hold(blocks)? })))
    }

    fn count(&self) -> u32 {
        match &self.kind {
            Kind::Load { engine, .. } | Kind::Store { engine, .. } | Kind::LoadHashed { engine, .. } => {
                engine.len() as u32
            }
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
            Kind::LoadHashed { ref hashes, ref engine } => WireRequest::LoadHashed { hashes, engine },
        }
    }

    fn why(&self, session: &Session, status: Status) -> Option<String> {
        match (&self.kind, status) {
            (Kind::Load { .. }, Status::NotFound) => Some("the lease has ended".into()),
            (Kind::Load { .. }, Status::State) => {
                Some("the sequence is parked, another call on it is in flight, or a block is not sealed".into())
            }
            (Kind::Store { .. }, Status::Invalid) => Some(OTHER_PLACE.into()),
            (Kind::Store { .. }, Status::Limit) => Some(too_long(session)),
            _ => None,
        }
    }

    fn answered(&mut self, _: &mut Sequences, _: &Session, reply: &Reply) -> Answered {
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
