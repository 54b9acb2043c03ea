//! Fork: a child that shares the sealed blocks and has copies of the others.

use super::{Answered, Operation, Outcome, Refusal, Reply, Sequences, Session, Started, WireRequest, Work, close};

/// Both sequences are closed to lanes until the answer.
#[derive(Debug)]
pub struct Fork {
    parent: u32,
    child: u32,
}

impl Fork {
    pub fn begin(sequences: &mut Sequences, session: &Session, seq: u32) -> Result<Started, Refusal> {
        let seqs = session.shared.seqs();
        sequences.steady(seq)?;
        close(session, seq)?;
        let child = sequences.new_slot(None).inspect_err(|_| seqs.open(seq))?;
        let _ = seqs.close(child); // new, therefore open, and not in use elsewhere
        Ok(Started::Send(Work::Fork(Fork { parent: seq, child })))
    }
}

impl Operation for Fork {
    fn request(&self) -> WireRequest<'_> {
        WireRequest::Fork { parent: self.parent, child: self.child }
    }

    fn answered(&mut self, sequences: &mut Sequences, session: &Session, reply: &Reply) -> Answered {
        let seqs = session.shared.seqs();
        let Fork { parent, child } = *self;
        let shared = u32::try_from(reply.value).unwrap_or(u32::MAX);
        let checked = reply.check(u64::from(shared) + reply.list.len() as u64 <= u64::from(seqs.len(parent)));
        seqs.open(parent);
        checked.inspect_err(|_| sequences.forget(child))?;
        let blocks = (0..shared).filter_map(|index| seqs.block(parent, index)).chain(reply.list.iter().copied());
        blocks.for_each(|block| {
            seqs.push(child, block);
        });
        reply.list.iter().for_each(|block| session.attention.fresh(*block));
        seqs.commit(child, seqs.committed(parent));
        seqs.set_contract(child, seqs.contract(parent));
        sequences.told(child);
        seqs.open(child);
        Ok(Some(Outcome::Seq(child)))
    }

    fn take_back(&self, sequences: &mut Sequences, session: &Session) {
        session.shared.seqs().open(self.parent);
        sequences.forget(self.child);
    }
}
