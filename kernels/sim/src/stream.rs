//! Streams: queues, each executed by its own thread at its own random speed.
//!
//! After a fault the device is lost: queues are still emptied, so that nothing hangs, but nothing is executed.

use crate::{
    code::{self, Code},
    context,
    emulator::{self, Kernel},
    event::Record,
    memory,
    order::{self, Access, Clock, Touched},
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
    pub name: String,
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
        /// What it reads is not checked.
        snapshot: bool,
    },
    /// In any order.
    Batch(Vec<(u64, u64, usize)>),
    Fill {
        at: u64,
        byte: u8,
        bytes: usize,
    },
    Launch(Box<Launch>),
    Record(Arc<Record>),
    Wait(Arc<Record>),
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
            Self::Copy { to, from, bytes, .. } => vec![(*to, *bytes), (*from, *bytes)],
            Self::Batch(copies) => copies.iter().flat_map(|&(to, from, bytes)| [(to, bytes), (from, bytes)]).collect(),
            Self::Fill { at, bytes, .. } => vec![(*at, *bytes)],
            Self::WaitWord { at, .. } | Self::WriteWord { at, .. } => vec![(*at, size_of::<u64>())],
            // Accesses of a kernel are checked when it runs.
            Self::Launch(_) | Self::Record(_) | Self::Wait(_) => vec![],
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
            Self::Record(_) | Self::Wait(_) | Self::WaitWord { .. } | Self::WriteWord { .. } => false,
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
    number: usize,
    hardware_queue: u64,
    /// What is ordered before its next operation.
    clock: Mutex<Clock>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<Enqueued>,
    running: Option<Uses>,
    gate: Option<Gate>,
    closed: bool,
}

/// An operation in a queue.
struct Enqueued {
    order: u64,
    op: Op,
    /// What the host had seen.
    seen: Arc<Clock>,
}

impl Stream {
    /// Create a stream and its thread.
    pub fn new(device: usize) -> Result<Arc<Self>, Code> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let hardware_queue = number % settings::get().connections;
        let stream = Arc::new(Self {
            device,
            number: number as usize,
            hardware_queue,
            clock: Mutex::default(),
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
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

    /// Enqueue operations with nothing between them.
    pub fn enqueue(&self, ops: impl IntoIterator<Item = Op>) {
        let _device = settings::get().strict.then(|| DEVICE.read().unwrap_or_else(PoisonError::into_inner));
        let seen = order::seen();
        let enqueued = |op| Enqueued { order: ENQUEUED.fetch_add(1, Ordering::Relaxed), op, seen: seen.clone() };
        self.lock().ops.extend(ops.into_iter().map(enqueued));
        self.changed.notify_one();
    }

    /// Return its handle.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Return whether it is idle, for the host, which has then seen the end of its work.
    pub fn saw_idle(&self) -> bool {
        let queue = self.lock();
        let idle = queue.ops.is_empty() && queue.running.is_none();
        if idle {
            order::see(&self.clock());
        }
        idle
    }

    fn clock(&self) -> MutexGuard<'_, Clock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return whether an operation that has not ended uses it.
    pub fn needs(&self, taken: Taken) -> bool {
        let queue = self.lock();
        queue.running.iter().any(|uses| uses.needs(taken)) || queue.ops.iter().any(|next| next.op.uses().needs(taken))
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
        let will = |next: &Enqueued| matches!(next.op, Op::WaitWord { at, value, .. } if next.order < order && is_shut(at, value));
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

    fn next(&self) -> Option<Enqueued> {
        let mut queue = self.lock();
        queue.running = None;
        queue.gate = None;
        loop {
            if let Some(next) = queue.ops.pop_front() {
                queue.running = Some(next.op.uses());
                if let Op::WaitWord { at, value, by } = &next.op {
                    queue.gate = Some(Gate { order: next.order, at: *at, value: *value, by: by.clone() });
                }
                return Some(next);
            }
            if queue.closed {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self, mut rng: Rng) {
        let mut operation = 0;
        while let Some(Enqueued { order, op, seen }) = self.next() {
            dawdle(&mut rng);
            self.wait_for_queue(order, &op);
            operation += 1;
            let mut clock = self.clock().clone();
            clock.join(&seen);
            clock.set(self.number, operation);
            let lost = context::lost(self.device) != 0;
            let done = match op {
                Op::Record(record) => {
                    record.reach(clock.clone());
                    Ok(())
                }
                _ if lost => Ok(()),
                op => self.carry_out(op, &mut clock, &mut rng),
            };
            *self.clock() = clock;
            order::end(self.number, operation);
            if let Err((code, what)) = done {
                eprintln!("kvtide stand-in: cuda:{}: {what} (seed {})", self.device, settings::get().seed);
                context::lose(self.device, code);
            }
        }
        emulator::release();
    }

    /// Check that accesses of the operation are ordered with those of others.
    fn access(&self, name: &str, clock: &Clock, touched: &[Touched]) -> Result<(), (Code, String)> {
        let access = Access { stream: self.number, operation: clock.of(self.number), name: name.into() };
        order::access(&access, clock, touched).map_err(|why| (code::LAUNCH_FAILED, why))
    }

    fn carry_out(&self, op: Op, clock: &mut Clock, rng: &mut Rng) -> Result<(), (Code, String)> {
        match op {
            Op::Copy { to, from, bytes, snapshot } => {
                let touched = [range(to, bytes, true), range(from, bytes, false)];
                self.access("a copy", clock, if snapshot { &touched[..1] } else { &touched })?;
                self.copy(to, from, bytes)
            }
            Op::Batch(mut copies) => {
                let touched: Vec<Touched> = copies
                    .iter()
                    .flat_map(|&(to, from, bytes)| [range(from, bytes, false), range(to, bytes, true)])
                    .collect();
                self.access("a batch of copies", clock, &touched)?;
                while !copies.is_empty() {
                    let (to, from, bytes) = copies.swap_remove(rng.below(copies.len()));
                    self.copy(to, from, bytes)?;
                }
                Ok(())
            }
            Op::Fill { at, byte, bytes } => {
                self.access("a fill", clock, &[range(at, bytes, true)])?;
                let filled = memory::is_known(at, bytes, self.device) && emulator::fill(at, byte, bytes);
                if filled {
                    Ok(())
                } else {
                    Err((code::ILLEGAL_ADDRESS, format!("fill of {bytes} bytes at {at:#x}: not memory")))
                }
            }
            Op::Launch(launch) => {
                let touched = emulator::launch(&launch, self.device, clock, rng.draw())?;
                self.access(&launch.name, clock, &touched)
            }
            Op::Record(record) => {
                record.reach(clock.clone());
                Ok(())
            }
            Op::Wait(record) => {
                clock.join(&record.wait());
                Ok(())
            }
            Op::WaitWord { at, value, .. } => {
                self.wait_word(at, value)?;
                clock.join(&order::ended());
                Ok(())
            }
            Op::WriteWord { at, value } => {
                let word = word(at)?;
                order::see(clock);
                word.store(value, Ordering::Release);
                Ok(())
            }
        }
    }

    fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), (Code, String)> {
        let known = [to, from].iter().all(|&at| memory::is_known(at, bytes, self.device));
        if known && emulator::copy(to, from, bytes) {
            return Ok(());
        }
        let text = format!("copy of {bytes} bytes from {from:#x} to {to:#x}: not all of it is memory");
        Err((code::ILLEGAL_ADDRESS, text))
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

fn range(at: u64, bytes: usize, write: bool) -> Touched {
    (at, at + bytes as u64, write)
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
    if !at.is_multiple_of(8) || memory::find(at).is_none() {
        return Err((code::ILLEGAL_ADDRESS, format!("a stream's word at {at:#x}: not memory")));
    }
    // SAFETY: aligned, and in memory that is known now; unmapping it while a stream uses it breaks the driver's rules.
    Ok(unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(at as usize) })
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
