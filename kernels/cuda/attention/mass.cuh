// Compute a page's share of the attention from the (m, l) that attention leaves for each page and row: the sum over rows of exp2(m
// - LSE) * l, divided by the number of rows. Each block computes the shares of 64 pages. A sequence's last block finds the largest
// shares by their bits (a share is not negative, so its bits have the same order as its value), 8 bits at a time, and writes them
// in the format of kvtide_wire::score.
#pragma once

namespace kvt {

// kvtide_wire::score: maximum entries, and words before them.
constexpr u32 TOP_MAX = 36;
constexpr u32 HEAD_WORDS = 3;
constexpr u32 MASS_THREADS = 256;
constexpr u32 MASS_PAGES = 64;
// Written instead of words for a sequence without emitted attention; no valid first word has this value.
constexpr u64 NO_SCORES = ~static_cast<u64>(0);

// Returns the natural logarithm of a share as binary16, at most 0.
KVT_DEVICE u64 log_mass(float share) {
    constexpr float LN2 = 0.693147180559945f;
    return from_f32<f16>(fminf(lg2(share) * LN2, 0.0f)).bits;
}

KVT_DEVICE float share_of(const AttentionMassParams& p, u32 seq, u32 page, const Span& all) {
    const AttentionParams& a = p.attention;
    const u32 heads = a.kv_heads * a.group;
    const u32 rows = a.q_tokens * a.group;
    const u32 count = static_cast<u32>(all.tokens) * a.group;  // existing rows of a KV head
    const u32 start = query_start(a, seq);
    const float2* ml = reinterpret_cast<const float2*>(a.page_ml) + (static_cast<u64>(seq) * a.pages_max + page) * a.kv_heads * rows;
    const float* lse = reinterpret_cast<const float*>(a.lse);
    constexpr float LOG2E = 1.44269504088896f;
    const i32 begin = static_cast<i32>(page * a.page_tokens), end = begin + static_cast<i32>(a.page_tokens);
    float sum = 0.0f;
    for (u32 i = kvt_lane(); i < count * a.kv_heads; i += WARP) {
        const u32 head = i / count, row = i % count;
        const i32 limit = limit_of(all, static_cast<i32>(row / a.group));
        if (begin < limit && end > first_of(a, limit)) {  // otherwise it was not written
            float2 part = ml[head * rows + row];
            float whole = lse[static_cast<u64>(start + row / a.group) * heads + head * a.group + row % a.group] * LOG2E;
            sum += part.y > 0.0f ? ex2(part.x - whole) * part.y : 0.0f;
        }
    }
    return warp_sum(sum) / static_cast<float>(count * a.kv_heads);
}

// Returns a sum over the block in a fixed order.
KVT_DEVICE float block_sum(float v) {
    KVT_SHARED(float, sums, MASS_THREADS / WARP);
    v = warp_sum(v);
    __syncthreads();
    if (kvt_lane() == 0) {
        sums[kvt_warp()] = v;
    }
    __syncthreads();
    float all = 0.0f;
    for (u32 i = 0; i < MASS_THREADS / WARP; i++) {
        all += sums[i];
    }
    return all;
}

// Returns the `want`-th largest of `bits`, without zeros, and the number of larger ones; called by all threads of the block. At
// least `want` bits are not zero.
KVT_DEVICE u32 kth_largest(const u32* bits, u32 count, u32 want, u32& larger) {
    KVT_SHARED(u32, bins, 256);
    KVT_SHARED(u32, chosen, 2);
    u32 prefix = 0;
    larger = 0;
    for (i32 shift = 24; shift >= 0; shift -= 8) {
        bins[threadIdx.x] = 0;
        __syncthreads();
        for (u32 i = threadIdx.x; i < count; i += MASS_THREADS) {
            const u32 b = bits[i];
            if (b != 0 && (shift == 24 || b >> (shift + 8) == prefix)) {
                atomicAdd(&bins[b >> shift & 0xff], 1u);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 above = larger, bin = 255;
            while (above + bins[bin] < want) {
                above += bins[bin];
                bin--;
            }
            chosen[0] = bin;
            chosen[1] = above;
        }
        __syncthreads();
        prefix = prefix << 8 | chosen[0];
        larger = chosen[1];
        __syncthreads();
    }
    return prefix;
}

// Writes the entry of a sequence from the shares of its pages [first, first + count).
KVT_DEVICE void write_scores(const AttentionMassParams& p, u32 seq, const float* shares, u32 first, u32 count) {
    KVT_SHARED(u32, found, 1);
    KVT_SHARED(u32, found_bits, TOP_MAX);
    KVT_SHARED(u32, found_page, TOP_MAX);
    const u32* bits = reinterpret_cast<const u32*>(shares);
    u32 nonzero = 0;
    for (u32 i = threadIdx.x; i < count; i += MASS_THREADS) {
        nonzero += bits[i] != 0 ? 1 : 0;
    }
    const u32 some = static_cast<u32>(block_sum(static_cast<float>(nonzero)));  // exact below 2^24
    const u32 top = min(min(some, p.top), TOP_MAX);
    u32 larger = 0;
    const u32 least = top != 0 ? kth_largest(bits, count, top, larger) : 0xffffffffu;
    if (threadIdx.x == 0) {
        found[0] = 0;
    }
    __syncthreads();
    // All shares above the smallest one, in any order; of those equal to it the first ones.
    float rest = 0.0f;
    for (u32 i = threadIdx.x; i < count; i += MASS_THREADS) {
        if (bits[i] > least) {
            const u32 at = atomicAdd(&found[0], 1u);
            found_bits[at] = bits[i];
            found_page[at] = first + i;
        } else if (bits[i] < least) {
            rest += shares[i];
        }
    }
    rest = block_sum(rest);
    if (top != 0 && kvt_warp() == 0) {
        u32 taken = larger;
        u32 equal = 0;
        for (u32 i = 0; i < count; i += WARP) {
            const u32 mine = i + kvt_lane();
            const bool is = mine < count && bits[mine] == least;
            const u32 who = __ballot_sync(FULL, is);
            const u32 before = __popc(who & ((1u << kvt_lane()) - 1));
            if (is && taken + before < top) {
                found_bits[taken + before] = least;
                found_page[taken + before] = first + mine;
            }
            taken = min(taken + __popc(who), top);
            equal += __popc(who);
        }
        rest += static_cast<float>(equal - (top - larger)) * __uint_as_float(least);
    }
    __syncthreads();
    u64* words = reinterpret_cast<u64*>(p.out) + static_cast<u64>(seq) * (HEAD_WORDS + TOP_MAX);
    if (threadIdx.x < TOP_MAX) {
        u64 word = 0;
        u32 rank = threadIdx.x;
        if (threadIdx.x < top) {
            const u32 mine = found_bits[threadIdx.x], page = found_page[threadIdx.x];
            rank = 0;
            for (u32 i = 0; i < top; i++) {
                rank += found_bits[i] > mine || (found_bits[i] == mine && found_page[i] < page) ? 1 : 0;
            }
            word = static_cast<u64>(page) | log_mass(__uint_as_float(mine)) << 32;
        }
        words[HEAD_WORDS + rank] = word;
    }
    if (threadIdx.x == 0) {
        words[0] = static_cast<u64>(seq) | static_cast<u64>(p.plane) << 32 | static_cast<u64>(top) << 48;
        words[1] = p.step;
        words[2] = log_mass(rest);
    }
}

KVT_DEVICE void mass_of_pages(const AttentionMassParams& p) {
    const AttentionParams& a = p.attention;
    const u32 seq = blockIdx.y;
    const u32 rows = a.q_tokens * a.group;
    const Span all = span_of(a, seq, 0, rows);
    const u32 first = static_cast<u32>(all.first) / a.page_tokens;
    const u32 end = all.limit > all.first ? (static_cast<u32>(all.limit) - 1) / a.page_tokens + 1 : first;
    const u32 blocks = max((end - first + MASS_PAGES - 1) / MASS_PAGES, 1u);
    if (blockIdx.x >= blocks) {
        return;
    }
    u64* words = reinterpret_cast<u64*>(p.out) + static_cast<u64>(seq) * (HEAD_WORDS + TOP_MAX);

    // Every warp reads all flags and gets the same result.
    const u32* emitted = reinterpret_cast<const u32*>(a.emitted) + static_cast<u64>(seq) * a.kv_heads * a.tiles;
    bool silent = lane_failed(a) || too_long(a, all) || blocks > gridDim.x;
    for (u32 i = kvt_lane(); i < a.kv_heads * a.tiles; i += WARP) {
        silent = silent || emitted[i] == 0;
    }
    if (__any_sync(FULL, silent)) {
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            words[0] = NO_SCORES;
        }
        return;
    }

    float* shares = reinterpret_cast<float*>(p.shares) + static_cast<u64>(seq) * a.pages_max;
    for (u32 i = kvt_warp(); i < MASS_PAGES; i += MASS_THREADS / WARP) {
        const u32 page = first + blockIdx.x * MASS_PAGES + i;
        if (page < end) {
            float share = share_of(p, seq, page, all);
            if (kvt_lane() == 0) {
                shares[page] = share;
            }
        }
    }
    const u32 count = take_ticket(reinterpret_cast<u32*>(p.tickets) + seq, blocks, false);
    if ((count & 0xffff) == blocks) {
        write_scores(p, seq, shares + first, first, end - first);
    }
}

}  // namespace kvt
