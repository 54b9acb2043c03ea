//! Phases of pending requests: starts, ends, expired leases, dropped sequences.

use crate::actions::ActionBuf;
use crate::api::{Action, FeedEvent, SeqId, Status};
use crate::block_api::{LEASE_AGAIN_US, LEASE_WORDS};
use crate::disk::Admit;
use crate::mutants::{self, Mutant};
use crate::requests::Requests;
use crate::sessions::{Op, Phase, Work};

impl Requests {
    /// End expired leases, except those that a load uses.
    pub(crate) fn end_leases(&mut self, s: u16) {
        let session = &self.copiers[s];
        if session.leases == 0 {
            self.copiers[s].lease_ends_at = u64::MAX;
            return;
        }
        if session.lease_ends_at > self.now() {
            let at = session.lease_ends_at;
            return self.set_timer(at);
        }
        let mut next = u64::MAX;
        for seq in 0..self.lists(s).seqs.len() as u32 {
            let q = self.lists(s).seqs[seq as usize];
            if !q.is_live() || !q.is_lease() {
                continue;
            }
            let is_copied = self.is_copied(s, seq) && !mutants::on(Mutant::LeaseEndsUnderLoad);
            if q.leased_until <= self.now() && !is_copied {
                self.counters.leases_expired += 1;
                self.seq_drop(s, seq);
            } else {
                next = next.min(q.leased_until.max(self.now().saturating_add(LEASE_AGAIN_US)));
            }
        }
        self.copiers[s].lease_ends_at = next;
        if next != u64::MAX {
            self.set_timer(next);
        }
    }

    pub(crate) fn seq_drop(&mut self, s: u16, seq: SeqId) -> Status {
        if self.live_seq(s, seq).is_none() {
            return Status::NotFound;
        }
        self.end_ops_of(s, seq);
        self.paging().release_all(s, seq);
        self.paging().forget_due(s, seq);
        self.pagers[s].scheduled.forget(seq);
        self.paging().untrack(s, seq);
        self.drop_tail(s, seq, 0);
        self.copiers[s].leases -= u32::from(self.lists(s).seqs[seq as usize].is_lease());
        self.end_seq(s, seq);
        Status::Ok
    }

    /// End an op after its deadline passed.
    pub(crate) fn time_out(&mut self, s: u16, op: u32) {
        self.counters.timed_out += 1;
        let rec = self.op(s, op);
        // A store that found no room in time: its blocks are not admitted.
        let no_room = matches!(rec.work, Work::Store(_)) && rec.phase == Phase::Admission;
        self.fail_op(s, op, if no_room { Status::NotAdmitted } else { Status::TimedOut });
        self.wake(s);
    }

    pub(crate) fn cancel(&mut self, s: u16, channel: u16, tag: u16) -> Status {
        let ops = &self.session(s).ops;
        let found = ops
            .recs
            .iter()
            .position(|o| !matches!(o.phase, Phase::Free | Phase::Ready) && o.channel == channel && o.tag == tag);
        let Some(op) = found else { return Status::NotFound };
        self.counters.canceled += 1;
        self.fail_op(s, op as u32, Status::Canceled);
        Status::Ok
    }

    /// End an op without success and release its resources.
    pub(crate) fn fail_op(&mut self, s: u16, op: u32, status: Status) {
        match self.op(s, op).work.is_block_api() {
            true => self.block_api().fail_op(s, op, status),
            false => self.paging().fail_op(s, op, status),
        }
    }

    /// Release the resources of an op. Jobs in flight go on; their resources are released when they end.
    pub(crate) fn undo_op(&mut self, s: u16, op: u32) {
        match self.op(s, op).work.is_block_api() {
            true => self.block_api().undo_op(s, op),
            false => self.paging().undo_op(s, op),
        }
    }

    /// End all pending requests of a sequence that is dropped.
    fn end_ops_of(&mut self, s: u16, seq: SeqId) {
        for op in 0..self.session(s).ops.recs.len() as u32 {
            let rec = self.op(s, op);
            let is_child = matches!(rec.work, Work::Fork(fork) if fork.child == seq);
            if rec.phase != Phase::Free && (rec.seq == seq || is_child) {
                self.fail_op(s, op, Status::NotFound);
            }
        }
    }

    /// Try to start the op at the head of the admission list. Return false if it continues to wait.
    pub(crate) fn try_admit(&mut self, s: u16, op: u32) -> bool {
        let work = self.op(s, op).work;
        let decision = match work {
            Work::Reserve(reserve) => self.paging().admit_reserve(s, op, reserve),
            Work::Fork(fork) => self.paging().admit_fork(s, op, fork),
            Work::Truncate(truncate) => self.paging().admit_truncate(s, op, truncate),
            Work::AttachPrefix(attach) => self.paging().admit_attach_prefix(s, op, attach),
            Work::Resume(_) => self.paging().admit_resume(s, op),
            Work::Resize(resize) => self.paging().admit_resize(s, resize),
            Work::Guarantee(guarantee) => self.paging().admit_guarantee(s, guarantee),
            Work::Lease => self.block_api().admit_lease(),
            Work::Store(store) => self.block_api().admit_store(s, op, store),
            _ => Admit::Yes,
        };
        match (decision, work) {
            (Admit::Yes, Work::Lease) => self.enter(s, op, Phase::Ready),
            (Admit::Yes, Work::Store(_)) => self.enter(s, op, Phase::Copying),
            (Admit::Yes, Work::Resize(resize)) => self.paging().start_resize(s, op, resize),
            (Admit::Yes, Work::Guarantee(guarantee)) => self.paging().start_guarantee(s, op, guarantee),
            (Admit::Yes, _) => self.enter(s, op, Phase::Frames),
            (Admit::No(Status::NoSpace), Work::Guarantee(guarantee)) => {
                self.paging().refuse_guarantee(s, op, guarantee);
            }
            (Admit::No(status), _) => self.fail_op(s, op, status),
            (Admit::Wait, _) => {
                self.counters.stalls += 1;
                return false;
            }
        }
        true
    }

    /// Complete a ready op, with its list. Return false if the list does not fit now.
    pub(crate) fn complete_op(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> bool {
        let Op { channel, tag, seq, blocks, status, work, .. } = *self.op(s, op);
        let words = match work {
            Work::Lease => LEASE_WORDS,
            Work::Load(_) | Work::LoadHashed(_) | Work::Store(_) => self.copies_of(s, op).list.len,
            Work::Follow(_) => FeedEvent::WORDS as u32,
            Work::List(_) => 2 * FeedEvent::WORDS as u32,
            Work::AttachPrefix(attach) => attach.count,
            Work::Declare(_) => 1,
            _ => blocks.len,
        };
        if buf.words_room() < words as usize {
            return false;
        }
        self.retire_op(s, op);
        let start = buf.list_start();
        let (status, value) = match work {
            Work::Reserve(reserve) => self.paging().complete_reserve(s, op, reserve, buf),
            Work::Fork(fork) => self.paging().complete_fork(s, op, fork, buf),
            Work::Truncate(truncate) => self.paging().complete_truncate(s, op, truncate, buf),
            Work::AttachPrefix(attach) => self.paging().complete_attach_prefix(s, seq, attach, buf),
            Work::Declare(declare) => {
                buf.push_word(declare.block);
                (Status::Ok, 1)
            }
            Work::Lease => self.block_api().complete_lease(s, op, buf),
            Work::Load(_) | Work::LoadHashed(_) | Work::Store(_) => self.block_api().complete_copies(s, op, buf),
            Work::Follow(follow) => self.block_api().complete_follow(follow.from, buf),
            Work::List(listing) => self.block_api().complete_list(listing.cursor, buf),
            // These complete without a list, in `finish_plain`.
            Work::Park(_)
            | Work::Resume(_)
            | Work::Acquire(_)
            | Work::Fault(_)
            | Work::Publish(_)
            | Work::Resize(_)
            | Work::Guarantee(_) => (status, 0),
        };
        let list = (start, buf.list_start() - start);
        let action = Action::Complete { session: s, channel, tag, status, value, list };
        self.counters.requests_failed += u64::from(status != Status::Ok);
        self.emit_listed(action, list, buf);
        true
    }
}
