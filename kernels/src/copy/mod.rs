//! Copies between host and device: many fragments at a time, polled for their end.
//!
//! Called by whoever moves pages, from one thread at a time. Addresses are resolved already: those of device memory and of registered
//! host memory. What lies there, and which copies must come after which, is not known here: [`Copier::order_after`] is how the
//! caller says the latter.
//!
//! Large fragments go through the copy engines, in one call of the driver where it can (`cuMemcpyBatchAsync`); small ones, on which
//! those would spend more time starting than copying, through a kernel on a stream of low priority, with few blocks and few bytes a
//! launch, so that it stands in nobody's way. Where one begins to be worth the other is measured at start.

pub(crate) mod batch;
mod crossover;
mod lane;
mod plan;
mod slots;

pub use crossover::{Crossover, Measured};

use crate::{Device, Error, Event, Result, launch::Gather};
use batch::Lists;
use lane::{Engines, Lane};
use plan::Plan;
use slots::{Part, Slots};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Batches under way at one time.
pub const BATCHES_MAX: usize = 32;

/// Copies of one batch.
pub const COPIES_MAX: usize = 1024;

/// Measuring takes no longer than this.
pub const MEASURE_MAX: Duration = Duration::from_millis(50);

/// A copier that goes waits this long for its batches.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// One copy. Copies of a batch have no order among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// From where.
    pub from: u64,
    /// To where.
    pub to: u64,
    /// How much, bytes.
    pub bytes: usize,
}

/// Which way a batch goes. Each way has its own streams: the bus carries both at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the host to the device.
    Up,
    /// From the device to the host.
    Down,
    /// From the device to the device.
    Within,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Up, Self::Down, Self::Within];

    fn index(self) -> usize {
        self as usize
    }
}

/// How fragments are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// By size: what was measured at start says which.
    Measured,
    /// Below so many bytes by the kernel, the others by the copy engines.
    Below(usize),
    /// All by the copy engines.
    Engines,
    /// All by the copy engines, each in a call of its own.
    OneByOne,
    /// All by the kernel.
    Kernel,
}

/// What a copier is made with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How fragments are copied.
    pub path: Path,
    /// Blocks of the copy kernel, of 256 threads: 64 keep 2 MiB under way, more than any bus of today needs (64 GB/s × 3 µs), on less
    /// than half of the multiprocessors of the GPUs that this is for.
    pub blocks: u32,
    /// Bytes of one launch of it: 8 MiB are 150 µs of a 55 GB/s bus, after which kernels of a higher priority come first again.
    pub launch_bytes: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { path: Path::Measured, blocks: 64, launch_bytes: 8 << 20 }
    }
}

/// A batch under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a batch ends when it is polled"]
pub struct Ticket {
    slot: u32,
    generation: u32,
}

/// What a copier has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Batches submitted.
    pub batches: u64,
    /// Copies submitted, before neighbours were joined.
    pub copies: u64,
    /// Fragments and bytes that copy engines took.
    pub engine_fragments: u64,
    /// As above.
    pub engine_bytes: u64,
    /// Fragments and bytes that the kernel took.
    pub kernel_fragments: u64,
    /// As above.
    pub kernel_bytes: u64,
    /// Launches of the kernel.
    pub launches: u64,
    /// Batches that failed.
    pub failed: u64,
}

/// Copies batches of fragments on streams of its own.
pub struct Copier {
    device: Arc<Device>,
    lanes: [Lane; 3],
    slots: Slots,
    plan: Plan,
    lists: Lists,
    options: Options,
    engines: Engines,
    kernel: std::result::Result<Gather, String>,
    crossover: Crossover,
    stats: Stats,
}

impl Copier {
    /// Makes streams and lists, and measures where the copy engines begin to be worth it: at most [`MEASURE_MAX`], after the driver
    /// has compiled the kernel.
    ///
    /// # Errors
    /// The device is full or lost; or the path asked for does not work on it.
    pub fn new(device: &Arc<Device>, options: Options) -> Result<Self> {
        if options.blocks == 0 || options.launch_bytes == 0 {
            return Err(Error::invalid("options of the copier", "a launch of nothing copies nothing"));
        }
        let works = device.works()?;
        let batched = works.batched_copies.works() && options.path != Path::OneByOne;
        let usable =
            [&works.kernels, &works.in_place].into_iter().try_for_each(|trial| trial.demand("the copy kernel", device));
        let kernel = match usable.and_then(|()| Gather::new(device)) {
            Ok(kernel) => Ok(kernel),
            Err(e) if e.is_lost() || e.is_out_of_memory() || options.path == Path::Kernel => return Err(e),
            // Exported, by `kernel_missing`: copies are slower without it, and no less right.
            Err(e) => Err(e.to_string()),
        };
        let [up, down, within] = Way::ALL.map(|_| Lane::new(device));
        let mut copier = Self {
            device: Arc::clone(device),
            lanes: [up?, down?, within?],
            slots: Slots::new(device)?,
            plan: Plan::default(),
            lists: Lists::default(),
            options,
            engines: if batched { Engines::Batched } else { Engines::OneByOne },
            kernel,
            crossover: Crossover::of(options.path),
            stats: Stats::default(),
        };
        if options.path == Path::Measured && copier.kernel.is_ok() {
            copier.crossover = crossover::measure(&mut copier, Instant::now() + MEASURE_MAX)?;
        }
        if copier.kernel.is_err() {
            copier.crossover = Crossover::of(Path::Engines);
        }
        copier.stats = Stats::default();
        Ok(copier)
    }

    /// Every copy submitted from now on waits, on the device, for the event as it was last recorded.
    ///
    /// # Errors
    /// The event is of another device, or the device is lost.
    pub fn order_after(&self, event: &Event) -> Result<()> {
        self.lanes.iter().try_for_each(|lane| lane.wait(event))
    }

    /// Starts a batch. What it reads and writes belongs to it until [`Self::poll`] has said that it ended, well or not; so does
    /// every batch that a ticket was given for, whatever happened since.
    ///
    /// # Errors
    /// Nothing was started: too many copies, or too many batches under way ([`Error::Busy`]: poll, then try again).
    ///
    /// # Safety
    /// Until the batch has ended the ranges stay what they are, nobody writes what is read or touches what is written; and no two
    /// copies of it write the same bytes.
    pub unsafe fn submit(&mut self, way: Way, copies: &[Copy]) -> Result<Ticket> {
        // SAFETY: the caller's promise.
        unsafe { self.start(way, copies, self.crossover.bytes(way)) }
    }

    /// The same by the copy engines alone, whatever the size: for copies that must go on while a stream of the engine's stands at a
    /// word. Streams share hardware queues (`CUDA_DEVICE_MAX_CONNECTIONS`), and a kernel behind such a wait in the same queue
    /// would wait with it; copy engines have queues of their own.
    ///
    /// # Errors
    /// As of [`Self::submit`].
    ///
    /// # Safety
    /// As of [`Self::submit`].
    pub unsafe fn submit_by_engines(&mut self, way: Way, copies: &[Copy]) -> Result<Ticket> {
        // SAFETY: the caller's promise.
        unsafe { self.start(way, copies, 0) }
    }

    /// # Safety
    /// As of [`Self::submit`].
    unsafe fn start(&mut self, way: Way, copies: &[Copy], crossover: usize) -> Result<Ticket> {
        if copies.len() > COPIES_MAX {
            return Err(Error::invalid("batch of copies", format!("{} of them, {COPIES_MAX} at most", copies.len())));
        }
        self.plan.make(copies, crossover, self.options.launch_bytes);
        if self.plan.fragments.len() > slots::LIST_MAX {
            let why = format!(
                "cut into {} pieces for launches of {} bytes, {} at most",
                self.plan.fragments.len(),
                self.options.launch_bytes,
                slots::LIST_MAX
            );
            return Err(Error::invalid("batch of copies", why));
        }
        let slot = self.slots.take(way)?;
        self.stats.batches += 1;
        self.stats.copies += copies.len() as u64;
        // From here on something may be under way, so a failure is told when the batch is polled.
        // SAFETY: the caller's promise.
        if let Err(e) = unsafe { self.enqueue(way, slot) } {
            self.stats.failed += 1;
            self.slots.fail(slot, e);
        }
        Ok(self.slots.ticket(slot))
    }

    /// # Safety
    /// As of `submit`, for the copies in the plan.
    unsafe fn enqueue(&mut self, way: Way, slot: usize) -> Result<()> {
        let Self { lanes, slots, plan, lists, options, engines, kernel, stats, .. } = self;
        let lane = &lanes[way.index()];
        let mut tried = Ok(());
        if !plan.engines.is_empty() {
            // SAFETY: the caller's promise.
            tried = unsafe { lane.by_engines(*engines, &plan.engines, lists) };
            slots.record(slot, Part::Engines, lane)?;
            stats.engine_fragments += plan.engines.len() as u64;
            stats.engine_bytes += plan.engines.iter().map(|p| p.bytes as u64).sum::<u64>();
        }
        if tried.is_ok() && !plan.fragments.is_empty() {
            let kernel = kernel
                .as_ref()
                .map_err(|why| Error::Unsupported { what: "the copy kernel".to_owned(), needs: why.clone() })?;
            let list = slots.write_list(slot, &plan.fragments);
            for launch in &plan.launches {
                // SAFETY: the list was written before and stays until the slot is free; the rest is the caller's promise.
                tried = unsafe { lane.by_kernel(kernel, list, launch, options.blocks) };
                if tried.is_err() {
                    break;
                }
                stats.launches += 1;
            }
            slots.record(slot, Part::Kernel, lane)?;
            stats.kernel_fragments += plan.fragments.len() as u64;
            stats.kernel_bytes += plan.fragments.iter().map(|f| u64::from(f.bytes)).sum::<u64>();
        }
        tried
    }

    /// Whether a batch has ended. Once that was said, its slot serves another.
    ///
    /// # Errors
    /// It has ended and failed, in whole or in part: what it was to write holds anything.
    pub fn poll(&mut self, ticket: Ticket) -> Result<bool> {
        self.slots.poll(ticket, &self.lanes)
    }

    /// Batches under way, or ended and not yet polled.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Waits until the device has done everything that was submitted, or the deadline has passed, and says which. Tickets stay to
    /// be polled.
    ///
    /// # Errors
    /// The device is lost: nothing runs on it any more.
    pub fn settle(&self, deadline: Instant) -> Result<bool> {
        self.slots.settle(&self.lanes, deadline)
    }

    /// Below how many bytes a fragment goes through the kernel, each way, and how that was found.
    #[must_use]
    pub fn crossover(&self) -> &Crossover {
        &self.crossover
    }

    /// Whether the copy engines take many copies in one call.
    #[must_use]
    pub fn is_batched(&self) -> bool {
        self.engines == Engines::Batched
    }

    /// Why the copy kernel cannot be used here, where it cannot.
    #[must_use]
    pub fn kernel_missing(&self) -> Option<&str> {
        self.kernel.as_ref().err().map(String::as_str)
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Copier {
    /// Waits, with a bound, for what is under way; lists that a kernel might still read are then kept for ever.
    fn drop(&mut self) {
        let ended = self.device.is_ours().then(|| self.slots.settle(&self.lanes, Instant::now() + SETTLE_MAX));
        if let Some(Ok(false)) = ended {
            self.slots.leak();
        }
    }
}

impl std::fmt::Debug for Copier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copier")
            .field("device", &self.device.info().ordinal)
            .field("in_flight", &self.in_flight())
            .field("crossover", &self.crossover)
            .finish_non_exhaustive()
    }
}
