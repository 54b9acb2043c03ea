//! Features of a device, each tried with a real call and its bytes compared, because attributes may be wrong.
//!
//! The trials take milliseconds, a few KiB of device memory and one chunk of the smallest size. Every wait has a time limit. Memory
//! that a device might still access after a timeout is leaked.

use super::{Device, Version};
use crate::{
    Buffer, Error, Event, HostRegion, Pinned, Priority, Result, Stream, WaitWord, copy::batch, launch::Gather,
    memory::vmm::Range, params::CopyFragment,
};
use rustix::{
    fs::MemfdFlags,
    mm::{MapFlags, ProtFlags},
};
use std::{
    ffi::c_void,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

/// A device that has not copied a page within this time is not working.
const BOUND: Duration = Duration::from_secs(5);

/// Bytes of a copy.
const BYTES: usize = 4096;

/// Bytes of host memory to register: the smallest possible slab of host frames.
const SEGMENT: usize = 1 << 20;

/// Result of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// The feature works.
    Works {
        /// Duration of the trial.
        took: Duration,
    },
    /// The feature does not work.
    Fails {
        /// Action, object and cause of the failure.
        why: String,
    },
}

impl Trial {
    /// Return whether it works.
    #[must_use]
    pub fn works(&self) -> bool {
        matches!(self, Self::Works { .. })
    }

    /// Return an error for a caller that requires the feature.
    ///
    /// # Errors
    /// It does not work; the error contains the action and the cause.
    pub fn demand(&self, what: &str, device: &Device) -> Result<()> {
        match self {
            Self::Works { .. } => Ok(()),
            Self::Fails { why } => {
                Err(Error::Unsupported { what: format!("{what} on {}", device.info().label()), needs: why.clone() })
            }
        }
    }

    /// Run a trial. Running out of memory and losing the device prove nothing about the feature: those are errors of the trial
    /// itself.
    fn of(try_it: impl FnOnce() -> Result<()>) -> Result<Self> {
        let began = Instant::now();
        match try_it() {
            Ok(()) => Ok(Self::Works { took: began.elapsed() }),
            Err(e) if e.is_lost() || e.is_out_of_memory() => Err(e),
            Err(e) => Ok(Self::Fails { why: e.to_string() }),
        }
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works { took } => write!(f, "works (tried in {:.1} ms)", took.as_secs_f64() * 1e3),
            Self::Fails { why } => write!(f, "does not work: {why}"),
        }
    }
}

/// Features of a device.
#[derive(Clone, Debug)]
pub struct Works {
    /// Memory mapped into a reserved range, used, and unmapped: [`crate::Arena::reserve`] needs it.
    pub vmm: Trial,
    /// A shared segment (memfd) registered and copied to and from: copies at the bus's speed need it.
    pub host_registration: Trial,
    /// Many copies in one call (CUDA 12.8); without it each copy is a separate call.
    pub batched_copies: Trial,
    /// Such batches between the memory of a session: its arena and its registered slabs.
    pub session_copies: Trial,
    /// A stream waits for a word that the host writes: waits inside a stream need it.
    pub stream_waits: Trial,
    /// Copy engines copy while another stream waits for a word.
    pub copies_beside_waits: Trial,
    /// A stream writes a word that the host reads.
    pub stream_writes: Trial,
    /// A shipped kernel, compiled by the driver, gave the expected result in device memory.
    pub kernels: Trial,
    /// A kernel read and wrote a registered host page in place.
    pub in_place: Trial,
}

impl Works {
    /// Return each with its name, in the order of the report.
    #[must_use]
    pub fn all(&self) -> [(&'static str, &Trial); 9] {
        [
            ("vmm", &self.vmm),
            ("host_registration", &self.host_registration),
            ("batched_copies", &self.batched_copies),
            ("session_copies", &self.session_copies),
            ("stream_waits", &self.stream_waits),
            ("copies_beside_waits", &self.copies_beside_waits),
            ("stream_writes", &self.stream_writes),
            ("kernels", &self.kernels),
            ("in_place", &self.in_place),
        ]
    }
}

/// Run all trials.
pub(super) fn of(device: &Arc<Device>) -> Result<Works> {
    let bench = Bench::new(device)?;
    let vmm = Trial::of(|| vmm(&bench))?;
    Ok(Works {
        host_registration: Trial::of(|| host_registration(&bench))?,
        batched_copies: Trial::of(|| batched_copies(&bench))?,
        session_copies: Trial::of(|| session_copies(&bench, vmm.works()))?,
        stream_waits: Trial::of(|| stream_waits(&bench))?,
        copies_beside_waits: Trial::of(|| copies_beside_waits(&bench))?,
        stream_writes: Trial::of(|| stream_writes(&bench))?,
        kernels: Trial::of(|| kernels(&bench))?,
        in_place: Trial::of(|| in_place(&bench))?,
        vmm,
    })
}

/// A stream, and memory on both sides, small.
struct Bench {
    device: Arc<Device>,
    stream: Stream,
    event: Event,
    there: Arc<Buffer>,
    here: Arc<Pinned>,
}

impl Bench {
    fn new(device: &Arc<Device>) -> Result<Self> {
        Ok(Self {
            device: Arc::clone(device),
            stream: Stream::new(device, Priority::Normal)?,
            event: Event::new(device)?,
            there: Arc::new(Buffer::new(device, 2 * BYTES)?),
            here: Arc::new(Pinned::new(device, 2 * BYTES)?),
        })
    }

    /// Fill the first half of the host memory with this pattern; the second half contains no byte of it.
    fn pattern(&self, seed: u8) {
        for at in 0..BYTES {
            // SAFETY: within the two halves; the stream is idle between trials.
            unsafe {
                self.here.as_ptr().add(at).write_volatile(byte(seed, at));
                self.here.as_ptr().add(BYTES + at).write_volatile(!byte(seed, at));
            }
        }
    }

    fn source(&self) -> u64 {
        self.here.address()
    }

    fn target(&self) -> u64 {
        self.here.address() + BYTES as u64
    }

    /// Wait for the stream and check that the second half holds the pattern.
    fn arrived(&self, seed: u8, what: &str) -> Result<()> {
        self.done(what)?;
        for at in 0..BYTES {
            // SAFETY: within the second half; the copies have ended.
            let got = unsafe { self.here.as_ptr().add(BYTES + at).read_volatile() };
            if got != byte(seed, at) {
                let needs = format!("byte {at} arrived as {got:#04x} and not as {:#04x}", byte(seed, at));
                return Err(Error::Unsupported { what: what.to_owned(), needs });
            }
        }
        Ok(())
    }

    fn done(&self, what: &str) -> Result<()> {
        self.stream.record(&self.event)?;
        if self.event.wait_until(Instant::now() + BOUND)? {
            return Ok(());
        }
        Err(Error::TimedOut { what: what.to_owned(), after: BOUND })
    }
}

impl Drop for Bench {
    /// Leak memory that a device may still access: a trial may have failed half way.
    fn drop(&mut self) {
        if self.done("a trial").is_err() {
            std::mem::forget((Arc::clone(&self.here), Arc::clone(&self.there)));
        }
    }
}

fn byte(seed: u8, at: usize) -> u8 {
    (at as u8).wrapping_mul(31).wrapping_add(seed).rotate_left(3)
}

fn vmm(bench: &Bench) -> Result<()> {
    let range = Range::reserve(&bench.device, 1)?;
    let bytes = range.granularity();
    // Twice: memory that was unmapped must be mappable again at the same address.
    for seed in [1, 2] {
        range.map(0, bytes)?;
        bench.pattern(seed);
        let last = range.base() + bytes - BYTES as u64;
        // SAFETY: within the mapping and memory of the bench, which stays until the stream is done, or for ever.
        let copied = unsafe {
            bench.stream.copy(last, bench.source(), BYTES).and_then(|()| bench.stream.copy(bench.target(), last, BYTES))
        };
        let ended = copied.and_then(|()| bench.arrived(seed, "copies to mapped memory and back"));
        if ended.is_err() {
            std::mem::forget(range);
            return ended;
        }
        range.unmap(0, bytes)?;
    }
    Ok(())
}

fn host_registration(bench: &Bench) -> Result<()> {
    with_segment(bench, |address| {
        let last = address + (SEGMENT - BYTES) as u64;
        bench.pattern(3);
        // SAFETY: within the region and memory of the bench, which stays until the stream is done, or for ever.
        unsafe {
            bench.stream.copy(last, bench.source(), BYTES)?;
            bench.stream.copy(bench.there.address(), last, BYTES)?;
            bench.stream.copy(bench.target(), bench.there.address(), BYTES)?;
        }
        bench.arrived(3, "copies between the device and a registered segment")
    })
}

/// Register a shared segment, as a slab of host frames is, and use it. After a failure it stays, because a device may access it.
fn with_segment(bench: &Bench, use_it: impl FnOnce(u64) -> Result<()>) -> Result<()> {
    let system =
        |e: rustix::io::Errno| Error::System { doing: "making a segment to register".to_owned(), source: e.into() };
    let memfd = rustix::fs::memfd_create("kvtide trial", MemfdFlags::CLOEXEC).map_err(system)?;
    rustix::fs::ftruncate(&memfd, SEGMENT as u64).map_err(system)?;
    // SAFETY: a new shared mapping of a file of this size, at an address chosen by the kernel.
    let map = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), SEGMENT, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &memfd, 0)
    };
    let map = map.map_err(system)?;
    // SAFETY: mapped above, unmapped below after the region is gone, or never.
    let region = unsafe { HostRegion::new(&bench.device, map.cast(), SEGMENT) }?;
    let ended = region.address().and_then(use_it);
    if ended.is_err() {
        std::mem::forget(region);
        return ended;
    }
    drop(region);
    unmap(map);
    Ok(())
}

fn unmap(map: *mut c_void) {
    // SAFETY: exactly the mapping of the trial, registered no more.
    let _ = unsafe { rustix::mm::munmap(map, SEGMENT) };
}

/// Pieces of a page, out of order, so that one large copy of the whole does not look like four.
fn quarters(to: u64, from: u64) -> [batch::Piece; 4] {
    const PIECE: usize = BYTES / 4;
    let piece = |n: u64| batch::Piece { to: to + n * PIECE as u64, from: from + n * PIECE as u64, bytes: PIECE };
    [3, 0, 2, 1].map(piece)
}

fn batched_copies(bench: &Bench) -> Result<()> {
    bench.pattern(4);
    let mut lists = batch::Lists::default();
    // SAFETY: within memory of the bench, which stays until the stream is done, or for ever.
    unsafe {
        batch::enqueue(&bench.stream, &quarters(bench.there.address(), bench.source()), true, &mut lists)?;
        batch::enqueue(&bench.stream, &quarters(bench.target(), bench.there.address()), true, &mut lists)?;
    }
    bench.arrived(4, "batched copies to the device and back")
}

/// Batches between the kinds of memory that sessions use: mapped into a reserved range, if that works, and a registered shared segment.
fn session_copies(bench: &Bench, vmm: bool) -> Result<()> {
    if !vmm {
        return segment_copies(bench, bench.there.address());
    }
    let range = Range::reserve(&bench.device, 1)?;
    let bytes = range.granularity();
    range.map(0, bytes)?;
    match segment_copies(bench, range.base()) {
        Ok(()) => range.unmap(0, bytes),
        Err(e) => {
            std::mem::forget(range);
            Err(e)
        }
    }
}

/// Copy in batches from a registered segment to `mapped`, within it, and back.
fn segment_copies(bench: &Bench, mapped: u64) -> Result<()> {
    let mut lists = batch::Lists::default();
    with_segment(bench, |segment| {
        bench.pattern(9);
        // SAFETY: within the mapping, the segment and memory of the bench, which stay until the stream is done, or for ever.
        unsafe {
            bench.stream.copy(segment, bench.source(), BYTES)?;
            batch::enqueue(&bench.stream, &quarters(mapped, segment), true, &mut lists)?;
            batch::enqueue(&bench.stream, &quarters(mapped + BYTES as u64, mapped), false, &mut lists)?;
            batch::enqueue(&bench.stream, &quarters(segment + BYTES as u64, mapped + BYTES as u64), true, &mut lists)?;
            bench.stream.copy(bench.target(), segment + BYTES as u64, BYTES)?;
        }
        bench.arrived(9, "batched copies between a session's device memory and a registered segment")
    })
}

/// Copies by copy engines go on while another stream waits for a word, as `boundary_async` needs them to.
fn copies_beside_waits(bench: &Bench) -> Result<()> {
    let word = WaitWord::untried(&bench.device)?;
    let waiting = Stream::new(&bench.device, Priority::Normal)?;
    let target = word.arm()?;
    waiting.wait_word(&word, target)?;
    bench.pattern(10);
    // SAFETY: within memory of the bench, which stays until the stream is done, or for ever.
    let copied = unsafe {
        bench
            .stream
            .copy(bench.there.address(), bench.source(), BYTES)
            .and_then(|()| bench.stream.copy(bench.target(), bench.there.address(), BYTES))
    };
    let arrived = copied.and_then(|()| bench.arrived(10, "copies beside a stream that waits for a word"));
    word.release(target);
    if arrived.is_err() {
        // Copies that were held run now: the next trial uses their memory.
        let _ = bench.done("copies that a waiting stream held");
    }
    arrived
}

fn stream_waits(bench: &Bench) -> Result<()> {
    let word = WaitWord::untried(&bench.device)?;
    bench.pattern(5);
    let target = word.arm()?;
    bench.stream.wait_word(&word, target)?;
    // SAFETY: within memory of the bench.
    let copied = unsafe {
        bench
            .stream
            .copy(bench.there.address(), bench.source(), BYTES)
            .and_then(|()| bench.stream.copy(bench.target(), bench.there.address(), BYTES))
    };
    let held = copied.and_then(|()| bench.stream.record(&bench.event)).and_then(|()| still_waits(bench));
    word.release(target);
    held?;
    bench.arrived(5, "work behind a word that was released")
}

/// Check that the stream still waits after many times the duration of the copies behind the wait.
fn still_waits(bench: &Bench) -> Result<()> {
    if bench.event.wait_until(Instant::now() + Duration::from_millis(2))? {
        let needs = "the stream did not wait for an unwritten word".to_owned();
        return Err(Error::Unsupported { what: "waiting for a word in a stream".to_owned(), needs });
    }
    Ok(())
}

fn stream_writes(bench: &Bench) -> Result<()> {
    let Some(write) = bench.device.api().cuStreamWriteValue64_v2 else {
        let needs = "the driver lacks cuStreamWriteValue64_v2".to_owned();
        return Err(Error::Unsupported { what: "writing a word from a stream".to_owned(), needs });
    };
    const VALUE: u64 = 0x1234_5678_9abc_def0;
    bench.pattern(6);
    {
        let _entered = bench.device.enter()?;
        // SAFETY: 8 bytes within the second half; the stream lives.
        let code = unsafe { write(bench.stream.handle(), bench.target(), VALUE, 0) };
        bench.device.check(code, "cuStreamWriteValue64", || bench.device.info().label())?;
    }
    bench.done("a word written by a stream")?;
    // SAFETY: aligned and within the second half; the stream is done.
    let got = unsafe { bench.here.as_ptr().add(BYTES).cast::<u64>().read_volatile() };
    if got == VALUE {
        return Ok(());
    }
    Err(Error::Unsupported { what: "writing a word from a stream".to_owned(), needs: format!("{got:#x} arrived") })
}

/// Copy by kernel: the list of the copy kernel is in the first bytes of the device memory; it copies two parts of the rest.
fn kernels(bench: &Bench) -> Result<()> {
    const PART: usize = 1024;
    let there = bench.there.address();
    let (from, to) = (there + PART as u64, there + 2 * PART as u64);
    let list = CopyFragment { from, to, bytes: PART as u32, reserved: 0 };
    let kernel = Gather::new(&bench.device)?;
    // The list is written into the target first; the pattern then overwrites it.
    // SAFETY: within the bench's host memory, aligned; nothing is in flight.
    unsafe { bench.here.as_ptr().add(BYTES).cast::<CopyFragment>().write_volatile(list) };
    // SAFETY: within memory of the bench, which stays until the stream is done, or for ever.
    unsafe { bench.stream.copy(there, bench.target(), size_of::<CopyFragment>()) }?;
    bench.done("a list on its way to the device")?;
    bench.pattern(7);
    // SAFETY: as above.
    unsafe {
        bench.stream.copy(from, bench.source(), PART)?;
        kernel.copy_list(&bench.stream, there, 1, PART as u32, 1)?;
        bench.stream.copy(bench.target(), to, PART)?;
        // The rest by a plain copy, so that the whole pattern arrives.
        bench.stream.copy(bench.target() + PART as u64, bench.source() + PART as u64, BYTES - PART)?;
    }
    bench.arrived(7, "a copy by a kernel in device memory")
}

fn in_place(bench: &Bench) -> Result<()> {
    let lists = Pinned::new(&bench.device, 2 * size_of::<CopyFragment>())?;
    let there = bench.there.address();
    let each = [(bench.source(), there), (there, bench.target())];
    for (at, (from, to)) in each.into_iter().enumerate() {
        let fragment = CopyFragment { from, to, bytes: BYTES as u32, reserved: 0 };
        // SAFETY: within the lists, aligned; no kernel reads them yet.
        unsafe { lists.as_ptr().cast::<CopyFragment>().add(at).write_volatile(fragment) };
    }
    let kernel = Gather::new(&bench.device)?;
    bench.pattern(8);
    // SAFETY: within memory of the bench and the lists, which stays until the stream is done, or for ever.
    let launched = unsafe {
        kernel.copy_list(&bench.stream, lists.address(), 1, BYTES as u32, 1).and_then(|()| {
            kernel.copy_list(&bench.stream, lists.address() + size_of::<CopyFragment>() as u64, 1, BYTES as u32, 1)
        })
    };
    let ended = launched.and_then(|()| bench.arrived(8, "a kernel's reads and writes of registered host memory"));
    if ended.is_err() {
        std::mem::forget(lists);
    }
    ended
}

/// Return the driver version that the kernels need, as text, if the driver is older.
pub(super) fn kernels_need(version: Version) -> Option<String> {
    (version < Version::KERNELS).then(|| format!("the shipped kernels need {} or newer", Version::KERNELS))
}
