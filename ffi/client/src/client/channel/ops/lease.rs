//! Lease: a sequence that holds a cached prefix for a limited time.

use super::{Answered, Operation, Outcome, Reply, Session, Started, State, Status, WireRequest, Work, describe};
use crate::client::request::Leased;
use kvtide_types::LEASE_SHARE;
use std::time::Duration;

const TOO_LONG: &str = "lease a prefix: the duration exceeds limits.lease_max_ms; maximum in microseconds:";
const TOO_MUCH: &str = "lease a prefix: limits.lease_percent of a shared cache exceeded; maximum bytes:";

/// A lease of `count` blocks.
#[derive(Debug)]
pub struct Lease {
    seq: u32,
    hash: u128,
    count: u32,
    lease_us: u64,
    /// The daemon's limit if it refused the lease for its duration or its size, otherwise 0.
    refused: u64,
}

impl Lease {
    pub(super) fn begin(state: &mut State, hash: u128, count: u32, time: Duration) -> Result<Started, Status> {
        let lease_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let seq = state.new_slot()?;
        if let Some(owned) = state.owned.get_mut(&seq) {
            owned.lease = true;
        }
        Ok(Started::Send(Work::Lease(Lease { seq, hash, count, lease_us, refused: 0 })))
    }
}

impl Operation for Lease {
    fn describe(&self) -> (&'static str, u64) {
        match self.refused {
            0 => describe(self.request()),
            refused if refused & LEASE_SHARE != 0 => (TOO_MUCH, refused & !LEASE_SHARE),
            refused => (TOO_LONG, refused),
        }
    }

    fn request(&self) -> WireRequest<'_> {
        let Lease { seq, hash, count, lease_us, .. } = *self;
        WireRequest::Lease { seq, hash, count, lease_us }
    }

    fn answered(&mut self, state: &mut State, _: &Session, reply: &Reply<'_>) -> Answered {
        let seq = self.seq;
        self.refused = if reply.status == Status::Limit { reply.value } else { 0 };
        let whole = |list: &[u32; 3]| list.iter().map(|n| u64::from(*n)).sum::<u64>() == u64::from(self.count);
        match (reply.status, <[u32; 3]>::try_from(reply.list).ok().filter(whole)) {
            (Status::Ok, Some([in_host, on_nvme, elsewhere])) => {
                let load = Duration::from_micros(reply.value);
                Ok(Some(Outcome::Lease(Leased { seq, in_host, on_nvme, elsewhere, load })))
            }
            (status, _) => {
                state.forget(seq);
                Err(if status == Status::Ok { Status::Protocol } else { status })
            }
        }
    }

    fn take_back(&self, state: &mut State, _: &Session) {
        state.forget(self.seq);
    }
}
