//! Attention of one sequence's steps on a device, through a lane, in safe Rust. It writes new keys and values into their pages, and
//! then computes the queries' attention to all pages, at once or in passes. Inputs and outputs are f32 in host memory.
//!
//! For engines that compute elsewhere and keep only the KV on the device, such as `kvtide demo`: each plane waits for its result.

use super::{
    launches::{NewRows, Queries},
    picked::Picked,
};
use crate::{
    Client, Contract, Error, Lane, Pass, Result, StepSeq,
    client::{
        Refusal,
        batch::{Batch, BatchOptions},
    },
    memory::cuda::error,
};
use kvtide_kernels::{
    Buffer, Device, Event, Pinned, Priority, Stream,
    launch::{
        Append,
        attention::{self, Attention, Config},
    },
    params::AppendPart,
    reference::{Element, attention::Layout},
};
use kvtide_wire::status::Status;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Bytes before the numbers in both directions: the rows' `starts` to the device, flags from it.
const HEAD: usize = 256;
/// Block-table entry of an absent page.
const ABSENT: i32 = -1;
const ADRIFT: &str = "the result of an earlier plane never arrived: make a new session";

/// Options of an [`Attend`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttendOptions {
    /// Element type of pages.
    pub element: Element,
    /// Elements of a key and of a value: 32, 64, 128 or 256.
    pub head_dim: usize,
    /// KV heads.
    pub kv_heads: u32,
    /// Query heads for each KV head, 1 to 16.
    pub group: u32,
    /// Maximum new tokens of a step.
    pub tokens: u32,
    /// Maximum pages of the sequence.
    pub pages: u32,
    /// Factor applied to scores before the softmax.
    pub scale: f32,
    /// Timeout of the wait for a plane's result.
    pub timeout: Duration,
    /// If true, steps of one token may be read under the contract `approx`: allocates memory for its tables and for shares.
    pub approx: bool,
}

/// Input rows of a step's tokens in a plane: `[tokens][heads][head_dim]`.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Queries of all heads.
    pub q: &'a [f32],
    /// Keys of the KV heads.
    pub k: &'a [f32],
    /// Values of the KV heads.
    pub v: &'a [f32],
}

/// Device side of one sequence. Kernels may use the device memory that it names until [`Attend::attend`] has returned.
pub struct Attend {
    options: AttendOptions,
    client: Client,
    stream: Arc<Stream>,
    batch: Batch,
    append: Append,
    /// Attention for one token, and for several.
    one: Attention,
    many: Attention,
    input: (Pinned, Buffer),
    items: (Pinned, Buffer),
    output: (Pinned, Buffer),
    done: Event,
    /// For steps read under `approx`.
    picked: Option<Picked>,
    /// True if enqueued work may still use the memory above, because a wait ended before it.
    adrift: bool,
    step: StepSeq,
    /// True if the step is read under `approx`.
    approx: bool,
}

fn failed(e: kvtide_kernels::Error) -> Error {
    error("attend on the device", e)
}

impl AttendOptions {
    pub(super) fn config(&self, page_tokens: u32, tokens: u32) -> Config {
        Config {
            element: self.element,
            layout: Layout::Heads { head_dim: self.head_dim },
            kv_heads: self.kv_heads,
            group: self.group,
            page_tokens,
            window: 0,
            scale: self.scale,
            seqs: 1,
            q_tokens: tokens,
            pages: self.pages,
            chunk_tokens: 0,
            passes: true,
            mass: false,
        }
    }

    /// Return the number of elements of a token's keys, which is also that of its values.
    fn kv_width(&self) -> usize {
        self.kv_heads as usize * self.head_dim
    }

    /// Return the number of elements of a token's queries, which is also that of its result.
    fn q_width(&self) -> usize {
        self.group as usize * self.kv_width()
    }
}

impl Attend {
    /// Create a stream, bind the lane to it, and allocate the memory that the kernels need.
    ///
    /// # Errors
    /// `State`: tier 0 is not on a device, or a step is open. `Invalid`: a shape that the kernels do not support (the error names
    /// the supported ones), or pages of another size. `Device`: the device has no memory left or is lost.
    pub fn new(client: &Client, lane: &mut Lane, options: AttendOptions) -> Result<Attend> {
        let none = || {
            let why = Refusal::because(Status::State, "tier 0 is not on a device");
            Error::refused("attend on the device of lane", u64::from(lane.index()), why)
        };
        let device = client.inner.session.tier0.device().cloned().ok_or_else(none)?;
        let layout = client.layout();
        let config = options.config(layout.page_tokens, options.tokens.max(2));
        let tiles = config.tiles().map_err(failed)?;
        if layout.planes.iter().any(|plane| u64::from(plane.page_bytes) != config.page_bytes()) {
            let why = format!("is not {} bytes in every plane, as these heads and tokens need", config.page_bytes());
            return Err(Error::Options { option: "page_bytes", why });
        }
        let stream = Arc::new(Stream::new(&device, Priority::Normal).map_err(failed)?);
        lane.bind_stream(&stream)?;
        let rows = BatchOptions { seqs: 1, max_blocks: options.pages, table_planes: 1 };
        let mut batch = Batch::new(client, lane, rows)?;
        batch.set_in_place(true);
        let one = options.config(layout.page_tokens, 1);
        let flags = tiles.max(one.tiles().map_err(failed)?) * options.kv_heads;
        if HEAD < 8 + 4 * flags as usize {
            return Err(Error::Options { option: "tokens", why: format!("{} exceed the maximum", options.tokens) });
        }
        let rows = options.tokens as usize * Element::BYTES;
        let input = HEAD + rows * (options.q_width() + 2 * options.kv_width());
        let both = |bytes: usize| Ok((Pinned::new(&device, bytes)?, Buffer::new(&device, bytes)?));
        let make = |device: &Arc<Device>| -> kvtide_kernels::Result<Attend> {
            Ok(Attend {
                append: Append::new(device)?,
                one: Attention::new(device, one)?,
                many: Attention::new(device, config)?,
                input: both(input)?,
                items: both(8 * options.pages as usize)?,
                output: both(HEAD + rows * options.q_width())?,
                done: Event::new(device)?,
                picked: options.approx.then(|| Picked::new(device, &options, one)).transpose()?,
                client: client.clone(),
                options,
                stream,
                batch,
                adrift: false,
                step: StepSeq::default(),
                approx: false,
            })
        };
        make(&device).map_err(failed)
    }

    /// Return the driver's name of the device.
    #[must_use]
    pub fn device_name(&self) -> String {
        self.stream.device().info().name.clone()
    }

    /// Begin a step over one sequence.
    ///
    /// # Errors
    /// As [`Lane::begin`]; `Range`: more pages than the options allow. `State`: the result of a plane never arrived, or the options
    /// do not support the sequence's contract.
    pub fn begin(&mut self, lane: &mut Lane, step: StepSeq) -> Result<()> {
        let refused =
            |why: &str| Error::refused("attend to sequence", u64::from(step.seq), Refusal::because(Status::State, why));
        if self.adrift {
            return Err(refused(ADRIFT));
        }
        lane.begin(&[step])?;
        // A contract set during the step takes effect with the next one.
        self.approx = match lane.contract(step.seq) {
            Contract::Exact => false,
            Contract::Approx { .. } if self.picked.is_some() => true,
            Contract::Approx { .. } => {
                lane.end()?;
                return Err(refused("it has the contract approx, which the options exclude"));
            }
        };
        self.step = step;
        self.batch.set(&[step])
    }

    /// Compute the step's tokens in one plane: write their keys and values into their pages, and their attention to all pages up to
    /// themselves into `out` (`[tokens][heads][head_dim]`). The result is bit-identical whichever pages were in tier 0.
    ///
    /// Under `approx` there must be one token. Its query attends to the pages that were selected and are available
    /// ([`Attend::read`]), and their shares of attention are reported ([`Lane::mass`]).
    ///
    /// # Errors
    /// As [`Lane::boundary`]. `Range`: rows of another width, or more rows than the options allow or the sequence has. `TimedOut`:
    /// the device did not finish in time. `Internal`: the device wrote no result.
    pub fn attend(&mut self, lane: &mut Lane, plane: u16, rows: Rows<'_>, out: &mut [f32]) -> Result<()> {
        const DOING: &str = "attend in plane";
        let failed_as = |status| Error::call(DOING, u64::from(plane), status);
        let refused = |status, why: &str| Error::refused(DOING, u64::from(plane), Refusal::because(status, why));
        let tokens = rows.q.len() / self.options.q_width();
        let (q, kv) = (tokens * self.options.q_width(), tokens * self.options.kv_width());
        let fits = (rows.q.len(), out.len(), rows.k.len(), rows.v.len()) == (q, q, kv, kv);
        if self.adrift {
            return Err(refused(Status::State, ADRIFT));
        }
        if !fits || tokens == 0 || tokens > self.options.tokens as usize {
            return Err(refused(Status::Range, "rows of another width, no rows, or more than the options allow"));
        }
        let approx = self.approx;
        if approx && tokens != 1 {
            return Err(refused(Status::Range, "under approx a step has one token"));
        }
        // True from the first enqueued copy until the event has completed.
        self.adrift = true;
        self.bring(rows).map_err(failed)?;
        let some = approx && self.pass_picked(lane, plane)?;
        if !approx {
            self.passes(lane, plane, tokens as u32)?;
        }
        let back = HEAD + q * Element::BYTES;
        let attention = match &self.picked {
            Some(picked) if some => picked.attention(),
            _ if tokens == 1 => &self.one,
            _ => &self.many,
        };
        let flags = attention.emitted_words(1);
        let (host, device) = (self.output.0.address(), self.output.1.address());
        // SAFETY: all memory is ours and long enough; only kernels write it, earlier in stream order.
        unsafe {
            let copied = self.stream.copy(device + 8, attention.emitted(), 4 * flags);
            copied.and_then(|()| self.stream.copy(host, device, back)).map_err(failed)?;
        }
        self.stream.record(&self.done).map_err(failed)?;
        if !self.done.wait_until(Instant::now() + self.options.timeout).map_err(failed)? {
            return Err(failed_as(Status::TimedOut));
        }
        self.adrift = false;
        lane.check()?;
        // SAFETY: the stream has completed the copy; nothing else that accesses this memory is enqueued.
        let words = unsafe { std::slice::from_raw_parts(self.output.0.as_ptr().cast::<u32>(), 2 + flags) };
        if words[0] != 0 || words[2..].contains(&0) {
            return Err(failed_as(Status::Internal));
        }
        // SAFETY: as above; the length of the head keeps the alignment.
        let halves = unsafe { std::slice::from_raw_parts(self.output.0.as_ptr().add(HEAD).cast::<u16>(), q) };
        out.iter_mut().zip(halves).for_each(|(out, bits)| *out = self.options.element.to_f32(*bits));
        match &mut self.picked {
            Some(picked) if some => lane.mass(self.step.seq, plane, picked.masses(self.batch.blocks_of(self.step))),
            _ => Ok(()),
        }
    }

    /// Return the pages that the last plane of an `approx` step read, by page index.
    #[must_use]
    pub fn read(&self) -> &[u32] {
        self.picked.as_ref().map_or(&[], Picked::read)
    }

    /// Pass the boundaries of a plane of an `approx` step, with attention to the pages that they hand out. False: all pages were
    /// resident and were read.
    fn pass_picked(&mut self, lane: &mut Lane, plane: u16) -> Result<bool> {
        // `begin` refuses such a step without them.
        let mut picked =
            self.picked.take().ok_or(Error::call("attend in plane", u64::from(plane), Status::Internal))?;
        let passed = self.pass_with(&mut picked, lane, plane);
        self.picked = Some(picked);
        passed
    }

    fn pass_with(&mut self, picked: &mut Picked, lane: &mut Lane, plane: u16) -> Result<bool> {
        let tail = self.batch.blocks_of(self.step).saturating_sub(1);
        let page_tokens = self.client.layout().page_tokens;
        let begun = lane.boundary(plane)?;
        self.write(plane, 1)?;
        let batch = self.launch(plane)?;
        if begun == Pass::All {
            self.batch.tables(plane..plane + 1, ABSENT)?;
            picked.all(tail + 1);
            // SAFETY: as in `passes`.
            return unsafe { self.one.whole(&self.stream, &batch) }.map(|()| false).map_err(failed);
        }
        picked.begin(tail, (self.step.tokens - u64::from(tail) * u64::from(page_tokens)) as u32);
        let first = self.client.layout().planes[usize::from(plane)].first_frame;
        let mut pass = begun;
        loop {
            let Pass::Part { last, .. } = pass else {
                return Err(Error::call("attend to selected pages of plane", u64::from(plane), Status::Protocol));
            };
            let ready = lane.ready().iter().map(|ready| (ready.index, ready.frame - first));
            // SAFETY: everything that the batch names is ours or the session's and stays until this stream's work has ended, which
            // is waited for. The boundary said that these frames may be read, until the lane's next boundary.
            unsafe { picked.pass(&self.stream, &batch, ready, last) }.map_err(failed)?;
            if last {
                // SAFETY: as above.
                return unsafe { picked.end(&self.stream, &batch, (plane, 0)) }.map(|()| true).map_err(failed);
            }
            pass = lane.boundary(plane)?;
        }
    }

    /// Copy the rows to the device.
    fn bring(&mut self, Rows { q, k, v }: Rows<'_>) -> kvtide_kernels::Result<()> {
        let numbers = q.len() + k.len() + v.len();
        let bytes = HEAD + numbers * Element::BYTES;
        let tokens = q.len() / self.options.q_width();
        // SAFETY: ours, mapped for at least `bytes` (the rows were counted), and no enqueued work accesses it: the last work was
        // waited for.
        let (head, halves) = unsafe {
            let at = self.input.0.as_ptr();
            let halves = std::slice::from_raw_parts_mut(at.add(HEAD).cast::<u16>(), numbers);
            (std::slice::from_raw_parts_mut(at.cast::<i32>(), 2), halves)
        };
        head.copy_from_slice(&[0, tokens as i32]);
        let element = self.options.element;
        halves.iter_mut().zip(q.iter().chain(k).chain(v)).for_each(|(half, x)| *half = element.from_f32(*x));
        // SAFETY: both are ours and long enough, and stay unchanged until the event has completed.
        unsafe {
            self.stream.copy(self.input.1.address(), self.input.0.address(), bytes)?;
            self.stream.fill(self.output.1.address(), 0, HEAD)
        }
    }

    /// Pass boundaries of the plane until all of it was read, with the kernels for the pages of each boundary.
    fn passes(&mut self, lane: &mut Lane, plane: u16, tokens: u32) -> Result<()> {
        let mut listed = 0;
        loop {
            let pass = lane.boundary(plane)?;
            if listed == 0 {
                self.write(plane, tokens)?;
            }
            self.batch.tables(plane..plane + 1, ABSENT)?;
            let batch = self.launch(plane)?;
            let attention = if tokens == 1 { &mut self.one } else { &mut self.many };
            let last = match pass {
                // SAFETY: everything that the batch names is ours or the session's and stays until this stream's work has ended,
                // which is waited for. The lane's boundary says which pages may be read, and the table contains only those.
                Pass::All => unsafe { attention.whole(&self.stream, &batch) }.map(|()| true),
                Pass::Part { count, last } => {
                    let ready = lane.ready();
                    let (at, bytes) = (8 * listed, 8 * count);
                    // SAFETY: ours; each pass has its own part of the list, since a plane hands a page out once.
                    let items = unsafe {
                        let all = self.items.0.as_ptr().cast::<[u32; 2]>();
                        std::slice::from_raw_parts_mut(all, self.options.pages as usize)
                    };
                    let Some(items) = items.get_mut(listed..listed + count) else {
                        return Err(Error::call("attend in plane", u64::from(plane), Status::Protocol));
                    };
                    items.iter_mut().zip(ready).for_each(|(item, ready)| *item = [ready.position, ready.index]);
                    let list = self.items.1.address() + at as u64;
                    let first = listed == 0;
                    listed += count;
                    // SAFETY: as above.
                    unsafe {
                        part(attention, &self.stream, &batch, (self.items.0.address() + at as u64, list, bytes), first)
                    }
                    .and_then(|()| {
                        if last {
                            // SAFETY: as above.
                            unsafe { attention.merge(&self.stream, &batch) }?;
                        }
                        Ok(last)
                    })
                }
            };
            if last.map_err(failed)? {
                return Ok(());
            }
        }
    }

    /// Write the new tokens' keys and values into their pages.
    fn write(&self, plane: u16, tokens: u32) -> Result<()> {
        let page_tokens = self.client.layout().page_tokens;
        let (heads, row) = (self.options.kv_heads, (self.options.head_dim * Element::BYTES) as u32);
        let numbers = self.input.1.address() + HEAD as u64;
        let keys = numbers + u64::from(tokens) * u64::from(self.options.group * heads * row);
        let part = |source, page_offset| AppendPart {
            source,
            token_stride: u64::from(heads * row),
            head_stride: u64::from(row),
            heads,
            row_bytes: row,
            page_offset,
            page_head_stride: page_tokens * row,
            page_token_stride: row,
            reserved: 0,
        };
        let rows = NewRows {
            parts: [part(keys, 0), part(keys + u64::from(tokens * heads * row), heads * page_tokens * row)],
            starts: self.input.1.address(),
            faults: self.output.1.address(),
            rows: tokens,
        };
        let params = self.batch.append_params(plane, &rows)?;
        // SAFETY: everything named is ours or the session's and stays until this stream's work has ended, which is waited for. The
        // pages of new tokens are unsealed: only this lane's step writes them, and nothing reads beyond the committed tokens.
        unsafe { self.append.append(&self.stream, &params) }.map_err(failed)
    }

    fn launch(&self, plane: u16) -> Result<attention::Batch> {
        self.batch.attention_batch(&Queries {
            q: self.input.1.address() + HEAD as u64,
            out: self.output.1.address() + HEAD as u64,
            starts: self.input.1.address(),
            pages_longest: self.batch.blocks_of(self.step),
            plane,
        })
    }
}

/// Run one pass: copy its list to the device, then run the kernel over it.
///
/// # Safety
/// As [`Attention::part`]; `(from, to, bytes)` names memory of the caller.
unsafe fn part(
    attention: &mut Attention,
    stream: &Stream,
    batch: &attention::Batch,
    (from, to, bytes): (u64, u64, usize),
    first: bool,
) -> kvtide_kernels::Result<()> {
    // SAFETY: this function's own contract.
    unsafe {
        if first {
            attention.begin(stream)?;
        }
        stream.copy(to, from, bytes)?;
        attention.part(stream, batch, to, (bytes / 8) as u32)
    }
}

impl std::fmt::Debug for Attend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attend").field("options", &self.options).field("adrift", &self.adrift).finish_non_exhaustive()
    }
}
