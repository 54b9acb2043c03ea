//! Streams, events, and the operations enqueued on them.

use super::{Handles, Owned, driver, graph, list, put};
use crate::{
    capture,
    code::{self, Code},
    context,
    event::Event,
    fault, memory, order,
    settings::{self, DEVICES_MAX},
    stream::{DEVICE, Op, Stream, Taken},
};
use std::{
    cell::RefCell,
    ffi::{CStr, c_int, c_uint},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

static STREAMS: Handles<Stream> = Handles::new();
static EVENTS: Handles<Event> = Handles::new();

impl Owned for Stream {
    const KIND: &'static str = "stream";

    fn device(&self) -> usize {
        self.device
    }
}

impl Owned for Event {
    const KIND: &'static str = "event";

    fn device(&self) -> usize {
        self.device
    }
}

/// Destroy the streams and events of a context that ends.
pub(super) fn destroy_all(at: usize) {
    for stream in STREAMS.all().iter().filter(|stream| stream.device == at) {
        stream.close();
    }
    STREAMS.remove_if(|stream| stream.device == at);
    EVENTS.remove_if(|event| event.device == at);
}

/// The legacy default streams, by device.
static LEGACY: Mutex<[Option<Arc<Stream>>; DEVICES_MAX]> = Mutex::new([const { None }; DEVICES_MAX]);

thread_local! {
    /// This thread's default streams, by device.
    static OWN: RefCell<[Option<Arc<Stream>>; DEVICES_MAX]> = const { RefCell::new([const { None }; DEVICES_MAX]) };
}

/// Maximum wait for the device in a call that frees memory.
const DRAIN_MAX: Duration = Duration::from_secs(60);

fn default_of(streams: &mut [Option<Arc<Stream>>; DEVICES_MAX], at: usize) -> Result<Arc<Stream>, Code> {
    if let Some(stream) = &streams[at] {
        return Ok(Arc::clone(stream));
    }
    let made = Stream::new(at)?;
    streams[at] = Some(Arc::clone(&made));
    // For `drain`; its handle is not passed out.
    STREAMS.add(Arc::clone(&made));
    Ok(made)
}

/// Enqueue an operation; it becomes part of the graph if the stream is being captured.
pub(super) fn enqueue(stream: &Stream, op: Op) -> Result<(), Code> {
    stream.enqueue(capture::take(stream.handle(), op)?);
    Ok(())
}

/// Return a stream by handle: 0 and 1 are the legacy default stream, 2 is the thread's own.
pub(super) fn stream(handle: usize) -> Result<Arc<Stream>, Code> {
    let at = context::current()?;
    match handle {
        0 | 1 => default_of(&mut LEGACY.lock().unwrap_or_else(PoisonError::into_inner), at),
        2 => OWN.with_borrow_mut(|own| default_of(own, at)),
        handle => STREAMS.get(handle),
    }
}

/// Refuse to take away what an operation that has not ended uses: on a GPU it would access whatever is there then.
pub(super) fn unused(taken: Taken, call: &str) -> Result<(), Code> {
    let at = context::current()?;
    if STREAMS.all().iter().any(|stream| stream.needs(taken)) {
        return Err(context::fault(at, &format!("{call} while operations on it are pending")));
    }
    Ok(())
}

/// Wait until a device has completed all work, as some calls of the driver do.
pub(super) fn drain(at: usize, call: &str) -> Result<(), Code> {
    let strict = settings::get().strict;
    let _device = strict.then(|| DEVICE.write().unwrap_or_else(PoisonError::into_inner));
    let deadline = Instant::now() + DRAIN_MAX;
    for stream in STREAMS.all().iter().filter(|stream| stream.device == at) {
        while !stream.saw_idle() {
            let gate = stream.gate();
            if gate.is_some() && strict || Instant::now() > deadline {
                let waiting = match gate {
                    Some((at, by)) => format!("a stream that waits for the word at {at:#x}, enqueued by thread {by:?}"),
                    None => "a stream that does not end".to_owned(),
                };
                eprintln!(
                    "kvtide stand-in: {call} on thread {:?} waits for the device, and so for {waiting}",
                    thread_name()
                );
                context::lose(at, code::LAUNCH_FAILED);
                return Err(code::LAUNCH_FAILED);
            }
            // PACE: bounded by the deadline.
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    Ok(())
}

/// Return the name of this thread.
fn thread_name() -> String {
    // The system's name: a thread of the program is unknown to this library's copy of std.
    let mut name = [0_u8; 16];
    // SAFETY: the buffer is as long as said; the call ends it with a zero byte.
    unsafe { libc::pthread_getname_np(libc::pthread_self(), name.as_mut_ptr().cast(), name.len()) };
    CStr::from_bytes_until_nul(&name).map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}

/// Refuse addresses that a GPU could copy only by accident: neither its memory nor within one registration.
fn copyable(address: u64, bytes: usize, stream: &Stream, call: &str) -> Result<(), Code> {
    known(address, bytes, stream, call)?;
    if memory::is_copyable(address, bytes) {
        return Ok(());
    }
    eprintln!("kvtide stand-in: {call}: {bytes} bytes at {address:#x} lie in two registrations");
    Err(code::INVALID_VALUE)
}

/// Refuse copies of a batch that write what another one reads or writes: they have no order. Return the index of one of them.
fn overlapping(to: &[u64], from: &[u64], bytes: &[usize], call: &str) -> Option<usize> {
    let mut order: Vec<usize> = (0..to.len()).collect();
    order.sort_unstable_by_key(|&at| to[at]);
    let end = |at: usize| to[at] + bytes[at] as u64;
    if let Some(pair) = order.windows(2).find(|pair| end(pair[0]) > to[pair[1]]) {
        eprintln!("kvtide stand-in: {call}: copies {} and {} write the same bytes", pair[0], pair[1]);
        return Some(pair[1]);
    }
    // Targets are disjoint, so the last one that begins before a source's end is the one that may overlap it.
    let writer = |read: usize| {
        let before = order.partition_point(|&write| to[write] < from[read] + bytes[read] as u64);
        order[..before].last().copied().filter(|&write| end(write) > from[read])
    };
    let (read, write) = (0..to.len()).find_map(|read| writer(read).map(|write| (read, write)))?;
    eprintln!("kvtide stand-in: {call}: copy {read} reads what copy {write} writes");
    Some(read)
}

/// Refuse addresses that a GPU could access only by accident: neither its memory nor registered.
fn known(address: u64, bytes: usize, stream: &Stream, call: &str) -> Result<(), Code> {
    if memory::is_known(address, bytes, stream.device) {
        return Ok(());
    }
    let at = stream.device;
    eprintln!("kvtide stand-in: {call}: {bytes} bytes at {address:#x} are not all memory of cuda:{at} or registered");
    Err(code::INVALID_VALUE)
}

driver! {
    fn cuStreamCreateWithPriority(to: *mut usize, flags: c_uint, _priority: c_int) {
        let at = context::current()?;
        // kvtide uses no stream that is ordered with the legacy one.
        if flags != 1 {
            return Err(code::NOT_SUPPORTED);
        }
        put(to, STREAMS.add(Stream::new(at)?))?;
    }

    fn cuStreamDestroy_v2(handle: usize) {
        STREAMS.remove(handle)?.close();
    }

    fn cuStreamGetCtx(handle: usize, to: *mut usize) {
        let at = if handle <= 2 { context::current()? } else { STREAMS.of_any(handle)?.device };
        put(to, context::handle_of(at))?;
    }

    fn cuStreamQuery(handle: usize) {
        let stream = stream(handle)?;
        capture::conflict(stream.handle())?;
        let idle = stream.saw_idle();
        // A fault of its work is reported now at the latest.
        context::current()?;
        if !idle {
            return Err(code::NOT_READY);
        }
    }

    fn cuStreamIsCapturing(handle: usize, to: *mut c_uint) {
        put(to, capture::status(stream(handle)?.handle()))?;
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) {
        let wanted = list(mode, 1)?[0];
        put(mode, capture::exchange(wanted)?)?;
    }

    fn cuStreamBeginCapture_v2(handle: usize, mode: c_uint) {
        // The legacy default stream cannot be captured.
        if handle <= 1 {
            return Err(code::CAPTURE_UNSUPPORTED);
        }
        capture::begin(stream(handle)?.handle(), mode)?;
    }

    fn cuStreamEndCapture(handle: usize, graph: *mut usize) {
        let stream = stream(handle)?;
        put(graph, graph::add(capture::end(stream.handle())?)?)?;
    }

    fn cuStreamWaitEvent(handle: usize, event: usize, flags: c_uint) {
        // The only call that takes an event of another context.
        let (stream, event) = (stream(handle)?, EVENTS.of_any(event)?);
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        // A wait for a captured event would draw this stream into the capture.
        if event.is_captured() {
            return Err(code::CAPTURE_ISOLATION);
        }
        if let Some(record) = event.last() {
            enqueue(&stream, Op::Wait(record))?;
        }
    }

    fn cuStreamWaitValue64_v2(handle: usize, at: u64, value: u64, flags: c_uint) {
        let stream = stream(handle)?;
        // Greater or equal, as a signed difference.
        if flags != 0 || !at.is_multiple_of(8) {
            return Err(code::INVALID_VALUE);
        }
        known(at, 8, &stream, "cuStreamWaitValue64")?;
        enqueue(&stream, Op::WaitWord { at, value, by: thread_name() })?;
    }

    fn cuStreamWriteValue64_v2(handle: usize, at: u64, value: u64, flags: c_uint) {
        let stream = stream(handle)?;
        if flags != 0 || !at.is_multiple_of(8) {
            return Err(code::INVALID_VALUE);
        }
        known(at, 8, &stream, "cuStreamWriteValue64")?;
        enqueue(&stream, Op::WriteWord { at, value })?;
    }

    fn cuEventCreate(to: *mut usize, flags: c_uint) {
        let at = context::current()?;
        if flags & !2 != 0 {
            return Err(code::NOT_SUPPORTED);
        }
        put(to, EVENTS.add(Event::new(at, flags & 2 == 0)))?;
    }

    fn cuEventDestroy_v2(handle: usize) {
        EVENTS.remove(handle)?;
    }

    fn cuEventRecord(handle: usize, on: usize) {
        let (event, stream) = (EVENTS.get(handle)?, stream(on)?);
        if capture::takes(stream.handle())? {
            event.capture();
        } else {
            enqueue(&stream, Op::Record(event.record()))?;
        }
    }

    fn cuEventQuery(handle: usize) {
        let event = EVENTS.get(handle)?;
        if event.is_captured() {
            return Err(code::CAPTURED_EVENT);
        }
        let last = event.last();
        let reached = last.as_ref().map(|record| record.reached());
        // A fault of earlier work is reported now at the latest.
        match context::lost(event.device) {
            0 => {}
            lost => return Err(lost),
        }
        match reached {
            Some(None) => return Err(code::NOT_READY),
            Some(Some(reached)) => order::see(&reached.clock),
            None => {}
        }
    }

    fn cuEventElapsedTime(milliseconds: *mut f32, from: usize, to: usize) {
        let (from, to) = (EVENTS.get(from)?, EVENTS.get(to)?);
        if !from.timed || !to.timed {
            return Err(code::INVALID_HANDLE);
        }
        let (Some(from), Some(to)) = (from.last(), to.last()) else { return Err(code::INVALID_HANDLE) };
        let (Some(began), Some(ended)) = (from.reached(), to.reached()) else { return Err(code::NOT_READY) };
        put(milliseconds, ended.when.saturating_duration_since(began.when).as_secs_f32() * 1e3)?;
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, handle: usize) {
        let stream = stream(handle)?;
        copyable(to, bytes, &stream, "cuMemcpyAsync, target")?;
        copyable(from, bytes, &stream, "cuMemcpyAsync, source")?;
        if overlapping(&[to], &[from], &[bytes], "cuMemcpyAsync").is_some() {
            return Err(code::INVALID_VALUE);
        }
        enqueue(&stream, Op::Copy { to, from, bytes, snapshot: fault::is_snapshot() })?;
    }

    fn cuMemsetD8Async(at: u64, byte: u8, bytes: usize, handle: usize) {
        let stream = stream(handle)?;
        known(at, bytes, &stream, "cuMemsetD8Async")?;
        enqueue(&stream, Op::Fill { at, byte, bytes })?;
    }

    /// The signature of CUDA 12.8. If one copy is invalid, nothing is copied.
    fn cuMemcpyBatchAsync(
        to: *const u64,
        from: *const u64,
        bytes: *const usize,
        count: usize,
        attributes: *const Attributes,
        firsts: *const usize,
        sets: usize,
        failed: *mut usize,
        handle: usize,
    ) {
        if handle <= 1 || count == 0 || sets == 0 || sets > count {
            return Err(code::INVALID_VALUE);
        }
        let stream = stream(handle)?;
        let (attributes, firsts) = (list(attributes, sets)?, list(firsts, sets)?);
        let rising = firsts[0] == 0 && firsts.windows(2).all(|pair| pair[0] < pair[1]) && firsts[sets - 1] < count;
        if !rising || attributes.iter().any(|a| !(1..=3).contains(&a.order) || a.flags > 1) {
            put(failed, usize::MAX)?;
            return Err(code::INVALID_VALUE);
        }
        let (to, from, bytes) = (list(to, count)?, list(from, count)?, list(bytes, count)?);
        for at in 0..count {
            let each = [(to[at], "target"), (from[at], "source")];
            if bytes[at] == 0 || each.iter().any(|&(address, _)| copyable(address, bytes[at], &stream, "cuMemcpyBatchAsync").is_err()) {
                put(failed, at)?;
                return Err(code::INVALID_VALUE);
            }
        }
        if let Some(at) = overlapping(to, from, bytes, "cuMemcpyBatchAsync") {
            put(failed, at)?;
            return Err(code::INVALID_VALUE);
        }
        enqueue(&stream, Op::Batch((0..count).map(|at| (to[at], from[at], bytes[at])).collect()))?;
    }
}

/// `CUmemcpyAttributes`.
#[repr(C)]
pub struct Attributes {
    order: u32,
    source: [u32; 2],
    target: [u32; 2],
    flags: u32,
}
