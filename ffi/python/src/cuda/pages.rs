//! The kernels over pages other than attention's: blocks between layouts, codecs, digests, block tables. Tensors by address.

use super::{from, stream};
use kvtide_client::cuda::{self, Device, Driver, Stream, Which, launch, params, reference::Element};
use pyo3::prelude::*;
use std::sync::Arc;

/// Blocks of threads for each multiprocessor: what a copy that nothing else runs beside needs to reach the memory's speed.
const BLOCKS_EACH: u32 = 4;
/// Most blocks of a launch that the kernels take.
const BLOCKS_MAX: u32 = 4096;

/// Where the rows of a block are: `bases` is `u64[layers × parts]` on the device.
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

/// What a block holds.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Shape {
    layers: u32,
    parts: u32,
    heads: u32,
    tokens: u32,
    channels: u32,
}

/// Quantised blocks.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Images {
    codec: u32,
    bf16: bool,
    /// Bytes of one layer's image.
    stride: u64,
    /// `u32[count]`, 1: refused; 0 when it is read.
    refused: u64,
    /// `QuantItem[count]`.
    items: u64,
    count: u32,
}

const fn element(bf16: bool) -> Element {
    if bf16 { Element::Bf16 } else { Element::F16 }
}

fn quant(rows: &Layout, shape: &Shape, images: &Images) -> params::QuantParams {
    params::QuantParams {
        layout: rows.native(),
        items: images.items,
        refused: images.refused,
        status: 0,
        image_stride: images.stride,
        count: images.count,
        layers: shape.layers,
        parts: shape.parts,
        heads: shape.heads,
        page_tokens: shape.tokens,
        channels: shape.channels,
        codec: images.codec,
        reserved: 0,
    }
}

/// Pages whose digests are built, and where to.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Build {
    keys: u64,
    head_stride: u64,
    token_stride: u64,
    /// `DigestItem[count]`.
    items: u64,
    count: u32,
    bf16: bool,
    heads: u32,
    channels: u32,
    digests: u64,
    blocks: u32,
}

/// What scores are asked of, as `ops.digest_scores` checked it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Scores {
    queries: u64,
    seq_stride: u64,
    head_stride: u64,
    bf16: bool,
    digests: u64,
    blocks: u32,
    block_ids: u64,
    lengths: u64,
    sealed: u64,
    starts: u64,
    bounds: u64,
    seqs: u32,
    columns: u32,
    kv_heads: u32,
    group: u32,
    channels: u32,
    page_tokens: u32,
    scale: f32,
}

/// What is chosen from, as `ops.digest_select` checked it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Select {
    bounds: u64,
    estimates: u64,
    chosen: u64,
    counts: u64,
    omitted: u64,
    seqs: u32,
    columns: u32,
    heads: u32,
    budget: u32,
    keep_first: u32,
    keep_last: u32,
}

/// Block tables, as `ops.block_tables` checked it.
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

/// These kernels on one device.
#[pyclass(frozen, module = "kvtide")]
pub struct PageKernels {
    device: Arc<Device>,
    gather: launch::Gather,
    quant: launch::Quant,
    digest: launch::Digest,
    boundary: launch::Boundary,
}

impl PageKernels {
    fn blocks(&self) -> u32 {
        (self.device.info().multiprocessors * BLOCKS_EACH).clamp(1, BLOCKS_MAX)
    }

    /// Launches on torch's stream, without the interpreter's lock.
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

// Of every launch below: the operator checked that the tensors have these shapes; torch keeps their memory until the stream is past
// the launch, and orders on the stream whoever else reads or writes it.
#[pymethods]
impl PageKernels {
    /// Those of the device with this number.
    #[new]
    fn new(py: Python<'_>, ordinal: u32) -> PyResult<PageKernels> {
        let open = || {
            let device = Device::open(&Driver::probe()?, Which::Ordinal(ordinal))?;
            Ok(PageKernels {
                gather: launch::Gather::new(&device)?,
                quant: launch::Quant::new(&device)?,
                digest: launch::Digest::new(&device)?,
                boundary: launch::Boundary::new(&device)?,
                device,
            })
        };
        py.detach(open).map_err(|e: cuda::Error| from(&e))
    }

    /// Copies blocks `items` (`GatherItem[count]`) from one layout into another.
    #[allow(clippy::too_many_arguments)] // as the operator has it
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

    /// Quantises blocks.
    fn quantize(&self, py: Python<'_>, stream: u64, rows: Layout, shape: Shape, images: Images) -> PyResult<()> {
        let params = quant(&rows, &shape, &images);
        let element = element(images.bf16);
        // SAFETY: see above.
        self.launch(py, stream, |stream| unsafe { self.quant.quantize(stream, element, &params, self.blocks()) })
    }

    /// The way back.
    fn dequantize(&self, py: Python<'_>, stream: u64, rows: Layout, shape: Shape, images: Images) -> PyResult<()> {
        let params = quant(&rows, &shape, &images);
        let element = element(images.bf16);
        // SAFETY: see above.
        self.launch(py, stream, |stream| unsafe { self.quant.dequantize(stream, element, &params, self.blocks()) })
    }

    /// Builds digests.
    fn digest_build(&self, py: Python<'_>, stream: u64, build: Build) -> PyResult<()> {
        let params = params::DigestBuildParams {
            keys: build.keys,
            head_stride: build.head_stride,
            token_stride: build.token_stride,
            items: build.items,
            digests: build.digests,
            status: 0,
            count: build.count,
            heads: build.heads,
            channels: build.channels,
            blocks: build.blocks,
        };
        let element = element(build.bf16);
        // SAFETY: see above; the operator's caller names no block twice, as it is told.
        self.launch(py, stream, |stream| unsafe { self.digest.build(stream, element, &params) })
    }

    /// Bounds from digests.
    fn digest_scores(&self, py: Python<'_>, stream: u64, scores: Scores) -> PyResult<()> {
        let params = params::DigestScoresParams {
            queries: scores.queries,
            seq_stride: scores.seq_stride,
            head_stride: scores.head_stride,
            digests: scores.digests,
            block_ids: scores.block_ids,
            lengths: scores.lengths,
            sealed: scores.sealed,
            starts: scores.starts,
            bounds: scores.bounds,
            status: 0,
            seqs: scores.seqs,
            max_blocks: scores.columns,
            kv_heads: scores.kv_heads,
            group: scores.group,
            channels: scores.channels,
            page_tokens: scores.page_tokens,
            blocks: scores.blocks,
            scale: scores.scale,
        };
        let element = element(scores.bf16);
        // SAFETY: see above.
        self.launch(py, stream, |stream| unsafe { self.digest.scores(stream, element, &params) })
    }

    /// The best pages.
    fn digest_select(&self, py: Python<'_>, stream: u64, select: Select) -> PyResult<()> {
        let params = params::DigestSelectParams {
            bounds: select.bounds,
            estimates: select.estimates,
            chosen: select.chosen,
            counts: select.counts,
            omitted: select.omitted,
            status: 0,
            seqs: select.seqs,
            max_blocks: select.columns,
            heads: select.heads,
            budget: select.budget,
            keep_first: select.keep_first,
            keep_last: select.keep_last,
        };
        // SAFETY: see above.
        self.launch(py, stream, |stream| unsafe { self.digest.select(stream, &params) })
    }

    /// Block tables and miss bits.
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
