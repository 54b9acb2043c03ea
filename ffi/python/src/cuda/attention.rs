//! Attention on a device: one configuration, its workspace, and launches on torch's stream.

use super::from;
use crate::{
    dlpack,
    error::{raise, value},
};
use kvtide_client::cuda::{
    Device, Stream, launch::attention as native, reference::Element, reference::attention::Layout,
};
use kvtide_wire::status::Status;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Configuration of an attention.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Config {
    bf16: bool,
    /// Dimension of a key, and of its value: the same, or for latent vectors the first part.
    head_dim: usize,
    value_dim: usize,
    kv_heads: u32,
    group: u32,
    page_tokens: u32,
    window: u32,
    scale: f32,
    /// Maximum number of sequences, of queries per sequence, and of pages per sequence.
    seqs: u32,
    q_tokens: u32,
    blocks: u32,
    passes: bool,
}

/// Tensors of one launch by address, checked by `kvtide.torch.ops`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Batch {
    query: u64,
    out: u64,
    pages: u64,
    stride: u64,
    block_table: u64,
    table_stride: u32,
    columns: u32,
    lengths: u64,
    starts: u64,
    seqs: u32,
    status: u64,
}

impl Batch {
    fn native(&self) -> native::Batch {
        native::Batch {
            q: self.query,
            out: self.out,
            pages: self.pages,
            page_stride: self.stride,
            block_table: self.block_table,
            table_stride: self.table_stride,
            lengths: self.lengths,
            q_starts: self.starts,
            status: self.status,
            seqs: self.seqs,
            pages_longest: self.columns,
            ..native::Batch::default()
        }
    }
}

/// Attention of one configuration: `kvtide._native.Attention`. One stream at a time may use it.
#[pyclass(frozen, module = "kvtide")]
pub struct Attention {
    device: Arc<Device>,
    ordinal: u32,
    native: Arc<Mutex<native::Attention>>,
}

impl Config {
    fn native(&self) -> native::Config {
        let layout = match self.head_dim.saturating_sub(self.value_dim) {
            0 => Layout::Heads { head_dim: self.head_dim },
            rope => Layout::Latent { latent: self.value_dim, rope },
        };
        native::Config {
            element: if self.bf16 { Element::Bf16 } else { Element::F16 },
            layout,
            kv_heads: self.kv_heads,
            group: self.group,
            page_tokens: self.page_tokens,
            window: self.window,
            scale: self.scale,
            seqs: self.seqs,
            q_tokens: self.q_tokens,
            pages: self.blocks,
            chunk_tokens: 0,
            passes: self.passes,
            mass: false,
        }
    }
}

/// Return the bytes of device memory that an attention of this configuration needs.
#[pyfunction]
pub fn attention_bytes(config: Config) -> PyResult<u64> {
    config.native().workspace_bytes().map_err(|e| from(&e))
}

impl Attention {
    /// Load the kernels and allocate the workspace.
    pub fn new(py: Python<'_>, device: &Arc<Device>, config: &Config) -> PyResult<Attention> {
        let config = config.native();
        let attention = py.detach(|| native::Attention::new(device, config)).map_err(|e| from(&e))?;
        let native = Arc::new(Mutex::new(attention));
        Ok(Attention { ordinal: device.info().ordinal, device: Arc::clone(device), native })
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, native::Attention>> {
        match self.native.try_lock() {
            Ok(native) => Ok(native),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(raise(Status::State, "attention is being launched by another thread")),
        }
    }

    fn stream(&self, raw: u64) -> PyResult<Stream> {
        super::stream(&self.device, raw)
    }
}

#[pymethods]
impl Attention {
    /// Compute attention over pages that are all readable.
    fn whole(&self, stream: u64, batch: Batch) -> PyResult<()> {
        let (stream, native) = (self.stream(stream)?, self.lock()?);
        // SAFETY: `ops` checked the tensors' shapes against this configuration. torch keeps their memory until the stream has
        // passed the launch. `ops` uses one attention per stream.
        unsafe { native.whole(&stream, &batch.native()) }.map_err(|e| from(&e))
    }

    /// Start attention in passes.
    fn begin(&self, stream: u64) -> PyResult<()> {
        let (stream, mut native) = (self.stream(stream)?, self.lock()?);
        // SAFETY: as in `whole`.
        unsafe { native.begin(&stream) }.map_err(|e| from(&e))
    }

    /// Compute the pages `items` (`u32[count][2]`: sequence, block) of a pass.
    fn part(&self, stream: u64, batch: Batch, items: u64, count: u32) -> PyResult<()> {
        let (stream, native) = (self.stream(stream)?, self.lock()?);
        // SAFETY: as in `whole`; the list is a torch tensor too.
        unsafe { native.part(&stream, &batch.native(), items, count) }.map_err(|e| from(&e))
    }

    /// Merge the partial results of the passes.
    fn merge(&self, stream: u64, batch: Batch) -> PyResult<()> {
        let (stream, native) = (self.stream(stream)?, self.lock()?);
        // SAFETY: as in `whole`.
        unsafe { native.merge(&stream, &batch.native()) }.map_err(|e| from(&e))
    }

    /// Return whether the last launch wrote its rows, for `seqs` sequences: int32 on the device, 1 or 0 per sequence, KV head and
    /// tile.
    fn emitted(&self, seqs: u32) -> PyResult<dlpack::Memory> {
        let native = self.native.lock().unwrap_or_else(PoisonError::into_inner);
        let words = native.emitted_words(seqs);
        if seqs > native.config().seqs {
            return Err(value(format!("{seqs} sequences; this attention is for at most {}", native.config().seqs)));
        }
        let at = std::ptr::with_exposed_provenance_mut(native.emitted() as usize);
        let keep = Box::new(Arc::clone(&self.native));
        Ok(dlpack::Memory::new(at, dlpack::Device::cuda(self.ordinal), dlpack::I32, vec![words as i64], keep))
    }
}
