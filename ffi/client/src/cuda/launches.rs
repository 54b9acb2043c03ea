//! Kernel launches on a lane's stream over a session's pages. They fill in the parameters that the lane and the batch define.
//!
//! Used by the C ABI, Python and [`super::Attend`]. The parameters ([`super::params`]) describe what each kernel computes. Each
//! launch enqueues work and returns. The engine is responsible for the addresses that it gives.

use crate::{
    Client, Error, Lane, Result,
    client::{
        Refusal,
        batch::{Batch, UNBOUND},
    },
    memory::cuda::error,
};
use kvtide_kernels::{
    Device, Stream,
    launch::{
        self, Append, Gather, Quant,
        attention::{Attention, Config, Mass},
    },
    params::{AppendParams, AppendPart, GatherParams, QuantParams},
    reference::Element,
};
use kvtide_wire::status::Status;
use std::sync::Arc;

/// Return the device of a session.
fn device(client: &Client, doing: &'static str) -> Result<Arc<Device>> {
    let none = || Error::refused(doing, 0, Refusal::because(Status::State, "tier 0 is not on a device"));
    client.inner.session.tier0.device().cloned().ok_or_else(none)
}

/// Return the stream of a lane, and the address of its status word.
fn stream(lane: &Lane, doing: &'static str) -> Result<(Arc<Stream>, u64)> {
    let unbound = || Error::refused(doing, u64::from(lane.index()), Refusal::because(Status::State, UNBOUND));
    let side = lane.on_stream().ok_or_else(unbound)?;
    Ok((side.stream().ok_or_else(unbound)?, side.status_word()))
}

/// New rows of a step's tokens in a plane, on the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewRows {
    /// Sources and places in a page: keys and values, or one part alone (the other without heads).
    pub parts: [AppendPart; 2],
    /// `i32[rows of the batch + 1]`: rows `starts[s]..starts[s + 1]` belong to row s of the batch; 0: one row each.
    pub starts: u64,
    /// `u32`: counts rows that were not written because their page is in no frame; or 0.
    pub faults: u64,
    /// Number of rows of the sources.
    pub rows: u32,
}

/// Input and output of attention besides the pages; device addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queries {
    /// Queries, `[tokens][heads][key]`, 16-byte aligned.
    pub q: u64,
    /// Output, `[tokens][heads][value]`, 16-byte aligned.
    pub out: u64,
    /// Output, `f32[tokens][heads]`: natural logarithms of the sums of exponentials; 0: none (mass needs them).
    pub lse: u64,
    /// `i32[rows of the batch + 1]`: first query of each row; 0: each row has the number of queries in the configuration.
    pub starts: u64,
    /// Elements from one query token to the next; 0: heads × key.
    pub q_stride: u32,
    /// Elements from one output token to the next; 0: heads × value.
    pub out_stride: u32,
    /// Pages of the longest row; 0: the maximum of the configuration. A longer row writes nothing.
    pub pages_longest: u32,
    /// The plane. [`Batch::tables`] has built its block table.
    pub plane: u16,
    /// Its index among the planes of that call.
    pub table: u16,
}

impl Batch {
    /// Return the parameters that write `rows` into their pages in `plane`.
    ///
    /// # Errors
    /// `Range`: no such plane.
    pub(super) fn append_params(&self, plane: u16, rows: &NewRows) -> Result<AppendParams> {
        let (client, side, device) = (self.client(), self.side(), self.device());
        let layout = client.layout();
        let place = layout.planes.get(usize::from(plane));
        let none = || {
            let why = format!("the space has {} planes", layout.planes.len());
            Error::refused("write new tokens in plane", u64::from(plane), Refusal::because(Status::Range, why))
        };
        let place = place.ok_or_else(none)?;
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

    /// Return the attention batch over the block table that was built last.
    ///
    /// # Errors
    /// `Range`: no such plane, or no table for it.
    pub(super) fn attention_batch(&self, queries: &Queries) -> Result<launch::attention::Batch> {
        let (device, layout) = (self.device(), self.client().layout());
        let tables = self.options().table_planes;
        let none = || {
            let (planes, table) = (layout.planes.len(), queries.table);
            let why = format!("the space has {planes} planes, and the batch {tables} tables; asked for table {table}");
            Error::refused("attend in plane", u64::from(queries.plane), Refusal::because(Status::Range, why))
        };
        let has_table = u32::from(queries.table) < tables;
        let place = layout.planes.get(usize::from(queries.plane)).filter(|_| has_table).ok_or_else(none)?;
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

    /// Return the stream of its lane.
    fn on(&self, doing: &'static str) -> Result<Arc<Stream>> {
        self.side().stream().ok_or_else(|| Error::refused(doing, 0, Refusal::because(Status::State, UNBOUND)))
    }

    /// Convert the result of a launch. A lost device ends the session.
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

/// Kernels without state between launches: new tokens into pages, layouts, codecs.
pub struct Kernels {
    client: Client,
    append: Append,
    gather: Gather,
    quant: Quant,
}

impl Kernels {
    /// Load the kernels. Call it during set-up, never while a stream waits at a boundary.
    ///
    /// # Errors
    /// `State`: tier 0 is not on a device. `Device`.
    pub fn new(client: &Client) -> Result<Kernels> {
        const DOING: &str = "load kernels for the device of tier 0";
        let device = device(client, DOING)?;
        let load = |device: &Arc<Device>| -> kvtide_kernels::Result<Kernels> {
            Ok(Kernels {
                append: Append::new(device)?,
                gather: Gather::new(device)?,
                quant: Quant::new(device)?,
                client: client.clone(),
            })
        };
        load(&device).map_err(|e| error(DOING, e))
    }

    /// Write a step's new tokens, which are the last tokens of each row of the batch, into their pages.
    ///
    /// # Errors
    /// `Range`: no such plane. `Invalid`: an invalid address or stride. `State`: the lane is not bound to a stream. `Device`.
    ///
    /// # Safety
    /// The batch's lane must be in the step that the batch was set to. Until the launch has ended, the sources must exist and must
    /// not be written.
    pub unsafe fn append(&self, batch: &Batch, plane: u16, rows: &NewRows) -> Result<()> {
        const DOING: &str = "write new tokens into their pages";
        let (stream, params) = (batch.on(DOING)?, batch.append_params(plane, rows)?);
        // SAFETY: table, batch and frames are the session's, and the step keeps them as they are; the caller guarantees the rest.
        batch.ended(DOING, unsafe { self.append.append(&stream, &params) })
    }

    /// Copy blocks between layouts, with at most `blocks` thread blocks. The lane's status word is filled in.
    ///
    /// # Errors
    /// As for [`Kernels::append`].
    ///
    /// # Safety
    /// As [`Gather::gather`]. Session pages may be read or written only within the lane's step.
    pub unsafe fn gather(&self, lane: &Lane, params: &GatherParams, blocks: u32) -> Result<()> {
        const DOING: &str = "copy blocks between layouts";
        let (stream, status) = stream(lane, DOING)?;
        // SAFETY: this function's own contract.
        let launched = unsafe { self.gather.gather(&stream, &GatherParams { status, ..*params }, blocks) };
        ended(&self.client, DOING, launched)
    }

    /// Quantise blocks, with at most `blocks` thread blocks. The lane's status word is filled in.
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

    /// Dequantise blocks, with at most `blocks` thread blocks. The lane's status word is filled in.
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
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernels").field("append", &self.append).finish_non_exhaustive()
    }
}

/// Attention of a batch's rows over a session's pages: at once, in passes, with mass. It owns its workspace, so use it with one
/// lane.
#[derive(Debug)]
pub struct LaneAttention {
    attention: Attention,
    mass: Option<Mass>,
}

impl LaneAttention {
    /// Load the kernels and allocate their workspace. `page_tokens` of the configuration is replaced by that of the space. Call it
    /// during set-up, as [`Kernels::new`].
    ///
    /// # Errors
    /// `State`: tier 0 is not on a device. `Invalid`: a shape that the kernels do not support. `Device`.
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

    /// Return the underlying kernels: their configuration, and the address of their emitted flags.
    #[must_use]
    pub fn kernels(&self) -> &Attention {
        &self.attention
    }

    /// Compute attention over pages that are all readable.
    ///
    /// # Errors
    /// `Range`: no such plane, or no table for it. `Invalid`: an invalid number or address. `State`: the lane is not bound to a
    /// stream. `Device`.
    ///
    /// # Safety
    /// The batch's lane must be in the step that the batch was set to, and [`Batch::tables`] must have built the named table for
    /// this plane. Until the launch has ended, the memory that the queries name must exist, and nothing else may access it.
    pub unsafe fn whole(&self, batch: &Batch, queries: &Queries) -> Result<()> {
        const DOING: &str = "attend on the device";
        let (stream, over) = (batch.on(DOING)?, batch.attention_batch(queries)?);
        // SAFETY: this function's own contract; the table names frames of the session.
        batch.ended(DOING, unsafe { self.attention.whole(&stream, &over) })
    }

    /// Begin a plane in passes. Then call [`LaneAttention::part`] for each pass, and [`LaneAttention::merge`] at the end.
    ///
    /// # Errors
    /// `Invalid`: the configuration has no passes. `State`, `Device`.
    ///
    /// # Safety
    /// As for [`LaneAttention::whole`].
    pub unsafe fn begin(&mut self, batch: &Batch) -> Result<()> {
        const DOING: &str = "begin attention in passes";
        let stream = batch.on(DOING)?;
        // SAFETY: this function's own contract.
        batch.ended(DOING, unsafe { self.attention.begin(&stream) })
    }

    /// Compute the pages of a pass. `items` is `u32[count][2]` on the device: row of the batch and page index.
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

    /// Merge the passes. The result is bit-identical to that of [`LaneAttention::whole`].
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

    /// Compute the largest shares of each row after the last `whole` or `merge`, in the form that [`launch::attention::scores`]
    /// reads. `out` is `u64[rows of the batch][SCORE_WORDS]`.
    ///
    /// # Errors
    /// `Invalid`: the configuration has no mass, or `top` exceeds the maximum number of entries. Otherwise as for
    /// [`LaneAttention::whole`].
    ///
    /// # Safety
    /// As for [`LaneAttention::whole`]; `out` too.
    pub unsafe fn mass(&self, batch: &Batch, queries: &Queries, step: u64, top: u32, out: u64) -> Result<()> {
        const DOING: &str = "reduce attention mass";
        let (stream, over) = (batch.on(DOING)?, batch.attention_batch(queries)?);
        let none = Error::Options { option: "mass", why: "the attention's configuration has no mass".to_owned() };
        let mass = self.mass.as_ref().ok_or(none)?;
        // SAFETY: this function's own contract.
        let launched = unsafe { mass.reduce(&stream, &self.attention, &over, (queries.plane, step), top, out) };
        batch.ended(DOING, launched)
    }
}
