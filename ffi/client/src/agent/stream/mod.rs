//! Lanes whose work runs on a stream of a device: marks, the table's copy on the device, boundaries that the stream waits for.
//!
//! [`LaneStream`] is one lane's side of it: its table at a fixed address, brought up to date by the boundary kernel on the lane's
//! own stream, so that what was enqueued before a boundary reads the old entries and what is enqueued after it the new ones.
//! [`Shadow`] is what the protocol tells of the table's changes (rule 11), [`Sketches`] what is kept there of pages' keys. Called by `crate::client`'s lanes and by the copy
//! thread that completes their boundaries; knows the protocol's rules, not who asks for pages.

pub(crate) mod ring;
mod shadow;
mod sketches;

pub(crate) use shadow::Shadow;
pub(crate) use sketches::{Answer, Asked, Sketches, check};

use crate::{
    memory::cuda::{Gate, Marks, status_of},
    process,
};
use kvtide_kernels::{Buffer, Device, Error, Result, Stream, WaitWord, launch::Boundary};
use kvtide_wire::status::Status;
use ring::{Later, UpdateRing};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Least slots of a lane's ring of updates, 8 bytes each: four laps of the log.
const SLOTS_MIN: u32 = 1 << 16;
/// Boundaries of a lane that its stream waits for at once. Less than half of a lane's points (see `memory::cuda`).
pub(crate) const WAITS_MAX: usize = 24;

/// A boundary in the stream that waits for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// Behind all that was enqueued before it.
    point: usize,
    later: Later,
    target: u64,
}

/// One lane on its stream.
pub(crate) struct LaneStream {
    lane: usize,
    owner: u32,
    device: Arc<Device>,
    /// Those of all lanes.
    marks: Arc<[Marks]>,
    gate: Arc<Gate>,
    /// `None`: streams of this device cannot wait for words.
    word: Option<WaitWord>,
    /// Before the buffers: its ring waits for what is enqueued on them.
    side: Mutex<Side>,
    table: Arc<Buffer>,
    entries: u32,
    status: Buffer,
}

/// What changes. Locked by the lane's owner and by who completes its boundaries: never at once for long.
struct Side {
    stream: Option<Arc<Stream>>,
    ring: UpdateRing,
    /// While a boundary is completed that the stream waits for: its point.
    deferred: Option<usize>,
    /// That boundary shows a page that no copy has written.
    follows: bool,
    /// Boundaries that the stream waits for, and whether one of them could not be enqueued whole: nobody will complete it.
    waits: usize,
    torn: bool,
    /// The device's table lacks updates: it is to be written anew.
    stale: bool,
    /// The device's status word may be set.
    marked: bool,
    failed: Option<Status>,
}

impl LaneStream {
    /// The side of lane `lane`, with an empty table of `entries`.
    pub fn new(
        device: &Arc<Device>,
        lane: usize,
        (marks, gate): (&Arc<[Marks]>, &Arc<Gate>),
        entries: u32,
        slots: u32,
    ) -> Result<LaneStream> {
        let kernel = Arc::new(Boundary::new(device)?);
        let table = Arc::new(Buffer::new(device, entries as usize * size_of::<u32>())?);
        let status = Buffer::new(device, size_of::<u32>())?;
        let slots = slots.max(SLOTS_MIN).next_power_of_two();
        let ring = UpdateRing::new(device, &kernel, &table, entries, status.address(), slots)?;
        let word = if device.works()?.stream_waits.works() { Some(WaitWord::new(device)?) } else { None };
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
                stale: true,
                marked: true,
                failed: None,
            }),
        })
    }

    fn side(&self) -> MutexGuard<'_, Side> {
        self.side.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the process that made it: a forked child has no device.
    fn is_ours(&self) -> bool {
        self.owner == process::id()
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Address of the table.
    pub fn table(&self) -> u64 {
        self.table.address()
    }

    /// Entries of the table.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Address of the status word: 0, or the status code of the step's first boundary that failed while the stream waited for it.
    pub fn status_word(&self) -> u64 {
        self.status.address()
    }

    /// The stream that the lane is bound to.
    pub fn stream(&self) -> Option<Arc<Stream>> {
        self.side().stream.clone()
    }

    /// Whether the lane's stream can wait for words: the device's streams can, and no other lane is on one. Streams share the
    /// hardware's queues: the copies that this lane waits for might be behind the mark of another lane, whose kernels stand behind
    /// this one's wait.
    pub fn can_wait(&self) -> bool {
        let others = self.marks.iter().enumerate().filter(|(lane, _)| *lane != self.lane);
        self.word.is_some() && others.into_iter().all(|(_, marks)| !marks.is_bound())
    }

    /// Binds the lane to a stream, behind what it has on the one before. Between steps.
    pub fn bind(&self, stream: &Arc<Stream>) -> Result<()> {
        self.marks[self.lane].bind(stream)?;
        self.side().stream = Some(Arc::clone(stream));
        Ok(())
    }

    /// The lane is on no stream any more: what it has enqueued there stays behind its mark.
    pub fn unbind(&self) {
        self.side().stream = None;
        self.marks[self.lane].unbind();
    }

    /// Prepares a step: no failure is known of it. True: the device's table is empty now, and all entries are to be told again.
    pub fn begin(&self) -> Result<bool> {
        let mut side = self.side();
        let Some(stream) = side.stream.clone() else { return Ok(false) };
        side.failed = None;
        if !side.marked && !side.stale {
            return Ok(false);
        }
        // SAFETY: both live until the ring has seen the event that follows, and only kernels of this stream touch them.
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

    /// Enqueues what the protocol has told since the last time: before anything that is to read the new table.
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

    /// Why the lane's side of the device failed, if it did, in this step.
    pub fn failed(&self) -> Option<Status> {
        self.side().failed
    }

    /// Has the stream wait for a boundary that is completed later; `None`: it waits for as many as it can.
    pub fn wait(&self) -> Result<Option<Wait>> {
        let mut side = self.side();
        let (Some(stream), Some(word)) = (side.stream.clone(), &self.word) else {
            return Err(Error::Unsupported {
                what: "a boundary that the stream waits for".into(),
                needs: "a bound lane".into(),
            });
        };
        if side.waits >= WAITS_MAX || !side.ring.has_flight()? {
            return Ok(None);
        }
        let point = self.marks[self.lane].point()?;
        let target = word.arm()?;
        self.gate.shut();
        let enqueued = stream.wait_word(word, target).and_then(|()| side.ring.launch_later(&stream));
        match enqueued {
            Ok(later) => {
                side.waits += 1;
                Ok(Some(Wait { point, later, target }))
            }
            Err(error) => {
                side.fail(&error);
                side.torn = true;
                self.gate.open();
                self.let_go(&mut side);
                Err(error)
            }
        }
    }

    /// Lets the stream go on from a boundary that could not be enqueued whole, once those before it are complete.
    fn let_go(&self, side: &mut Side) {
        if side.torn && side.waits == 0 {
            side.torn = false;
            if let Some(word) = &self.word {
                word.release_all();
            }
        }
    }

    /// What the protocol does from now on belongs to this boundary, until [`LaneStream::complete`].
    pub fn defer(&self, wait: &Wait) {
        self.side().deferred = Some(wait.point);
    }

    /// Whether nothing is left that the boundary must wait for on the device itself: work of other lanes that may read frames
    /// in which it shows blank pages.
    pub fn may_complete(&self) -> Result<bool> {
        if !self.side().follows {
            return Ok(true);
        }
        let mut others = self.marks.iter().enumerate().filter(|(lane, _)| *lane != self.lane);
        others.try_fold(true, |all, (_, marks)| Ok(all && marks.reached()?))
    }

    /// Completes a boundary that the stream waits for: its updates, or why there are none to be relied on; then lets the stream go.
    pub fn complete(&self, wait: &Wait, result: std::result::Result<(), Status>) {
        let mut side = self.side();
        let result = result.and(side.failed.map_or(Ok(()), Err));
        if let Err(status) = result {
            side.failed = side.failed.or(Some(status));
            side.marked = true;
        }
        let code = side.failed.map_or(0, |status| status.code().unsigned_abs());
        side.ring.complete(wait.later, code);
        side.deferred = None;
        side.follows = false;
        side.waits -= 1;
        if let Some(word) = &self.word {
            word.release(wait.target);
        }
        self.gate.open();
        self.let_go(&mut side);
    }
}

impl Side {
    fn fail(&mut self, error: &Error) {
        self.failed = self.failed.or(Some(status_of(error)));
        self.stale = true;
    }
}

impl Drop for LaneStream {
    /// A stream never waits for a lane that is gone.
    fn drop(&mut self) {
        // A forked child does not have the word.
        if let Some(word) = self.word.as_ref().filter(|_| self.is_ours()) {
            word.release_all();
        }
    }
}

impl std::fmt::Debug for LaneStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LaneStream({} of {} entries at {:#x})", self.lane, self.entries, self.table.address())
    }
}
