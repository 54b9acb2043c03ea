//! Page kernels other than attention: copies between layouts, and block tables. Tensors are given by address.

use super::{from, stream};
use kvtide_client::cuda::{self, Device, Driver, Stream, Which, launch, params, reference::Element};
use pyo3::prelude::*;
use std::sync::Arc;

/// Thread blocks per multiprocessor: as many as a copy needs to reach memory bandwidth when nothing else runs.
const BLOCKS_EACH: u32 = 4;
/// Maximum thread blocks of a launch that the kernels accept.
const BLOCKS_MAX: u32 = 4096;

/// Location of a block's rows. `bases` is `u64[layers × parts]` on the device.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Layout {
    bases: u64,
    head_stride: u64,
    token_stride: u64,
}

impl Layout {
    fn native(&self) -> params::GatherLayout {
        params::GatherLayout { bases: self.bases, head_stride: self.head_stride, token_stride: self.token_stride }
    }
}

/// Shape of a block.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Shape {
    layers: u32,
    parts: u32,
    heads: u32,
    tokens: u32,
    channels: u32,
}

/// Arguments of `block_tables`, checked by `ops.block_tables`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Tables {
    table: u64,
    blocks: u32,
    planes: u32,
    plane: u32,
    plane_count: u32,
    first_frame: u32,
    absent: i32,
    block_ids: u64,
    lengths: u64,
    starts: u64,
    block_tables: u64,
    misses: u64,
    seqs: u32,
    columns: u32,
    page_tokens: u32,
}

/// Page kernels on one device.
#[pyclass(frozen, module = "kvtide")]
pub struct PageKernels {
    device: Arc<Device>,
    gather: launch::Gather,
    boundary: launch::Boundary,
}

impl PageKernels {
    fn blocks(&self) -> u32 {
        (self.device.info().multiprocessors * BLOCKS_EACH).clamp(1, BLOCKS_MAX)
    }

    /// Launch on torch's stream, without the GIL.
    fn launch(
        &self,
        py: Python<'_>,
        raw: u64,
        work: impl Send + FnOnce(&Stream) -> Result<(), cuda::Error>,
    ) -> PyResult<()> {
        let stream = stream(&self.device, raw)?;
        py.detach(|| work(&stream)).map_err(|e| from(&e))
    }
}

// For every launch below: the operator checked that the tensors have these shapes. torch keeps their memory until the stream has
// passed the launch, and orders other readers and writers on the stream.
#[pymethods]
impl PageKernels {
    /// Load the kernels for device `ordinal`.
    #[new]
    fn new(py: Python<'_>, ordinal: u32) -> PyResult<PageKernels> {
        let open = || {
            let device = Device::open(&Driver::probe()?, Which::Ordinal(ordinal))?;
            Ok(PageKernels { gather: launch::Gather::new(&device)?, boundary: launch::Boundary::new(&device)?, device })
        };
        py.detach(open).map_err(|e: cuda::Error| from(&e))
    }

    /// Copy blocks `items` (`GatherItem[count]`) from one layout to another.
    #[allow(clippy::too_many_arguments)] // those of the operator
    fn copy_blocks(
        &self,
        py: Python<'_>,
        stream: u64,
        source: Layout,
        target: Layout,
        shape: Shape,
        items: u64,
        count: u32,
    ) -> PyResult<()> {
        let params = params::GatherParams {
            from: source.native(),
            to: target.native(),
            items,
            count,
            layers: shape.layers,
            parts: shape.parts,
            heads: shape.heads,
            tokens: shape.tokens,
            row_bytes: shape.channels * Element::BYTES as u32,
            ..params::GatherParams::default()
        };
        // SAFETY: see above.
        self.launch(py, stream, |stream| unsafe { self.gather.gather(stream, &params, self.blocks()) })
    }

    /// Build block tables and miss bits.
    fn block_tables(&self, py: Python<'_>, stream: u64, tables: Tables) -> PyResult<()> {
        let params = params::BoundaryTablesParams {
            table: tables.table,
            block_ids: tables.block_ids,
            lengths: tables.lengths,
            starts: tables.starts,
            block_tables: tables.block_tables,
            misses: tables.misses,
            status: 0,
            seqs: tables.seqs,
            max_blocks: tables.columns,
            planes: tables.planes,
            plane: tables.plane,
            plane_count: tables.plane_count,
            page_tokens: tables.page_tokens,
            blocks: tables.blocks,
            first_frame: tables.first_frame,
            absent: tables.absent,
            frames: u32::MAX,
        };
        // SAFETY: see above.
        self.launch(py, stream, |stream| unsafe { self.boundary.tables(stream, &params) })
    }
}
