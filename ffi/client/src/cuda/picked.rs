//! Attention of one token to the pages that a step selected: a block table of only those pages.
//!
//! Keys carry their positions, so pages may be in any order in the table. Only the last page in the table is cut off by the
//! sequence's length. That must be the page of the new token, so it is held back until the last pass. Therefore the normal
//! attention kernels can be used.

use kvtide_kernels::{
    Buffer, Device, Error, Pinned, Result, Stream,
    launch::attention::{Attention, Batch, Config, Mass, SCORE_WORDS},
};
use std::sync::Arc;

use super::AttendOptions;

/// State needed in addition to normal attention.
pub(super) struct Picked {
    attention: Attention,
    mass: Mass,
    pages: u32,
    page_tokens: u32,
    /// Frames and items (`[0, place]`) by place in the table; then the sequence's length during the passes, and its final length.
    lists: (Pinned, Buffer),
    lse: Buffer,
    /// The mass kernel's entry, which is not used, then the share of each place.
    told: Pinned,
    /// The page index of each place.
    read: Vec<u32>,
    masses: Vec<f32>,
    /// The sequence's last page: its index, its number of tokens, and its frame once it was handed out.
    tail: (u32, u32, Option<u32>),
}

/// Bytes before the shares.
const ENTRY: usize = SCORE_WORDS * size_of::<u64>();

fn invalid(what: &'static str, why: &str) -> Error {
    Error::Invalid { what, why: why.into() }
}

impl Picked {
    pub fn new(device: &Arc<Device>, options: &AttendOptions, one: Config) -> Result<Picked> {
        let attention = Attention::new(device, Config { mass: true, ..one })?;
        let pages = options.pages as usize;
        let bytes = 4 * (pages.next_multiple_of(2) + 2 * pages + 2);
        Ok(Picked {
            mass: Mass::new(device, &attention)?,
            attention,
            pages: options.pages,
            page_tokens: one.page_tokens,
            lists: (Pinned::new(device, bytes)?, Buffer::new(device, bytes)?),
            lse: Buffer::new(device, 4 * (options.kv_heads * options.group) as usize)?,
            told: Pinned::new(device, ENTRY + 4 * pages)?,
            read: Vec::with_capacity(pages),
            masses: Vec::with_capacity(pages),
            tail: (0, 0, None),
        })
    }

    pub fn attention(&self) -> &Attention {
        &self.attention
    }

    /// Return the page indices by place.
    pub fn read(&self) -> &[u32] {
        &self.read
    }

    /// Record a plane of which all pages were read, by other kernels.
    pub fn all(&mut self, pages: u32) {
        self.read.clear();
        self.read.extend(0..pages);
    }

    /// Begin a plane of a sequence with `tokens` tokens in its last page. The work enqueued for the previous plane has ended.
    pub fn begin(&mut self, tail: u32, tokens: u32) {
        self.read.clear();
        self.tail = (tail, tokens, None);
        self.put(self.lengths(), (self.pages * self.page_tokens) as i32);
    }

    /// Word offsets in the lists: frames, then items, then the two lengths.
    fn items(&self) -> usize {
        self.pages.next_multiple_of(2) as usize
    }

    fn lengths(&self) -> usize {
        self.items() + 2 * self.pages as usize
    }

    fn put(&mut self, word: usize, value: i32) {
        debug_assert!(4 * word < self.lists.0.bytes());
        // SAFETY: within the memory, at a word that no enqueued work reads yet.
        unsafe { self.lists.0.as_ptr().cast::<i32>().add(word).write(value) };
    }

    /// Copy words to the device.
    ///
    /// # Safety
    /// The words must not be written until the stream has executed the copy.
    unsafe fn bring(&self, stream: &Stream, first: usize, count: usize) -> Result<()> {
        let at = 4 * first as u64;
        // SAFETY: both are long enough, and this function's own contract.
        unsafe { stream.copy(self.lists.1.address() + at, self.lists.0.address() + at, 4 * count) }
    }

    fn batch(&self, batch: &Batch, length: usize) -> Batch {
        Batch {
            block_table: self.lists.1.address(),
            table_stride: self.pages,
            lengths: self.lists.1.address() + 4 * length as u64,
            lse: self.lse.address(),
            pages_longest: 0,
            ..*batch
        }
    }

    /// Attend to pages that may be read now, given by index and frame.
    ///
    /// # Safety
    /// As [`Attention::part`].
    pub unsafe fn pass(
        &mut self,
        stream: &Stream,
        batch: &Batch,
        ready: impl Iterator<Item = (u32, u32)>,
        last: bool,
    ) -> Result<()> {
        let from = self.read.len();
        if from == 0 {
            // SAFETY: this function's own contract.
            unsafe { self.attention.begin(stream)? };
        }
        for (index, frame) in ready {
            if index == self.tail.0 {
                self.tail.2 = Some(frame);
            } else {
                self.place(index, frame)?;
            }
        }
        let mut length = self.lengths();
        if last {
            let frame = self.tail.2.ok_or_else(|| invalid("last page", "it was not handed out"))?;
            self.place(self.tail.0, frame)?;
            let tokens = (self.read.len() as u32 - 1) * self.page_tokens + self.tail.1;
            length += 1;
            self.put(length, tokens as i32);
        }
        let count = self.read.len() - from;
        // SAFETY: places are written once in a plane; the lengths before anything that reads them is enqueued.
        unsafe {
            self.bring(stream, from, count)?;
            self.bring(stream, self.items() + 2 * from, 2 * count)?;
            self.bring(stream, length, 1)?;
            let items = self.lists.1.address() + 4 * (self.items() + 2 * from) as u64;
            self.attention.part(stream, &self.batch(batch, length), items, count as u32)
        }
    }

    fn place(&mut self, index: u32, frame: u32) -> Result<()> {
        let place = self.read.len();
        if place >= self.pages as usize {
            return Err(invalid("selected pages", "more than the options allow"));
        }
        self.put(place, frame as i32);
        self.put(self.items() + 2 * place, 0);
        self.put(self.items() + 2 * place + 1, place as i32);
        self.read.push(index);
        Ok(())
    }

    /// Merge the passes, and copy the shares to the host.
    ///
    /// # Safety
    /// As [`Attention::merge`].
    pub unsafe fn end(&mut self, stream: &Stream, batch: &Batch, of: (u16, u64)) -> Result<()> {
        let batch = self.batch(batch, self.lengths() + 1);
        let shares = self.told.address() + ENTRY as u64;
        // SAFETY: this function's own contract; the destination of the shares is ours, and read when the stream's work has ended.
        unsafe {
            self.attention.merge(stream, &batch)?;
            self.mass.reduce(stream, &self.attention, &batch, of, 1, self.told.address())?;
            stream.copy(shares, self.mass.shares(), 4 * self.read.len())
        }
    }

    /// Return, by page index, the share of attention of each page that was read, and NaN for the others. Valid once the stream's
    /// work has ended.
    pub fn masses(&mut self, pages: u32) -> &[f32] {
        self.masses.clear();
        self.masses.resize(pages as usize, f32::NAN);
        for (place, index) in self.read.iter().enumerate() {
            // SAFETY: within the memory, which nothing writes now.
            let share = unsafe { self.told.as_ptr().add(ENTRY).cast::<f32>().add(place).read() };
            if let Some(mass) = self.masses.get_mut(*index as usize) {
                *mass = share;
            }
        }
        &self.masses
    }
}
