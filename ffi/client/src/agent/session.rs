//! One session with a daemon: what its channels, lanes and copy thread share.

use super::{
    attention::Memory,
    counters::Counters,
    nudge::Nudge,
    protocol::{Mover, Shared},
    pump::{self, Pump, Round},
};
use crate::{
    Error, Result,
    memory::{Held, Names, Tier0},
    process,
};
use crossbeam::queue::ArrayQueue;
use kvtide_wire::{
    hello::Goodbye,
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

/// The copy thread's announcement: it sleeps, with nothing to do.
pub(crate) const IDLE: u32 = 1;
/// The copy thread's announcement: it sleeps while jobs wait for lanes; a lane that moved must wake it.
pub(crate) const FOR_LANES: u32 = 2;
/// How long a session that leaves waits for copies of a device. After that the daemon waits for the process's exit.
const LEAVE_MAX: Duration = Duration::from_secs(1);
/// Blocks that the session's reserve holds at most.
pub(crate) const RESERVE_MAX: usize = 4096;

/// What is shared. Channels, lanes and the copy thread each hold it.
pub(crate) struct Session {
    pub shared: Arc<Shared>,
    pub tier0: Arc<Tier0>,
    pub counters: Counters,
    pub timeout: Duration,
    /// What is remembered of pages' attention, and how long a step waits for a page that it picked.
    pub attention: Memory,
    pub max_stall: Duration,
    /// Blocks that are ready to be appended, and how many the engine wants there.
    pub reserve: ArrayQueue<u32>,
    pub reserve_level: AtomicU32,
    pub reserve_asked: AtomicU32,
    /// Requests in flight, over all channels, of which copies to and from the engine's own memory may be under way.
    pub copying: AtomicU32,
    /// What the numbers of the engine's own blocks stand for; `None`: themselves.
    names: Mutex<Option<Arc<Names>>>,
    /// Classes of tier 0 that are being resized.
    pub resizing: Resizing,
    /// Free sequence slots.
    pub seq_slots: ArrayQueue<u32>,
    owner: u32,
    socket: Socket,
    /// 0 while the daemon is there, else the status that ended the session.
    ended: AtomicI32,
    /// The copy thread shall end.
    pub stop: AtomicBool,
    pump: Mutex<Pump>,
    /// Log updates of which sleeping lanes were told.
    told: AtomicU64,
    pub copier: Nudge,
    pub lanes: Box<[Nudge]>,
    /// Engine threads that pump while they wait, and the word by which the daemon knows that the pump sleeps.
    helpers: AtomicU32,
    sleeper: Sleeper,
    /// What the copy thread does for lanes whose streams wait.
    #[cfg(feature = "cuda")]
    pub errands: super::errands::Errands,
    /// Keeps both regions mapped in a forked child: it never had the maps, so they must not be unmapped there.
    regions: ManuallyDrop<(Sleeper, Waker)>,
}

/// Which size classes are being resized: one at a time of each.
#[derive(Default)]
pub(crate) struct Resizing(AtomicU64);

impl Resizing {
    /// Whether the caller may resize the class; it must say when that has ended.
    pub fn begin(&self, class: usize) -> bool {
        let bit = 1 << class;
        self.0.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// The class is as it shall be.
    pub fn end(&self, class: usize) {
        self.0.fetch_and(!(1 << class), Ordering::AcqRel);
    }
}

const _: () = assert!(kvtide_wire::geometry::CLASSES_MAX <= u64::BITS as usize);

/// What a session is made of.
pub(crate) struct Parts {
    pub shared: Arc<Shared>,
    pub tier0: Arc<Tier0>,
    pub attention: Memory,
    pub timeout: Duration,
    pub max_stall: Duration,
    pub socket: Socket,
    pub pump: Pump,
    pub sleeper: Sleeper,
    pub waker: Waker,
}

impl Session {
    pub fn new(parts: Parts) -> Result<Session> {
        let Parts { shared, tier0, attention, timeout, max_stall, socket, pump, sleeper, waker } = parts;
        let nudge = || {
            Nudge::new().map_err(|source| Error::System {
                doing: "make an eventfd".into(),
                status: Status::System,
                source,
            })
        };
        let bounds = *shared.geometry().bounds();
        let seq_slots = ArrayQueue::new(bounds.seqs_max as usize);
        for seq in 0..bounds.seqs_max {
            let _ = seq_slots.push(seq); // as many places as slots
        }
        Ok(Session {
            counters: Counters::default(),
            reserve: ArrayQueue::new(RESERVE_MAX),
            reserve_level: AtomicU32::new(0),
            reserve_asked: AtomicU32::new(0),
            copying: AtomicU32::new(0),
            names: Mutex::default(),
            resizing: Resizing::default(),
            seq_slots,
            owner: process::id(),
            ended: AtomicI32::new(0),
            stop: AtomicBool::new(false),
            pump: Mutex::new(pump),
            told: AtomicU64::new(0),
            copier: nudge()?,
            lanes: (0..bounds.lanes).map(|_| nudge()).collect::<Result<_>>()?,
            helpers: AtomicU32::new(0),
            #[cfg(feature = "cuda")]
            errands: super::errands::Errands::default(),
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

    /// Whether this process may use the session.
    ///
    /// # Errors
    /// `Fork`.
    pub fn ours(&self) -> std::result::Result<(), Status> {
        if self.owner == process::id() { Ok(()) } else { Err(Status::Fork) }
    }

    /// Whether the daemon is there, as far as is known.
    pub fn alive(&self) -> bool {
        self.ended.load(Ordering::Acquire) == 0
    }

    /// Whether requests may be sent.
    ///
    /// # Errors
    /// `Fork`, `Daemon`; `Device`: that is what ended the session.
    pub fn usable(&self) -> std::result::Result<(), Status> {
        self.ours()?;
        match self.ended.load(Ordering::Acquire) {
            0 => Ok(()),
            code if code == Status::Device.code() => Err(Status::Device),
            _ => Err(Status::Daemon),
        }
    }

    /// Whether the daemon has closed the socket. Before the copy thread runs, nobody else looks.
    pub fn hung_up(&self) -> bool {
        pump::hung_up(&self.socket)
    }

    /// Ends the session, once: every wait returns.
    pub fn fail(&self, status: Status) {
        if self.end(status) {
            self.hang_up();
        }
    }

    /// Ends the session in order: the daemon is told that no copy of it is under way any more; it would else keep what
    /// copies were under way to and from until this process exits. It is not told where a device's copies have not ended in [`LEAVE_MAX`], nor
    /// where the session has windows. Waits for a round of the pump and for those copies; must not be called with the pump held.
    pub fn leave(&self) {
        if !self.end(Status::Daemon) {
            return;
        }
        self.wake_all();
        // Whoever had the pump when the session ended has let go of it, and no round begins any more. What windows show is read by whom
        // the engine likes.
        let settled = self.shared.geometry().windows() == 0 && self.pump().settle(Instant::now() + LEAVE_MAX).is_ok();
        if settled {
            // A daemon that has gone, or does not read, needs no telling: it sees the end of the connection.
            let _ = self.socket.send(&Goodbye.encode(), &[]);
        }
        self.hang_up();
    }

    /// True the first time: from now on no request is sent and no round begins, and every wait returns.
    fn end(&self, status: Status) -> bool {
        self.ended.compare_exchange(0, status.code(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn hang_up(&self) {
        // The daemon learns of it by EOF, threads that sleep on the socket by HUP. Not connected: they know already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.copier.wake();
        self.lanes.iter().for_each(Nudge::wake);
    }

    /// The table of the blocks' names, if they have any.
    pub fn names(&self) -> MutexGuard<'_, Option<Arc<Names>>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request that copies, and holds the names of the engine's own blocks for it, if they have any.
    ///
    /// # Errors
    /// `Range`: one of them stands for nothing.
    pub fn hold(self: &Arc<Self>, blocks: &[u32]) -> std::result::Result<Copying, Status> {
        let names = self.names();
        let held = names.as_ref().map(|names| names.hold(blocks)).transpose()?;
        self.copying.fetch_add(1, Ordering::AcqRel);
        Ok(Copying { held, session: Arc::clone(self) })
    }

    /// Whether a request is in flight that copies.
    pub fn is_copying(&self) -> bool {
        self.copying.load(Ordering::Acquire) > 0
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The pump, waiting for whoever has it: rounds are short.
    pub fn pump(&self) -> MutexGuard<'_, Pump> {
        self.pump.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pumps one round if nobody else does.
    pub fn try_round(&self) -> Round {
        match self.pump.try_lock() {
            Ok(mut pump) => self.round(&mut pump),
            Err(TryLockError::Poisoned(poisoned)) => self.round(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Round::default(),
        }
    }

    /// Pumps one round.
    pub fn round(&self, pump: &mut Pump) -> Round {
        if !self.alive() {
            return Round::default();
        }
        let round = pump.round(&self.socket, &self.counters);
        self.tell_lanes();
        round.unwrap_or_else(|status| {
            self.fail(status);
            Round::default()
        })
    }

    /// Reads what the daemon says on the socket.
    pub fn read_socket(&self, pump: &mut Pump) {
        if let Err(status) = pump.read_socket(&self.socket) {
            self.fail(status);
        }
    }

    /// Wakes lanes that sleep in a boundary if the table has changed since: they may have what they wait for, and the mover
    /// may wait for them.
    fn tell_lanes(&self) {
        let updates = self.shared.updates();
        if self.told.swap(updates, Ordering::Relaxed) == updates {
            return;
        }
        fence(Ordering::SeqCst); // pairs with the one in Nudge::announce
        self.lanes.iter().filter(|lane| lane.announced() != 0).for_each(Nudge::wake);
        #[cfg(feature = "cuda")]
        if !self.errands.is_empty() && self.copier.announced() != 0 {
            self.copier.wake();
        }
    }

    /// A lane has applied updates: wakes the copy thread if jobs wait for that.
    pub fn lane_moved(&self) {
        fence(Ordering::SeqCst); // pairs with the one in Nudge::announce
        if self.copier.announced() == FOR_LANES {
            self.copier.wake();
        }
    }

    /// The calling thread pumps while it waits: the daemon need not ring for jobs meanwhile.
    pub fn helping(&self) -> Helping<'_> {
        self.helpers.fetch_add(1, Ordering::AcqRel);
        self.sleeper.awake();
        Helping(self)
    }

    /// Whether an engine's thread pumps.
    pub fn is_helped(&self) -> bool {
        self.helpers.load(Ordering::Relaxed) > 0
    }

    /// Copy thread: announces that it will sleep. The caller looks for work once more afterwards.
    pub fn announce_sleep(&self, how: u32) {
        self.sleeper.announce();
        self.copier.announce(how);
    }

    /// Copy thread: is awake.
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

/// A request between the engine's own blocks and ours, from before it is sent until it has ended.
pub(crate) struct Copying {
    /// The names that its copies go by, which stand for the same blocks until then.
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

/// A thread that pumps while it waits.
pub(crate) struct Helping<'a>(&'a Session);

impl Drop for Helping<'_> {
    fn drop(&mut self) {
        let session = self.0;
        let last = session.helpers.fetch_sub(1, Ordering::AcqRel) == 1;
        fence(Ordering::SeqCst); // pairs with the one in Nudge::announce: the copy thread sees that nobody helps, or we that it sleeps
        if !last || session.copier.announced() == 0 {
            return;
        }
        // The copy thread sleeps, and while we helped the daemon saw no announcement: make it again, and look whether
        // something came that nobody was rung for.
        session.sleeper.announce();
        wake::announced();
        let left = {
            let mut pump = session.pump();
            let round = session.round(&mut pump);
            pump.has_work() || round.waiting || round.pending
        };
        if left {
            session.copier.wake();
        }
    }
}

/// Makes the mover of a session.
pub(crate) fn mover(shared: &Arc<Shared>) -> Result<Mover> {
    Mover::new(Arc::clone(shared)).ok_or_else(|| no_memory("the agent's jobs"))
}

/// The system has no memory for what it is asked.
pub(crate) fn no_memory(what: &str) -> Error {
    let source = rustix::io::Errno::NOMEM.into();
    Error::System { doing: format!("allocate {what}"), status: Status::System, source }
}
