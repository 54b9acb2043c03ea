//! An engine between the I/O thread and a real engine that injects faults.

use crate::engine::{Command, Done, Engine, Piece, Wait};
use crossbeam::channel::{Receiver, Sender, unbounded};
use kvtide_types::IoKind;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Treatment of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Execute it.
    None,
    /// Fail it.
    Errno(i32),
    /// Report success with 0 bytes.
    Nothing,
    /// Transfer only this many bytes of its first range.
    Short(usize),
    /// Transfer half of its first range, in whole sectors, unless it is a single one.
    Half,
    /// Execute it when released.
    Stuck,
    /// Execute it, then flip a bit of its first range.
    Flip,
}

/// Planned faults; shared with the engine.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// For the next commands; of this kind, if given.
    next: VecDeque<(Option<IoKind>, Fault)>,
    /// For all other commands.
    always: Option<Fault>,
    released: bool,
    panics: bool,
    /// Receives a message when the thread sleeps without a due time, after a command has failed.
    idle: Option<Sender<()>>,
    failed: bool,
}

impl Faults {
    /// Inject faults into the next commands.
    pub fn next(&self, faults: &[(Option<IoKind>, Fault)]) {
        self.0.lock().unwrap().next.extend(faults);
    }

    /// Inject this fault into every command; None: stop.
    pub fn always(&self, fault: Option<Fault>) {
        self.0.lock().unwrap().always = fault;
    }

    /// Discard the faults planned for the next commands.
    pub fn forget(&self) {
        self.0.lock().unwrap().next.clear();
    }

    /// Panic when the engine is entered next.
    pub fn panic(&self) {
        self.0.lock().unwrap().panics = true;
    }

    /// Return where a message arrives when the thread sleeps without a due time, after a command has failed.
    pub fn idle(&self) -> Receiver<()> {
        let (told, idle) = unbounded();
        self.0.lock().unwrap().idle = Some(told);
        idle
    }

    /// Release stuck commands.
    pub fn release(&self) {
        self.0.lock().unwrap().released = true;
    }

    /// Wrap an engine with these faults.
    pub fn wrap(&self) -> impl FnOnce(Box<dyn Engine>) -> Box<dyn Engine> + Send + 'static {
        let faults = self.clone();
        |inner| Box::new(Faulty { inner, faults, made: Vec::new(), flips: Vec::new(), held: Vec::new() })
    }

    fn take(&self, kind: IoKind) -> Fault {
        let mut state = self.0.lock().unwrap();
        let at = state.next.iter().position(|(of, _)| of.is_none_or(|of| of == kind));
        let planned = at.and_then(|at| state.next.remove(at)).map(|(_, fault)| fault);
        planned.or(state.always).unwrap_or(Fault::None)
    }
}

struct Faulty {
    inner: Box<dyn Engine>,
    faults: Faults,
    made: Vec<Done>,
    flips: Vec<(u32, *mut u8)>,
    held: Vec<Command>,
}

impl Faulty {
    /// Execute `bytes` of a command's first range.
    fn push_short(&mut self, command: &Command, bytes: usize) {
        // SAFETY: the list is valid until the completion; the short list is leaked.
        unsafe {
            let piece = Box::leak(Box::new(Piece::new((*command.pieces).at(), bytes)));
            self.inner.push(&Command { pieces: &raw const *piece, count: 1, ..*command });
        }
    }
}

impl Engine for Faulty {
    unsafe fn push(&mut self, command: &Command) {
        // SAFETY: the list is valid until the completion.
        let first = unsafe { *command.pieces };
        match self.faults.take(command.kind) {
            Fault::Errno(errno) => {
                self.faults.0.lock().unwrap().failed = true;
                self.made.push(Done { token: command.token, result: Err(errno) });
            }
            Fault::Nothing => self.made.push(Done { token: command.token, result: Ok(0) }),
            Fault::Short(bytes) => self.push_short(command, bytes.min(first.bytes())),
            Fault::Half if first.bytes() > 512 => self.push_short(command, (first.bytes() / 2).next_multiple_of(512)),
            Fault::Stuck => self.held.push(*command),
            Fault::Flip => {
                self.flips.push((command.token, first.at()));
                // SAFETY: the caller's promise.
                unsafe { self.inner.push(command) }
            }
            // SAFETY: the caller's promise.
            Fault::None | Fault::Half => unsafe { self.inner.push(command) },
        }
    }

    fn enter(&mut self, mut wait: Wait, done: &mut Vec<Done>) -> Result<(), Errno> {
        let panics = std::mem::take(&mut self.faults.0.lock().unwrap().panics);
        assert!(!panics, "injected by the test");
        if self.faults.0.lock().unwrap().released {
            for command in self.held.drain(..) {
                // SAFETY: promised by its pusher; it has not been completed.
                unsafe { self.inner.push(&command) };
            }
        }
        if !self.made.is_empty() {
            wait = Wait::default();
        }
        if let State { failed: true, idle: Some(idle), .. } = &*self.faults.0.lock().unwrap()
            && wait.want > 0
            && wait.most.is_none()
        {
            let _ = idle.send(());
        }
        done.append(&mut self.made);
        self.inner.enter(wait, done)?;
        for (_, at) in self.flips.extract_if(.., |(token, _)| done.iter().any(|done| done.token == *token)) {
            // SAFETY: the command was executed, but its owner has not seen the completion.
            unsafe { *at ^= 0x10 };
        }
        Ok(())
    }

    unsafe fn register(&mut self, buffer: u16, piece: Piece) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.register(buffer, piece) }
    }

    fn unregister(&mut self, buffer: u16) {
        self.inner.unregister(buffer);
    }
}
