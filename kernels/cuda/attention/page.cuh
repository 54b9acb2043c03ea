// Attention of a tile of 8 * NT rows over one page, computed by one warp from an empty state.
//
// Scores are computed transposed: S^T = K Q^T has tokens as rows of the matrix instruction and query rows as its columns, so a
// group of up to 8 heads wastes nothing, and the sum O^T = V^T P^T has D * 8 * NT / 32 registers per lane. In the instruction's
// layout lane l holds rows 2 (l % 4) and 2 (l % 4) + 1 of each eight, for scores (tokens l / 4 and + 8) and for sums (dims l / 4
// and + 8).
#pragma once

namespace kvt {

// A token row of 2 D bytes in shared memory, in pieces of 16 bytes. It is swizzled so that the pieces of eight rows at one column,
// which ldmatrix reads at once, are in different banks. The swizzle is an exclusive or of bits 4 to 6 of the offset. A lane's other
// pieces therefore follow from its first one by an exclusive or and an addition of constants, without a register for each.
template <int D>
KVT_DEVICE u32 place(u32 row, u32 piece) {
    if (D >= 64) {
        return row * (2 * D) + ((piece ^ (row & 7)) << 4);
    }
    u32 line = row >> 1;  // D = 32: two rows share 128 bytes
    return line * 128 + ((((row & 1) << 2) | (piece ^ (line & 3))) << 4);
}
// Offset of piece 2k or 2k + 1 of a row, from the offset of piece 0 or 1.
KVT_DEVICE u32 along(u32 offset, u32 k) { return (offset ^ ((k & 3) << 5)) + (k >> 2) * 128; }

// Bytes of a tile's keys or values.
template <int D>
constexpr u32 HALF_BYTES = TILE* D * 2;

template <int D, int NT>
struct State {
    float m[NT][2], l[NT][2];
    float o[D / 16][NT][4];

    KVT_DEVICE void clear() {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                m[n][j] = no_score();
                l[n][j] = 0.0f;
            }
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    o[d][n][c] = 0.0f;
                }
            }
        }
    }

    KVT_DEVICE void fold(const State& other) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            Weights w[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                w[j] = fold_scalars(m[n][j], l[n][j], other.m[n][j], other.l[n][j]);
            }
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    o[d][n][c] = fold_value(o[d][n][c], other.o[d][n][c], w[c & 1]);
                }
            }
        }
    }

    // Sums over the lanes that hold a row's tokens.
    KVT_DEVICE void close() {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
#pragma unroll
                for (int step = 4; step <= 16; step <<= 1) {
                    l[n][j] += __shfl_xor_sync(FULL, l[n][j], step);
                }
            }
        }
    }
};

// Tokens that each of this lane's rows sees, in tiles of 8 * NT rows from `row` on. Rows beyond the sequence's see what its last
// row sees: they need no masking, and are never written out.
template <int NT>
struct Limits {
    i32 limit[NT][2];
    i32 limit_min, first_max;

    KVT_DEVICE void load(const AttentionParams& p, u32 row, const Span& s) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                i32 t = static_cast<i32>((row + n * 8 + kvt_lane() % 4 * 2 + j) / p.group);
                limit[n][j] = limit_of(s, min(t, s.tokens - 1));
            }
        }
        limit_min = limit_of(s, min(static_cast<i32>(row / p.group), s.tokens - 1));
        first_max = first_of(p, limit_of(s, min(static_cast<i32>((row + 8 * NT - 1) / p.group), s.tokens - 1)));
    }
};

// Loads the queries of a warp's tile, rows [row, row + 8 NT) of KV head `head`; rows beyond the sequence's are zero.
template <class T, int D, int NT>
struct Queries {
    u32 q[NT][D / 16][2];
    Limits<NT> sees;

    KVT_DEVICE void load(const AttentionParams& p, u32 seq, u32 head, u32 row, const Span& s) {
        const u32 lane = kvt_lane();
        const u32 start = query_start(p, seq);
#pragma unroll
        for (int n = 0; n < NT; n++) {
            u32 mine = row + n * 8 + lane / 4;
            u32 token = mine / p.group;
            bool there = static_cast<i32>(token) < s.tokens;
            u64 element = static_cast<u64>(start + token) * p.q_stride + (head * p.group + mine % p.group) * D + lane % 4 * 2;
            const u32* from = reinterpret_cast<const u32*>(p.q + 2 * element);
#pragma unroll
            for (int k = 0; k < D / 16; k++) {
                q[n][k][0] = there ? from[8 * k] : 0;
                q[n][k][1] = there ? from[8 * k + 4] : 0;
            }
        }
        sees.load(p, row, s);
    }
};

// Transposes a matrix of 8x8 16-bit elements in the instruction's layout: lane l held (l / 4, 2 (l % 4)) and the next column.
KVT_DEVICE u32 transposed(u32 pair) {
    const u32 lane = kvt_lane();
    u32 from = (lane & 3) * 8 + (lane >> 3);
    u32 low = __shfl_sync(FULL, pair, from);
    u32 high = __shfl_sync(FULL, pair, from + 4);
    return (lane >> 2) & 1 ? (low >> 16) | (high & 0xffff0000u) : (low & 0xffffu) | (high << 16);
}

// Adds the scores of one tile to the page's m and l and rescales its o. `s` is S^T as the matrix instruction returns it, `token`
// the index of the tile's first token. Returns the weights as the right-hand operand of the product with the values.
template <class T, int D, int NT>
KVT_DEVICE void weigh_tile(const AttentionParams& p, const Limits<NT>& sees, State<D, NT>& page, float (&s)[NT][4], i32 token,
                           u32 (&weights)[NT][2]) {
    const i32 mine = token + static_cast<i32>(kvt_lane() / 4);
    const bool masked = token + static_cast<i32>(TILE) > sees.limit_min || token < sees.first_max;
    bool moved = false;
    float shrink[NT][2];
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float low = s[n][j];
            float high = s[n][j + 2];
            if (masked) {
                const i32 limit = sees.limit[n][j], first = first_of(p, limit);
                low = mine < limit && mine >= first ? low : no_score();
                high = mine + 8 < limit && mine + 8 >= first ? high : no_score();
            }
            float top = fmaxf(low, high);
#pragma unroll
            for (int step = 4; step <= 16; step <<= 1) {
                top = fmaxf(top, __shfl_xor_sync(FULL, top, step));
            }
            float m = fmaxf(page.m[n][j], top * p.scale_log2);
            float base = base_of(m);
            shrink[n][j] = ex2(page.m[n][j] - base);
            moved = moved || m != page.m[n][j];
            s[n][j] = ex2(fmaf(low, p.scale_log2, -base));
            s[n][j + 2] = ex2(fmaf(high, p.scale_log2, -base));
            page.l[n][j] = fmaf(page.l[n][j], shrink[n][j], s[n][j]) + s[n][j + 2];
            page.m[n][j] = m;
        }
        weights[n][0] = transposed(pack2<T>(s[n][0], s[n][1]));
        weights[n][1] = transposed(pack2<T>(s[n][2], s[n][3]));
    }
    if (__any_sync(FULL, moved)) {  // otherwise every factor is 1
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    page.o[d][n][c] *= shrink[n][c & 1];
                }
            }
        }
    }
}

// Computes the scores of one tile against all rows and adds them as above. `keys` is the tile's offset in shared memory.
template <class T, int D, int NT>
KVT_DEVICE void score_tile(const AttentionParams& p, const Queries<T, D, NT>& rows, State<D, NT>& page, u32 keys, i32 token,
                           u32 (&weights)[NT][2]) {
    const u32 lane = kvt_lane();
    float s[NT][4], odd[NT][4];  // two sums: half the latency of one
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            s[n][c] = odd[n][c] = 0.0f;
        }
    }
    const u32 at = keys + place<D>(lane & 15, lane >> 4);
#pragma unroll
    for (int k = 0; k < D / 16; k += 2) {
        u32 a[4], b[4];
        ldmatrix_x4(a, kvt_shared<u8>(along(at, k)));
        ldmatrix_x4(b, kvt_shared<u8>(along(at, k + 1)));
#pragma unroll
        for (int n = 0; n < NT; n++) {
            mma_m16n8k16<T>(s[n], a, rows.q[n][k][0], rows.q[n][k][1]);
            mma_m16n8k16<T>(odd[n], b, rows.q[n][k + 1][0], rows.q[n][k + 1][1]);
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            s[n][c] += odd[n][c];
        }
    }
    weigh_tile<T, D, NT>(p, rows.sees, page, s, token, weights);
}

// Adds the tile's values with the weights of score_tile.
template <class T, int D, int NT>
KVT_DEVICE void add_tile(State<D, NT>& page, u32 values, const u32 (&weights)[NT][2]) {
    const u32 lane = kvt_lane();
    const u32 at = values + place<D>((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        u32 a[4];
        ldmatrix_x4_trans(a, kvt_shared<u8>(along(at, d)));
#pragma unroll
        for (int n = 0; n < NT; n++) {
            mma_m16n8k16<T>(page.o[d][n], a, weights[n][0], weights[n][1]);
        }
    }
}

// Enqueues a tile's keys or values to offset `to` of shared memory, by THREADS threads; `thread` is the index of this one. `left`
// of its tokens exist. The rest become zero, because a weight of zero does not cancel a NaN behind the last token.
template <int D, int THREADS>
KVT_DEVICE void load_half(u32 to, const u8* from, i32 left, u32 thread) {
    constexpr u32 PIECES = D / 8;
    constexpr u32 ROWS = THREADS / PIECES;  // rows that the threads cover at once: the distance of two steps
    constexpr u32 STEPS = (TILE * PIECES + THREADS - 1) / THREADS;
    if (TILE * PIECES < THREADS && thread >= TILE * PIECES) {
        return;
    }
    const u32 row = thread / PIECES;
    const u32 at = to + place<D>(row, thread % PIECES);
    const u8* mine = from + 16 * thread;
    if (left >= static_cast<i32>(TILE)) {
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            cp_async16_ahead(kvt_shared<u8>((at ^ (D >= 64 ? (ROWS * i & 7) << 4 : 0)) + i * THREADS * 16), mine + i * THREADS * 16);
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < STEPS; i++) {
            cp_async16_zfill(kvt_shared<u8>((at ^ (D >= 64 ? (ROWS * i & 7) << 4 : 0)) + i * THREADS * 16), mine + i * THREADS * 16,
                             static_cast<i32>(row + ROWS * i) < left ? 16 : 0);
        }
    }
}

// Writes the (m, l) of a page for the rows of a tile to the place from which the mass kernel and the merge read them.
template <int D, int NT>
KVT_DEVICE void store_page_scalars(const AttentionParams& p, const State<D, NT>& page, u32 seq, u32 index, u32 head, u32 row) {
    const u32 lane = kvt_lane();
    const u32 rows = p.q_tokens * p.group;
    float2* to = reinterpret_cast<float2*>(p.page_ml) +
                 ((static_cast<u64>(seq) * p.pages_max + index) * p.kv_heads + head) * rows;
    if (lane < 4) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                u32 mine = row + n * 8 + lane * 2 + j;
                if (mine < rows) {
                    to[mine] = make_float2(page.m[n][j], page.l[n][j]);
                }
            }
        }
    }
}

// Writes the sums of a page to the workspace of the pass path: dims [dim, dim + D) of `dims`.
template <int D, int NT>
KVT_DEVICE void store_page_sums(const AttentionParams& p, const State<D, NT>& page, u32 seq, u32 index, u32 head, u32 row, u32 dim,
                                u32 dims) {
    const u32 lane = kvt_lane();
    const u32 rows = p.q_tokens * p.group;
    float* to = reinterpret_cast<float*>(p.page_o) +
                ((static_cast<u64>(seq) * p.pages_max + index) * p.kv_heads + head) * rows * dims + dim;
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            u32 mine = row + n * 8 + lane % 4 * 2 + (c & 1);
            if (mine < rows) {
#pragma unroll
                for (int d = 0; d < D / 16; d++) {
                    to[static_cast<u64>(mine) * dims + d * 16 + lane / 4 + (c & 2) * 4] = page.o[d][n][c];
                }
            }
        }
    }
}

// A state in shared memory, at `to`: (m, l) of its rows, then o of all its dims. Each row is padded by 16 bytes so that the four
// rows of one store are in different banks.
template <int DIMS>
constexpr u32 ROW_FLOATS = DIMS + 4;
template <int DIMS, int NT>
constexpr u32 STATE_BYTES = 8 * NT * (2 + ROW_FLOATS<DIMS>)*4;

// Stores dims [dim, dim + D) of DIMS.
template <int D, int NT, int DIMS>
KVT_DEVICE void store_state(const State<D, NT>& state, u32 to, u32 dim) {
    const u32 lane = kvt_lane();
    float2* ml = kvt_shared<float2>(to);
    float* o = kvt_shared<float>(to + 8 * NT * 8) + dim;
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            u32 row = n * 8 + lane % 4 * 2 + (c & 1);
            if (dim == 0 && lane < 4 && c < 2) {
                ml[row] = make_float2(state.m[n][c & 1], state.l[n][c & 1]);
            }
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                o[row * ROW_FLOATS<DIMS> + d * 16 + lane / 4 + (c & 2) * 4] = state.o[d][n][c];
            }
        }
    }
}
template <int DIMS, int NT>
KVT_DEVICE float2 stored_scalars(u32 at, u32 row) {
    return kvt_shared<float2>(at)[row];
}
template <int DIMS, int NT>
KVT_DEVICE float4 stored_quad(u32 at, u32 row, u32 quad) {
    return *kvt_shared<float4>(at + 8 * NT * 8 + (row * ROW_FLOATS<DIMS> + quad * 4) * 4);
}

}  // namespace kvt
