//! Turns calls into requests, or completes them at once where the session needs no daemon.

use super::{
    blocks::CALL_BLOCKS_MAX,
    call::Call,
    calls::{BLOCKS_MAX, State, Work, resized},
    pin_id, pin_of,
    publish::Publishing,
    search::Search,
};
use crate::{
    agent::{
        attention::Contract,
        protocol::PageRange,
        session::{Copying, RESERVE_MAX, Session},
    },
    client::request::{Completed, Outcome, Pin, Request, Ticket},
};
use kvtide_wire::{
    entry::{Level, NONE_U32, Op, Submission},
    lists::{HASHED_BLOCKS_MAX, HASHES_MAX, hash_words},
    status::Status,
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Result of preparing a call.
enum Started {
    /// Completed without the daemon.
    Done(Outcome),
    /// Request to send, with hashes.
    Send(Op, Submission, Vec<u128>, Work),
}

impl State {
    /// Start a request. Its result is kept for the holder of the ticket.
    pub(super) fn submit(&mut self, request: &Request<'_>, timeout: Duration, user: u64) -> Result<Ticket, Status> {
        if self.open_tickets() >= self.room() {
            return Err(Status::Again);
        }
        let ticket = Ticket(self.tickets + 1);
        self.start_for(request, timeout, user, Some(ticket))?;
        self.tickets += 1;
        Ok(ticket)
    }

    /// Start a request without a time limit of its own. Without a ticket its result is discarded.
    pub(super) fn start(&mut self, request: &Request<'_>, ticket: Option<Ticket>) -> Result<(), Status> {
        self.start_for(request, Duration::ZERO, 0, ticket)
    }

    fn start_for(
        &mut self,
        request: &Request<'_>,
        timeout: Duration,
        user: u64,
        ticket: Option<Ticket>,
    ) -> Result<(), Status> {
        let session = self.session();
        session.usable()?;
        self.flush()?; // the daemon receives a channel's calls in their order
        let (op, submission, hashes, work) = match self.prepare(&session, request)? {
            Started::Done(outcome) => {
                self.finish(Call::new(ticket, user, Duration::ZERO, Work::Plain), Ok(outcome));
                return Ok(());
            }
            Started::Send(op, submission, hashes, work) => (op, submission, hashes, work),
        };
        let sent = self.send(op, submission, &hashes, Call::new(ticket, user, timeout, work));
        sent.map_err(|(status, call)| {
            self.take_back(&session, &call.work);
            status
        })
    }

    /// Undo `prepare` for a request that could not be sent.
    fn take_back(&mut self, session: &Session, work: &Work) {
        let seqs = session.shared.seqs();
        match work {
            Work::Fork { parent, child } => {
                seqs.open(*parent);
                self.forget(*child);
            }
            Work::Truncate { seq, .. } => seqs.open(*seq),
            Work::Park { seq } => self.unpark(*seq),
            Work::Acquire { pin, .. } => {
                session.shared.pins().release(seqs, *pin);
            }
            Work::ReserveSession { asked, .. } => {
                session.reserve_asked.fetch_sub(*asked, Ordering::Relaxed);
            }
            Work::Lease { seq, .. } => self.forget(*seq),
            Work::Resize { class, before, .. } => {
                let _ = resized(session, *class, *before); // restores the old size; whether that succeeds changes nothing here
            }
            _ => {}
        }
    }

    fn prepare(&mut self, session: &Arc<Session>, request: &Request<'_>) -> Result<Started, Status> {
        let seqs = session.shared.seqs();
        let geometry = session.shared.geometry();
        let page_tokens = u64::from(geometry.bounds().page_tokens);
        let plain = Submission::default();
        Ok(match *request {
            Request::Nop => Started::Send(Op::Nop, plain, Vec::new(), Work::Plain),
            Request::Reserve { seq, tokens } => {
                self.steady(seq)?;
                let wanted = geometry.blocks_for(tokens);
                if wanted > seqs.seq_blocks_max() {
                    return Err(Status::Limit);
                }
                let missing = wanted.saturating_sub(seqs.len(seq));
                if missing == 0 {
                    return Ok(Started::Done(Outcome::Done));
                }
                let count = missing.min(BLOCKS_MAX);
                let work = Work::Reserve { seq, left: missing - count };
                Started::Send(Op::Reserve, Submission { seq, count, ..plain }, Vec::new(), work)
            }
            Request::ReserveSession { blocks } => {
                if blocks as usize > RESERVE_MAX {
                    return Err(Status::Limit);
                }
                session.reserve_level.store(blocks, Ordering::Relaxed);
                match self.refill(session, blocks) {
                    Some(started) => started,
                    None => Started::Done(Outcome::Blocks(0)),
                }
            }
            Request::Fork { seq } => {
                self.steady(seq)?;
                seqs.close(seq)?;
                let child = self.new_slot().inspect_err(|_| seqs.open(seq))?;
                let _ = seqs.close(child); // new, therefore open, and not in use elsewhere
                let work = Work::Fork { parent: seq, child };
                Started::Send(Op::Fork, Submission { seq, block: child, ..plain }, Vec::new(), work)
            }
            Request::Truncate { seq, tokens } => {
                self.steady(seq)?;
                if tokens > seqs.committed(seq) {
                    return Err(Status::Range);
                }
                self.check_pins(session, seq, tokens, page_tokens)?;
                seqs.close(seq)?;
                let work = Work::Truncate { seq, tokens };
                Started::Send(Op::Truncate, Submission { seq, value: tokens, ..plain }, Vec::new(), work)
            }
            Request::Publish { seq, first, parent, hashes, level } => {
                self.seq(seq)?;
                let sealed = seqs.committed(seq) / page_tokens;
                if u64::from(first) + hashes.len() as u64 > sealed {
                    return Err(Status::State);
                }
                if hashes.is_empty() {
                    return Ok(Started::Done(Outcome::Level(level)));
                }
                let (publishing, (submission, hashes)) = Publishing::new(seq, first, parent, hashes, level);
                Started::Send(Op::Publish, submission, hashes, Work::Publish(Box::new(publishing)))
            }
            Request::AttachPrefix { seq, hashes } => {
                self.steady(seq)?;
                if !seqs.is_empty(seq) {
                    return Err(Status::State);
                }
                let (sent, rest) = hashes.split_at(hashes.len().min(HASHES_MAX));
                if sent.is_empty() {
                    return Ok(Started::Done(Outcome::Blocks(0)));
                }
                let work = Work::AttachPrefix { seq, sent: sent.to_vec(), rest: rest.to_vec() };
                Started::Send(
                    Op::AttachPrefix,
                    Submission { seq, count: sent.len() as u32, ..plain },
                    sent.to_vec(),
                    work,
                )
            }
            Request::Park { seq, due } => {
                let parked = self.steady(seq)?.parked;
                let value = u64::try_from(due.as_micros()).unwrap_or(u64::MAX);
                let submission = Submission { seq, value, ..plain };
                if parked {
                    // Only the expected time of return changes.
                    return Ok(Started::Send(Op::Park, submission, Vec::new(), Work::Plain));
                }
                seqs.close(seq)?;
                if let Some(owned) = self.owned.get_mut(&seq) {
                    owned.parked = true;
                }
                Started::Send(Op::Park, submission, Vec::new(), Work::Park { seq })
            }
            Request::Resume { seq } => {
                if !self.steady(seq)?.parked {
                    return Err(Status::State);
                }
                Started::Send(Op::Resume, Submission { seq, ..plain }, Vec::new(), Work::Resume { seq })
            }
            Request::Advise { seq, first, count, advice } => {
                self.seq(seq)?;
                let end = first.checked_add(count).filter(|end| *end <= seqs.len(seq));
                if end.is_none() {
                    return Err(Status::Range);
                }
                let (flags, value) = advice.code();
                let submission = Submission { seq, first, count, flags, value: value.into(), ..plain };
                Started::Send(Op::Advise, submission, Vec::new(), Work::Plain)
            }
            Request::Contract { seq, contract } => {
                self.seq(seq)?;
                if !contract.is_valid() {
                    return Err(Status::Range);
                }
                let submission = contract_of(seq, contract);
                Started::Send(Op::Contract, submission, Vec::new(), Work::Contract { seq, contract })
            }
            Request::Acquire { range } => self.acquire(session, range)?,
            Request::Lookup { probes } => {
                if probes.len() > HASHES_MAX {
                    return Err(Status::Limit);
                }
                if probes.is_empty() {
                    return Ok(Started::Done(Outcome::Found { blocks: 0, in_host: 0 }));
                }
                let submission = Submission { count: probes.len() as u32, ..plain };
                Started::Send(Op::Lookup, submission, probes.to_vec(), Work::Lookup)
            }
            Request::Search { hashes } => {
                if hashes.len() > CALL_BLOCKS_MAX {
                    return Err(Status::Limit);
                }
                let mut search = Search::new(hashes.len());
                let Some(probes) = search.probes(hashes) else {
                    return Ok(Started::Done(Outcome::Prefix(search.found())));
                };
                let work = Work::Search { hashes: hashes.into(), search };
                Started::Send(Op::Lookup, Submission { count: probes.len() as u32, ..plain }, probes, work)
            }
            Request::Lease { hash, count, time } => {
                let value = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
                let seq = self.new_slot()?;
                if let Some(owned) = self.owned.get_mut(&seq) {
                    owned.lease = true;
                }
                let submission = Submission { seq, count, value, hash: halves(hash), ..plain };
                Started::Send(Op::Lease, submission, Vec::new(), Work::Lease { seq, count, refused: 0 })
            }
            Request::Load { lease, first, blocks } => {
                self.steady(lease)?;
                if blocks.is_empty() || blocks.len() > BLOCKS_MAX as usize {
                    return Err(if blocks.is_empty() { Status::Invalid } else { Status::Limit });
                }
                let count = blocks.len() as u32;
                let submission = Submission { seq: lease, first, count, ..plain };
                let work = copy("load blocks, count", blocks.to_vec(), count, session.hold(blocks)?);
                Started::Send(Op::LoadBlocks, submission, Vec::new(), work)
            }
            Request::Store { first, parent, hashes, blocks, level } => {
                if hashes.is_empty() || hashes.len() != blocks.len() || (parent == 0) != (first == 0) {
                    return Err(Status::Invalid);
                }
                if hashes.len() > HASHED_BLOCKS_MAX {
                    return Err(Status::Limit);
                }
                let count = hashes.len() as u32;
                let words = hashes.iter().flat_map(|hash| hash_words(*hash)).chain(blocks.iter().copied()).collect();
                let submission = Submission { first, count, flags: level as u16, hash: halves(parent), ..plain };
                let copying = session.hold(blocks)?;
                let work = Work::Copy { doing: "store blocks, count", count, level, words, copying };
                Started::Send(Op::StoreBlocks, submission, Vec::new(), work)
            }
            Request::Fetch { lease, first, count } => {
                self.steady(lease)?;
                let submission = Submission { seq: lease, first, count, ..plain };
                let work = copy("fetch blocks, count", Vec::new(), count, session.hold(&[])?);
                Started::Send(Op::FetchBlocks, submission, Vec::new(), work)
            }
            Request::Tier0Resize { class, frames } => resize(session, class, frames)?,
        })
    }

    /// Pin a range. Send a request only if a page of it is missing.
    fn acquire(&mut self, session: &Session, range: PageRange) -> Result<Started, Status> {
        let PageRange { seq, first, count, plane, planes } = range;
        let shared = &session.shared;
        self.steady(seq)?;
        let all = shared.geometry().plane_count();
        let blocks = first.checked_add(count).is_some_and(|end| end <= shared.seqs().len(seq));
        if !blocks || u32::from(plane) + u32::from(planes) > all {
            return Err(Status::Range);
        }
        let pin = shared.pins().pin(shared.seqs(), &range).ok_or(Status::Limit)?;
        let resident = (first..first + count).filter_map(|index| shared.seqs().block(seq, index)).all(|block| {
            // A page in a mapped frame is not in tier 0; the daemon must bring it there.
            (shared.geometry().mapped_frames() == 0 && shared.resident_pages(block) == all)
                || (plane..plane + planes).all(|plane| shared.in_tier0(block, plane))
        });
        if resident {
            if let Some(owned) = self.owned.get_mut(&seq) {
                owned.pins.push((pin, false));
            }
            return Ok(Started::Done(Outcome::Pin(pin_of(pin))));
        }
        Ok(Started::Send(Op::Acquire, acquire(range), Vec::new(), Work::Acquire { seq, pin }))
    }

    /// Check that a cut leaves pinned blocks unchanged.
    fn check_pins(&self, session: &Session, seq: u32, tokens: u64, page_tokens: u64) -> Result<(), Status> {
        let pins = self.owned.get(&seq).map_or(&[][..], |owned| &owned.pins);
        let touched = pins
            .iter()
            .filter_map(|(pin, _)| session.shared.pins().range(*pin))
            .any(|range| u64::from(range.first + range.count) * page_tokens > tokens);
        if touched { Err(Status::Busy) } else { Ok(()) }
    }

    /// Request blocks for the session's reserve.
    fn refill(&mut self, session: &Session, blocks: u32) -> Option<Started> {
        let there = session.reserve.len() as u32 + session.reserve_asked.load(Ordering::Relaxed);
        let wanted = blocks.min((RESERVE_MAX as u32).saturating_sub(there));
        let asked = wanted.min(BLOCKS_MAX);
        if asked == 0 {
            return None;
        }
        session.reserve_asked.fetch_add(asked, Ordering::Relaxed);
        let work = Work::ReserveSession { asked, left: wanted - asked, granted: 0 };
        let submission = Submission { seq: NONE_U32, count: asked, ..Submission::default() };
        Some(Started::Send(Op::Reserve, submission, Vec::new(), work))
    }

    pub(super) fn create(&mut self) -> Result<u32, Status> {
        let session = self.session();
        session.usable()?;
        let seq = self.new_slot()?;
        let request = Submission { seq, ..Submission::default() };
        self.post(Op::SeqCreate, request, Work::Tell { seq }).inspect_err(|_| self.forget(seq))?;
        Ok(seq)
    }

    pub(super) fn append(&mut self, seq: u32, tokens: u64) -> Result<(), Status> {
        let session = self.session();
        let seqs = session.shared.seqs();
        session.usable()?;
        self.steady(seq)?;
        let wanted = session.shared.geometry().blocks_for(seqs.committed(seq).saturating_add(tokens));
        if wanted > seqs.seq_blocks_max() {
            return Err(Status::Limit);
        }
        let before = seqs.len(seq);
        let mut result = Ok(());
        while seqs.len(seq) < wanted {
            match session.reserve.pop() {
                Some(block) => {
                    seqs.push(seq, block);
                }
                None => {
                    result = Err(Status::Again);
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
        let level = session.reserve_level.load(Ordering::Relaxed);
        let there = session.reserve.len() as u32 + session.reserve_asked.load(Ordering::Relaxed);
        if there > level / 2 || level == 0 {
            return;
        }
        if let Some(Started::Send(op, submission, hashes, work)) = self.refill(session, level - there) {
            let call = Call::of_nobody(work);
            if let Err((_, call)) = self.send(op, submission, &hashes, call) {
                self.take_back(session, &call.work); // the next append requests them again
            }
        }
    }

    pub(super) fn commit(&mut self, seq: u32, tokens: u64) -> Result<(), Status> {
        let session = self.session();
        let seqs = session.shared.seqs();
        session.usable()?;
        self.seq(seq)?;
        let page_tokens = u64::from(session.shared.geometry().bounds().page_tokens);
        let (room, before) = (u64::from(seqs.len(seq)) * page_tokens, seqs.committed(seq));
        // On a device the step's writes are only enqueued; the step's end orders them before copies.
        if tokens > room || tokens < before || (!session.tier0.is_host() && seqs.in_step(seq)) {
            return Err(Status::State);
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

    pub(super) fn park(&mut self, seq: u32, due: Duration, ticket: Option<Ticket>) -> Result<(), Status> {
        self.start(&Request::Park { seq, due }, ticket)
    }

    pub(super) fn release(&mut self, pin: Pin) -> Result<(), Status> {
        let session = self.session();
        let shared = &session.shared;
        let id = pin_id(&pin);
        let range = shared.pins().range(id).ok_or(Status::State)?;
        let owned = self.owned.get_mut(&range.seq).ok_or(Status::NotFound)?;
        let at = owned.pins.iter().position(|(known, _)| *known == id).ok_or(Status::NotFound)?;
        let (_, remote) = owned.pins.swap_remove(at);
        shared.pins().release(shared.seqs(), id);
        if remote && session.alive() {
            self.releases.push_back(acquire(range));
            let _ = self.flush(); // what does not fit into the ring is sent with a later call
        }
        Ok(())
    }

    /// Request the cancellation of a request in flight.
    pub(super) fn cancel(&mut self, ticket: Ticket) -> Result<(), Status> {
        let Some((tag, _)) = self.in_flight(ticket) else {
            let ended = self.finished.iter().any(|completed| completed.ticket == ticket);
            return if ended { Ok(()) } else { Err(Status::NotFound) };
        };
        self.post(Op::Cancel, Submission { value: u64::from(tag), ..Submission::default() }, Work::Plain)
    }

    /// Return the result of a request if it has ended.
    pub(super) fn take(&mut self, ticket: Ticket) -> Result<Option<Completed>, Status> {
        if let Some(at) = self.finished.iter().position(|completed| completed.ticket == ticket) {
            return Ok(self.finished.remove(at));
        }
        if self.in_flight(ticket).is_some() { Ok(None) } else { Err(Status::NotFound) }
    }
}

/// Request another number of frames of a class. If it grows, its memory is allocated before the request.
fn resize(session: &Session, class: usize, frames: u32) -> Result<Started, Status> {
    session.tier0.class(class).filter(|room| frames <= room.frames_max).ok_or(Status::Range)?;
    if !session.resizing.begin(class) {
        return Err(Status::State);
    }
    let before = session.tier0.frames(class);
    if frames > before
        && let Err(error) = session.tier0.resize(class, frames)
    {
        session.resizing.end(class);
        return Err(error.status());
    }
    let submission = Submission { first: class as u32, count: frames, ..Submission::default() };
    Ok(Started::Send(Op::Tier0Resize, submission, Vec::new(), Work::Resize { class, before, frames }))
}

/// Build the request that sets a sequence's reading contract.
pub(in crate::client) fn contract_of(seq: u32, contract: Contract) -> Submission {
    let (code, value) = contract.code();
    Submission { seq, flags: code, value: u64::from(value), ..Submission::default() }
}

/// Describe a copy between the engine's memory and the cache.
fn copy(doing: &'static str, words: Vec<u32>, count: u32, copying: Copying) -> Work {
    Work::Copy { doing, count, level: Level::Published, words, copying }
}

fn halves(hash: u128) -> [u64; 2] {
    [hash as u64, (hash >> 64) as u64]
}

/// Build the request that pins or unpins a range.
fn acquire(range: PageRange) -> Submission {
    let PageRange { seq, first, count, plane, planes } = range;
    Submission { seq, first, count, lane: plane, flags: planes, ..Submission::default() }
}
