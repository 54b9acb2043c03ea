//! A channel's own sequences: what the daemon was told of them, and what it still must be told.

use super::{
    call::Call,
    calls::{State, Work},
};
use crate::agent::protocol::{PinId, seqs::SeqState};
use kvtide_wire::{
    entry::{Op, Submission},
    status::Status,
};
use std::collections::HashSet;

/// What a channel knows of a sequence beyond the session's mirror.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// Blocks and committed tokens that the daemon was told of.
    pub told_blocks: u32,
    pub told_tokens: u64,
    /// It is in the queue of those of which something is to be told.
    pub dirty: bool,
    /// A request that changes it is in flight.
    pub changing: bool,
    /// It was dropped; the slot is free when the daemon has said so.
    pub dropping: bool,
    /// It is parked, and so closed to lanes.
    pub parked: bool,
    /// It holds a prefix for loads, and nothing else is done with it.
    pub lease: bool,
    /// The daemon refused what it was told: mirror and original have come apart.
    pub broken: Option<Status>,
    /// Pins, and whether the daemon knows of each.
    pub pins: Vec<(PinId, bool)>,
}

impl State {
    /// A sequence that calls may be made for.
    ///
    /// # Errors
    /// `NotFound`, `Lost`; the status with which the daemon refused what it was told.
    pub(super) fn seq(&mut self, seq: u32) -> Result<&mut Owned, Status> {
        let state = self.session().shared.seqs().state(seq);
        let owned = self.owned.get_mut(&seq).filter(|owned| !owned.dropping).ok_or(Status::NotFound)?;
        match (owned.broken, state) {
            (Some(status), _) => Err(status),
            (None, SeqState::Live) => Ok(owned),
            (None, SeqState::Lost) => Err(Status::Lost),
            (None, SeqState::Free) => Err(Status::NotFound),
        }
    }

    /// A sequence that no request in flight changes.
    ///
    /// # Errors
    /// As [`State::seq`]; `Again`: one does.
    pub(super) fn steady(&mut self, seq: u32) -> Result<&mut Owned, Status> {
        let owned = self.seq(seq)?;
        if owned.changing { Err(Status::Again) } else { Ok(owned) }
    }

    /// Takes a free slot for a sequence of this channel.
    ///
    /// # Errors
    /// `Limit`: there is none; `Again`: there will be one when the daemon has answered a drop of this channel.
    pub(super) fn new_slot(&mut self) -> Result<u32, Status> {
        let session = self.session();
        let coming = || if self.owned.values().any(|owned| owned.dropping) { Status::Again } else { Status::Limit };
        let seq = session.seq_slots.pop().ok_or_else(coming)?;
        if !session.shared.seqs().create(seq) {
            return Err(Status::Internal);
        }
        self.owned.insert(seq, Owned::default());
        Ok(seq)
    }

    /// Sequences of this channel that were not dropped, in order, without leases: those end with their daemon.
    pub(in crate::client) fn sequences(&self) -> Vec<u32> {
        let stays = |owned: &Owned| !owned.dropping && !owned.lease;
        let mut seqs: Vec<u32> = self.owned.iter().filter(|(_, owned)| stays(owned)).map(|(seq, _)| *seq).collect();
        seqs.sort_unstable();
        seqs
    }

    /// Takes a sequence over that a former session had in this slot, and that the daemon knows whole.
    pub(in crate::client) fn take_over(&mut self, seq: u32) {
        self.owned.insert(seq, Owned::default());
        self.told(seq);
    }

    /// Gives a slot back.
    pub(super) fn forget(&mut self, seq: u32) {
        let session = self.session();
        if self.owned.remove(&seq).is_some() {
            self.forgive(seq);
            session.shared.seqs().free(seq);
            let _ = session.seq_slots.push(seq); // as many places as slots
        }
    }

    /// Digests that a sequence's pages still owe are not waited for, unless another sequence has these pages too.
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

    /// The daemon knows all of a sequence: its own answer made it so.
    pub(super) fn told(&mut self, seq: u32) {
        let session = self.session();
        let seqs = session.shared.seqs();
        if let Some(owned) = self.owned.get_mut(&seq) {
            owned.told_blocks = seqs.len(seq);
            // A commit may wait for room in the ring while a reservation comes back.
            if !owned.dirty {
                owned.told_tokens = seqs.committed(seq);
            }
        }
    }

    pub(super) fn unpark(&mut self, seq: u32) {
        if let Some(owned) = self.owned.get_mut(&seq) {
            owned.parked = false;
        }
        self.session().shared.seqs().open(seq);
    }

    /// Notes that the daemon is to be told of a sequence.
    pub(super) fn touch(&mut self, seq: u32) {
        if let Some(owned) = self.owned.get_mut(&seq).filter(|owned| !owned.dirty) {
            owned.dirty = true;
            self.dirty.push_back(seq);
        }
    }

    /// Tells the daemon of what was done locally, as far as the ring has room.
    ///
    /// # Errors
    /// `Again`: something is left.
    pub(super) fn flush(&mut self) -> Result<(), Status> {
        while let Some(request) = self.releases.front().copied() {
            self.post(Op::Release, request, Work::Plain)?;
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

    /// Tells the daemon of a sequence's local blocks and committed length.
    fn tell(&mut self, seq: u32) -> Result<(), Status> {
        let session = self.session();
        let seqs = session.shared.seqs();
        let Some(owned) = self.owned.get(&seq) else { return Ok(()) };
        let (mut blocks, tokens) = (owned.told_blocks, owned.told_tokens);
        while let Some(block) = seqs.block(seq, blocks) {
            self.post(Op::Bind, Submission { seq, block, ..Submission::default() }, Work::Tell { seq })?;
            blocks += 1;
            if let Some(owned) = self.owned.get_mut(&seq) {
                owned.told_blocks = blocks;
            }
        }
        let committed = seqs.committed(seq);
        if committed != tokens {
            self.post(Op::Commit, Submission { seq, value: committed, ..Submission::default() }, Work::Tell { seq })?;
            if let Some(owned) = self.owned.get_mut(&seq) {
                owned.told_tokens = committed;
            }
        }
        Ok(())
    }

    /// Sends a request that nobody waits for.
    pub(super) fn post(&mut self, op: Op, request: Submission, work: Work) -> Result<(), Status> {
        let call = Call::of_nobody(work);
        self.send(op, request, &[], call).map_err(|(status, _)| status)
    }

    /// Drops a sequence.
    pub(super) fn drop_seq(&mut self, seq: u32) -> Result<(), Status> {
        let session = self.session();
        let seqs = session.shared.seqs();
        let owned = self.owned.get(&seq).filter(|owned| !owned.dropping).ok_or(Status::NotFound)?;
        let (changing, parked) = (owned.changing, owned.parked);
        if changing {
            return Err(Status::Again);
        }
        if session.alive() {
            self.flush()?; // blocks of the session's reserve that became its own must go with it
        }
        if !parked {
            seqs.close(seq)?;
        }
        let request = Submission { seq, ..Submission::default() };
        if session.alive()
            && let Err(status) = self.post(Op::SeqDrop, request, Work::Drop { seq })
            && status != Status::Daemon
        {
            if !parked {
                seqs.open(seq);
            }
            return Err(status);
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
