//! The blocks that requests copy, and the jobs that do it.

use crate::actions::ActionBuf;
use crate::api::{NONE, Status};
use crate::counters::Reason;
use crate::lists::{Linked, Links, List};
use crate::mutants::{self, Mutant};
use crate::requests::{Phase, Work};
use crate::sessions::{JobRec, Task};
use crate::space::Core;
use serde::{Deserialize, Serialize};

/// Blocks of a session that are being copied, or wait for it, at most.
const COPIES_MAX: u32 = 8192;

/// One block of a request.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Copy {
    pub links: Links,
    /// Our block. Load: held until its copy ends. Store: new, or none if the content is cached already.
    pub block: u32,
    /// The engine's, or none if it shall only come up into host.
    pub engine: u32,
    /// Its place in the request.
    pub index: u32,
    /// Store: the hash of its content.
    pub hash: u128,
    /// The next plane to send.
    pub plane: u16,
    /// Jobs in flight.
    pub pending: u16,
    /// `Ok`, or why it cannot be copied: nothing more of it is sent.
    pub status: Option<Status>,
}

impl Linked for Copy {
    fn links(&self) -> &Links {
        &self.links
    }
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// The copies of a session. Their memory comes as they do, and stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Copies {
    pub recs: Vec<Copy>,
    free: List,
}

impl Copies {
    /// Whether so many more fit.
    pub fn fit(&self, count: usize) -> bool {
        let live = self.recs.len() - self.free.len as usize;
        live + count <= COPIES_MAX as usize
    }

    /// Adds one to a list. The caller checked that it fits.
    pub fn push(&mut self, list: &mut List, copy: Copy) {
        let at = match self.free.pop_front(&mut self.recs) {
            Some(at) => at,
            None => {
                self.recs.push(Copy::default());
                self.recs.len() as u32 - 1
            }
        };
        self.recs[at as usize] = copy;
        list.push_back(&mut self.recs, at);
    }

    /// Takes the first one of a list away.
    pub fn pop(&mut self, list: &mut List) -> Option<Copy> {
        let at = list.pop_front(&mut self.recs)?;
        let copy = self.recs[at as usize];
        self.free.push_back(&mut self.recs, at);
        Some(copy)
    }

    pub fn bytes(&self) -> usize {
        self.recs.capacity() * size_of::<Copy>()
    }
}

impl std::ops::Index<u32> for Copies {
    type Output = Copy;
    fn index(&self, at: u32) -> &Copy {
        &self.recs[at as usize]
    }
}

impl std::ops::IndexMut<u32> for Copies {
    fn index_mut(&mut self, at: u32) -> &mut Copy {
        &mut self.recs[at as usize]
    }
}

/// What became of the wish to send a page's copy.
pub(super) enum Sent {
    /// It is under way, or needs no copy.
    Yes,
    /// It waits for something; what comes after it may not.
    Later,
    /// No job can be sent now.
    Full,
    /// It will never be.
    Never(Status),
}

impl Core {
    /// Goes on with every request that copies: loads first, somebody waits for those.
    pub(crate) fn pump_copies(&mut self, s: u16, buf: &mut ActionBuf) {
        for work in [Work::Load, Work::Fetch, Work::Store] {
            let mut op = self.sessions[usize::from(s)].ops.copying.head;
            while op != NONE {
                let rec = self.sessions[usize::from(s)].ops[op];
                if rec.work == work && !self.pump_copy(s, op, buf) {
                    return;
                }
                op = rec.links.next;
            }
        }
    }

    /// False when no job can be sent any more.
    fn pump_copy(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> bool {
        let (all, room) = match self.sessions[usize::from(s)].ops[op].work {
            Work::Store => self.pump_in_order(s, op, buf),
            _ => self.pump_any(s, op, buf),
        };
        if all && room && self.sessions[usize::from(s)].ops[op].pending == 0 {
            self.copies_done(s, op);
        }
        room
    }

    /// Sends what can be sent of any of a request's blocks: those that wait hold up no others. Whether all are sent, and whether more jobs can be.
    fn pump_any(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> (bool, bool) {
        let mut at = self.sessions[usize::from(s)].ops[op].copies.head;
        let (mut all, mut room) = (true, true);
        while at != NONE && room {
            let next = self.sessions[usize::from(s)].copies[at].links.next;
            room = self.send_copy(s, op, at, buf);
            all &= self.is_sent(s, at);
            at = next;
        }
        (all, room)
    }

    /// The same in order, from the first block that is not sent (`Op::at`) on.
    fn pump_in_order(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> (bool, bool) {
        let (mut at, mut room) = (self.sessions[usize::from(s)].ops[op].at, true);
        while at != NONE && room {
            room = self.send_copy(s, op, at, buf);
            if !self.is_sent(s, at) {
                break;
            }
            at = self.sessions[usize::from(s)].copies[at].links.next;
        }
        self.sessions[usize::from(s)].ops[op].at = at;
        (at == NONE, room)
    }

    fn is_sent(&self, s: u16, at: u32) -> bool {
        let copy = &self.sessions[usize::from(s)].copies[at];
        copy.status.is_some() || copy.block == NONE || usize::from(copy.plane) == self.geo.planes.len()
    }

    /// Sends what can be sent of one block. False when no job can be sent any more.
    fn send_copy(&mut self, s: u16, op: u32, at: u32, buf: &mut ActionBuf) -> bool {
        while !self.is_sent(s, at) {
            let sent = match self.sessions[usize::from(s)].ops[op].work {
                Work::Store => self.gather_next(s, op, at, buf),
                _ => self.scatter_next(s, op, at, buf),
            };
            match sent {
                Sent::Yes => self.sessions[usize::from(s)].copies[at].plane += 1,
                Sent::Later => return true,
                Sent::Full => return false,
                Sent::Never(status) => self.sessions[usize::from(s)].copies[at].status = Some(status),
            }
        }
        true
    }

    /// Sends the job that copies a page between host frame `host` and the engine's block.
    pub(super) fn send_page(&mut self, s: u16, op: u32, at: u32, job: JobRec, buf: &mut ActionBuf) {
        self.hold(self.geo.block_of(job.page));
        self.count_copy(s, job.page, true);
        let session = &mut self.sessions[usize::from(s)];
        session.copies[at].pending += 1;
        session.ops[op].pending += 1;
        let source = session.copies[at].engine;
        self.send_other(s, JobRec { source, op, copy: at, reason: Reason::Request, ..job }, buf);
    }

    /// A copy between host and an engine's block ended.
    pub(crate) fn page_copied(&mut self, s: u16, slot: u32, job: JobRec, status: Status) {
        self.sessions[usize::from(s)].jobs.release(slot);
        self.count_copy(s, job.page, false);
        let failed_is_ok = match job.task {
            Task::Gather => Mutant::FailedGatherIsSuccess,
            _ => Mutant::FailedScatterIsSuccess,
        };
        let ok = status == Status::Ok || mutants::on(failed_is_ok);
        let bytes = self.geo.classes[usize::from(self.geo.class_of_page(job.page))].page_bytes;
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
            _ => self.page_scattered(job, ok, status),
        }
        let session = &mut self.sessions[usize::from(s)];
        let copy = &mut session.copies[job.copy];
        copy.pending -= 1;
        if !ok {
            copy.status = copy.status.or(Some(if status == Status::Corrupt { Status::Corrupt } else { Status::Io }));
        }
        session.ops[job.op].pending -= 1;
        if session.ops[job.op].pending == 0 && session.ops[job.op].ending {
            self.copies_done(s, job.op);
        }
        self.release_hold(self.geo.block_of(job.page));
    }

    /// A request that copies is to end: at once if nothing of it is under way, else when that has ended or at its deadline. True if it is
    /// on its way.
    pub(crate) fn end_copies(&mut self, s: u16, op: u32, status: Status) -> bool {
        let rec = &mut self.sessions[usize::from(s)].ops[op];
        let copies = matches!(rec.work, Work::Load | Work::Fetch | Work::Store);
        if copies && rec.phase == Phase::Jobs {
            // The request has ended for other sessions; its engine waits for its agent to end the copies.
            return true;
        }
        if rec.phase != Phase::Copying {
            return false;
        }
        if !rec.ending {
            (rec.ending, rec.status) = (true, status);
        }
        if status == Status::TimedOut {
            self.copies_late(s, op);
        }
        if self.sessions[usize::from(s)].ops[op].phase == Phase::Copying
            && (status == Status::TimedOut || self.sessions[usize::from(s)].ops[op].pending == 0)
        {
            self.copies_done(s, op);
        }
        true
    }

    /// Nothing of the request is under way, but for copies that are late.
    fn copies_done(&mut self, s: u16, op: u32) {
        if self.sessions[usize::from(s)].ops[op].ending {
            self.forget_deadline(s, op);
        }
        match self.sessions[usize::from(s)].ops[op].work {
            Work::Store => self.all_gathered(s, op),
            _ => self.all_scattered(s, op),
        }
    }

    /// The request's copies in flight are late: it fails for their blocks, and they hold nothing that others may need.
    fn copies_late(&mut self, s: u16, op: u32) {
        let session = &mut self.sessions[usize::from(s)];
        let mut at = session.ops[op].copies.head;
        while at != NONE {
            let copy = &mut session.copies[at];
            if std::mem::take(&mut copy.pending) > 0 {
                copy.status = copy.status.or(Some(Status::TimedOut));
            }
            at = copy.links.next;
        }
        for slot in 0..self.sessions[usize::from(s)].jobs.recs.len() as u32 {
            let job = self.sessions[usize::from(s)].jobs[slot];
            if job.live && job.op == op && !job.late {
                self.copy_is_late(s, slot, job);
            }
        }
    }

    pub(crate) fn forget_copies(&mut self, s: u16, op: u32) {
        let mut copies = self.take_copies(s, op);
        while self.sessions[usize::from(s)].copies.pop(&mut copies).is_some() {}
    }

    /// The request's list of copies, which it has no longer.
    fn take_copies(&mut self, s: u16, op: u32) -> List {
        std::mem::take(&mut self.sessions[usize::from(s)].ops[op].copies)
    }

    /// The indices of the blocks that failed become the completion's list: those stay in the request's, the others go.
    pub(super) fn keep_failed(&mut self, s: u16, op: u32) {
        let mut all = self.take_copies(s, op);
        let session = &mut self.sessions[usize::from(s)];
        let (mut failed, mut first) = (List::default(), None);
        let mut good = 0;
        while let Some(copy) = session.copies.pop(&mut all) {
            match copy.status {
                None => good += 1,
                Some(status) => {
                    first = first.or(Some(status));
                    session.copies.push(&mut failed, copy);
                }
            }
        }
        let rec = &mut session.ops[op];
        rec.copies = failed;
        rec.count = good;
        // What was to end has ended well if nothing was left to do.
        rec.status = match first {
            None => Status::Ok,
            // A store that found no room for all of its blocks in time has kept the others.
            Some(Status::NotAdmitted) => Status::NotAdmitted,
            Some(_) if rec.ending => rec.status,
            Some(status) => status,
        };
        // The engine may use its blocks again only when no copy is under way, late ones included.
        let phase = if rec.pending == 0 { Phase::Ready } else { Phase::Jobs };
        session.ops.enter(op, phase);
    }

    /// Completes a request that copied: how many blocks arrived, and the indices of those that did not.
    pub(crate) fn complete_copies(&mut self, s: u16, op: u32, buf: &mut ActionBuf) -> (Status, u64) {
        let mut failed = self.take_copies(s, op);
        let session = &mut self.sessions[usize::from(s)];
        while let Some(copy) = session.copies.pop(&mut failed) {
            buf.push_word(copy.index);
        }
        (session.ops[op].status, u64::from(session.ops[op].count))
    }
}
