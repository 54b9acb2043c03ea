//! Reserve: new blocks for a sequence.

use super::{
    Answered, BLOCKS_MAX, Operation, Outcome, Refusal, Reply, Sequences, Session, Started, Status, WireRequest, Work,
    too_long,
};

/// Requests `count` blocks, and `left` more with further requests.
#[derive(Debug)]
pub struct Reserve {
    seq: u32,
    count: u32,
    left: u32,
}

impl Reserve {
    pub fn begin(sequences: &mut Sequences, session: &Session, seq: u32, tokens: u64) -> Result<Started, Refusal> {
        let seqs = session.shared.seqs();
        sequences.steady(seq)?;
        let wanted = session.shared.geometry().blocks_for(tokens);
        if wanted > seqs.seq_blocks_max() {
            return Err(Refusal::because(Status::Limit, too_long(session)));
        }
        let missing = wanted.saturating_sub(seqs.len(seq));
        if missing == 0 {
            return Ok(Started::Done(Outcome::Done));
        }
        let count = missing.min(BLOCKS_MAX);
        Ok(Started::Send(Work::Reserve(Reserve { seq, count, left: missing - count })))
    }
}

impl Operation for Reserve {
    fn request(&self) -> WireRequest<'_> {
        WireRequest::Reserve { seq: self.seq, count: self.count }
    }

    fn answered(&mut self, _: &mut Sequences, session: &Session, reply: &Reply) -> Answered {
        reply.check(reply.is_counted() && !reply.list.is_empty())?;
        if !reply.list.iter().all(|block| session.shared.seqs().push(self.seq, *block)) {
            return Err(Status::Protocol);
        }
        reply.list.iter().for_each(|block| session.attention.fresh(*block));
        self.count = self.left.min(BLOCKS_MAX);
        self.left -= self.count;
        Ok((self.count == 0).then_some(Outcome::Done))
    }
}
