//! Paged attention: decode, verification, prefill, latent vectors; in one launch, or in passes over the readable pages; mass per
//! page.
//!
//! An [`Attention`] is set up once for a geometry and bounds, and owns its workspace. It belongs to one lane: its launches go to
//! one stream at a time. All results of a configuration have the same bits, however pages were divided into passes.

mod config;
mod mass;
mod sources;

pub use config::{Config, DECODE_ROWS_MAX};
pub use mass::{Mass, SCORE_WORDS, TOP_MAX, scores};

use super::check;
use crate::params::AttentionParams;
use crate::reference::attention::Layout;
use crate::{Buffer, Device, Error, Event, Function, Priority, Result, Shape, Stream};
use config::Plan;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens of a tile.
const TILE: u32 = 16;
/// Threads of a block: four warps; latent: eight.
const THREADS: u32 = 128;
const LATENT_THREADS: u32 = 256;
/// Pages of a list for each warp: enough for its ring to fill, few enough for short lists to use the whole device.
const ITEMS_PER_WARP: u32 = 4;
/// Maximum blocks of a grid in y and z.
const GRID_YZ_MAX: u64 = 65535;
/// Time limit for clearing new workspace, which takes microseconds.
const CLEARED_WITHIN: Duration = Duration::from_secs(10);

/// The sequences of a launch; addresses are on the device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    /// Queries, `[tokens][heads][key]`, 16-byte aligned.
    pub q: u64,
    /// Elements between two query tokens; 0: `heads · key`.
    pub q_stride: u32,
    /// Out, `[tokens][heads][value]`, 16-byte aligned.
    pub out: u64,
    /// Elements between two output tokens; 0: `heads · value`.
    pub out_stride: u32,
    /// Out, `f32[tokens][heads]`: natural logarithm of the sum of exponentials; 0: not wanted (mass needs it).
    pub lse: u64,
    /// Address of frame 0 of the block table, 16-byte aligned.
    pub pages: u64,
    /// Bytes between two frames.
    pub page_stride: u64,
    /// `u64[]`: addresses of the pages that frames from `frames` on show, as a session's mapped frames do; 0: there are none.
    pub aliases: u64,
    /// Frames at `pages`, if `aliases` is given.
    pub frames: u32,
    /// `i32[seqs][table_stride]`: frame, or negative where not readable; 0: page i of sequence s lies in frame s · table_stride + i.
    pub block_table: u64,
    /// Columns of the block table.
    pub table_stride: u32,
    /// `i32[seqs]`: tokens that the last query of the sequence sees, itself included.
    pub lengths: u64,
    /// `i32[seqs + 1]`: first query of each sequence; 0: each has the configured number.
    pub q_starts: u64,
    /// `u32`: the lane's status word; 0: none.
    pub status: u64,
    /// Sequences.
    pub seqs: u32,
    /// Pages of the longest sequence; 0: the configured maximum. A longer sequence emits nothing.
    pub pages_longest: u32,
}

/// Attention of one configuration on one device.
#[derive(Debug)]
pub struct Attention {
    config: Config,
    plan: Plan,
    whole: Function,
    decode: Function,
    merge: Function,
    workspace: Buffer,
    /// Blocks of `decode` that the device runs at a time.
    places: u32,
    epoch: u32,
}

impl Attention {
    /// Load its kernels and allocate its workspace ([`Config::workspace_bytes`]). Used at set-up: waits until the workspace is
    /// cleared.
    ///
    /// # Errors
    /// The kernels do not support the shape; the driver rejects them; the device is full or lost, or has too little shared memory.
    pub fn new(device: &Arc<Device>, config: Config) -> Result<Self> {
        let plan = config.plan()?;
        let module = device.module(sources::of(config.layout)?)?;
        let (element, rows) = (config.element.name(), plan.tile_rows);
        let named = |kind: &str| match config.layout {
            Layout::Latent { .. } => module.function(&format!("attention_mla{kind}_{element}_r{rows}")),
            Layout::Heads { head_dim } => module.function(&format!("attention{kind}_{element}_d{head_dim}_r{rows}")),
        };
        let decode = named(if config.latent() { "" } else { "_decode" })?;
        let whole = named(if config.latent() {
            ""
        } else if plan.prefill {
            "_prefill"
        } else {
            "_decode"
        })?;
        let merge = named("_merge")?;
        decode.allow_shared(shared_bytes(&config, &plan))?;
        whole.allow_shared(shared_bytes(&config, &plan))?;
        let threads = if config.latent() { LATENT_THREADS } else { THREADS };
        let each = decode.blocks_per_multiprocessor(threads, shared_bytes(&config, &plan))?;
        let places = (each * device.info().multiprocessors).max(1);
        let workspace = Buffer::new(device, usize::try_from(plan.bytes).unwrap_or(usize::MAX))?;
        clear(device, workspace.address(), plan.zeroed)?;
        Ok(Self { config, plan, whole, decode, merge, workspace, places, epoch: 0 })
    }

    /// Return its configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Return `u32[seqs][kv_heads][tiles]` on the device: after a launch that ends attention ([`Self::whole`], [`Self::merge`]) 1
    /// if rows were written, 0 if a page was not readable, the sequence was too long or the lane's status word was set.
    #[must_use]
    pub fn emitted(&self) -> u64 {
        self.workspace.address() + self.plan.emitted
    }

    /// Return the words of [`Self::emitted`] for `seqs` sequences.
    #[must_use]
    pub fn emitted_words(&self, seqs: u32) -> usize {
        seqs as usize * self.config.kv_heads as usize * self.plan.tiles as usize
    }

    /// Compute attention in one launch; all pages must be readable.
    ///
    /// # Errors
    /// An invalid shape or address; the device is lost.
    ///
    /// # Safety
    /// Until it has ended: the memory in the batch exists in the sizes of the configuration, nothing else writes the memory it
    /// reads or accesses the memory it writes, non-negative entries of the block table are frames, and no other launch of this
    /// attention runs at the same time.
    pub unsafe fn whole(&self, stream: &Stream, batch: &Batch) -> Result<()> {
        let mut params = self.params(batch)?;
        let shape = if self.plan.prefill {
            if !self.config.mass {
                params.page_ml = 0; // workspace for passes; unused after this launch
            }
            let blocks = self.plan.tiles.div_ceil(THREADS / 32);
            self.shape([blocks, self.config.kv_heads, batch.seqs])
        } else {
            // Units of work, if every sequence were of the maximum length.
            let units = u64::from(self.config.kv_heads * self.plan.tiles)
                * u64::from(self.chunks(batch))
                * u64::from(batch.seqs);
            self.shape([units.min(self.places.into()) as u32, 1, 1])
        };
        // SAFETY: checked; the caller guarantees the rest.
        unsafe { self.whole.launch(stream, shape, &params) }
    }

    /// Begin attention in passes; results of earlier passes are discarded. Then call [`Self::part`] for each pass, and
    /// [`Self::merge`].
    ///
    /// # Errors
    /// The configuration has no passes; the device is lost.
    ///
    /// # Safety
    /// As for [`Self::whole`].
    pub unsafe fn begin(&mut self, stream: &Stream) -> Result<()> {
        self.needs_passes()?;
        if self.epoch == u32::MAX {
            let (at, bytes) = (self.workspace.address() + self.plan.stamps, self.plan.zeroed - self.plan.stamps);
            // SAFETY: the stamps belong to this attention; the stream orders this after earlier launches.
            unsafe { stream.fill(at, 0, bytes as usize)? };
            self.epoch = 0;
        }
        self.epoch += 1;
        Ok(())
    }

    /// Compute the listed pages: `items` is `u32[count][2]` on the device, batch row and page index, 8-byte aligned. A page that is
    /// unreadable in the block table, or that no query sees, gives no result; a page that is listed twice is computed twice.
    ///
    /// # Errors
    /// As for [`Self::whole`], or nothing was begun.
    ///
    /// # Safety
    /// As for [`Self::whole`]; the list must stay unchanged, too.
    pub unsafe fn part(&self, stream: &Stream, batch: &Batch, items: u64, count: u32) -> Result<()> {
        self.needs_passes()?;
        if self.epoch == 0 {
            return Err(Error::invalid("pass", "attention in passes was not begun"));
        }
        if count == 0 {
            return Ok(());
        }
        check::address("list of pages", items, 8)?;
        let mut params = self.params(batch)?;
        params.items = items;
        params.item_count = count;
        params.items_per_warp = ITEMS_PER_WARP;
        let takes = if self.config.latent() { ITEMS_PER_WARP } else { ITEMS_PER_WARP * (THREADS / 32) };
        let blocks = count.div_ceil(takes);
        check::within("blocks of a list of pages", blocks.into(), 1, GRID_YZ_MAX)?;
        let shape = self.shape([self.config.kv_heads * self.plan.tiles, blocks, 1]);
        // SAFETY: checked; the caller guarantees the rest.
        unsafe { self.decode.launch(stream, shape, &params) }
    }

    /// End attention in passes: fold the results of the passes since [`Self::begin`] into the same bits as [`Self::whole`].
    ///
    /// # Errors
    /// As for [`Self::part`].
    ///
    /// # Safety
    /// As for [`Self::whole`].
    pub unsafe fn merge(&self, stream: &Stream, batch: &Batch) -> Result<()> {
        self.needs_passes()?;
        if self.epoch == 0 {
            return Err(Error::invalid("merge", "attention in passes was not begun"));
        }
        let params = self.params(batch)?;
        let chunks = if self.plan.prefill { 1 } else { self.chunks(batch) };
        let grid = [self.config.kv_heads * self.plan.tiles, chunks, batch.seqs];
        let shape = Shape { grid, block: [THREADS, 1, 1], shared_bytes: 0 };
        // SAFETY: checked; the caller guarantees the rest.
        unsafe { self.merge.launch(stream, shape, &params) }
    }

    fn needs_passes(&self) -> Result<()> {
        if self.config.passes {
            return Ok(());
        }
        Err(Error::invalid("pass", "this attention was set up without workspace for passes"))
    }

    fn chunks(&self, batch: &Batch) -> u32 {
        let pages = if batch.pages_longest == 0 { self.config.pages } else { batch.pages_longest };
        // A window has few chunks; its start decides whether one more is touched.
        pages.div_ceil(self.plan.chunk_pages).min(self.plan.chunks_max)
    }

    fn shape(&self, grid: [u32; 3]) -> Shape {
        let threads = if self.config.latent() { LATENT_THREADS } else { THREADS };
        Shape { grid, block: [threads, 1, 1], shared_bytes: shared_bytes(&self.config, &self.plan) }
    }

    pub(super) fn params(&self, batch: &Batch) -> Result<AttentionParams> {
        let (config, plan) = (&self.config, &self.plan);
        let (q_least, out_least) = (config.heads() * config.key(), config.heads() * config.value());
        let q_stride = if batch.q_stride == 0 { q_least } else { batch.q_stride };
        let out_stride = if batch.out_stride == 0 { out_least } else { batch.out_stride };
        check::within("sequences", batch.seqs.into(), 0, config.seqs.into())?;
        check::within("pages of the longest sequence", batch.pages_longest.into(), 0, config.pages.into())?;
        check::within("elements between queries", q_stride.into(), q_least.into(), u32::MAX.into())?;
        check::within("elements between outputs", out_stride.into(), out_least.into(), u32::MAX.into())?;
        check::aligned("elements between queries", 2 * u64::from(q_stride), 16)?;
        check::aligned("elements between outputs", 2 * u64::from(out_stride), 16)?;
        check::address("queries", batch.q, 16)?;
        check::address("outputs", batch.out, 16)?;
        check::address("pages", batch.pages, 16)?;
        check::aligned("bytes between pages", batch.page_stride, 16)?;
        check::within("bytes between pages", batch.page_stride, config.page_bytes(), u64::MAX)?;
        check::aligned("block table", batch.block_table, 4)?;
        check::aligned("addresses of mapped frames", batch.aliases, 8)?;
        let longest = if batch.pages_longest == 0 { config.pages } else { batch.pages_longest };
        check::within("columns of the block table", batch.table_stride.into(), longest.into(), u32::MAX.into())?;
        let entries = u64::from(batch.seqs) * u64::from(batch.table_stride);
        check::within("entries of the block table", entries, 0, i32::MAX as u64)?;
        check::address("lengths", batch.lengths, 4)?;
        check::aligned("first queries", batch.q_starts, 4)?;
        check::aligned("sums of exponentials", batch.lse, 4)?;
        check::aligned("status word", batch.status, 4)?;
        if config.mass {
            check::address("sums of exponentials", batch.lse, 4)?;
        }
        let at = |offset: u64| self.workspace.address() + offset;
        Ok(AttentionParams {
            q: batch.q,
            out: batch.out,
            lse: batch.lse,
            pages: batch.pages,
            page_stride: batch.page_stride,
            aliases: batch.aliases,
            block_table: batch.block_table,
            lengths: batch.lengths,
            q_starts: batch.q_starts,
            status: batch.status,
            page_ml: if config.passes || config.mass { at(plan.page_ml) } else { 0 },
            page_o: if config.passes { at(plan.page_o) } else { 0 },
            stamps: if config.passes { at(plan.stamps) } else { 0 },
            items: 0,
            chunk_ml: at(plan.chunk_ml),
            chunk_o: at(plan.chunk_o),
            tickets: at(plan.tickets),
            queue: at(plan.queue),
            emitted: at(plan.emitted),
            q_stride,
            out_stride,
            seqs: batch.seqs,
            table_stride: batch.table_stride,
            kv_heads: config.kv_heads,
            group: config.group,
            q_tokens: config.q_tokens,
            tiles: plan.tiles,
            page_tokens: config.page_tokens,
            chunk_pages: plan.chunk_pages,
            chunks_max: plan.chunks_max,
            pages_max: config.pages,
            streams: plan.streams,
            window: config.window,
            item_count: 0,
            items_per_warp: 0,
            epoch: self.epoch,
            scale_log2: config.scale * std::f32::consts::LOG2_E,
            frames: batch.frames,
            pages_limit: longest,
        })
    }
}

/// Zero new memory and wait for completion.
fn clear(device: &Arc<Device>, at: u64, bytes: u64) -> Result<()> {
    let stream = Stream::new(device, Priority::Normal)?;
    let done = Event::new(device)?;
    // SAFETY: new memory that nothing else uses.
    unsafe { stream.fill(at, 0, bytes as usize)? };
    stream.record(&done)?;
    if done.wait_until(Instant::now() + CLEARED_WITHIN)? {
        return Ok(());
    }
    Err(Error::TimedOut { what: format!("clearing {bytes} bytes of workspace"), after: CLEARED_WITHIN })
}

/// Return the dynamic shared memory of a block: the rings as laid out in `decode.cuh`, `prefill.cuh` and `latent.cuh`.
fn shared_bytes(config: &Config, plan: &Plan) -> u32 {
    match config.layout {
        Layout::Latent { .. } => {
            let (rows, splits) = (plan.tile_rows, 8 / (plan.tile_rows / 8));
            let scores = splits * TILE * (rows + 8) * 4;
            let stages = if rows == 16 { 4 } else { 3 };
            (stages * TILE + rows) * 576 * 2 + scores
        }
        Layout::Heads { head_dim } => {
            let half = TILE * config.key() * 2;
            let (slots, stage_tiles) = match head_dim {
                32 | 64 => (8, 4),
                128 => (6, 4),
                _ => (3, 2),
            };
            if plan.prefill { (3 * 2 * stage_tiles * half).max(4 * slots * half) } else { 4 * slots * half }
        }
    }
}
