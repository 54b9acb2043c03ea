//! Requests in flight on a channel: what each request does, and what its answer changes in the session.

use super::{
    super::{Error, request::Completed, request::Leased, request::Outcome, request::Ticket},
    call::Call,
    owned::Owned,
    publish::Publishing,
    search::Search,
    wait::SPIN,
};
use crate::agent::{
    attention::Contract,
    port::{Answer, Port},
    protocol::PinId,
    session::{Copying, Session},
};
use kvtide_wire::{
    entry::{LEASE_SHARE, Level, NONE_U32, Op, Submission},
    lists::HASHES_MAX,
    os::spin::Spin,
    status::Status,
};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

/// Maximum blocks that one request can grant: the length of an answer's list.
pub(super) const BLOCKS_MAX: u32 = kvtide_wire::entry::LIST_WORDS as u32;

const LEASE_TOO_LONG: &str = "lease a prefix: the duration exceeds limits.lease_max_ms; maximum in microseconds:";
const LEASES_HOLD_TOO_MUCH: &str = "lease a prefix: limits.lease_percent of a shared cache exceeded; maximum bytes:";

/// The action of a request, and the data that its answer needs.
#[derive(Debug)]
pub(super) enum Work {
    /// The answer changes nothing.
    Plain,
    /// Updates the daemon's copy of a sequence. If it fails, the daemon's state and the session's mirror differ.
    Tell {
        seq: u32,
    },
    /// The sequence slot becomes free with the answer.
    Drop {
        seq: u32,
    },
    /// `left` more blocks are requested after this request.
    Reserve {
        seq: u32,
        left: u32,
    },
    /// The same for the session's reserve.
    ReserveSession {
        asked: u32,
        left: u32,
        granted: u32,
    },
    Fork {
        parent: u32,
        child: u32,
    },
    Truncate {
        seq: u32,
        tokens: u64,
    },
    Publish(Box<Publishing>),
    /// `rest` is attached by further requests.
    AttachPrefix {
        seq: u32,
        sent: Vec<u128>,
        rest: Vec<u128>,
    },
    Contract {
        seq: u32,
        contract: Contract,
    },
    Park {
        seq: u32,
    },
    Resume {
        seq: u32,
    },
    Acquire {
        seq: u32,
        pin: PinId,
    },
    Lookup,
    /// A whole lookup, sent as one request after another.
    Search {
        hashes: Box<[u128]>,
        search: Search,
    },
    /// A lease of `count` blocks; `refused` is the daemon's limit if it refused the lease for its duration or its size, otherwise
    /// 0.
    Lease {
        seq: u32,
        count: u32,
        refused: u64,
    },
    /// Copies between the engine's memory and the cache: the number of blocks, and the words of the request's list.
    Copy {
        doing: &'static str,
        count: u32,
        level: Level,
        words: Vec<u32>,
        /// Keeps the engine's blocks registered and their names unchanged while the request is in flight.
        #[allow(dead_code)] // held for its drop
        copying: Copying,
    },
    /// The class had memory for `before` frames. If `frames` is larger, the additional memory is already there.
    Resize {
        class: usize,
        before: u32,
        frames: u32,
    },
}

impl Work {
    /// Return the action and its object, for error messages.
    pub fn describe(&self) -> (&'static str, u64) {
        match self {
            Work::Plain => ("send a request on channel", 0),
            Work::Tell { seq } => ("update the daemon's state of sequence", u64::from(*seq)),
            Work::Drop { seq } => ("drop sequence", u64::from(*seq)),
            Work::Reserve { seq, .. } => ("reserve for sequence", u64::from(*seq)),
            Work::ReserveSession { .. } => ("reserve for the session", 0),
            Work::Fork { parent, .. } => ("fork sequence", u64::from(*parent)),
            Work::Truncate { seq, .. } => ("truncate sequence", u64::from(*seq)),
            Work::Publish(publishing) => ("publish blocks of sequence", u64::from(publishing.seq)),
            Work::AttachPrefix { seq, .. } => ("attach a prefix to sequence", u64::from(*seq)),
            Work::Contract { seq, .. } => ("set the reading contract of sequence", u64::from(*seq)),
            Work::Park { seq } => ("park sequence", u64::from(*seq)),
            Work::Resume { seq } => ("resume sequence", u64::from(*seq)),
            Work::Acquire { seq, .. } => ("acquire pages of sequence", u64::from(*seq)),
            Work::Resize { class, .. } => ("resize tier-0 class", *class as u64),
            Work::Lookup => ("look up a prefix on channel", 0),
            Work::Search { hashes, .. } => (super::blocks::LOOKUP, hashes.len() as u64),
            Work::Lease { count, refused: 0, .. } => ("lease a prefix of blocks", u64::from(*count)),
            Work::Lease { refused, .. } if refused & LEASE_SHARE != 0 => (LEASES_HOLD_TOO_MUCH, refused & !LEASE_SHARE),
            Work::Lease { refused, .. } => (LEASE_TOO_LONG, *refused),
            Work::Copy { doing, count, .. } => (doing, u64::from(*count)),
        }
    }

    /// The request's list, unless it consists of hashes alone.
    fn words(&self) -> &[u32] {
        match self {
            Work::Copy { words, .. } => words,
            _ => &[],
        }
    }

    /// The sequence that no other request may change meanwhile.
    fn changes(&self) -> Option<u32> {
        match self {
            Work::Reserve { seq, .. }
            | Work::Fork { parent: seq, .. }
            | Work::Truncate { seq, .. }
            | Work::AttachPrefix { seq, .. }
            | Work::Park { seq }
            | Work::Resume { seq }
            | Work::Lease { seq, .. } => Some(*seq),
            _ => None,
        }
    }
}

/// Resize a class of tier 0 to `frames` frames. The daemon must use none of the frames above: their memory is freed.
pub(super) fn resized(session: &Session, class: usize, frames: u32) -> Result<u32, Status> {
    // Lanes on streams may still read frames that are about to go.
    let shrinks = frames < session.tier0.frames(class);
    let settled =
        if shrinks { session.copy_loop().settle(crate::client::options::deadline(session.timeout)) } else { Ok(()) };
    let resize = || session.tier0.resize(class, frames).map_err(|error| error.status());
    let result = settled.and_then(|()| resize());
    session.resizing.end(class);
    result
}

/// Result of applying an answer.
enum Next {
    Done(Result<Outcome, Status>),
    /// The same call continues with another request.
    More(Op, Submission, Vec<u128>),
}

/// The requests and sequences of a channel.
pub(crate) struct State {
    pub(super) port: Port,
    calls: Vec<Option<Call>>,
    pub(super) finished: VecDeque<Completed>,
    pub(super) tickets: u64,
    pub(super) owned: HashMap<u32, Owned>,
    /// Sequences with local changes that the daemon does not know yet.
    pub(super) dirty: VecDeque<u32>,
    /// Releases that did not fit into the ring.
    pub(super) releases: VecDeque<Submission>,
    pub(super) spin: Spin,
    session: Arc<Session>,
}

impl State {
    pub fn new(index: u16, port: Port, session: &Arc<Session>) -> State {
        let calls = (0..=port.room()).map(|_| None).collect();
        State {
            port,
            calls,
            finished: VecDeque::new(),
            tickets: u64::from(index) << 48,
            owned: HashMap::new(),
            dirty: VecDeque::new(),
            releases: VecDeque::new(),
            spin: Spin::new(SPIN),
            session: Arc::clone(session),
        }
    }

    pub(super) fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session)
    }

    /// Number of tickets with a result that has not been taken.
    pub(super) fn open_tickets(&self) -> usize {
        self.calls.iter().flatten().filter(|call| call.ticket.is_some()).count() + self.finished.len()
    }

    /// Return whether a request in flight may have copies under way.
    pub(super) fn is_copying(&self) -> bool {
        self.calls.iter().flatten().any(|call| matches!(call.work, Work::Copy { .. }))
    }

    pub(super) fn room(&self) -> usize {
        self.calls.len() - 1
    }

    /// Find the request in flight of a ticket.
    pub(super) fn in_flight(&mut self, ticket: Ticket) -> Option<(u16, &mut Call)> {
        let mut calls = self.calls.iter_mut().enumerate();
        calls.find_map(|(tag, call)| {
            let call = call.as_mut().filter(|call| call.ticket == Some(ticket))?;
            Some((tag as u16, call))
        })
    }

    /// Send a request of a call. Return the call with the error if it cannot be sent.
    pub(super) fn send(
        &mut self,
        op: Op,
        mut request: Submission,
        hashes: &[u128],
        call: Call,
    ) -> Result<(), (Status, Box<Call>)> {
        request.timeout_us = u64::try_from(call.timeout.as_micros()).unwrap_or(u64::MAX);
        let session = &self.session;
        let sent = if hashes.is_empty() {
            self.port.send(session, op, request, call.work.words())
        } else {
            self.port.send_hashes(session, op, request, hashes)
        };
        match sent {
            Ok(tag) => {
                if let Some(owned) = call.work.changes().and_then(|seq| self.owned.get_mut(&seq)) {
                    owned.changing = true;
                }
                self.calls[usize::from(tag)] = Some(call);
                Ok(())
            }
            Err(status) => Err((status, Box::new(call))),
        }
    }

    /// Process the daemon's answers. After the daemon's death, end every call.
    pub(crate) fn progress(&mut self) {
        let session = self.session();
        while let Ok(Some(answer)) = self.port.next(&session) {
            if let Some(call) = self.calls.get_mut(usize::from(answer.tag)).and_then(Option::take) {
                self.answered(call, &answer);
            }
        }
        if !session.alive() && self.calls.iter().any(Option::is_some) {
            for tag in 0..self.calls.len() {
                if let Some(call) = self.calls[tag].take() {
                    self.answered(call, &Answer { tag: tag as u16, status: Status::Daemon, value: 0 });
                }
            }
        }
    }

    fn answered(&mut self, mut call: Call, answer: &Answer) {
        if let Some(owned) = call.work.changes().and_then(|seq| self.owned.get_mut(&seq)) {
            owned.changing = false;
        }
        let list = if answer.status == Status::Daemon { Vec::new() } else { self.port.list.words().to_vec() };
        let result = match self.apply(&mut call.work, answer.status, answer.value, &list) {
            Next::Done(result) => result,
            Next::More(op, request, hashes) => match call.go_on() {
                Ok(()) => match self.send(op, request, &hashes, call) {
                    Ok(()) => return,
                    Err((status, back)) => {
                        call = *back;
                        Err(status)
                    }
                },
                Err(status) => Err(status),
            },
        };
        self.finish(call, result);
    }

    /// Deliver a result to its ticket. Without a ticket, release everything that the request acquired.
    pub(super) fn finish(&mut self, call: Call, result: Result<Outcome, Status>) {
        match (call.ticket, result) {
            (Some(ticket), result) => {
                let (doing, on) = call.work.describe();
                let result = result.map_err(|status| Error::call(doing, on, status));
                self.finished.push_back(Completed { ticket, user: call.user, result });
            }
            (None, Ok(Outcome::Pin(pin))) => {
                let _ = self.release(pin); // it was just taken
            }
            (None, Ok(Outcome::Seq(child))) => {
                let _ = self.drop_seq(child); // without room in the ring it ends with the session
            }
            (None, Ok(Outcome::Lease(leased))) => {
                let _ = self.drop_seq(leased.seq); // without room in the ring it expires
            }
            (None, _) => {}
        }
    }

    /// Apply an answer to the session's mirror. An answer that contradicts its request is a protocol error.
    fn apply(&mut self, work: &mut Work, status: Status, value: u64, list: &[u32]) -> Next {
        let session = self.session();
        let seqs = session.shared.seqs();
        let ok = status == Status::Ok;
        let blocks_max = session.shared.geometry().bounds().blocks_max;
        let blocks_ok = list.iter().all(|block| *block < blocks_max);
        let verdict = |fits: bool| match (ok, fits && blocks_ok) {
            (true, true) => Ok(()),
            (true, false) => Err(Status::Protocol),
            (false, _) => Err(status),
        };
        let done = |result: Result<(), Status>| Next::Done(result.map(|()| Outcome::Done));
        match work {
            Work::Plain => done(verdict(true)),
            Work::Tell { seq } => {
                if let (false, Some(owned)) = (ok, self.owned.get_mut(seq)) {
                    owned.broken.get_or_insert(status);
                }
                done(verdict(true))
            }
            Work::Drop { seq } => {
                self.forget(*seq);
                done(verdict(true))
            }
            Work::Reserve { seq, left } => {
                if let Err(status) = verdict(value == list.len() as u64 && !list.is_empty()) {
                    return Next::Done(Err(status));
                }
                if !list.iter().all(|block| seqs.push(*seq, *block)) {
                    return Next::Done(Err(Status::Protocol));
                }
                list.iter().for_each(|block| session.attention.fresh(*block));
                self.told(*seq);
                if *left == 0 {
                    return Next::Done(Ok(Outcome::Done));
                }
                let count = (*left).min(BLOCKS_MAX);
                *left -= count;
                Next::More(Op::Reserve, Submission { seq: *seq, count, ..Submission::default() }, Vec::new())
            }
            Work::ReserveSession { asked, left, granted } => {
                session.reserve_asked.fetch_sub(*asked, std::sync::atomic::Ordering::Relaxed);
                let fits = value == list.len() as u64 && list.len() as u64 <= u64::from(*asked);
                if let Err(status) = verdict(fits) {
                    return Next::Done(if *granted > 0 { Ok(Outcome::Blocks(*granted as usize)) } else { Err(status) });
                }
                for block in list {
                    session.attention.fresh(*block);
                    *granted += u32::from(session.reserve.push(*block).is_ok());
                }
                *asked = (*left).min(BLOCKS_MAX);
                *left -= *asked;
                if *asked == 0 {
                    return Next::Done(Ok(Outcome::Blocks(*granted as usize)));
                }
                session.reserve_asked.fetch_add(*asked, std::sync::atomic::Ordering::Relaxed);
                Next::More(
                    Op::Reserve,
                    Submission { seq: NONE_U32, count: *asked, ..Submission::default() },
                    Vec::new(),
                )
            }
            Work::Fork { parent, child } => {
                let (parent, child) = (*parent, *child);
                let shared = u32::try_from(value).unwrap_or(u32::MAX);
                let whole = u64::from(shared) + list.len() as u64 <= u64::from(seqs.len(parent));
                let result = verdict(whole);
                seqs.open(parent);
                match result {
                    Ok(()) => {
                        let blocks =
                            (0..shared).filter_map(|index| seqs.block(parent, index)).chain(list.iter().copied());
                        blocks.for_each(|block| {
                            seqs.push(child, block);
                        });
                        list.iter().for_each(|block| session.attention.fresh(*block));
                        seqs.commit(child, seqs.committed(parent));
                        seqs.set_contract(child, seqs.contract(parent));
                        self.told(child);
                        seqs.open(child);
                        Next::Done(Ok(Outcome::Seq(child)))
                    }
                    Err(status) => {
                        self.forget(child);
                        Next::Done(Err(status))
                    }
                }
            }
            Work::Truncate { seq, tokens } => {
                let len = session.shared.geometry().blocks_for(*tokens);
                let result = verdict(list.len() <= 1 && list.len() as u32 <= len);
                if result.is_ok() {
                    seqs.cut(*seq, len - list.len() as u32);
                    list.iter().for_each(|block| {
                        session.attention.fresh(*block);
                        seqs.push(*seq, *block);
                    });
                    seqs.commit(*seq, *tokens);
                    self.told(*seq);
                }
                seqs.open(*seq);
                done(result)
            }
            Work::Publish(publishing) => {
                let got = [Level::Published, Level::Stored, Level::Durable].into_iter().find(|l| *l as u64 == value);
                match (verdict(got.is_some()), got) {
                    (Ok(()), Some(got)) => match publishing.answered(got) {
                        None => {
                            for (index, name) in publishing.names() {
                                seqs.block(publishing.seq, index).inspect(|b| session.attention.named(*b, name));
                            }
                            Next::Done(Ok(Outcome::Level(publishing.reached)))
                        }
                        Some((submission, hashes)) => Next::More(Op::Publish, submission, hashes),
                    },
                    (result, _) => Next::Done(Err(result.err().unwrap_or(Status::Protocol))),
                }
            }
            Work::AttachPrefix { seq, sent, rest } => {
                let geometry = session.shared.geometry();
                let before = seqs.len(*seq);
                let mapped = |seqs: u32| Next::Done(Ok(Outcome::Blocks(seqs as usize)));
                match verdict(value == list.len() as u64 && list.len() <= sent.len()) {
                    // The blocks of earlier requests stay attached.
                    Err(status) if before == 0 || status == Status::Daemon => return Next::Done(Err(status)),
                    Err(_) => return mapped(before),
                    Ok(()) => {}
                }
                if !list.iter().all(|block| seqs.push(*seq, *block)) {
                    return Next::Done(Err(Status::Protocol));
                }
                for (block, name) in list.iter().zip(&*sent) {
                    session.attention.mapped(*block, *name);
                }
                let len = seqs.len(*seq);
                seqs.commit(*seq, u64::from(len) * u64::from(geometry.bounds().page_tokens));
                self.told(*seq);
                if list.len() < sent.len() || rest.is_empty() {
                    return mapped(len);
                }
                let later = rest.split_off(rest.len().min(HASHES_MAX));
                let hashes = std::mem::replace(rest, later);
                sent.clone_from(&hashes);
                let request = Submission { seq: *seq, count: hashes.len() as u32, ..Submission::default() };
                Next::More(Op::AttachPrefix, request, hashes)
            }
            // The contract takes effect with the daemon's answer: until then the daemon plans for the old one.
            Work::Contract { seq, contract } => {
                if ok {
                    seqs.set_contract(*seq, contract.word());
                }
                done(verdict(true))
            }
            // A park that failed stays parked as far as it got; `resume` undoes it.
            Work::Park { .. } => done(verdict(true)),
            Work::Resume { seq } => {
                if ok {
                    self.unpark(*seq);
                }
                done(verdict(true))
            }
            Work::Acquire { seq, pin } => {
                let result = verdict(true);
                let owned = self.owned.get_mut(seq);
                match (result, owned) {
                    (Ok(()), Some(owned)) => {
                        owned.pins.push((*pin, true));
                        Next::Done(Ok(Outcome::Pin(super::pin_of(*pin))))
                    }
                    (result, _) => {
                        session.shared.pins().release(seqs, *pin);
                        Next::Done(Err(result.err().unwrap_or(Status::NotFound)))
                    }
                }
            }
            Work::Lookup => {
                let (found, in_host) = (value as u32, (value >> 32) as u32);
                Next::Done(verdict(in_host <= found).map(|()| Outcome::Found { blocks: found, in_host }))
            }
            Work::Search { hashes, search } => {
                let (found, in_host) = (value as u32, (value >> 32) as u32);
                if let Err(status) = verdict(in_host <= found) {
                    return Next::Done(Err(status));
                }
                search.answered(found, in_host);
                match search.probes(hashes) {
                    None => Next::Done(Ok(Outcome::Prefix(search.found()))),
                    Some(probes) => {
                        let submission = Submission { count: probes.len() as u32, ..Submission::default() };
                        Next::More(Op::Lookup, submission, probes)
                    }
                }
            }
            Work::Lease { seq, count, refused } => {
                let (seq, count) = (*seq, *count);
                *refused = if status == Status::Limit { value } else { 0 };
                let whole = |list: &[u32; 3]| list.iter().map(|n| u64::from(*n)).sum::<u64>() == u64::from(count);
                let counts = <[u32; 3]>::try_from(list).ok().filter(whole);
                match (ok, counts) {
                    (true, Some([in_host, on_nvme, elsewhere])) => {
                        let load = Duration::from_micros(value);
                        Next::Done(Ok(Outcome::Lease(Leased { seq, in_host, on_nvme, elsewhere, load })))
                    }
                    _ => {
                        self.forget(seq);
                        Next::Done(Err(if ok { Status::Protocol } else { status }))
                    }
                }
            }
            Work::Copy { count, level, .. } => {
                let fits = list.len() <= *count as usize && list.iter().all(|index| index < count);
                if !fits {
                    return Next::Done(Err(Status::Protocol));
                }
                if !ok && list.is_empty() {
                    return Next::Done(Err(status));
                }
                let levels = [Level::Published, Level::Stored, Level::Durable];
                let reached = match ok && *level > Level::Published {
                    true => levels.into_iter().find(|level| *level as u64 == value),
                    false => Some(Level::Published),
                };
                let failed = list.to_vec();
                Next::Done(reached.map(|level| Outcome::Copied { failed, status, level }).ok_or(Status::Protocol))
            }
            Work::Resize { class, before, frames } => {
                let result = verdict(value == u64::from(*frames));
                let stays = if result.is_ok() { *frames } else { *before };
                Next::Done(result.and(resized(&session, *class, stays).map(Outcome::Frames)))
            }
        }
    }
}
