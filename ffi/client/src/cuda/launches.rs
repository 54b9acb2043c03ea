//! Kernels on a lane's stream, over a session's pages: what a launch needs of lane and batch is filled in here.
//!
//! The C ABI, Python and [`super::Attend`] launch through this; what a kernel computes is described at its parameters
//! ([`super::params`]). Each launch enqueues and returns. Addresses that the engine gives are its promise.

use crate::{Client, Error, Lane, Result, client::batch::Batch, memory::cuda::error};
use kvtide_kernels::{
    Device, Stream,
    launch::{
        self, Append, Digest, Gather, Quant,
        attention::{Attention, Config, Mass},
    },
    params::{
        AppendParams, AppendPart, DigestBuildParams, DigestScoresParams, DigestSelectParams, GatherParams, QuantParams,
    },
    reference::Element,
};
use kvtide_wire::status::Status;
use std::sync::Arc;

/// The device of a session.
fn device(client: &Client, doing: &'static str) -> Result<Arc<Device>> {
    client.inner.session.tier0.device().cloned().ok_or(Error::call(doing, 0, Status::State))
}

/// The stream of a lane, and its status word.
fn stream(lane: &Lane, doing: &'static str) -> Result<(Arc<Stream>, u64)> {
    let state = || Error::call(doing, u64::from(lane.index()), Status::State);
    let side = lane.on_stream().ok_or_else(state)?;
    Ok((side.stream().ok_or_else(state)?, side.status_word()))
}

/// What a step's new tokens bring to a plane, on the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewRows {
    /// Where the rows are and where they go in a page: keys and values, or one part alone (the other without heads).
    pub parts: [AppendPart; 2],
    /// `i32[rows of the batch + 1]`: rows `starts[s]..starts[s + 1]` belong to row s of the batch; 0: one row each.
    pub starts: u64,
    /// `u32`: counts the rows whose page is in no frame and that were not written; or 0.
    pub faults: u64,
    /// Rows of the sources.
    pub rows: u32,
}

/// What attention reads and writes beside the pages; device addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queries {
    /// Queries, `[tokens][heads][key]`, 16-byte aligned.
    pub q: u64,
    /// Out, `[tokens][heads][value]`, 16-byte aligned.
    pub out: u64,
    /// Out, `f32[tokens][heads]`: natural logarithms of the sums of exponentials; 0: not wanted (mass needs them).
    pub lse: u64,
    /// `i32[rows of the batch + 1]`: first query of each row; 0: each has as many as the attention was made for.
    pub starts: u64,
    /// Elements from one query token to the next; 0: heads × key.
    pub q_stride: u32,
    /// Elements from one output token to the next; 0: heads × value.
    pub out_stride: u32,
    /// Pages of the longest row, of which the grid is made; 0: the most that the attention was made for.
    pub pages_longest: u32,
    /// The plane, of which [`Batch::tables`] has built the block table.
    pub plane: u16,
    /// Where it stands among the planes of that call.
    pub table: u16,
}

impl Batch {
    /// The parameters that write `rows` into their pages in `plane`.
    ///
    /// # Errors
    /// `Range`: no such plane.
    pub(super) fn append_params(&self, plane: u16, rows: &NewRows) -> Result<AppendParams> {
        let (client, side, device) = (self.client(), self.side(), self.device());
        let layout = client.layout();
        let place = layout.planes.get(usize::from(plane));
        let place = place.ok_or(Error::call("write new tokens in plane", u64::from(plane), Status::Range))?;
        Ok(AppendParams {
            parts: rows.parts,
            table: side.table(),
            block_ids: device.block_ids,
            lengths: device.lengths,
            starts: rows.starts,
            pages: layout.tier0 as u64 + place.offset,
            stride: u64::from(place.stride),
            status: side.status_word(),
            faults: rows.faults,
            rows: rows.rows,
            rows_per_cta: 0,
            seqs: device.seqs,
            max_blocks: device.max_blocks,
            blocks: layout.blocks_max,
            planes: layout.planes.len() as u32,
            plane: u32::from(plane),
            page_tokens: layout.page_tokens,
            first_frame: place.first_frame,
            frames: client.inner.session.tier0.frames(place.class as usize),
        })
    }

    /// The batch of an attention over the block table that was built last.
    ///
    /// # Errors
    /// `Range`: no such plane, or no table of it.
    pub(super) fn attention_batch(&self, queries: &Queries) -> Result<launch::attention::Batch> {
        let range = Error::call("attend in plane", u64::from(queries.plane), Status::Range);
        let (device, layout) = (self.device(), self.client().layout());
        let has_table = u32::from(queries.table) < self.options().table_planes;
        let place = layout.planes.get(usize::from(queries.plane)).filter(|_| has_table).ok_or(range)?;
        let cells = u64::from(device.seqs) * u64::from(device.max_blocks);
        Ok(launch::attention::Batch {
            q: queries.q,
            q_stride: queries.q_stride,
            out: queries.out,
            out_stride: queries.out_stride,
            lse: queries.lse,
            pages: layout.tier0 as u64 + place.offset,
            page_stride: u64::from(place.stride),
            aliases: if self.is_in_place() { place.aliases } else { 0 },
            frames: place.frames,
            block_table: device.block_tables + u64::from(queries.table) * cells * size_of::<i32>() as u64,
            table_stride: device.max_blocks,
            lengths: device.lengths,
            q_starts: queries.starts,
            status: self.side().status_word(),
            seqs: device.seqs,
            pages_longest: queries.pages_longest,
        })
    }

    /// The stream of its lane.
    fn on(&self, doing: &'static str) -> Result<Arc<Stream>> {
        self.side().stream().ok_or(Error::call(doing, 0, Status::State))
    }

    /// What became of a launch. A device that is gone takes its session along.
    fn ended(&self, doing: &'static str, result: kvtide_kernels::Result<()>) -> Result<()> {
        ended(self.client(), doing, result)
    }
}

fn ended(client: &Client, doing: &'static str, result: kvtide_kernels::Result<()>) -> Result<()> {
    let failed = result.map_err(|e| error(doing, e));
    if let Err(error) = &failed
        && error.status() == Status::Device
    {
        client.inner.session.fail(Status::Device);
    }
    failed
}

/// The kernels that keep nothing between launches: new tokens into pages, layouts, codecs, digests.
pub struct Kernels {
    client: Client,
    append: Append,
    gather: Gather,
    quant: Quant,
    digest: Digest,
}

impl Kernels {
    /// Loads them. At set-up: never while a stream waits at a boundary.
    ///
    /// # Errors
    /// `State`: tier 0 is on no device. `Device`.
    pub fn new(client: &Client) -> Result<Kernels> {
        const DOING: &str = "load kernels for the device of tier 0";
        let device = device(client, DOING)?;
        let load = |device: &Arc<Device>| -> kvtide_kernels::Result<Kernels> {
            Ok(Kernels {
                append: Append::new(device)?,
                gather: Gather::new(device)?,
                quant: Quant::new(device)?,
                digest: Digest::new(device)?,
                client: client.clone(),
            })
        };
        load(&device).map_err(|e| error(DOING, e))
    }

    /// Writes a step's new tokens, the last of each row of the batch, into their pages.
    ///
    /// # Errors
    /// `Range`: no such plane. `Invalid`: an address or stride that cannot be. `State`: the lane is on no stream. `Device`.
    ///
    /// # Safety
    /// The batch's lane is in the step that the batch was set to. Until the launch has ended the sources are there and nobody
    /// writes them.
    pub unsafe fn append(&self, batch: &Batch, plane: u16, rows: &NewRows) -> Result<()> {
        const DOING: &str = "write new tokens into their pages";
        let (stream, params) = (batch.on(DOING)?, batch.append_params(plane, rows)?);
        // SAFETY: table, batch and frames are the session's, and the step keeps them as they are; the rest is the caller's promise.
        batch.ended(DOING, unsafe { self.append.append(&stream, &params) })
    }

    /// Copies blocks between layouts, by at most `blocks` blocks of threads. The lane's status word is filled in.
    ///
    /// # Errors
    /// As for [`Kernels::append`].
    ///
    /// # Safety
    /// As [`Gather::gather`]; pages among what is read or written are so within the lane's step.
    pub unsafe fn gather(&self, lane: &Lane, params: &GatherParams, blocks: u32) -> Result<()> {
        const DOING: &str = "copy blocks between layouts";
        let (stream, status) = stream(lane, DOING)?;
        // SAFETY: this function's own contract.
        let launched = unsafe { self.gather.gather(&stream, &GatherParams { status, ..*params }, blocks) };
        ended(&self.client, DOING, launched)
    }

    /// Quantises blocks, by at most `blocks` blocks of threads. The lane's status word is filled in.
    ///
    /// # Errors
    /// As for [`Kernels::append`].
    ///
    /// # Safety
    /// As [`Quant::quantize`]; pages as for [`Kernels::gather`].
    pub unsafe fn quantize(&self, lane: &Lane, element: Element, params: &QuantParams, blocks: u32) -> Result<()> {
        const DOING: &str = "quantise blocks";
        let (stream, status) = stream(lane, DOING)?;
        // SAFETY: this function's own contract.
        let launched = unsafe { self.quant.quantize(&stream, element, &QuantParams { status, ..*params }, blocks) };
        ended(&self.client, DOING, launched)
    }

    /// Dequantises blocks, by at most `blocks` blocks of threads. The lane's status word is filled in.
    ///
    /// # Errors
    /// As for [`Kernels::append`].
    ///
    /// # Safety
    /// As [`Quant::dequantize`]; pages as for [`Kernels::gather`].
    pub unsafe fn dequantize(&self, lane: &Lane, element: Element, params: &QuantParams, blocks: u32) -> Result<()> {
        const DOING: &str = "dequantise blocks";
        let (stream, status) = stream(lane, DOING)?;
        // SAFETY: this function's own contract.
        let launched = unsafe { self.quant.dequantize(&stream, element, &QuantParams { status, ..*params }, blocks) };
        ended(&self.client, DOING, launched)
    }

    /// Builds digests of sealed pages. The lane's status word is filled in.
    ///
    /// # Errors
    /// As for [`Kernels::append`].
    ///
    /// # Safety
    /// As [`Digest::build`]; pages as for [`Kernels::gather`].
    pub unsafe fn digest_build(&self, lane: &Lane, element: Element, params: &DigestBuildParams) -> Result<()> {
        const DOING: &str = "build digests";
        let (stream, status) = stream(lane, DOING)?;
        // SAFETY: this function's own contract.
        let launched = unsafe { self.digest.build(&stream, element, &DigestBuildParams { status, ..*params }) };
        ended(&self.client, DOING, launched)
    }

    /// Bounds of the products of a batch's queries with the pages of `plane`, from their digests. Block ids, lengths, the plane's
    /// window and the status word are filled in.
    ///
    /// # Errors
    /// As for [`Kernels::append`].
    ///
    /// # Safety
    /// As [`Digest::scores`].
    pub unsafe fn digest_scores(
        &self,
        batch: &Batch,
        plane: u16,
        element: Element,
        params: &DigestScoresParams,
    ) -> Result<()> {
        const DOING: &str = "score pages by their digests";
        let (stream, device) = (batch.on(DOING)?, batch.device());
        let params = DigestScoresParams {
            block_ids: device.block_ids,
            lengths: device.lengths,
            starts: batch.starts(plane),
            status: batch.side().status_word(),
            seqs: device.seqs,
            max_blocks: device.max_blocks,
            page_tokens: self.client.layout().page_tokens,
            ..*params
        };
        // SAFETY: the batch's arrays live as long as it; the rest is this function's own contract.
        batch.ended(DOING, unsafe { self.digest.scores(&stream, element, &params) })
    }

    /// The best pages of each row of a batch by the bounds of [`Kernels::digest_scores`]. Rows, columns and the status word are
    /// filled in.
    ///
    /// # Errors
    /// As for [`Kernels::append`].
    ///
    /// # Safety
    /// As [`Digest::select`].
    pub unsafe fn digest_select(&self, batch: &Batch, params: &DigestSelectParams) -> Result<()> {
        const DOING: &str = "select pages by their digests";
        let (stream, device) = (batch.on(DOING)?, batch.device());
        let (seqs, max_blocks) = (device.seqs, device.max_blocks);
        let params = DigestSelectParams { status: batch.side().status_word(), seqs, max_blocks, ..*params };
        // SAFETY: this function's own contract.
        batch.ended(DOING, unsafe { self.digest.select(&stream, &params) })
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernels").field("append", &self.append).finish_non_exhaustive()
    }
}

/// Attention of a batch's rows over a session's pages: whole, in passes, with mass. One lane's: it owns its workspace.
#[derive(Debug)]
pub struct LaneAttention {
    attention: Attention,
    mass: Option<Mass>,
}

impl LaneAttention {
    /// Loads the kernels and takes their workspace; `page_tokens` of the configuration is the space's. At set-up, as
    /// [`Kernels::new`].
    ///
    /// # Errors
    /// `State`: tier 0 is on no device. `Invalid`: a shape that the kernels do not take. `Device`.
    pub fn new(client: &Client, config: Config) -> Result<LaneAttention> {
        const DOING: &str = "load attention for the device of tier 0";
        let device = device(client, DOING)?;
        let config = Config { page_tokens: client.layout().page_tokens, ..config };
        let load = |device: &Arc<Device>| -> kvtide_kernels::Result<LaneAttention> {
            let attention = Attention::new(device, config)?;
            let mass = if config.mass { Some(Mass::new(device, &attention)?) } else { None };
            Ok(LaneAttention { attention, mass })
        };
        load(&device).map_err(|e| error(DOING, e))
    }

    /// The kernels' own handle: its configuration, and where it says what was emitted.
    #[must_use]
    pub fn kernels(&self) -> &Attention {
        &self.attention
    }

    /// Attention over pages that are all readable.
    ///
    /// # Errors
    /// `Range`: no such plane, or no table of it. `Invalid`: a number or address that cannot be. `State`: the lane is on no stream.
    /// `Device`.
    ///
    /// # Safety
    /// The batch's lane is in the step that the batch was set to, and [`Batch::tables`] has built the table that is named, of this
    /// plane. Until the launch has ended what the queries name is there and nobody else touches it.
    pub unsafe fn whole(&self, batch: &Batch, queries: &Queries) -> Result<()> {
        const DOING: &str = "attend on the device";
        let (stream, over) = (batch.on(DOING)?, batch.attention_batch(queries)?);
        // SAFETY: this function's own contract; the table names frames of the session's.
        batch.ended(DOING, unsafe { self.attention.whole(&stream, &over) })
    }

    /// Begins a plane in passes: then [`LaneAttention::part`] for each, and [`LaneAttention::merge`].
    ///
    /// # Errors
    /// `Invalid`: it was made without passes. `State`, `Device`.
    ///
    /// # Safety
    /// As for [`LaneAttention::whole`].
    pub unsafe fn begin(&mut self, batch: &Batch) -> Result<()> {
        const DOING: &str = "begin to attend in passes";
        let stream = batch.on(DOING)?;
        // SAFETY: this function's own contract.
        batch.ended(DOING, unsafe { self.attention.begin(&stream) })
    }

    /// Computes the pages of a pass: `items` is `u32[count][2]` on the device, row of the batch and page index.
    ///
    /// # Errors
    /// As for [`LaneAttention::whole`].
    ///
    /// # Safety
    /// As for [`LaneAttention::whole`]; the list too.
    pub unsafe fn part(&self, batch: &Batch, queries: &Queries, items: u64, count: u32) -> Result<()> {
        const DOING: &str = "attend to the pages of a pass";
        let (stream, over) = (batch.on(DOING)?, batch.attention_batch(queries)?);
        // SAFETY: this function's own contract.
        batch.ended(DOING, unsafe { self.attention.part(&stream, &over, items, count) })
    }

    /// Folds the passes: the bits that [`LaneAttention::whole`] would give.
    ///
    /// # Errors
    /// As for [`LaneAttention::whole`].
    ///
    /// # Safety
    /// As for [`LaneAttention::whole`].
    pub unsafe fn merge(&self, batch: &Batch, queries: &Queries) -> Result<()> {
        const DOING: &str = "merge passes of attention";
        let (stream, over) = (batch.on(DOING)?, batch.attention_batch(queries)?);
        // SAFETY: this function's own contract.
        batch.ended(DOING, unsafe { self.attention.merge(&stream, &over) })
    }

    /// The largest shares of each row after the last `whole` or `merge`, as [`launch::attention::scores`] reads them: `out` is
    /// `u64[rows of the batch][SCORE_WORDS]`.
    ///
    /// # Errors
    /// `Invalid`: it was made without mass, or more entries than there are. Else as for [`LaneAttention::whole`].
    ///
    /// # Safety
    /// As for [`LaneAttention::whole`]; `out` too.
    pub unsafe fn mass(&self, batch: &Batch, queries: &Queries, step: u64, top: u32, out: u64) -> Result<()> {
        const DOING: &str = "reduce attention mass";
        let (stream, over) = (batch.on(DOING)?, batch.attention_batch(queries)?);
        let none = Error::Options { option: "mass", why: "this attention was made without it".to_owned() };
        let mass = self.mass.as_ref().ok_or(none)?;
        // SAFETY: this function's own contract.
        let launched = unsafe { mass.reduce(&stream, &self.attention, &over, (queries.plane, step), top, out) };
        batch.ended(DOING, launched)
    }
}
