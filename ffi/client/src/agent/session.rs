//! One session with a daemon: the state that its channels, lanes and copy thread share.

use super::{
    attention::Memory,
    copy_loop::{self, CopyLoop, Round},
    counters::Counters,
    protocol::{Mover, Shared},
    thread_waker::ThreadWaker,
};
use crate::{
    Error, Result,
    client::Refusal,
    memory::{Held, Numbering, Tier0},
    process,
};
use crossbeam::queue::ArrayQueue;
use kvtide_wire::{
    hello::Detach,
    os::{
        session::{Sleeper, Waker},
        socket::Socket,
    },
    status::Status,
    wake,
};
use std::{
    mem::ManuallyDrop,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence},
    },
    time::{Duration, Instant},
};

/// The copy thread's announcement: it sleeps and has nothing to do.
pub(crate) const IDLE: u32 = 1;
/// The copy thread's announcement: it sleeps while jobs wait for lanes. A lane that has made progress must wake it.
pub(crate) const FOR_LANES: u32 = 2;
/// How long a detaching session waits for copies of a device. After that the daemon waits for the process to exit.
const LEAVE_MAX: Duration = Duration::from_secs(1);

/// Shared state of a session. Channels, lanes and the copy thread each hold a reference.
pub(crate) struct Session {
    pub shared: Arc<Shared>,
    pub tier0: Arc<Tier0>,
    pub counters: Counters,
    pub timeout: Duration,
    /// Digests and attention shares of pages, and how long a step waits for a page that it picked.
    pub attention: Memory,
    pub max_stall: Duration,
    /// Requests in flight, over all channels, that may be copying to or from the engine's own memory.
    pub copying: AtomicU32,
    /// How requests refer to the engine's own blocks.
    numbering: Mutex<Numbering>,
    /// Classes of tier 0 that are being resized.
    pub resizing: Resizing,
    /// Free sequence slots.
    pub seq_slots: ArrayQueue<u32>,
    owner: u32,
    socket: Socket,
    /// 0 while the daemon is connected, else the status that ended the session.
    ended: AtomicI32,
    /// Tells the copy thread to stop.
    pub stop: AtomicBool,
    copy_loop: Mutex<CopyLoop>,
    /// Number of log updates when sleeping lanes were last woken.
    told: AtomicU64,
    pub copier: ThreadWaker,
    pub lanes: Box<[ThreadWaker]>,
    /// Engine threads that run the copy loop while they wait, and the word that tells the daemon that the copy loop sleeps.
    helpers: AtomicU32,
    sleeper: Sleeper,
    /// Background tasks of the copy thread for lanes with waiting streams.
    #[cfg(feature = "cuda")]
    pub background_tasks: super::background_tasks::BackgroundTasks,
    /// Keeps both regions from being unmapped in a forked child: the child never inherited the mappings.
    regions: ManuallyDrop<(Sleeper, Waker)>,
}

/// Size classes that are being resized, each at most once at a time.
#[derive(Default)]
pub(crate) struct Resizing(AtomicU64);

impl Resizing {
    /// Report whether the caller may resize the class. If so, it must call [`Resizing::end`] afterwards.
    pub fn begin(&self, class: usize) -> bool {
        let bit = 1 << class;
        self.0.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Mark the class's resize as finished.
    pub fn end(&self, class: usize) {
        self.0.fetch_and(!(1 << class), Ordering::AcqRel);
    }
}

const _: () = assert!(kvtide_wire::geometry::CLASSES_MAX <= u64::BITS as usize);

/// Parts that a session is built from.
pub(crate) struct Parts {
    pub shared: Arc<Shared>,
    pub tier0: Arc<Tier0>,
    pub attention: Memory,
    pub timeout: Duration,
    pub max_stall: Duration,
    pub socket: Socket,
    pub copy_loop: CopyLoop,
    pub sleeper: Sleeper,
    pub waker: Waker,
}

impl Session {
    pub fn new(parts: Parts) -> Result<Session> {
        let Parts { shared, tier0, attention, timeout, max_stall, socket, copy_loop, sleeper, waker } = parts;
        let new_waker = || {
            ThreadWaker::new().map_err(|source| Error::System {
                doing: "create an eventfd".into(),
                status: Status::System,
                source,
            })
        };
        let bounds = *shared.geometry().bounds();
        let seq_slots = ArrayQueue::new(bounds.seqs_max as usize);
        for seq in 0..bounds.seqs_max {
            let _ = seq_slots.push(seq); // the queue has room for every slot
        }
        Ok(Session {
            counters: Counters::default(),
            copying: AtomicU32::new(0),
            numbering: Mutex::default(),
            resizing: Resizing::default(),
            seq_slots,
            owner: process::id(),
            ended: AtomicI32::new(0),
            stop: AtomicBool::new(false),
            copy_loop: Mutex::new(copy_loop),
            told: AtomicU64::new(0),
            copier: new_waker()?,
            lanes: (0..bounds.lanes).map(|_| new_waker()).collect::<Result<_>>()?,
            helpers: AtomicU32::new(0),
            #[cfg(feature = "cuda")]
            background_tasks: super::background_tasks::BackgroundTasks::default(),
            regions: ManuallyDrop::new((sleeper.clone(), waker)),
            sleeper,
            shared,
            tier0,
            attention,
            timeout,
            max_stall,
            socket,
        })
    }

    /// Check that this process may use the session.
    ///
    /// # Errors
    /// `Fork`.
    pub fn ours(&self) -> std::result::Result<(), Status> {
        if self.owner == process::id() { Ok(()) } else { Err(Status::Fork) }
    }

    /// Report whether the session is still open; a daemon that has just died may not be noticed yet.
    pub fn alive(&self) -> bool {
        self.ended.load(Ordering::Acquire) == 0
    }

    /// Check that requests may be sent.
    ///
    /// # Errors
    /// `Fork`, `Daemon`; `Device` if a device failure ended the session.
    pub fn usable(&self) -> std::result::Result<(), Status> {
        self.ours()?;
        match self.ended.load(Ordering::Acquire) {
            0 => Ok(()),
            code if code == Status::Device.code() => Err(Status::Device),
            _ => Err(Status::Daemon),
        }
    }

    /// Report whether the daemon has closed the socket. Before the copy thread runs, no other code checks this.
    pub fn hung_up(&self) -> bool {
        copy_loop::hung_up(&self.socket)
    }

    /// End the session, once. Every wait returns.
    pub fn fail(&self, status: Status) {
        if self.end(status) {
            self.hang_up();
        }
    }

    /// Detach in order: tell the daemon that no copy of this session is in flight any more. Otherwise the daemon keeps the
    /// memory of those copies until this process exits. The message is not sent if a device's copies do not end within
    /// [`LEAVE_MAX`], or if the session has mapped frames. Waits for a round of the copy loop and for those copies, so the
    /// caller must not hold the copy loop.
    pub fn leave(&self) {
        if !self.end(Status::Daemon) {
            return;
        }
        self.wake_all();
        // `copy_loop()` waits for the thread that held the copy loop when the session ended; no new round begins. The engine may let any
        // code read the mapped frames, so the end of those reads is unknown.
        let settled =
            self.shared.geometry().mapped_frames() == 0 && self.copy_loop().settle(Instant::now() + LEAVE_MAX).is_ok();
        if settled {
            // A daemon that is gone or does not read needs no message: it sees the end of the connection.
            let _ = self.socket.send(&Detach.encode(), &[]);
        }
        self.hang_up();
    }

    /// Mark the session as ended. Return true the first time. From now on no request is sent, no round begins, and every wait
    /// returns.
    fn end(&self, status: Status) -> bool {
        self.ended.compare_exchange(0, status.code(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn hang_up(&self) {
        // The daemon sees EOF, threads that sleep on the socket see HUP. An error means not connected: both already know.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.copier.wake();
        self.lanes.iter().for_each(ThreadWaker::wake);
    }

    /// Return how requests refer to the engine's own blocks.
    pub fn numbering(&self) -> MutexGuard<'_, Numbering> {
        self.numbering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Count a request that copies, and pin the names of the engine's own blocks for it, if they have names.
    ///
    /// # Errors
    /// As [`Numbering::check`].
    pub fn hold(self: &Arc<Self>, blocks: &[u32]) -> std::result::Result<Copying, Refusal> {
        let numbering = self.numbering();
        let held = numbering.hold(blocks)?;
        self.copying.fetch_add(1, Ordering::AcqRel);
        Ok(Copying { held, session: Arc::clone(self) })
    }

    /// Report whether a request that copies is in flight.
    pub fn is_copying(&self) -> bool {
        self.copying.load(Ordering::Acquire) > 0
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Lock the copy loop. Waits for the thread that holds it: rounds are short.
    pub fn copy_loop(&self) -> MutexGuard<'_, CopyLoop> {
        self.copy_loop.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Run one round of the copy loop if no other thread does.
    pub fn try_round(&self) -> Round {
        match self.copy_loop.try_lock() {
            Ok(mut copy_loop) => self.round(&mut copy_loop),
            Err(TryLockError::Poisoned(poisoned)) => self.round(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Round::default(),
        }
    }

    /// Run one round of the copy loop.
    pub fn round(&self, copy_loop: &mut CopyLoop) -> Round {
        if !self.alive() {
            return Round::default();
        }
        let round = copy_loop.round(&self.socket, &self.counters);
        self.tell_lanes();
        round.unwrap_or_else(|status| {
            self.fail(status);
            Round::default()
        })
    }

    /// Read the daemon's messages on the socket.
    pub fn read_socket(&self, copy_loop: &mut CopyLoop) {
        if let Err(status) = copy_loop.read_socket(&self.socket) {
            self.fail(status);
        }
    }

    /// Wake lanes that sleep in a boundary if the table has changed. Their pages may have arrived, and the mover may wait for
    /// them.
    fn tell_lanes(&self) {
        let updates = self.shared.updates();
        if self.told.swap(updates, Ordering::Relaxed) == updates {
            return;
        }
        fence(Ordering::SeqCst); // pairs with the fence in ThreadWaker::announce
        self.lanes.iter().filter(|lane| lane.announced() != 0).for_each(ThreadWaker::wake);
        #[cfg(feature = "cuda")]
        if !self.background_tasks.is_empty() && self.copier.announced() != 0 {
            self.copier.wake();
        }
    }

    /// Tell the session that a lane applied updates: wake the copy thread if jobs wait for that.
    pub fn lane_moved(&self) {
        fence(Ordering::SeqCst); // pairs with the fence in ThreadWaker::announce
        if self.copier.announced() == FOR_LANES {
            self.copier.wake();
        }
    }

    /// Register the calling thread as one that runs the copy loop while it waits. Meanwhile the daemon need not ring for jobs.
    pub fn helping(&self) -> Helping<'_> {
        self.helpers.fetch_add(1, Ordering::AcqRel);
        self.sleeper.awake();
        Helping(self)
    }

    /// Report whether an engine thread runs the copy loop.
    pub fn is_helped(&self) -> bool {
        self.helpers.load(Ordering::Relaxed) > 0
    }

    /// Copy thread: announce the sleep. The caller must check for work once more afterwards.
    pub fn announce_sleep(&self, how: u32) {
        self.sleeper.announce();
        self.copier.announce(how);
    }

    /// Copy thread: withdraw the announcement.
    pub fn awake(&self) {
        self.copier.awake();
        self.sleeper.awake();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.owner == process::id() {
            // SAFETY: dropped once, here; nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.regions) };
        }
    }
}

/// Request between the engine's own blocks and the daemon's. Lives from before the request is sent until it has ended.
pub(crate) struct Copying {
    /// Names that its copies use. They map to the same blocks while this is held.
    held: Option<Held>,
    session: Arc<Session>,
}

impl Drop for Copying {
    fn drop(&mut self) {
        drop(self.held.take());
        self.session.copying.fetch_sub(1, Ordering::AcqRel);
    }
}

impl std::fmt::Debug for Copying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copying").field("held", &self.held).finish_non_exhaustive()
    }
}

/// Registration of a thread that runs the copy loop while it waits.
pub(crate) struct Helping<'a>(&'a Session);

impl Drop for Helping<'_> {
    fn drop(&mut self) {
        let session = self.0;
        let last = session.helpers.fetch_sub(1, Ordering::AcqRel) == 1;
        // Pairs with the fence in ThreadWaker::announce: the copy thread sees that no helper is left, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if !last || session.copier.announced() == 0 {
            return;
        }
        // The copy thread sleeps, and the daemon saw no announcement while this thread ran the copy loop. So announce again, and
        // check for work that arrived without a ring.
        session.sleeper.announce();
        wake::announced();
        let left = {
            let mut copy_loop = session.copy_loop();
            let round = session.round(&mut copy_loop);
            copy_loop.has_work() || round.waiting || round.pending
        };
        if left {
            session.copier.wake();
        }
    }
}

/// Create the mover of a session.
pub(crate) fn mover(shared: &Arc<Shared>) -> Result<Mover> {
    Mover::new(Arc::clone(shared)).ok_or_else(|| no_memory("the agent's jobs"))
}

/// Build the error for memory that the system refused.
pub(crate) fn no_memory(what: &str) -> Error {
    let source = rustix::io::Errno::NOMEM.into();
    Error::System { doing: format!("allocate {what}"), status: Status::System, source }
}
