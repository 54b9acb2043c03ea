//! A model of the protocol: a daemon that plans at random, devices that finish at random, lanes that move at random, and the
//! conditions that must hold at every moment.

use kvtide_client::agent::protocol::{
    Copied, CopyOp, Geometry, LaneView, Mover, PageRange, PinId, Place, Shared, geometry::Bounds,
};
use kvtide_types::random::Random;
use kvtide_wire::{
    entry::{Job, JobDone, JobKind, NONE_U16, NONE_U32, SAMPLED},
    geometry::Plane,
    status::Status,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub const PLANES: u16 = 3;
pub const BLOCKS: u32 = 10;
/// Frames of the two classes: planes 0 and 2, plane 1.
pub const FRAMES: [u32; 2] = [8, 5];
const LANES: u16 = 3;
const JOBS: u32 = 6;
const GARBAGE: u64 = u64::MAX;

type Page = (u32, u16);

/// Digest of a frame's bytes. Flipping any of the low 32 bits changes it.
fn digest(bytes: u64) -> u32 {
    bytes as u32
}

struct Pinned {
    pin: PinId,
    /// Pages that were resident when the pin was taken, and their frames: they must stay there.
    kept: Vec<(Page, u32)>,
}

/// A gated step: the device may read the planes before `complete` at any time until its end.
#[derive(Default)]
struct Gated {
    complete: u16,
    /// Expected bytes of each frame that it may read.
    reads: BTreeMap<u32, u64>,
}

pub struct Model {
    random: Random,
    pub shared: Arc<Shared>,
    pub mover: Mover,
    pub lanes: Vec<LaneView>,
    steps: Vec<u64>,
    /// Of each lane.
    gated: Vec<Option<Gated>>,
    /// Bytes of each tier-0 frame, as a tag.
    frames: Vec<u64>,
    host: BTreeMap<u32, u64>,
    /// Bytes of each block of the engine's own memory, as a tag.
    engine: BTreeMap<u32, u64>,
    /// Expected bytes of each such block after a load.
    wanted: BTreeMap<u32, u64>,
    /// Expected bytes of each page that has bytes.
    tags: BTreeMap<Page, u64>,
    host_of: BTreeMap<Page, u32>,
    /// Digests of host frames with a page that was in the integrity sample when it was stored.
    digests: BTreeMap<u32, u32>,
    shows: BTreeMap<u32, Page>,
    flying: BTreeMap<u32, Job>,
    copies: Vec<(CopyOp, u64)>,
    pins: Vec<Pinned>,
    nonsense: BTreeSet<u32>,
    /// Send move jobs. They wait for a long time and fill the slots that other jobs need.
    moves: bool,
    /// Give the engine its own memory. Its copies take the slots of jobs that change the table.
    engine_jobs: bool,
    next: u64,
    ended: u64,
}

pub fn geometry(log_entries: u32) -> Geometry {
    with_frames(&FRAMES, log_entries)
}

pub fn with_frames(frames: &[u32], log_entries: u32) -> Geometry {
    let plane = |page_bytes| Plane::full(page_bytes);
    let bounds = Bounds {
        page_tokens: 4,
        blocks_max: BLOCKS,
        seqs_max: 2,
        seq_blocks_max: BLOCKS,
        lanes: LANES,
        jobs_max: JOBS,
        log_entries,
        pins_max: 3,
    };
    Geometry::new(&[plane(100), plane(200), plane(100)], frames, bounds).expect("geometry")
}

impl Model {
    pub fn new(seed: u64) -> Model {
        // A small log, so that lanes are lapped and the log is sometimes full.
        let shared = Arc::new(Shared::new(geometry(16)).expect("tables"));
        for seq in 0..2 {
            assert!(shared.seqs().create(seq));
            (0..BLOCKS).filter(|block| block % 2 == seq).for_each(|block| assert!(shared.seqs().push(seq, block)));
        }
        Model {
            random: Random::new(seed),
            mover: Mover::new(Arc::clone(&shared)).expect("mover"),
            lanes: (0..LANES).map(|lane| LaneView::new(Arc::clone(&shared), lane).expect("lane")).collect(),
            steps: vec![0; usize::from(LANES)],
            gated: (0..LANES).map(|_| None).collect(),
            frames: vec![GARBAGE; FRAMES.iter().sum::<u32>() as usize],
            host: BTreeMap::new(),
            engine: BTreeMap::new(),
            wanted: BTreeMap::new(),
            tags: BTreeMap::new(),
            host_of: BTreeMap::new(),
            digests: BTreeMap::new(),
            shows: BTreeMap::new(),
            flying: BTreeMap::new(),
            copies: Vec::new(),
            pins: Vec::new(),
            nonsense: BTreeSet::new(),
            moves: seed % 2 == 1,
            engine_jobs: seed % 4 == 2,
            next: 1,
            ended: 0,
            shared,
        }
    }

    pub fn run(&mut self, operations: usize) -> Result<(), String> {
        for operation in 1..=operations {
            self.operation()?;
            self.check()?;
            if operation % 100 == 0 {
                self.drain()?;
            }
        }
        Ok(())
    }

    fn operation(&mut self) -> Result<(), String> {
        if self.engine_jobs && self.random.below(12) == 0 {
            self.send_engine_job();
            return self.take_ends();
        }
        match self.random.below(18) {
            0..=4 => self.send_job(),
            5 => self.send_nonsense(),
            6 | 7 => self.mover.poll(),
            8 => self.start_copy(),
            9 => self.end_copy(),
            10..=14 => self.move_lane(),
            15 => self.pin()?,
            16 => self.write(),
            _ => self.flip(),
        }
        self.take_ends()
    }

    fn busy(&self, frame: u32) -> bool {
        self.flying.values().any(|job| {
            let kind = JobKind::from_code(job.kind);
            let whole = kind == Some(JobKind::Drop) && self.shows.get(&frame).is_some_and(|p| p.0 == job.block);
            let copies = matches!(kind, Some(JobKind::Copy | JobKind::Move));
            kind != Some(JobKind::Drop) && kind != Some(JobKind::Cancel) && job.frame == frame
                || copies && job.src_frame == frame
                || whole
        })
    }

    fn class_frames(plane: u16) -> std::ops::Range<u32> {
        if plane == 1 { FRAMES[0]..FRAMES[0] + FRAMES[1] } else { 0..FRAMES[0] }
    }

    /// Report whether a page is not in tier 0 and no job will bring it there. A victim that was given up may come back
    /// elsewhere.
    fn absent(&self, page: Page) -> bool {
        let coming = self.flying.values().any(|job| {
            let comes = [JobKind::Install, JobKind::CopyIn, JobKind::Copy, JobKind::CopyInAs].map(|kind| kind as u16);
            comes.contains(&job.kind) && (job.block, job.plane) == page
        });
        let dropping = self.flying.values().any(|job| job.kind == JobKind::Drop as u16 && job.block == page.0);
        let leaving = |frame: &u32| {
            self.flying.values().any(|job| job.frame == *frame && (job.victim_block, job.victim_plane) == page)
        };
        let stays = self.shows.iter().any(|(frame, shown)| *shown == page && !leaving(frame));
        !coming && !dropping && !stays
    }

    fn send_job(&mut self) {
        let page: Page = (self.random.below(u64::from(BLOCKS)) as u32, self.random.below(u64::from(PLANES)) as u16);
        let free: Vec<u32> = Self::class_frames(page.1).filter(|frame| !self.busy(*frame)).collect();
        let Some(frame) = self.random.pick(&free) else { return };
        let victim = self.shows.get(&frame).copied();
        let id = self.next as u32;
        let mut job = Job { id, block: page.0, plane: page.1, frame, victim_block: NONE_U32, ..Job::default() };
        job.use_lane = NONE_U16;
        if let Some((block, plane)) = victim {
            (job.victim_block, job.victim_plane) = (block, plane);
            if self.random.below(2) == 0 {
                job.use_lane = self.random.below(u64::from(LANES)) as u16;
                let lane = &self.lanes[usize::from(job.use_lane)];
                job.use_pos = lane.position() + self.random.below(4);
            }
        }
        let kind = match self.random.below(10 + u64::from(self.moves)) {
            0 | 1 if self.absent(page) && !self.tags.contains_key(&page) => JobKind::Install,
            2..=4 if self.absent(page) && self.host_of.contains_key(&page) => {
                job.slot = self.host_of[&page];
                if let Some(digest) = self.digests.get(&job.slot) {
                    (job.flags, job.digest) = (SAMPLED, *digest);
                }
                JobKind::CopyIn
            }
            5 if victim.is_some() && !self.host_of.contains_key(&self.shows[&frame]) => {
                (job.block, job.plane) = self.shows[&frame];
                job.slot = id;
                job.victim_block = NONE_U32;
                job.flags = SAMPLED * self.random.below(2) as u32;
                JobKind::CopyOut
            }
            6 if self.absent(page) && !self.tags.contains_key(&page) => {
                let class = Self::class_frames(page.1);
                let sources: Vec<u32> =
                    class.filter(|f| *f != frame && !self.busy(*f) && self.shows.contains_key(f)).collect();
                let Some(source) = self.random.pick(&sources) else { return };
                job.src_frame = source;
                JobKind::Copy
            }
            7 if victim.is_some() => {
                (job.block, job.plane) = self.shows[&frame];
                job.victim_block = NONE_U32;
                JobKind::Evict
            }
            8 => {
                let frames = self.shows.iter().filter(|(_, shown)| shown.0 == page.0);
                let coming = self.flying.values().any(|job| job.block == page.0);
                if coming || frames.into_iter().any(|(frame, _)| self.busy(*frame)) {
                    return;
                }
                job.victim_block = NONE_U32;
                JobKind::Drop
            }
            9 => {
                let ids: Vec<u32> = self.flying.keys().copied().collect();
                let Some(target) = self.random.pick(&ids) else { return };
                job.src_block = target;
                job.victim_block = NONE_U32;
                JobKind::Cancel
            }
            10 if victim.is_none() => {
                let class = Self::class_frames(page.1);
                let sources: Vec<u32> = class.filter(|f| !self.busy(*f) && self.shows.contains_key(f)).collect();
                let Some(source) = self.random.pick(&sources) else { return };
                (job.block, job.plane) = self.shows[&source];
                job.src_frame = source;
                JobKind::Move
            }
            _ => return,
        };
        job.kind = kind as u16;
        self.offer(job);
    }

    /// Send a copy between a block of the engine's own memory and a host frame: either a stored one, or a new one.
    fn send_engine_job(&mut self) {
        let (id, engine) = (self.next as u32, 1 << 20 | self.next as u32);
        let pages: Vec<(Page, u32)> = self.host_of.iter().map(|(page, slot)| (*page, *slot)).collect();
        let mut job = Job { id, src_frame: engine, frame: NONE_U32, victim_block: NONE_U32, ..Job::default() };
        job.use_lane = NONE_U16;
        match self.random.pick(&pages) {
            Some((page, slot)) if self.random.below(2) == 0 => {
                (job.kind, job.block, job.plane, job.slot) = (JobKind::Scatter as u16, page.0, page.1, slot);
                self.wanted.insert(engine, self.tags[&page]);
                if let Some(digest) = self.digests.get(&slot) {
                    (job.flags, job.digest) = (SAMPLED, *digest);
                }
            }
            _ => {
                self.engine.insert(engine, self.next);
                (job.kind, job.block, job.slot) =
                    (JobKind::Gather as u16, self.random.below(u64::from(BLOCKS)) as u32, id);
                job.flags = SAMPLED * self.random.below(2) as u32;
            }
        }
        self.offer(job);
    }

    fn offer(&mut self, job: Job) {
        if self.mover.accept(&job, 0).is_ok() {
            self.next += 1;
            self.flying.insert(job.id, job);
        }
    }

    /// Send a job that no correct daemon sends. It must be rejected and change nothing.
    fn send_nonsense(&mut self) {
        let id = self.next as u32;
        let mut job = Job { id, victim_block: NONE_U32, use_lane: NONE_U16, ..Job::default() };
        job.kind = JobKind::CopyIn as u16;
        match self.random.below(6 + 2 * u64::from(self.engine_jobs)) {
            6 => (job.kind, job.frame) = (JobKind::Gather as u16, 0), // names a frame
            7 => (job.kind, job.frame, job.plane) = (JobKind::Scatter as u16, NONE_U32, PLANES),
            0 => job.kind = 99,
            1 => job.block = BLOCKS,
            2 => job.plane = PLANES,
            3 => job.frame = FRAMES[0] + FRAMES[1],
            4 => job.frame = FRAMES[0], // not plane 0's class
            _ => job.use_lane = LANES,
        }
        if self.mover.accept(&job, 0).is_ok() {
            self.next += 1;
            self.nonsense.insert(id);
        }
    }

    fn place(&mut self, place: Place) -> &mut u64 {
        match place {
            Place::Frame(frame) => &mut self.frames[frame as usize],
            Place::MappedFrame(_) | Place::Nothing => panic!("the model has no mapped frames"),
            Place::Engine(block) => self.engine.entry(block).or_insert(GARBAGE),
            Place::Host { slot, .. } => self.host.entry(slot).or_insert(GARBAGE),
        }
    }

    /// Flip a bit of a page in host memory. Only pages in the integrity sample are chosen: lanes would see the flip in others.
    fn flip(&mut self) {
        let slots: Vec<u32> = self.digests.keys().copied().collect();
        let Some(slot) = self.random.pick(&slots) else { return };
        let bit = self.random.below(32);
        self.host.entry(slot).and_modify(|bytes| *bytes ^= 1 << bit);
    }

    /// Start a copy. Until it ends, the device may change the destination at any moment.
    fn start_copy(&mut self) {
        if let Some(op) = self.mover.next_copy() {
            let bytes = *self.place(op.from);
            *self.place(op.to) = GARBAGE;
            self.copies.push((op, bytes));
        }
    }

    fn end_copy(&mut self) {
        if self.copies.is_empty() {
            return;
        }
        let at = self.random.below(self.copies.len() as u64) as usize;
        let (op, bytes) = self.copies.swap_remove(at);
        match self.random.below(12) {
            0 => self.mover.copied(&op, Err(Status::Io)),
            1 => self.mover.copied(&op, Ok(Copied { bytes: u64::from(op.bytes) - 1, digest: digest(bytes) })),
            _ => self.land(&op, bytes),
        }
    }

    fn land(&mut self, op: &CopyOp, bytes: u64) {
        *self.place(op.to) = bytes;
        self.mover.copied(op, Ok(Copied { bytes: op.bytes.into(), digest: digest(bytes) }));
    }

    fn move_lane(&mut self) {
        let at = self.random.below(u64::from(LANES)) as usize;
        let lane = &mut self.lanes[at];
        if !lane.active() {
            self.steps[at] += 1;
            if lane.begin(self.steps[at]) && self.random.below(3) == 0 {
                self.gated[at] = Some(Gated::default());
            }
            return;
        }
        match (self.random.below(if self.moves { 3 } else { 6 }), &mut self.gated[at]) {
            (0, gated) => {
                lane.end();
                *gated = None;
            }
            (to, Some(gated)) => {
                match gated.complete {
                    0 => lane.boundary(0),
                    complete => lane.refresh_keeping(|_, plane| plane < complete),
                }
                if to == 1 && gated.complete < PLANES {
                    let pages = self.tags.iter().filter(|((_, plane), _)| *plane == gated.complete);
                    gated.reads.extend(pages.filter_map(|(page, tag)| Some((lane.frame(page.0, page.1)?, *tag))));
                    gated.complete += 1;
                }
            }
            (to, None) => {
                let plane = (lane.position() % u64::from(PLANES)) as u16;
                lane.boundary((plane + u16::from(to == 1)).min(PLANES - 1));
            }
        }
    }

    /// Write an unsealed page from a lane in a step. Such a page was never stored, and no other page is being copied from it.
    fn write(&mut self) {
        let at = self.random.below(u64::from(LANES)) as usize;
        let pages: Vec<Page> = self.tags.keys().copied().filter(|page| self.writable(*page)).collect();
        let Some(page) = self.random.pick(&pages).filter(|_| self.lanes[at].active()) else { return };
        let Some(frame) = self.lanes[at].frame(page.0, page.1) else { return };
        let tag = self.next;
        self.next += 1;
        self.frames[frame as usize] = tag;
        self.tags.insert(page, tag);
        for gated in self.gated.iter_mut().flatten() {
            gated.reads.entry(frame).and_modify(|bytes| *bytes = tag);
        }
    }

    fn writable(&self, page: Page) -> bool {
        let read = |job: &Job| {
            let kind = JobKind::from_code(job.kind);
            let stores = kind == Some(JobKind::CopyOut) && (job.block, job.plane) == page;
            stores || kind == Some(JobKind::Copy) && self.shows.get(&job.src_frame) == Some(&page)
        };
        !self.host_of.contains_key(&page) && !self.flying.values().any(read)
    }

    fn pin(&mut self) -> Result<(), String> {
        if let Some(at) = (self.random.below(2) == 0 && !self.pins.is_empty()).then_some(0) {
            let pinned = self.pins.swap_remove(at);
            let released = self.shared.pins().release(self.shared.seqs(), pinned.pin);
            let again = self.shared.pins().release(self.shared.seqs(), pinned.pin);
            return if released && !again { Ok(()) } else { Err("a pin is released once".into()) };
        }
        let (seq, first) = (self.random.below(2) as u32, self.random.below(4) as u32);
        let range = PageRange { seq, first, count: 1, plane: self.random.below(2) as u16, planes: 2 };
        let Some(pin) = self.shared.pins().pin(self.shared.seqs(), &range) else { return Ok(()) };
        let block = self.shared.seqs().block(seq, first).expect("the sequences are full");
        let planes = range.plane..range.plane + range.planes;
        let kept = planes.map(|plane| (block, plane)).filter_map(|p| Some((p, self.shared.resident(p.0, p.1)?)));
        self.pins.push(Pinned { pin, kept: kept.collect() });
        Ok(())
    }

    fn take_ends(&mut self) -> Result<(), String> {
        while let Some(ended) = self.mover.next_ended(0) {
            self.ended += 1;
            let status = Status::from_code(ended.done.status).ok_or("an unknown status")?;
            if self.nonsense.remove(&ended.done.id) {
                if status != Status::Invalid {
                    return Err(format!("an invalid job ended with {status:?}"));
                }
                continue;
            }
            let job = self.flying.remove(&ended.done.id).ok_or("a job ended twice")?;
            self.settle(job, status, &ended.done)?;
        }
        Ok(())
    }

    /// Apply the end of a job to the plain model.
    fn settle(&mut self, job: Job, status: Status, done: &JobDone) -> Result<(), String> {
        let kind = JobKind::from_code(job.kind).ok_or("kind")?;
        let page = (job.block, job.plane);
        let names_victim = job.victim_block != NONE_U32;
        match (kind, status) {
            (JobKind::Cancel, Status::Ok | Status::Busy) => {}
            (JobKind::CopyOut, Status::Ok) => {
                self.host_of.insert(page, job.slot);
                if done.flags != job.flags {
                    return Err("a store must report its digest if and only if requested".into());
                }
                if done.flags == SAMPLED {
                    self.digests.insert(job.slot, done.digest);
                }
            }
            (JobKind::CopyOut, Status::Io | Status::Canceled) => {}
            (JobKind::Gather, Status::Ok) => {
                let (bytes, stored) = (self.engine[&job.src_frame], self.host[&job.slot]);
                if stored != bytes || (done.flags == SAMPLED) != (job.flags == SAMPLED) {
                    return Err(format!("a gather stored {stored}, not {bytes}"));
                }
                if done.flags == SAMPLED && done.digest != digest(bytes) {
                    return Err("a gather reported a digest that is not that of the engine's bytes".into());
                }
            }
            (JobKind::Scatter, Status::Ok) => {
                let (bytes, want) = (self.engine[&job.src_frame], self.wanted[&job.src_frame]);
                if bytes != want {
                    return Err(format!("a scatter wrote {bytes}, not {want}"));
                }
            }
            (JobKind::Scatter, Status::Corrupt) if job.flags == SAMPLED && done.digest != job.digest => {}
            (JobKind::Gather | JobKind::Scatter, Status::Io | Status::Canceled) => {}
            (JobKind::Evict, Status::Ok) => {
                self.shows.remove(&job.frame);
                self.forget_lost(page);
            }
            (JobKind::Drop, Status::Ok) => {
                self.shows.retain(|_, shown| shown.0 != job.block);
                self.tags.retain(|p, _| p.0 != job.block);
                self.host_of.retain(|p, _| p.0 != job.block);
            }
            (_, Status::Busy | Status::Canceled) | (JobKind::Move, Status::Io) => {}
            (JobKind::Move, Status::Ok) => {
                self.shows.remove(&job.src_frame);
                self.shows.insert(job.frame, page);
            }
            (JobKind::CopyIn, Status::Corrupt) if job.flags == SAMPLED => {
                // The host copy is bad, and it was the only copy.
                self.host_of.remove(&page);
                self.digests.remove(&job.slot);
                self.shows.remove(&job.frame).inspect(|victim| self.forget_lost(*victim));
                self.forget_lost(page);
            }
            (_, Status::Io | Status::Ok) if kind != JobKind::Evict && kind != JobKind::Drop => {
                let victim = self.shows.remove(&job.frame);
                if names_victim != victim.is_some() {
                    return Err("the model and the job disagree about the victim".into());
                }
                victim.inspect(|page| self.forget_lost(*page));
                if status == Status::Ok {
                    self.arrived(kind, &job, page);
                }
            }
            other => return Err(format!("{other:?} is not a valid end of a job that a correct daemon sent: {job:?}")),
        }
        Ok(())
    }

    /// Drop the expected bytes of a page without a host copy: it is lost, and comes back with other content.
    fn forget_lost(&mut self, page: Page) {
        if !self.host_of.contains_key(&page) {
            self.tags.remove(&page);
        }
    }

    fn arrived(&mut self, kind: JobKind, job: &Job, page: Page) {
        self.shows.insert(job.frame, page);
        match kind {
            JobKind::Install => {
                // The engine writes the page before any lane may read it: it is not committed until then.
                self.frames[job.frame as usize] = u64::from(job.id);
                self.tags.insert(page, u64::from(job.id));
            }
            JobKind::Copy => {
                let tag = self.shows.get(&job.src_frame).and_then(|source| self.tags.get(source)).copied();
                self.tags.insert(page, tag.unwrap_or(GARBAGE));
            }
            _ => {}
        }
    }

    /// Check the conditions that must hold at every moment.
    fn check(&self) -> Result<(), String> {
        for lane in self.lanes.iter().filter(|lane| lane.active()) {
            for (page, tag) in &self.tags {
                let Some(frame) = lane.frame(page.0, page.1) else { continue };
                if self.frames[frame as usize] != *tag {
                    return Err(format!(
                        "lane {} reads {page:?} in frame {frame}, which holds something else",
                        lane.lane()
                    ));
                }
            }
        }
        for (lane, gated) in self.gated.iter().enumerate() {
            let mut reads = gated.iter().flat_map(|gated| &gated.reads);
            if let Some((frame, _)) = reads.find(|(frame, bytes)| self.frames[**frame as usize] != **bytes) {
                return Err(format!("frame {frame} was overwritten in a gated step of lane {lane}, which may read it"));
            }
        }
        for pinned in &self.pins {
            let gone = |(page, frame): &&(Page, u32)| self.shared.resident(page.0, page.1) != Some(*frame);
            if let Some((page, frame)) = pinned.kept.iter().find(gone) {
                return Err(format!("{page:?} is pinned and was removed from frame {frame}"));
            }
        }
        Ok(())
    }

    /// Run everything to its end while lanes and devices go on. Then every table must equal the model's.
    fn drain(&mut self) -> Result<(), String> {
        for round in 0..10 * u64::from(JOBS) {
            for ((lane, step), gated) in self.lanes.iter_mut().zip(&mut self.steps).zip(&mut self.gated) {
                // Two things need quiescent lanes: a Move, and a job that takes a page of a gated step.
                if round % 2 == 0 && lane.active() && gated.take().is_none() {
                    lane.boundary(PLANES - 1);
                    continue;
                }
                if lane.active() {
                    lane.end();
                }
                if self.moves && round % 8 == 7 {
                    continue;
                }
                *step += 1;
                lane.begin(*step);
            }
            self.mover.poll();
            while let Some(op) = self.mover.next_copy() {
                let bytes = *self.place(op.from);
                self.copies.push((op, bytes));
            }
            for (op, bytes) in std::mem::take(&mut self.copies) {
                self.land(&op, bytes);
            }
            self.take_ends()?;
            self.check()?;
        }
        if let Some(job) = self.flying.values().next() {
            return Err(format!("a job never ended: {job:?}"));
        }
        let shown: BTreeSet<(u32, Page)> = self.shows.iter().map(|(frame, page)| (*frame, *page)).collect();
        for (lane, step) in self.lanes.iter_mut().zip(&mut self.steps) {
            if !lane.active() {
                *step += 1;
                lane.begin(*step);
            }
            lane.boundary(0);
            let pages = (0..BLOCKS).flat_map(|block| (0..PLANES).map(move |plane| (block, plane)));
            let table: BTreeSet<(u32, Page)> = pages.filter_map(|p| Some((lane.frame(p.0, p.1)?, p))).collect();
            if table != shown {
                return Err(format!("lane {} ends with {table:?}, but the daemon with {shown:?}", lane.lane()));
            }
        }
        Ok(())
    }

    pub fn jobs_ended(&self) -> u64 {
        self.ended
    }
}
