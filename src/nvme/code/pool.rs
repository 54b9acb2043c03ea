//! Coding threads of one disk: encode, decode, encrypt and decrypt pages.
//!
//! Reads have priority over write-back. Work items are recycled boxes. Their number in flight is bounded by the memory for their
//! pages (`arena`) and by the disk's jobs. Every work item comes back, even after a panic; its pages are then marked as not ok.

use super::work::{Work, WorkerScratch};
use crossbeam::channel::{Receiver, Sender, select_biased, unbounded};
use kvtide_rt::mail::Waker;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

/// Minimum and maximum number of threads if not configured: half of the cores, at most as many as outrun a drive.
const AUTO: (usize, usize) = (2, 8);

/// Maximum finished works per wake-up.
const TOGETHER: u32 = 4;

/// The threads, and the works in flight.
#[derive(Debug)]
pub struct Pool {
    urgent: Option<Sender<Box<Work>>>,
    later: Option<Sender<Box<Work>>>,
    done: Receiver<Box<Work>>,
    threads: Vec<JoinHandle<()>>,
    #[expect(clippy::vec_box, reason = "boxes are sent between threads")]
    idle: Vec<Box<Work>>,
    on_their_way: usize,
}

impl Pool {
    /// Start the threads; 0: choose the number by the cores. `waker` wakes the thread that collects finished works.
    ///
    /// # Errors
    /// A thread cannot be started, or there is not enough memory for its tables.
    pub fn new(disk: u16, threads: u16, waker: &Waker) -> io::Result<Pool> {
        let auto = || std::thread::available_parallelism().map_or(1, |cores| cores.get() / 2).clamp(AUTO.0, AUTO.1);
        let count = if threads == 0 { auto() } else { threads.into() };
        // Bounded by the senders, see the module documentation.
        let (urgent, first) = unbounded();
        let (later, second) = unbounded();
        let (finished, done) = unbounded();
        let mut pool = Pool {
            urgent: Some(urgent),
            later: Some(later),
            done,
            threads: Vec::new(),
            idle: Vec::new(),
            on_their_way: 0,
        };
        for number in 0..count {
            let (first, second, finished, waker) = (first.clone(), second.clone(), finished.clone(), waker.clone());
            let scratch = WorkerScratch::new()?;
            let builder = std::thread::Builder::new().name(format!("kvtide-code{disk}-{number}"));
            pool.threads.push(builder.spawn(move || serve(scratch, &first, &second, &finished, &waker))?);
        }
        Ok(pool)
    }

    /// Return the number of threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Return an empty work item.
    pub fn blank(&mut self) -> Box<Work> {
        self.idle.pop().unwrap_or_default()
    }

    /// Queue a work.
    pub fn send(&mut self, work: Box<Work>, urgent: bool) {
        let to = if urgent { &self.urgent } else { &self.later };
        let sent = to.as_ref().is_some_and(|to| to.send(work).is_ok());
        assert!(sent, "the threads live as long as the pool");
        self.on_their_way += 1;
    }

    /// Return a finished work.
    pub fn take(&mut self) -> Option<Box<Work>> {
        let work = self.done.try_recv().ok()?;
        self.on_their_way -= 1;
        Some(work)
    }

    /// Take a box back for reuse; release its memory and keys.
    pub fn give(&mut self, mut work: Box<Work>) {
        work.pages.clear();
        work.task.subkey = None;
        self.idle.push(work);
    }

    /// Return true if a finished work can be taken.
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Wait until all works are finished, and discard them.
    pub fn rest(&mut self) {
        while self.on_their_way > 0 && self.done.recv().is_ok() {
            self.on_their_way -= 1;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        (self.urgent, self.later) = (None, None);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a coding thread panicked");
            }
        }
    }
}

fn serve(
    mut scratch: WorkerScratch,
    urgent: &Receiver<Box<Work>>,
    later: &Receiver<Box<Work>>,
    done: &Sender<Box<Work>>,
    waker: &Waker,
) {
    let mut untold = 0;
    loop {
        let work = select_biased! {
            recv(urgent) -> work => work,
            recv(later) -> work => work,
        };
        // Both senders are dropped together.
        let Ok(mut work) = work else { return };
        if catch_unwind(AssertUnwindSafe(|| work.carry_out(&mut scratch))).is_err() {
            tracing::error!("panic while coding pages of job {}; the job fails", work.task.job);
            work.pages.iter_mut().for_each(|page| page.ok = false);
            match WorkerScratch::new() {
                Ok(new) => scratch = new,
                Err(error) => {
                    tracing::error!("cannot allocate new coding tables after a panic, reusing the old ones: {error}")
                }
            }
        }
        if done.send(work).is_err() {
            return;
        }
        // With more work queued, wake the collector once for several works: a wake-up costs as much as encrypting a small page.
        untold += 1;
        if untold >= TOGETHER || (urgent.is_empty() && later.is_empty()) {
            untold = 0;
            waker.wake();
        }
    }
}
