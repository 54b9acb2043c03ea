//! A disk in a temporary directory, host memory, and mailboxes for answers.

use super::super::engine::Engine;
use super::super::thread::{Seams, Tell};
use super::super::*;
use crate::Error;
use crossbeam::channel::{Receiver, unbounded};
use kvtide_rt::mail::{Address, Mailbox, Waited, mailbox};
use kvtide_types::{IoClass, IoKind, Status};
use kvtide_wire::os::map::Access;
use kvtide_wire::os::memfd::Memfd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than any operation here takes.
pub const LONG: Duration = Duration::from_secs(30);
pub const MIB: u64 = 1 << 20;

/// The path of a directory that does not exist yet, in a directory that is deleted on drop.
#[derive(Debug)]
pub struct Dir(pub PathBuf, pub TempDir);

impl Dir {
    pub fn new() -> Dir {
        Dir::within(&std::env::temp_dir())
    }

    pub fn within(parent: &Path) -> Dir {
        let parent = tempfile::tempdir_in(parent).expect("a writable directory");
        Dir(parent.path().join("disk"), parent)
    }

    pub fn settings(&self) -> Settings {
        Settings {
            place: Place::Dir(self.0.clone()),
            capacity_bytes: 4 * MIB,
            region_bytes: 2 * MIB,
            reserve_free: Reserve::Bytes(0),
            depth: 16,
            ..Settings::default()
        }
    }
}

/// A running disk and its user.
pub struct Rig {
    pub thread: Option<DiskThread>,
    pub events: Receiver<DiskEvent>,
    pub reply: Address<Box<Transfer>>,
    pub boxes: Mailbox<Box<Transfer>>,
    pub log_ended: Address<Box<LogRequest>>,
    pub log_requests: Mailbox<Box<LogRequest>>,
    pub next: u32,
}

impl Rig {
    pub fn start(settings: &Settings) -> Rig {
        Rig::with(settings, |engine| engine).expect("cannot start the disk")
    }

    pub fn with(
        settings: &Settings,
        wrap: impl FnOnce(Box<dyn Engine>) -> Box<dyn Engine> + Send + 'static,
    ) -> Result<Rig, Error> {
        Rig::of(DiskThread::open(settings)?, wrap)
    }

    /// Start an open disk.
    pub fn of(
        open: OpenDisk,
        wrap: impl FnOnce(Box<dyn Engine>) -> Box<dyn Engine> + Send + 'static,
    ) -> Result<Rig, Error> {
        let (told, events) = unbounded();
        let tell: Tell = Box::new(move |event| {
            let _ = told.send(event);
        });
        let thread = open.start_with(tell, Seams { engine: Box::new(wrap) })?;
        let (reply, boxes) = mailbox(4096).expect("cannot create a mailbox");
        let (log_ended, log_requests) = mailbox(4096).expect("cannot create a mailbox");
        Ok(Rig { thread: Some(thread), events, reply, boxes, log_ended, log_requests, next: 0 })
    }

    pub fn disk(&self) -> &Disk {
        self.thread.as_ref().expect("the disk runs").disk()
    }

    pub fn status(&self) -> DiskStatus {
        self.thread.as_ref().expect("the disk runs").status().expect("the disk answers")
    }

    pub fn send(&self, message: DiskMessage) {
        self.disk().address().send(message).expect("the disk runs");
    }

    /// Wait for an event.
    pub fn until(&self, wanted: impl Fn(&DiskEvent) -> bool) -> DiskEvent {
        let until = Instant::now() + LONG;
        loop {
            let event = self.events.recv_deadline(until).expect("no event in time");
            if wanted(&event) {
                return event;
            }
        }
    }

    /// Create a transfer of a slot in region 0.
    pub fn transfer(&mut self, kind: IoKind, slot: u32, slot_bytes: u64, parts: Vec<Part>) -> Box<Transfer> {
        self.next += 1;
        Box::new(Transfer {
            space: 1,
            id: self.next,
            kind,
            class: if kind == IoKind::Read { IoClass::Demand } else { IoClass::WriteBack },
            offset: self.disk().offset(0, u64::from(slot) * slot_bytes),
            bytes: slot_bytes,
            whole: true,
            key: SlotKey { region: 0, slot, generation: 1 },
            code: None,
            salt: 0,
            parts,
            reply: self.reply.clone(),
            status: Status::Internal,
            errno: 0,
            waited_us: 0,
            device_us: 0,
        })
    }

    /// Return the next box that comes back.
    pub fn take(&self) -> Box<Transfer> {
        self.take_within(LONG).expect("no box in time")
    }

    pub fn take_within(&self, time: Duration) -> Option<Box<Transfer>> {
        let until = Instant::now() + time;
        loop {
            if let Some(transfer) = self.boxes.take() {
                return Some(transfer);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let left = Timespec::try_from(left).expect("a short time");
            poll(&mut [PollFd::new(&self.boxes, PollFlags::IN)], Some(&left)).expect("poll");
            self.boxes.quiet();
        }
    }

    pub fn log(&self, message: LogMessage) {
        self.disk().log().send(message).expect("the log thread runs");
    }

    /// Return the next log request that comes back.
    pub fn log_ended(&self) -> Box<LogRequest> {
        match self.log_requests.wait_until(Some(Instant::now() + LONG)) {
            Waited::Message(request) => request,
            other => panic!("no answer of the log in time: {other:?}"),
        }
    }

    /// Run a transfer and wait for it.
    pub fn run(&self, transfer: Box<Transfer>) -> Box<Transfer> {
        self.send(DiskMessage::Transfer(transfer));
        self.take()
    }

    pub fn end(mut self) {
        self.thread.take().expect("the disk runs").end();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.end();
        }
    }
}

/// Return true if io_uring is allowed here; else print a note, and the caller skips its test.
pub fn uring_works() -> bool {
    let dir = Dir::new();
    let opened = DiskThread::open(&Settings { engine: IoEngine::Uring, ..dir.settings() });
    opened.inspect_err(|error| eprintln!("not tried: {error}")).is_ok()
}

/// Allocate host memory.
pub fn memory(bytes: u64) -> Arc<Memory> {
    let memfd = Memfd::shared("kvtide-io-test", bytes).expect("memory");
    Arc::new(Memory::new(memfd.map(Access::ReadWrite).expect("a map")).expect("it is writable"))
}

/// Fill a frame with bytes that no other frame has.
pub fn fill(memory: &Memory, offset: u64, bytes: u64, seed: u64) {
    assert!(memory.holds(offset, bytes));
    for index in 0..bytes {
        let value = ((index ^ (index >> 8)).wrapping_mul(31) + seed * 17) as u8;
        // SAFETY: inside the memory; no transfer of these tests is in flight.
        unsafe { memory.at(offset + index).write(value) };
    }
}

/// Return a frame's bytes.
pub fn bytes(memory: &Memory, offset: u64, bytes: u64) -> Vec<u8> {
    assert!(memory.holds(offset, bytes));
    // SAFETY: inside the memory; no transfer of these tests is in flight.
    unsafe { std::slice::from_raw_parts(memory.at(offset), bytes as usize) }.to_vec()
}

/// Return pages of these sizes, packed in the slot as `SlotLayout` does for equal sizes, in frames that are `stride` apart.
pub fn parts(memory: &Arc<Memory>, sizes: &[u32], align: u64, stride: u64) -> Vec<Part> {
    let mut at = 0u64;
    let part = |(plane, &bytes): (usize, &u32)| {
        let begin = at.next_multiple_of(align);
        at = begin + u64::from(bytes);
        let memory = Arc::clone(memory);
        Part {
            plane: plane as u16,
            at: begin,
            bytes,
            memory,
            offset: plane as u64 * stride,
            crc: 0,
            sectors: 0,
            tag: [0; 16],
            digest: None,
            sampled: false,
            ok: false,
        }
    };
    sizes.iter().enumerate().map(part).collect()
}
