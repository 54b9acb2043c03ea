//! Batches that decode one token of each row: random keys and values in pages of random order, several sets in turn.

use super::Size;
use super::memory::{Random, normal, read, with};
use super::timing::drain;
use crate::launch::attention::{Attention, Batch, Config};
use crate::reference::Element;
use crate::reference::attention::{Attention as Reference, Layout};
use crate::{Buffer, Device, Priority, Result, Stream};
use std::sync::Arc;

/// KV heads and head dim of the promised figures.
pub(super) const KV_HEADS: u32 = 8;
const HEAD_DIM: u32 = 128;
/// Tokens of a page, as in attention-driven spaces.
const PAGE_TOKENS: u32 = 64;
/// Total bytes of the sets that take turns, several times any GPU's cache, so that each call reads its keys and values from memory.
const TURNED_BYTES: u64 = 512 << 20;

/// A batch: bf16, KV heads of 128, pages of 64 tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Sequences.
    pub rows: u32,
    /// Tokens of each; their mean in a ragged batch.
    pub tokens: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Query heads of a KV head.
    pub group: u32,
    /// Lengths grow from 1/8 to 15/8 of the mean, instead of being equal.
    pub ragged: bool,
}

impl Case {
    /// Return the bytes of keys and values of all rows, in one plane.
    #[must_use]
    pub fn kv_bytes(&self) -> u64 {
        let tokens: u64 = self.lengths().iter().map(|&length| length as u64).sum();
        tokens * u64::from(self.kv_heads * HEAD_DIM) * 2 * Element::BYTES as u64
    }

    fn lengths(&self) -> Vec<i32> {
        let of = |row: u32| match self.ragged {
            false => self.tokens,
            true => self.tokens / 8 + 7 * self.tokens / 4 * row / (self.rows - 1).max(1),
        };
        (0..self.rows).map(|row| of(row) as i32).collect()
    }

    /// Return the pages of the longest row.
    fn pages(&self) -> u32 {
        let longest = if self.ragged { self.tokens / 8 + 7 * self.tokens / 4 } else { self.tokens };
        longest.div_ceil(PAGE_TOKENS)
    }

    fn config(&self, element: Element, chunk_tokens: u32, mass: bool) -> Config {
        Config {
            element,
            layout: Layout::Heads { head_dim: HEAD_DIM as usize },
            kv_heads: self.kv_heads,
            group: self.group,
            page_tokens: PAGE_TOKENS,
            window: 0,
            scale: (HEAD_DIM as f32).sqrt().recip(),
            seqs: self.rows,
            q_tokens: 1,
            pages: self.pages(),
            chunk_tokens,
            passes: false,
            mass,
        }
    }
}

/// Data of batches, on the device.
pub(super) struct Made {
    case: Case,
    element: Element,
    pages: Buffer,
    tables: Vec<Buffer>,
    table_words: Vec<Vec<i32>>,
    lengths: Buffer,
    length_words: Vec<i32>,
    q: Buffer,
    out: Buffer,
    lse: Buffer,
}

impl Made {
    pub fn new(device: &Arc<Device>, stream: &Stream, case: Case, size: Size) -> Result<Self> {
        let turned = if size == Size::Full { TURNED_BYTES } else { 1 };
        let sets = turned.div_ceil(case.kv_bytes()).max(2) as usize;
        Self::with(device, stream, case, (sets, Element::Bf16), &case.lengths())
    }

    /// Create batches with rows of these lengths.
    pub fn with(
        device: &Arc<Device>,
        stream: &Stream,
        case: Case,
        (sets, element): (usize, Element),
        lengths: &[i32],
    ) -> Result<Self> {
        let mut random = Random::new(u64::from(case.rows) << 32 | u64::from(case.tokens));
        let frames = (case.rows * case.pages()) as usize;
        let page_bytes = case.config(element, 0, false).page_bytes();
        let heads = (case.rows * case.group * case.kv_heads) as usize;
        let (row_bytes, seed) = (heads * HEAD_DIM as usize * Element::BYTES, random.next());
        let mut table_words = vec![];
        let mut tables = vec![];
        for set in 0..sets {
            // Each set has its own frames, in a random order.
            let words: Vec<i32> = random.order(frames).into_iter().map(|f| (set * frames + f) as i32).collect();
            tables.push(with(device, stream, &words)?);
            table_words.push(words);
        }
        Ok(Self {
            case,
            element,
            pages: normal(device, stream, sets * frames * page_bytes as usize, element, seed)?,
            tables,
            table_words,
            lengths: with(device, stream, lengths)?,
            length_words: lengths.to_vec(),
            q: normal(device, stream, row_bytes, element, seed + 2)?,
            out: normal(device, stream, row_bytes, element, seed + 4)?,
            lse: Buffer::new(device, heads * 4)?,
        })
    }

    /// Return the number of sets that take turns.
    pub fn sets(&self) -> usize {
        self.tables.len()
    }

    fn stride(&self) -> u64 {
        self.case.config(self.element, 0, false).page_bytes()
    }

    /// Return the batch of a set; without a table its pages are in the order of their index.
    pub fn batch(&self, set: usize, table: bool) -> Batch {
        let frames = u64::from(self.case.rows) * u64::from(self.case.pages());
        let (first, block_table) = if table { (0, self.tables[set].address()) } else { (set as u64 * frames, 0) };
        Batch {
            q: self.q.address(),
            out: self.out.address(),
            lse: self.lse.address(),
            pages: self.pages.address() + first * self.stride(),
            page_stride: self.stride(),
            block_table,
            table_stride: self.case.pages(),
            lengths: self.lengths.address(),
            seqs: self.case.rows,
            ..Batch::default()
        }
    }
}

/// A kernel set up for a batch.
pub(super) struct Decode(Attention);

impl Decode {
    /// Set up the kernel. `chunk_tokens` 0: the default splits.
    pub fn new(device: &Arc<Device>, made: &Made, chunk_tokens: u32, mass: bool) -> Result<Self> {
        let config = made.case.config(made.element, chunk_tokens, mass);
        Ok(Self(Attention::new(device, config)?))
    }

    pub fn attention(&self) -> &Attention {
        &self.0
    }

    /// Enqueue one attention.
    ///
    /// # Safety
    /// The batch belongs to the [`Made`] that this was set up for, which outlives it; launches go to one stream.
    pub unsafe fn enqueue(&self, stream: &Stream, batch: &Batch) -> Result<()> {
        // SAFETY: tables contain only frames of the buffer, buffers are as large as the configuration requires; the caller
        // guarantees the rest.
        unsafe { self.0.whole(stream, batch) }
    }
}

/// Return the relative error ‖out − reference‖ ÷ ‖reference‖ of one ragged batch, compared with f64.
///
/// # Errors
/// The device is full or lost, or cannot run the kernels.
pub fn error_against_f64(device: &Arc<Device>, element: Element, size: Size) -> Result<f64> {
    let case = match size {
        Size::Full => Case { rows: 4, tokens: 2048, kv_heads: KV_HEADS, group: 4, ragged: false },
        Size::Tiny => Case { rows: 2, tokens: 128, kv_heads: KV_HEADS, group: 2, ragged: false },
    };
    // Ragged, with one row of a single token.
    let lengths: Vec<i32> =
        (0..case.rows).map(|row| if row == 0 { 1 } else { (case.tokens - 7 * row) as i32 }).collect();
    let stream = Stream::new(device, Priority::Normal)?;
    let made = Made::with(device, &stream, case, (1, element), &lengths)?;
    let decode = Decode::new(device, &made, 0, false)?;
    // SAFETY: `made` outlives the launch, which has ended when the stream is drained.
    unsafe { decode.enqueue(&stream, &made.batch(0, true))? };
    drain(&stream)?;
    let words = |buffer: &Buffer| read(&stream, buffer, buffer.bytes() / 2);
    let (q, pages, out) = (words(&made.q)?, words(&made.pages)?, words(&made.out)?);
    let q_starts: Vec<usize> = (0..=case.rows as usize).collect();
    let reference = Reference {
        element,
        layout: Layout::Heads { head_dim: HEAD_DIM as usize },
        kv_heads: case.kv_heads as usize,
        group: case.group as usize,
        page_tokens: PAGE_TOKENS as usize,
        window: 0,
        scale: decode.attention().config().scale.into(),
        q: &q,
        pages: &pages,
        page_stride: made.stride() as usize / Element::BYTES,
        block_table: &made.table_words[0],
        table_stride: case.pages() as usize,
        lengths: &made.length_words,
        q_starts: &q_starts,
    }
    .run();
    let (mut wrong, mut norm) = (0.0, 0.0);
    for (found, expected) in out.iter().zip(&reference.out) {
        wrong += (f64::from(element.to_f32(*found)) - expected).powi(2);
        norm += expected.powi(2);
    }
    Ok((wrong / norm).sqrt())
}
