//! Changes that are made locally and reported to the daemon, which answers nobody's call.

use super::{Answered, Operation, Reply, Sequences, Session, Status, WireRequest};

/// Updates the daemon's copy of a sequence or its pins. If an update of a sequence fails, the daemon's state and the session's
/// mirror differ.
#[derive(Debug)]
pub struct Tell(pub WireRequest<'static>);

impl Operation for Tell {
    fn request(&self) -> WireRequest<'_> {
        self.0
    }

    fn answered(&mut self, sequences: &mut Sequences, _: &Session, reply: &Reply) -> Answered {
        if reply.status != Status::Ok
            && let WireRequest::SeqCreate { seq } | WireRequest::Commit { seq, .. } = self.0
        {
            sequences.rejected(seq, reply.status);
        }
        reply.done()
    }
}

/// Frees the sequence's slot with the answer.
#[derive(Debug)]
pub struct DropSeq {
    pub seq: u32,
}

impl Operation for DropSeq {
    fn request(&self) -> WireRequest<'_> {
        WireRequest::SeqDrop { seq: self.seq }
    }

    fn answered(&mut self, sequences: &mut Sequences, _: &Session, reply: &Reply) -> Answered {
        sequences.forget(self.seq);
        reply.done()
    }
}
