//! Truncate: cut a sequence to its first tokens.

use super::{
    Answered, Operation, Outcome, Refusal, Reply, Sequences, Session, Started, Status, WireRequest, Work, close,
};

/// The sequence is closed to lanes until the answer.
#[derive(Debug)]
pub struct Truncate {
    seq: u32,
    tokens: u64,
}

impl Truncate {
    pub fn begin(sequences: &mut Sequences, session: &Session, seq: u32, tokens: u64) -> Result<Started, Refusal> {
        let (seqs, pins) = (session.shared.seqs(), session.shared.pins());
        let owned = sequences.steady(seq)?;
        if tokens > seqs.committed(seq) {
            let why = format!("to {tokens} tokens; {} are committed", seqs.committed(seq));
            return Err(Refusal::because(Status::Range, why));
        }
        // A cut leaves pinned blocks unchanged.
        let page_tokens = u64::from(session.shared.geometry().bounds().page_tokens);
        let mut pinned = owned.pins.iter().filter_map(|(pin, _)| pins.range(*pin));
        if pinned.any(|range| u64::from(range.first + range.count) * page_tokens > tokens) {
            return Err(Refusal::because(Status::Busy, "a page beyond the cut is pinned: release the pin"));
        }
        close(session, seq)?;
        Ok(Started::Send(Work::Truncate(Truncate { seq, tokens })))
    }
}

impl Operation for Truncate {
    fn request(&self) -> WireRequest<'_> {
        WireRequest::Truncate { seq: self.seq, tokens: self.tokens }
    }

    fn answered(&mut self, sequences: &mut Sequences, session: &Session, reply: &Reply) -> Answered {
        let seqs = session.shared.seqs();
        let len = session.shared.geometry().blocks_for(self.tokens);
        let copied = reply.list.len() as u32;
        let checked = reply.check(copied <= 1 && copied <= len);
        if checked.is_ok() {
            seqs.cut(self.seq, len - copied);
            reply.list.iter().for_each(|block| {
                session.attention.fresh(*block);
                seqs.push(self.seq, *block);
            });
            seqs.commit(self.seq, self.tokens);
            sequences.told(self.seq);
        }
        seqs.open(self.seq);
        checked.map(|()| Some(Outcome::Done))
    }

    fn take_back(&self, _: &mut Sequences, session: &Session) {
        session.shared.seqs().open(self.seq);
    }
}
