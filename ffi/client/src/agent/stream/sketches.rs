//! Sketches of a session's pages in device memory: built there when pages are sealed, and queried there for attention shares.
//!
//! Both operations are enqueued on the lane's stream, behind the work that wrote the keys. No thread waits for an answer: it
//! arrives in pinned memory and is taken once its event has completed. `agent::attention::Digests` assigns slots to pages.

use crate::agent::{
    attention::{DigestOptions, Element, KeyLayout},
    protocol::geometry::Bounds,
};
use kvtide_kernels::{
    Buffer, Device, Error, Event, Pinned, Result, Stream,
    launch::Sketch,
    params::{SketchBuildParams, SketchItem, SketchScoresParams},
    reference::Element as Number,
};
use kvtide_wire::{digest::CHANNELS_MAX, entry::LIST_WORDS, score::ScoreKind};
use std::{
    collections::VecDeque,
    mem::ManuallyDrop,
    sync::Arc,
    time::{Duration, Instant},
};

/// Maximum number of pages of one launch.
const ITEMS_MAX: usize = 512;
/// Number of lists that launches may still be reading: one for each plane, for a host that runs one step ahead, plus these for
/// the pages that a step has sealed.
const LISTS: usize = 32;
const LISTS_MAX: usize = 1024;
/// Limits of the unanswered queries. A step has, for each member and plane, its query and a guess of it. The number stays
/// within these limits, and uses at most this much pinned memory unless the minimum needs more.
const ASKED_MIN: usize = 32;
const ASKED_MAX: usize = 1024;
const ASKED_BYTES: usize = 32 << 20;
/// Maximum number of query heads that the kernel supports.
const HEADS_MAX: usize = 256;
/// How long dropped memory waits for its launches.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// Check that the device can keep such digests.
///
/// # Errors
/// Names the unsupported option.
pub(crate) fn check(options: &DigestOptions, page_tokens: u32) -> std::result::Result<(), String> {
    let keys = &options.keys;
    if keys.element == Element::F32 || keys.channel_stride != 2 || !keys.channels.is_multiple_of(8) {
        return Err("on a device, keys must be rows of 16-bit numbers whose count is a multiple of 8".into());
    }
    let strides = [keys.offset, keys.head_stride, keys.tile_stride, keys.token_stride];
    if strides.iter().any(|stride| !stride.is_multiple_of(16)) {
        return Err("on a device, the offset and strides of keys must be multiples of 16 bytes".into());
    }
    if page_tokens > 128 || u32::from(options.groups) * u32::from(keys.channels) > 8192 {
        return Err("on a device, a sketch covers at most 128 tokens and has at most 8192 numbers in all groups".into());
    }
    Ok(())
}

/// A query: the sequence that owns the pages, and the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub seq: u32,
    /// Change counter of the sequence: another sequence may later have the same number.
    pub version: u32,
    pub plane: u16,
    pub kind: ScoreKind,
    pub step: u64,
    /// Index of the first page, and number of pages.
    pub first: u32,
    pub pages: u32,
}

/// The query, and the share of each page.
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

/// Memory for queries of `heads` heads. Each has its query vectors, its pages' slots, and their shares.
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
    /// Maximum number of unanswered queries.
    questions: usize,
    room: ManuallyDrop<Room>,
    lists: Vec<(usize, Event)>,
    building: VecDeque<(usize, Event)>,
    free: Vec<(usize, Event)>,
    asked: VecDeque<(usize, Event, Asked)>,
}

impl Sketches {
    /// Allocate the sketches that the options ask for, for `planes` planes.
    pub fn new(device: &Arc<Device>, bounds: &Bounds, planes: u32, options: &DigestOptions) -> Result<Sketches> {
        let planes = planes as usize;
        let lists = (planes + LISTS).min(LISTS_MAX);
        let members = (bounds.seqs_max as usize).min(LIST_WORDS);
        let bytes = usize::try_from(options.bytes()).unwrap_or(usize::MAX);
        let room = Room {
            sketches: Buffer::new(device, bytes)?,
            items: Pinned::new(device, lists * ITEMS_MAX * size_of::<SketchItem>())?,
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

    /// Enqueue the building of sketches. `pages` holds the address and the slot of each page; the addresses must show their
    /// pages until the stream has passed. Return how many pages were enqueued; fewer than given if too many launches are in
    /// flight.
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
            let at = list * ITEMS_MAX * size_of::<SketchItem>();
            for (index, (page, slot)) in pages.iter().enumerate() {
                let item = SketchItem { page: *page, slot: *slot, tokens: self.page_tokens };
                // SAFETY: within the list, which no launch reads.
                unsafe { self.room.items.as_ptr().add(at).cast::<SketchItem>().add(index).write(item) };
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
            // SAFETY: list and sketches stay until the event behind the launch is done; the pages' frames stay as they are
            // until the stream has passed the lane's next mark; only this lane's stream accesses sketches.
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

    /// Enqueue a query for the attention shares of pages. `queries` is `[heads][channels]`, scaled as for the softmax. `places`
    /// yields the slot of each page, or `SKETCH_OPEN` or `SKETCH_UNKNOWN`. Return false and enqueue nothing if too many queries
    /// are in flight.
    ///
    /// # Errors
    /// `Invalid`: the number of values differs from the first query's, or exceeds the limit.
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
            return refused(format!("{} numbers do not make 1 to {HEADS_MAX} heads of {channels}", queries.len()));
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
            return refused(format!("{heads} heads; the first query had {}", asks.heads));
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
        shares[0] = f32::NAN.to_bits(); // keeps this value if the lane fails
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
        // SAFETY: all of this memory is ours and stays until the event behind the launch is done; only this lane's stream
        // accesses it.
        let launched = unsafe { self.kernels.shares(stream, &params) };
        if let Err(error) = launched.and_then(|()| stream.record(&done)) {
            self.free.push((slot, done));
            return Err(error);
        }
        self.asked.push_back((slot, done, asked));
        Ok(true)
    }

    /// Take the oldest answer, if it has arrived.
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
    /// Leak memory that a launch may still use.
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
