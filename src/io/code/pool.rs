//! A few threads that encode, decode, encrypt and decrypt for one disk.
//!
//! What somebody waits for (reads) comes before what nobody does (write-back). Works are boxes that are used again; how many are
//! on their way is bounded by the memory that their pages need (`arena`) and by the disk's jobs. A work comes back always, also
//! if it panics: its pages are then not ok.

use super::work::{Desk, Work};
use crate::mail::Nudge;
use crossbeam::channel::{Receiver, Sender, select_biased, unbounded};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

/// Threads where the configuration leaves it open: half of the cores, and of a large machine so many that they outrun a drive.
const AUTO: (usize, usize) = (2, 8);

/// Works that are told of together, at most.
const TOGETHER: u32 = 4;

/// The threads, and works on their way.
#[derive(Debug)]
pub(crate) struct Pool {
    urgent: Option<Sender<Box<Work>>>,
    later: Option<Sender<Box<Work>>>,
    done: Receiver<Box<Work>>,
    threads: Vec<JoinHandle<()>>,
    #[expect(clippy::vec_box, reason = "boxes are what travels")]
    idle: Vec<Box<Work>>,
    on_their_way: usize,
}

impl Pool {
    /// Starts them; 0: as many as the machine has cores for. `nudge` wakes the thread that takes what is done.
    ///
    /// # Errors
    /// The system starts no more threads, or has no memory for their tables.
    pub fn new(disk: u16, threads: u16, nudge: &Nudge) -> io::Result<Pool> {
        let auto = || std::thread::available_parallelism().map_or(1, |cores| cores.get() / 2).clamp(AUTO.0, AUTO.1);
        let count = if threads == 0 { auto() } else { threads.into() };
        // Bounded by who sends: see the head.
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
            let (first, second, finished, nudge) = (first.clone(), second.clone(), finished.clone(), nudge.clone());
            let desk = Desk::new()?;
            let builder = std::thread::Builder::new().name(format!("kvtide-code{disk}-{number}"));
            pool.threads.push(builder.spawn(move || serve(desk, &first, &second, &finished, &nudge))?);
        }
        Ok(pool)
    }

    /// Threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// A box to be filled.
    pub fn blank(&mut self) -> Box<Work> {
        self.idle.pop().unwrap_or_default()
    }

    /// Has a work done.
    pub fn send(&mut self, work: Box<Work>, urgent: bool) {
        let to = if urgent { &self.urgent } else { &self.later };
        let sent = to.as_ref().is_some_and(|to| to.send(work).is_ok());
        assert!(sent, "its threads live as long as the pool");
        self.on_their_way += 1;
    }

    /// A work that was done.
    pub fn take(&mut self) -> Option<Box<Work>> {
        let work = self.done.try_recv().ok()?;
        self.on_their_way -= 1;
        Some(work)
    }

    /// Takes a box back; it lets go of memory and keys.
    pub fn give(&mut self, mut work: Box<Work>) {
        work.pages.clear();
        work.task.subkey = None;
        self.idle.push(work);
    }

    /// Whether a work that was done can be taken.
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Waits until all works are done, and forgets them.
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
                tracing::error!("a thread that encodes and decodes panicked");
            }
        }
    }
}

fn serve(
    mut desk: Desk,
    urgent: &Receiver<Box<Work>>,
    later: &Receiver<Box<Work>>,
    done: &Sender<Box<Work>>,
    nudge: &Nudge,
) {
    let mut untold = 0;
    loop {
        let work = select_biased! {
            recv(urgent) -> work => work,
            recv(later) -> work => work,
        };
        // Both ends are dropped together.
        let Ok(mut work) = work else { return };
        if catch_unwind(AssertUnwindSafe(|| work.carry_out(&mut desk))).is_err() {
            tracing::error!("encoding or decoding panicked; the pages of job {} are lost to it", work.task.job);
            work.pages.iter_mut().for_each(|page| page.ok = false);
            match Desk::new() {
                Ok(new) => desk = new,
                Err(error) => tracing::error!("a thread that encodes and decodes goes on with old tables: {error}"),
            }
        }
        if done.send(work).is_err() {
            return;
        }
        // While more is to be done the taker is woken for several at once: waking it costs as much as encrypting a small page.
        untold += 1;
        if untold >= TOGETHER || (urgent.is_empty() && later.is_empty()) {
            untold = 0;
            nudge.nudge();
        }
    }
}
