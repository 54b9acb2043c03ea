//! A batch of sequences in the form that kernels read: block ids and lengths on the device, at fixed addresses.

use super::{Client, Error, Lane, Refusal, Result, StepSeq};
use crate::{
    agent::{
        protocol::Geometry,
        stream::{LaneStream, ring::UpdateRing},
    },
    memory::cuda::{error, status_of},
};
use kvtide_kernels::{Buffer, launch::Boundary, params::BoundaryTablesParams};
use kvtide_wire::status::Status;
use std::{ops::Range, sync::Arc};

/// Minimum slots of a batch's update ring.
const SLOTS_MIN: u32 = 1 << 12;
const UNBOUND: &str = "the lane is not bound to a stream: bind it first";
/// Entry of an unused row.
const NO_BLOCK: u32 = u32::MAX;

/// Options of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// Rows: maximum sequences of a step.
    pub seqs: u32,
    /// Columns: maximum blocks of a sequence.
    pub max_blocks: u32,
    /// Maximum planes of one [`Batch::tables`] call, which builds int32 block tables. 0: no block tables, for engines with kernels
    /// that read the lane's table.
    pub table_planes: u32,
}

/// Device addresses of a batch's arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchDevice {
    /// `i32[seqs]`: tokens that attention covers; 0 in unused rows.
    pub lengths: u64,
    /// `i32[seqs][max_blocks]`: block ids, −1 for none.
    pub block_ids: u64,
    /// `i32[table_planes][seqs][max_blocks]`: block tables, built by [`Batch::tables`]; 0 without tables.
    pub block_tables: u64,
    /// `u32[table_planes][seqs][⌈max_blocks / 32⌉]`: bit i of word w is set if page 32 w + i of the row is needed and absent; 0
    /// without tables.
    pub misses: u64,
    /// Rows.
    pub seqs: u32,
    /// Columns.
    pub max_blocks: u32,
}

/// The sequences of one lane's steps, on the device. Only changes since the last step are copied there, in the order of the lane's
/// stream: work enqueued earlier reads the old values.
pub struct Batch {
    /// Declared before all memory that its enqueued work uses: its drop waits for that work.
    ring: UpdateRing,
    lane: Arc<LaneStream>,
    client: Client,
    options: BatchOptions,
    kernel: Arc<Boundary>,
    arrays: Arc<Buffer>,
    tables: Option<(Buffer, Buffer)>,
    /// Contents of the arrays once the stream has executed all enqueued work: lengths, starts of each window, block ids.
    known: Vec<u32>,
    /// Blocks of each row in the last step.
    rows: Vec<u32>,
    windows: Windows,
    /// True if block tables contain mapped frames.
    in_place: bool,
    fresh: bool,
}

/// The planes that do not read all pages, grouped by the pages that they read: planes with the same window share an array of
/// starts.
struct Windows {
    /// One plane of each window.
    planes: Vec<u16>,
    /// The window of each plane.
    of: Vec<Option<u32>>,
}

impl Windows {
    fn of(geometry: &Geometry) -> Windows {
        let specs = geometry.planes();
        let mut windows = Windows { planes: Vec::new(), of: Vec::with_capacity(specs.len()) };
        for (plane, spec) in specs.iter().enumerate() {
            let span = |at: u16| specs[usize::from(at)].kind;
            let known = windows.planes.iter().position(|at| span(*at) == spec.kind);
            windows.of.push((!geometry.reads_all(plane as u16)).then(|| {
                known.unwrap_or_else(|| {
                    windows.planes.push(plane as u16);
                    windows.planes.len() - 1
                }) as u32
            }));
        }
        windows
    }

    fn count(&self) -> u32 {
        self.planes.len() as u32
    }
}

impl Batch {
    /// Create an empty batch for the steps of `lane`, which must be bound to a stream.
    ///
    /// # Errors
    /// `State`: tier 0 is not on a device, or the lane is not bound to a stream. `Range`: no rows or no columns, or more than a
    /// kernel can index. `Device`.
    pub fn new(client: &Client, lane: &Lane, options: BatchOptions) -> Result<Batch> {
        const DOING: &str = "make a batch for lane";
        let refuse =
            |status, why: String| Error::refused(DOING, u64::from(lane.index()), Refusal::because(status, why));
        let unbound = || refuse(Status::State, UNBOUND.into());
        let stream = lane.on_stream().cloned().ok_or_else(unbound)?;
        let windows = Windows::of(client.inner.session.shared.geometry());
        let columns = 1 + u64::from(windows.count()) + u64::from(options.max_blocks);
        let entries = u64::from(options.seqs) * columns;
        let cells = entries * u64::from(options.table_planes.max(1));
        if options.seqs == 0 || options.max_blocks == 0 || cells > i32::MAX as u64 {
            let BatchOptions { seqs, max_blocks, .. } = options;
            let why = format!("{seqs} rows of {max_blocks} blocks: none, or more than a kernel can index");
            return Err(refuse(Status::Range, why));
        }
        let planes = client.layout().planes.len();
        if options.table_planes as usize > planes {
            let why = format!("tables of {} planes; the space has {planes}", options.table_planes);
            return Err(refuse(Status::Range, why));
        }
        let made = Self::make(client, &stream, options, windows);
        made.map_err(|e| error("make a batch on the device", e))
    }

    fn make(
        client: &Client,
        lane: &Arc<LaneStream>,
        options: BatchOptions,
        windows: Windows,
    ) -> kvtide_kernels::Result<Batch> {
        let device = lane.device();
        let heads = options.seqs * (1 + windows.count());
        let entries = heads + options.seqs * options.max_blocks;
        let kernel = Arc::new(Boundary::new(device)?);
        let arrays = Arc::new(Buffer::new(device, entries as usize * size_of::<u32>())?);
        let slots = (2 * entries).clamp(SLOTS_MIN, 1 << 20).next_power_of_two();
        let ring = UpdateRing::new(device, &kernel, &arrays, entries, 0, slots)?;
        let rows = options.table_planes as usize * options.seqs as usize;
        let tables = match rows {
            0 => None,
            rows => {
                let tables = Buffer::new(device, rows * options.max_blocks as usize * size_of::<i32>())?;
                Some((tables, Buffer::new(device, rows * options.max_blocks.div_ceil(32) as usize * size_of::<u32>())?))
            }
        };
        let mut known = vec![0; heads as usize];
        known.resize(entries as usize, NO_BLOCK);
        Ok(Batch {
            lane: Arc::clone(lane),
            client: client.clone(),
            rows: vec![0; options.seqs as usize],
            options,
            ring,
            kernel,
            arrays,
            tables,
            known,
            windows,
            in_place: false,
            fresh: true,
        })
    }

    /// Set whether block tables contain the session's mapped frames, which kvtide's attention reads in host memory. Off by default:
    /// other kernels cannot find such a page, so it is absent from the table and counts as a miss, although the boundary before
    /// reports it as readable. An engine that needs it in tier 0 must acquire it.
    pub fn set_in_place(&mut self, on: bool) {
        self.in_place = on;
    }

    /// Return whether block tables contain mapped frames.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.in_place
    }

    /// Return the addresses of the arrays. They are fixed for the batch's life, so CUDA graphs may contain them.
    #[must_use]
    pub fn device(&self) -> BatchDevice {
        let BatchOptions { seqs, max_blocks, .. } = self.options;
        let lengths = self.arrays.address();
        let (block_tables, misses) = self.tables.as_ref().map_or((0, 0), |(t, m)| (t.address(), m.address()));
        let block_ids = lengths + u64::from(self.heads()) * size_of::<i32>() as u64;
        BatchDevice { lengths, block_ids, block_tables, misses, seqs, max_blocks }
    }

    /// Return the address of `i32[seqs]` on the device: for each row, the first token of the first page that a step reads in
    /// `plane`. It is fixed for the batch's life; 0 if the plane reads all pages.
    #[must_use]
    pub fn starts(&self, plane: u16) -> u64 {
        let window = self.windows.of.get(usize::from(plane)).copied().flatten();
        let at = |window| u64::from(self.options.seqs * (1 + window)) * size_of::<i32>() as u64;
        window.map_or(0, |window| self.arrays.address() + at(window))
    }

    /// Number of entries before the block ids: lengths, then the starts of each window.
    fn heads(&self) -> u32 {
        self.options.seqs * (1 + self.windows.count())
    }

    /// Set the rows to these sequences, with the lengths that attention covers. Call it with the sequences of the lane's `begin`,
    /// after `begin` and before the step's first kernel is enqueued.
    ///
    /// # Errors
    /// `Range`: more sequences than rows, or more blocks than columns. `NotFound`: no such sequence. `Device`, `TimedOut`.
    pub fn set(&mut self, seqs: &[StepSeq]) -> Result<()> {
        const DOING: &str = "set the rows of a batch, sequence count";
        let failed = |status| Error::call(DOING, seqs.len() as u64, status);
        let refuse = |status, why: String| Error::refused(DOING, seqs.len() as u64, Refusal::because(status, why));
        let stream = self.lane.stream().ok_or_else(|| refuse(Status::State, UNBOUND.into()))?;
        let BatchOptions { seqs: rows, max_blocks, .. } = self.options;
        if seqs.len() > rows as usize {
            return Err(refuse(Status::Range, format!("the batch has {rows} rows")));
        }
        let session = Arc::clone(&self.client.inner.session);
        session.ours().map_err(failed)?;
        let (geometry, table) = (session.shared.geometry(), session.shared.seqs());
        for row in 0..self.options.seqs {
            let wanted = seqs.get(row as usize).copied().unwrap_or_default();
            let blocks = geometry.blocks_for(wanted.tokens);
            let length = u32::try_from(wanted.tokens).ok().filter(|t| i32::try_from(*t).is_ok());
            let too_long = || {
                let StepSeq { seq, tokens } = wanted;
                let why = format!("sequence {seq} of {tokens} tokens; a row has {max_blocks} blocks");
                refuse(Status::Range, why)
            };
            let length = length.filter(|_| blocks <= max_blocks).ok_or_else(too_long)?;
            let first = self.heads() + row * self.options.max_blocks;
            for index in 0..blocks {
                let absent = || refuse(Status::NotFound, format!("sequence {} has no block {index}", wanted.seq));
                let block = table.block(wanted.seq, index).ok_or_else(absent)?;
                self.put(first + index, block).map_err(|e| self.lost(&e, failed))?;
            }
            for index in blocks..self.rows[row as usize] {
                self.put(first + index, NO_BLOCK).map_err(|e| self.lost(&e, failed))?;
            }
            self.rows[row as usize] = blocks;
            for window in 0..self.windows.count() {
                let needed = geometry.needed(self.windows.planes[window as usize], wanted.tokens);
                let start = needed.start * geometry.bounds().page_tokens; // below the length, which fits an i32
                self.put(self.options.seqs * (1 + window) + row, start).map_err(|e| self.lost(&e, failed))?;
            }
            self.put(row, length).map_err(|e| self.lost(&e, failed))?;
        }
        if std::mem::take(&mut self.fresh) {
            self.empty(&stream).map_err(|e| self.lost(&e, failed))?;
        }
        self.ring.flush(&stream).map_err(|e| self.lost(&e, failed))
    }

    /// Initialise the arrays before the first step. All changes are still in the ring, so this is enqueued before them.
    fn empty(&mut self, stream: &kvtide_kernels::Stream) -> kvtide_kernels::Result<()> {
        let heads = self.heads() as usize * size_of::<i32>();
        let (at, bytes) = (self.arrays.address(), self.arrays.bytes());
        // SAFETY: the arrays live as long as this batch, and only this stream's work accesses them.
        unsafe {
            stream.fill(at, 0, heads)?;
            stream.fill(at + heads as u64, 0xff, bytes - heads)?;
        }
        self.ring.fence(stream)
    }

    /// Set an entry to `value` if it differs.
    fn put(&mut self, at: u32, value: u32) -> kvtide_kernels::Result<()> {
        if std::mem::replace(&mut self.known[at as usize], value) == value {
            return Ok(());
        }
        if !self.ring.has_room()? {
            let stream = self.lane.stream();
            let stream =
                stream.ok_or(kvtide_kernels::Error::Invalid { what: "lane", why: "not bound to a stream".into() })?;
            if std::mem::take(&mut self.fresh) {
                self.empty(&stream)?;
            }
            self.ring.make_room(&stream)?;
        }
        self.ring.push(at, value);
        Ok(())
    }

    /// Build the block tables and miss bits of `planes`, which must share one size class, for the current rows. Entry (p, row, i)
    /// is the frame of the row's i-th page in plane `planes.start + p`, relative to the first frame of the class, or `absent`.
    /// Pages that the plane does not read (before its window, or beyond the row's length) are absent and not misses.
    ///
    /// Call it after the boundary of those planes. Kernels enqueued afterwards read the tables.
    ///
    /// # Errors
    /// `Range`: no planes, more planes than the batch has tables for, or planes of different size classes. `State`: the lane is not
    /// bound to a stream. `Device`.
    pub fn tables(&mut self, planes: Range<u16>, absent: i32) -> Result<()> {
        const DOING: &str = "build block tables of plane";
        let failed = |status| Error::call(DOING, u64::from(planes.start), status);
        let refuse =
            |status, why: String| Error::refused(DOING, u64::from(planes.start), Refusal::because(status, why));
        let stream = self.lane.stream().ok_or_else(|| refuse(Status::State, UNBOUND.into()))?;
        let layout = self.client.layout();
        let range = usize::from(planes.start)..usize::from(planes.end);
        let wanted = layout.planes.get(range.clone()).unwrap_or_default();
        let one_class = wanted.windows(2).all(|pair| pair[0].class == pair[1].class);
        let (Some(first), Some((block_tables, misses)), true) = (wanted.first(), &self.tables, one_class) else {
            let why = format!("planes {planes:?}: not in the space, not of one size class, or the batch has no tables");
            return Err(refuse(Status::Range, why));
        };
        if wanted.len() > self.options.table_planes as usize {
            let why = format!("{} planes; the batch has tables of {}", wanted.len(), self.options.table_planes);
            return Err(refuse(Status::Range, why));
        }
        let BatchDevice { lengths, block_ids, seqs, max_blocks, .. } = self.device();
        let mut plane = planes.start;
        let mut built = Ok(());
        // One launch for adjacent planes that read the same pages.
        for run in self.windows.of[range].chunk_by(|a, b| a == b) {
            let rows = u64::from(plane - planes.start) * u64::from(seqs);
            let params = BoundaryTablesParams {
                table: self.lane.table(),
                block_ids,
                lengths,
                starts: self.starts(plane),
                block_tables: block_tables.address() + rows * u64::from(max_blocks) * size_of::<i32>() as u64,
                misses: misses.address() + rows * u64::from(max_blocks.div_ceil(32)) * size_of::<u32>() as u64,
                status: self.lane.status_word(),
                seqs,
                max_blocks,
                planes: layout.planes.len() as u32,
                plane: u32::from(plane),
                plane_count: run.len() as u32,
                page_tokens: layout.page_tokens,
                blocks: layout.blocks_max,
                first_frame: first.first_frame,
                absent,
                frames: first.frames + if self.in_place { first.mapped_frames } else { 0 },
            };
            plane += run.len() as u16;
            // SAFETY: all memory named lives as long as this batch (the lane's words as long as the lane's device side, which the
            // batch holds), and only this stream's work writes it.
            built = built.and_then(|()| unsafe { self.kernel.tables(&stream, &params) });
        }
        built.and_then(|()| self.ring.fence(&stream)).map_err(|e| self.lost(&e, failed))
    }

    /// Return the number of pages of a sequence in a plane.
    pub(crate) fn blocks_of(&self, step: StepSeq) -> u32 {
        self.client.inner.session.shared.geometry().blocks_for(step.tokens)
    }

    /// Return the session's client.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Return the lane's device side.
    pub(crate) fn side(&self) -> &LaneStream {
        &self.lane
    }

    /// Convert an error. A lost device ends the session.
    fn lost(&self, error: &kvtide_kernels::Error, failed: impl Fn(Status) -> Error) -> Error {
        let status = status_of(error);
        if status == Status::Device {
            self.client.inner.session.fail(status);
        }
        failed(status)
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("lane", &self.lane).field("device", &self.device()).finish_non_exhaustive()
    }
}
