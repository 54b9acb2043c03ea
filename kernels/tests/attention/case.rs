//! A random batch, on the host and on the device.

use crate::common::{Rng, buffer, device, done, get};
use kvtide_kernels::launch::attention::{Attention, Batch, Config};
use kvtide_kernels::reference::Element;
use kvtide_kernels::reference::attention::{Attention as Reference, Layout, Output};
use kvtide_kernels::{Buffer, Device, Pinned, Priority, Stream};
use std::sync::Arc;

/// Initial content of outputs.
pub const POISON: u8 = 0x7f;
/// Elements between rows, which must not be written.
const GAP: usize = 8;

pub fn bytes_of<T: Copy>(data: &[T]) -> &[u8] {
    // SAFETY: plain numbers.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

pub fn values<T: Copy>(device: &Arc<Device>, at: u64, count: usize) -> Vec<T> {
    let bytes = get(device, at, count * size_of::<T>());
    // SAFETY: exactly the bytes of the numbers, which may have any value.
    (0..count).map(|i| unsafe { bytes.as_ptr().cast::<T>().add(i).read_unaligned() }).collect()
}

pub struct Case {
    pub device: Arc<Device>,
    pub stream: Stream,
    pub config: Config,
    pub lengths: Vec<i32>,
    pub table: Vec<i32>,
    pub batch: Batch,
    q: Vec<u16>,
    pages: Vec<u16>,
    page_stride: usize,
    q_starts: Vec<usize>,
    out_stride: usize,
    buffers: Vec<Buffer>,
    _windows: Pinned,
}

/// Return pages in registered host memory, last page first, and their device addresses, followed by a null, so that the list is
/// never empty.
fn in_host_memory(device: &Arc<Device>, pages: &[u16], page_stride: usize) -> (Pinned, Vec<u64>) {
    let count = pages.len() / page_stride;
    let memory = Pinned::new(device, (2 * pages.len()).max(1)).expect("host memory");
    let mut aliases = vec![0; count + 1];
    for (i, page) in pages.chunks_exact(page_stride).enumerate() {
        let offset = 2 * (count - 1 - i) * page_stride;
        // SAFETY: inside the mapping, which is not read yet.
        unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), memory.as_ptr().add(offset).cast(), page_stride) };
        aliases[i] = memory.address() + offset as u64;
    }
    (memory, aliases)
}

/// Indices of a case's buffers in `Case::buffers`.
const OUT: usize = 1;
const LSE: usize = 2;
const TABLE: usize = 4;

/// Output of a launch.
#[derive(Clone, PartialEq)]
pub struct Written {
    pub out: Vec<u16>,
    pub lse: Vec<u32>,
    pub emitted: Vec<u32>,
}

/// Return a geometry of decode in f16 or bf16, small enough for the emulator.
pub fn config(element: Element, layout: Layout, kv_heads: u32, group: u32, page_tokens: u32) -> Config {
    Config {
        element,
        layout,
        kv_heads,
        group,
        page_tokens,
        window: 0,
        scale: 1.0 / (layout.key() as f32).sqrt(),
        seqs: 5,
        q_tokens: 1,
        pages: 6,
        chunk_tokens: 2 * page_tokens,
        passes: false,
        mass: false,
    }
}

impl Case {
    /// Create five sequences: one of any length, an empty one, one of one token, one of all pages, and one that shares pages with
    /// that. Frames are in random order. Memory behind the last token and unused frames hold NaN. With `ragged` each sequence has
    /// its own number of queries.
    pub fn new(rng: &mut Rng, config: Config, ragged: bool) -> Self {
        Self::swinging(rng, config, ragged, 0.0)
    }

    /// Do the same with `swing` added to values of odd frames and subtracted from those of even ones. Sums over pages cancel, so
    /// that another order of the same additions changes the result. Not for latent vectors: their values are also keys.
    pub fn swinging(rng: &mut Rng, config: Config, ragged: bool, swing: f32) -> Self {
        let most = (config.page_tokens * config.pages) as usize;
        let lengths = [1 + rng.below(most), 0, 1, most, 1 + rng.below(most)].map(|n| n as i32);
        Self::with(rng, config, lengths.to_vec(), ragged, swing)
    }

    /// Do the same with sequences of these lengths, `config.seqs` or fewer.
    pub fn with(rng: &mut Rng, config: Config, lengths: Vec<i32>, ragged: bool, swing: f32) -> Self {
        let (page_tokens, pages_max) = (config.page_tokens as usize, config.pages as usize);
        let queries = config.q_tokens as usize;
        let mut q_starts = vec![0];
        for seq in 0..lengths.len() {
            let count = if !ragged {
                queries
            } else if seq == 2 {
                0
            } else {
                1 + rng.below(queries)
            };
            q_starts.push(q_starts[seq] + count);
        }
        let tokens = q_starts[lengths.len()];
        let (heads, key, value) = (config.heads() as usize, config.layout.key(), config.layout.value());
        let number = |rng: &mut Rng| config.element.from_f32(rng.normal());
        let (q_stride, out_stride) = (heads * key + GAP, heads * value + GAP);
        let q: Vec<u16> = (0..tokens * q_stride).map(|_| number(rng)).collect();

        let stride = pages_max + 1;
        let frames = lengths.len() * pages_max;
        let page = config.layout.page(config.kv_heads as usize, page_tokens);
        let page_stride = page + 32;
        let nan = config.element.from_f32(f32::NAN);
        let mut pages = vec![nan; frames * page_stride];
        let mut order: Vec<usize> = (0..frames).collect();
        (1..frames).rev().for_each(|i| order.swap(i, rng.below(i + 1)));
        let mut table = vec![-1; lengths.len() * stride];
        for (seq, &length) in lengths.iter().enumerate() {
            for index in 0..(length as usize).div_ceil(page_tokens) {
                let full = (index + 1) * page_tokens <= length as usize;
                if seq == 4 && full && index % 2 == 0 && lengths[3] >= length {
                    table[seq * stride + index] = table[3 * stride + index];
                    continue;
                }
                let frame = order.pop().expect("a frame for each page");
                table[seq * stride + index] = frame as i32;
                let held = (length as usize - index * page_tokens).min(page_tokens);
                let at = &mut pages[frame * page_stride..][..page];
                let row = match config.layout {
                    Layout::Heads { head_dim } => head_dim,
                    Layout::Latent { .. } => key,
                };
                for (i, element) in at.iter_mut().enumerate() {
                    if i / row % page_tokens < held {
                        let shift = if i < page / 2 {
                            0.0
                        } else if frame.is_multiple_of(2) {
                            -swing
                        } else {
                            swing
                        };
                        *element = config.element.from_f32(rng.normal() + shift);
                    }
                }
            }
        }

        let device = device();
        let upload = |bytes: &[u8]| buffer(&device, bytes);
        // In half of the cases the frames from some index on are mapped frames: their pages are in registered host memory, in
        // another order, and the memory of those frame numbers is empty.
        let first_window = if rng.below(2) == 0 { frames } else { rng.below(frames) };
        let (windows, aliases) = in_host_memory(&device, &pages[first_window * page_stride..], page_stride);
        let mut in_tier0 = pages.clone();
        in_tier0[first_window * page_stride..].fill(nan);
        let starts: Vec<i32> = q_starts.iter().map(|&s| s as i32).collect();
        let buffers = vec![
            upload(bytes_of(&q)),
            upload(&vec![POISON; tokens * out_stride * 2]),
            upload(&vec![POISON; tokens * heads * 4]),
            upload(bytes_of(&in_tier0)),
            upload(bytes_of(&table)),
            upload(bytes_of(&lengths)),
            upload(bytes_of(&starts)),
            upload(&[0; 4]),
            upload(bytes_of(&aliases)),
        ];
        let at = |i: usize| buffers[i].address();
        let batch = Batch {
            q: at(0),
            q_stride: q_stride as u32,
            out: at(OUT),
            out_stride: out_stride as u32,
            lse: at(LSE),
            pages: at(3),
            page_stride: 2 * page_stride as u64,
            aliases: if aliases.len() > 1 { at(8) } else { 0 },
            frames: first_window as u32,
            block_table: at(TABLE),
            table_stride: stride as u32,
            lengths: at(5),
            q_starts: if ragged { at(6) } else { 0 },
            status: at(7),
            seqs: lengths.len() as u32,
            pages_longest: 0,
        };
        let stream = Stream::new(&device, Priority::Normal).expect("a stream");
        Case {
            device,
            stream,
            config,
            lengths,
            table,
            batch,
            q,
            pages,
            page_stride,
            q_starts,
            out_stride,
            buffers,
            _windows: windows,
        }
    }

    pub fn attention(&self) -> Attention {
        Attention::new(&self.device, self.config).expect("kernels and workspace")
    }

    pub fn reference(&self) -> Output {
        self.with_reference(|reference| reference.run())
    }

    /// Run `f` with the reference, which takes dense queries.
    pub fn with_reference<R>(&self, f: impl FnOnce(&Reference<'_>) -> R) -> R {
        let row = self.config.heads() as usize * self.config.layout.key();
        let dense: Vec<u16> = self.q.chunks(row + GAP).flat_map(|chunk| &chunk[..row]).copied().collect();
        f(&Reference {
            element: self.config.element,
            layout: self.config.layout,
            kv_heads: self.config.kv_heads as usize,
            group: self.config.group as usize,
            page_tokens: self.config.page_tokens as usize,
            window: self.config.window as usize,
            scale: self.config.scale.into(),
            q: &dense,
            pages: &self.pages,
            page_stride: self.page_stride,
            block_table: &self.table,
            table_stride: self.batch.table_stride as usize,
            lengths: &self.lengths,
            q_starts: &self.q_starts,
        })
    }

    pub fn q_starts(&self) -> &[usize] {
        &self.q_starts
    }

    pub fn out_stride(&self) -> usize {
        self.out_stride
    }

    pub fn poison(&self) {
        for i in [OUT, LSE] {
            // SAFETY: memory of this case, and nothing runs.
            unsafe { self.stream.fill(self.buffers[i].address(), POISON, self.buffers[i].bytes()) }.expect("filled");
        }
        done(&self.stream);
    }

    /// Replace the table on the device.
    pub fn set_table(&mut self, table: Vec<i32>) {
        crate::common::put(&self.device, self.batch.block_table, bytes_of(&table));
        self.table = table;
    }

    pub fn set_status(&self, status: u32) {
        crate::common::put(&self.device, self.batch.status, &status.to_le_bytes());
    }

    pub fn written(&self, attention: &Attention) -> Written {
        done(&self.stream);
        let tokens = self.q_starts[self.lengths.len()];
        Written {
            out: values(&self.device, self.batch.out, tokens * self.out_stride),
            lse: values(&self.device, self.batch.lse, tokens * self.config.heads() as usize),
            emitted: values(&self.device, attention.emitted(), attention.emitted_words(self.batch.seqs)),
        }
    }

    /// Launch once over poisoned outputs.
    pub fn whole(&self, attention: &Attention) -> Written {
        self.poison();
        // SAFETY: the memory of the batch lives as long as the case, and nothing else runs.
        unsafe { attention.whole(&self.stream, &self.batch) }.expect("launched");
        self.written(attention)
    }

    /// Compute the same pages in passes of random order and length, over poisoned outputs.
    pub fn in_passes(&self, attention: &mut Attention, rng: &mut Rng) -> Written {
        let items = self.items(rng);
        let list = buffer(&self.device, bytes_of(&items));
        self.poison();
        // SAFETY: all memory lives until the launches have ended, which `written` waits for.
        unsafe { attention.begin(&self.stream) }.expect("begun");
        let mut at = 0;
        while at < items.len() {
            let count = 1 + rng.below(items.len() - at);
            // SAFETY: as above.
            unsafe { attention.part(&self.stream, &self.batch, list.address() + 8 * at as u64, count as u32) }
                .expect("launched");
            at += count;
        }
        // SAFETY: as above.
        unsafe { attention.merge(&self.stream, &self.batch) }.expect("launched");
        self.written(attention)
    }

    /// Return all pages that some sequence has, as (batch row, page index), in random order.
    pub fn items(&self, rng: &mut Rng) -> Vec<[u32; 2]> {
        let mut items = vec![];
        for (seq, &length) in self.lengths.iter().enumerate() {
            items.extend((0..(length as u32).div_ceil(self.config.page_tokens)).map(|page| [seq as u32, page]));
        }
        (1..items.len()).rev().for_each(|i| items.swap(i, rng.below(i + 1)));
        items
    }

    /// Check that every element is within the element type's bound of the reference, by norm, and that memory between rows is
    /// unchanged.
    pub fn check(&self, written: &Written, output: &Output) {
        let row = self.config.heads() as usize * self.config.layout.value();
        let what = format!("{:?}", self.config);
        let (mut error, mut norm) = (0.0, 0.0);
        for (got, want) in written.out.chunks(self.out_stride).zip(output.out.chunks(row)) {
            assert!(
                got[row..].iter().all(|&gap| gap == u16::from_ne_bytes([POISON; 2])),
                "written between rows: {what}"
            );
            for (&got, want) in got.iter().zip(want) {
                let got = f64::from(self.config.element.to_f32(got));
                assert!(got.is_finite() && (got - want).abs() < 1.0, "{got} for {want}: {what}");
                error += (got - want).powi(2);
                norm += want.powi(2);
            }
        }
        let bound = match self.config.element {
            Element::F16 => 2e-3,
            Element::Bf16 => 1e-2,
        };
        let relative = (error / norm).sqrt();
        assert!(relative <= bound, "relative error {relative:.2e}, {bound:.0e} is allowed: {what}");
        for (&got, want) in written.lse.iter().zip(&output.lse) {
            let got = f64::from(f32::from_bits(got));
            assert!(got == *want || (got - want).abs() < 1e-3 * want.abs().max(1.0), "lse {got} for {want}: {what}");
        }
        assert!(written.emitted.iter().all(|&flag| flag == 1), "not emitted: {what}");
    }
}
