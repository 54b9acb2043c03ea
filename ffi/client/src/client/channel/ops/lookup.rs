//! Look hashes up: one round of a lookup, or a whole lookup as one request after another.

use super::{Answered, Operation, Outcome, Reply, Session, Started, State, Status, WireRequest, Work};
use crate::client::channel::{
    blocks::{CALL_BLOCKS_MAX, LOOKUP},
    search::Search,
};
use kvtide_wire::lists::HASHES_MAX;

/// Return the number of probes found, and how many of them are in host memory.
fn found(reply: &Reply<'_>) -> Result<(u32, u32), Status> {
    let (found, in_host) = (reply.value as u32, (reply.value >> 32) as u32);
    reply.check(in_host <= found)?;
    Ok((found, in_host))
}

/// One round.
#[derive(Debug)]
pub struct Lookup {
    probes: Vec<u128>,
}

impl Lookup {
    pub(super) fn begin(probes: &[u128]) -> Result<Started, Status> {
        match probes.len() {
            0 => Ok(Started::Done(Outcome::Found { blocks: 0, in_host: 0 })),
            1..=HASHES_MAX => Ok(Started::Send(Work::Lookup(Lookup { probes: probes.to_vec() }))),
            _ => Err(Status::Limit),
        }
    }
}

impl Operation for Lookup {
    fn request(&self) -> WireRequest<'_> {
        WireRequest::Lookup { hashes: &self.probes }
    }

    fn answered(&mut self, _: &mut State, _: &Session, reply: &Reply<'_>) -> Answered {
        found(reply).map(|(blocks, in_host)| Some(Outcome::Found { blocks, in_host }))
    }
}

/// A whole lookup.
#[derive(Debug)]
pub struct WholeLookup {
    hashes: Box<[u128]>,
    search: Search,
    probes: Vec<u128>,
}

impl WholeLookup {
    pub(super) fn begin(hashes: &[u128]) -> Result<Started, Status> {
        if hashes.len() > CALL_BLOCKS_MAX {
            return Err(Status::Limit);
        }
        let mut search = Search::new(hashes.len());
        Ok(match search.probes(hashes) {
            Some(probes) => Started::Send(Work::WholeLookup(WholeLookup { hashes: hashes.into(), search, probes })),
            None => Started::Done(Outcome::Prefix(search.found())),
        })
    }
}

impl Operation for WholeLookup {
    fn describe(&self) -> (&'static str, u64) {
        (LOOKUP, self.hashes.len() as u64)
    }

    fn request(&self) -> WireRequest<'_> {
        WireRequest::Lookup { hashes: &self.probes }
    }

    fn answered(&mut self, _: &mut State, _: &Session, reply: &Reply<'_>) -> Answered {
        let (blocks, in_host) = found(reply)?;
        self.search.answered(blocks, in_host);
        match self.search.probes(&self.hashes) {
            Some(probes) => self.probes = probes,
            None => return Ok(Some(Outcome::Prefix(self.search.found()))),
        }
        Ok(None)
    }
}
