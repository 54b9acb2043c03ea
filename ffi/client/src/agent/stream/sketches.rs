//! Sketches of a session's pages in the device's memory: built there when pages seal, and asked there what a query would read.
//!
//! Both are enqueued on the lane's stream, behind what wrote the keys. Nobody waits for an answer: it comes into pinned memory, and
//! is taken when its event is seen. Whose slot is which page's, `agent::attention::Digests` knows.

use crate::agent::{
    attention::{DigestOptions, Element, KeyLayout},
    protocol::geometry::Bounds,
};
use kvtide_kernels::{
    Buffer, Device, Error, Event, Pinned, Result, Stream,
    launch::Sketch,
    params::{DigestItem, SketchBuildParams, SketchScoresParams},
    reference::Element as Number,
};
use kvtide_wire::{digest::CHANNELS_MAX, entry::LIST_WORDS, score::ScoreKind};
use std::{
    collections::VecDeque,
    mem::ManuallyDrop,
    sync::Arc,
    time::{Duration, Instant},
};

/// Pages of one launch.
const ITEMS_MAX: usize = 512;
/// Launches whose lists are still read: one a plane, for a host that runs a step ahead, and these for what a step has sealed.
const LISTS: usize = 32;
const LISTS_MAX: usize = 1024;
/// Questions that are not answered yet: a step's, of each member and plane its query and a guess of it; within these numbers, and
/// this much pinned memory beyond the least.
const ASKED_MIN: usize = 32;
const ASKED_MAX: usize = 1024;
const ASKED_BYTES: usize = 32 << 20;
/// Query heads that the kernel has room for.
const HEADS_MAX: usize = 256;
/// How long what is dropped waits for its launches.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// Why the device cannot keep such digests.
///
/// # Errors
/// What does not fit.
pub(crate) fn check(options: &DigestOptions, page_tokens: u32) -> std::result::Result<(), String> {
    let keys = &options.keys;
    if options.bounds || options.groups == 0 {
        return Err("a device keeps sketches, not bounds".into());
    }
    if keys.element == Element::F32 || keys.channel_stride != 2 || !keys.channels.is_multiple_of(8) {
        return Err("a device reads keys as rows of 16-bit numbers, a multiple of 8 of them".into());
    }
    let strides = [keys.offset, keys.head_stride, keys.tile_stride, keys.token_stride];
    if strides.iter().any(|stride| !stride.is_multiple_of(16)) {
        return Err("a device reads keys at multiples of 16 bytes".into());
    }
    if page_tokens > 128 || u32::from(options.groups) * u32::from(keys.channels) > 8192 {
        return Err("a device builds sketches of up to 128 tokens, and 8192 numbers in all groups".into());
    }
    Ok(())
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub seq: u32,
    /// Counts the changes of the sequence: another one may have its number later.
    pub version: u32,
    pub plane: u16,
    pub kind: ScoreKind,
    pub step: u64,
    /// Index of the first page, and how many pages there are.
    pub first: u32,
    pub pages: u32,
}

/// What was asked, and the share of each page.
pub(crate) struct Answer<'a> {
    pub asked: Asked,
    pub shares: &'a [f32],
}

/// Memory that launches may be using.
struct Room {
    sketches: Buffer,
    items: Pinned,
    asks: Option<Asks>,
}

/// Room for questions of so many heads: of each its query, its pages' places, and their shares.
struct Asks {
    heads: usize,
    pinned: Pinned,
    sums: Buffer,
}

fn events(device: &Arc<Device>, count: usize) -> Result<Vec<(usize, Event)>> {
    (0..count).map(|at| Ok((at, Event::new(device)?))).collect()
}

/// The sketches of one session.
pub(crate) struct Sketches {
    device: Arc<Device>,
    kernels: Sketch,
    keys: KeyLayout,
    groups: u16,
    slots: u32,
    page_tokens: u32,
    pages_max: usize,
    /// Questions that a step may have.
    questions: usize,
    room: ManuallyDrop<Room>,
    lists: Vec<(usize, Event)>,
    building: VecDeque<(usize, Event)>,
    free: Vec<(usize, Event)>,
    asked: VecDeque<(usize, Event, Asked)>,
}

impl Sketches {
    /// Room for the sketches that the options name, of so many planes.
    pub fn new(device: &Arc<Device>, bounds: &Bounds, planes: u32, options: &DigestOptions) -> Result<Sketches> {
        let planes = planes as usize;
        let lists = (planes + LISTS).min(LISTS_MAX);
        let members = (bounds.seqs_max as usize).min(LIST_WORDS);
        let bytes = usize::try_from(options.bytes()).unwrap_or(usize::MAX);
        let room = Room {
            sketches: Buffer::new(device, bytes)?,
            items: Pinned::new(device, lists * ITEMS_MAX * size_of::<DigestItem>())?,
            asks: None,
        };
        Ok(Sketches {
            device: Arc::clone(device),
            kernels: Sketch::new(device)?,
            keys: options.keys,
            groups: options.groups,
            slots: options.pages,
            page_tokens: bounds.page_tokens,
            pages_max: bounds.seq_blocks_max as usize,
            room: ManuallyDrop::new(room),
            questions: (2 * planes * members).clamp(ASKED_MIN, ASKED_MAX),
            lists: events(device, lists)?,
            building: VecDeque::with_capacity(lists),
            free: Vec::new(),
            asked: VecDeque::new(),
        })
    }

    /// Enqueues the building of sketches: address and slot of each page, which show their pages until the stream has come past.
    /// Returns how many of them; fewer if as much as there is room for is under way.
    pub fn build(&mut self, stream: &Stream, status: u64, pages: &[(u64, u32)]) -> Result<usize> {
        debug_assert!(
            pages.iter().map(|(_, slot)| slot).collect::<std::collections::HashSet<_>>().len() == pages.len(),
            "a launch writes each sketch once"
        );
        let mut built = 0;
        for pages in pages.chunks(ITEMS_MAX) {
            while let Some((_, done)) = self.building.front()
                && done.query()?
            {
                self.lists.extend(self.building.pop_front());
            }
            let Some((list, done)) = self.lists.pop() else { break };
            let at = list * ITEMS_MAX * size_of::<DigestItem>();
            for (index, (page, slot)) in pages.iter().enumerate() {
                let item = DigestItem { page: *page, block: *slot, tokens: self.page_tokens };
                // SAFETY: within the list, which no launch reads.
                unsafe { self.room.items.as_ptr().add(at).cast::<DigestItem>().add(index).write(item) };
            }
            let element = if self.keys.element == Element::Bf16 { Number::Bf16 } else { Number::F16 };
            let params = SketchBuildParams {
                keys: u64::from(self.keys.offset),
                head_stride: self.keys.head_stride.into(),
                tile_stride: self.keys.tile_stride.into(),
                token_stride: self.keys.token_stride.into(),
                items: self.room.items.address() + at as u64,
                sketches: self.room.sketches.address(),
                status,
                count: pages.len() as u32,
                heads: self.keys.heads.into(),
                channels: self.keys.channels.into(),
                groups: self.groups.into(),
                tile_tokens: self.keys.tile_tokens.into(),
                slots: self.slots,
            };
            // SAFETY: list and sketches stay until the event behind the launch is done; the pages' frames stay as they are until
            // the stream has come past the lane's next mark; only this lane's stream touches sketches.
            let launched = unsafe { self.kernels.build(stream, element, &params) };
            if let Err(error) = launched.and_then(|()| stream.record(&done)) {
                self.lists.push((list, done));
                return Err(error);
            }
            self.building.push_back((list, done));
            built += pages.len();
        }
        Ok(built)
    }

    /// Asks what a query, `[heads][channels]` and scaled as the softmax is, would read of pages; of each its slot, or one of
    /// `SKETCH_OPEN` and `SKETCH_UNKNOWN`. False, with nothing asked: too much is under way.
    ///
    /// # Errors
    /// `Invalid`: not as many numbers as the first query had, or as there is room for.
    pub fn ask(
        &mut self,
        stream: &Stream,
        status: u64,
        asked: Asked,
        queries: &[f32],
        places: impl Iterator<Item = u32>,
    ) -> Result<bool> {
        let (channels, kv_heads) = (usize::from(self.keys.channels), usize::from(self.keys.heads));
        let heads = queries.len() / channels;
        let pages = asked.pages as usize;
        let refused = |why: String| Err(Error::Invalid { what: "query", why });
        if heads == 0 || heads > HEADS_MAX || heads * channels != queries.len() || !heads.is_multiple_of(kv_heads) {
            return refused(format!("{} numbers are no heads of {channels}, up to {HEADS_MAX}", queries.len()));
        }
        if pages == 0 || pages > self.pages_max {
            return Ok(false);
        }
        let slot_bytes = 4 * (heads * channels + 2 * self.pages_max);
        let sketches = self.room.sketches.address();
        let asks = match &mut self.room.asks {
            Some(asks) => asks,
            none => {
                let count = self.questions.min(ASKED_BYTES / slot_bytes).max(ASKED_MIN);
                let asks = Asks {
                    heads,
                    pinned: Pinned::new(&self.device, count * slot_bytes)?,
                    sums: Buffer::new(&self.device, 4 * heads * self.pages_max)?,
                };
                self.free = events(&self.device, count)?;
                none.insert(asks)
            }
        };
        if asks.heads != heads {
            return refused(format!("{heads} heads; the first one had {}", asks.heads));
        }
        let Some((slot, done)) = self.free.pop() else { return Ok(false) };
        // SAFETY: within the memory, in a slot that no launch uses.
        let words = unsafe {
            let at = asks.pinned.as_ptr().add(slot * slot_bytes).cast::<u32>();
            std::slice::from_raw_parts_mut(at, slot_bytes / 4)
        };
        let (asked_words, listed) = words.split_at_mut(heads * channels);
        asked_words.iter_mut().zip(queries).for_each(|(word, query)| *word = query.to_bits());
        let (listed, shares) = listed.split_at_mut(self.pages_max);
        listed.iter_mut().zip(places).for_each(|(word, place)| *word = place);
        shares[0] = f32::NAN.to_bits(); // stays so if the lane fails
        let at = asks.pinned.address() + (slot * slot_bytes) as u64;
        let listed = at + 4 * (heads * channels) as u64;
        let params = SketchScoresParams {
            queries: at,
            sketches,
            places: listed,
            sums: asks.sums.address(),
            shares: listed + 4 * self.pages_max as u64,
            status,
            pages: asked.pages,
            kv_heads: kv_heads as u32,
            group: (heads / kv_heads) as u32,
            channels: channels as u32,
            groups: self.groups.into(),
            slots: self.slots,
            scale: 1.0,
            reserved: 0,
        };
        // SAFETY: all of it is ours and stays until the event behind the launch is done; only this lane's stream touches it.
        let launched = unsafe { self.kernels.shares(stream, &params) };
        if let Err(error) = launched.and_then(|()| stream.record(&done)) {
            self.free.push((slot, done));
            return Err(error);
        }
        self.asked.push_back((slot, done, asked));
        Ok(true)
    }

    /// Takes the oldest answer, if it has come.
    pub fn answer(&mut self, take: impl FnOnce(Answer<'_>)) -> Result<bool> {
        match self.asked.front() {
            Some((_, done, _)) if done.query()? => {}
            _ => return Ok(false),
        }
        let (Some((slot, done, asked)), Some(asks)) = (self.asked.pop_front(), &self.room.asks) else {
            return Ok(false);
        };
        let words = asks.heads * usize::from(self.keys.channels) + 2 * self.pages_max;
        let first = slot * words + words - self.pages_max;
        // SAFETY: within the memory; the launch that wrote it has ended.
        let shares =
            unsafe { std::slice::from_raw_parts(asks.pinned.as_ptr().cast::<f32>().add(first), asked.pages as usize) };
        if !shares[0].is_nan() {
            take(Answer { asked, shares });
        }
        self.free.push((slot, done));
        Ok(true)
    }
}

const _: () = assert!(CHANNELS_MAX <= 1024, "the kernel has room for a query");

impl Drop for Sketches {
    /// What a launch may still use stays for ever.
    fn drop(&mut self) {
        let deadline = Instant::now() + SETTLE_MAX;
        let events = self.building.iter().map(|(_, done)| done).chain(self.asked.iter().map(|(_, done, _)| done));
        let settled = events.map(|done| done.wait_until(deadline)).try_fold(true, |all, done| done.map(|d| d && all));
        if !matches!(settled, Ok(false)) {
            // SAFETY: dropped once, here; no launch that uses it is left.
            unsafe { ManuallyDrop::drop(&mut self.room) };
        }
    }
}
