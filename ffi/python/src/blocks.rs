//! Blocks of an engine's own memory: conversion of pieces, hashes and results from and to Python.

use crate::{
    channel::Channel,
    dlpack::{Device, Memory, U8},
    error::{self, argument, raise, value},
};
use kvtide_client::{Completed, Copied, Found, Leased, Outcome, Owner, Piece};
use kvtide_wire::{entry::Level as Reached, status::Status};
use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    sync::PyOnceLock,
    types::{PyBytes, PyTuple, PyType},
};
use std::{
    fmt::Arguments,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Bytes of a hash.
const HASH_BYTES: usize = 16;

/// Result of a lookup: `kvtide.LookupResult`.
#[pyclass(frozen, get_all, module = "kvtide")]
pub struct LookupResult {
    /// Blocks of the prefix that are cached.
    blocks: u32,
    /// Approximate share of them that is in host memory, in 1/1000.
    in_host_permille: u32,
}

#[pymethods]
impl LookupResult {
    fn __repr__(&self) -> String {
        format!("LookupResult(blocks={}, in_host_permille={})", self.blocks, self.in_host_permille)
    }
}

impl From<Found> for LookupResult {
    fn from(found: Found) -> LookupResult {
        LookupResult { blocks: found.blocks, in_host_permille: found.in_host_permille }
    }
}

/// A cached prefix that is pinned for a limited time: `kvtide.Lease`. A context manager that releases it.
#[pyclass(frozen, module = "kvtide")]
pub struct Lease {
    leased: Leased,
    channel: Py<Channel>,
    released: AtomicBool,
}

impl Lease {
    /// Wrap a lease that `channel` took.
    pub fn new(leased: Leased, channel: &Bound<'_, Channel>) -> Lease {
        Lease { leased, channel: channel.clone().unbind(), released: AtomicBool::new(false) }
    }
}

#[pymethods]
impl Lease {
    /// Number of the lease. A load may name the lease by it.
    #[getter]
    fn seq(&self) -> u32 {
        self.leased.seq
    }

    /// Blocks in host memory.
    #[getter]
    fn in_host(&self) -> u32 {
        self.leased.in_host
    }

    /// Blocks on NVMe only.
    #[getter]
    fn on_nvme(&self) -> u32 {
        self.leased.on_nvme
    }

    /// Blocks that only other sessions' tier 0 has.
    #[getter]
    fn elsewhere(&self) -> u32 {
        self.leased.elsewhere
    }

    /// Estimated seconds to load the whole prefix; 0 without a measurement.
    #[getter]
    fn load_seconds(&self) -> f64 {
        self.leased.load.as_secs_f64()
    }

    /// True after `release`.
    #[getter]
    fn released(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    /// Release the prefix. Never waits. Releasing twice has no effect.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        // Set before the call: two threads must not both drop the number, which the second time may be that of another lease.
        if self.released.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let dropped = self.channel.get().drop_lease(py, self.leased.seq);
        if dropped.is_err() {
            self.released.store(false, Ordering::Relaxed);
        }
        dropped
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*raised))]
    fn __exit__(&self, py: Python<'_>, raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        let fails = raised.iter().next().is_some_and(|class| !class.is_none());
        match self.release(py) {
            // The body's exception is what the caller has to see.
            Err(error) if fails => {
                error.write_unraisable(py, None);
                Ok(())
            }
            released => released,
        }
    }

    fn __repr__(&self) -> String {
        let Leased { seq, in_host, on_nvme, elsewhere, .. } = self.leased;
        let (seconds, released) = (self.load_seconds(), if self.released() { ", released" } else { "" });
        format!(
            "Lease(seq={seq}, in_host={in_host}, on_nvme={on_nvme}, elsewhere={elsewhere}, \
             load_seconds={seconds}{released})"
        )
    }
}

/// Return the number of a lease that is given as an object or as a number.
///
/// # Errors
/// `NotFound` if the lease was released, because its number may belong to another one, or there is no such number; `TypeError` for
/// other types.
pub fn lease(given: &Bound<'_, PyAny>) -> PyResult<u32> {
    let Ok(lease) = given.cast::<Lease>() else {
        return argument("lease", given, "a kvtide.Lease, or its number", Status::NotFound);
    };
    let lease = lease.get();
    if lease.released() {
        return Err(raise(Status::NotFound, &format!("lease {} was released", lease.leased.seq)));
    }
    Ok(lease.leased.seq)
}

/// Result of a copy of blocks: `kvtide.CopyResult`.
#[pyclass(frozen, get_all, module = "kvtide")]
pub struct CopyResult {
    /// Indices into the call's blocks of those that failed.
    failed: Vec<u32>,
    /// "ok", or the reason of the first failure.
    status: String,
    /// The status as a code; 0 is ok.
    code: i32,
    /// Of a store without failures: the level that all blocks reached.
    level: Level,
}

#[pymethods]
impl CopyResult {
    fn __repr__(&self) -> String {
        let CopyResult { failed, status, level, .. } = self;
        format!("CopyResult(failed={failed:?}, status={status:?}, level={})", level.name())
    }
}

impl From<Copied> for CopyResult {
    fn from(copied: Copied) -> CopyResult {
        let Copied { failed, status, level } = copied;
        CopyResult { failed, status: name(status), code: status.code(), level: Level(level) }
    }
}

/// Completion of a request: `kvtide.Completion`.
#[pyclass(frozen, get_all, module = "kvtide")]
pub struct Completion {
    /// Ticket of the request.
    ticket: u64,
    /// The caller's value, given with the request.
    user: u64,
    /// Result; None if the request has none, or failed.
    result: Py<PyAny>,
    /// The exception if it failed, or None.
    error: Py<PyAny>,
}

impl Completion {
    /// Convert a completion of `channel` to Python.
    ///
    /// # Errors
    /// Python's error if it has no memory for it.
    pub fn of(channel: &Bound<'_, Channel>, completed: Completed) -> PyResult<Completion> {
        let py = channel.py();
        let Completed { ticket, user, result } = completed;
        let (mut found, mut failed) = (py.None(), py.None());
        match result {
            Ok(Outcome::Prefix(prefix)) => found = Py::new(py, LookupResult::from(prefix))?.into_any(),
            Ok(Outcome::Lease(leased)) => found = Py::new(py, Lease::new(leased, channel))?.into_any(),
            Ok(Outcome::Copied { failed, status, level }) => {
                found = Py::new(py, CopyResult::from(Copied { failed, status, level }))?.into_any();
            }
            Ok(_) => {} // no other request is sent
            Err(error) => failed = error::from(&error).into_value(py).into_any(),
        }
        Ok(Completion { ticket: ticket.into_raw(), user, result: found, error: failed })
    }
}

#[pymethods]
impl Completion {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (result, error) = (self.result.bind(py).repr()?, self.error.bind(py).repr()?);
        Ok(format!("Completion(ticket={}, user={}, result={result}, error={error})", self.ticket, self.user))
    }
}

/// Return a status as Python writes names: "ok", "not_found".
fn name(status: Status) -> String {
    let mut name = String::new();
    for letter in format!("{status:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

/// A durability level, in Python `kvtide.Level`.
#[derive(Clone, Copy)]
pub struct Level(pub Reached);

/// `kvtide.blocks.Level`.
static LEVEL: PyOnceLock<Py<PyType>> = PyOnceLock::new();

impl Level {
    /// The level of a call that gives none.
    pub const DEFAULT: Level = Level(Reached::Published);

    fn name(self) -> &'static str {
        match self.0 {
            Reached::Published => "PUBLISHED",
            Reached::Stored => "STORED",
            Reached::Durable => "DURABLE",
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Level {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Level> {
        let class = LEVEL.import(given.py(), "kvtide.blocks", "Level")?;
        if !given.is_instance(class)? {
            return Err(PyTypeError::new_err(format!(
                "level {} is not a kvtide.Level; use Level.PUBLISHED, Level.STORED or Level.DURABLE",
                given.repr()?
            )));
        }
        let number: u16 = given.extract()?;
        let known = [Reached::Published, Reached::Stored, Reached::Durable];
        let level = known.into_iter().find(|level| *level as u16 == number);
        level.map(Level).ok_or_else(|| value(format!("level {number} is unknown; levels are 0 to {}", known.len() - 1)))
    }
}

impl<'py> IntoPyObject<'py> for Level {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        LEVEL.import(py, "kvtide.blocks", "Level")?.call1((self.0 as u16,))
    }
}

/// Parse one hash of 16 bytes.
///
/// # Errors
/// `ValueError` if it has another length, or is all zeroes, which is reserved for "no block".
pub fn hash(what: Arguments<'_>, bytes: &[u8]) -> PyResult<u128> {
    let len = bytes.len();
    let word = bytes.try_into().map_err(|_| value(format!("{what}: {len} bytes; a hash has {HASH_BYTES}")))?;
    match u128::from_le_bytes(word) {
        0 => Err(value(format!("{what} is all zeroes, which is reserved for \"no block\""))),
        hash => Ok(hash),
    }
}

/// Return the hash for a block that is to stay on its machine: `kvtide._native.local_hash`.
#[pyfunction]
pub fn local_hash(given: &[u8]) -> PyResult<[u8; HASH_BYTES]> {
    Ok(kvtide_wire::hello::local_hash(hash(format_args!("hash"), given)?).to_le_bytes())
}

/// Parse hashes, given concatenated or as an iterable.
///
/// # Errors
/// Those of [`hash`]; `TypeError` for other types.
pub fn hashes(given: &Bound<'_, PyAny>) -> PyResult<Vec<u128>> {
    if let Ok(all) = given.cast::<PyBytes>() {
        let bytes = all.as_bytes();
        if !bytes.len().is_multiple_of(HASH_BYTES) {
            return Err(value(format!("hashes: {} bytes is not a multiple of {HASH_BYTES}", bytes.len())));
        }
        return bytes
            .chunks_exact(HASH_BYTES)
            .enumerate()
            .map(|(i, one)| hash(format_args!("hash {i}"), one))
            .collect();
    }
    let Ok(each) = given.try_iter() else { return Err(no_hash("hashes", given)) };
    let mut taken = Vec::with_capacity(given.len().unwrap_or(0));
    for (index, one) in each.enumerate() {
        let one = one?;
        let Ok(bytes) = one.cast::<PyBytes>() else { return Err(no_hash(&format!("hash {index}"), &one)) };
        taken.push(hash(format_args!("hash {index}"), bytes.as_bytes())?);
    }
    Ok(taken)
}

/// Build the error of hashes of another type.
fn no_hash(name: &str, given: &Bound<'_, PyAny>) -> PyErr {
    let shown = given.repr().map(|shown| shown.to_string()).unwrap_or_default();
    PyTypeError::new_err(format!(
        "{name} is {shown}; expected bytes: {HASH_BYTES} in each item of a list, or concatenated"
    ))
}

/// Parse block numbers.
///
/// # Errors
/// `OutOfRange` for a negative number, `TypeError` for other types.
pub fn numbers(given: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    argument("blocks", given, "numbers of registered blocks, from 0 on", Status::Range)
}

/// Return the position of blocks in their prefix: index of the first one, and hash of the block before it, 0 at the root.
///
/// # Errors
/// `ValueError` if only one of the two is that of a prefix's root.
pub fn place(first: u32, parent: Option<&[u8]>) -> PyResult<(u32, u128)> {
    match (first, parent) {
        (0, None) => Ok((0, 0)),
        (0, Some(_)) => Err(value("parent: block 0 of a prefix has no parent; pass None")),
        (first, None) => Err(value(format!("parent: block {first} of a prefix needs its parent's hash"))),
        (first, Some(parent)) => Ok((first, hash(format_args!("parent"), parent)?)),
    }
}

/// A piece in Python's form: plane, member, base address, stride, bytes.
type Given = (u16, u16, usize, usize, usize);

/// Convert pieces to the client's form.
///
/// # Errors
/// `TypeError` for other types, `Invalid` for a number that is negative or too large.
pub fn pieces(given: &Bound<'_, PyAny>) -> PyResult<Vec<Piece>> {
    let given: Vec<Given> =
        argument("pieces", given, "kvtide.Piece objects: call kvtide.blocks.pieces", Status::Invalid)?;
    let piece = |(plane, member, base, stride, bytes)| Piece { plane, member, base, stride, bytes };
    Ok(given.into_iter().map(piece).collect())
}

/// Allocate memory for `count` blocks: one tensor per plane, and its pieces.
///
/// # Errors
/// `SystemRefused` if there is not enough memory, `Invalid` for 0 blocks.
pub fn allocate(page_bytes: impl Iterator<Item = u32>, count: u32) -> PyResult<(Vec<Memory>, Vec<Piece>, Owner)> {
    if count == 0 {
        return Err(raise(Status::Invalid, "allocate blocks: count is 0"));
    }
    let (mut shown, mut pieces, mut owners) = (Vec::new(), Vec::new(), Vec::new());
    for (plane, bytes) in page_bytes.enumerate() {
        let all = (bytes as usize).checked_mul(count as usize);
        let mut memory: Vec<u8> = Vec::new();
        let Some(all) = all.filter(|all| memory.try_reserve_exact(*all).is_ok()) else {
            let text = format!("allocate blocks: not enough memory for {count} of {bytes} bytes in plane {plane}");
            return Err(raise(Status::System, &text));
        };
        memory.resize(all, 0);
        let base = memory.as_mut_ptr().expose_provenance();
        let memory = Arc::new(memory);
        let shape = vec![i64::from(count), i64::from(bytes)];
        let at = std::ptr::with_exposed_provenance_mut(base);
        shown.push(Memory::new(at, Device::CPU, U8, shape, Box::new(Arc::clone(&memory))));
        pieces.push(Piece { plane: plane as u16, member: 0, base, stride: bytes as usize, bytes: bytes as usize });
        owners.push(memory);
    }
    Ok((shown, pieces, Box::new(owners)))
}
