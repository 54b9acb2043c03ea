//! Implementation with CUDA.

use crate::attention::{KVT_SCORES_TOP_MAX, KVT_SCORES_WORDS, kvt_attention_options, kvt_queries};
use crate::batch::{kvt_batch_device, kvt_batch_options};
use crate::error::Fault;
use crate::kernels::{kvt_append_part, kvt_append_rows, kvt_gather, kvt_quant, kvt_rows_layout};
use crate::scores::kvt_element;
use kvtide_client::cuda::device_error;
use kvtide_client::cuda::launch::Codec;
use kvtide_client::cuda::launch::attention::{self, Config, SCORE_WORDS, TOP_MAX};
use kvtide_client::cuda::params::{AppendPart, GatherLayout, GatherParams, QuantParams};
use kvtide_client::cuda::reference::{Element, attention::Layout};
use kvtide_client::cuda::{BatchOptions, LaneAttention, NewRows, Queries};
use kvtide_client::{Client, Lane, StepSeq};
use kvtide_wire::score::Scores;
use kvtide_wire::status::Status;

pub(crate) use kvtide_client::cuda::{Batch, Kernels};
pub(crate) type Attention = LaneAttention;

/// Default thread blocks of a launch.
const BLOCKS: u32 = 64;

const _: () = assert!(KVT_SCORES_WORDS as usize == SCORE_WORDS && KVT_SCORES_TOP_MAX as usize == TOP_MAX);

fn zero(name: &'static str, value: u32) -> Result<(), Fault> {
    if value == 0 { Ok(()) } else { Err(Fault::new(Status::Invalid, format!("`{name}` is not zero"))) }
}

fn element(code: u32) -> Result<Element, Fault> {
    match code {
        code if code == kvt_element::KVT_ELEMENT_F16 as u32 => Ok(Element::F16),
        code if code == kvt_element::KVT_ELEMENT_BF16 as u32 => Ok(Element::Bf16),
        _ => {
            let text = format!("`element` is {code}; kernels support KVT_ELEMENT_F16 (1) and KVT_ELEMENT_BF16 (2)");
            Err(Fault::new(Status::Invalid, text))
        }
    }
}

fn blocks(asked: u32) -> u32 {
    if asked == 0 { BLOCKS } else { asked }
}

pub(crate) fn batch(client: &Client, lane: &Lane, options: &kvt_batch_options) -> Result<Batch, Fault> {
    let kvt_batch_options { seqs, max_blocks, table_planes, in_place, .. } = *options;
    let mut batch = Batch::new(client, lane, BatchOptions { seqs, max_blocks, table_planes })?;
    batch.set_in_place(in_place != 0);
    Ok(batch)
}

pub(crate) fn batch_device(batch: &Batch) -> kvt_batch_device {
    let d = batch.device();
    kvt_batch_device {
        struct_size: 0,
        seqs: d.seqs,
        max_blocks: d.max_blocks,
        reserved: 0,
        lengths: d.lengths,
        block_ids: d.block_ids,
        block_tables: d.block_tables,
        misses: d.misses,
    }
}

pub(crate) fn batch_starts(batch: &Batch, plane: u16) -> u64 {
    batch.starts(plane)
}

pub(crate) fn batch_set(batch: &mut Batch, seqs: &[StepSeq]) -> Result<(), Fault> {
    Ok(batch.set(seqs)?)
}

pub(crate) fn batch_tables(batch: &mut Batch, plane: u16, count: u16, absent: i32) -> Result<(), Fault> {
    Ok(batch.tables(plane..plane.saturating_add(count), absent)?)
}

pub(crate) fn attention(client: &Client, options: &kvt_attention_options) -> Result<Attention, Fault> {
    let o = options;
    zero("options->reserved", o.reserved)?;
    let layout = match (o.head_dim, o.latent, o.rope) {
        (0, latent, rope) => Layout::Latent { latent: latent as usize, rope: rope as usize },
        (head_dim, 0, 0) => Layout::Heads { head_dim: head_dim as usize },
        _ => return Err(Fault::new(Status::Invalid, "`head_dim` excludes `latent` and `rope`: set the other to 0")),
    };
    let config = Config {
        element: element(o.element)?,
        layout,
        kv_heads: o.kv_heads,
        group: o.group,
        page_tokens: client.layout().page_tokens,
        window: o.window,
        scale: o.scale,
        seqs: o.seqs,
        q_tokens: o.q_tokens,
        pages: o.pages,
        chunk_tokens: o.chunk_tokens,
        passes: o.passes != 0,
        mass: o.mass != 0,
    };
    Ok(LaneAttention::new(client, config)?)
}

pub(crate) fn attention_emitted(attention: &mut Attention) -> (u64, u32) {
    let kernels = attention.kernels();
    (kernels.emitted(), kernels.emitted_words(kernels.config().seqs) as u32)
}

fn queries(q: &kvt_queries) -> Result<Queries, Fault> {
    zero("queries->reserved", q.reserved)?;
    Ok(Queries {
        q: q.q,
        out: q.out,
        lse: q.lse,
        starts: q.starts,
        q_stride: q.q_stride,
        out_stride: q.out_stride,
        pages_longest: q.pages_longest,
        plane: q.plane,
        table: q.table,
    })
}

/// As [`LaneAttention::whole`].
///
/// # Safety
/// As there.
pub(crate) unsafe fn attention_whole(attention: &Attention, batch: &Batch, q: &kvt_queries) -> Result<(), Fault> {
    // SAFETY: this function's own contract.
    Ok(unsafe { attention.whole(batch, &queries(q)?) }?)
}

/// As [`LaneAttention::begin`].
///
/// # Safety
/// As there.
pub(crate) unsafe fn attention_begin(attention: &mut Attention, batch: &Batch) -> Result<(), Fault> {
    // SAFETY: this function's own contract.
    Ok(unsafe { attention.begin(batch) }?)
}

/// As [`LaneAttention::part`].
///
/// # Safety
/// As there.
pub(crate) unsafe fn attention_part(
    attention: &Attention,
    batch: &Batch,
    q: &kvt_queries,
    items: u64,
    count: u32,
) -> Result<(), Fault> {
    // SAFETY: this function's own contract.
    Ok(unsafe { attention.part(batch, &queries(q)?, items, count) }?)
}

/// As [`LaneAttention::merge`].
///
/// # Safety
/// As there.
pub(crate) unsafe fn attention_merge(attention: &Attention, batch: &Batch, q: &kvt_queries) -> Result<(), Fault> {
    // SAFETY: this function's own contract.
    Ok(unsafe { attention.merge(batch, &queries(q)?) }?)
}

/// As [`LaneAttention::mass`].
///
/// # Safety
/// As there.
pub(crate) unsafe fn attention_mass(
    attention: &Attention,
    batch: &Batch,
    q: &kvt_queries,
    step: u64,
    top: u32,
    words: u64,
) -> Result<(), Fault> {
    // SAFETY: this function's own contract.
    Ok(unsafe { attention.mass(batch, &queries(q)?, step, top, words) }?)
}

pub(crate) fn scores(words: &[u64]) -> Result<Option<Scores>, Fault> {
    let words = words.try_into().map_err(|_| Fault::new(Status::Invalid, "`words` does not hold one row"))?;
    Ok(attention::scores(words, 0))
}

pub(crate) fn kernels(client: &Client) -> Result<Kernels, Fault> {
    Ok(Kernels::new(client)?)
}

/// As [`Kernels::append`].
///
/// # Safety
/// As there.
pub(crate) unsafe fn append(kernels: &Kernels, batch: &Batch, plane: u16, r: &kvt_append_rows) -> Result<(), Fault> {
    let part = |p: kvt_append_part| AppendPart {
        source: p.source,
        token_stride: p.token_stride,
        head_stride: p.head_stride,
        heads: p.heads,
        row_bytes: p.row_bytes,
        page_offset: p.page_offset,
        page_head_stride: p.page_head_stride,
        page_token_stride: p.page_token_stride,
        reserved: 0,
    };
    let rows = NewRows { parts: r.parts.map(part), starts: r.starts, faults: r.faults, rows: r.rows };
    // SAFETY: this function's own contract.
    Ok(unsafe { kernels.append(batch, plane, &rows) }?)
}

fn layout(l: kvt_rows_layout) -> GatherLayout {
    GatherLayout { bases: l.bases, head_stride: l.head_stride, token_stride: l.token_stride }
}

/// As [`Kernels::gather`].
///
/// # Safety
/// As there.
pub(crate) unsafe fn gather(kernels: &Kernels, lane: &Lane, g: &kvt_gather) -> Result<(), Fault> {
    let params = GatherParams {
        from: layout(g.from),
        to: layout(g.to),
        items: g.items,
        status: 0,
        count: g.count,
        layers: g.layers,
        parts: g.parts,
        heads: g.heads,
        tokens: g.tokens,
        row_bytes: g.row_bytes,
        heads_inner: 0,
        reserved: 0,
    };
    // SAFETY: this function's own contract.
    Ok(unsafe { kernels.gather(lane, &params, blocks(g.blocks)) }?)
}

pub(crate) fn quant_bytes(q: &kvt_quant) -> Result<u64, Fault> {
    let image = Codec::from_code(q.codec).and_then(|c| c.image(q.parts, q.heads, q.page_tokens, q.channels));
    Ok(image.map(|image| image.bytes()).map_err(|e| device_error("size a quantised block", e))?)
}

fn quant(q: &kvt_quant) -> QuantParams {
    QuantParams {
        layout: layout(q.layout),
        items: q.items,
        refused: q.refused,
        status: 0,
        image_stride: q.image_stride,
        count: q.count,
        layers: q.layers,
        parts: q.parts,
        heads: q.heads,
        page_tokens: q.page_tokens,
        channels: q.channels,
        codec: q.codec,
        reserved: 0,
    }
}

/// As [`Kernels::quantize`].
///
/// # Safety
/// As there.
pub(crate) unsafe fn quantize(kernels: &Kernels, lane: &Lane, q: &kvt_quant) -> Result<(), Fault> {
    // SAFETY: this function's own contract.
    Ok(unsafe { kernels.quantize(lane, element(q.element)?, &quant(q), blocks(q.blocks)) }?)
}

/// As [`Kernels::dequantize`].
///
/// # Safety
/// As there.
pub(crate) unsafe fn dequantize(kernels: &Kernels, lane: &Lane, q: &kvt_quant) -> Result<(), Fault> {
    // SAFETY: this function's own contract.
    Ok(unsafe { kernels.dequantize(lane, element(q.element)?, &quant(q), blocks(q.blocks)) }?)
}
