//! Reserve: new blocks for a sequence or for the session's reserve; append: blocks of that reserve for a sequence.

use super::{
    Answered, BLOCKS_MAX, Operation, Outcome, Refusal, Reply, Session, Started, State, Status, WireRequest, Work,
    parked_or_full, too_long,
};
use crate::agent::session::RESERVE_MAX;
use std::sync::atomic::Ordering;

/// Requests `count` blocks, and `left` more with further requests.
#[derive(Debug)]
pub struct Reserve {
    seq: u32,
    count: u32,
    left: u32,
}

impl Reserve {
    pub(super) fn begin(state: &mut State, session: &Session, seq: u32, tokens: u64) -> Result<Started, Refusal> {
        let seqs = session.shared.seqs();
        state.steady(seq)?;
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
        WireRequest::Reserve { seq: Some(self.seq), count: self.count }
    }

    fn why(&self, _: &Session, status: Status) -> Option<String> {
        parked_or_full(status)
    }

    fn answered(&mut self, state: &mut State, session: &Session, reply: &Reply<'_>) -> Answered {
        reply.check(reply.is_counted() && !reply.list.is_empty())?;
        if !reply.list.iter().all(|block| session.shared.seqs().push(self.seq, *block)) {
            return Err(Status::Protocol);
        }
        reply.list.iter().for_each(|block| session.attention.fresh(*block));
        state.told(self.seq);
        self.count = self.left.min(BLOCKS_MAX);
        self.left -= self.count;
        Ok((self.count == 0).then_some(Outcome::Done))
    }
}

/// The same for the session's reserve.
#[derive(Debug)]
pub struct ReserveSession {
    count: u32,
    left: u32,
    granted: u32,
}

impl ReserveSession {
    pub(super) fn begin(session: &Session, blocks: u32) -> Result<Started, Refusal> {
        if blocks as usize > RESERVE_MAX {
            let why = format!("{blocks} blocks; the reserve has room for {RESERVE_MAX}");
            return Err(Refusal::because(Status::Limit, why));
        }
        session.reserve_level.store(blocks, Ordering::Relaxed);
        Ok(match ReserveSession::new(session, blocks) {
            Some(work) => Started::Send(Work::ReserveSession(work)),
            None => Started::Done(Outcome::Blocks(0)),
        })
    }

    /// Request `blocks` blocks, or as many as there is room for; `None`: there is no room.
    fn new(session: &Session, blocks: u32) -> Option<ReserveSession> {
        let left = blocks.min((RESERVE_MAX as u32).saturating_sub(coming(session)));
        let mut work = ReserveSession { count: 0, left, granted: 0 };
        work.go_on(session).then_some(work)
    }

    /// Prepare the next request. Return false if none is left.
    fn go_on(&mut self, session: &Session) -> bool {
        self.count = self.left.min(BLOCKS_MAX);
        self.left -= self.count;
        session.reserve_asked.fetch_add(self.count, Ordering::Relaxed);
        self.count > 0
    }
}

impl Operation for ReserveSession {
    fn request(&self) -> WireRequest<'_> {
        WireRequest::Reserve { seq: None, count: self.count }
    }

    fn answered(&mut self, _: &mut State, session: &Session, reply: &Reply<'_>) -> Answered {
        session.reserve_asked.fetch_sub(self.count, Ordering::Relaxed);
        match reply.check(reply.is_counted() && reply.list.len() <= self.count as usize) {
            // The blocks of earlier requests stay in the reserve.
            Err(_) if self.granted > 0 => return Ok(Some(Outcome::Blocks(self.granted as usize))),
            result => result?,
        }
        for block in reply.list {
            session.attention.fresh(*block);
            self.granted += u32::from(session.reserve.push(*block).is_ok());
        }
        Ok((!self.go_on(session)).then_some(Outcome::Blocks(self.granted as usize)))
    }

    fn take_back(&self, _: &mut State, session: &Session) {
        session.reserve_asked.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// Return the number of blocks in the session's reserve, requested ones included.
fn coming(session: &Session) -> u32 {
    session.reserve.len() as u32 + session.reserve_asked.load(Ordering::Relaxed)
}

impl State {
    pub(in crate::client::channel) fn append(&mut self, seq: u32, tokens: u64) -> Result<(), Refusal> {
        let session = self.session();
        let seqs = session.shared.seqs();
        session.usable()?;
        self.steady(seq)?;
        let wanted = session.shared.geometry().blocks_for(seqs.committed(seq).saturating_add(tokens));
        if wanted > seqs.seq_blocks_max() {
            return Err(Refusal::because(Status::Limit, too_long(&session)));
        }
        let before = seqs.len(seq);
        let mut result = Ok(());
        while seqs.len(seq) < wanted {
            match session.reserve.pop() {
                Some(block) => {
                    seqs.push(seq, block);
                }
                None => {
                    result = Err(Status::Again.into());
                    break;
                }
            }
        }
        if seqs.len(seq) != before {
            self.touch(seq);
            let _ = self.flush(); // what does not fit into the ring is sent with a later call
        }
        if seqs.len(seq) != before || result.is_err() {
            self.keep_reserve(&session);
        }
        result
    }

    /// Refill the session's reserve when it is half empty.
    fn keep_reserve(&mut self, session: &Session) {
        let (level, coming) = (session.reserve_level.load(Ordering::Relaxed), coming(session));
        if coming > level / 2 || level == 0 {
            return;
        }
        if let Some(work) = ReserveSession::new(session, level - coming) {
            let _ = self.post(Work::ReserveSession(work)); // the next append requests the blocks again
        }
    }
}
