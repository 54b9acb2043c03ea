// Copies by the multiprocessors, for fragments that are too small for the copy engines: lists of fragments, and blocks between
// layouts. Either side may be registered host memory. The caller chooses the grid, because these kernels run beside a model.
//
// The unit of work is a warp and 4 KiB: 8 vectors per lane are loaded before the first is stored.
#include "pages.cuh"

namespace {

constexpr u32 FLIGHT = 8;
constexpr u32 PIECE = FLIGHT * WARP * 16;

// Copies up to PIECE bytes by one warp in units of T. The size of T divides both addresses and the length.
template <class T>
KVT_DEVICE void copy_words(u64 from, u64 to, u32 bytes) {
    for (u32 i = kvt_lane() * sizeof(T); i < bytes; i += WARP * sizeof(T)) {
        *at<T>(to + i) = *at<const T>(from + i);
    }
}

KVT_DEVICE void copy_vectors(u64 from, u64 to, u32 bytes) {
    uint4 flight[FLIGHT];
    const u32 lane = kvt_lane() * 16;
#pragma unroll
    for (u32 i = 0; i < FLIGHT; ++i) {
        if (i * WARP * 16 + lane < bytes) {
            flight[i] = ld16_stream(at<const uint4>(from + i * WARP * 16 + lane));
        }
    }
#pragma unroll
    for (u32 i = 0; i < FLIGHT; ++i) {
        if (i * WARP * 16 + lane < bytes) {
            st16_stream(at<uint4>(to + i * WARP * 16 + lane), flight[i]);
        }
    }
}

KVT_DEVICE void copy_fragments(const CopyListParams& p) {
    const u32 warps = kvt_bdim() / WARP;
    const u32 step = kvt_gdim() * warps;
    const u32 total = p.count * p.pieces;
    // Neighbouring pieces go to neighbouring blocks, so that even few fragments occupy every multiprocessor.
    u32 item = kvt_warp() * kvt_gdim() + kvt_bid();
    if (item >= total) {
        return;
    }
    const CopyFragment* list = at<const CopyFragment>(p.fragments);
    CopyFragment next = list[item / p.pieces];
    while (item < total) {
        const CopyFragment fragment = next;
        const u32 offset = item % p.pieces * PIECE;
        item += step;
        if (item < total) {
            next = list[item / p.pieces];  // crosses the bus while this piece is copied
        }
        if (offset >= fragment.bytes) {
            continue;
        }
        const u64 from = fragment.from + offset;
        const u64 to = fragment.to + offset;
        const u32 bytes = min(PIECE, fragment.bytes - offset);
        const u32 odd = static_cast<u32>(from | to | bytes);
        if (odd % 16 == 0) {
            copy_vectors(from, to, bytes);
        } else if (odd % 4 == 0) {
            copy_words<u32>(from, to, bytes);
        } else {
            copy_words<u8>(from, to, bytes);
        }
    }
}

// Returns the position of vector `vector` relative to its part, on both sides.
KVT_DEVICE void place(const GatherParams& p, u32 vector, u64* from, u64* to) {
    const u32 row_vectors = p.row_bytes / 16;
    const u32 row = vector / row_vectors;
    const u32 inside = vector % row_vectors * 16;
    const u32 inner = p.heads_inner != 0 ? p.heads : p.tokens;
    const u32 slow = row / inner;
    const u32 fast = row % inner;
    const u32 head = p.heads_inner != 0 ? fast : slow;
    const u32 token = p.heads_inner != 0 ? slow : fast;
    *from = head * p.from.head_stride + token * p.from.token_stride + inside;
    *to = head * p.to.head_stride + token * p.to.token_stride + inside;
}

KVT_DEVICE void copy_blocks(const GatherParams& p) {
    if (failed(p.status)) {
        return;
    }
    const u32 vectors = p.heads * p.tokens * (p.row_bytes / 16);  // vectors of a part
    const u32 pieces = (vectors + FLIGHT * WARP - 1) / (FLIGHT * WARP);
    const u32 parts = p.layers * p.parts;
    const u64 total = static_cast<u64>(p.count) * parts * pieces;
    const u64 step = static_cast<u64>(kvt_gdim()) * (kvt_bdim() / WARP);
    for (u64 unit = static_cast<u64>(kvt_warp()) * kvt_gdim() + kvt_bid(); unit < total; unit += step) {
        const u32 piece = static_cast<u32>(unit % pieces);
        const u32 part = static_cast<u32>(unit / pieces % parts);
        const GatherItem item = at<const GatherItem>(p.items)[unit / pieces / parts];
        const u64 from = base_of(p.from, part, item.from);
        const u64 to = base_of(p.to, part, item.to);
        const u32 first = piece * FLIGHT * WARP + kvt_lane();
        uint4 flight[FLIGHT];
        u64 places[FLIGHT];
#pragma unroll
        for (u32 i = 0; i < FLIGHT; ++i) {
            if (first + i * WARP < vectors) {
                u64 source;
                place(p, first + i * WARP, &source, &places[i]);
                flight[i] = ld16_stream(at<const uint4>(from + source));
            }
        }
#pragma unroll
        for (u32 i = 0; i < FLIGHT; ++i) {
            if (first + i * WARP < vectors) {
                st16_stream(at<uint4>(to + places[i]), flight[i]);
            }
        }
    }
}

}  // namespace

KVT_KERNEL(copy_list, CopyListParams, 256, copy_fragments)
KVT_KERNEL(gather, GatherParams, 256, copy_blocks)
