// Paged attention of many queries per sequence, causal.
//
// A block takes four row tiles of one KV head, one per warp, and processes the pages that any of them sees in index order. Its ring
// is shared, so that a page is read once for 32 or 64 rows. A page is computed from an empty state and folded, by the steps of
// decode with one stream and one chunk: attention_decode by passes and attention_merge give the same bits.
#pragma once

namespace kvt {

// Maximum tiles of a stage, and stages of the ring: 3 x (keys and values of 64 tokens) with D 128, the same bytes as decode's ring.
template <int D>
constexpr u32 STAGE_TILES = D == 256 ? 2 : 4;
constexpr u32 STAGES = 3;
template <int D>
constexpr u32 STAGE_BYTES = 2 * STAGE_TILES<D>* HALF_BYTES<D>;

// Tiles that a stage takes of pages with `tiles` tiles: a divisor, so that a stage never crosses a page border.
template <int D>
KVT_DEVICE u32 stage_tiles(u32 tiles) {
    return STAGE_TILES<D> == 4 && tiles % 4 == 0 ? 4 : tiles % 2 == 0 ? 2 : 1;
}

template <class T, int D, int NT>
KVT_DEVICE void attention_prefill(const AttentionParams& p) {
    constexpr int ROWS = 8 * NT;
    const u32 warp = kvt_warp();
    const u32 head = blockIdx.y, seq = blockIdx.z;
    const u32 rows_all = p.q_tokens * p.group;
    const u32 block_row = blockIdx.x * WARPS * ROWS;
    const Span all = span_of(p, seq, block_row, WARPS * ROWS);
    const u32 first_page = static_cast<u32>(all.first) / p.page_tokens;
    const u32 end_page = all.limit > all.first ? (static_cast<u32>(all.limit) - 1) / p.page_tokens + 1 : 0;

    // Every warp reads all entries and gets the same result.
    bool absent = lane_failed(p) || too_long(p, all);
    for (u32 page = first_page + kvt_lane(); page < end_page && !absent; page += WARP) {
        absent = entry_of(p, seq, page) < 0;
    }
    const bool missing = __any_sync(FULL, absent);
    const u32 row = block_row + warp * ROWS;
    const u32 index = (seq * p.kv_heads + head) * p.tiles + blockIdx.x * WARPS + warp;
    if (kvt_lane() == 0 && row < rows_all) {
        reinterpret_cast<u32*>(p.emitted)[index] = missing ? 0 : 1;
    }
    if (missing) {
        return;
    }

    const Span s = span_of(p, seq, row, ROWS);
    Queries<T, D, NT> rows;
    rows.load(p, seq, head, row, s);
    State<D, NT> sum;
    sum.clear();

    const u32 page_tiles = p.page_tokens / TILE;
    const u32 tiles = stage_tiles<D>(page_tiles);
    const u32 per_page = page_tiles / tiles;
    const u32 steps = end_page > first_page ? (end_page - first_page) * per_page : 0;
    const u64 of_head = static_cast<u64>(head) * p.page_tokens * (2 * D);
    const u64 to_values = static_cast<u64>(p.kv_heads) * p.page_tokens * (2 * D);

    u32 load_page = first_page, load_part = 0;
    auto load = [&](u32 step) {
        if (step < steps) {
            const u8* from = page_at(p, entry_of(p, seq, load_page)) + of_head;
            const u32 to = step % STAGES * STAGE_BYTES<D>;
            for (u32 t = 0; t < tiles; t++) {
                const u32 tile = load_part * tiles + t;
                const i32 left = all.limit - static_cast<i32>(load_page * p.page_tokens + tile * TILE);
                const u8* keys = from + tile * HALF_BYTES<D>;
                load_half<D, WARPS * WARP>(to + 2 * t * HALF_BYTES<D>, keys, left, threadIdx.x);
                load_half<D, WARPS * WARP>(to + (2 * t + 1) * HALF_BYTES<D>, keys + to_values, left, threadIdx.x);
            }
            load_part++;
            if (load_part == per_page) {
                load_part = 0;
                load_page++;
            }
        }
        cp_async_commit();
    };
#pragma unroll 1
    for (u32 i = 0; i < STAGES - 1; i++) {
        load(i);
    }

    u32 step = 0;
    for (u32 page = first_page; page < end_page; page++) {
        Listed now;
        now.seq = seq;
        now.page = page;
        now.frame = 0;
        now.first = s.first;
        now.limit = s.limit;
        const u32 tile_first = now.tile_first(p.page_tokens), tile_end = now.tile_end(p.page_tokens);
        State<D, NT> state;
        state.clear();
        for (u32 part = 0; part < per_page; part++, step++) {
            cp_async_wait<STAGES - 2>();
            __syncthreads();
            load(step + STAGES - 1);
            const u32 stage = step % STAGES * STAGE_BYTES<D>;
            for (u32 t = 0; t < tiles; t++) {
                const u32 tile = part * tiles + t;
                if (tile >= tile_first && tile < tile_end) {
                    u32 weights[NT][2];
                    score_tile<T, D, NT>(p, rows, state, stage + 2 * t * HALF_BYTES<D>,
                                         static_cast<i32>(page * p.page_tokens + tile * TILE), weights);
                    add_tile<T, D, NT>(state, stage + (2 * t + 1) * HALF_BYTES<D>, weights);
                }
            }
        }
        if (tile_first < tile_end) {
            state.close();
            if (p.page_ml) {
                store_page_scalars<D, NT>(p, state, seq, page, head, row);
            }
            sum.fold(state);
        }
    }
    cp_async_wait<0>();
    __syncthreads();

    static_assert(WARPS * STATE_BYTES<D, NT> <= STAGES * STAGE_BYTES<D>, "the states take the ring's place");
    const u32 mine = warp * STATE_BYTES<D, NT>;
    store_state<D, NT, D>(sum, mine, 0);
    __syncwarp();
    Task task;
    task.seq = seq;
    task.head = head;
    task.row = row;
    const u32 there = row < rows_all ? min(static_cast<u32>(ROWS), rows_all - row) : 0;
    for (u32 e = kvt_lane(); e < there * (D / 4); e += WARP) {
        const u32 r = e / (D / 4), quad = e % (D / 4);
        float2 ml = stored_scalars<D, NT>(mine, r);
        write_output<T>(p, task, r, quad * 4, D, ml.x, ml.y, stored_quad<D, NT>(mine, r, quad));
    }
}

}  // namespace kvt
