//! An engine between the I/O thread and a real one that spoils what it is told to.

use crate::io::engine::{Command, Done, Engine, Piece, Wait};
use kvtide_tiering::api::IoKind;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// What becomes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is carried out.
    None,
    /// It fails.
    Errno(i32),
    /// It moves nothing, and says so.
    Nothing,
    /// It moves that many bytes of its first piece.
    Short(usize),
    /// It moves half of its first piece, in whole sectors, unless that is a single one.
    Half,
    /// It is carried out when it is released.
    Stuck,
    /// It is carried out, and then a bit of its first piece is flipped.
    Flip,
}

/// What will be spoilt; shared with the engine.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// For the next commands, of the kind if one is given.
    next: VecDeque<(Option<IoKind>, Fault)>,
    /// For every other.
    always: Option<Fault>,
    released: bool,
    panics: bool,
}

impl Faults {
    /// Spoils the next commands.
    pub fn next(&self, faults: &[(Option<IoKind>, Fault)]) {
        self.0.lock().unwrap().next.extend(faults);
    }

    /// Spoils every command, or none any more.
    pub fn always(&self, fault: Option<Fault>) {
        self.0.lock().unwrap().always = fault;
    }

    /// Forgets what was planned for the next commands.
    pub fn forget(&self) {
        self.0.lock().unwrap().next.clear();
    }

    /// The engine panics when it is entered next.
    pub fn panic(&self) {
        self.0.lock().unwrap().panics = true;
    }

    /// Lets go what is stuck.
    pub fn release(&self) {
        self.0.lock().unwrap().released = true;
    }

    /// An engine that is spoilt by these.
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
    /// Carries out `bytes` of a command's first piece.
    fn push_short(&mut self, command: &Command, bytes: usize) {
        // SAFETY: the list is valid until the completion; the short one is leaked.
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
            Fault::Errno(errno) => self.made.push(Done { token: command.token, result: Err(errno) }),
            Fault::Nothing => self.made.push(Done { token: command.token, result: Ok(0) }),
            Fault::Short(bytes) => self.push_short(command, bytes.min(first.bytes())),
            Fault::Half if first.bytes() > 512 => self.push_short(command, (first.bytes() / 2).next_multiple_of(512)),
            Fault::Stuck => self.held.push(*command),
            Fault::Flip => {
                self.flips.push((command.token, first.at()));
                // SAFETY: as the caller promises.
                unsafe { self.inner.push(command) }
            }
            // SAFETY: as the caller promises.
            Fault::None | Fault::Half => unsafe { self.inner.push(command) },
        }
    }

    fn enter(&mut self, mut wait: Wait, done: &mut Vec<Done>) -> Result<(), Errno> {
        let panics = std::mem::take(&mut self.faults.0.lock().unwrap().panics);
        assert!(!panics, "as the test wants it");
        if self.faults.0.lock().unwrap().released {
            for command in self.held.drain(..) {
                // SAFETY: as its pusher promised: it has not been completed.
                unsafe { self.inner.push(&command) };
            }
        }
        if !self.made.is_empty() {
            wait = Wait::default();
        }
        done.append(&mut self.made);
        self.inner.enter(wait, done)?;
        for (_, at) in self.flips.extract_if(.., |(token, _)| done.iter().any(|done| done.token == *token)) {
            // SAFETY: the command has been carried out, and its owner has not heard of that.
            unsafe { *at ^= 0x10 };
        }
        Ok(())
    }

    unsafe fn register(&mut self, buffer: u16, piece: Piece) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        unsafe { self.inner.register(buffer, piece) }
    }

    fn unregister(&mut self, buffer: u16) {
        self.inner.unregister(buffer);
    }
}
