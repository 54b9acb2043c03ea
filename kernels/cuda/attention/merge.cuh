// The end of the path by passes: a block folds the page states of one chunk in the order of the whole path (`streams` of them,
// pages in order within each), and continues as the whole path does. A page with a stamp of another epoch was not computed: the row
// is then marked as incomplete.
#pragma once

namespace kvt {

template <class T, int D, int NT>
KVT_DEVICE void attention_merge(const AttentionParams& p) {
    constexpr int ROWS = 8 * NT;
    const u32 head = blockIdx.x / p.tiles, tile = blockIdx.x % p.tiles;
    const Task task = task_of<ROWS>(p, blockIdx.z, head, tile);
    if (lane_failed(p)) {
        if (blockIdx.y == 0) {
            write_emitted(p, task, false);
        }
        return;
    }
    const Span s = span_of(p, task.seq, task.row, ROWS);
    const Chunks range = chunks_of(p, s);
    if (range.count == 0 || range.count == TOO_MANY) {
        if (blockIdx.y == 0) {
            write_unread<T, D>(p, task, range.count == 0);
        }
        return;
    }
    if (blockIdx.y >= range.count) {
        return;
    }
    const u32 chunk = (range.first + blockIdx.y) * p.chunk_pages;  // first page of the chunk, even if outside the span
    const u32 first = max(chunk, static_cast<u32>(s.first) / p.page_tokens);
    const u32 end = min(chunk + p.chunk_pages, (static_cast<u32>(s.limit) - 1) / p.page_tokens + 1);

    // Every warp reads all stamps and gets the same result.
    const u32* stamps = reinterpret_cast<const u32*>(p.stamps) + static_cast<u64>(task.seq) * p.pages_max;
    bool absent = false;
    for (u32 page = first + kvt_lane(); page < end; page += WARP) {
        absent = absent || stamps[page] != p.epoch;
    }
    const bool missing = __any_sync(FULL, absent);
    if (!missing) {
        const u32 rows = p.q_tokens * p.group;
        const u64 seq_page = static_cast<u64>(task.seq) * p.pages_max;
        const float2* scalars = reinterpret_cast<const float2*>(p.page_ml);
        const float4* sums = reinterpret_cast<const float4*>(p.page_o);
        for (u32 e = threadIdx.x; e < task.rows * (D / 4); e += blockDim.x) {
            const u32 row = e / (D / 4), quad = e % (D / 4);
            float m = no_score(), l = 0.0f;
            float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            for (u32 stream = 0; stream < p.streams; stream++) {
                float stream_m = no_score(), stream_l = 0.0f;
                float4 stream_o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                u32 ahead = chunk + stream < first ? (first - chunk - stream + p.streams - 1) / p.streams * p.streams : 0;
#pragma unroll 4
                for (u32 page = chunk + stream + ahead; page < end; page += p.streams) {
                    u64 at = ((seq_page + page) * p.kv_heads + head) * rows + task.row + row;
                    float2 part = scalars[at];
                    float4 sum = sums[at * (D / 4) + quad];
                    Weights w = fold_scalars(stream_m, stream_l, part.x, part.y);
                    stream_o = fold_value(stream_o, sum, w);
                }
                if (stream == 0) {
                    m = stream_m;
                    l = stream_l;
                    o = stream_o;
                } else {
                    Weights w = fold_scalars(m, l, stream_m, stream_l);
                    o = fold_value(o, stream_o, w);
                }
            }
            give<T, D, ROWS>(p, task, range.count, blockIdx.y, row, quad, m, l, o);
        }
    }
    conclude<T, D, ROWS>(p, task, range.count, blockIdx.y, missing);
}

}  // namespace kvt
