//! Changes of an array on a device, by the boundary kernel: (index, value) pairs in pinned memory, applied in stream order.
//!
//! A slot of the ring is reused once the kernel that read it has ended (an event behind each launch says so). Free-running
//! indices. One user at a time.

use crate::process;
use kvtide_kernels::{
    Buffer, Device, Error, Event, Pinned, Result, Stream,
    launch::Boundary,
    params::{BoundaryApplyParams, BoundaryUpdate, BoundaryWords},
};
use std::{
    collections::VecDeque,
    mem::ManuallyDrop,
    sync::Arc,
    time::{Duration, Instant},
};

/// Launches whose slots are not free yet.
const FLIGHTS_MAX: usize = 64;
/// Bound of the wait for a slot, of which the stream is the only cause: it must come to kernels that are enqueued.
const SLOT_WAIT: Duration = Duration::from_secs(10);

/// A launch: the event behind it, and the index after its updates, once that is known.
struct Flight {
    done: Event,
    end: Option<u32>,
}

/// A boundary whose updates are told later, by words that the kernel reads when the stream comes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Later(u64);

/// The ring, and the array that its updates go to.
pub(crate) struct UpdateRing {
    kernel: Arc<Boundary>,
    array: Arc<Buffer>,
    entries: u32,
    status: u64,
    updates: ManuallyDrop<Pinned>,
    mask: u32,
    /// Told, launched, and ended updates.
    head: u32,
    launched: u32,
    retired: u32,
    flights: VecDeque<Flight>,
    spare: Vec<Event>,
    /// One for each flight.
    words: ManuallyDrop<Pinned>,
    /// Launches so far, and those that have ended: flight `n` has the words at `n % FLIGHTS_MAX`.
    flown: u64,
    landed: u64,
    owner: u32,
}

impl UpdateRing {
    /// A ring of `slots` (a power of two) for an array of `entries` words. `status`: where the kernel notes a failure, or 0.
    pub fn new(
        device: &Arc<Device>,
        kernel: &Arc<Boundary>,
        array: &Arc<Buffer>,
        entries: u32,
        status: u64,
        slots: u32,
    ) -> Result<UpdateRing> {
        Ok(UpdateRing {
            kernel: Arc::clone(kernel),
            array: Arc::clone(array),
            entries,
            status,
            updates: ManuallyDrop::new(Pinned::new(device, slots as usize * size_of::<BoundaryUpdate>())?),
            mask: slots - 1,
            head: 0,
            launched: 0,
            retired: 0,
            flights: VecDeque::with_capacity(FLIGHTS_MAX),
            spare: (0..FLIGHTS_MAX).map(|_| Event::new(device)).collect::<Result<_>>()?,
            words: ManuallyDrop::new(Pinned::new(device, FLIGHTS_MAX * size_of::<BoundaryWords>())?),
            flown: 0,
            landed: 0,
            owner: process::id(),
        })
    }

    /// Whether an update is told that no launch has taken.
    pub fn is_dirty(&self) -> bool {
        self.head != self.launched
    }

    /// Whether one more update finds a slot without waiting.
    pub fn has_room(&mut self) -> Result<bool> {
        if self.head.wrapping_sub(self.retired) > self.mask {
            self.reclaim()?;
        }
        Ok(self.head.wrapping_sub(self.retired) <= self.mask)
    }

    /// Tells an update, into a slot that is free.
    pub fn push(&mut self, page: u32, entry: u32) {
        debug_assert!(self.head.wrapping_sub(self.retired) <= self.mask, "has_room was asked");
        let at = (self.head & self.mask) as usize;
        // SAFETY: `at` is within the ring; the slot's last reader has ended (`retired`), and nobody else writes it.
        unsafe {
            self.updates.as_ptr().cast::<BoundaryUpdate>().add(at).write_volatile(BoundaryUpdate { page, entry })
        };
        self.head = self.head.wrapping_add(1);
    }

    /// Launches what is told. Slots are waited for, if need be: every launch before is enqueued, and none of them waits for a word.
    pub fn flush(&mut self, stream: &Stream) -> Result<()> {
        if !self.is_dirty() {
            return Ok(());
        }
        self.free_flight()?;
        let (first, end) = (self.launched, self.head);
        self.launch(stream, BoundaryApplyParams { first, count: end.wrapping_sub(first), ..self.params() }, Some(end))?;
        self.launched = end;
        Ok(())
    }

    /// Counts what else was enqueued on the array, so that `drop` waits for it.
    pub fn fence(&mut self, stream: &Stream) -> Result<()> {
        self.free_flight()?;
        let Some(done) = self.spare.pop() else {
            return Err(Error::Busy { what: "boundaries of a lane", limit: FLIGHTS_MAX });
        };
        if let Err(error) = stream.record(&done) {
            self.spare.push(done);
            return Err(error);
        }
        self.flights.push_back(Flight { done, end: Some(self.launched) });
        self.flown += 1;
        Ok(())
    }

    /// Whether one more launch can be made without waiting.
    pub fn has_flight(&mut self) -> Result<bool> {
        self.reclaim()?;
        Ok(self.flights.len() < FLIGHTS_MAX)
    }

    /// Launches a boundary whose updates are told later.
    pub fn launch_later(&mut self, stream: &Stream) -> Result<Later> {
        let later = Later(self.flown);
        let words = self.words.address() + self.words_of(later) as u64;
        self.launch(stream, BoundaryApplyParams { words, ..self.params() }, None)?;
        Ok(later)
    }

    /// What a boundary launched for later shall do: everything told since the last launch, and this status. The stream must not
    /// have come to it yet; the word that lets it is to be released afterwards.
    pub fn complete(&mut self, later: Later, status: u32) {
        let (first, end) = (self.launched, self.head);
        let words = BoundaryWords { first, count: end.wrapping_sub(first), status, reserved: 0 };
        // SAFETY: within the mapping; the kernel reads it only after the release of the word that follows, and a flight's words
        // are used again only after the kernel has ended.
        unsafe { self.words.as_ptr().add(self.words_of(later)).cast::<BoundaryWords>().write_volatile(words) };
        self.launched = end;
        if let Some(flight) = self.flights.get_mut(later.0.wrapping_sub(self.landed) as usize) {
            flight.end = Some(end);
        }
    }

    fn words_of(&self, later: Later) -> usize {
        (later.0 % FLIGHTS_MAX as u64) as usize * size_of::<BoundaryWords>()
    }

    fn params(&self) -> BoundaryApplyParams {
        BoundaryApplyParams {
            table: self.array.address(),
            updates: self.updates.address(),
            words: 0,
            status: self.status,
            first: 0,
            count: 0,
            mask: self.mask,
            pages: self.entries,
        }
    }

    fn launch(&mut self, stream: &Stream, params: BoundaryApplyParams, end: Option<u32>) -> Result<()> {
        let Some(done) = self.spare.pop() else {
            return Err(Error::Busy { what: "boundaries of a lane", limit: FLIGHTS_MAX });
        };
        // SAFETY: array, ring and words live as long as this, and `drop` waits for what is in flight; the array is written by
        // these kernels alone, in stream order.
        let launched = unsafe { self.kernel.apply(stream, &params) }.and_then(|()| stream.record(&done));
        if let Err(error) = launched {
            self.spare.push(done);
            return Err(error);
        }
        self.flights.push_back(Flight { done, end });
        self.flown += 1;
        Ok(())
    }

    /// Takes back the slots of launches that have ended.
    fn reclaim(&mut self) -> Result<()> {
        while let Some(flight) = self.flights.front() {
            let (Some(end), true) = (flight.end, flight.done.query()?) else { break };
            self.retired = end;
            self.landed += 1;
            self.spare.extend(self.flights.pop_front().map(|flight| flight.done));
        }
        Ok(())
    }

    /// Waits until a launch can be made.
    fn free_flight(&mut self) -> Result<()> {
        self.wait(|ring| ring.flights.len() < FLIGHTS_MAX)
    }

    /// Waits until an update finds a slot; what is told already is launched for that.
    pub fn make_room(&mut self, stream: &Stream) -> Result<()> {
        self.flush(stream)?;
        self.wait(|ring| ring.head.wrapping_sub(ring.retired) <= ring.mask)
    }

    fn wait(&mut self, enough: impl Fn(&UpdateRing) -> bool) -> Result<()> {
        self.reclaim()?;
        let deadline = Instant::now() + SLOT_WAIT;
        while !enough(self) {
            let ended = match self.flights.front() {
                Some(flight) => flight.done.wait_until(deadline)?,
                None => true,
            };
            if !ended {
                return Err(Error::TimedOut {
                    what: "a lane's stream to come to its boundaries".into(),
                    after: SLOT_WAIT,
                });
            }
            self.reclaim()?;
        }
        Ok(())
    }
}

impl Drop for UpdateRing {
    /// Pinned memory that a launch may still read stays for ever; every wait in the stream before it has been let go by now.
    fn drop(&mut self) {
        if self.owner != process::id() {
            return; // a forked child has no device
        }
        let landed = self.wait(|ring| ring.flights.is_empty());
        if landed.is_ok() {
            // SAFETY: dropped once, here; no launch that reads them is left.
            unsafe {
                ManuallyDrop::drop(&mut self.updates);
                ManuallyDrop::drop(&mut self.words);
            }
        }
    }
}
