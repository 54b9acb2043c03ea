//! Lease: a sequence that holds a cached prefix for a limited time.

use super::{
    Answered, FULL, Operation, Outcome, Refusal, Reply, Sequences, Session, Started, Status, WireRequest, Work,
    too_long,
};
use crate::client::request::Leased;
use kvtide_types::LEASE_SHARE;
use std::time::Duration;

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
    pub fn begin(
        sequences: &mut Sequences,
        session: &Session,
        hash: u128,
        count: u32,
        time: Duration,
    ) -> Result<Started, Refusal> {
        let lease_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if count == 0 || lease_us == 0 {
            return Err(Refusal::because(
                Status::Invalid,
                "a lease has at least one block, and lasts at least 1 microsecond",
            ));
        }
        if count > session.shared.seqs().seq_blocks_max() {
            return Err(Refusal::because(Status::Limit, too_long(session)));
        }
        let seq = sequences.new_slot(Some(count))?;
        Ok(Started::Send(Work::Lease(Lease { seq, hash, count, lease_us, refused: 0 })))
    }
}

impl Operation for Lease {
    fn why(&self, _: &Session, status: Status) -> Option<String> {
        let limit = self.refused & !LEASE_SHARE;
        match status {
            Status::NotFound => Some("no prefix that ends with this hash is cached".into()),
            Status::Invalid => Some("the cached prefix that ends with this hash has another number of blocks".into()),
            Status::Limit if self.refused == 0 => Some(FULL.into()),
            Status::Limit if limit == self.refused => {
                Some(format!("the daemon's limits.lease_max_ms allows {} ms", limit / 1000))
            }
            Status::Limit => {
                Some(format!("leases of a shared cache may pin {limit} bytes in all (limits.lease_percent)"))
            }
            _ => None,
        }
    }

    fn request(&self) -> WireRequest<'_> {
        let Lease { seq, hash, count, lease_us, .. } = *self;
        WireRequest::Lease { seq, hash, count, lease_us }
    }

    fn answered(&mut self, sequences: &mut Sequences, _: &Session, reply: &Reply) -> Answered {
        let seq = self.seq;
        self.refused = if reply.status == Status::Limit { reply.value } else { 0 };
        let whole = |list: &[u32; 3]| list.iter().map(|n| u64::from(*n)).sum::<u64>() == u64::from(self.count);
        match (reply.status, <[u32; 3]>::try_from(&reply.list[..]).ok().filter(whole)) {
            (Status::Ok, Some([in_host, on_nvme, elsewhere])) => {
                let load = Duration::from_micros(reply.value);
                Ok(Some(Outcome::Lease(Leased { seq, in_host, on_nvme, elsewhere, load })))
            }
            (status, _) => {
                sequences.forget(seq);
                Err(if status == Status::Ok { Status::Protocol } else { status })
            }
        }
    }

    fn take_back(&self, sequences: &mut Sequences, _: &Session) {
        sequences.forget(self.seq);
    }
}
