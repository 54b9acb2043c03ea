//! Digests of sealed pages.

use super::check;
use crate::params::{DigestBuildParams, DigestScoresParams, DigestSelectParams};
use crate::reference::Element;
use crate::{Device, Error, Function, Result, Shape, Source, Stream};
use std::sync::Arc;

static SOURCE: Source = Source { name: "digest", ptx: include_str!("../../ptx/digest.ptx") };
const THREADS: u32 = 256;
const SELECT_THREADS: u32 = 512;
/// Pages of a block of `digest_scores_*`: 8 threads each.
const PAGES: u32 = THREADS / 8;
/// Query heads that it holds at a time.
const ROWS: u32 = 4;
/// Maximum channels of a query: those of multi-head latent attention.
const SCORE_CHANNELS_MAX: u64 = 576;
/// Maximum heads of `digest_select`.
const HEADS_MAX: u64 = 256;

/// The kernels over digests on a device.
#[derive(Debug)]
pub struct Digest {
    build: [Function; 2],
    scores: [Function; 2],
    select: Function,
}

impl Digest {
    /// Load the kernels.
    ///
    /// # Errors
    /// The driver rejects them; the device is full or lost.
    pub fn new(device: &Arc<Device>) -> Result<Self> {
        let module = device.module(&SOURCE)?;
        Ok(Self {
            build: [module.function("digest_build_f16")?, module.function("digest_build_bf16")?],
            scores: [module.function("digest_scores_f16")?, module.function("digest_scores_bf16")?],
            select: module.function("digest_select")?,
        })
    }

    /// Build digests of sealed pages.
    ///
    /// # Errors
    /// An address or stride is 0 or not aligned; a number is out of its bounds; the device is lost.
    ///
    /// # Safety
    /// Until it has ended: list, keys and digests exist in the sizes given by the parameters; every item's page is 16-byte aligned;
    /// nothing else writes the memory it reads or accesses the memory it writes; no two items belong to one block.
    pub unsafe fn build(&self, stream: &Stream, element: Element, params: &DigestBuildParams) -> Result<()> {
        let p = params;
        if p.count == 0 || p.heads == 0 {
            return Ok(());
        }
        // Items may contain absolute addresses; `keys` is 0 then.
        check::aligned("keys", p.keys, 16)?;
        check::aligned("stride of heads", p.head_stride, 16)?;
        check::aligned("stride of tokens", p.token_stride, 16)?;
        check::address("list of pages", p.items, 16)?;
        check::address("digests", p.digests, 4)?;
        check::aligned("status word", p.status, 4)?;
        check::within("channels of a head", u64::from(p.channels), 8, kvtide_wire::digest::CHANNELS_MAX as u64)?;
        check::within("channels of a head, a multiple of 8", u64::from(p.channels % 8), 0, 0)?;
        check::within("blocks of the digests", u64::from(p.blocks), 1, u64::from(u32::MAX))?;
        let blocks = check::grid("pages × heads", u64::from(p.count) * u64::from(p.heads))?;
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe { self.build[element as usize].launch(stream, Shape::linear(blocks, THREADS), p) }
    }

    /// Compute bounds of the products of every query head with every page of its sequence.
    ///
    /// # Errors
    /// As above.
    ///
    /// # Safety
    /// Until it has ended: the memory it reads and writes exists in the sizes given by the parameters; nothing else writes it.
    pub unsafe fn scores(&self, stream: &Stream, element: Element, params: &DigestScoresParams) -> Result<()> {
        let p = params;
        if [p.seqs, p.max_blocks, p.kv_heads, p.group].contains(&0) {
            return Ok(());
        }
        check::address("queries", p.queries, 8)?;
        check::aligned("stride of sequences", p.seq_stride, 8)?;
        check::aligned("stride of query heads", p.head_stride, 8)?;
        check::address("digests", p.digests, 4)?;
        check::address("block ids", p.block_ids, 4)?;
        check::address("lengths", p.lengths, 4)?;
        check::aligned("sealed tokens", p.sealed, 4)?;
        check::aligned("starts", p.starts, 4)?;
        check::address("bounds", p.bounds, 4)?;
        check::aligned("status word", p.status, 4)?;
        check::within("channels of a head", u64::from(p.channels), 32, SCORE_CHANNELS_MAX)?;
        check::within("channels of a head, a multiple of 32", u64::from(p.channels % 32), 0, 0)?;
        check::within("tokens of a page", u64::from(p.page_tokens), 1, u64::from(u32::MAX))?;
        check::within("blocks of the digests", u64::from(p.blocks), 1, u64::from(u32::MAX))?;
        if !(p.scale.is_normal() && p.scale > 0.0) {
            return Err(Error::invalid("scale", format!("{} is not a positive number", p.scale)));
        }
        let tiles = u64::from(p.group.div_ceil(ROWS)) * u64::from(p.kv_heads);
        let blocks = tiles.saturating_mul(u64::from(p.max_blocks.div_ceil(PAGES))).saturating_mul(u64::from(p.seqs));
        let blocks = check::grid("blocks of pages × heads × sequences", blocks)?;
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe { self.scores[element as usize].launch(stream, Shape::linear(blocks, THREADS), p) }
    }

    /// Compute the estimates and choose the best pages of each sequence.
    ///
    /// # Errors
    /// As above.
    ///
    /// # Safety
    /// As above.
    pub unsafe fn select(&self, stream: &Stream, params: &DigestSelectParams) -> Result<()> {
        let p = params;
        if p.seqs == 0 {
            return Ok(());
        }
        check::address("bounds", p.bounds, 4)?;
        check::address("estimates", p.estimates, 4)?;
        check::address("chosen pages", p.chosen, 4)?;
        check::address("counts of chosen pages", p.counts, 4)?;
        check::address("omitted shares", p.omitted, 4)?;
        check::aligned("status word", p.status, 4)?;
        check::within("query heads", u64::from(p.heads), 1, HEADS_MAX)?;
        check::within("pages to choose", u64::from(p.budget), 1, i32::MAX as u64)?;
        // Indices into the bounds of a sequence are counted in u32.
        let columns = u64::from(p.max_blocks);
        check::within("columns of the bounds", columns, 1, u64::from(u32::MAX / 2) / u64::from(p.heads))?;
        let blocks = check::grid("sequences", u64::from(p.seqs))?;
        // SAFETY: checked above; the caller guarantees the rest.
        unsafe { self.select.launch(stream, Shape::linear(blocks, SELECT_THREADS), p) }
    }
}
