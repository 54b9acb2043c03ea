//! Block copies of requests, and the jobs that execute them.

use crate::actions::ActionBuf;
use crate::api::{NONE, Status};
use crate::block_api::BlockApi;
use crate::counters::Reason;
use crate::index::From;
use crate::lists::{Links, List, linked};
use crate::mutants::{self, Mutant};
use crate::sessions::{Copies, JobRec, Op, Phase, Store, Task, Work};
use serde::{Deserialize, Serialize};

/// Maximum number of blocks of a session that are being copied, or wait for it.
const COPIES_MAX: u32 = 8192;

/// The copies of one block of a request.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BlockCopy {
    pub links: Links,
    /// The cache's block. Load: held until its copy ends. Store: new, or `NONE` if the block is cached already.
    pub block: u32,
    /// The engine's block.
    pub engine: u32,
    /// Index in the request.
    pub index: u32,
    /// Store: the hash of the block.
    pub hash: u128,
    /// Next plane to send.
    pub plane: u16,
    /// Load: a page of the block came from NVMe.
    pub from_nvme: bool,
    /// Number of jobs in flight.
    pub pending: u16,
    /// `None` while there is no error; else why the block cannot be copied: no more jobs of it are sent.
    pub status: Option<Status>,
}

linked!(BlockCopy.links);

/// The block copies of a session. Memory is allocated when a copy needs it, and kept.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BlockCopies {
    pub recs: Vec<BlockCopy>,
    free: List,
}

impl BlockCopies {
    /// Return whether `count` more copies fit.
    pub fn fit(&self, count: usize) -> bool {
        let live = self.recs.len() - self.free.len as usize;
        live + count <= COPIES_MAX as usize
    }

    /// Add a copy to a list. The caller checked that it fits.
    pub fn push(&mut self, list: &mut List, copy: BlockCopy) {
        let at = match self.free.pop_front(&mut self.recs) {
            Some(at) => at,
            None => {
                self.recs.push(BlockCopy::default());
                self.recs.len() as u32 - 1
            }
        };
        self.recs[at as usize] = copy;
        list.push_back(&mut self.recs, at);
    }

    /// Remove and return the first copy of a list.
    pub fn pop(&mut self, list: &mut List) -> Option<BlockCopy> {
        let at = list.pop_front(&mut self.recs)?;
        let copy = self.recs[at as usize];
        self.free.push_back(&mut self.recs, at);
        Some(copy)
    }

    pub fn bytes(&self) -> usize {
        self.recs.capacity() * size_of::<BlockCopy>()
    }
}

impl std::ops::Index<u32> for BlockCopies {
    type Output = BlockCopy;
    fn index(&self, at: u32) -> &BlockCopy {
        &self.recs[at as usize]
    }
}

impl std::ops::IndexMut<u32> for BlockCopies {
    fn index_mut(&mut self, at: u32) -> &mut BlockCopy {
        &mut self.recs[at as usize]
    }
}

/// What the block API knows of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Copier {
    /// Copies between host and the engine's own memory.
    pub copies: BlockCopies,
    /// Number of leases, including expired ones until they are processed.
    pub leases: u32,
    /// A lower bound of the first expiry of a lease.
    pub lease_ends_at: u64,
}

impl Default for Copier {
    fn default() -> Copier {
        Copier { copies: BlockCopies::default(), leases: 0, lease_ends_at: u64::MAX }
    }
}

/// Result of an attempt to send the copy of a page.
pub(crate) enum Sent {
    /// Sent, or no copy is needed.
    Yes,
    /// The page must wait; the following pages may not have to.
    Later,
    /// No job can be sent now.
    Full,
    /// The page can never be copied.
    Never(Status),
}

impl BlockApi<'_> {
    /// Continue every request that copies: loads first, because requests wait for them.
    pub(crate) fn issue_copies(&mut self, s: u16, buf: &mut ActionBuf) {
        let loads = |work: &Work| matches!(work, Work::Load(_));
        let loads_hashed = |work: &Work| matches!(work, Work::LoadHashed(_));
        let stores = |work: &Work| matches!(work, Work::Store(_));
        for is_next in [loads, loads_hashed, stores] {
            let mut op = self.session(s).ops.copying.head;
            while op != NONE {
                let Op { links, work, .. } = *self.op(s, op);
                if is_next(&work) && !self.issue_copy(s, op, buf) {
                    return;
                }
                op = links.next;
            }
        }
    }

    /// Continue one request. Return false if no more jobs can be sent.
    fn issue_copy(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> bool {
        let (all, room) = match self.op(s, op).work {
            Work::Store(store) => self.issue_in_order(s, op, store, buf),
            _ => self.issue_any(s, op, buf),
        };
        if all && room && self.op(s, op).pending == 0 {
            self.copies_done(s, op);
        }
        room
    }

    /// Send jobs for any of a request's blocks: a block that waits does not delay others. Return whether all are sent, and whether
    /// more jobs can be sent.
    fn issue_any(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> (bool, bool) {
        let mut at = self.copies_of(s, op).list.head;
        let (mut all, mut room) = (true, true);
        while at != NONE && room {
            let next = self.copiers[s].copies[at].links.next;
            room = self.send_copy(s, op, at, buf);
            all &= self.is_sent(s, at);
            at = next;
        }
        (all, room)
    }

    /// Send jobs in order, from the first block that is not sent on.
    fn issue_in_order(&mut self, s: u16, op: u32, store: Store, buf: &mut ActionBuf) -> (bool, bool) {
        let (mut at, mut room) = (store.next, true);
        while at != NONE && room {
            room = self.send_copy(s, op, at, buf);
            if !self.is_sent(s, at) {
                break;
            }
            at = self.copiers[s].copies[at].links.next;
        }
        self.set_work(s, op, Store { next: at, ..store });
        (at == NONE, room)
    }

    fn is_sent(&self, s: u16, at: u32) -> bool {
        let copy = &self.copiers[s].copies[at];
        copy.status.is_some() || copy.block == NONE || usize::from(copy.plane) == self.geo().planes.len()
    }

    /// Send jobs for one block. Return false if no more jobs can be sent.
    fn send_copy(&mut self, s: u16, op: u32, at: u32, buf: &mut ActionBuf) -> bool {
        while !self.is_sent(s, at) {
            let sent = match self.op(s, op).work {
                Work::Store(_) => self.gather_next(s, op, at, buf),
                _ => self.scatter_next(s, op, at, buf),
            };
            match sent {
                Sent::Yes => self.copiers[s].copies[at].plane += 1,
                Sent::Later => return true,
                Sent::Full => return false,
                Sent::Never(status) => self.copiers[s].copies[at].status = Some(status),
            }
        }
        true
    }

    /// Send the job that copies a page between host frame `host` and the engine's block.
    pub(crate) fn send_page(&mut self, s: u16, op: u32, at: u32, job: JobRec, buf: &mut ActionBuf) {
        let b = self.geo().block_of(job.page);
        self.add_in_flight(b);
        self.count_copy(s, job.page, true);
        self.copiers[s].copies[at].pending += 1;
        self.job_begins(s, op);
        let source = self.copiers[s].copies[at].engine;
        self.send_other(s, JobRec { source, op, copy: at, reason: Reason::Request, ..job }, buf);
    }

    /// Record the end of a copy between host and an engine's block.
    pub(crate) fn page_copied(&mut self, s: u16, slot: u32, job: JobRec, status: Status) {
        self.release_job(s, slot);
        self.count_copy(s, job.page, false);
        let failed_is_ok = match job.task {
            Task::Gather => Mutant::FailedGatherIsSuccess,
            _ => Mutant::FailedScatterIsSuccess,
        };
        let ok = status == Status::Ok || mutants::on(failed_is_ok);
        let bytes = self.geo().classes[usize::from(self.geo().class_of_page(job.page))].page_bytes;
        let edge = match job.task {
            Task::Gather => &mut self.counters.tier0_to_host,
            _ => &mut self.counters.host_to_tier0,
        };
        match ok {
            true => edge.add(job.reason, bytes),
            false => edge.failed += 1,
        }
        match job.task {
            Task::Gather => self.page_gathered(job, ok),
            _ => self.page_scattered(s, job, ok, status),
        }
        let copy = &mut self.copiers[s].copies[job.copy];
        copy.pending -= 1;
        if !ok {
            copy.status = copy.status.or(Some(if status == Status::Corrupt { Status::Corrupt } else { Status::Io }));
        }
        self.job_ends(s, job.op);
        if self.op(s, job.op).pending == 0 && self.copies_of(s, job.op).ending {
            self.copies_done(s, job.op);
        }
        let b = self.geo().block_of(job.page);
        self.remove_in_flight(b);
    }

    /// End a request that copies: at once if none of its jobs is in flight, else when they have ended or at its deadline. Return
    /// true if the request is such a request and will end.
    pub(crate) fn end_copies(&mut self, s: u16, op: u32, status: Status) -> bool {
        let Op { phase, mut work, .. } = *self.op(s, op);
        let Some(copies) = work.copies() else { return false };
        if phase == Phase::Jobs {
            // The request has released its blocks; it only waits until the agent has ended its copies.
            return true;
        }
        if phase != Phase::Copying {
            return false;
        }
        if !copies.ending {
            copies.ending = true;
            let copies = *copies;
            self.set_copies(s, op, copies);
            self.set_status(s, op, status);
        }
        if status == Status::TimedOut {
            self.copies_late(s, op);
        }
        if self.op(s, op).phase == Phase::Copying && (status == Status::TimedOut || self.op(s, op).pending == 0) {
            self.copies_done(s, op);
        }
        true
    }

    /// Complete a request that has no jobs in flight except late ones.
    fn copies_done(&mut self, s: u16, op: u32) {
        if self.copies_of(s, op).ending {
            self.forget_deadline(s, op);
        }
        match self.op(s, op).work {
            Work::Store(store) => self.all_gathered(s, op, store),
            _ => self.all_scattered(s, op),
        }
    }

    /// Mark the request's copies in flight as late: their blocks fail, and the copies hold no resources that others may need.
    fn copies_late(&mut self, s: u16, op: u32) {
        let mut at = self.copies_of(s, op).list.head;
        while at != NONE {
            let copy = &mut self.copiers[s].copies[at];
            if std::mem::take(&mut copy.pending) > 0 {
                copy.status = copy.status.or(Some(Status::TimedOut));
            }
            at = copy.links.next;
        }
        for slot in 0..self.session(s).jobs.recs.len() as u32 {
            let job = *self.job(s, slot);
            if job.live && job.op == op && !job.late {
                self.copy_is_late(s, slot, job);
            }
        }
    }

    pub(crate) fn forget_copies(&mut self, s: u16, op: u32) {
        let mut copies = self.take_copies(s, op);
        while self.copiers[s].copies.pop(&mut copies).is_some() {}
    }

    /// Take the request's list of copies.
    fn take_copies(&mut self, s: u16, op: u32) -> List {
        let copies = self.copies_of(s, op);
        self.set_copies(s, op, Copies { list: List::default(), ..copies });
        copies.list
    }

    /// Keep the failed blocks of a request and free the others. The indices of the failed blocks become the completion's list.
    pub(crate) fn keep_failed(&mut self, s: u16, op: u32) {
        let mut all = self.take_copies(s, op);
        let work = self.op(s, op).work;
        let (mut failed, mut first) = (List::default(), None);
        let (mut arrived, mut loaded) = (0, 0);
        while let Some(copy) = self.copiers[s].copies.pop(&mut all) {
            match copy.status {
                None => {
                    arrived += 1;
                    if let Work::Load(load) = work {
                        let from = if copy.from_nvme { From::Nvme } else { From::Host };
                        self.count_loaded(s, load.first + copy.index, from);
                        loaded += 1;
                    }
                }
                Some(status) => {
                    first = first.or(Some(status));
                    self.copiers[s].copies.push(&mut failed, copy);
                }
            }
        }
        self.counters.blocks_loaded += loaded;
        let ending = self.copies_of(s, op).ending;
        self.set_copies(s, op, Copies { list: failed, arrived, ending });
        // A request that had to end succeeded if all its blocks had already arrived.
        let status = match first {
            None => Status::Ok,
            // A store that found no room for all of its blocks in time has kept the others.
            Some(Status::NotAdmitted) => Status::NotAdmitted,
            Some(_) if ending => self.op(s, op).status,
            Some(status) => status,
        };
        self.set_status(s, op, status);
        // The engine may use its blocks again only when no copy is in flight, including late ones.
        let phase = if self.op(s, op).pending == 0 { Phase::Ready } else { Phase::Jobs };
        self.enter(s, op, phase);
    }

    /// Complete a request that copied: return its status and how many blocks arrived, and list the indices of those that did not.
    pub(crate) fn complete_copies(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> (Status, u64) {
        let mut failed = self.take_copies(s, op);
        while let Some(copy) = self.copiers[s].copies.pop(&mut failed) {
            buf.push_word(copy.index);
        }
        let ops = &self.session(s).ops;
        (ops[op].status, ops.copies(op).arrived.into())
    }
}
