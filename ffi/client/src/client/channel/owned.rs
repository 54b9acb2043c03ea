//! The sequences of a channel: which of their changes the daemon knows, and which must still be sent.

use super::{calls::State, ops::Work};
use crate::{
    agent::protocol::{PinId, seqs::SeqState},
    client::Refusal,
};
use kvtide_wire::status::Status;
use std::collections::HashSet;

/// Build the refusal of a call on a sequence or lease that does not exist.
pub(super) fn none(seq: u32) -> Refusal {
    let why = format!("this channel has no sequence or lease {seq}: it was dropped, or another channel has it");
    Refusal::because(Status::NotFound, why)
}

/// State that a channel keeps for a sequence, in addition to the session's mirror.
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

impl State {
    /// Return a sequence or lease that calls may use.
    ///
    /// # Errors
    /// `NotFound`, `Lost`; or the status with which the daemon rejected an update.
    pub(super) fn seq_or_lease(&mut self, seq: u32) -> Result<&mut Owned, Refusal> {
        let state = self.session().shared.seqs().state(seq);
        let owned = self.owned.get_mut(&seq).filter(|owned| !owned.dropping).ok_or_else(|| none(seq))?;
        match (owned.broken, state) {
            (Some(status), _) => Err(Refusal::because(status, "the daemon refused an earlier change of it: drop it")),
            (None, SeqState::Live) => Ok(owned),
            (None, SeqState::Lost) => Err(Status::Lost.into()),
            (None, SeqState::Free) => Err(none(seq)),
        }
    }

    /// Return a sequence that calls may change.
    ///
    /// # Errors
    /// As [`State::seq_or_lease`]; `State`: it is a lease.
    pub(super) fn seq(&mut self, seq: u32) -> Result<&mut Owned, Refusal> {
        const LEASE: &str = "it is a lease, which allows only load and end_lease";
        let owned = self.seq_or_lease(seq)?;
        if owned.lease.is_some() { Err(Refusal::because(Status::State, LEASE)) } else { Ok(owned) }
    }

    /// Return a sequence that no request in flight changes.
    ///
    /// # Errors
    /// As [`State::seq`]; `Again`: a request in flight changes it.
    pub(super) fn steady(&mut self, seq: u32) -> Result<&mut Owned, Refusal> {
        let owned = self.seq(seq)?;
        if owned.changing { Err(Status::Again.into()) } else { Ok(owned) }
    }

    /// Check that blocks can be read from a lease or a sequence.
    ///
    /// # Errors
    /// As [`State::seq_or_lease`]; `Range`: it has fewer blocks.
    pub(super) fn check_blocks(&mut self, seq: u32, first: u32, count: usize) -> Result<&Owned, Refusal> {
        let len = self.session().shared.seqs().len(seq);
        let owned = self.seq_or_lease(seq)?;
        let blocks = owned.lease.unwrap_or(len);
        let end = u64::from(first) + count as u64;
        if end <= u64::from(blocks) {
            return Ok(owned);
        }
        let why = format!("blocks {first} to {end} of lease {seq}, which has {blocks} blocks");
        Err(Refusal::because(Status::Range, why))
    }

    /// Take a free slot for a sequence of this channel.
    ///
    /// # Errors
    /// `Limit`: no slot is free. `Again`: a slot becomes free when the daemon answers a drop of this channel.
    pub(super) fn new_slot(&mut self) -> Result<u32, Refusal> {
        let session = self.session();
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
        self.owned.insert(seq, Owned::default());
        Ok(seq)
    }

    /// Return the ids of the live sequences of this channel, sorted, without leases: a lease ends with its daemon.
    pub(in crate::client) fn sequences(&self) -> Vec<u32> {
        let stays = |owned: &Owned| !owned.dropping && owned.lease.is_none();
        let mut seqs: Vec<u32> = self.owned.iter().filter(|(_, owned)| stays(owned)).map(|(seq, _)| *seq).collect();
        seqs.sort_unstable();
        seqs
    }

    /// Add a sequence that the previous session had in this slot and that the new daemon knows completely.
    pub(in crate::client) fn take_over(&mut self, seq: u32) {
        self.owned.insert(seq, Owned::default());
        self.told(seq);
    }

    /// Free a slot.
    pub(super) fn forget(&mut self, seq: u32) {
        let session = self.session();
        if self.owned.remove(&seq).is_some() {
            self.forgive(seq);
            session.shared.seqs().free(seq);
            let _ = session.seq_slots.push(seq); // the queue has a place for each slot
        }
    }

    /// Cancel the digests that are still owed for a sequence's pages, except for pages of other sequences.
    fn forgive(&self, seq: u32) {
        let session = self.session();
        let seqs = session.shared.seqs();
        let mut blocks = seqs.block_ids(seq);
        if !session.attention.owing(blocks.iter().copied()) {
            return;
        }
        let others = (0..seqs.seqs_max()).filter(|other| *other != seq && seqs.state(*other) == SeqState::Live);
        let kept: HashSet<u32> = others.flat_map(|other| seqs.block_ids(other)).collect();
        blocks.retain(|block| !kept.contains(block));
        session.attention.forgive(blocks.into_iter());
    }

    /// Record that the daemon knows all of a sequence, after an answer that changed it.
    pub(super) fn told(&mut self, seq: u32) {
        let session = self.session();
        let seqs = session.shared.seqs();
        if let Some(owned) = self.owned.get_mut(&seq) {
            // A commit may still wait for room in the ring when the answer comes.
            if !owned.dirty {
                owned.told_tokens = seqs.committed(seq);
            }
        }
    }

    /// Queue a sequence with changes that must be sent to the daemon.
    pub(super) fn touch(&mut self, seq: u32) {
        if let Some(owned) = self.owned.get_mut(&seq).filter(|owned| !owned.dirty) {
            owned.dirty = true;
            self.dirty.push_back(seq);
        }
    }

    /// Send local changes to the daemon, as far as the ring has room.
    ///
    /// # Errors
    /// `Again`: changes remain.
    pub(super) fn flush(&mut self) -> Result<(), Status> {
        while let Some(request) = self.releases.front().copied() {
            self.post(Work::plain(request))?;
            self.releases.pop_front();
        }
        while let Some(seq) = self.dirty.front().copied() {
            self.tell(seq)?;
            self.dirty.pop_front();
            if let Some(owned) = self.owned.get_mut(&seq) {
                owned.dirty = false;
            }
        }
        Ok(())
    }
}
