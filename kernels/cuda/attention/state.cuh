// State of attention over a set of tokens for a row (a query token and head): the largest score m, the sum l of exp2(score - m) and
// the sum o of exp2(score - m) * value. Scores are in units of log2, scaled. No tokens: (-inf, 0, 0).
//
// The order in which states are folded is fixed by token index, and every fold is written with explicit fused operations. The whole
// path and the path by passes therefore round alike, wherever the compiler places the operations:
//   tile (16 tokens)  -> page    online, in order, from an empty state for each page (page.cuh)
//   page              -> stream  stream w of a chunk takes the pages w, w + streams, ... of the chunk, in order
//   stream            -> chunk   in order
//   chunk             -> row     sixteen at a time against their common maximum, then the groups of sixteen (conclude.cuh)
#pragma once

namespace kvt {

// Tokens of a tile: the rows of one matrix instruction.
constexpr u32 TILE = 16;
// Warps of a block, and streams of a chunk in decode.
constexpr u32 WARPS = 4;

KVT_DEVICE float no_score() { return __uint_as_float(0xff800000u); }
// Value to subtract in exponents: the maximum, or zero if there is no token, so that exp2(-inf - 0) is 0 and not NaN.
KVT_DEVICE float base_of(float m) { return m == no_score() ? 0.0f : m; }

// Factors of a state (m, l) and another one in their sum; m and l become the sum's.
struct Weights {
    float mine, other;
};
KVT_DEVICE Weights fold_scalars(float& m, float& l, float other_m, float other_l) {
    float top = fmaxf(m, other_m);
    float base = base_of(top);
    Weights w;
    w.mine = ex2(m - base);
    w.other = ex2(other_m - base);
    l = fmaf(other_l, w.other, l * w.mine);
    m = top;
    return w;
}
KVT_DEVICE float fold_value(float o, float other, Weights w) { return fmaf(other, w.other, o * w.mine); }
KVT_DEVICE float4 fold_value(float4 o, float4 other, Weights w) {
    return make_float4(fold_value(o.x, other.x, w), fold_value(o.y, other.y, w), fold_value(o.z, other.z, w),
                       fold_value(o.w, other.w, w));
}

// Tokens that the rows of a tile see, as half-open ranges.
struct Span {
    i32 first;   // the lowest token that some row sees
    i32 limit;   // after the highest one; not above first: no row sees any token
    i32 tokens;  // query tokens of the sequence
    i32 length;  // tokens of the sequence
};

// The first query of a sequence in q and out, in tokens.
KVT_DEVICE u32 query_start(const AttentionParams& p, u32 seq) {
    return p.q_starts ? static_cast<u32>(reinterpret_cast<const i32*>(p.q_starts)[seq]) : seq * p.q_tokens;
}
// End of the tokens that query token t sees; the last query token sees all of them, itself included.
KVT_DEVICE i32 limit_of(const Span& s, i32 t) {
    i32 limit = s.length - s.tokens + t + 1;
    return t < s.tokens && limit > 0 ? limit : 0;
}
KVT_DEVICE i32 first_of(const AttentionParams& p, i32 limit) {
    i32 window = static_cast<i32>(p.window);
    return window != 0 && limit > window ? limit - window : 0;
}
// Returns the span of rows [row, row + rows) of any KV head of a sequence. Row r is query token r / group, head r % group of its KV
// head.
KVT_DEVICE Span span_of(const AttentionParams& p, u32 seq, u32 row, u32 rows) {
    Span s;
    s.length = max(reinterpret_cast<const i32*>(p.lengths)[seq], 0);
    s.tokens = static_cast<i32>(p.q_tokens);
    if (p.q_starts) {
        const i32* starts = reinterpret_cast<const i32*>(p.q_starts) + seq;
        s.tokens = min(starts[1] - starts[0], s.tokens);
    }
    i32 low = static_cast<i32>(row / p.group);
    i32 high = min(static_cast<i32>((row + rows - 1) / p.group), s.tokens - 1);
    s.limit = low <= high ? limit_of(s, high) : 0;
    // A query token before the sequence's first token sees none, so the first one that sees a token bounds the window.
    s.first = first_of(p, max(limit_of(s, low), 1));
    return s;
}

// Reports a sequence that is longer than its launch was made for. Nothing of it is emitted.
KVT_DEVICE bool too_long(const AttentionParams& p, const Span& s) {
    return s.tokens > 0 && s.length > static_cast<i32>(p.pages_limit * p.page_tokens);
}

// Chunks of a span: index of the first one, and their number: `TOO_MANY` of a sequence that is too long.
struct Chunks {
    u32 first, count;
};
constexpr u32 TOO_MANY = 0xffffffffu;
KVT_DEVICE Chunks chunks_of(const AttentionParams& p, const Span& s) {
    u32 tokens = p.page_tokens * p.chunk_pages;
    Chunks c;
    c.first = static_cast<u32>(s.first) / tokens;
    c.count = s.limit > s.first ? (static_cast<u32>(s.limit) - 1) / tokens + 1 - c.first : 0;
    if (too_long(p, s) || c.count > p.chunks_max) {
        c.count = TOO_MANY;
    }
    return c;
}

// Returns the entry of a page in the block table: its frame, or negative. Without a table pages are in sequence order.
KVT_DEVICE i32 entry_of(const AttentionParams& p, u32 seq, u32 page) {
    u32 index = seq * p.table_stride + page;
    return p.block_table ? reinterpret_cast<const i32*>(p.block_table)[index] : static_cast<i32>(index);
}

// Returns the page of an entry: in tier 0, or in host memory for a mapped frame. Without mapped frames the test is uniform over all
// threads.
KVT_DEVICE const u8* page_at(const AttentionParams& p, i32 entry) {
    const u32 frame = static_cast<u32>(entry);
    if (p.aliases != 0 && frame >= p.frames) {
        return reinterpret_cast<const u8*>(reinterpret_cast<const u64*>(p.aliases)[frame - p.frames]);
    }
    return reinterpret_cast<const u8*>(p.pages) + static_cast<u64>(frame) * p.page_stride;
}

// Returns the entry of a lane's page of chunk `chunk` as far as it is known without the sequence's length, so that both are loaded
// at the same time: right unless a window moves the first chunk.
KVT_DEVICE i32 early_entry(const AttentionParams& p, u32 seq, u32 chunk) {
    const u32 page = chunk * p.chunk_pages + kvt_lane();
    return kvt_lane() < p.chunk_pages && page < p.pages_max && page < p.table_stride ? entry_of(p, seq, page) : -1;
}

// Returns true if the lane's status word reports a failure: then nothing may be emitted.
KVT_DEVICE bool lane_failed(const AttentionParams& p) { return p.status && *reinterpret_cast<const u32*>(p.status) != 0; }

}  // namespace kvt
