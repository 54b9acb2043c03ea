//! The mover: takes the daemon's jobs, invalidates pages, waits for lanes, issues copies, installs pages, reports results.

use super::{
    Shared,
    log::Update,
    mutants::{self, Mutant},
    rules::{self, Plan, WRITING},
    zeroed,
};
use kvtide_wire::{
    entry::{Job, JobDone, JobKind, NONE_U16, SAMPLED},
    status::Status,
    sync::{Ordering, fence},
};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// Source or destination of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A frame of tier 0.
    Frame(u32),
    /// A mapped frame. Nothing is copied: the frame is mapped to the source.
    MappedFrame(u32),
    /// No source: the mapped frame stops showing a page.
    Nothing,
    /// A frame of a host slab.
    Host {
        /// The slab.
        slab: u32,
        /// The frame within it.
        slot: u32,
    },
    /// A block of the engine's own memory: the part that belongs to the plane.
    Engine(u32),
}

/// A copy that may begin now. It counts as begun, and must be ended by passing this same value to [`Mover::copied`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOp {
    /// Identifies the job within the mover.
    pub token: u64,
    /// Source.
    pub from: Place,
    /// Destination.
    pub to: Place,
    /// Bytes of the page. They are copied, or, for a mapped frame, mapped.
    pub bytes: u32,
    /// The plane. It determines the size class.
    pub plane: u16,
    /// If true, compute the digest of the page's bytes in tier 0 after the copy.
    pub sampled: bool,
}

/// Result of a copy that ended without an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes that arrived.
    pub bytes: u64,
    /// If [`CopyOp::sampled`]: CRC-32C of the page's bytes in tier 0. For a load, of the bytes that arrived; for a store, of the
    /// bytes that were read.
    pub digest: u32,
}

/// A job that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The job's kind, if it was known.
    pub kind: Option<JobKind>,
    /// The result for the daemon.
    pub done: JobDone,
    /// The page was mapped where it is in host memory: nothing was copied.
    pub in_place: bool,
}

/// There is no room for a job now: the job slots or the log are full. Offer it again after copies or lanes made progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// Waits until lanes have passed its invalidation.
    Waiting,
    /// In the queue of copies that may begin.
    Ready,
    Copying,
}

#[derive(Clone, Copy)]
struct Work {
    state: State,
    kind: JobKind,
    job: Job,
    plan: Plan,
    /// Log indices before the job's first invalidation and after its last one.
    before: u64,
    after: u64,
    generation: u32,
    taken_ns: u64,
    /// Number of log entries that it may still write.
    promised: u32,
}

/// Build the result of a job that copied nothing.
fn nothing(id: u32, status: Status) -> JobDone {
    JobDone { id, status: status.code(), ..JobDone::default() }
}

/// Report whether the loaded bytes differ from the stored ones: the job is in the integrity sample, and the digests differ.
fn is_corrupt(work: &Work, digest: u32) -> bool {
    let compared = work.job.flags & SAMPLED != 0 && !matches!(work.kind, JobKind::CopyOut | JobKind::Gather);
    compared && digest != work.job.digest && !mutants::on(Mutant::SampleIgnored)
}

/// The mover of a session: the only writer of its page table.
pub struct Mover {
    shared: Arc<Shared>,
    work: Box<[Work]>,
    free: Vec<u32>,
    ids: HashMap<u32, u32>,
    waiting: Vec<u32>,
    /// Moves that wait until no lane is in a step. `moving` counts those in progress behind the closed gate (rule 12).
    moves: Vec<u32>,
    moving: u32,
    /// Pages and frames that the job being started removes.
    victims: Vec<(u32, u32)>,
    ready: VecDeque<u32>,
    ended: VecDeque<(Ended, u64)>,
    /// By frame: number of readers, or [`WRITING`].
    uses: Box<[u16]>,
    /// Number of updates written to the log, of indices claimed in it, and of entries that unfinished jobs may still write.
    end: u64,
    claimed: u64,
    promised: u64,
}

impl Mover {
    /// Create the mover of an empty table; `None` if the system has no memory for it. There must be one mover for each table.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Option<Mover> {
        let jobs = shared.geometry().bounds().jobs_max;
        let idle = Work {
            state: State::Idle,
            kind: JobKind::Install,
            job: Job::default(),
            plan: Plan::default(),
            before: 0,
            after: 0,
            generation: 0,
            taken_ns: 0,
            promised: 0,
        };
        Some(Mover {
            uses: zeroed::words(shared.geometry().frames() as usize)?,
            work: vec![idle; jobs as usize].into_boxed_slice(),
            free: (0..jobs).rev().collect(),
            ids: HashMap::with_capacity(jobs as usize),
            waiting: Vec::with_capacity(jobs as usize),
            moves: Vec::with_capacity(jobs as usize),
            moving: 0,
            victims: Vec::with_capacity(shared.geometry().plane_count() as usize),
            ready: VecDeque::with_capacity(jobs as usize),
            ended: VecDeque::with_capacity(jobs as usize),
            end: 0,
            claimed: 0,
            promised: 0,
            shared,
        })
    }

    /// Return the number of jobs that were taken and have not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.work.len() - self.free.len()
    }

    /// Take a job. An invalid job ends at once with its status.
    ///
    /// # Errors
    /// [`Full`]: nothing was done.
    pub fn accept(&mut self, job: &Job, now_ns: u64) -> Result<(), Full> {
        if self.in_flight() + self.ended.len() >= self.work.len() {
            return Err(Full);
        }
        let Some(kind) = JobKind::from_code(job.kind) else {
            self.report(None, &nothing(job.id, Status::Invalid), now_ns);
            return Ok(());
        };
        let checked = match kind {
            _ if self.ids.contains_key(&job.id) => Err(Status::Invalid),
            JobKind::Cancel => Err(self.cancel(job.src_block)),
            _ => rules::check(&self.shared, &self.uses, job, kind),
        };
        match checked {
            Ok(plan) => self.start(kind, job, plan, now_ns),
            Err(status) => {
                self.report(Some(kind), &nothing(job.id, status), now_ns);
                Ok(())
            }
        }
    }

    /// End a job that cannot be carried out as `Invalid`, without doing any of it.
    ///
    /// # Errors
    /// [`Full`].
    pub fn refuse(&mut self, job: &Job, now_ns: u64) -> Result<(), Full> {
        if self.in_flight() + self.ended.len() >= self.work.len() {
            return Err(Full);
        }
        self.report(JobKind::from_code(job.kind), &nothing(job.id, Status::Invalid), now_ns);
        Ok(())
    }

    /// Report whether a job waits for lanes.
    #[must_use]
    pub fn waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.moves.is_empty()
    }

    fn report(&mut self, kind: Option<JobKind>, done: &JobDone, taken_ns: u64) {
        self.ended.push_back((Ended { kind, done: *done, in_place: false }, taken_ns));
    }

    /// Claim room in the log for a job.
    fn claim(&mut self, updates: u32) -> bool {
        // A lane that begins now needs one full lap to read these entries before its next boundary, even if all lanes are
        // quiescent.
        if self.promised + u64::from(updates) > self.shared.log.capacity() {
            return false;
        }
        self.claimed = self.claimed.max(self.end + self.promised + u64::from(updates));
        self.shared.claim(self.claimed)
    }

    fn start(&mut self, kind: JobKind, job: &Job, plan: Plan, now_ns: u64) -> Result<(), Full> {
        // A Move may wait long, for a lane that itself waits for later jobs. So it claims its log entries only when it begins.
        let updates = if kind == JobKind::Move { 0 } else { plan.updates };
        if updates > 0 && !self.claim(updates) {
            return Err(Full);
        }
        if !self.take_victims(kind, job, &plan) {
            self.report(Some(kind), &nothing(job.id, Status::Busy), now_ns);
            return Ok(());
        }
        let Some(slot) = self.free.pop() else { return Err(Full) };
        if let Some(frame) = plan.writes {
            self.uses[frame as usize] = WRITING;
        }
        if let Some(frame) = plan.reads {
            self.uses[frame as usize] += 1;
        }
        if let Some(page) = plan.page.filter(|_| kind != JobKind::Move) {
            self.shared.set_pending(page);
        }
        self.ids.insert(job.id, slot);
        self.promised += u64::from(updates);
        let generation = self.work[slot as usize].generation.wrapping_add(1);
        self.work[slot as usize] = Work {
            state: State::Waiting,
            kind,
            job: *job,
            plan,
            before: 0,
            after: 0,
            generation,
            taken_ns: now_ns,
            promised: updates,
        };
        if mutants::on(Mutant::VictimStaysInstalled) && plan.page.is_some() && kind != JobKind::Move {
            self.advance(slot);
            return Ok(());
        }
        let use_lane = if kind == JobKind::Drop { NONE_U16 } else { job.use_lane };
        let victims = std::mem::take(&mut self.victims);
        self.work[slot as usize].before = self.end;
        for &(page, frame) in &victims {
            self.shared.show(frame, None);
            self.write(slot, Update::invalidate(page, frame, slot, use_lane, job.use_pos));
        }
        self.work[slot as usize].after = self.end;
        fence(Ordering::SeqCst); // rule 6
        if victims.is_empty() {
            self.advance(slot);
        } else {
            self.waiting.push(slot);
        }
        self.victims = victims;
        Ok(())
    }

    /// Remove a job's victims from the master table and list them. If one is pinned, put all of them back and return false.
    fn take_victims(&mut self, kind: JobKind, job: &Job, plan: &Plan) -> bool {
        let shared = &self.shared;
        self.victims.clear();
        if let Some(page) = plan.victim {
            self.victims.push((page, job.frame));
        }
        if kind == JobKind::Drop {
            let pages = shared.geometry().pages_of(job.block);
            self.victims.extend(pages.filter_map(|page| Some((page, shared.master_frame(page)?))));
        }
        for (page, _) in &self.victims {
            shared.leave(*page);
        }
        fence(Ordering::SeqCst); // rule 8
        if !self.victims.iter().any(|(page, frame)| self.pinned_in(*page, *frame)) {
            return true;
        }
        for (page, frame) in &self.victims {
            shared.enter(*page, *frame);
        }
        false
    }

    /// Report whether a pin keeps a page in its frame. A pin does not keep a page in a mapped frame. Pinned pages
    /// belong in tier 0, so the daemon has been asked to load the page there.
    fn pinned_in(&self, page: u32, frame: u32) -> bool {
        !self.shared.geometry().is_mapped_frame(frame) && self.pinned(page)
    }

    fn pinned(&self, page: u32) -> bool {
        let (shared, planes) = (&self.shared, self.shared.geometry().plane_count());
        let pinned = shared.pins().covers(shared.seqs(), page / planes, (page % planes) as u16);
        pinned && !mutants::on(Mutant::NoPinCheck)
    }

    /// Write an update to the log and count it against the job's claimed entries.
    fn write(&mut self, slot: u32, update: Update) {
        self.shared.log.append(self.end, update);
        self.end += 1;
        let work = &mut self.work[slot as usize];
        if work.promised > 0 {
            work.promised -= 1;
            self.promised -= 1;
        }
    }

    fn install(&mut self, slot: u32, page: u32, frame: u32) {
        self.shared.show(frame, Some(page));
        self.shared.enter(page, frame);
        let blank = self.work[slot as usize].kind == JobKind::Install;
        self.write(slot, Update { blank, ..Update::install(page, frame) });
    }

    /// Advance the jobs that lanes no longer block. Call after lanes may have made progress, and after `accept`.
    pub fn poll(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|slot| {
            let work = &self.work[*slot as usize];
            let passed = self.shared.passed((work.before, work.after), *slot);
            if passed {
                self.advance(*slot);
            }
            !passed
        });
        self.waiting = waiting;
        self.begin_moves();
    }

    /// Begin waiting Moves if no lane is in a step, as many as the log has room for.
    fn begin_moves(&mut self) {
        if self.moves.is_empty() || (self.moving == 0 && !self.shared.close_gate()) {
            return;
        }
        let mut begun = 0;
        while let Some(&slot) = self.moves.get(begun)
            && self.claim(self.work[slot as usize].plan.updates)
        {
            let work = &mut self.work[slot as usize];
            (work.state, work.promised) = (State::Ready, work.plan.updates);
            self.promised += u64::from(work.promised);
            self.ready.push_back(slot);
            self.moving += 1;
            begun += 1;
        }
        self.moves.drain(..begun);
        self.shared.set_moves(self.moves.len());
        if self.moving == 0 {
            self.shared.open_gate();
        }
    }

    /// Cancel all Moves at the end of the session, when nothing is copied any more. Their pages stay where they are, and lanes
    /// may begin.
    pub fn give_up_moves(&mut self) {
        for slot in 0..self.work.len() as u32 {
            let work = &self.work[slot as usize];
            if work.kind == JobKind::Move && work.state != State::Idle {
                self.ready.retain(|s| *s != slot);
                self.finish(slot, Status::Canceled, None);
            }
        }
    }

    /// Continue a job when no lane reads its frame any more.
    fn advance(&mut self, slot: u32) {
        let work = self.work[slot as usize];
        match (work.kind, work.plan.page) {
            (JobKind::Install, Some(page)) => {
                self.install(slot, page, work.job.frame);
                self.finish(slot, Status::Ok, None);
            }
            // Work that lanes have enqueued may still read the host frame. So the eviction is queued behind that work, like a
            // copy.
            (JobKind::Evict, _) if self.shared.geometry().is_mapped_frame(work.job.frame) => {
                self.work[slot as usize].state = State::Ready;
                self.ready.push_back(slot);
            }
            (JobKind::Drop | JobKind::Evict, _) => self.finish(slot, Status::Ok, None),
            (JobKind::Move, _) => {
                self.moves.push(slot);
                self.shared.set_moves(self.moves.len());
            }
            _ => {
                self.work[slot as usize].state = State::Ready;
                self.ready.push_back(slot);
            }
        }
    }

    /// Return a copy to begin now.
    pub fn next_copy(&mut self) -> Option<CopyOp> {
        let slot = self.ready.pop_front()?;
        self.work[slot as usize].state = State::Copying;
        let work = self.work[slot as usize];
        let mapped = self.shared.geometry().is_mapped_frame(work.job.frame);
        let frame = if mapped { Place::MappedFrame(work.job.frame) } else { Place::Frame(work.job.frame) };
        let host = Place::Host { slab: work.job.slab, slot: work.job.slot };
        let (from, to) = match work.kind {
            JobKind::CopyOut => (frame, host),
            JobKind::Copy | JobKind::Move => (Place::Frame(work.job.src_frame), frame),
            JobKind::Evict => (Place::Nothing, frame),
            JobKind::Gather => (Place::Engine(work.job.src_frame), host),
            JobKind::Scatter => (host, Place::Engine(work.job.src_frame)),
            _ => (host, frame),
        };
        let early = mutants::on(Mutant::InstallBeforeCopyDone) && work.kind != JobKind::Move;
        if let Some(page) = work.plan.page.filter(|_| early) {
            self.install(slot, page, work.job.frame);
        }
        let token = u64::from(slot) | u64::from(work.generation) << 32;
        let (plane, sampled) = (work.job.plane, work.job.flags & SAMPLED != 0);
        let bytes = if from == Place::Nothing { 0 } else { self.shared.geometry().page_bytes(plane) };
        if work.kind == JobKind::Gather && !sampled && mutants::on(Mutant::GatherEndsEarly) {
            self.finish(slot, Status::Ok, Some(Copied { bytes: bytes.into(), digest: 0 }));
        }
        Some(CopyOp { token, from, to, bytes, plane, sampled })
    }

    /// Record that a copy ended or failed; unknown copies are ignored. Loaded bytes are installed only if the copy is complete
    /// and, for a page in the integrity sample, the bytes equal the stored ones.
    pub fn copied(&mut self, op: &CopyOp, result: Result<Copied, Status>) {
        let (slot, generation) = (op.token as u32, (op.token >> 32) as u32);
        let Some(work) = self.work.get(slot as usize).copied() else { return };
        if work.state != State::Copying || work.generation != generation {
            return;
        }
        let status = match result {
            Ok(copied) if copied.bytes != u64::from(op.bytes) && !mutants::on(Mutant::ShortCopyIsOk) => Status::Io,
            Ok(copied) if is_corrupt(&work, copied.digest) => Status::Corrupt,
            Ok(_) => Status::Ok,
            Err(_) => Status::Io,
        };
        if work.kind == JobKind::Move {
            let status = if status == Status::Ok { self.moved(slot) } else { status };
            return self.finish(slot, status, result.ok());
        }
        match work.plan.page {
            Some(page) if status == Status::Ok && self.shared.master_frame(page).is_none() => {
                self.install(slot, page, work.job.frame);
            }
            Some(page) if status != Status::Ok => self.shared.clear_pending(page),
            _ => {}
        }
        self.finish(slot, status, result.ok());
    }

    /// Install a moved page after its copy is complete, unless the page was pinned meanwhile.
    fn moved(&mut self, slot: u32) -> Status {
        let work = self.work[slot as usize];
        let Some(page) = work.plan.page else { return Status::Invalid };
        self.shared.leave(page);
        fence(Ordering::SeqCst); // rule 8
        if self.pinned(page) {
            self.shared.enter(page, work.job.src_frame);
            return Status::Busy;
        }
        self.shared.show(work.job.src_frame, None);
        self.install(slot, page, work.job.frame);
        Status::Ok
    }

    fn finish(&mut self, slot: u32, status: Status, copied: Option<Copied>) {
        let work = self.work[slot as usize];
        self.work[slot as usize].state = State::Idle;
        if work.kind == JobKind::Move {
            self.end_move(slot, work.state);
        }
        if let Some(frame) = work.plan.writes {
            self.uses[frame as usize] = 0;
        }
        if let Some(frame) = work.plan.reads {
            self.uses[frame as usize] -= 1;
        }
        self.promised -= u64::from(work.promised);
        self.ids.remove(&work.job.id);
        self.free.push(slot);
        let mut done = JobDone { bytes: copied.map_or(0, |c| c.bytes), ..nothing(work.job.id, status) };
        let landed = copied.filter(|_| work.job.flags & SAMPLED != 0 && status != Status::Io);
        (done.flags, done.digest) = landed.map_or((0, 0), |c| (SAMPLED, c.digest));
        let in_place = work.kind == JobKind::CopyIn && self.shared.geometry().is_mapped_frame(work.job.frame);
        self.ended.push_back((Ended { kind: Some(work.kind), done, in_place }, work.taken_ns));
    }

    /// Account for the end of a Move. The last one opens the gate.
    fn end_move(&mut self, slot: u32, state: State) {
        if state == State::Waiting {
            self.moves.retain(|s| *s != slot);
            return self.shared.set_moves(self.moves.len());
        }
        self.moving -= 1;
        if self.moving == 0 {
            self.shared.open_gate();
        }
    }

    /// Stop a job before its copy begins, and put its victim back (rule 9). Return the status of the cancel job.
    fn cancel(&mut self, id: u32) -> Status {
        let Some(slot) = self.ids.get(&id).copied() else { return Status::Busy };
        let work = self.work[slot as usize];
        let copies = !matches!(work.kind, JobKind::Drop | JobKind::Evict);
        let begun = !matches!(work.state, State::Waiting | State::Ready);
        if begun && copies && mutants::on(Mutant::CancelFreesAtOnce) {
            self.work[slot as usize].promised = 0;
            self.promised -= u64::from(work.promised);
            self.forget_pending(&work);
            self.finish(slot, Status::Canceled, None);
            return Status::Ok;
        }
        // A victim that is already being loaded into another frame cannot be put back, so the cancel is too late as well.
        let elsewhere = |v| self.shared.master_frame(v).is_some() || self.shared.master_pending(v);
        if begun || !copies || work.plan.victim.is_some_and(elsewhere) {
            return Status::Busy;
        }
        self.waiting.retain(|s| *s != slot);
        self.ready.retain(|s| *s != slot);
        self.forget_pending(&work);
        if let Some(victim) = work.plan.victim.filter(|_| !mutants::on(Mutant::CancelLosesVictim)) {
            self.install(slot, victim, work.job.frame);
        }
        self.finish(slot, Status::Canceled, None);
        Status::Ok
    }

    /// Clear the pending mark of a job's page. The page of a Move has none: it stays installed in its old frame.
    fn forget_pending(&self, work: &Work) {
        if let Some(page) = work.plan.page.filter(|_| work.kind != JobKind::Move) {
            self.shared.clear_pending(page);
        }
    }

    /// Install a page in a frame that already holds its bytes, as declared by a reattached session.
    ///
    /// # Errors
    /// `Invalid`: no such page or frame, or one of them is in use. `Again`: the log is full.
    pub fn adopt(&mut self, block: u32, plane: u16, frame: u32) -> Result<(), Status> {
        let page = self.shared.geometry().page_in(block, plane, frame).ok_or(Status::Invalid)?;
        let known = self.shared.master_frame(page).is_some() || self.shared.master_pending(page);
        if known || self.shared.shown(frame).is_some() || self.uses[frame as usize] != 0 {
            return Err(Status::Invalid);
        }
        if !self.claim(1) {
            return Err(Status::Again);
        }
        self.shared.show(frame, Some(page));
        self.shared.enter(page, frame);
        self.shared.log.append(self.end, Update::install(page, frame));
        self.end += 1;
        Ok(())
    }

    /// Return a job that ended, to be reported to the daemon.
    pub fn next_ended(&mut self, now_ns: u64) -> Option<Ended> {
        let (mut ended, taken_ns) = self.ended.pop_front()?;
        ended.done.elapsed_ns = now_ns.saturating_sub(taken_ns);
        Some(ended)
    }
}
