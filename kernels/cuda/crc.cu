// CRC-32C of pages, for the integrity sample; equal to the CPU's.
//
// A CTA takes a segment of 64 KiB, thread t the vectors t, t + 256, … of 16 bytes. A thread's remainder treats the rest of each row
// (the 4080 bytes of the other threads) as zeros, which is linear: one table look-up per byte, in 16 tables of 256 words in shared
// memory, built from the 128 basis words of the parameters. At the end neighbours are joined in a tree (the left one moved over the
// right one's bytes), the excess 4080 bytes are removed by a power of 1/x, and each segment is moved over the bytes after it: the
// page's sum is the XOR of its segments' words. Zeros before a segment change nothing, so the first row is padded at its front.
#include "pages.cuh"

namespace {

constexpr u32 THREADS = 256;
constexpr u32 SEGMENT = 64 * 1024;
constexpr u32 POLYNOMIAL = 0x82f63b78u;  // Castagnoli's, reflected
constexpr u32 FLIGHT = 4;

// Returns a × b modulo the polynomial; bit 31 is x^0.
KVT_DEVICE u32 times(u32 a, u32 b) {
    u32 product = 0;
#pragma unroll 8
    for (int bit = 31; bit >= 0; --bit) {
        product ^= (a >> bit & 1u) != 0 ? b : 0u;
        b = b >> 1 ^ ((b & 1u) != 0 ? POLYNOMIAL : 0u);
    }
    return product;
}

// Returns `a` followed by `bytes` zero bytes.
KVT_DEVICE u32 moved(const CrcParams& p, u32 a, u32 bytes) {
    for (u32 i = 0; bytes != 0; ++i, bytes >>= 1) {
        if ((bytes & 1u) != 0) {
            a = times(a, p.bytes[i]);
        }
    }
    return a;
}

// Returns the remainder of 16 bytes and of the preceding remainder `before`, followed by 4080 zero bytes.
KVT_DEVICE u32 step(const u32* tables, u32 before, const uint4& v) {
    const u32 words[4] = {v.x ^ before, v.y, v.z, v.w};
    u32 sum = 0;
#pragma unroll
    for (u32 i = 0; i < 16; ++i) {
        sum ^= tables[i * 256 + (words[i / 4] >> (8 * (i % 4)) & 0xffu)];
    }
    return sum;
}

KVT_DEVICE void segments(const CrcParams& p) {
    KVT_SHARED(u32, tables, 16 * 256);
    KVT_SHARED(u32, warps, THREADS / WARP);
    const u32 tid = kvt_tid();
    const u32 index = kvt_bid() / p.segments;
    const u32 segment = kvt_bid() % p.segments;
    const CrcItem item = at<const CrcItem>(p.items)[index];
    const u64 skipped = static_cast<u64>(segment) * SEGMENT;
    // A page shorter than the launch's longest one leaves blocks without a segment; an empty page still has its first segment.
    const bool mine = skipped < item.bytes || segment == 0;
    const u64 left = mine ? item.bytes - skipped : 0;
    const u32 bytes = left < SEGMENT ? static_cast<u32>(left) : SEGMENT;
    const u64 start = item.address + skipped;

    for (u32 i = 0; mine && i < 16; ++i) {
        u32 sum = 0;
#pragma unroll
        for (u32 bit = 0; bit < 8; ++bit) {
            sum ^= (tid >> bit & 1u) != 0 ? p.bits[i * 8 + bit] : 0u;
        }
        tables[i * 256 + tid] = sum;
    }
    __syncthreads();

    const u32 vectors = bytes / 16;
    const u32 rows = (vectors + THREADS - 1) / THREADS;
    const u32 padding = rows * THREADS - vectors;
    u32 sum = 0;
    for (u32 row = 0; row < rows; row += FLIGHT) {
        uint4 flight[FLIGHT];
#pragma unroll
        for (u32 i = 0; i < FLIGHT; ++i) {
            const u32 slot = (row + i) * THREADS + tid;
            flight[i] = make_uint4(0, 0, 0, 0);
            if (row + i < rows && slot >= padding) {
                flight[i] = ld16_stream(at<const uint4>(start + static_cast<u64>(slot - padding) * 16));
            }
        }
#pragma unroll
        for (u32 i = 0; i < FLIGHT; ++i) {
            if (row + i < rows) {
                sum = step(tables, sum, flight[i]);
            }
        }
    }

    // Pairs, fours, …: the left one of each pair is moved over the right one's vectors. One warp does the upper half of the tree.
#pragma unroll
    for (u32 i = 0; i < 5; ++i) {
        const u32 other = __shfl_xor_sync(FULL, sum, 1 << i);
        const bool right = (kvt_lane() >> i & 1u) != 0;
        sum = times(right ? other : sum, p.lanes[i]) ^ (right ? sum : other);
    }
    if (kvt_lane() == 0) {
        warps[kvt_warp()] = sum;
    }
    __syncthreads();
    if (tid != 0) {
        return;
    }
    if (!mine) {
        at<u32>(p.sums)[kvt_bid()] = 0;
        return;
    }
    sum = 0;
    for (u32 i = 0; i < THREADS / WARP; ++i) {
        sum = times(sum, p.lanes[5]) ^ warps[i];
    }
    sum = times(sum, p.back);
    for (u32 i = vectors * 16; i < bytes; ++i) {
        sum ^= *at<const u8>(start + i);
        for (u32 bit = 0; bit < 8; ++bit) {
            sum = sum >> 1 ^ ((sum & 1u) != 0 ? POLYNOMIAL : 0u);
        }
    }
    sum = moved(p, sum, static_cast<u32>(left - bytes));
    if (segment == 0) {
        // The standard start and end: all ones before the first byte, and inverted.
        sum ^= moved(p, 0xffffffffu, static_cast<u32>(item.bytes)) ^ 0xffffffffu;
    }
    at<u32>(p.sums)[kvt_bid()] = sum;
}

}  // namespace

KVT_KERNEL(crc32c, CrcParams, 256, segments)
