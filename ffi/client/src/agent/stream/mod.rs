//! Lanes with work on a device stream: marks, the table's copy on the device, boundaries that the stream waits for.
//!
//! [`LaneStream`] is the device side of one lane. Its table has a fixed address. The boundary kernel updates it on the lane's
//! own stream. So work that was enqueued before a boundary reads the old entries, and work enqueued after it the new ones.
//! Gates are boundaries that a captured graph may contain (see `gates`). [`Shadow`] receives the table's changes from the
//! protocol (rule 11). [`Sketches`] are the digests of keys that the device keeps. Called by `crate::client`'s lanes and by the
//! copy thread, which completes their boundaries. Depends on the protocol's rules, not on the requests for pages.

mod gates;
pub(crate) mod ring;
mod shadow;
mod sketches;
mod watchdog;

pub(crate) use shadow::Shadow;
pub(crate) use sketches::{Answer, Asked, Sketches, check};

use crate::{
    memory::cuda::{Gate, Marks, status_of},
    process,
};
use gates::{Gates, SLOTS};
use kvtide_kernels::{Buffer, Device, Error, Result, Stream, WaitWord, launch::Boundary};
use kvtide_wire::status::Status;
use ring::{Later, UpdateRing};
use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use watchdog::{Target, Watchdog};

/// Minimum number of slots of a lane's ring of updates, 8 bytes each: four laps of the log.
const SLOTS_MIN: u32 = 1 << 16;
/// Maximum number of boundaries of a lane that its stream waits for at once. Less than half of a lane's points (see
/// `memory::cuda`).
pub(crate) const WAITS_MAX: usize = 24;

/// A boundary that the stream waits for and that the host completes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// Mark behind everything that was enqueued before the boundary.
    point: usize,
    later: Later,
    target: u64,
}

/// One lane on its stream.
pub(crate) struct LaneStream {
    lane: usize,
    owner: u32,
    device: Arc<Device>,
    /// The marks of all lanes.
    marks: Arc<[Marks]>,
    gate: Arc<Gate>,
    /// `None`: streams of this device cannot wait for words.
    word: Option<Watchdog>,
    /// Declared before the buffers, so that it is dropped first: its ring waits for the work that is enqueued on them.
    side: Mutex<Side>,
    table: Arc<Buffer>,
    entries: u32,
    status: Buffer,
}

/// Mutable state. Locked by the lane's owner and by the thread that completes its boundaries; neither holds the lock for long.
struct Side {
    stream: Option<Arc<Stream>>,
    ring: UpdateRing,
    /// While a boundary is completed that the stream waits for: its point.
    deferred: Option<usize>,
    /// That boundary shows a page that no copy has written.
    follows: bool,
    /// Number of boundaries that the stream waits for. `torn`: one of them was only partly enqueued and will never be
    /// completed.
    waits: usize,
    torn: bool,
    /// The open gated step.
    gated: Option<Gated>,
    /// Number of gated steps so far, and the flight behind the end of each of the last [`SLOTS`]; `None`: it could not be enqueued.
    steps: u64,
    ends: VecDeque<Option<u64>>,
    /// The device's table lacks updates and must be rewritten.
    stale: bool,
    /// The device's status word may be set.
    marked: bool,
    failed: Option<Status>,
}

/// A gated step.
#[derive(Clone, Copy)]
struct Gated {
    step: u64,
    /// Index of its first update.
    first: u32,
    /// Not all planes are complete: the stream may wait.
    pending: bool,
}

impl LaneStream {
    /// Create the device side of lane `lane`, with an empty table of `entries` entries, for `planes` planes, and a ring of at
    /// least `slots` updates. `timeout` is the session's.
    pub fn new(
        device: &Arc<Device>,
        lane: usize,
        (marks, gate): (&Arc<[Marks]>, &Arc<Gate>),
        (entries, planes, slots): (u32, u32, u32),
        timeout: Duration,
    ) -> Result<LaneStream> {
        let kernel = Arc::new(Boundary::new(device)?);
        let table = Arc::new(Buffer::new(device, entries as usize * size_of::<u32>())?);
        let status = Buffer::new(device, size_of::<u32>())?;
        let slots = slots.max(SLOTS_MIN).next_power_of_two();
        let mut ring = UpdateRing::new(device, &kernel, &table, entries, status.address(), slots)?;
        let works = device.works()?;
        let waits = works.stream_waits.works() && works.copies_beside_waits.works();
        let start = |word| {
            let gates = Arc::new(Gates::new(device, planes)?);
            ring.keep(&gates);
            Watchdog::start(word, gates, timeout)
                .map_err(|source| Error::System { doing: "start the watchdog of a lane".into(), source })
        };
        let word = if waits { Some(WaitWord::new(device).and_then(start)?) } else { None };
        Ok(LaneStream {
            lane,
            owner: process::id(),
            device: Arc::clone(device),
            marks: Arc::clone(marks),
            gate: Arc::clone(gate),
            word,
            table,
            entries,
            status,
            side: Mutex::new(Side {
                stream: None,
                ring,
                deferred: None,
                follows: false,
                waits: 0,
                torn: false,
                gated: None,
                steps: 0,
                ends: VecDeque::with_capacity(SLOTS as usize),
                stale: true,
                marked: true,
                failed: None,
            }),
        })
    }

    fn side(&self) -> MutexGuard<'_, Side> {
        self.side.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Report whether this process created it: a forked child has no device.
    fn is_ours(&self) -> bool {
        self.owner == process::id()
    }

    /// Return the device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Return the address of the table.
    pub fn table(&self) -> u64 {
        self.table.address()
    }

    /// Return the number of entries of the table.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Return the address of the status word: 0, or the status code of the step's first boundary that failed while the stream
    /// waited for it.
    pub fn status_word(&self) -> u64 {
        self.status.address()
    }

    /// Return the stream that the lane is bound to.
    pub fn stream(&self) -> Option<Arc<Stream>> {
        self.side().stream.clone()
    }

    /// Report whether the lane's stream can wait for words. The device must support it, and no other lane may be on a stream.
    /// Streams share the hardware's queues. So the copies that this lane waits for could be queued behind another lane's mark,
    /// and that lane's kernels behind this lane's wait.
    pub fn can_wait(&self) -> bool {
        let others = self.marks.iter().enumerate().filter(|(lane, _)| *lane != self.lane);
        self.word.is_some() && others.into_iter().all(|(_, marks)| !marks.is_bound())
    }

    /// Return the lane's stream and its watchdog. The error names the operation `what`, which needs them.
    fn waiting(&self, side: &Side, what: &'static str) -> Result<(Arc<Stream>, &Watchdog)> {
        let needs = "the lane must be bound to a stream of a device whose streams can wait";
        let found = side.stream.clone().zip(self.word.as_ref());
        found.ok_or_else(|| Error::Unsupported { what: what.into(), needs: needs.into() })
    }

    /// Bind the lane to a stream, after its work on the previous one. Only between steps.
    pub fn bind(&self, stream: &Arc<Stream>) -> Result<()> {
        self.marks[self.lane].bind(stream)?;
        self.side().stream = Some(Arc::clone(stream));
        Ok(())
    }

    /// Unbind the lane from its stream. Work that it enqueued there stays behind its mark.
    pub fn unbind(&self) {
        self.side().stream = None;
        self.marks[self.lane].unbind();
    }

    /// Prepare a step: clear an earlier failure. Return true if the device's table is now empty, so that all entries must be
    /// reported again.
    pub fn begin(&self) -> Result<bool> {
        let mut side = self.side();
        let Some(stream) = side.stream.clone() else { return Ok(false) };
        side.failed = None;
        self.word.as_ref().inspect(|word| word.begin());
        if !side.marked && !side.stale {
            return Ok(false);
        }
        // SAFETY: both live until the ring has seen the event that follows, and only kernels of this stream access them.
        unsafe {
            stream.fill(self.status.address(), 0, self.status.bytes())?;
            if side.stale {
                stream.fill(self.table.address(), 0, self.table.bytes())?;
            }
        }
        side.ring.fence(&stream)?;
        side.marked = false;
        Ok(std::mem::take(&mut side.stale))
    }

    /// Refuse a stream that is being captured into a graph: steps and boundaries stay outside of graphs.
    pub fn outside_capture(&self) -> Result<()> {
        self.side().stream.as_ref().map_or(Ok(()), |stream| stream.outside_capture())
    }

    /// Enqueue the updates that the protocol reported since the last flush. Call it before enqueueing work that reads the new
    /// table.
    pub fn flush(&self) -> std::result::Result<(), Status> {
        let mut side = self.side();
        let Side { stream, ring, .. } = &mut *side;
        let flushed = match stream {
            Some(stream) => ring.flush(stream),
            None => Ok(()),
        };
        if let Err(error) = flushed {
            side.fail(&error);
        }
        side.failed.map_or(Ok(()), Err)
    }

    /// Return why the device side of the lane failed in this step, if it did.
    pub fn failed(&self) -> Option<Status> {
        let late = self.word.as_ref().is_some_and(|word| word.is_late());
        self.side().failed.or(late.then_some(Status::TimedOut))
    }

    /// Make the stream wait for a boundary that is completed later. Return `None` if the stream already waits for the maximum
    /// number.
    pub fn wait(&self) -> Result<Option<Wait>> {
        let mut side = self.side();
        let (stream, word) = self.waiting(&side, "a boundary completed later")?;
        if side.waits >= WAITS_MAX || !side.ring.has_flight()? {
            return Ok(None);
        }
        let point = self.marks[self.lane].point()?;
        let target = word.word().arm()?;
        self.gate.shut();
        word.add(Target::Word(target));
        let enqueued = stream.wait_word(word.word(), target).and_then(|()| side.ring.launch_later(&stream));
        match enqueued {
            Ok(later) => {
                side.waits += 1;
                Ok(Some(Wait { point, later, target }))
            }
            Err(error) => {
                word.cancel(Target::Word(target));
                side.fail(&error);
                side.torn = true;
                self.gate.open();
                self.let_go(&mut side);
                Err(error)
            }
        }
    }

    /// Release the stream from a boundary that was only partly enqueued, once the boundaries before it are complete.
    fn let_go(&self, side: &mut Side) {
        if side.torn && side.waits == 0 {
            side.torn = false;
            if let Some(word) = &self.word {
                word.word().release_all();
            }
        }
    }

    /// Assign the protocol's next updates to this boundary, until [`LaneStream::complete`].
    pub fn defer(&self, wait: &Wait) {
        self.side().deferred = Some(wait.point);
    }

    /// Report whether the boundary can be completed. If it shows pages without copied bytes, other lanes' work that may read
    /// their frames must have finished on the device.
    pub fn may_complete(&self) -> Result<bool> {
        if !self.side().follows {
            return Ok(true);
        }
        let mut others = self.marks.iter().enumerate().filter(|(lane, _)| *lane != self.lane);
        others.try_fold(true, |all, (_, marks)| Ok(all && marks.reached()?))
    }

    /// Complete a boundary that the stream waits for, with its updates or with the error that replaces them. Then release the
    /// stream.
    pub fn complete(&self, wait: &Wait, result: std::result::Result<(), Status>) {
        let mut side = self.side();
        let result = result.and(side.failed.map_or(Ok(()), Err));
        if let Err(status) = result {
            side.failed = side.failed.or(Some(status));
            side.marked = true;
        }
        let code = side.failed.map_or(0, |status| status.code().unsigned_abs());
        let ring = &mut side.ring;
        let ended =
            self.word.as_ref().is_some_and(|word| word.complete(wait.target, || ring.complete(wait.later, code)));
        if !ended {
            // The watchdog was first: the stream has gone on without these updates, with the status of a timeout.
            ring.skip(wait.later);
            side.failed = side.failed.or(Some(Status::TimedOut));
            side.marked = true;
            side.stale = true;
        }
        side.deferred = None;
        side.follows = false;
        side.waits -= 1;
        self.gate.open();
        self.let_go(&mut side);
    }

    /// Begin a gated step: the stream, and graphs launched on it, wait at their gates until [`LaneStream::complete_gates`]. All
    /// updates and marks of the step, until then, belong to it. The mark is a point before the step's work (protocol rule 11).
    pub fn open_gates(&self) -> Result<()> {
        let mut side = self.side();
        let (stream, word) = self.waiting(&side, "gates")?;
        let step = side.steps + 1;
        if side.ends.len() as u64 == SLOTS {
            if let Some(flight) = side.ends[0] {
                side.ring.landed(flight)?;
            } else {
                side.ring.drain(&stream)?;
            }
            side.ends.pop_front();
        }
        let point = self.marks[self.lane].point()?;
        let opened = side.ring.open_gates(&stream, word.gates(), step);
        let first = opened.inspect_err(|error| side.fail(error))?;
        word.gates().prepare(step, first, Status::TimedOut.code().unsigned_abs());
        (side.steps, side.deferred) = (step, Some(point));
        side.gated = Some(Gated { step, first, pending: true });
        self.gate.shut();
        word.add(Target::Gates(step));
        Ok(())
    }

    /// Enqueue the gate of a plane, or capture it. Outside of a gated step it does nothing.
    pub fn gate(&self, plane: u16) -> Result<()> {
        let side = self.side();
        let (stream, word) = self.waiting(&side, "gates")?;
        if stream.is_capturing()? {
            word.gates().capture();
        }
        side.ring.gate(&stream, word.gates(), plane.into())
    }

    /// Complete planes of the gated step with the updates so far, or complete all planes that are left with an error. Return true if
    /// the stream waits for no plane any more.
    pub fn complete_gates(&self, planes: Range<u16>, result: std::result::Result<(), Status>) -> bool {
        let mut side = self.side();
        let (Some(gated), Some(word)) = (side.gated.filter(|gated| gated.pending), &self.word) else { return true };
        let gates = word.gates();
        if let Err(status) = result.and(side.failed.map_or(Ok(()), Err)) {
            side.failed = side.failed.or(Some(status));
            side.marked = true;
        }
        let code = side.failed.map_or(0, |status| status.code().unsigned_abs());
        let end = if code == 0 { u32::from(planes.end) } else { gates.planes() };
        let last = end == gates.planes();
        let updates = side.ring.take();
        let told = word.complete_gates(gated.step, last, || {
            for plane in u32::from(planes.start)..end {
                gates.complete(gated.step, plane, updates, code, last);
            }
        });
        side.follows = false;
        if told && !last {
            return false;
        }
        if !told {
            // The watchdog was first: the stream has gone on without these updates.
            side.failed = side.failed.or(Some(Status::TimedOut));
            (side.marked, side.stale) = (true, true);
        }
        side.deferred = None;
        side.gated = Some(Gated { pending: false, ..gated });
        self.gate.open();
        true
    }

    /// End the gated step, if there is one, behind its work.
    pub fn close_gates(&self) {
        let mut side = self.side();
        let (Some(gated), Some(word)) = (side.gated.take(), &self.word) else { return };
        let Some(stream) = side.stream.clone() else { return };
        let closed = stream
            .outside_capture()
            .and_then(|()| word.gates().close(&stream))
            .and_then(|()| side.ring.end_gates(&stream, gated.first));
        if let Err(error) = &closed {
            side.fail(error);
        }
        side.ends.push_back(closed.ok());
    }
}

impl Side {
    fn fail(&mut self, error: &Error) {
        self.failed = self.failed.or(Some(status_of(error)));
        self.stale = true;
    }
}

impl Drop for LaneStream {
    /// Release the stream, so that it never waits for a dropped lane.
    fn drop(&mut self) {
        let ours = self.is_ours();
        match &mut self.word {
            Some(word) if ours => {
                word.word().release_all();
                let steps = self.side.get_mut().unwrap_or_else(PoisonError::into_inner).steps;
                word.gates().release(steps);
            }
            // A forked child has neither the word nor the thread.
            Some(word) => word.forget(),
            None => {}
        }
    }
}

impl std::fmt::Debug for LaneStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LaneStream({} of {} entries at {:#x})", self.lane, self.entries, self.table.address())
    }
}
