//! Implementation without CUDA: no handle can be opened, so there are no launches.

use crate::attention::{kvt_attention_options, kvt_queries};
use crate::batch::{kvt_batch_device, kvt_batch_options};
use crate::error::Fault;
use crate::kernels::{kvt_append_rows, kvt_gather, kvt_quant};
use kvtide_client::{Client, Lane, StepSeq};
use kvtide_wire::score::Scores;
use kvtide_wire::status::Status;

/// Never constructed.
pub(crate) enum Batch {}
/// Never constructed.
pub(crate) enum Attention {}
/// Never constructed.
pub(crate) enum Kernels {}

fn none<T>() -> Result<T, Fault> {
    Err(Fault::new(Status::State, "this build of kvtide has no CUDA"))
}

pub(crate) fn batch(_: &Client, _: &Lane, _: &kvt_batch_options) -> Result<Batch, Fault> {
    none()
}

pub(crate) fn batch_device(batch: &Batch) -> kvt_batch_device {
    match *batch {}
}

pub(crate) fn batch_starts(batch: &Batch, _: u16) -> u64 {
    match *batch {}
}

pub(crate) fn batch_set(batch: &mut Batch, _: &[StepSeq]) -> Result<(), Fault> {
    match *batch {}
}

pub(crate) fn batch_tables(batch: &mut Batch, _: u16, _: u16, _: i32) -> Result<(), Fault> {
    match *batch {}
}

pub(crate) fn attention(_: &Client, _: &kvt_attention_options) -> Result<Attention, Fault> {
    none()
}

pub(crate) fn attention_emitted(attention: &mut Attention) -> (u64, u32) {
    match *attention {}
}

/// Unreachable: no handle exists.
///
/// # Safety
/// None is needed.
pub(crate) unsafe fn attention_whole(attention: &Attention, _: &Batch, _: &kvt_queries) -> Result<(), Fault> {
    match *attention {}
}

/// Unreachable: no handle exists.
///
/// # Safety
/// None is needed.
pub(crate) unsafe fn attention_begin(attention: &mut Attention, _: &Batch) -> Result<(), Fault> {
    match *attention {}
}

/// Unreachable: no handle exists.
///
/// # Safety
/// None is needed.
pub(crate) unsafe fn attention_part(
    attention: &Attention,
    _: &Batch,
    _: &kvt_queries,
    _: u64,
    _: u32,
) -> Result<(), Fault> {
    match *attention {}
}

/// Unreachable: no handle exists.
///
/// # Safety
/// None is needed.
pub(crate) unsafe fn attention_merge(attention: &Attention, _: &Batch, _: &kvt_queries) -> Result<(), Fault> {
    match *attention {}
}

/// Unreachable: no handle exists.
///
/// # Safety
/// None is needed.
pub(crate) unsafe fn attention_mass(
    attention: &Attention,
    _: &Batch,
    _: &kvt_queries,
    _: u64,
    _: u32,
    _: u64,
) -> Result<(), Fault> {
    match *attention {}
}

pub(crate) fn scores(_: &[u64]) -> Result<Option<Scores>, Fault> {
    none()
}

pub(crate) fn kernels(_: &Client) -> Result<Kernels, Fault> {
    none()
}

/// Unreachable: no handle exists.
///
/// # Safety
/// None is needed.
pub(crate) unsafe fn append(kernels: &Kernels, _: &Batch, _: u16, _: &kvt_append_rows) -> Result<(), Fault> {
    match *kernels {}
}

/// Unreachable: no handle exists.
///
/// # Safety
/// None is needed.
pub(crate) unsafe fn gather(kernels: &Kernels, _: &Lane, _: &kvt_gather) -> Result<(), Fault> {
    match *kernels {}
}

pub(crate) fn quant_bytes(_: &kvt_quant) -> Result<u64, Fault> {
    none()
}

/// Unreachable: no handle exists.
///
/// # Safety
/// None is needed.
pub(crate) unsafe fn quantize(kernels: &Kernels, _: &Lane, _: &kvt_quant) -> Result<(), Fault> {
    match *kernels {}
}

/// Unreachable: no handle exists.
///
/// # Safety
/// None is needed.
pub(crate) unsafe fn dequantize(kernels: &Kernels, _: &Lane, _: &kvt_quant) -> Result<(), Fault> {
    match *kernels {}
}
