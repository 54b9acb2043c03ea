// From a chunk's state to a row's output.
//
// Different blocks may compute the chunks of a row tile. Each writes its partial result and takes a ticket. The block with the last
// ticket of sixteen chunks combines them; the last of the groups combines all groups. No block waits, there is no second launch,
// and most of the combining overlaps with reads of other blocks. Tickets only decide which block combines; chunk indices determine
// the chunks and their order. The last taker resets a ticket to zero. The upper half of a ticket counts chunks with an unreadable
// page: if there is one, the row emits nothing and its flag is 0.
#pragma once

namespace kvt {

// Chunks combined at once.
constexpr u32 COMBINED = 16;

// The work of a block: a tile of rows of one KV head of a sequence.
struct Task {
    u32 seq, head, tile, row, rows;  // rows: existing rows of this tile
    u32 index;                       // index among all tasks
};

template <int TILE_ROWS>
KVT_DEVICE Task task_of(const AttentionParams& p, u32 seq, u32 head, u32 tile) {
    Task t;
    t.seq = seq;
    t.head = head;
    t.tile = tile;
    t.row = tile * TILE_ROWS;
    t.rows = min(static_cast<u32>(TILE_ROWS), p.q_tokens * p.group - t.row);
    t.index = (seq * p.kv_heads + head) * p.tiles + tile;
    return t;
}

// Writes four dims of a row's output, from its complete state.
template <class T>
KVT_DEVICE void write_output(const AttentionParams& p, const Task& t, u32 row, u32 dim, u32 dims, float m, float l, float4 o) {
    u32 mine = t.row + row;
    u32 token = mine / p.group;
    u32 head = t.head * p.group + mine % p.group;
    u32 start = query_start(p, t.seq);
    if (p.q_starts && static_cast<i32>(token) >= reinterpret_cast<const i32*>(p.q_starts)[t.seq + 1] - static_cast<i32>(start)) {
        return;
    }
    float scale = l > 0.0f ? rcp(l) : 0.0f;
    uint2 packed = make_uint2(pack2<T>(o.x * scale, o.y * scale), pack2<T>(o.z * scale, o.w * scale));
    *reinterpret_cast<uint2*>(p.out + 2 * (static_cast<u64>(start + token) * p.out_stride + head * dims + dim)) = packed;
    if (dim == 0 && p.lse) {
        constexpr float LN2 = 0.693147180559945f;
        float lse = l > 0.0f ? (m + lg2(l)) * LN2 : no_score();
        reinterpret_cast<float*>(p.lse)[static_cast<u64>(start + token) * (p.kv_heads * p.group) + head] = lse;
    }
}

KVT_DEVICE void write_emitted(const AttentionParams& p, const Task& t, bool emitted) {
    if (threadIdx.x == 0) {
        reinterpret_cast<u32*>(p.emitted)[t.index] = emitted ? 1 : 0;
    }
}

// Ends rows for which no page is read: zeros if they see no token, nothing if they cannot be computed.
template <class T, int D>
KVT_DEVICE void write_unread(const AttentionParams& p, const Task& t, bool empty) {
    if (empty) {
        for (u32 e = threadIdx.x; e < t.rows * (D / 4); e += blockDim.x) {
            write_output<T>(p, t, e / (D / 4), e % (D / 4) * 4, D, no_score(), 0.0f, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
        }
    }
    write_emitted(p, t, empty);
}

// Number of partials of a task: chunks_max chunks, then the groups of sixteen.
KVT_DEVICE u32 partials_of(const AttentionParams& p) { return p.chunks_max + (p.chunks_max + COMBINED - 1) / COMBINED; }
template <int TILE_ROWS>
KVT_DEVICE float2* partial_scalars(const AttentionParams& p, const Task& t, u32 slot) {
    return reinterpret_cast<float2*>(p.chunk_ml) + (static_cast<u64>(t.index) * partials_of(p) + slot) * TILE_ROWS;
}
template <int TILE_ROWS, int D>
KVT_DEVICE float4* partial_sums(const AttentionParams& p, const Task& t, u32 slot) {
    return reinterpret_cast<float4*>(p.chunk_o) + (static_cast<u64>(t.index) * partials_of(p) + slot) * (TILE_ROWS * D / 4);
}

// Passes on four dims of a chunk's row: to the output if it is the only chunk, else to its partial.
template <class T, int D, int TILE_ROWS>
KVT_DEVICE void give(const AttentionParams& p, const Task& t, u32 chunks, u32 slot, u32 row, u32 quad, float m, float l, float4 o) {
    if (chunks == 1) {
        write_output<T>(p, t, row, quad * 4, D, m, l, o);
        return;
    }
    partial_sums<TILE_ROWS, D>(p, t, slot)[row * (D / 4) + quad] = o;
    if (quad == 0) {
        partial_scalars<TILE_ROWS>(p, t, slot)[row] = make_float2(m, l);
    }
}

// Combines partials [first, first + count) against their common maximum, in order, into the output or into partial `to`.
template <class T, int D, int TILE_ROWS>
KVT_DEVICE void combine(const AttentionParams& p, const Task& t, u32 first, u32 count, bool last, u32 to) {
    const float2* ml = partial_scalars<TILE_ROWS>(p, t, first);
    const float4* sums = partial_sums<TILE_ROWS, D>(p, t, first);
    for (u32 e = threadIdx.x; e < t.rows * (D / 4); e += blockDim.x) {
        const u32 row = e / (D / 4), quad = e % (D / 4);
        float m = no_score();
        for (u32 i = 0; i < count; i++) {
            m = fmaxf(m, ml[i * TILE_ROWS + row].x);
        }
        const float base = base_of(m);
        float l = 0.0f;
        float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
        for (u32 i = 0; i < count; i++) {
            float2 part = ml[i * TILE_ROWS + row];
            float4 sum = sums[static_cast<u64>(i) * (TILE_ROWS * D / 4) + e];
            float w = ex2(part.x - base);
            l = fmaf(part.y, w, l);
            o = make_float4(fmaf(sum.x, w, o.x), fmaf(sum.y, w, o.y), fmaf(sum.z, w, o.z), fmaf(sum.w, w, o.w));
        }
        give<T, D, TILE_ROWS>(p, t, last ? 1 : 2, to, row, quad, m, l, o);
    }
}

// Takes a ticket after this block's stores. Returns, for all threads, how many tickets were taken (lower half) and how many of
// those had missing pages (upper half). Stores of all blocks with earlier tickets are visible then: the barrier orders this block's
// stores before the first fence, and the second fence is before this block's reads.
KVT_DEVICE u32 take_ticket(u32* ticket, u32 members, bool missing) {
    KVT_SHARED(u32, taken, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 add = missing ? 0x10001u : 1u;
        __threadfence();
        const u32 count = atomicAdd(ticket, add) + add;
        __threadfence();
        if ((count & 0xffff) == members) {
            atomicExch(ticket, 0u);
        }
        taken[0] = count;
    }
    __syncthreads();
    return taken[0];
}

// Called after a block has passed on chunk `slot` of `chunks` (or could not: `missing`). The last block finishes the row.
template <class T, int D, int TILE_ROWS>
KVT_DEVICE void conclude(const AttentionParams& p, const Task& t, u32 chunks, u32 slot, bool missing) {
    if (chunks == 1) {
        write_emitted(p, t, !missing);
        return;
    }
    const u32 groups = (chunks + COMBINED - 1) / COMBINED;
    u32* tickets = reinterpret_cast<u32*>(p.tickets) + static_cast<u64>(t.index) * (partials_of(p) - p.chunks_max + 1);
    // First the group of sixteen that contains this chunk, then all groups.
    u32 group = slot / COMBINED;
    u32 first = group * COMBINED, members = min(COMBINED, chunks - first);
    u32* ticket = tickets + 1 + group;
    bool last = groups == 1;
#pragma unroll 1
    while (true) {
        const u32 count = take_ticket(ticket, members, missing);
        if ((count & 0xffff) != members) {
            return;
        }
        missing = count >> 16 != 0;
        if (!missing) {
            combine<T, D, TILE_ROWS>(p, t, first, members, last, p.chunks_max + group);
        }
        if (last) {
            break;
        }
        first = p.chunks_max;
        members = groups;
        ticket = tickets;
        last = true;
    }
    write_emitted(p, t, !missing);
}

}  // namespace kvt
