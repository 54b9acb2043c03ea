//! Sequences of a lane's steps on a device, and the block tables that kernels read: `kvtide.Batch`.

use crate::{
    dlpack::{Device, I32, Memory},
    error::{self, raise},
};
use kvtide_client::{
    Client, Lane, StepSeq,
    cuda::{Batch as Native, BatchDevice, BatchOptions},
};
use kvtide_wire::status::Status;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Block ids, lengths and block tables of one lane's steps, on a device, at fixed addresses: `kvtide.Batch`.
#[pyclass(frozen, module = "kvtide")]
pub struct Batch {
    native: Arc<Mutex<Native>>,
    at: BatchDevice,
    table_planes: u32,
    device: Device,
}

impl Batch {
    /// Create a batch for the steps of `lane`.
    pub fn new(client: &Client, lane: &Lane, options: BatchOptions, device: Device) -> kvtide_client::Result<Batch> {
        let native = Native::new(client, lane, options)?;
        let at = native.device();
        Ok(Batch { native: Arc::new(Mutex::new(native)), at, table_planes: options.table_planes, device })
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Native>> {
        match self.native.try_lock() {
            Ok(native) => Ok(native),
            Err(TryLockError::Poisoned(poisoned)) => Ok(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => Err(raise(Status::State, "the batch is in a call of another thread")),
        }
    }

    fn memory(&self, address: u64, shape: Vec<i64>) -> Memory {
        let at = std::ptr::with_exposed_provenance_mut(address as usize);
        Memory::new(at, self.device, I32, shape, Box::new(Arc::clone(&self.native)))
    }
}

#[pymethods]
impl Batch {
    /// Number of rows.
    #[getter]
    fn seqs(&self) -> u32 {
        self.at.seqs
    }

    /// Number of columns.
    #[getter]
    fn max_blocks(&self) -> u32 {
        self.at.max_blocks
    }

    /// Set the rows to these sequences and lengths: those of the lane's `begin`. Call it after `begin`.
    fn set_sequences(&self, py: Python<'_>, seqs: Vec<(u32, u64)>) -> PyResult<()> {
        let seqs: Vec<StepSeq> = seqs.into_iter().map(|(seq, tokens)| StepSeq { seq, tokens }).collect();
        let mut native = self.lock()?;
        let native = &mut *native;
        py.detach(|| native.set(&seqs)).map_err(|e| error::from(&e))
    }

    /// Build the block tables and miss bits of planes `first .. first + count`, all of one size class, at the current position of
    /// the lane's stream. Call it after their boundary.
    #[pyo3(signature = (first, count=1, absent=-1))]
    fn tables(&self, py: Python<'_>, first: u16, count: u16, absent: i32) -> PyResult<()> {
        let mut native = self.lock()?;
        let native = &mut *native;
        py.detach(|| native.tables(first..first.saturating_add(count), absent)).map_err(|e| error::from(&e))
    }

    /// int32 [seqs]: tokens of each row, 0 for unused rows.
    fn lengths(&self) -> Memory {
        self.memory(self.at.lengths, vec![self.at.seqs.into()])
    }

    /// int32 [seqs, max_blocks]: block ids; -1: none.
    fn block_ids(&self) -> Memory {
        self.memory(self.at.block_ids, vec![self.at.seqs.into(), self.at.max_blocks.into()])
    }

    /// int32 [table_planes, seqs, max_blocks]: frames of the planes' size class; `absent` for pages in no frame.
    fn block_tables(&self) -> Memory {
        self.memory(
            self.at.block_tables,
            vec![self.table_planes.into(), self.at.seqs.into(), self.at.max_blocks.into()],
        )
    }

    /// int32 [table_planes, seqs, max_blocks / 32 rounded up]: bit i of word w is set if page 32 w + i is needed and in no frame.
    fn misses(&self) -> Memory {
        let words = self.at.max_blocks.div_ceil(32);
        self.memory(self.at.misses, vec![self.table_planes.into(), self.at.seqs.into(), words.into()])
    }
}
