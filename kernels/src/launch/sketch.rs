//! Sketches of sealed pages.

use super::check;
use crate::params::{SketchBuildParams, SketchScoresParams};
use crate::reference::Element;
use crate::{Device, Error, Function, Result, Shape, Source, Stream};
use kvtide_wire::digest::{CHANNELS_MAX, sketch::GROUPS_MAX};
use std::sync::Arc;

static SOURCE: Source = Source { name: "sketch", ptx: include_str!("../../ptx/sketch.ptx") };
/// A thread is a token of a page.
const BUILD_THREADS: u32 = 128;
/// A thread is a page.
const SCORE_THREADS: u32 = 256;
const SHARE_THREADS: u32 = 512;
/// Maximum heads of `sketch_shares`.
const HEADS_MAX: u64 = 256;
/// Maximum numbers of centres in a block.
const CENTRES_MAX: u64 = 8192;

/// The kernels over sketches on a device.
#[derive(Debug)]
pub struct Sketch {
    build: [Function; 2],
    scores: Function,
    shares: Function,
}

impl Sketch {
    /// Load the kernels.
    ///
    /// # Errors
    /// The driver rejects them; the device is full or lost.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let module = device.module(&SOURCE)?;
        Ok(Self {
            build: [module.function("sketch_build_f16")?, module.function("sketch_build_bf16")?],
            scores: module.function("sketch_scores")?,
            shares: module.function("sketch_shares")?,
        })
    }

    /// Build sketches of sealed pages.
    ///
    /// # Errors
    /// An address or stride is 0 or not aligned; a number is out of its bounds; the device is lost.
    ///
    /// # Safety
    /// Until it has ended: list, keys and sketches exist in the sizes given by the parameters; every item's page is 16-byte
    /// aligned; nothing else writes the memory it reads or accesses the memory it writes; no two items belong to one slot.
    pub unsafe fn build(&self, stream: &Stream, element: Element, params: &SketchBuildParams) -> Result<()> {
        let p = params;
        if p.count == 0 || p.heads == 0 {
            return Ok(());
        }
        // Items may contain absolute addresses; `keys` is 0 then.
        check::aligned("keys", p.keys, 16)?;
        check::aligned("stride of heads", p.head_stride, 16)?;
        check::aligned("stride of tiles", p.tile_stride, 16)?;
        check::aligned("stride of tokens", p.token_stride, 16)?;
        check::address("list of pages", p.items, 16)?;
        check::address("sketches", p.sketches, 1)?;
        check::aligned("status word", p.status, 4)?;
        check::within("tokens of a tile", u64::from(p.tile_tokens), 1, u64::from(u32::MAX))?;
        form(p.channels, p.groups, p.slots)?;
        let centres = u64::from(p.groups) * u64::from(p.channels);
        check::within("groups × channels", centres, 1, CENTRES_MAX)?;
        let blocks = check::grid("pages × heads", u64::from(p.count) * u64::from(p.heads))?;
        let shape = Shape::linear(blocks, BUILD_THREADS).with_shared(centres as u32 * size_of::<f32>() as u32);
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe { self.build[element as usize].launch(stream, shape, p) }
    }

    /// Compute the share of attention that each page would get of a query, averaged over its heads.
    ///
    /// # Errors
    /// As above.
    ///
    /// # Safety
    /// Until it has ended: the memory it reads and writes exists in the sizes given by the parameters; nothing else writes it.
    pub unsafe fn shares(&self, stream: &Stream, params: &SketchScoresParams) -> Result<()> {
        let p = params;
        if p.pages == 0 {
            return Ok(());
        }
        check::address("queries", p.queries, 4)?;
        check::address("sketches", p.sketches, 1)?;
        check::address("slots of pages", p.places, 4)?;
        check::address("sums", p.sums, 4)?;
        check::address("shares", p.shares, 4)?;
        check::aligned("status word", p.status, 4)?;
        form(p.channels, p.groups, p.slots)?;
        let heads = u64::from(p.kv_heads) * u64::from(p.group);
        check::within("query heads", heads, 1, HEADS_MAX)?;
        if !(p.scale.is_normal() && p.scale > 0.0) {
            return Err(Error::invalid("scale", format!("{} is not a positive number", p.scale)));
        }
        let blocks = check::grid("blocks of pages × heads", heads * u64::from(p.pages.div_ceil(SCORE_THREADS)))?;
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe {
            self.scores.launch(stream, Shape::linear(blocks, SCORE_THREADS), p)?;
            self.shares.launch(stream, Shape::linear(1, SHARE_THREADS), p)
        }
    }
}

/// Check the shape of sketches.
fn form(channels: u32, groups: u32, slots: u32) -> Result<()> {
    check::within("channels of a head", u64::from(channels), 8, CHANNELS_MAX as u64)?;
    check::within("channels of a head, a multiple of 8", u64::from(channels % 8), 0, 0)?;
    check::within("groups of a sketch", u64::from(groups), 1, GROUPS_MAX as u64)?;
    check::within("slots of the sketches", u64::from(slots), 1, u64::from(u32::MAX - 2))
}
