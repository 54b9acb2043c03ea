// Digests of sealed pages, bounds of a query's products from them, and the best pages (kvtide_wire::digest defines the layout and
// the guarantees of a digest).
//
// Building is exact: the same comparisons, in f64, in the same order as on the CPU, so the bits are equal. It happens once in a
// page's life. Scoring runs for every query, in f32, and raises results by more than its own rounding error, so that they are never
// below the true product.
#include "pages.cuh"

namespace {

constexpr u32 THREADS = 256;
constexpr u32 CHANNELS_MAX = 1024;
constexpr u32 TOKENS_MAX = 128;
constexpr double HALF_EPSILON = 1.1102230246251565e-16;  // 2^-53
constexpr u16 UNBOUNDED = 1;

// ---- Building ----

// Returns the smallest scale that reaches both ends in 127 steps, and the ends in steps, rounded outward. False: too large for a
// scale.
KVT_DEVICE bool quantize(float low, float high, u16* scale, i32* least, i32* most) {
    const double reach = static_cast<double>(fmaxf(fabsf(low), fabsf(high)));
    *scale = f16_up(f32_up(__ddiv_rn(reach, 127.0)));
    *least = 0;
    *most = 0;
    if (*scale == 0) {
        return true;
    }
    if (*scale == 0x7c00u) {
        return false;
    }
    const double step = static_cast<double>(to_f32(f16{*scale}));
    *least = static_cast<i32>(__ddiv_rn(static_cast<double>(low), step));
    while (__dmul_rn(static_cast<double>(*least), step) > static_cast<double>(low)) {
        *least -= 1;
    }
    *most = static_cast<i32>(__ddiv_rn(static_cast<double>(high), step));
    while (__dmul_rn(static_cast<double>(*most), step) < static_cast<double>(high)) {
        *most += 1;
    }
    return *least >= -128 && *most <= 127;
}

// Returns a number not below the square root: kvtide_wire::digest's, operation by operation.
KVT_DEVICE double sqrt_up_normal(double value) {
    double root = __longlong_as_double((__double_as_longlong(value) >> 1) + (1023ll << 51));
    for (int i = 0; i < 5; ++i) {
        root = __dmul_rn(__dadd_rn(root, __ddiv_rn(value, root)), 0.5);
    }
    const double next = __longlong_as_double(__double_as_longlong(value) + 1);
    while (__dmul_rn(root, root) < next) {
        root = __longlong_as_double(__double_as_longlong(root) + 1);
    }
    return root;
}
KVT_DEVICE double sqrt_up(double value) {
    constexpr double SCALE = 4503599627370496.0;  // 2^52
    if (value <= 0.0 || !(value < __longlong_as_double(0x7ff0000000000000ll))) {
        return value;
    }
    if (value < 2.2250738585072014e-308) {
        return __ddiv_rn(sqrt_up_normal(__dmul_rn(__dmul_rn(value, SCALE), SCALE)), SCALE);
    }
    return sqrt_up_normal(value);
}

KVT_DEVICE void put16(u64 address, u16 value) { *at<u16>(address) = value; }

template <class T>
KVT_DEVICE void build(const DigestBuildParams& p) {
    // Minimum and maximum of a channel as seen by each group of rows: groups × channels ≤ 8 × THREADS.
    KVT_SHARED(float, lows, 8 * THREADS);
    KVT_SHARED(float, highs, 8 * THREADS);
    KVT_SHARED(double, middles, CHANNELS_MAX);
    KVT_SHARED(double, distances, TOKENS_MAX);
    KVT_SHARED(u32, unbounded, 1);
    const u32 tid = kvt_tid();
    const u32 head = kvt_bid() % p.heads;
    const DigestItem item = at<const DigestItem>(p.items)[kvt_bid() / p.heads];
    const bool mine = item.block < p.blocks && item.tokens > 0 && item.tokens <= TOKENS_MAX && !failed(p.status);
    const u32 tokens = mine ? item.tokens : 0;
    const u64 keys = p.keys + item.page + head * p.head_stride;
    const u64 digest = p.digests + (static_cast<u64>(item.block) * p.heads + head) * (4 * p.channels + 4);
    if (tid == 0) {
        unbounded[0] = 0;
    }
    __syncthreads();

    const u32 columns = p.channels / 8;
    const u32 groups = THREADS / columns;
    const u32 column = tid % columns;
    const u32 group = tid / columns;
    if (group < groups) {
        float low[8];
        float high[8];
        bool finite = true;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            low[i] = __uint_as_float(0x7f800000u);
            high[i] = __uint_as_float(0xff800000u);
        }
#pragma unroll 4
        for (u32 token = group; token < tokens; token += groups) {
            float key[8];
            unpack8<T>(ld16(at<const uint4>(keys + token * p.token_stride + column * 16)), key);
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                low[i] = fminf(low[i], key[i]);
                high[i] = fmaxf(high[i], key[i]);
                finite = finite && is_finite(key[i]);
            }
        }
        if (!finite) {
            atomicOr(unbounded, 1u);
        }
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            lows[group * p.channels + column * 8 + i] = low[i];
            highs[group * p.channels + column * 8 + i] = high[i];
        }
    }
    __syncthreads();
    for (u32 channel = tid; mine && channel < p.channels; channel += THREADS) {
        float low = lows[channel];
        float high = highs[channel];
        for (u32 i = 1; i < groups; ++i) {
            low = fminf(low, lows[i * p.channels + channel]);
            high = fmaxf(high, highs[i * p.channels + channel]);
        }
        u16 scale = 0;
        i32 least = 0;
        i32 most = 0;
        // Ends that are not finite must not reach the loops of `quantize`.
        if (!is_finite(low) || !is_finite(high) || !quantize(low, high, &scale, &least, &most)) {
            atomicOr(unbounded, 1u);
            scale = 0;
        }
        const double step = static_cast<double>(to_f32(f16{scale}));
        const double sum = __dadd_rn(__dmul_rn(static_cast<double>(least), step), __dmul_rn(static_cast<double>(most), step));
        middles[channel] = __dmul_rn(sum, 0.5);
        *at<u8>(digest + channel) = static_cast<u8>(least);
        *at<u8>(digest + p.channels + channel) = static_cast<u8>(most);
        put16(digest + 2 * p.channels + 2 * channel, scale);
    }
    __syncthreads();
    const bool bounded = unbounded[0] == 0;
    if (mine && !bounded) {
        for (u32 channel = tid; channel < p.channels; channel += THREADS) {
            *at<u8>(digest + channel) = 0;
            *at<u8>(digest + p.channels + channel) = 0;
            put16(digest + 2 * p.channels + 2 * channel, 0);
        }
    }
    // Squared distance of each key from the centre, added up in the order of the channels, as on the CPU.
    for (u32 token = tid; token < tokens; token += THREADS) {
        double sum = 0.0;
        for (u32 i = 0; bounded && i < columns; ++i) {
            float key[8];
            unpack8<T>(ld16(at<const uint4>(keys + token * p.token_stride + i * 16)), key);
#pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                const double distance = __dsub_rn(static_cast<double>(key[j]), middles[i * 8 + j]);
                sum = __dadd_rn(sum, __dmul_rn(distance, distance));
            }
        }
        distances[token] = sum;
    }
    __syncthreads();
    if (tid == 0 && mine) {
        double most = 0.0;
        for (u32 token = 0; token < tokens; ++token) {
            most = distances[token] > most ? distances[token] : most;
        }
        const double terms = static_cast<double>(4 * p.channels + 8);
        const double raised = __dadd_rn(most, __dmul_rn(__dmul_rn(most, terms), HALF_EPSILON));
        put16(digest + 4 * p.channels, bounded ? f16_up(f32_up(sqrt_up(raised))) : 0);
        put16(digest + 4 * p.channels + 2, bounded ? 0 : UNBOUNDED);
    }
}

// ---- Scoring ----

constexpr u32 ROWS = 4;         // query heads that a CTA holds at a time
constexpr u32 SCORE_CHANNELS = 576;
constexpr u32 LANES = 8;        // threads per digest: they read 32 neighbouring bytes at a time
constexpr float FEW = 2.384185791015625e-7f;  // 2^-22

KVT_DEVICE float infinity() { return __uint_as_float(0x7f800000u); }

// Converts four signed bytes to f32.
KVT_DEVICE void steps4(u32 word, float (&x)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        x[i] = static_cast<float>(static_cast<i32>(word << (24 - 8 * i)) >> 24);
    }
}

KVT_DEVICE float lanes_sum(float v) {
#pragma unroll
    for (u32 i = 1; i < LANES; i <<= 1) {
        v += __shfl_xor_sync(FULL, v, i);
    }
    return v;
}

// Returns a number not below the square root and at most 2^-13 of it above. The logarithm is off by at most 2^-22 of itself, that
// is 2^-15. Tiny numbers, which the unit treats as zero, count as 2^-100.
KVT_DEVICE float root_up(float x) {
    constexpr float TINY = 7.888609052210118e-31f;
    return ex2(0.5f * lg2(x < TINY ? TINY : x)) * (1.0f + 6.103515625e-5f);
}

// A block is (32 pages of a sequence) × (KV head) × (up to ROWS of its query heads).
template <class T>
KVT_DEVICE void scores(const DigestScoresParams& p) {
    KVT_SHARED(float, queries, ROWS * SCORE_CHANNELS);
    KVT_SHARED(float, norms, ROWS);
    const u32 tid = kvt_tid();
    const u32 tiles = (p.group + ROWS - 1) / ROWS;
    const u32 chunks = (p.max_blocks + THREADS / LANES - 1) / (THREADS / LANES);
    const u32 chunk = kvt_bid() % chunks;
    const u32 tile = kvt_bid() / chunks % tiles;
    const u32 kv_head = kvt_bid() / chunks / tiles % p.kv_heads;
    const u32 seq = kvt_bid() / chunks / tiles / p.kv_heads;
    const u32 rows = min(ROWS, p.group - tile * ROWS);
    const u32 head = kv_head * p.group + tile * ROWS;

    for (u32 i = tid; i < rows * p.channels / 4; i += THREADS) {
        const u32 row = i / (p.channels / 4);
        const u32 channel = i % (p.channels / 4) * 4;
        const uint2 pair = *at<const uint2>(p.queries + seq * p.seq_stride + (head + row) * p.head_stride + channel * 2);
        const float2 a = unpack2<T>(pair.x);
        const float2 b = unpack2<T>(pair.y);
        float* query = queries + row * p.channels + channel;
        query[0] = a.x;
        query[1] = a.y;
        query[2] = b.x;
        query[3] = b.y;
    }
    __syncthreads();
    if (kvt_warp() < rows) {
        // |q|, raised above its rounding error; infinite or NaN if the query is.
        float sum = 0.0f;
        for (u32 channel = kvt_lane(); channel < p.channels; channel += WARP) {
            const float q = queries[kvt_warp() * p.channels + channel];
            sum += q * q;
        }
        sum = warp_sum(sum);
        if (kvt_lane() == 0) {
            norms[kvt_warp()] = root_up(sum * (1.0f + static_cast<float>(p.channels + 8) * FEW));
        }
    }
    __syncthreads();

    const u32 index = chunk * (THREADS / LANES) + tid / LANES;
    const bool column = index < p.max_blocks;
    const u64 begin = static_cast<u64>(index) * p.page_tokens;
    const u32 length = tokens_of(at<const i32>(p.lengths)[seq]);
    const u32 sealed = p.sealed == 0 ? length : min(length, tokens_of(at<const i32>(p.sealed)[seq]));
    const u32 first = p.starts == 0 ? 0 : tokens_of(at<const i32>(p.starts)[seq]) / p.page_tokens;
    const bool inside = column && begin < length && index >= first;
    const i32 block = inside ? at<const i32>(p.block_ids)[static_cast<u64>(seq) * p.max_blocks + index] : -1;
    const bool known = block >= 0 && static_cast<u32>(block) < p.blocks && begin + p.page_tokens <= sealed;
    const u64 digest =
        p.digests + (static_cast<u64>(known ? block : 0) * p.kv_heads + kv_head) * (4 * p.channels + 4);

    float box[ROWS];
    float centre[ROWS];
    float size[ROWS];
#pragma unroll
    for (u32 row = 0; row < ROWS; ++row) {
        box[row] = centre[row] = size[row] = 0.0f;
    }
    const u32 words = p.channels / 4;
    for (u32 word = tid % LANES; known && word < words; word += LANES) {
        float low[4];
        float high[4];
        steps4(at<const u32>(digest)[word], low);
        steps4(at<const u32>(digest)[words + word], high);
        const u32 scales[2] = {at<const u32>(digest)[2 * words + 2 * word], at<const u32>(digest)[2 * words + 2 * word + 1]};
        const float2 ab = unpack2<f16>(scales[0]);
        const float2 cd = unpack2<f16>(scales[1]);
        const float scale[4] = {ab.x, ab.y, cd.x, cd.y};
        float middle[4];
        float reach[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            // All exact: 8 or 9 bits of steps times 11 bits of the scale.
            middle[i] = (low[i] + high[i]) * 0.5f * scale[i];
            reach[i] = fmaxf(fabsf(low[i]), fabsf(high[i])) * scale[i];
            low[i] *= scale[i];
            high[i] *= scale[i];
        }
#pragma unroll
        for (u32 row = 0; row < ROWS; ++row) {
            if (row < rows) {
                const float4 q = *reinterpret_cast<const float4*>(queries + row * p.channels + word * 4);
                const float q4[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    box[row] += fmaxf(q4[i] * low[i], q4[i] * high[i]);
                    centre[row] = fmaf(q4[i], middle[i], centre[row]);
                    size[row] = fmaf(fabsf(q4[i]), reach[i], size[row]);
                }
            }
        }
    }
    const u32 tail = known ? at<const u32>(digest)[p.channels] : 0;
    const float radius = to_f32(f16{static_cast<u16>(tail)});
    // Each sum is off by less than (channels + 8) × 2^-24 of the sum of its magnitudes, and so is the sum of magnitudes.
    const float error = static_cast<float>(p.channels + 8) * FEW;
    const bool stopped = failed(p.status);
#pragma unroll
    for (u32 row = 0; row < ROWS; ++row) {
        const float magnitude = lanes_sum(size[row]);
        const float boxed = lanes_sum(box[row]) + magnitude * error;
        const float middle = lanes_sum(centre[row]);
        if (row < rows && tid % LANES == row && column && !stopped) {
            const float far = norms[row] * radius * (1.0f + FEW);
            const float ball = middle + far + (magnitude + far) * error;
            float least = ball < boxed ? ball : boxed;
            // Not below the product after scaling either; 2^-126 covers results below the smallest normal number.
            least = least * p.scale;
            least = least + fabsf(least) * FEW + 1.1754943508222875e-38f;
            const bool bounded = known && tail >> 16 == 0 && is_finite(norms[row]) && least == least;
            const u64 at_row = static_cast<u64>(seq) * p.kv_heads * p.group + head + row;
            at<float>(p.bounds)[at_row * p.max_blocks + index] = !inside ? -infinity() : bounded ? least : infinity();
        }
    }
}

// ---- Choosing ----

constexpr u32 SELECT = 512;
constexpr u32 HEADS_MAX = 256;
constexpr float LOG2_E = 1.4426950408889634f;

// Estimates as integers in the same order; 0: outside the sequence.
KVT_DEVICE u32 key_of(float estimate) { return estimate < 0.0f ? 0u : __float_as_uint(estimate) + 1u; }

// Finds the bin, from the top, that contains the `wanted`-th key, and how many of its keys are wanted; called by one warp, 8 bins
// per lane.
KVT_DEVICE void find_bin(const u32* bins, u32 wanted, u32* found) {
    const u32 top = 255 - kvt_lane() * 8;
    u32 mine = 0;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        mine += bins[top - i];
    }
    u32 through = mine;
#pragma unroll
    for (u32 step = 1; step < WARP; step <<= 1) {
        const u32 other = __shfl_up_sync(FULL, through, step);
        through += kvt_lane() >= step ? other : 0;
    }
    u32 before = through - mine;
    if (before < wanted && wanted <= through) {
        u32 bin = top;
        while (before + bins[bin] < wanted) {
            before += bins[bin];
            bin -= 1;
        }
        found[0] = bin;
        found[1] = wanted - before;
    }
}

// One block per sequence.
KVT_DEVICE void select(const DigestSelectParams& p) {
    KVT_SHARED(float, peaks, HEADS_MAX);
    KVT_SHARED(u32, bins, 256);
    KVT_SHARED(u32, found, 2);
    KVT_SHARED(u32, range, 2);
    KVT_SHARED(u32, counts, 2 * SELECT / WARP);
    KVT_SHARED(float, sums, 2 * SELECT / WARP);
    if (failed(p.status)) {
        return;
    }
    const u32 tid = kvt_tid();
    const u64 seq = kvt_bid();
    const float* bounds = at<const float>(p.bounds) + seq * p.heads * p.max_blocks;
    float* estimates = at<float>(p.estimates) + seq * p.max_blocks;

    // Largest finite bound of each head, and from the first head the start and end of the sequence.
    for (u32 head = kvt_warp(); head < p.heads; head += SELECT / WARP) {
        float peak = -infinity();
        u32 begin = p.max_blocks;
        u32 end = 0;
        for (u32 i = kvt_lane(); i < p.max_blocks; i += WARP) {
            const float bound = bounds[head * p.max_blocks + i];
            peak = bound < infinity() ? fmaxf(peak, bound) : peak;
            if (bound > -infinity()) {
                begin = min(begin, i);
                end = i + 1;
            }
        }
        peak = warp_max(peak);
        begin = ~warp_max(~begin);
        end = warp_max(end);
        if (kvt_lane() == 0) {
            peaks[head] = peak;
            if (head == 0) {
                range[0] = begin;
                range[1] = end;
            }
        }
    }
    __syncthreads();
    const u32 begin = range[0];
    const u32 end = range[1];
    const u32 pages = end > begin ? end - begin : 0;

    // From here on a thread reads only the estimates that it wrote itself.
    for (u32 i = tid; i < p.max_blocks; i += SELECT) {
        const bool inside = i >= begin && i < end;
        float estimate = inside ? 0.0f : -infinity();
        if (inside && (i - begin < p.keep_first || end - i <= p.keep_last)) {
            estimate = infinity();
        } else if (inside) {
            for (u32 head = 0; head < p.heads; ++head) {
                const float bound = bounds[head * p.max_blocks + i];
                estimate += bound < infinity() ? ex2((bound - peaks[head]) * LOG2_E) : infinity();
            }
        }
        estimates[i] = estimate;
    }

    // The smallest chosen key, byte by byte, and how many pages with exactly this key are chosen.
    const u32 wanted = min(p.budget, pages);
    u32 least = 0;
    u32 ties = wanted;
    for (u32 shift = 32; wanted != 0 && shift != 0;) {
        shift -= 8;
        if (tid < 256) {
            bins[tid] = 0;
        }
        __syncthreads();
        for (u32 i = tid; i < p.max_blocks; i += SELECT) {
            const u32 key = key_of(estimates[i]);
            if (key != 0 && (shift == 24 || key >> (shift + 8) == least >> (shift + 8))) {
                atomicAdd(&bins[key >> shift & 255u], 1u);
            }
        }
        __syncthreads();
        if (kvt_warp() == 0) {
            find_bin(bins, ties, found);
        }
        __syncthreads();
        least |= found[0] << shift;
        ties = found[1];
        __syncthreads();
    }

    // In index order: all above the smallest key, and the first of those equal to it.
    i32* chosen = at<i32>(p.chosen) + seq * p.budget;
    u32 above_before = 0;
    u32 equal_before = 0;
    float all = 0.0f;
    float left = 0.0f;
    for (u32 base = 0; base < p.max_blocks; base += SELECT) {
        const u32 i = base + tid;
        const float estimate = i < p.max_blocks ? estimates[i] : -infinity();
        const u32 key = key_of(estimate);
        const bool above = wanted != 0 && key > least;
        const bool equal = wanted != 0 && key != 0 && key == least;
        const u32 above_warp = __ballot_sync(FULL, above);
        const u32 equal_warp = __ballot_sync(FULL, equal);
        if (kvt_lane() == 0) {
            counts[2 * kvt_warp()] = __popc(above_warp);
            counts[2 * kvt_warp() + 1] = __popc(equal_warp);
        }
        __syncthreads();
        u32 above_rank = above_before + __popc(above_warp & ((1u << kvt_lane()) - 1u));
        u32 equal_rank = equal_before + __popc(equal_warp & ((1u << kvt_lane()) - 1u));
        for (u32 warp = 0; warp < SELECT / WARP; ++warp) {
            above_rank += warp < kvt_warp() ? counts[2 * warp] : 0;
            equal_rank += warp < kvt_warp() ? counts[2 * warp + 1] : 0;
            above_before += counts[2 * warp];
            equal_before += counts[2 * warp + 1];
        }
        const bool taken = above || (equal && equal_rank < ties);
        if (taken) {
            chosen[above_rank + min(equal_rank, ties)] = static_cast<i32>(i);
        }
        if (key != 0) {
            all += estimate < infinity() ? estimate : 0.0f;
            left += taken ? 0.0f : estimate;
        }
        __syncthreads();
    }
    for (u32 i = wanted + tid; i < p.budget; i += SELECT) {
        chosen[i] = -1;
    }
    all = warp_sum(all);
    left = warp_sum(left);
    if (kvt_lane() == 0) {
        sums[2 * kvt_warp()] = all;
        sums[2 * kvt_warp() + 1] = left;
    }
    __syncthreads();
    if (tid == 0) {
        all = left = 0.0f;
        for (u32 warp = 0; warp < SELECT / WARP; ++warp) {
            all += sums[2 * warp];
            left += sums[2 * warp + 1];
        }
        at<u32>(p.counts)[seq] = wanted;
        // A skipped page without a finite bound may hold all of the attention.
        at<float>(p.omitted)[seq] = left == 0.0f ? 0.0f : left < all ? left / all : 1.0f;
    }
}

}  // namespace

KVT_KERNEL(digest_build_f16, DigestBuildParams, 256, build<f16>)
KVT_KERNEL(digest_build_bf16, DigestBuildParams, 256, build<bf16>)
KVT_KERNEL(digest_scores_f16, DigestScoresParams, 256, scores<f16>)
KVT_KERNEL(digest_scores_bf16, DigestScoresParams, 256, scores<bf16>)
KVT_KERNEL(digest_select, DigestSelectParams, 512, select)
