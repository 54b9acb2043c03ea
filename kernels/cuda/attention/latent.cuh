// Paged attention over latent vectors (MLA). All heads share one vector of 576 values per token: the whole vector is the key, its
// first 512 values are the value.
//
// A block of eight warps takes a chunk (or, by passes, pages of a list) for a tile of 16 or 32 rows. For a tile of 16 tokens the
// warps split the scores by rows and by dims of the key, add them up through shared memory and all compute the same weights. Each
// warp adds 64 dims of the values. One stream per chunk: pages in index order.
//
// Shared memory: 4 or 3 stages of 18 KiB (16 or 32 rows), the queries (18 or 36 KiB), the scores: 96 or 95 KiB, which fit the 99
// KiB of sm_86, 89 and 120. Registers allow one block per multiprocessor, so 54 or 36 KiB are in flight there. More than 32 rows
// would need two copies of their sums (page and chunk), which exceed the registers. With 128 heads, 4 neighbouring blocks read the
// pages through L2.
#pragma once

namespace kvt {

constexpr int KEY = 576, VALUE = 512, PART = 64;  // PART: dims of a warp
constexpr u32 LATENT_WARPS = 8;
constexpr u32 LATENT_TILE_BYTES = TILE * KEY * 2;

template <int NT>
struct LatentShared {
    static constexpr u32 STAGES = NT == 2 ? 4 : 3;
    static constexpr u32 SPLITS = LATENT_WARPS / NT;  // of a score's dims
    static constexpr u32 ROW = 8 * NT + 8;            // floats of a token's scores: padded against bank conflicts
    static constexpr u32 SCORES = SPLITS * TILE * ROW * 4;
    static constexpr u32 QUERIES = STAGES * LATENT_TILE_BYTES;
    static constexpr u32 BUFFER = QUERIES + 8 * NT * KEY * 2;
    static constexpr u32 BYTES = BUFFER + SCORES;
};

// Sixteen rows of 72 pieces, loaded by the block's 256 threads: each thread has one row and every sixteenth piece. The addresses
// follow from the first one by additions of constants.
KVT_DEVICE void load_latent_rows(u32 to, const u8* row_from, u32 row, bool there) {
    const u32 piece = threadIdx.x % 16;
    const u32 at = to + place<KEY>(row, piece);
    const u8* from = row_from + 16 * piece;
#pragma unroll
    for (u32 i = 0; i < KEY / 8; i += 16) {
        if (i + 16 <= KEY / 8 || piece < KEY / 8 - i) {
            cp_async16_zfill(kvt_shared<u8>(at + 16 * i), from + 16 * i, there ? 16 : 0);
        }
    }
}

// Loads the rows' queries; rows beyond the sequence's become zero.
template <int NT>
KVT_DEVICE void load_latent_queries(const AttentionParams& p, u32 seq, u32 row, const Span& s) {
    const u32 start = query_start(p, seq);
#pragma unroll 1
    for (u32 r = threadIdx.x / 16; r < 8 * NT; r += 16) {
        const u32 token = (row + r) / p.group;
        const u64 element = static_cast<u64>(start + token) * p.q_stride + (row + r) % p.group * KEY;
        load_latent_rows(LatentShared<NT>::QUERIES, reinterpret_cast<const u8*>(p.q + 2 * element), r,
                         static_cast<i32>(token) < s.tokens);
    }
}

// Loads a tile; tokens from `left` on become zero.
KVT_DEVICE void load_latent_tile(u32 to, const u8* from, i32 left) {
    const u32 row = threadIdx.x / 16;
    load_latent_rows(to, from + row * (2 * KEY), row, static_cast<i32>(row) < left);
}

// This warp's share of the scores of a tile: eight rows, every SPLITS-th pair of steps of the key.
template <class T, int NT>
KVT_DEVICE void score_latent_tile(u32 stage, u32 buffer) {
    using Shared = LatentShared<NT>;
    const u32 lane = kvt_lane();
    const u32 eight = kvt_warp() % NT, split = kvt_warp() / NT;
    const u32 keys = stage + place<KEY>(lane & 15, lane >> 4);
    const u32 queries = Shared::QUERIES + place<KEY>(eight * 8 + (lane & 7), lane >> 3);
    float s[4] = {0.0f, 0.0f, 0.0f, 0.0f}, odd[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (u32 pair = split; pair < KEY / 32; pair += Shared::SPLITS) {
        u32 q[4], a[4], b[4];
        ldmatrix_x4(q, kvt_shared<u8>(along(queries, 2 * pair)));
        ldmatrix_x4(a, kvt_shared<u8>(along(keys, 2 * pair)));
        ldmatrix_x4(b, kvt_shared<u8>(along(keys, 2 * pair + 1)));
        mma_m16n8k16<T>(s, a, q[0], q[1]);
        mma_m16n8k16<T>(odd, b, q[2], q[3]);
    }
    float* to = kvt_shared<float>(buffer + split * TILE * Shared::ROW * 4) + lane / 4 * Shared::ROW + eight * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(to) = make_float2(s[0] + odd[0], s[1] + odd[1]);
    *reinterpret_cast<float2*>(to + 8 * Shared::ROW) = make_float2(s[2] + odd[2], s[3] + odd[3]);
}

// Returns the scores of all rows, summed over the splits in order.
template <int NT>
KVT_DEVICE void gather_scores(u32 buffer, float (&s)[NT][4]) {
    using Shared = LatentShared<NT>;
    const u32 lane = kvt_lane();
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
            for (u32 split = 0; split < Shared::SPLITS; split++) {
                const float* from = kvt_shared<float>(buffer + split * TILE * Shared::ROW * 4) +
                                    (lane / 4 + 8 * half) * Shared::ROW + n * 8 + lane % 4 * 2;
                float2 part = *reinterpret_cast<const float2*>(from);
                sum = make_float2(sum.x + part.x, sum.y + part.y);
            }
            s[n][2 * half] = sum.x;
            s[n][2 * half + 1] = sum.y;
        }
    }
}

template <class T, int NT>
KVT_DEVICE void attention_latent(const AttentionParams& p) {
    using Shared = LatentShared<NT>;
    constexpr int ROWS = 8 * NT;
    const u32 lane = kvt_lane(), warp = kvt_warp();
    const bool parts = p.items != 0;

    KVT_SHARED(Work, work, 1);
    KVT_SHARED(Listed, listed, WARP);
    if (!parts) {
        work->begin(p);
    }
#pragma unroll 1
    while (parts || work->left(p)) {
        Unit unit = parts ? unit_of_block(p) : work->now(p);
        const i32 early = parts ? -1 : early_entry(p, unit.seq, unit.chunk);
        const bool failed = lane_failed(p);
        Listed mine;
        u32 todo;
        if (parts) {
            const u32 item = unit.chunk * p.items_per_warp + lane;
            todo = list_item<ROWS>(p, unit, item, failed, unit.tile == 0 && warp == 0, mine);
            if (todo == 0) {
                return;
            }
        } else {
            todo = list_chunk<T, VALUE, ROWS>(p, unit, early, failed, mine);
        }
        if (warp == 0) {
            listed[lane] = mine;
        }
        work->hold(unit);

        // Iterates over the tiles of the listed pages ahead of their use.
        u32 load_pages = todo, load_tile = 0, load_end = 0, load_stage = 0;
        i32 left = 0;
        const u8* at = nullptr;
        auto load = [&]() {
            if (load_tile == load_end && load_pages != 0) {
                const Listed next = listed[__ffs(load_pages) - 1];
                load_pages &= load_pages - 1;
                load_tile = next.tile_first(p.page_tokens);
                load_end = next.tile_end(p.page_tokens);
                left = next.limit - static_cast<i32>(next.page * p.page_tokens);
                at = page_at(p, next.frame);
            }
            if (load_tile != load_end) {
                load_latent_tile(load_stage * LATENT_TILE_BYTES, at + load_tile * LATENT_TILE_BYTES,
                                 left - static_cast<i32>(load_tile * TILE));
                load_tile++;
                load_stage = load_stage + 1 == Shared::STAGES ? 0 : load_stage + 1;
            }
            cp_async_commit();
        };
#pragma unroll 1
        for (u32 i = 0; i < Shared::STAGES - 1; i++) {
            load();
        }

        Limits<NT> sees;
        u32 loaded = ~0u;
        State<PART, NT> sum;
        sum.clear();
        u32 stage = 0;
        while (todo != 0) {
            const Listed now = listed[__ffs(todo) - 1];
            todo &= todo - 1;
            if (now.seq != loaded) {
                const Span s = span_of(p, now.seq, work->held.tile * ROWS, ROWS);
                __syncthreads();  // no thread reads the previous queries any more
                load_latent_queries<NT>(p, now.seq, work->held.tile * ROWS, s);
                cp_async_wait_all();
                sees.load(p, work->held.tile * ROWS, s);
                loaded = now.seq;
            }
            State<PART, NT> page;
            page.clear();
            const u32 end = now.tile_end(p.page_tokens);
            for (u32 t = now.tile_first(p.page_tokens); t < end; t++) {
                const u32 tile = stage * LATENT_TILE_BYTES;
                cp_async_wait<Shared::STAGES - 2>();
                __syncthreads();  // the tile has arrived; no thread reads the next stage to load or the scores' buffer any more
                load();
                score_latent_tile<T, NT>(tile, Shared::BUFFER);
                __syncthreads();
                float s[NT][4];
                u32 weights[NT][2];
                gather_scores<NT>(Shared::BUFFER, s);
                weigh_tile<T, PART, NT>(p, sees, page, s, static_cast<i32>(now.page * p.page_tokens + t * TILE), weights);
                const u32 values = tile + place<KEY>((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1) + warp * (PART * 2);
#pragma unroll
                for (int d = 0; d < PART / 16; d++) {
                    u32 a[4];
                    ldmatrix_x4_trans(a, kvt_shared<u8>(along(values, d)));
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        mma_m16n8k16<T>(page.o[d][n], a, weights[n][0], weights[n][1]);
                    }
                }
                stage = stage + 1 == Shared::STAGES ? 0 : stage + 1;
            }
            page.close();
            if (p.page_ml && warp == 0) {
                store_page_scalars<PART, NT>(p, page, now.seq, now.page, 0, work->held.tile * ROWS);
            }
            if (parts) {
                store_page_sums<PART, NT>(p, page, now.seq, now.page, 0, work->held.tile * ROWS, warp * PART, VALUE);
            } else {
                sum.fold(page);
            }
        }
        cp_async_wait<0>();
        if (parts) {
            return;
        }
        const u32 reserved = work->reserve(p);
        __syncthreads();
        const Unit done = work->held;
        if (done.chunk < done.chunks) {
            static_assert(STATE_BYTES<VALUE, NT> <= Shared::BYTES, "the state takes the place of all");
            const Task task = task_of<ROWS>(p, done.seq, 0, done.tile);
            store_state<PART, NT, VALUE>(sum, 0, warp * PART);
            __syncthreads();
            for (u32 e = done.missing ? ~0u : threadIdx.x; e < task.rows * (VALUE / 4); e += blockDim.x) {
                const u32 row = e / (VALUE / 4), quad = e % (VALUE / 4);
                const float2 ml = stored_scalars<VALUE, NT>(0, row);
                give<T, VALUE, ROWS>(p, task, done.chunks, done.chunk, row, quad, ml.x, ml.y, stored_quad<VALUE, NT>(0, row, quad));
            }
            conclude<T, VALUE, ROWS>(p, task, done.chunks, done.chunk, done.missing);
        }
        work->advance(reserved);
    }
    work->end(p);
}

}  // namespace kvt
