//! The sequences of a channel: which of their changes the daemon knows, and which must still be sent.

use crate::{
    agent::{
        protocol::{PageRange, PinId, seqs::SeqState},
        session::Session,
    },
    client::{Refusal, request::Pin},
};
use kvtide_types::{Request as WireRequest, SeqId};
use kvtide_wire::status::Status;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

/// Build the refusal of a call on a sequence or lease that does not exist.
fn none(seq: u32) -> Refusal {
    let why = format!("this channel has no sequence or lease {seq}: it was dropped, or another channel has it");
    Refusal::because(Status::NotFound, why)
}

/// Close a sequence to lanes.
pub(super) fn close(session: &Session, seq: SeqId) -> Result<(), Refusal> {
    let seqs = session.shared.seqs();
    seqs.close(seq).map_err(|status| match status {
        Status::State if seqs.in_step(seq) => {
            Refusal::because(status, "the sequence is in a lane's step: end the step")
        }
        Status::State => Refusal::because(status, "the sequence is parked, or a fork or truncate of it is in flight"),
        status => status.into(),
    })
}

/// State that a channel keeps for a sequence, in addition to the session's mirror. Only [`Sequences`] changes it.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// Committed tokens that the daemon knows.
    pub told_tokens: u64,
    /// True if it is in the queue of sequences with changes to send.
    pub dirty: bool,
    /// True if a request that changes it is in flight.
    pub changing: bool,
    /// True if it was dropped. The slot becomes free with the daemon's answer.
    pub dropping: bool,
    /// True if it is parked, and therefore closed to lanes.
    pub parked: bool,
    /// Number of blocks if it is a lease: it holds a prefix for loads and allows no other use.
    pub lease: Option<u32>,
    /// Status with which the daemon rejected an update: the daemon's state and the session's mirror differ.
    pub broken: Option<Status>,
    /// Pins, each with whether the daemon knows it.
    pub pins: Vec<(PinId, bool)>,
}

/// The sequences and leases of a channel, and the queue of their changes that must be sent to the daemon. Each live one has a
/// slot of the session.
pub(crate) struct Sequences {
    session: Arc<Session>,
    owned: HashMap<SeqId, Owned>,
    /// Sequences with local changes that the daemon does not know yet.
    dirty: VecDeque<SeqId>,
    /// Releases that were not sent yet. They are sent before the other changes.
    releases: VecDeque<WireRequest<'static>>,
}

impl Sequences {
    pub fn new(session: &Arc<Session>) -> Sequences {
        let (owned, dirty, releases) = Default::default();
        Sequences { session: Arc::clone(session), owned, dirty, releases }
    }

    /// Return a sequence or lease that calls may use, or `NotFound`, `Lost`, or the status with which the daemon rejected an update.
    pub fn seq_or_lease(&self, seq: SeqId) -> Result<&Owned, Refusal> {
        let owned = self.owned.get(&seq).filter(|owned| !owned.dropping).ok_or_else(|| none(seq))?;
        match (owned.broken, self.session.shared.seqs().state(seq)) {
            (Some(status), _) => Err(Refusal::because(status, "the daemon refused an earlier change of it: drop it")),
            (None, SeqState::Live) => Ok(owned),
            (None, SeqState::Lost) => Err(Status::Lost.into()),
            (None, SeqState::Free) => Err(none(seq)),
        }
    }

    /// Return a sequence that calls may change. `State`: it is a lease.
    pub fn seq(&self, seq: SeqId) -> Result<&Owned, Refusal> {
        const LEASE: &str = "it is a lease, which allows only load and end_lease";
        let owned = self.seq_or_lease(seq)?;
        if owned.lease.is_some() { Err(Refusal::because(Status::State, LEASE)) } else { Ok(owned) }
    }

    /// Return a sequence that no request in flight changes. `Again`: one changes it.
    pub fn steady(&self, seq: SeqId) -> Result<&Owned, Refusal> {
        let owned = self.seq(seq)?;
        if owned.changing { Err(Status::Again.into()) } else { Ok(owned) }
    }

    /// Check that blocks can be read from a lease or a sequence. `Range`: it has fewer blocks.
    pub fn check_blocks(&self, seq: SeqId, first: u32, count: usize) -> Result<&Owned, Refusal> {
        let owned = self.seq_or_lease(seq)?;
        let blocks = owned.lease.unwrap_or_else(|| self.session.shared.seqs().len(seq));
        let end = u64::from(first) + count as u64;
        if end <= u64::from(blocks) {
            return Ok(owned);
        }
        let why = format!("blocks {first} to {end} of lease {seq}, which has {blocks} blocks");
        Err(Refusal::because(Status::Range, why))
    }

    pub fn is_lease(&self, seq: SeqId) -> bool {
        self.owned.get(&seq).is_some_and(|owned| owned.lease.is_some())
    }

    /// Return a sequence or lease that can be dropped, or `NotFound`, or `Again`: a request in flight changes it.
    pub fn to_drop(&self, seq: SeqId) -> Result<&Owned, Refusal> {
        let owned = self.owned.get(&seq).filter(|owned| !owned.dropping).ok_or_else(|| none(seq))?;
        if owned.changing { Err(Status::Again.into()) } else { Ok(owned) }
    }

    /// Take a free slot for a sequence of this channel, or for a lease of `lease` blocks. `Limit`: no slot is free. `Again`: a slot
    /// becomes free when the daemon answers a drop of this channel.
    pub fn new_slot(&mut self, lease: Option<u32>) -> Result<SeqId, Refusal> {
        let session = &self.session;
        let Some(seq) = session.seq_slots.pop() else {
            if self.owned.values().any(|owned| owned.dropping) {
                return Err(Status::Again.into());
            }
            let ids = session.seq_slots.capacity();
            let why =
                format!("all {ids} ids are in use: drop sequences, end leases, expired ones too, or raise seqs_max");
            return Err(Refusal::because(Status::Limit, why));
        };
        if !session.shared.seqs().create(seq) {
            return Err(Status::Internal.into());
        }
        self.owned.insert(seq, Owned { lease, ..Owned::default() });
        Ok(seq)
    }

    /// Return the ids of the live sequences, sorted, without leases.
    pub fn live(&self) -> Vec<SeqId> {
        let stays = |owned: &Owned| !owned.dropping && owned.lease.is_none();
        let mut seqs: Vec<SeqId> = self.owned.iter().filter(|(_, owned)| stays(owned)).map(|(seq, _)| *seq).collect();
        seqs.sort_unstable();
        seqs
    }

    /// Add a sequence that has its slot already and that the daemon knows completely.
    pub fn take_over(&mut self, seq: SeqId) {
        self.owned.insert(seq, Owned::default());
        self.told(seq);
    }

    /// Free a slot.
    pub fn forget(&mut self, seq: SeqId) {
        if self.owned.remove(&seq).is_some() {
            self.forgive(seq);
            self.session.shared.seqs().free(seq);
            let _ = self.session.seq_slots.push(seq); // the queue has a place for each slot
        }
    }

    /// Cancel the digests that are still owed for a sequence's pages, except for pages of other sequences.
    fn forgive(&self, seq: SeqId) {
        let (seqs, attention) = (self.session.shared.seqs(), &self.session.attention);
        let mut blocks = seqs.block_ids(seq);
        if !attention.owing(blocks.iter().copied()) {
            return;
        }
        let others = (0..seqs.seqs_max()).filter(|other| *other != seq && seqs.state(*other) == SeqState::Live);
        let kept: HashSet<u32> = others.flat_map(|other| seqs.block_ids(other)).collect();
        blocks.retain(|block| !kept.contains(block));
        attention.forgive(blocks.into_iter());
    }

    /// Release the pins of a dropped sequence. Its slot stays in use until the daemon has answered.
    pub fn dropped(&mut self, seq: SeqId) {
        let shared = &self.session.shared;
        if let Some(owned) = self.owned.get_mut(&seq) {
            owned.dropping = true;
            for (pin, _) in std::mem::take(&mut owned.pins) {
                shared.pins().release(shared.seqs(), pin);
            }
        }
        if !self.session.alive() {
            self.forget(seq);
        }
    }

    /// Park a sequence, as far as this side knows. Return false if it is parked already.
    pub fn park(&mut self, seq: SeqId) -> Result<bool, Refusal> {
        if self.steady(seq)?.parked {
            return Ok(false);
        }
        close(&self.session, seq)?;
        self.change(seq, |owned| owned.parked = true);
        Ok(true)
    }

    /// Open a parked sequence to lanes.
    pub fn unpark(&mut self, seq: SeqId) {
        self.change(seq, |owned| owned.parked = false);
        self.session.shared.seqs().open(seq);
    }

    /// Add a pin of a sequence's pages. `told`: the daemon knows it.
    pub fn pinned(&mut self, seq: SeqId, pin: PinId, told: bool) -> Result<(), Status> {
        self.owned.get_mut(&seq).ok_or(Status::NotFound)?.pins.push((pin, told));
        Ok(())
    }

    /// Release a pin. Return true if the daemon must be told.
    pub fn release(&mut self, pin: Pin) -> Result<bool, Refusal> {
        let shared = &self.session.shared;
        let id = PinId { slot: pin.0 as u32, generation: (pin.0 >> 32) as u32 };
        let released = || Refusal::because(Status::State, "it was released before, or its sequence was dropped");
        let elsewhere = || Refusal::because(Status::NotFound, "another channel has it");
        let range = shared.pins().range(id).ok_or_else(released)?;
        let owned = self.owned.get_mut(&range.seq).ok_or_else(elsewhere)?;
        let at = owned.pins.iter().position(|(known, _)| *known == id).ok_or_else(elsewhere)?;
        let (_, told) = owned.pins.swap_remove(at);
        shared.pins().release(shared.seqs(), id);
        let tells = told && self.session.alive();
        if tells {
            let PageRange { seq, first, count, plane, planes } = range;
            self.releases.push_back(WireRequest::Release { seq, plane, planes, first, count });
        }
        Ok(tells)
    }

    /// Commit the tokens of a sequence below `tokens`. Return true if that seals a page.
    pub fn commit(&mut self, seq: SeqId, tokens: u64) -> Result<bool, Refusal> {
        self.seq(seq)?;
        let (shared, seqs) = (&self.session.shared, self.session.shared.seqs());
        let page_tokens = u64::from(shared.geometry().bounds().page_tokens);
        let (room, before) = (u64::from(seqs.len(seq)) * page_tokens, seqs.committed(seq));
        let refuse = |why: String| Err(Refusal::because(Status::State, why));
        if tokens > room {
            return refuse(format!("{tokens} tokens; there is room for {room}: reserve first"));
        }
        if tokens < before {
            return refuse(format!("{tokens} tokens; {before} are committed already: truncate rolls back"));
        }
        // On a device the step's writes are only enqueued; the step's end orders them before copies.
        if !self.session.tier0.is_host() && seqs.in_step(seq) {
            return refuse("the sequence is in a lane's step: end the step".into());
        }
        seqs.commit(seq, tokens);
        if let Some(owned) = self.owned.get_mut(&seq).filter(|owned| !owned.dirty) {
            owned.dirty = true;
            self.dirty.push_back(seq);
        }
        Ok(tokens / page_tokens != before / page_tokens)
    }

    /// Record whether a request in flight changes a sequence.
    pub fn set_changing(&mut self, seq: Option<SeqId>, changing: bool) {
        seq.into_iter().for_each(|seq| self.change(seq, |owned| owned.changing = changing));
    }

    pub fn rejected(&mut self, seq: SeqId, status: Status) {
        self.change(seq, |owned| _ = owned.broken.get_or_insert(status));
    }

    /// Record that the daemon knows all of a sequence, after an answer that changed it.
    pub fn told(&mut self, seq: SeqId) {
        let tokens = self.session.shared.seqs().committed(seq);
        // A commit may still wait for room in the ring when the answer comes.
        self.change(seq, |owned| owned.told_tokens = if owned.dirty { owned.told_tokens } else { tokens });
    }

    /// Return the next change to send. [`Sequences::sent`] removes it from the queue.
    pub fn unsent(&mut self) -> Option<WireRequest<'static>> {
        if let Some(release) = self.releases.front() {
            return Some(*release);
        }
        while let Some(seq) = self.dirty.front().copied() {
            let tokens = self.session.shared.seqs().committed(seq);
            if self.owned.get(&seq).is_some_and(|owned| owned.told_tokens != tokens) {
                return Some(WireRequest::Commit { seq, tokens });
            }
            self.change(seq, |owned| owned.dirty = false);
            self.dirty.pop_front();
        }
        None
    }

    /// Record that a change was sent.
    pub fn sent(&mut self, change: WireRequest<'static>) {
        match change {
            WireRequest::Commit { seq, tokens } => self.change(seq, |owned| owned.told_tokens = tokens),
            _ => _ = self.releases.pop_front(),
        }
    }

    fn change(&mut self, seq: SeqId, change: impl FnOnce(&mut Owned)) {
        self.owned.get_mut(&seq).map(change);
    }
}
