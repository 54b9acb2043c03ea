//! Engine with `preadv` and `pwritev` on a few threads, for kernels and containers without io_uring.

use super::{Command, Done, Engine, Piece, Wait};
use crossbeam::channel::{Receiver, Sender, bounded};
use kvtide_rt::mail::{Address, Mailbox, mailbox};
use kvtide_types::IoKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Threads per disk: enough to keep a consumer drive busy, and few enough to be cheap when idle.
pub const WORKERS: u32 = 8;

/// Bytes read at once from the eventfd.
const RINGS: usize = 64;

/// A command for a worker.
struct Work(Command);

// SAFETY: `Engine::push` promises that list and memory stay valid until the completion, on any thread.
unsafe impl Send for Work {}

/// The engine.
pub struct Threads {
    work: Option<Sender<Work>>,
    done: Mailbox<Done>,
    bell: OwnedFd,
    workers: Vec<JoinHandle<()>>,
    on_their_way: usize,
}

impl Threads {
    /// Create an engine for one file and up to `depth` commands in flight. `bell` becomes readable to wake the thread, and is read
    /// here.
    pub fn new(depth: u32, file: &Arc<File>, bell: OwnedFd) -> io::Result<Threads> {
        let (work, commands) = bounded::<Work>(depth as usize);
        let (address, done) = mailbox(depth as usize).map_err(io::Error::other)?;
        let mut workers = Vec::new();
        for number in 0..WORKERS.min(depth) {
            let (file, commands, address) = (Arc::clone(file), commands.clone(), address.clone());
            let builder = std::thread::Builder::new().name(format!("kvtide-io-w{number}"));
            workers.push(builder.spawn(move || carry_out(&file, &commands, &address))?);
        }
        Ok(Threads { work: Some(work), done, bell, workers, on_their_way: 0 })
    }

    fn take(&mut self, done: &mut Vec<Done>) {
        let before = done.len();
        done.extend(std::iter::from_fn(|| self.done.take()));
        self.on_their_way -= done.len() - before;
    }
}

fn carry_out(file: &File, commands: &Receiver<Work>, done: &Address<Done>) {
    for Work(command) in commands {
        let Command { token, kind, offset, pieces, count, .. } = command;
        let (fd, list, offset) = (file.as_raw_fd(), pieces.cast::<libc::iovec>(), offset as libc::off_t);
        // SAFETY: `Engine::push` promises that list and memory stay valid until the completion, which is sent below.
        let moved = unsafe {
            match kind {
                IoKind::Read => libc::preadv(fd, list, count as libc::c_int, offset),
                IoKind::Write => libc::pwritev(fd, list, count as libc::c_int, offset),
            }
        };
        let failed = |_| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        let result = u32::try_from(moved).map_err(failed);
        if done.send(Done { token, result }).is_err() {
            return;
        }
    }
}

impl Engine for Threads {
    // SAFETY: the trait states the caller's obligations; the code below relies on them.
    unsafe fn push(&mut self, command: &Command) {
        let work = self.work.as_ref().expect("the sender is taken only on drop");
        work.send(Work(*command)).expect("workers live as long as the queue");
        self.on_their_way += 1;
    }

    fn enter(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), Errno> {
        self.done.awake();
        self.take(done);
        if wait.want == 0 || !done.is_empty() {
            return Ok(());
        }
        self.done.announce();
        let mut fds =
            [PollFd::new(&self.bell, PollFlags::IN), PollFd::from_borrowed_fd(self.done.as_fd(), PollFlags::IN)];
        if self.done.is_empty() {
            let most = wait.most.and_then(|most| Timespec::try_from(most).ok());
            match poll(&mut fds, most.as_ref()) {
                Ok(_) if fds[0].revents().is_empty() => {}
                Ok(_) => {
                    // A failed read is harmless: the next poll shows the state.
                    let _ = rustix::io::read(&self.bell, &mut [0; RINGS]);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.done.awake();
        self.done.quiet();
        self.take(done);
        Ok(())
    }

    // SAFETY: as at `push`.
    unsafe fn register(&mut self, _: u16, _: Piece) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn unregister(&mut self, _: u16) {}
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.work = None;
        // A worker cannot be joined if its device does not respond; it ends with the process.
        if self.on_their_way == 0 {
            for worker in self.workers.drain(..) {
                if worker.join().is_err() {
                    tracing::error!("an I/O worker panicked");
                }
            }
        }
    }
}
