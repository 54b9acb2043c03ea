// Append new tokens' keys and values to their pages through a lane's table: decode (one row per sequence) and prefill (ragged
// rows).
//
// The kernel moves bytes, so it serves every type, head dim, group and source layout. It loads the first vectors before the page
// addresses are known, so the latency of the chain length, block id, table entry overlaps with these loads.
#include "pages.cuh"

namespace {

constexpr u32 ROWS_MAX = 64;
constexpr u32 FLIGHT = 4;

// Returns the target of row `row`: the address of its page and its token there; 0 if the row has no target.
KVT_DEVICE u64 page_of(const AppendParams& p, u32 row, u32* token) {
    u32 seq = row;
    u32 behind = 1;
    if (p.starts != 0) {
        // The last sequence that starts at or before the row. Sequences between it and the next start are empty.
        const i32* starts = at<const i32>(p.starts);
        u32 low = 0;
        u32 high = p.seqs;
        while (high - low > 1) {
            const u32 middle = (low + high) / 2;
            if (starts[middle] <= static_cast<i32>(row)) {
                low = middle;
            } else {
                high = middle;
            }
        }
        seq = low;
        const i32 end = starts[seq + 1];
        if (starts[seq] > static_cast<i32>(row) || end <= static_cast<i32>(row)) {
            return 0;
        }
        behind = static_cast<u32>(end) - row;
    }
    const u32 length = tokens_of(at<const i32>(p.lengths)[seq]);
    if (length < behind) {
        return 0;
    }
    const u32 position = length - behind;
    const u32 index = position / p.page_tokens;
    *token = position % p.page_tokens;
    u32 entry = 0;
    if (index < p.max_blocks) {
        const i32 block = at<const i32>(p.block_ids)[static_cast<u64>(seq) * p.max_blocks + index];
        entry = entry_of(p.table, block, p.blocks, p.planes, p.plane);
    }
    const u32 frame = entry - 1 - p.first_frame;
    if (entry == 0 || frame >= p.frames) {
        if (p.faults != 0) {
            atomicAdd(at<u32>(p.faults), 1u);
        }
        return 0;
    }
    return p.pages + frame * p.stride;
}

KVT_DEVICE void append_rows(const AppendParams& p) {
    KVT_SHARED(u64, pages, ROWS_MAX);
    KVT_SHARED(u32, tokens, ROWS_MAX);
    const u32 tid = kvt_tid();
    const u32 first = kvt_bid() * p.rows_per_cta;
    const u32 rows = min(p.rows_per_cta, p.rows - first);
    const u32 vectors0 = p.parts[0].heads * (p.parts[0].row_bytes / 16);
    const u32 vectors = vectors0 + p.parts[1].heads * (p.parts[1].row_bytes / 16);
    const u32 total = rows * vectors;
    const u32 sweep = kvt_bdim() * FLIGHT;
    for (u32 base = 0; base < total; base += sweep) {
        uint4 flight[FLIGHT];
        u32 offsets[FLIGHT];
        u32 owners[FLIGHT];
#pragma unroll
        for (u32 i = 0; i < FLIGHT; ++i) {
            const u32 flat = base + i * kvt_bdim() + tid;
            owners[i] = flat / vectors;
            u32 vector = flat % vectors;
            const bool second = vector >= vectors0;
            vector -= second ? vectors0 : 0;
            const u32 row_bytes = second ? p.parts[1].row_bytes : p.parts[0].row_bytes;
            const u32 head = vector / (row_bytes / 16);
            const u32 inside = vector % (row_bytes / 16) * 16;
            offsets[i] = (second ? p.parts[1].page_offset : p.parts[0].page_offset) + inside +
                         head * (second ? p.parts[1].page_head_stride : p.parts[0].page_head_stride);
            if (flat < total) {
                const u64 source = second ? p.parts[1].source : p.parts[0].source;
                const u64 token_stride = second ? p.parts[1].token_stride : p.parts[0].token_stride;
                const u64 head_stride = second ? p.parts[1].head_stride : p.parts[0].head_stride;
                flight[i] = ld16_stream(at<const uint4>(source + (first + owners[i]) * token_stride + head * head_stride + inside));
            }
        }
        if (base == 0) {
            if (tid < rows) {
                u32 token = 0;
                pages[tid] = failed(p.status) ? 0 : page_of(p, first + tid, &token);
                tokens[tid] = token;
            }
            __syncthreads();
        }
#pragma unroll
        for (u32 i = 0; i < FLIGHT; ++i) {
            const u32 flat = base + i * kvt_bdim() + tid;
            if (flat >= total || pages[owners[i]] == 0) {
                continue;
            }
            const bool second = flat % vectors >= vectors0;
            const u32 token_stride = second ? p.parts[1].page_token_stride : p.parts[0].page_token_stride;
            st16(at<uint4>(pages[owners[i]] + tokens[owners[i]] * token_stride + offsets[i]), flight[i]);
        }
    }
}

}  // namespace

KVT_KERNEL(append, AppendParams, 256, append_rows)
