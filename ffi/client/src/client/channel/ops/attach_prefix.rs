//! Attach prefix: attach the longest cached prefix to an empty sequence.

use super::{
    Answered, Operation, Outcome, Refusal, Reply, Sequences, Session, Started, Status, WireRequest, Work, part,
};

/// Requests the hashes from `at` on, in as many requests as needed.
#[derive(Debug)]
pub struct AttachPrefix {
    seq: u32,
    hashes: Vec<u128>,
    at: usize,
    /// A lookup has asked for the prefix before.
    looked_up: bool,
}

impl AttachPrefix {
    pub fn begin(
        sequences: &mut Sequences,
        session: &Session,
        seq: u32,
        hashes: &[u128],
        looked_up: bool,
    ) -> Result<Started, Refusal> {
        sequences.steady(seq)?;
        let seqs = session.shared.seqs();
        if !seqs.is_empty(seq) {
            let why = format!("the sequence has {} blocks already: attach to an empty one", seqs.len(seq));
            return Err(Refusal::because(Status::State, why));
        }
        if hashes.is_empty() {
            return Ok(Started::Done(Outcome::Blocks(0)));
        }
        Ok(Started::Send(Work::AttachPrefix(AttachPrefix { seq, hashes: hashes.to_vec(), at: 0, looked_up })))
    }
}

impl Operation for AttachPrefix {
    fn request(&self) -> WireRequest<'_> {
        let asked = if self.at == 0 { self.hashes.len() as u32 } else { 0 };
        let asked = (!self.looked_up).then_some(asked);
        WireRequest::AttachPrefix { seq: self.seq, hashes: part(&self.hashes, self.at), asked }
    }

    fn answered(&mut self, sequences: &mut Sequences, session: &Session, reply: &Reply) -> Answered {
        let (seqs, sent) = (session.shared.seqs(), part(&self.hashes, self.at));
        let before = seqs.len(self.seq);
        match reply.check(reply.is_counted() && reply.list.len() <= sent.len()) {
            // The blocks of earlier requests stay attached.
            Err(status) if before > 0 && status != Status::Daemon => return Ok(Some(Outcome::Blocks(before as usize))),
            result => result?,
        }
        if !reply.list.iter().all(|block| seqs.push(self.seq, *block)) {
            return Err(Status::Protocol);
        }
        reply.list.iter().zip(sent).for_each(|(block, name)| session.attention.mapped(*block, *name));
        let len = seqs.len(self.seq);
        seqs.commit(self.seq, u64::from(len) * u64::from(session.shared.geometry().bounds().page_tokens));
        sequences.told(self.seq);
        let all = reply.list.len() == sent.len();
        self.at += sent.len();
        Ok((!all || self.at == self.hashes.len()).then_some(Outcome::Blocks(len as usize)))
    }
}
