//! The kernels on a device, by address: what the torch operators do with CUDA tensors.
//!
//! Whoever calls has checked the shapes (`kvtide.torch.ops`) and names the stream; launches return at once. Nothing here is
//! touched where tensors are the CPU's: a machine without a driver never comes here.

mod attention;
mod batch;
mod pages;

pub use attention::{Attention, attention_bytes};
pub use batch::Batch;
pub use pages::PageKernels;

use crate::error::{raise, value};
use kvtide_client::cuda::{self, Device, Driver, Stream, Which, launch, params};
use kvtide_wire::status::Status;
use pyo3::prelude::*;
use std::sync::Arc;

/// A failed call on a device as its exception: arguments as `ValueError`, the rest as what the device or the driver lacks.
pub fn from(error: &cuda::Error) -> PyErr {
    match error {
        cuda::Error::Invalid { .. } => value(error.to_string()),
        cuda::Error::Unsupported { .. } => raise(Status::Invalid, &error.to_string()),
        _ => raise(Status::Device, &error.to_string()),
    }
}

/// What the machine's driver and devices can do, each tried with a real call, as JSON.
#[pyfunction]
pub fn gpu_report(py: Python<'_>) -> PyResult<String> {
    py.detach(|| Driver::probe().map(|driver| driver.report().to_json())).map_err(|e| from(&e))
}

/// What attention needs, on one device: new tokens into their pages, and attention itself.
#[pyclass(frozen, module = "kvtide")]
pub struct Kernels {
    device: Arc<Device>,
    append: launch::Append,
}

/// The raw handle of a stream as the driver's API names it: torch's 0 is the legacy default stream, CU_STREAM_LEGACY.
pub const fn named(raw: u64) -> u64 {
    if raw == 0 { 1 } else { raw }
}

fn stream(device: &Arc<Device>, raw: u64) -> PyResult<Stream> {
    // SAFETY: torch keeps its streams for the life of the process.
    unsafe { Stream::borrow(device, named(raw)) }.map_err(|e| from(&e))
}

/// New tokens, as `ops.append` checked them: tensors by address, strides in bytes.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct NewTokens {
    key: u64,
    /// 0: latent vectors, which have no values of their own.
    value: u64,
    token_stride: u64,
    head_stride: u64,
    /// A table `u32[blocks × planes]` of frame + 1, or 0; and block ids in it, `i32[seqs][columns]`.
    table: u64,
    block_ids: u64,
    blocks: u32,
    planes: u32,
    plane: u32,
    first_frame: u32,
    status: u64,
    lengths: u64,
    starts: u64,
    /// `u32`: counts the rows whose page is in no frame.
    faults: u64,
    pages: u64,
    stride: u64,
    frames: u32,
    rows: u32,
    seqs: u32,
    columns: u32,
    kv_heads: u32,
    page_tokens: u32,
    head_bytes: u32,
}

#[pymethods]
impl Kernels {
    /// Those of the device with this number.
    #[new]
    fn new(py: Python<'_>, ordinal: u32) -> PyResult<Kernels> {
        let open = || {
            let device = Device::open(&Driver::probe()?, Which::Ordinal(ordinal))?;
            Ok(Kernels { append: launch::Append::new(&device)?, device })
        };
        py.detach(open).map_err(|e: cuda::Error| from(&e))
    }

    /// Writes new tokens into their pages, on `stream`.
    fn append(&self, py: Python<'_>, stream: u64, new: NewTokens) -> PyResult<()> {
        let head_tokens_bytes = new.page_tokens * new.head_bytes;
        let part = |source: u64, half: u32| params::AppendPart {
            source,
            token_stride: new.token_stride,
            head_stride: new.head_stride,
            heads: if source == 0 { 0 } else { new.kv_heads },
            row_bytes: new.head_bytes,
            page_offset: half * new.kv_heads * head_tokens_bytes,
            page_head_stride: head_tokens_bytes,
            page_token_stride: new.head_bytes,
            reserved: 0,
        };
        let params = params::AppendParams {
            parts: [part(new.key, 0), part(new.value, 1)],
            table: new.table,
            block_ids: new.block_ids,
            lengths: new.lengths,
            starts: new.starts,
            faults: new.faults,
            pages: new.pages,
            stride: new.stride,
            rows: new.rows,
            seqs: new.seqs,
            max_blocks: new.columns,
            blocks: new.blocks,
            planes: new.planes,
            plane: new.plane,
            first_frame: new.first_frame,
            status: new.status,
            page_tokens: new.page_tokens,
            frames: new.frames,
            ..params::AppendParams::default()
        };
        let stream = self::stream(&self.device, stream)?;
        // SAFETY: `ops.append` checked that the tensors have these shapes; torch keeps their memory until the stream is past this
        // launch, and orders on the stream whoever else reads or writes it.
        py.detach(|| unsafe { self.append.append(&stream, &params) }).map_err(|e| from(&e))
    }

    /// Attention of one configuration, with a workspace of its own.
    fn attention(&self, py: Python<'_>, config: attention::Config) -> PyResult<Attention> {
        Attention::new(py, &self.device, &config)
    }
}
