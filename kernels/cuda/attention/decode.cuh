// Paged attention of few queries per sequence: decode, and verification of several tokens.
//
// Whole path (`items` is 0): a block takes units (work.cuh), each a chunk of a sequence for one KV head and row tile. Its four warps
// take the chunk's pages in turn (page i of the chunk: warp i % 4). Each warp has its own ring in shared memory, so that no warp
// waits for another before the chunk's end. Path by passes (`items`): a warp takes pages of a list and leaves each page's state
// in the workspace, from which attention_merge folds chunks with exactly the same steps.
//
// Bytes in flight: a warp's ring has SLOTS halves (16 tokens of keys or values), SLOTS - 1 of them in flight. Per block and per
// multiprocessor of an H200 (227 KiB of shared memory):
//   D 32: 8 x 1 KiB x 4 = 32 KiB, 28 in flight, 5 blocks: 140 KiB     D 128: 6 x 4 KiB x 4 = 96 KiB, 80 in flight, 2 blocks: 160 KiB
//   D 64: 8 x 2 KiB x 4 = 64 KiB, 56 in flight, 3 blocks: 168 KiB     D 256: 3 x 8 KiB x 4 = 96 KiB, 64 in flight, 2 blocks: 128 KiB
// 4.8 TB/s at 0.8 us of loaded latency need 29 KiB per multiprocessor; the rest covers blocks that start or end. 96 KiB also fit
// the 99 KiB that a block of sm_86, 89 and 120 can have.
//
// Grid of the whole path: as many blocks as run at a time. By passes: KV heads and row tiles, which read the same pages, vary fastest,
// then the list.
//
// Arithmetic: with D 128 a tile of 16 tokens (8 KiB) is 16 ldmatrix, 16 mma, 16 cp.async and some 150 other instructions of one
// warp; at 20 bytes per clock and multiprocessor it may take 400 clocks of four schedulers.
#pragma once

namespace kvt {

template <int D>
constexpr int SLOTS = D <= 64 ? 8 : D == 128 ? 6 : 3;
template <int D>
constexpr u32 RING_BYTES = SLOTS<D>* HALF_BYTES<D>;

// Iterates over the halves of the listed pages ahead of their use: keys, then values, of each tile.
template <int D>
struct Loader {
    u32 pages;  // pages of the list still to be loaded
    u32 tile, tile_end;
    bool values;
    const u8* at;  // keys of this page's head
    i32 left;      // existing tokens of the page, from its first on
    u32 slot;

    KVT_DEVICE void step(const AttentionParams& p, const Listed* list, u32 head, u32 ring) {
        if (tile == tile_end && pages != 0) {
            const Listed next = list[__ffs(pages) - 1];
            pages &= pages - 1;
            tile = next.tile_first(p.page_tokens);
            tile_end = next.tile_end(p.page_tokens);
            left = next.limit - static_cast<i32>(next.page * p.page_tokens);
            at = page_at(p, next.frame) + static_cast<u64>(head) * p.page_tokens * (2 * D);
        }
        if (tile != tile_end) {
            const u8* from = at + tile * HALF_BYTES<D>;
            if (values) {
                from += static_cast<u64>(p.kv_heads) * p.page_tokens * (2 * D);
            }
            load_half<D, WARP>(ring + slot * HALF_BYTES<D>, from, left - static_cast<i32>(tile * TILE), kvt_lane());
            tile += values ? 1 : 0;
            values = !values;
            slot = slot + 1 == SLOTS<D> ? 0 : slot + 1;
        }
        cp_async_commit();
    }
};

template <class T, int D, int NT>
KVT_DEVICE void attention_decode(const AttentionParams& p) {
    constexpr int ROWS = 8 * NT;
    const u32 lane = kvt_lane(), warp = kvt_warp();
    const bool parts = p.items != 0;
    const u32 ring = warp * RING_BYTES<D>;

    KVT_SHARED(Work, work, 1);
    KVT_SHARED(Listed, lists, WARPS * WARP);
    Listed* list = lists + warp * WARP;
    if (!parts) {
        work->begin(p);
    }
#pragma unroll 1
    while (parts || work->left(p)) {
        Unit unit = parts ? unit_of_block(p) : work->now(p);
        const i32 early = parts ? -1 : early_entry(p, unit.seq, unit.chunk);
        const bool failed = lane_failed(p);
        Listed mine;
        u32 todo;  // pages of the list that this warp computes
        if (parts) {
            const u32 item = (unit.chunk * WARPS + warp) * p.items_per_warp + lane;
            todo = list_item<ROWS>(p, unit, item, failed, unit.head == 0 && unit.tile == 0, mine);
        } else {
            todo = list_chunk<T, D, ROWS>(p, unit, early, failed, mine) & (0x11111111u << warp);
        }
        list[lane] = mine;
        work->hold(unit);

        Loader<D> loader;
        loader.pages = todo;
        loader.tile = loader.tile_end = loader.slot = 0;
        loader.values = false;
        loader.left = 0;
        loader.at = nullptr;
#pragma unroll 1
        for (int i = 0; i < SLOTS<D> - 1; i++) {
            loader.step(p, list, work->held.head, ring);
        }

        Queries<T, D, NT> rows;
        u32 loaded = ~0u;  // sequence of the queries in `rows`
        State<D, NT> sum;
        sum.clear();
        u32 slot = 0;
        while (todo != 0) {
            const Listed now = list[__ffs(todo) - 1];
            todo &= todo - 1;
            if (now.seq != loaded) {
                const u32 row = work->held.tile * ROWS;
                rows.load(p, now.seq, work->held.head, row, span_of(p, now.seq, row, ROWS));
                loaded = now.seq;
            }
            State<D, NT> page;
            page.clear();
            const u32 end = now.tile_end(p.page_tokens);
            for (u32 t = now.tile_first(p.page_tokens); t < end; t++) {
                u32 weights[NT][2];
                cp_async_wait<SLOTS<D> - 2>();
                __syncwarp();
                loader.step(p, list, work->held.head, ring);
                const i32 token = static_cast<i32>(now.page * p.page_tokens + t * TILE);
                score_tile<T, D, NT>(p, rows, page, ring + slot * HALF_BYTES<D>, token, weights);
                slot = slot + 1 == SLOTS<D> ? 0 : slot + 1;
                cp_async_wait<SLOTS<D> - 2>();
                __syncwarp();
                loader.step(p, list, work->held.head, ring);
                add_tile<T, D, NT>(page, ring + slot * HALF_BYTES<D>, weights);
                slot = slot + 1 == SLOTS<D> ? 0 : slot + 1;
            }
            page.close();
            if (p.page_ml) {
                store_page_scalars<D, NT>(p, page, now.seq, now.page, work->held.head, work->held.tile * ROWS);
            }
            if (parts) {
                store_page_sums<D, NT>(p, page, now.seq, now.page, work->held.head, work->held.tile * ROWS, 0, D);
            } else {
                sum.fold(page);
            }
        }
        cp_async_wait<0>();
        if (parts) {
            return;
        }
        const u32 reserved = work->reserve(p);
        __syncwarp();
        const Unit done = work->held;
        if (done.chunk < done.chunks) {
            const Task task = task_of<ROWS>(p, done.seq, done.head, done.tile);
            // The four streams, in order.
            static_assert(STATE_BYTES<D, NT> <= RING_BYTES<D>, "a warp's state takes its ring's place");
            store_state<D, NT, D>(sum, ring, 0);
            __syncthreads();
            for (u32 e = done.missing ? ~0u : threadIdx.x; e < task.rows * (D / 4); e += blockDim.x) {
                const u32 row = e / (D / 4), quad = e % (D / 4);
                float2 ml = stored_scalars<D, NT>(0, row);
                float4 o = stored_quad<D, NT>(0, row, quad);
#pragma unroll
                for (u32 w = 1; w < WARPS; w++) {
                    float2 other = stored_scalars<D, NT>(w * RING_BYTES<D>, row);
                    Weights weights = fold_scalars(ml.x, ml.y, other.x, other.y);
                    o = fold_value(o, stored_quad<D, NT>(w * RING_BYTES<D>, row, quad), weights);
                }
                give<T, D, ROWS>(p, task, done.chunks, done.chunk, row, quad, ml.x, ml.y, o);
            }
            conclude<T, D, ROWS>(p, task, done.chunks, done.chunk, done.missing);
        }
        work->advance(reserved);
    }
    work->end(p);
}

}  // namespace kvt
