//! Streams: queues, each executed by its own thread at its own random speed.
//!
//! After a fault the device is lost: queues are still emptied, so that nothing hangs, but nothing is executed.

use crate::{
    capture,
    code::{self, Code},
    context,
    emulator::{self, Kernel},
    event::Event,
    memory,
    rng::Rng,
    settings,
};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Poll interval of a stream that waits for a word.
const LOOK: Duration = Duration::from_micros(20);

/// A launch with a copy of its parameters from the time of the enqueue.
#[derive(Clone)]
pub(crate) struct Launch {
    pub kernel: Kernel,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    /// Handle of the module that the kernel is from.
    pub module: usize,
    /// `u128`, so that it is aligned for any struct.
    pub params: Vec<u128>,
}

/// Operations of a queue.
#[derive(Clone)]
pub(crate) enum Op {
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
    },
    /// In any order.
    Batch(Vec<(u64, u64, usize)>),
    Fill {
        at: u64,
        byte: u8,
        bytes: usize,
    },
    Launch(Box<Launch>),
    Record(Arc<Event>, u64),
    Wait(Arc<Event>, u64),
    WaitWord {
        at: u64,
        value: u64,
        /// Name of the thread that enqueued it.
        by: String,
    },
    WriteWord {
        at: u64,
        value: u64,
    },
}

/// Memory or module that a call frees.
#[derive(Clone, Copy)]
pub(crate) enum Taken {
    Range { base: u64, bytes: usize },
    Module(usize),
}

/// Memory and module that an operation uses.
#[derive(Default)]
struct Uses {
    ranges: Vec<(u64, usize)>,
    module: Option<usize>,
}

impl Op {
    fn uses(&self) -> Uses {
        let ranges = match self {
            Self::Copy { to, from, bytes } => vec![(*to, *bytes), (*from, *bytes)],
            Self::Batch(copies) => copies.iter().flat_map(|&(to, from, bytes)| [(to, bytes), (from, bytes)]).collect(),
            Self::Fill { at, bytes, .. } => vec![(*at, *bytes)],
            Self::WaitWord { at, .. } | Self::WriteWord { at, .. } => vec![(*at, size_of::<u64>())],
            // Accesses of a kernel are checked when it runs.
            Self::Launch(_) | Self::Record(..) | Self::Wait(..) => vec![],
        };
        let module = if let Self::Launch(launch) = self { Some(launch.module) } else { None };
        Uses { ranges, module }
    }
}

impl Op {
    /// Return whether it runs from a hardware queue: kernels, fills, and copies within the device, which are kernels too.
    fn is_queued(&self) -> bool {
        let on_device = |at: u64| memory::find(at).is_some_and(|range| range.kind != memory::Kind::Registered);
        match self {
            Self::Launch(_) | Self::Fill { .. } => true,
            Self::Copy { to, from, .. } => on_device(*to) && on_device(*from),
            Self::Batch(copies) => copies.iter().any(|&(to, from, _)| on_device(to) && on_device(from)),
            Self::Record(..) | Self::Wait(..) | Self::WaitWord { .. } | Self::WriteWord { .. } => false,
        }
    }
}

impl Uses {
    fn needs(&self, taken: Taken) -> bool {
        match taken {
            Taken::Module(module) => self.module == Some(module),
            Taken::Range { base, bytes } => {
                self.ranges.iter().any(|&(at, length)| at < base + bytes as u64 && base < at + length as u64)
            }
        }
    }
}

/// A stream that waits for a word.
struct Gate {
    order: u64,
    at: u64,
    value: u64,
    by: String,
}

/// Held by calls that wait for the device, and shared by calls that enqueue, if the settings are strict.
pub(crate) static DEVICE: RwLock<()> = RwLock::new(());

/// Streams by the order of their creation, which gives their hardware queues.
static ALL: Mutex<Vec<Weak<Stream>>> = Mutex::new(Vec::new());

/// Order of all enqueued operations.
static ENQUEUED: AtomicU64 = AtomicU64::new(0);

/// A stream; its handle is the address inside the `Arc`.
pub(crate) struct Stream {
    pub device: usize,
    hardware_queue: u64,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// With their order.
    ops: VecDeque<(u64, Op)>,
    running: Option<Uses>,
    gate: Option<Gate>,
    closed: bool,
}

impl Stream {
    /// Create a stream and its thread.
    pub fn new(device: usize) -> Result<Arc<Self>, Code> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let hardware_queue = number % settings::get().connections;
        let stream = Arc::new(Self { device, hardware_queue, queue: Mutex::default(), changed: Condvar::new() });
        if settings::get().strict {
            let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|stream| stream.strong_count() > 0);
            all.push(Arc::downgrade(&stream));
        }
        let its = Arc::clone(&stream);
        let seed = settings::get().seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let started = std::thread::Builder::new().name(format!("kvt-sim-{number}")).spawn(move || its.work(Rng(seed)));
        started.map(|_| stream).map_err(|_| code::OUT_OF_MEMORY)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueue an operation; it becomes part of the graph if the stream is being captured.
    pub fn enqueue(&self, op: Op) -> Result<(), Code> {
        if let Some(op) = capture::take(self.handle(), op)? {
            self.enqueue_all([op]);
        }
        Ok(())
    }

    /// Enqueue operations with nothing between them.
    pub fn enqueue_all(&self, ops: impl IntoIterator<Item = Op>) {
        let _device = settings::get().strict.then(|| DEVICE.read().unwrap_or_else(PoisonError::into_inner));
        self.lock().ops.extend(ops.into_iter().map(|op| (ENQUEUED.fetch_add(1, Ordering::Relaxed), op)));
        self.changed.notify_one();
    }

    /// Return its handle.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub fn is_idle(&self) -> bool {
        let queue = self.lock();
        queue.ops.is_empty() && queue.running.is_none()
    }

    /// Return whether an operation that has not ended uses it.
    pub fn needs(&self, taken: Taken) -> bool {
        let queue = self.lock();
        queue.running.iter().any(|uses| uses.needs(taken)) || queue.ops.iter().any(|(_, op)| op.uses().needs(taken))
    }

    /// Return the word that it waits for, and the thread that enqueued the wait.
    pub fn gate(&self) -> Option<(u64, String)> {
        let queue = self.lock();
        // A word that was written ends the wait, though the stream may not have looked yet.
        queue.gate.as_ref().filter(|gate| is_shut(gate.at, gate.value)).map(|gate| (gate.at, gate.by.clone()))
    }

    /// Return whether it waits for a word, or will, by an operation enqueued before this one.
    fn waits_before(&self, order: u64) -> bool {
        let queue = self.lock();
        let waits = queue.gate.as_ref().is_some_and(|gate| gate.order < order && is_shut(gate.at, gate.value));
        let will =
            |(of, op): &(u64, Op)| matches!(op, Op::WaitWord { at, value, .. } if *of < order && is_shut(*at, *value));
        waits || queue.ops.iter().any(will)
    }

    /// Close the stream: enqueued operations still run, then its thread ends.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Wait while another stream of the same hardware queue waits for a word, if that wait was enqueued before the operation. Copy
    /// engines have their own queues.
    fn wait_for_queue(&self, order: u64, op: &Op) {
        if !settings::get().strict || !op.is_queued() {
            return;
        }
        let stands = |stream: &Arc<Self>| {
            let shares = stream.hardware_queue == self.hardware_queue && !std::ptr::eq(&raw const **stream, self);
            shares && stream.waits_before(order)
        };
        let all =
            || ALL.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        while all().iter().any(stands) && context::lost(self.device) == 0 {
            // PACE: ends with the other stream's wait, or the device.
            std::thread::sleep(LOOK);
        }
    }

    fn next(&self) -> Option<(u64, Op)> {
        let mut queue = self.lock();
        queue.running = None;
        queue.gate = None;
        loop {
            if let Some(op) = queue.ops.pop_front() {
                queue.running = Some(op.1.uses());
                if let (order, Op::WaitWord { at, value, by }) = &op {
                    queue.gate = Some(Gate { order: *order, at: *at, value: *value, by: by.clone() });
                }
                return Some(op);
            }
            if queue.closed {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self, mut rng: Rng) {
        while let Some((order, op)) = self.next() {
            dawdle(&mut rng);
            self.wait_for_queue(order, &op);
            let lost = context::lost(self.device) != 0;
            let done = match op {
                Op::Record(event, record) => {
                    event.reach(record);
                    Ok(())
                }
                _ if lost => Ok(()),
                op => self.carry_out(op, &mut rng),
            };
            if let Err((code, what)) = done {
                eprintln!("kvtide stand-in: cuda:{}: {what} (seed {})", self.device, settings::get().seed);
                context::lose(self.device, code);
            }
        }
        emulator::release();
    }

    fn carry_out(&self, op: Op, rng: &mut Rng) -> Result<(), (Code, String)> {
        match op {
            Op::Copy { to, from, bytes } => copy(to, from, bytes),
            Op::Batch(mut copies) => {
                while !copies.is_empty() {
                    let (to, from, bytes) = copies.swap_remove(rng.below(copies.len()));
                    copy(to, from, bytes)?;
                }
                Ok(())
            }
            Op::Fill { at, byte, bytes } => {
                let filled = memory::is_known(at, bytes) && emulator::fill(at, byte, bytes);
                if filled {
                    Ok(())
                } else {
                    Err((code::ILLEGAL_ADDRESS, format!("fill of {bytes} bytes at {at:#x}: not memory")))
                }
            }
            Op::Launch(launch) => emulator::launch(&launch, rng.draw()),
            Op::Record(event, record) => {
                event.reach(record);
                Ok(())
            }
            Op::Wait(event, record) => {
                event.wait(record);
                Ok(())
            }
            Op::WaitWord { at, value, .. } => self.wait_word(at, value),
            Op::WriteWord { at, value } => {
                let word = word(at)?;
                word.store(value, Ordering::Release);
                Ok(())
            }
        }
    }

    /// Wait for a word with CUDA's GEQ.
    fn wait_word(&self, at: u64, value: u64) -> Result<(), (Code, String)> {
        while is_before(word(at)?, value) {
            if context::lost(self.device) != 0 {
                return Ok(());
            }
            // PACE: ends when the word is written or the device is lost; the waiter of the stream has a time limit.
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// Return whether a wait for a word has not ended.
fn is_shut(at: u64, value: u64) -> bool {
    word(at).is_ok_and(|word| is_before(word, value))
}

/// Return whether a word has not reached a value, as CUDA compares: signed, and wrapping around.
fn is_before(word: &AtomicU64, value: u64) -> bool {
    (word.load(Ordering::Acquire).wrapping_sub(value) as i64) < 0
}

/// Return a word that hosts and devices share. It is looked up each time, because a word in freed memory is a fault.
fn word(at: u64) -> Result<&'static AtomicU64, (Code, String)> {
    if !at.is_multiple_of(8) || !memory::is_known(at, 8) {
        return Err((code::ILLEGAL_ADDRESS, format!("a stream's word at {at:#x}: not memory")));
    }
    // SAFETY: aligned, and in memory that is known now; unmapping it while a stream uses it breaks the driver's rules.
    Ok(unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(at as usize) })
}

fn copy(to: u64, from: u64, bytes: usize) -> Result<(), (Code, String)> {
    let known = memory::is_known(to, bytes) && memory::is_known(from, bytes);
    if known && emulator::copy(to, from, bytes) {
        return Ok(());
    }
    Err((code::ILLEGAL_ADDRESS, format!("copy of {bytes} bytes from {from:#x} to {to:#x}: not all of it is memory")))
}

/// Delay the stream at random, so that an unsynchronised order does not arise by itself.
fn dawdle(rng: &mut Rng) {
    match rng.below(16) {
        // PACE: at most 200 µs, to let other streams overtake.
        0 => std::thread::sleep(Duration::from_micros(rng.below(200) as u64)),
        1..=4 => std::thread::yield_now(),
        _ => {}
    }
}
