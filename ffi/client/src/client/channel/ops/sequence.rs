//! Create, commit and drop: changes of a sequence that are made locally and reported to the daemon.

use super::{Answered, Operation, Refusal, Reply, Session, State, Status, WireRequest, Work, close};
use crate::client::channel::owned::none;

/// Updates the daemon's copy of a sequence. If it fails, the daemon's state and the session's mirror differ.
#[derive(Debug)]
pub struct Tell {
    seq: u32,
    request: WireRequest<'static>,
}

impl Operation for Tell {
    fn request(&self) -> WireRequest<'_> {
        self.request
    }

    fn answered(&mut self, state: &mut State, _: &Session, reply: &Reply<'_>) -> Answered {
        if reply.status != Status::Ok
            && let Some(owned) = state.owned.get_mut(&self.seq)
        {
            owned.broken.get_or_insert(reply.status);
        }
        reply.done()
    }
}

/// Frees the sequence's slot with the answer.
#[derive(Debug)]
pub struct DropSeq {
    seq: u32,
}

impl Operation for DropSeq {
    fn request(&self) -> WireRequest<'_> {
        WireRequest::SeqDrop { seq: self.seq }
    }

    fn answered(&mut self, state: &mut State, _: &Session, reply: &Reply<'_>) -> Answered {
        state.forget(self.seq);
        reply.done()
    }
}

impl State {
    pub(in crate::client::channel) fn create(&mut self) -> Result<u32, Refusal> {
        let session = self.session();
        session.usable()?;
        let seq = self.new_slot()?;
        let request = WireRequest::SeqCreate { seq };
        self.post(Work::Tell(Tell { seq, request })).inspect_err(|_| self.forget(seq))?;
        Ok(seq)
    }

    pub(in crate::client::channel) fn commit(&mut self, seq: u32, tokens: u64) -> Result<(), Refusal> {
        let session = self.session();
        let seqs = session.shared.seqs();
        session.usable()?;
        self.seq(seq)?;
        let page_tokens = u64::from(session.shared.geometry().bounds().page_tokens);
        let (room, before) = (u64::from(seqs.len(seq)) * page_tokens, seqs.committed(seq));
        let refuse = |why: String| Err(Refusal::because(Status::State, why));
        if tokens > room {
            return refuse(format!("{tokens} tokens; there is room for {room}: reserve first"));
        }
        if tokens < before {
            return refuse(format!("{tokens} tokens; {before} are committed already: truncate rolls back"));
        }
        // On a device the step's writes are only enqueued; the step's end orders them before copies.
        if !session.tier0.is_host() && seqs.in_step(seq) {
            return refuse("the sequence is in a lane's step: end the step".into());
        }
        seqs.commit(seq, tokens);
        self.touch(seq);
        // A commit that seals no page gives the daemon nothing to do. It is sent with the next message, so that the daemon is not
        // woken for every token.
        if tokens / page_tokens != before / page_tokens {
            let _ = self.flush(); // what does not fit into the ring is sent with a later call
        }
        Ok(())
    }

    /// Send a sequence's committed length to the daemon.
    pub(in crate::client::channel) fn tell(&mut self, seq: u32) -> Result<(), Status> {
        let Some(owned) = self.owned.get(&seq) else { return Ok(()) };
        let tokens = self.session().shared.seqs().committed(seq);
        if tokens != owned.told_tokens {
            self.post(Work::Tell(Tell { seq, request: WireRequest::Commit { seq, tokens } }))?;
            if let Some(owned) = self.owned.get_mut(&seq) {
                owned.told_tokens = tokens;
            }
        }
        Ok(())
    }

    /// Drop a sequence.
    pub(in crate::client::channel) fn drop_seq(&mut self, seq: u32) -> Result<(), Refusal> {
        let session = self.session();
        let seqs = session.shared.seqs();
        let owned = self.owned.get(&seq).filter(|owned| !owned.dropping).ok_or_else(|| none(seq))?;
        let (changing, parked) = (owned.changing, owned.parked);
        if changing {
            return Err(Status::Again.into());
        }
        if session.alive() {
            self.flush()?; // the daemon receives a channel's calls in their order
        }
        if !parked {
            close(&session, seq)?;
        }
        if session.alive()
            && let Err(status) = self.post(Work::DropSeq(DropSeq { seq }))
            && status != Status::Daemon
        {
            if !parked {
                seqs.open(seq);
            }
            return Err(status.into());
        }
        let pins = self.owned.get_mut(&seq).map(|owned| {
            owned.dropping = true;
            std::mem::take(&mut owned.pins)
        });
        for (pin, _) in pins.unwrap_or_default() {
            session.shared.pins().release(seqs, pin);
        }
        if !session.alive() {
            self.forget(seq);
        }
        Ok(())
    }
}
