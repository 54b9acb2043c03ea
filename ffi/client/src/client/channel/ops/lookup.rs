//! Look a prefix up, as one request after another.

use super::{Answered, Operation, Outcome, Refusal, Reply, Sequences, Session, Started, WireRequest, Work};
use crate::client::channel::{
    blocks::{CALL_BLOCKS_MAX, LOOKUP, too_many},
    search::Search,
};

/// A lookup.
#[derive(Debug)]
pub struct Lookup {
    hashes: Box<[u128]>,
    search: Search,
    probes: Vec<u128>,
    /// Blocks to count as asked for with the next request.
    asked: u32,
}

impl Lookup {
    pub fn begin(hashes: &[u128]) -> Result<Started, Refusal> {
        if hashes.len() > CALL_BLOCKS_MAX {
            return Err(too_many(hashes.len(), CALL_BLOCKS_MAX));
        }
        let (mut search, asked) = (Search::new(hashes.len()), hashes.len() as u32);
        Ok(match search.probes(hashes) {
            Some(probes) => Started::Send(Work::Lookup(Lookup { hashes: hashes.into(), search, probes, asked })),
            None => Started::Done(Outcome::Prefix(search.found())),
        })
    }
}

impl Operation for Lookup {
    fn describe(&self) -> (&'static str, u64) {
        (LOOKUP, self.hashes.len() as u64)
    }

    fn request(&self) -> WireRequest<'_> {
        WireRequest::Lookup { hashes: &self.probes, asked: self.asked, range: self.search.range() }
    }

    fn answered(&mut self, _: &mut Sequences, _: &Session, reply: &Reply) -> Answered {
        let (blocks, in_host) = (reply.value as u32, (reply.value >> 32) as u32);
        reply.check(in_host <= blocks)?;
        self.asked = 0;
        self.search.answered(blocks, in_host);
        match self.search.probes(&self.hashes) {
            Some(probes) => self.probes = probes,
            None => return Ok(Some(Outcome::Prefix(self.search.found()))),
        }
        Ok(None)
    }
}
