//! Captures of graphs: which calls they forbid to which threads, and the operations that they collect.

use crate::{
    code::{self, Code},
    stream::Op,
};
use std::{
    cell::Cell,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::ThreadId,
};

/// `CUstreamCaptureMode`.
pub(crate) const GLOBAL: u32 = 0;
pub(crate) const RELAXED: u32 = 2;

/// `CUstreamCaptureStatus`.
const NONE: u32 = 0;
const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

/// Calls that the driver calls potentially unsafe during a capture, because they may synchronise.
const UNSAFE: [&str; 9] = [
    "cuEventQuery",
    "cuStreamQuery",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemUnmap",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
];

struct Capture {
    stream: usize,
    mode: u32,
    began: ThreadId,
    valid: bool,
    ops: Vec<Op>,
}

static CAPTURES: Mutex<Vec<Capture>> = Mutex::new(Vec::new());

thread_local! {
    /// This thread's mode.
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

fn captures() -> MutexGuard<'static, Vec<Capture>> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Set this thread's mode and return the previous one.
pub(crate) fn exchange(mode: u32) -> Result<u32, Code> {
    if mode > RELAXED { Err(code::INVALID_VALUE) } else { Ok(MODE.replace(mode)) }
}

pub(crate) fn begin(stream: usize, mode: u32) -> Result<(), Code> {
    let mut captures = captures();
    if mode > RELAXED || captures.iter().any(|capture| capture.stream == stream) {
        return Err(code::INVALID_VALUE);
    }
    captures.push(Capture { stream, mode, began: std::thread::current().id(), valid: true, ops: Vec::new() });
    Ok(())
}

/// End a capture and return its operations, in the stream's order.
pub(crate) fn end(stream: usize) -> Result<Vec<Op>, Code> {
    let mut captures = captures();
    let at = captures.iter().position(|capture| capture.stream == stream).ok_or(code::INVALID_VALUE)?;
    let capture = captures.swap_remove(at);
    if capture.valid { Ok(capture.ops) } else { Err(code::CAPTURE_INVALIDATED) }
}

/// Return the status of a stream.
pub(crate) fn status(stream: usize) -> u32 {
    match captures().iter().find(|capture| capture.stream == stream) {
        None => NONE,
        Some(capture) if capture.valid => ACTIVE,
        Some(_) => INVALIDATED,
    }
}

/// Return whether work enqueued on a stream goes into a graph.
pub(crate) fn takes(stream: usize) -> Result<bool, Code> {
    match status(stream) {
        NONE => Ok(false),
        ACTIVE => Ok(true),
        _ => Err(code::CAPTURE_INVALIDATED),
    }
}

/// Take an operation into the graph if its stream is being captured; otherwise return it.
pub(crate) fn take(stream: usize, op: Op) -> Result<Option<Op>, Code> {
    match captures().iter_mut().find(|capture| capture.stream == stream) {
        None => Ok(Some(op)),
        Some(capture) if capture.valid => {
            capture.ops.push(op);
            Ok(None)
        }
        Some(_) => Err(code::CAPTURE_INVALIDATED),
    }
}

/// Refuse a call that may synchronise, if a capture forbids it to this thread; that capture is then invalid.
pub(crate) fn check(call: &str) -> Code {
    let mode = MODE.get();
    if mode == RELAXED || !UNSAFE.contains(&call) {
        return code::SUCCESS;
    }
    let own = std::thread::current().id();
    let forbids = |capture: &Capture| match capture.began == own {
        true => capture.mode != RELAXED,
        false => mode == GLOBAL && capture.mode == GLOBAL,
    };
    let mut captures = captures();
    let mut found = code::SUCCESS;
    for capture in captures.iter_mut().filter(|capture| forbids(capture)) {
        eprintln!("kvtide stand-in: {call} during the capture of a graph, on a thread that is not relaxed");
        capture.valid = false;
        found = code::CAPTURE_UNSUPPORTED;
    }
    found
}

/// Refuse to ask about a stream that is being captured, in every mode; its capture is then invalid.
pub(crate) fn conflict(stream: usize) -> Result<(), Code> {
    match captures().iter_mut().find(|capture| capture.stream == stream) {
        Some(capture) => {
            capture.valid = false;
            Err(code::CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}
