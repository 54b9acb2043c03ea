//! Blocks of an engine's own memory: conversion of pieces, hashes and results from and to Python.

use crate::{
    dlpack::{Device, Memory, U8},
    error::{self, raise, value},
};
use kvtide_client::{Completed, Copied as NativeCopied, Found as NativeFound, Leased, Outcome, Owner, Piece};
use kvtide_wire::{entry::Level, status::Status};
use pyo3::{prelude::*, types::PyBytes};
use std::{fmt::Arguments, sync::Arc};

/// Bytes of a hash.
const HASH_BYTES: usize = 16;

/// Result of a lookup: `kvtide.Found`.
#[pyclass(frozen, get_all, module = "kvtide")]
pub struct Found {
    /// Blocks of the prefix that are cached.
    blocks: u32,
    /// Approximate share of them that is in host memory, in 1/1000.
    in_host_permille: u32,
}

#[pymethods]
impl Found {
    fn __repr__(&self) -> String {
        format!("Found(blocks={}, in_host_permille={})", self.blocks, self.in_host_permille)
    }
}

impl From<NativeFound> for Found {
    fn from(found: NativeFound) -> Found {
        Found { blocks: found.blocks, in_host_permille: found.in_host_permille }
    }
}

/// A cached prefix that is pinned for a limited time: `kvtide.Lease`.
#[pyclass(frozen, get_all, module = "kvtide")]
pub struct Lease {
    /// Number of the lease, for loads and `seq_drop`.
    seq: u32,
    /// Blocks in host memory.
    in_host: u32,
    /// Blocks on NVMe only.
    on_nvme: u32,
    /// Blocks that only other sessions' tier 0 has.
    elsewhere: u32,
    /// Estimated seconds to load all of them; 0 without a measurement.
    load_seconds: f64,
}

#[pymethods]
impl Lease {
    fn __repr__(&self) -> String {
        let Lease { seq, in_host, on_nvme, elsewhere, load_seconds } = self;
        format!(
            "Lease(seq={seq}, in_host={in_host}, on_nvme={on_nvme}, elsewhere={elsewhere}, load_seconds={load_seconds})"
        )
    }
}

impl From<Leased> for Lease {
    fn from(leased: Leased) -> Lease {
        let Leased { seq, in_host, on_nvme, elsewhere, load } = leased;
        Lease { seq, in_host, on_nvme, elsewhere, load_seconds: load.as_secs_f64() }
    }
}

/// Result of a copy of blocks: `kvtide.Copied`.
#[pyclass(frozen, get_all, module = "kvtide")]
pub struct Copied {
    /// Indices into the call's blocks of those that failed.
    failed: Vec<u32>,
    /// "ok", or the reason of the first failure.
    status: String,
    /// The status as a code; 0 is ok.
    code: i32,
    /// Of a store without failures: the level that all blocks reached.
    level: &'static str,
}

#[pymethods]
impl Copied {
    fn __repr__(&self) -> String {
        let Copied { failed, status, level, .. } = self;
        format!("Copied(failed={failed:?}, status={status:?}, level={level:?})")
    }
}

impl From<NativeCopied> for Copied {
    fn from(copied: NativeCopied) -> Copied {
        let NativeCopied { failed, status, level } = copied;
        Copied { failed, status: name(status), code: status.code(), level: level_name(level) }
    }
}

/// Completion of a request: `kvtide.Done`.
#[pyclass(frozen, get_all, module = "kvtide")]
pub struct Done {
    /// Ticket of the request.
    ticket: u64,
    /// The caller's value, given with the request.
    user: u64,
    /// Result; None if the request has none, or failed.
    result: Py<PyAny>,
    /// The exception if it failed, or None.
    error: Py<PyAny>,
}

impl Done {
    /// Convert a completion to Python.
    ///
    /// # Errors
    /// Python's error if it has no memory for it.
    pub fn of(py: Python<'_>, done: Completed) -> PyResult<Done> {
        let Completed { ticket, user, result } = done;
        let (mut found, mut failed) = (py.None(), py.None());
        match result {
            Ok(Outcome::Prefix(prefix)) => found = Py::new(py, Found::from(prefix))?.into_any(),
            Ok(Outcome::Lease(leased)) => found = Py::new(py, Lease::from(leased))?.into_any(),
            Ok(Outcome::Copied { failed, status, level }) => {
                found = Py::new(py, Copied::from(NativeCopied { failed, status, level }))?.into_any();
            }
            Ok(_) => {} // no other request is sent
            Err(error) => failed = error::from(&error).into_value(py).into_any(),
        }
        Ok(Done { ticket: ticket.into_raw(), user, result: found, error: failed })
    }
}

#[pymethods]
impl Done {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (result, error) = (self.result.bind(py).repr()?, self.error.bind(py).repr()?);
        Ok(format!("Done(ticket={}, user={}, result={result}, error={error})", self.ticket, self.user))
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

/// Return the durability level with this name.
///
/// # Errors
/// `ValueError` if there is none.
pub fn level(name: &str) -> PyResult<Level> {
    match name {
        "published" => Ok(Level::Published),
        "stored" => Ok(Level::Stored),
        "durable" => Ok(Level::Durable),
        name => Err(value(format!("level {name:?} is unknown; use \"published\", \"stored\" or \"durable\""))),
    }
}

/// Return the name of a level.
pub fn level_name(level: Level) -> &'static str {
    match level {
        Level::Published => "published",
        Level::Stored => "stored",
        Level::Durable => "durable",
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
    let mut taken = Vec::with_capacity(given.len().unwrap_or(0));
    for (index, one) in given.try_iter()?.enumerate() {
        let one = one?;
        taken.push(hash(format_args!("hash {index}"), one.cast::<PyBytes>()?.as_bytes())?);
    }
    Ok(taken)
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

/// Verify that each block has a hash.
///
/// # Errors
/// `ValueError` if there is not.
pub fn as_many(hashes: &[u128], blocks: &[u32]) -> PyResult<()> {
    let (names, numbers) = (hashes.len(), blocks.len());
    if names == numbers { Ok(()) } else { Err(value(format!("{names} hashes for {numbers} blocks"))) }
}

/// A piece in Python's form: plane, member, base address, stride, bytes.
pub type Given = (u16, u16, usize, usize, usize);

/// Convert pieces to the client's form.
pub fn pieces(given: &[Given]) -> Vec<Piece> {
    let piece = |&(plane, member, base, stride, bytes): &Given| Piece { plane, member, base, stride, bytes };
    given.iter().map(piece).collect()
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
