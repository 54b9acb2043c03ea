//! CUDA kernels by address: the implementation of the torch operators for CUDA tensors.
//!
//! The caller (`kvtide.torch.ops`) has checked the shapes and names the stream. Launches return at once. CPU tensors never use this
//! module, so it is not reached on a machine without a driver.

mod attention;
mod batch;

pub use attention::{Attention, attention_bytes};
pub use batch::Batch;

use crate::error::{raise, value};
use kvtide_client::cuda::{self, Device, Driver, Stream, Which, launch, params};
use kvtide_wire::status::Status;
use pyo3::prelude::*;
use std::sync::Arc;

/// Convert an error of a device call to its exception: `ValueError` for arguments, else an error about the device or the driver.
pub fn from(error: &cuda::Error) -> PyErr {
    match error {
        cuda::Error::Invalid { .. } => value(error.to_string()),
        cuda::Error::Unsupported { .. } => raise(Status::Invalid, &error.to_string()),
        _ => raise(Status::Device, &error.to_string()),
    }
}

/// Return the NUMA node whose memory is nearest to a GPU, by the driver's number of it in this process; `None` if the system does not
/// say. Creates no context. Raises `DeviceFailed` if there is no such device or no driver.
#[pyfunction]
pub fn gpu_numa_node(py: Python<'_>, ordinal: u32) -> PyResult<Option<u16>> {
    let driver = py.detach(Driver::probe).map_err(|e| from(&e))?;
    let device = driver.devices().iter().find(|device| device.ordinal == ordinal);
    device.map(|device| device.numa_node).ok_or_else(|| {
        let count = driver.devices().len();
        let text =
            format!("no CUDA device {ordinal}: this process sees {count}; check the number and CUDA_VISIBLE_DEVICES");
        raise(Status::Device, &text)
    })
}

/// Attention kernels on one device: write new tokens into their pages, and attend.
#[pyclass(frozen, module = "kvtide")]
pub struct Kernels {
    device: Arc<Device>,
    append: launch::Append,
}

/// Return the driver API's handle of a stream: torch's 0 is the legacy default stream, CU_STREAM_LEGACY.
pub const fn named(raw: u64) -> u64 {
    if raw == 0 { 1 } else { raw }
}

fn stream(device: &Arc<Device>, raw: u64) -> PyResult<Stream> {
    // SAFETY: torch keeps its streams until the process ends.
    unsafe { Stream::borrow(device, named(raw)) }.map_err(|e| from(&e))
}

/// New tokens, checked by `ops.append`: tensors by address, strides in bytes.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct NewTokens {
    key: u64,
    /// 0 for latent vectors, which have no separate values.
    value: u64,
    token_stride: u64,
    head_stride: u64,
    /// Page table `u32[blocks × planes]` of frame + 1, or 0 if absent; and block ids in it, `i32[seqs][columns]`.
    table: u64,
    block_ids: u64,
    blocks: u32,
    planes: u32,
    plane: u32,
    first_frame: u32,
    status: u64,
    lengths: u64,
    starts: u64,
    /// `u32`: counter of rows with a page in no frame.
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
    /// Load the kernels for device `ordinal`.
    #[new]
    fn new(py: Python<'_>, ordinal: u32) -> PyResult<Kernels> {
        let open = || {
            let device = Device::open(&Driver::probe()?, Which::Ordinal(ordinal))?;
            Ok(Kernels { append: launch::Append::new(&device)?, device })
        };
        py.detach(open).map_err(|e: cuda::Error| from(&e))
    }

    /// Write new tokens into their pages, on `stream`.
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
        // SAFETY: `ops.append` checked that the tensors have these shapes. torch keeps their memory until the stream has passed
        // this launch, and orders other readers and writers on the stream.
        py.detach(|| unsafe { self.append.append(&stream, &params) }).map_err(|e| from(&e))
    }

    /// Create an attention of one configuration, with its own workspace.
    fn attention(&self, py: Python<'_>, config: attention::Config) -> PyResult<Attention> {
        Attention::new(py, &self.device, &config)
    }
}
