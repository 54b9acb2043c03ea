//! Engine with io_uring: registered file, registered buffers, and the eventfd read in the ring. The thread therefore sleeps in one
//! place, and one system call starts and completes many commands.

use super::super::memory::Aligned;
use super::{Command, Done, Engine, Piece, Wait};
use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use kvtide_types::IoKind;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Bytes read at once from the eventfd: a mailbox signals once per sleep, so at most a few are pending.
const RINGS: usize = 64;
/// Token of the eventfd read.
const BELL: u64 = u64::MAX;
/// Entries beyond the depth: the eventfd read, and resubmissions before completions are reaped.
const SPARE: u32 = 8;
/// Number of buffers that can be registered.
pub const BUFFERS: u32 = 4096;
/// Pause when the kernel has no memory for requests.
const SHORT_OF_MEMORY: Duration = Duration::from_millis(1);

/// A ring and its supported features.
pub struct UringSetup {
    ring: IoUring,
    /// The buffer table exists.
    pub buffers: bool,
    /// READV_FIXED and WRITEV_FIXED are supported (Linux 6.15).
    vectors: bool,
    /// Completion mode supported by the kernel, from cheapest to most expensive: deferred, cooperative, interrupting.
    pub completion: &'static str,
}

impl UringSetup {
    /// Create a ring for `depth` commands in flight. It belongs to the calling thread.
    ///
    /// # Errors
    /// The error of `io_uring_setup`: EPERM and ENOSYS mean that io_uring is not allowed here.
    pub fn new(depth: u32, with_buffers: bool) -> io::Result<UringSetup> {
        let entries = (depth + SPARE).next_power_of_two();
        let mut deferred = IoUring::builder();
        deferred.dontfork().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        let mut cooperative = IoUring::builder();
        cooperative.dontfork().setup_coop_taskrun().setup_taskrun_flag();
        let mut plain = IoUring::builder();
        plain.dontfork();
        let invalid = |e: &io::Error| e.raw_os_error() == Some(Errno::INVAL.raw_os_error());
        // Linux 6.1 and later, 5.19 and later, any.
        let (ring, completion) = match deferred.build(entries) {
            Err(e) if invalid(&e) => match cooperative.build(entries) {
                Err(e) if invalid(&e) => (plain.build(entries)?, "interrupting"),
                other => (other?, "cooperative"),
            },
            other => (other?, "deferred"),
        };
        if !ring.params().is_feature_nodrop() || !ring.params().is_feature_ext_arg() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring is older than Linux 5.11"));
        }
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let vectors = probe.is_supported(opcode::ReadvFixed::CODE) && probe.is_supported(opcode::WritevFixed::CODE);
        let buffers = with_buffers && ring.submitter().register_buffers_sparse(BUFFERS).is_ok();
        Ok(UringSetup { ring, buffers, vectors, completion })
    }

    /// Check that this process can register this much memory.
    ///
    /// # Errors
    /// The cause; ENOMEM means the limit of locked memory.
    pub fn try_buffer(&self, memory: &Aligned) -> io::Result<()> {
        let (submitter, piece) = (self.ring.submitter(), Piece::new(memory.as_ptr(), memory.len()));
        // SAFETY: the memory outlives this call, and is unregistered again before the call ends.
        unsafe {
            submitter.register_buffers_update(0, &[piece.0], None)?;
            submitter.register_buffers_update(0, &[EMPTY], None)
        }
    }
}

/// No buffer.
const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// The engine.
pub struct Uring {
    ring: IoUring,
    file: Arc<File>,
    /// The file is registered as number 0.
    file_registered: bool,
    bell: OwnedFd,
    /// Target of the eventfd read; leaked, since the kernel may still write to it after the ring is dropped.
    rings: *mut u8,
    /// A read of the eventfd is in flight.
    listens: bool,
    vectors: bool,
    /// The kernel can wait for several completions and accept one after a while (Linux 6.12).
    batches: bool,
}

impl Uring {
    /// Create an engine for one file; `bell` becomes readable to wake the thread, and is read here.
    ///
    /// # Errors
    /// The eventfd cannot be set to blocking, which a read in the ring needs.
    pub fn new(setup: UringSetup, file: Arc<File>, bell: OwnedFd) -> io::Result<Uring> {
        let UringSetup { ring, vectors, .. } = setup;
        let file_registered = ring.submitter().register_files(&[file.as_raw_fd()]).is_ok();
        let batches = ring.params().is_feature_min_timeout();
        // A read of a non-blocking descriptor would not wait. This thread has its own file description.
        let flags = rustix::fs::fcntl_getfl(&bell)?;
        rustix::fs::fcntl_setfl(&bell, flags.difference(OFlags::NONBLOCK))?;
        let rings = Box::leak(Box::new([0; RINGS])).as_mut_ptr();
        Ok(Uring { ring, file, file_registered, bell, rings, listens: false, vectors, batches })
    }

    fn entry(&self, command: &Command) -> squeue::Entry {
        let Command { kind, offset, pieces, count, buffer, .. } = *command;
        // SAFETY: `Engine::push` promises that the list is valid and not empty.
        let first = unsafe { (*pieces).0 };
        let (list, at, bytes) = (pieces.cast::<libc::iovec>(), first.iov_base.cast::<u8>(), first.iov_len as u32);
        let buffer = buffer.filter(|_| count == 1 || self.vectors);
        macro_rules! on_the_file {
            ($op:ident($($argument:expr),*)) => {
                if self.file_registered {
                    opcode::$op::new(Fixed(0), $($argument),*).offset(offset).build()
                } else {
                    opcode::$op::new(Fd(self.file.as_raw_fd()), $($argument),*).offset(offset).build()
                }
            };
        }
        match (kind, count, buffer) {
            (IoKind::Read, 1, Some(buffer)) => on_the_file!(ReadFixed(at, bytes, buffer)),
            (IoKind::Write, 1, Some(buffer)) => on_the_file!(WriteFixed(at, bytes, buffer)),
            (IoKind::Read, 1, None) => on_the_file!(Read(at, bytes)),
            (IoKind::Write, 1, None) => on_the_file!(Write(at, bytes)),
            (IoKind::Read, _, Some(buffer)) => on_the_file!(ReadvFixed(list, count, buffer)),
            (IoKind::Write, _, Some(buffer)) => on_the_file!(WritevFixed(list, count, buffer)),
            (IoKind::Read, _, None) => on_the_file!(Readv(list, count)),
            (IoKind::Write, _, None) => on_the_file!(Writev(list, count)),
        }
    }

    /// Append an entry; if the queue is full, submit the queued ones first.
    fn queue(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: `Engine::push` promises that the entry's memory stays valid until its completion; the eventfd is owned by
            // `self`.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            if let Err(error) = self.ring.submit() {
                tracing::debug!("io_uring cannot take requests now: {error}");
                std::thread::yield_now();
            }
        }
    }

    /// Call `io_uring_enter` once, if necessary.
    fn call(&mut self, wait: Wait) -> Result<(), Errno> {
        let time = wait.most.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(time) = &time {
            args = args.timespec(time);
        }
        let batch = wait.want > 1 && wait.batch_us > 0 && self.batches;
        if batch {
            args = args.min_wait_usec(wait.batch_us);
        }
        let want = if batch { wait.want } else { wait.want.min(1) };
        let (submitter, mut queue, _) = self.ring.split();
        queue.sync();
        if want == 0 && queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
            return Ok(());
        }
        let called = submitter.submit_with_args(want as usize, &args);
        match called.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO)) {
            Ok(_) | Err(Errno::INTR | Errno::TIME) => Ok(()),
            // Entries that were not taken stay in the queue.
            Err(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                // PACE: bounded by SHORT_OF_MEMORY; completions that free memory arrive meanwhile.
                std::thread::sleep(SHORT_OF_MEMORY);
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }
}

impl Engine for Uring {
    // SAFETY: the trait states the caller's obligations; the code below relies on them.
    unsafe fn push(&mut self, command: &Command) {
        let entry = self.entry(command).user_data(u64::from(command.token));
        self.queue(&entry);
    }

    fn enter(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), Errno> {
        if wait.want > 0 && !self.listens {
            let read = opcode::Read::new(Fd(self.bell.as_raw_fd()), self.rings, RINGS as u32).offset(u64::MAX);
            self.queue(&read.build().user_data(BELL));
            self.listens = true;
        }
        self.call(wait)?;
        for entry in self.ring.completion() {
            if entry.user_data() == BELL {
                self.listens = false;
                continue;
            }
            let result = u32::try_from(entry.result()).map_err(|_| -entry.result());
            done.push(Done { token: entry.user_data() as u32, result });
        }
        Ok(())
    }

    // SAFETY: as at `push`.
    unsafe fn register(&mut self, buffer: u16, piece: Piece) -> Result<(), Errno> {
        let submitter = self.ring.submitter();
        // SAFETY: the caller promises that the memory stays valid until it is unregistered.
        let registered = unsafe { submitter.register_buffers_update(u32::from(buffer), &[piece.0], None) };
        registered.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }

    fn unregister(&mut self, buffer: u16) {
        // SAFETY: no memory is registered.
        let gone = unsafe { self.ring.submitter().register_buffers_update(u32::from(buffer), &[EMPTY], None) };
        if let Err(error) = gone {
            tracing::error!("io_uring cannot unregister buffer {buffer}: {error}");
        }
    }
}
