//! Copies between host and device: many fragments at a time, polled for completion.
//!
//! One thread at a time calls it to move pages. Addresses are resolved: those of device memory and of registered host memory. This
//! module does not know their content, nor which copies must follow which; the caller gives the order by [`Copier::order_after`].
//!
//! Large fragments go through the copy engines, in one driver call if the driver supports it (`cuMemcpyBatchAsync`). For small
//! fragments the engines would need more time to start than to copy. They go through a kernel on a stream of low priority, with few
//! blocks and few bytes per launch, so that it does not delay other kernels. The boundary between the two is measured at start.

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

/// Maximum batches in flight.
pub const BATCHES_MAX: usize = 32;

/// Maximum copies of one batch.
pub const COPIES_MAX: usize = 1024;

/// Maximum time of the measurement of a device.
pub const MEASURE_MAX: Duration = Duration::from_millis(400);

/// Maximum time that a dropped copier waits for its batches.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// One copy. Copies of a batch have no order among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Source address.
    pub from: u64,
    /// Target address.
    pub to: u64,
    /// Length in bytes.
    pub bytes: usize,
    /// Names the registration that its host memory is in, e.g. by its start. Neighbours are joined only within one: the driver
    /// refuses a copy across two registrations, though their addresses are adjacent.
    pub region: u64,
}

/// Direction of a batch. Each direction has its own streams, because the bus carries both at the same time.
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
    /// All directions.
    pub const ALL: [Self; 3] = [Self::Up, Self::Down, Self::Within];

    fn index(self) -> usize {
        self as usize
    }
}

/// How fragments are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// By size: the measurement at start decides.
    Measured,
    /// Fragments below this many bytes by the kernel, the others by the copy engines.
    Below(usize),
    /// All by the copy engines.
    Engines,
    /// All by the copy engines, each in a separate call.
    OneByOne,
    /// All by the kernel.
    Kernel,
}

/// Options of a copier.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How fragments are copied.
    pub path: Path,
    /// Blocks of the copy kernel, of 256 threads: 64 keep 2 MiB in flight, more than any current bus needs (64 GB/s × 3 µs), on
    /// less than half of the multiprocessors of supported GPUs.
    pub blocks: u32,
    /// Bytes of one kernel launch: 8 MiB take 150 µs of a 55 GB/s bus; after that kernels of a higher priority run first again.
    pub launch_bytes: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { path: Path::Measured, blocks: 64, launch_bytes: 8 << 20 }
    }
}

/// A batch in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a batch ends only when it is polled"]
pub struct Ticket {
    slot: u32,
    generation: u32,
}

/// Counters of a copier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Batches submitted.
    pub batches: u64,
    /// Copies submitted, before neighbours were joined.
    pub copies: u64,
    /// Fragments copied by copy engines.
    pub engine_fragments: u64,
    /// Bytes copied by copy engines.
    pub engine_bytes: u64,
    /// Fragments copied by the kernel.
    pub kernel_fragments: u64,
    /// Bytes copied by the kernel.
    pub kernel_bytes: u64,
    /// Launches of the kernel.
    pub launches: u64,
    /// Batches that failed.
    pub failed: u64,
}

/// Copies batches of fragments on its own streams.
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
    /// Create streams and lists, and measure from which size the copy engines are worth using. The process's first copier on the
    /// device does that, in at most [`MEASURE_MAX`], after the driver has compiled the kernel.
    ///
    /// # Errors
    /// The device is full or lost, or the requested path does not work on it.
    pub fn new(device: &Arc<Device>, options: Options) -> Result<Self> {
        if options.blocks == 0 || options.launch_bytes == 0 {
            return Err(Error::invalid("options of the copier", "a launch of nothing copies nothing"));
        }
        let works = device.works()?;
        let works_batched = works.batched_copies.works() && works.session_copies.works();
        let batched = works_batched && options.path != Path::OneByOne;
        let usable =
            [&works.kernels, &works.in_place].into_iter().try_for_each(|trial| trial.demand("the copy kernel", device));
        let kernel = match usable.and_then(|()| Gather::new(device)) {
            Ok(kernel) => Ok(kernel),
            Err(e) if e.is_lost() || e.is_out_of_memory() || options.path == Path::Kernel => return Err(e),
            // Reported by `kernel_missing`: copies are slower without it, and equally correct.
            Err(e) => Err(e.to_string()),
        };
        let [up, down, within] = Way::ALL.map(|way| Lane::new(device, way));
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
            copier.crossover = crossover::of_device(&mut copier)?;
        }
        if copier.kernel.is_err() {
            copier.crossover = Crossover::of(Path::Engines);
        }
        copier.stats = Stats::default();
        Ok(copier)
    }

    /// Make every copy submitted from now on wait, on the device, for the event as it was last recorded.
    ///
    /// # Errors
    /// The event belongs to another device, or the device is lost.
    pub fn order_after(&self, event: &Event) -> Result<()> {
        self.lanes.iter().try_for_each(|lane| lane.wait(event))
    }

    /// Start a batch. The memory that it reads and writes belongs to it until [`Self::poll`] has reported its end, successful or
    /// not. The same holds for every batch with a ticket, whatever has happened since.
    ///
    /// # Errors
    /// Nothing was started: too many copies, or too many batches in flight ([`Error::Busy`]: poll, then try again).
    ///
    /// # Safety
    /// Until the batch has ended the ranges stay valid, nothing else writes the memory that it reads or accesses the memory that it
    /// writes; and no two copies of it write the same bytes.
    pub unsafe fn submit(&mut self, way: Way, copies: &[Copy]) -> Result<Ticket> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.start(way, copies, self.crossover.bytes(way)) }
    }

    /// Start a batch as [`Self::submit`] does, but by the copy engines only, whatever the size: for copies that must proceed while
    /// a stream of the engine waits for a word. Streams share hardware queues (`CUDA_DEVICE_MAX_CONNECTIONS`), and a kernel behind
    /// such a wait in the same queue would wait with it; copy engines have their own queues.
    ///
    /// # Errors
    /// As for [`Self::submit`].
    ///
    /// # Safety
    /// As for [`Self::submit`].
    pub unsafe fn submit_by_engines(&mut self, way: Way, copies: &[Copy]) -> Result<Ticket> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.start(way, copies, 0) }
    }

    /// # Safety
    /// As for [`Self::submit`].
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
        // From here on work may be in flight, so a failure is reported when the batch is polled.
        // SAFETY: guaranteed by the caller.
        if let Err(e) = unsafe { self.enqueue(way, slot) } {
            self.stats.failed += 1;
            self.slots.fail(slot, e);
        }
        Ok(self.slots.ticket(slot))
    }

    /// # Safety
    /// As for `submit`, for the copies in the plan.
    unsafe fn enqueue(&mut self, way: Way, slot: usize) -> Result<()> {
        let Self { lanes, slots, plan, lists, options, engines, kernel, stats, .. } = self;
        let lane = &lanes[way.index()];
        let mut tried = Ok(());
        if !plan.engines.is_empty() {
            // SAFETY: guaranteed by the caller.
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
                // SAFETY: the list was written before and stays until the slot is free; the caller guarantees the rest.
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

    /// Return whether a batch has ended. After that its slot is reused.
    ///
    /// # Errors
    /// It has ended and failed, completely or in part: the content of its targets is undefined.
    pub fn poll(&mut self, ticket: Ticket) -> Result<bool> {
        self.slots.poll(ticket, &self.lanes)
    }

    /// Return the number of batches in flight, or ended and not yet polled.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Wait until the device has completed all submitted work, or the deadline has passed; return true for the former. Tickets
    /// remain to be polled.
    ///
    /// # Errors
    /// The device is lost: nothing runs on it any more.
    pub fn settle(&self, deadline: Instant) -> Result<bool> {
        self.slots.settle(&self.lanes, deadline)
    }

    /// Return the fragment size below which the kernel is used, for each direction, and how it was found.
    #[must_use]
    pub fn crossover(&self) -> &Crossover {
        &self.crossover
    }

    /// Return whether the driver accepts many copies in one call.
    #[must_use]
    pub fn is_batched(&self) -> bool {
        self.engines == Engines::Batched
    }

    /// Return the reason why the copy kernel cannot be used, if it cannot.
    #[must_use]
    pub fn kernel_missing(&self) -> Option<&str> {
        self.kernel.as_ref().err().map(String::as_str)
    }

    /// Return the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Return the device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for Copier {
    /// Wait, with a time limit, for batches in flight; lists that a kernel might still read are then leaked.
    fn drop(&mut self) {
        let ended = self.device.is_ours().then(|| self.slots.settle(&self.lanes, Instant::now() + SETTLE_MAX));
        if ended.is_some_and(|ended| Error::may_run(&ended)) {
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
