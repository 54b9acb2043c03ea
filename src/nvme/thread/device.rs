//! Requests at the device: their memory, their progress, and short completions.
//!
//! 1. Everything that a request refers to (list, pages, staging) is not accessed, moved or freed from `push` until its completion.
//! 2. A request ends when all its bytes were transferred, or when it failed. After a short completion, the rest is requested again.
//! 3. If the thread ends while requests are in flight, all memory that they refer to is leaked.

use super::super::engine::{BUFFERS, Command, Done, Engine, Piece};
use super::super::memory::{Aligned, BUFFER_BYTES, Memory};
use super::super::plan::{PIECES_MAX, Run, Span};
use super::super::probe::Mode;
use super::super::settings::{FeatureUse, Settings};
use super::super::staging::Staging;
use super::super::store::Align;
use kvtide_types::IoKind;
use rustix::io::Errno;
use std::sync::Arc;

/// Maximum repetitions of a request that makes no progress.
const TRIES: u8 = 16;

/// Owner of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A run of a transfer, by the job's number.
    Job(u32),
    /// The superblock.
    Superblock,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// All bytes were transferred.
    Whole,
    /// Error number; 0: short transfer.
    Failed(i32),
}

#[derive(Debug)]
struct Request {
    owner: Owner,
    command: Command,
    /// Not reallocated while the request is in flight.
    pieces: Vec<Piece>,
    /// Bytes to transfer, and transferred.
    bytes: u64,
    moved: u64,
    run: Run,
    chunk: Option<u16>,
    /// True while the sectors to be written are read first.
    filling: bool,
    tries: u8,
    began_us: u64,
    busy: bool,
}

/// An engine, and all memory that its requests refer to.
pub(super) struct Device {
    engine: Box<dyn Engine>,
    number: u16,
    align: Align,
    requests: Vec<Request>,
    free: Vec<u32>,
    staging: Staging,
    /// Registered memory, by first buffer.
    registered: Vec<(u16, Arc<Memory>)>,
    free_buffers: Vec<u16>,
    registers: bool,
    /// Requests started.
    pub started: u64,
    /// Short completions.
    pub short: u64,
    /// Bytes of host memory registered, and not registered.
    pub registered_bytes: u64,
    pub unregistered_bytes: u64,
}

impl Device {
    /// Create the device. Staging memory is registered if configuration and kernel allow it; host memory only if the mode includes
    /// it.
    pub fn new(engine: Box<dyn Engine>, settings: &Settings, align: Align, staging: Staging, mode: &Mode) -> Device {
        let (number, depth, registers) = (settings.number, settings.depth, mode.registered);
        let none =
            Command { token: 0, kind: IoKind::Read, offset: 0, pieces: std::ptr::null(), count: 0, buffer: None };
        let request = |token| Request {
            owner: Owner::Superblock,
            command: Command { token, ..none },
            pieces: Vec::with_capacity(PIECES_MAX),
            bytes: 0,
            moved: 0,
            run: Run { at: 0, bytes: 0, first: 0, pages: 0, staged: false, fill: false },
            chunk: None,
            filling: false,
            tries: 0,
            began_us: 0,
            busy: false,
        };
        let mut device = Device {
            engine,
            number,
            align,
            requests: (0..depth).map(request).collect(),
            free: (0..depth).rev().collect(),
            staging,
            registered: Vec::new(),
            free_buffers: (0..BUFFERS as u16).rev().collect(),
            registers,
            started: 0,
            short: 0,
            registered_bytes: 0,
            unregistered_bytes: 0,
        };
        if mode.uring && settings.registered != FeatureUse::Off {
            device.register_staging();
        }
        device
    }

    fn register_staging(&mut self) {
        let Some(buffer) = self.free_buffers.pop() else { return };
        // SAFETY: the device keeps the staging until it and the engine are dropped, or leaks it.
        match unsafe { self.engine.register(buffer, self.staging.piece()) } {
            Ok(()) => self.staging.buffer = Some(buffer),
            Err(errno) => {
                tracing::warn!("disk {}: cannot register the staging memory: {errno}", self.number);
                self.free_buffers.push(buffer);
            }
        }
    }

    /// Return the engine, to wait on it.
    pub fn engine(&mut self) -> &mut dyn Engine {
        &mut *self.engine
    }

    /// Return how many more requests the device may take.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Return the requests in flight.
    pub fn busy(&self) -> u32 {
        (self.requests.len() - self.free.len()) as u32
    }

    /// Register host memory, in the largest buffers that the kernel allows.
    pub fn register(&mut self, memory: Arc<Memory>) {
        if memory.placed(self.number).is_some() {
            return;
        }
        match self.try_register(&memory) {
            Ok(first) => {
                memory.place(self.number, Some(first.into()));
                self.registered_bytes += memory.bytes();
                self.registered.push((first, memory));
            }
            Err(why) => {
                if self.registers {
                    tracing::warn!(
                        "disk {}: cannot register {} bytes of host memory: {why}",
                        self.number,
                        memory.bytes()
                    );
                }
                self.unregistered_bytes += memory.bytes();
            }
        }
    }

    fn try_register(&mut self, memory: &Memory) -> Result<u16, Errno> {
        let count = memory.bytes().div_ceil(BUFFER_BYTES) as usize;
        // Consecutive buffers, so that a page's buffer follows from its offset.
        let first = (self.registers && count == 1).then(|| self.free_buffers.pop()).flatten();
        let first = match first {
            Some(first) => first,
            None if self.registers => self.take_buffers(count).ok_or(Errno::NOBUFS)?,
            None => return Err(Errno::OPNOTSUPP),
        };
        for index in 0..count {
            let offset = index as u64 * BUFFER_BYTES;
            let bytes = (memory.bytes() - offset).min(BUFFER_BYTES);
            let piece = Piece::new(memory.at(offset), bytes as usize);
            // SAFETY: `registered` keeps the memory until it is unregistered.
            let registered = unsafe { self.engine.register(first + index as u16, piece) };
            if let Err(errno) = registered {
                for done in 0..index {
                    self.engine.unregister(first + done as u16);
                }
                self.free_buffers.extend((0..count as u16).map(|index| first + index));
                return Err(errno);
            }
        }
        Ok(first)
    }

    /// Take `count` free buffers with consecutive numbers.
    fn take_buffers(&mut self, count: usize) -> Option<u16> {
        self.free_buffers.sort_unstable_by(|a, b| b.cmp(a));
        let at = self.free_buffers.windows(count).position(|run| usize::from(run[0] - run[count - 1]) == count - 1)?;
        let first = self.free_buffers[at + count - 1];
        self.free_buffers.drain(at..at + count);
        Some(first)
    }

    /// Unregister memory; requests in flight keep their registration.
    pub fn forget(&mut self, memory: &Arc<Memory>) {
        let Some(at) = self.registered.iter().position(|(_, held)| Arc::ptr_eq(held, memory)) else {
            self.unregistered_bytes = self.unregistered_bytes.saturating_sub(memory.bytes());
            return;
        };
        let (first, memory) = self.registered.swap_remove(at);
        memory.place(self.number, None);
        self.registered_bytes -= memory.bytes();
        for index in 0..memory.bytes().div_ceil(BUFFER_BYTES) as u16 {
            self.engine.unregister(first + index);
            self.free_buffers.push(first + index);
        }
    }

    /// Start a run of a job; its slot starts at `offset`. Return false if no request or chunk is free now.
    ///
    /// # Safety
    /// The memory of the spans must stay valid and be used only by the job until [`Device::settle`] has returned the end of the
    /// run.
    pub unsafe fn start_run(
        &mut self,
        job: u32,
        run: Run,
        (kind, offset): (IoKind, u64),
        spans: &[Span],
        now_us: u64,
    ) -> bool {
        let staging = &mut self.staging;
        let chunk = if run.staged { staging.take() } else { None };
        if self.free.is_empty() || run.staged != chunk.is_some() {
            if let Some(chunk) = chunk {
                staging.give(chunk);
            }
            return false;
        }
        let token = self.free.pop().expect("it is not empty");
        let request = &mut self.requests[token as usize];
        request.pieces.clear();
        let mut buffer = None;
        let kind = if run.fill { IoKind::Read } else { kind };
        if let Some(chunk) = chunk {
            request.pieces.push(Piece::new(staging.at(chunk), run.bytes as usize));
            buffer = staging.buffer;
            if kind == IoKind::Write {
                staging.clear(chunk, &run);
                // SAFETY: the caller's promise.
                unsafe { staging.load(chunk, &run, spans) };
            }
        } else {
            for (index, span) in spans[run.first..run.first + run.pages].iter().enumerate() {
                let (at, bytes) = (span.address as *mut u8, span.bytes as usize);
                buffer = if index == 0 || buffer == span.buffer { span.buffer } else { None };
                match request.pieces.last_mut() {
                    Some(last) if last.at().wrapping_add(last.bytes()) == at && buffer.is_some() => {
                        *last = Piece::new(last.at(), last.bytes() + bytes);
                    }
                    _ => request.pieces.push(Piece::new(at, bytes)),
                }
            }
        }
        request.run = run;
        request.chunk = chunk;
        request.filling = run.fill;
        self.send(token, Owner::Job(job), kind, offset + run.at, buffer, now_us);
        true
    }

    /// Start a write of the first `bytes` of `memory` by the disk itself. The owner keeps the memory until the request ends. Return
    /// false if no request is free now.
    ///
    /// # Safety
    /// The memory must stay valid and unchanged until the completion.
    pub unsafe fn start_own(&mut self, owner: Owner, memory: &Aligned, bytes: u64, offset: u64, now_us: u64) -> bool {
        assert!(bytes <= memory.len() as u64, "a write of {bytes} bytes");
        let Some(token) = self.free.pop() else { return false };
        let request = &mut self.requests[token as usize];
        request.pieces.clear();
        request.pieces.push(Piece::new(memory.as_ptr(), bytes as usize));
        request.chunk = None;
        request.filling = false;
        self.send(token, owner, IoKind::Write, offset, None, now_us);
        true
    }

    fn send(&mut self, token: u32, owner: Owner, kind: IoKind, offset: u64, buffer: Option<u16>, now_us: u64) {
        self.started += 1;
        let request = &mut self.requests[token as usize];
        request.owner = owner;
        request.bytes = request.pieces.iter().map(|piece| piece.bytes() as u64).sum();
        request.moved = 0;
        request.tries = 0;
        request.began_us = now_us;
        request.busy = true;
        let (pieces, count) = (request.pieces.as_ptr(), request.pieces.len() as u32);
        request.command = Command { token, kind, offset, pieces, count, buffer };
        // SAFETY: rule 1; there are no more requests than the engine was created for.
        unsafe { self.engine.push(&request.command) };
    }

    /// Handle a completion. Return the request and its result if it has ended; None if the rest was requested again.
    pub fn take(&mut self, done: Done) -> Option<(u32, Owner, End)> {
        let request = self.requests.get_mut(done.token as usize).filter(|request| request.busy)?;
        let left = request.bytes - request.moved;
        let again = |errno| errno == libc::EAGAIN || errno == libc::EINTR;
        let end = match done.result {
            Err(errno) if again(errno) && request.tries < TRIES => {
                request.tries += 1;
                None
            }
            Err(errno) => Some(End::Failed(errno)),
            Ok(count) if u64::from(count) == left => Some(End::Whole),
            // End of file, full device, or a kernel that reports more bytes than requested.
            Ok(count) if count == 0 || u64::from(count) > left => Some(End::Failed(0)),
            Ok(count) => {
                self.short += 1;
                // The next request starts at a whole unit.
                let count = u64::from(count) / self.align.offset * self.align.offset;
                request.tries = if count == 0 { request.tries + 1 } else { 0 };
                request.moved += count;
                request.command.offset += count;
                skip(&mut request.command, &mut request.pieces, count as usize);
                (request.tries >= TRIES).then_some(End::Failed(0))
            }
        };
        if end.is_none() {
            // SAFETY: as in `send`: the same memory or a part of it.
            unsafe { self.engine.push(&request.command) };
        }
        end.map(|end| (done.token, request.owner, end))
    }

    /// Free a request that has ended. `spans` must be those of its start. Return false if it was the read of a fill; then its write
    /// is started.
    pub fn settle(&mut self, token: u32, end: End, spans: &[Span], now_us: u64) -> bool {
        let request = &mut self.requests[token as usize];
        let staging = &mut self.staging;
        request.busy = false;
        if let Some(chunk) = request.chunk {
            if request.filling && end == End::Whole {
                // SAFETY: promised when the run was started.
                unsafe { staging.load(chunk, &request.run, spans) };
                request.filling = false;
                request.pieces.clear();
                request.pieces.push(Piece::new(staging.at(chunk), request.run.bytes as usize));
                let (owner, buffer, offset) =
                    (request.owner, request.command.buffer, request.command.offset - request.moved);
                let began_us = request.began_us;
                self.send(token, owner, IoKind::Write, offset, buffer, now_us);
                self.requests[token as usize].began_us = began_us;
                return false;
            }
            if request.command.kind == IoKind::Read && end == End::Whole {
                // SAFETY: promised when the run was started.
                unsafe { staging.store(chunk, &request.run, spans) };
            }
            staging.give(chunk);
            request.chunk = None;
        }
        self.free.push(token);
        true
    }

    /// Return the number of requests in flight for longer than `timeout_us`, and the age of the oldest.
    pub fn overdue(&self, now_us: u64, timeout_us: u64) -> (u32, u64) {
        let ages = self.requests.iter().filter(|request| request.busy).map(|r| now_us.saturating_sub(r.began_us));
        ages.fold((0, 0), |(count, oldest), age| (count + u32::from(age >= timeout_us), oldest.max(age)))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.busy() > 0 {
            // Rule 3. Dropping the engine does not stop requests of the device.
            std::mem::forget(std::mem::take(&mut self.requests));
            self.staging.leak();
            std::mem::forget(std::mem::take(&mut self.registered));
        }
    }
}

/// Advance a command's list by `bytes`.
fn skip(command: &mut Command, pieces: &mut [Piece], mut bytes: usize) {
    let from = pieces.len() - command.count as usize;
    for piece in &mut pieces[from..] {
        if bytes < piece.bytes() {
            *piece = Piece::new(piece.at().wrapping_add(bytes), piece.bytes() - bytes);
            break;
        }
        bytes -= piece.bytes();
        command.count -= 1;
    }
    command.pieces = pieces[pieces.len() - command.count as usize..].as_ptr();
}
