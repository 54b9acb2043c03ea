//! Updates of an array on a device by the boundary kernel: (index, value) pairs in pinned memory, applied in stream order.
//!
//! A slot of the ring is reused after the kernel that read it has ended; an event behind each launch shows that. Indices run
//! freely and wrap. One user at a time.

use super::gates::{Gates, SLOTS};
use crate::process;
use kvtide_kernels::{
    Buffer, Device, Error, Event, Pinned, Result, Stream,
    launch::Boundary,
    params::{BoundaryApplyParams, BoundaryGateParams, BoundaryUpdate, BoundaryWords, GateOpenParams},
};
use kvtide_wire::status::Status;
use std::{
    collections::VecDeque,
    mem::ManuallyDrop,
    sync::Arc,
    time::{Duration, Instant},
};

/// Maximum number of launches that still hold their slots.
const FLIGHTS_MAX: usize = 64;
/// Limit of the wait for a slot. Only the stream can cause this wait: it must reach kernels that are already enqueued.
const SLOT_WAIT: Duration = Duration::from_secs(10);

/// A launch: the event behind it, and the ring index after its updates, once that is known.
struct Flight {
    done: Event,
    end: Option<u32>,
}

/// A boundary with updates that are supplied later, in words that the kernel reads when the stream reaches it.
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
    /// Number of updates that were pushed, launched, and ended.
    head: u32,
    launched: u32,
    retired: u32,
    flights: VecDeque<Flight>,
    spare: Vec<Event>,
    /// One for each flight.
    words: ManuallyDrop<Pinned>,
    /// Number of launches so far, and of those that have ended. Flight `n` uses the words at `n % FLIGHTS_MAX`.
    flown: u64,
    landed: u64,
    /// Gates whose words launches read: they stay as long as the ring's own words.
    gates: Option<Arc<Gates>>,
    owner: u32,
}

impl UpdateRing {
    /// Create a ring of `slots` (a power of two) for an array of `entries` words. `status` is the address where the kernel
    /// reports a failure, or 0.
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
            gates: None,
            owner: process::id(),
        })
    }

    /// Keep gates until the stream has passed the work that reads their words.
    pub fn keep(&mut self, gates: &Arc<Gates>) {
        self.gates = Some(Arc::clone(gates));
    }

    /// Report whether updates were pushed that no launch has taken.
    pub fn is_dirty(&self) -> bool {
        self.head != self.launched
    }

    /// Report whether one more update finds a slot without waiting.
    pub fn has_room(&mut self) -> Result<bool> {
        if self.head.wrapping_sub(self.retired) > self.mask {
            self.reclaim()?;
        }
        Ok(self.head.wrapping_sub(self.retired) <= self.mask)
    }

    /// Push an update into a free slot.
    pub fn push(&mut self, page: u32, entry: u32) {
        debug_assert!(self.head.wrapping_sub(self.retired) <= self.mask, "call has_room first");
        let at = (self.head & self.mask) as usize;
        // SAFETY: `at` is within the ring; the slot's last reader has ended (`retired`), and no other thread writes it.
        unsafe {
            self.updates.as_ptr().cast::<BoundaryUpdate>().add(at).write_volatile(BoundaryUpdate { page, entry })
        };
        self.head = self.head.wrapping_add(1);
    }

    /// Launch the pushed updates. May wait for a slot: every earlier launch is enqueued, and none of them waits for a word.
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

    /// Record other work that was enqueued on the array, so that `drop` waits for it.
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

    /// Report whether one more launch can be made without waiting.
    pub fn has_flight(&mut self) -> Result<bool> {
        self.reclaim()?;
        Ok(self.flights.len() < FLIGHTS_MAX)
    }

    /// Launch a boundary; its updates are supplied later. Until then it says that it timed out, without updates.
    pub fn launch_later(&mut self, stream: &Stream) -> Result<Later> {
        let later = Later(self.flown);
        self.write_words(
            later,
            BoundaryWords { status: Status::TimedOut.code().unsigned_abs(), ..BoundaryWords::default() },
        );
        let words = self.words.address() + self.words_of(later) as u64;
        self.launch(stream, BoundaryApplyParams { words, ..self.params() }, None)?;
        Ok(later)
    }

    /// Complete a boundary from `launch_later`: assign to it all updates pushed since the last launch, and this status. The
    /// stream must not have reached it yet; release the word that holds the stream afterwards.
    pub fn complete(&mut self, later: Later, status: u32) {
        let (first, end) = (self.launched, self.head);
        let words = BoundaryWords { first, count: end.wrapping_sub(first), status, reserved: 0 };
        self.write_words(later, words);
        self.skip(later);
    }

    /// Forget the updates pushed since the last launch: the stream has passed their boundary without them.
    pub fn skip(&mut self, later: Later) {
        let end = self.head;
        self.launched = end;
        if let Some(flight) = self.flights.get_mut(later.0.wrapping_sub(self.landed) as usize) {
            flight.end = Some(end);
        }
    }

    /// Enqueue the begin of a gated step, which takes the updates pushed from now on. Return the index of the first.
    pub fn open_gates(&mut self, stream: &Stream, gates: &Gates, step: u64) -> Result<u32> {
        self.flush(stream)?;
        let params = GateOpenParams { state: gates.state(), step, next: self.launched, reserved: 0 };
        // SAFETY: the state lives as long as the gates; only kernels of this stream access it.
        unsafe { self.kernel.open_gates(stream, &params)? };
        Ok(self.launched)
    }

    /// Enqueue a gate, or capture it.
    pub fn gate(&self, stream: &Stream, gates: &Gates, plane: u32) -> Result<()> {
        let BoundaryApplyParams { table, updates, status, mask, pages, .. } = self.params();
        let params = BoundaryGateParams {
            state: gates.state(),
            words: gates.words(),
            table,
            updates,
            status,
            plane,
            planes: gates.planes(),
            slots_mask: SLOTS as u32 - 1,
            mask,
            pages,
            reserved: 0,
        };
        // SAFETY: array, ring and words live until the stream has passed the step's end, and a gate of a later replay reads only the
        // gates' state, which lives longer (see `gates`); the table is written by kernels of this stream.
        unsafe { self.kernel.gate(stream, &params) }
    }

    /// Assign all updates pushed so far to the gates that the stream has not reached. Return the index after the last one.
    pub fn take(&mut self) -> u32 {
        self.launched = self.head;
        self.head
    }

    /// End a gated step whose first update was `first`: apply all its updates once more, because the engine may have left out gates, and
    /// in the same order the result is the same. Return the number of the flight behind it.
    pub fn end_gates(&mut self, stream: &Stream, first: u32) -> Result<u64> {
        self.launched = first;
        match self.is_dirty() {
            true => self.flush(stream)?,
            false => self.fence(stream)?,
        }
        Ok(self.flown - 1)
    }

    /// Wait until a flight has ended. The stream must wait for nothing before it.
    pub fn landed(&mut self, flight: u64) -> Result<()> {
        self.wait(|ring| ring.landed > flight)
    }

    /// Wait until the stream has passed everything enqueued so far.
    pub fn drain(&mut self, stream: &Stream) -> Result<()> {
        self.fence(stream)?;
        self.landed(self.flown - 1)
    }

    /// Write a boundary's words, which no kernel reads now.
    fn write_words(&mut self, later: Later, words: BoundaryWords) {
        // SAFETY: within the mapping; the kernel reads it only after the release of the word that follows, and a flight's words
        // are reused only after the kernel has ended.
        unsafe { self.words.as_ptr().add(self.words_of(later)).cast::<BoundaryWords>().write_volatile(words) };
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
        // SAFETY: array, ring and words live as long as `self`, and `drop` waits for launches in flight; only these kernels
        // write the array, in stream order.
        let launched = unsafe { self.kernel.apply(stream, &params) }.and_then(|()| stream.record(&done));
        if let Err(error) = launched {
            self.spare.push(done);
            return Err(error);
        }
        self.flights.push_back(Flight { done, end });
        self.flown += 1;
        Ok(())
    }

    /// Reclaim the slots of launches that have ended.
    fn reclaim(&mut self) -> Result<()> {
        while let Some(flight) = self.flights.front() {
            let (Some(end), true) = (flight.end, flight.done.query()?) else { break };
            self.retired = end;
            self.landed += 1;
            self.spare.extend(self.flights.pop_front().map(|flight| flight.done));
        }
        Ok(())
    }

    /// Wait until a launch can be made.
    fn free_flight(&mut self) -> Result<()> {
        self.wait(|ring| ring.flights.len() < FLIGHTS_MAX)
    }

    /// Wait until an update finds a slot. Pushed updates are launched first.
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
                    what: "waiting for a lane's stream to reach its boundaries".into(),
                    after: SLOT_WAIT,
                });
            }
            self.reclaim()?;
        }
        Ok(())
    }
}

impl Drop for UpdateRing {
    /// Leak pinned memory that a launch may still read. By now every wait before it in the stream has been released.
    fn drop(&mut self) {
        if self.owner != process::id() {
            return; // a forked child has no device
        }
        let landed = self.wait(|ring| ring.flights.is_empty());
        if landed.is_err() {
            std::mem::forget(self.gates.take());
        } else {
            // SAFETY: dropped once, here; no launch that reads them is left.
            unsafe {
                ManuallyDrop::drop(&mut self.updates);
                ManuallyDrop::drop(&mut self.words);
            }
        }
    }
}
