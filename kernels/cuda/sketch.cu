// Sketches of sealed pages, and the shares of attention that they predict for queries (kvtide_wire::digest::sketch defines the
// layout of a sketch and its estimate).
//
// Building is exact: the same single operations in the same order as on the CPU, so the bytes are equal. The sums of one page and
// query head are equal too; only the totals over pages, by which shares are divided, are added up in another order.
#include "pages.cuh"

namespace {

constexpr u32 THREADS = 128;
constexpr u32 TOKENS_MAX = 128;
constexpr u32 CHANNELS_MAX = 1024;
constexpr u32 ROUNDS = 3;
constexpr u32 CLIPS = 4;
constexpr u32 EMPTY = 0;
constexpr u32 UNKNOWN = 255;
constexpr float KEY_MAX = 65504.0f;
constexpr float ROOT_2 = 1.41421356237309504880f;
constexpr float FOURTH_ROOT_2 = 1.189207100f;
constexpr float LN_2 = 0.69314718055994530942f;
constexpr float LOG2_E = 1.44269504088896340736f;

KVT_DEVICE float infinity() { return __uint_as_float(0x7f800000u); }
KVT_DEVICE float power(u32 exponent) { return __uint_as_float(exponent << 23); }

// Returns 2^(i / 8), the wire's numbers; selected by comparisons instead of a table in memory.
KVT_DEVICE float eighth(u32 i) {
    const float low = (i & 2) == 0 ? ((i & 1) == 0 ? 1.0f : 1.090507700f) : ((i & 1) == 0 ? 1.189207100f : 1.296839600f);
    const float high =
        (i & 2) == 0 ? ((i & 1) == 0 ? ROOT_2 : 1.542210800f) : ((i & 1) == 0 ? 1.681792900f : 1.834008100f);
    return (i & 4) == 0 ? low : high;
}

KVT_DEVICE u32 group_bytes(u32 channels) { return 2 + (3 * channels + 7) / 8; }
KVT_DEVICE float step_of(u32 scale) { return __fmul_rn(eighth(scale & 7), power((scale >> 3) + 127 - 16)); }
KVT_DEVICE i32 floor_of(float value) {
    const i32 cut = static_cast<i32>(value);
    return static_cast<float>(cut) > value ? cut - 1 : cut;
}

// ---- Building ----

// Keys of one page and head.
struct Keys {
    u64 first;
    u64 tile_stride;
    u64 token_stride;
    u32 tile_tokens;

    KVT_DEVICE u64 token(u32 t) const { return first + t / tile_tokens * tile_stride + t % tile_tokens * token_stride; }
};

template <class T>
KVT_DEVICE float channel_of(const Keys& keys, u32 token, u32 channel) {
    return unpack2<T>(at<const u16>(keys.token(token))[channel]).x;
}

template <class T>
KVT_DEVICE float distance(u64 key, const float* centre, u32 channels) {
    float sum = 0.0f;
#pragma unroll 1
    for (u32 column = 0; column < channels; column += 8) {
        float values[8];
        unpack8<T>(ld16(at<const uint4>(key + column * 2)), values);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const float off = __fsub_rn(values[i], centre[column + i]);
            sum = __fadd_rn(sum, __fmul_rn(off, off));
        }
    }
    return sum;
}

KVT_DEVICE i32 code_of(float value, float step) { return min(max(floor_of(__fdiv_rn(value, step)), -4), 3); }

KVT_DEVICE void encode(const float* centre, u32 channels, u32 count, float variance, u64 out) {
    float reach = 0.0f;
#pragma unroll 1
    for (u32 c = 0; c < channels; ++c) {
        reach = fmaxf(reach, fabsf(centre[c]));
    }
    u32 widest = 1 + CLIPS;
    while (widest < UNKNOWN - 1 && __fmul_rn(4.0f, step_of(widest)) < reach) {
        widest += 1;
    }
    u32 scale = widest;
    float least = infinity();
#pragma unroll 1
    for (u32 tried = widest; tried > widest - CLIPS; --tried) {
        const float step = step_of(tried);
        float error = 0.0f;
#pragma unroll 1
    for (u32 c = 0; c < channels; ++c) {
            const float level = __fadd_rn(static_cast<float>(code_of(centre[c], step)), 0.5f);
            const float off = __fsub_rn(centre[c], __fmul_rn(level, step));
            error = __fadd_rn(error, __fmul_rn(off, off));
        }
        if (error < least) {
            scale = tried;
            least = error;
        }
    }
    const float step = step_of(scale);
    u32 half_octaves = 0;
    float reached = 1.0f;
    while (half_octaves < 15 && static_cast<float>(count) >= __fmul_rn(reached, FOURTH_ROOT_2)) {
        half_octaves += 1;
        reached = __fmul_rn(reached, ROOT_2);
    }
    u32 spread = 0;
    float of_spread = __fmul_rn(__fmul_rn(16.0f, step), step);
    while (spread < 15 && variance < __fdiv_rn(of_spread, FOURTH_ROOT_2)) {
        spread += 1;
        of_spread = __fdiv_rn(of_spread, ROOT_2);
    }
    at<u8>(out)[0] = static_cast<u8>(scale);
    at<u8>(out)[1] = static_cast<u8>(half_octaves | spread << 4);
#pragma unroll 1
    for (u32 c = 0; c < channels; c += 8) {
        u32 bits = 0;
        for (u32 i = 0; i < 8; ++i) {
            bits |= static_cast<u32>(code_of(centre[c + i], step) + 4) << (3 * i);
        }
        for (u32 i = 0; i < 3; ++i) {
            at<u8>(out)[2 + 3 * (c / 8) + i] = static_cast<u8>(bits >> (8 * i));
        }
    }
}

// A block processes a page and head; a thread processes a token, then a channel, then a group.
template <class T>
KVT_DEVICE void build(const SketchBuildParams& p) {
    float* centres = kvt_shared<float>(0);  // [groups][channels]
    KVT_SHARED(float, near, TOKENS_MAX);
    KVT_SHARED(u32, group, TOKENS_MAX);
    KVT_SHARED(u32, unknown, 1);
    KVT_SHARED(u32, farthest, 1);
    const u32 tid = kvt_tid();
    const u32 head = kvt_bid() % p.heads;
    const SketchItem item = at<const SketchItem>(p.items)[kvt_bid() / p.heads];
    const u32 tokens = item.tokens;
    if (item.slot >= p.slots || tokens == 0 || tokens > TOKENS_MAX || failed(p.status)) {
        return;  // the same for the whole block
    }
    const u32 channels = p.channels;
    const u32 bytes = group_bytes(channels);
    const u64 sketch = p.sketches + (static_cast<u64>(item.slot) * p.heads + head) * p.groups * bytes;
    const Keys keys = {p.keys + item.page + head * p.head_stride, p.tile_stride, p.token_stride, p.tile_tokens};
    const u64 mine = keys.token(tid < tokens ? tid : 0);

    for (u32 i = tid; i < p.groups * bytes; i += THREADS) {
        at<u8>(sketch)[i] = 0;
    }
    if (tid == 0) {
        unknown[0] = 0;
    }
    __syncthreads();
    // The mean is stored in the place of the first centre.
    bool moderate = true;
    for (u32 channel = tid; channel < channels; channel += THREADS) {
        float sum = 0.0f;
#pragma unroll 1
        for (u32 token = 0; token < tokens; ++token) {
            const float key = channel_of<T>(keys, token, channel);
            moderate = moderate && fabsf(key) <= KEY_MAX;
            sum = __fadd_rn(sum, key);
        }
        centres[channel] = __fdiv_rn(sum, static_cast<float>(tokens));
    }
    if (!moderate) {
        atomicOr(unknown, 1u);
    }
    __syncthreads();
    if (unknown[0] != 0) {
        for (u32 i = tid; i < p.groups; i += THREADS) {
            at<u8>(sketch)[i * bytes] = UNKNOWN;
        }
        return;
    }
    if (tid < tokens) {
        near[tid] = distance<T>(mine, centres, channels);
    }
    __syncthreads();
    u32 used = 0;
    for (; used < p.groups; ++used) {
        if (tid == 0) {
            u32 far = 0;
#pragma unroll 1
            for (u32 token = 0; token < tokens; ++token) {
                far = near[token] > near[far] ? token : far;
            }
            farthest[0] = far;
        }
        __syncthreads();
        const u32 far = farthest[0];
        const bool repeats = used > 0 && near[far] <= 0.0f;
        if (repeats) {
            break;  // the same for every thread
        }
        float* centre = centres + used * channels;
        for (u32 channel = tid; channel < channels; channel += THREADS) {
            centre[channel] = channel_of<T>(keys, far, channel);
        }
        __syncthreads();
        if (tid < tokens) {
            const float to_it = distance<T>(mine, centre, channels);
            near[tid] = used == 0 ? to_it : fminf(near[tid], to_it);
        }
        __syncthreads();
    }
    for (u32 round = 0; round < ROUNDS; ++round) {
        if (tid < tokens) {
            float least = infinity();
            u32 nearest = 0;
            for (u32 index = 0; index < used; ++index) {
                const float to_it = distance<T>(mine, centres + index * channels, channels);
                if (to_it < least || index == 0) {
                    least = to_it;
                    nearest = index;
                }
            }
            group[tid] = nearest;
        }
        __syncthreads();
        for (u32 index = 0; index < used; ++index) {
            u32 count = 0;
#pragma unroll 1
            for (u32 token = 0; token < tokens; ++token) {
                count += group[token] == index ? 1 : 0;
            }
            for (u32 channel = tid; count > 0 && channel < channels; channel += THREADS) {
                float sum = 0.0f;
#pragma unroll 1
                for (u32 token = 0; token < tokens; ++token) {
                    sum = group[token] == index ? __fadd_rn(sum, channel_of<T>(keys, token, channel)) : sum;
                }
                centres[index * channels + channel] = __fdiv_rn(sum, static_cast<float>(count));
            }
        }
        __syncthreads();
    }
    if (tid < tokens) {
        near[tid] = distance<T>(mine, centres + group[tid] * channels, channels);
    }
    __syncthreads();
    if (tid < used) {
        u32 count = 0;
        float spread = 0.0f;
#pragma unroll 1
        for (u32 token = 0; token < tokens; ++token) {
            if (group[token] == tid) {
                count += 1;
                spread = __fadd_rn(spread, near[token]);
            }
        }
        if (count > 0) {
            const float terms = __fmul_rn(static_cast<float>(count), static_cast<float>(channels));
            encode(centres + tid * channels, channels, count, __fdiv_rn(spread, terms), sketch + tid * bytes);
        }
    }
}

// ---- Scoring ----

// The functions of kvtide_wire, operation by operation.
KVT_DEVICE float exp_of(float x) {
    if (x < -87.0f) {
        return 0.0f;
    }
    const float y = __fmul_rn(fminf(x, 88.0f), LOG2_E);
    const i32 whole = floor_of(__fadd_rn(y, 0.5f));
    const float t = __fmul_rn(__fsub_rn(y, static_cast<float>(whole)), LN_2);
    float p = __fadd_rn(1.0f / 120.0f, __fmul_rn(t, 1.0f / 720.0f));
    p = __fadd_rn(1.0f / 24.0f, __fmul_rn(t, p));
    p = __fadd_rn(1.0f / 6.0f, __fmul_rn(t, p));
    p = __fadd_rn(0.5f, __fmul_rn(t, p));
    p = __fadd_rn(1.0f, __fmul_rn(t, p));
    p = __fadd_rn(1.0f, __fmul_rn(t, p));
    return __fmul_rn(p, power(static_cast<u32>(whole + 127)));
}

KVT_DEVICE float ln_of(float x) {
    if (x < 1.17549435e-38f) {
        return -infinity();
    }
    const u32 bits = __float_as_uint(x) - 0x3f3504f3u;
    const float e = static_cast<float>(static_cast<i32>(bits) >> 23);
    const float m = __uint_as_float((bits & 0x7fffffu) + 0x3f3504f3u);
    const float t = __fdiv_rn(__fsub_rn(m, 1.0f), __fadd_rn(m, 1.0f));
    const float s = __fmul_rn(t, t);
    float p = __fadd_rn(1.0f / 7.0f, __fmul_rn(s, 1.0f / 9.0f));
    p = __fadd_rn(1.0f / 5.0f, __fmul_rn(s, p));
    p = __fadd_rn(1.0f / 3.0f, __fmul_rn(s, p));
    p = __fadd_rn(1.0f, __fmul_rn(s, p));
    return __fadd_rn(__fmul_rn(e, LN_2), __fmul_rn(__fmul_rn(2.0f, t), p));
}

// Returns the total of eight partial sums and of the values after the last eight.
KVT_DEVICE float folded(const float (&sums)[8]) {
    float all = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        all = __fadd_rn(all, sums[i]);
    }
    return __fadd_rn(all, 0.0f);
}

// Returns the logarithm of the sum of exponentials of a query head over a page, estimated by its sketch.
KVT_DEVICE float score(const SketchScoresParams& p, u64 sketch, const float* query, float norm) {
    float sum = -infinity();
    const u32 bytes = group_bytes(p.channels);
    for (u32 index = 0; index < p.groups; ++index) {
        const u8* group = at<const u8>(sketch + index * bytes);
        const u32 scale = group[0];
        if (scale == EMPTY) {
            continue;
        }
        if (scale == UNKNOWN) {
            return infinity();
        }
        float products[8] = {};
        for (u32 c = 0; c < p.channels; c += 8) {
            const u8* codes = group + 2 + 3 * (c / 8);
            const u32 bits = codes[0] | static_cast<u32>(codes[1]) << 8 | static_cast<u32>(codes[2]) << 16;
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                const float centre = __fsub_rn(static_cast<float>(bits >> (3 * i) & 7), 3.5f);
                products[i] = __fadd_rn(products[i], __fmul_rn(query[c + i], centre));
            }
        }
        const float step = step_of(scale);
        const float count = __fmul_rn(static_cast<float>(group[1] & 15), LN_2 / 2.0f);
        const u32 spread = group[1] >> 4;
        const float round = spread == 15 ? 0.0f : __fmul_rn(__fmul_rn(__fmul_rn(16.0f, step), step), step_of(128 - 4 * spread));
        const float near = __fmul_rn(__fmul_rn(p.scale, step), folded(products));
        const float cloud = __fmul_rn(__fmul_rn(__fmul_rn(__fmul_rn(0.5f, p.scale), p.scale), norm), round);
        const float value = __fadd_rn(__fadd_rn(near, count), cloud);
        const float low = value < sum ? value : sum;
        const float high = value < sum ? sum : value;
        sum = high == -infinity() ? high : __fadd_rn(high, ln_of(__fadd_rn(1.0f, exp_of(__fsub_rn(low, high)))));
    }
    return sum == sum ? sum : infinity();
}

// A block processes (256 pages) × (query head); a thread processes a page.
constexpr u32 SCORE_THREADS = 256;

KVT_DEVICE void scores(const SketchScoresParams& p) {
    KVT_SHARED(float, query, CHANNELS_MAX);
    const u32 tid = kvt_tid();
    const u32 chunks = (p.pages + SCORE_THREADS - 1) / SCORE_THREADS;
    const u32 page = kvt_bid() % chunks * SCORE_THREADS + tid;
    const u32 head = kvt_bid() / chunks;
    if (failed(p.status)) {
        return;
    }
    for (u32 c = tid; c < p.channels; c += SCORE_THREADS) {
        query[c] = at<const float>(p.queries)[static_cast<u64>(head) * p.channels + c];
    }
    __syncthreads();
    float norms[8] = {};
    bool finite = true;
    for (u32 c = 0; c < p.channels; c += 8) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            finite = finite && is_finite(query[c + i]);
            norms[i] = __fadd_rn(norms[i], __fmul_rn(query[c + i], query[c + i]));
        }
    }
    if (page >= p.pages) {
        return;
    }
    const u32 place = at<const u32>(p.places)[page];
    float sum = place == SKETCH_OPEN ? -infinity() : infinity();
    if (place < p.slots && finite) {
        const u64 at_head = static_cast<u64>(place) * p.kv_heads + head / p.group;
        sum = score(p, p.sketches + at_head * p.groups * group_bytes(p.channels), query, folded(norms));
    }
    at<float>(p.sums)[static_cast<u64>(head) * p.pages + page] = sum;
}

// ---- Shares ----

constexpr u32 SHARE_THREADS = 512;
constexpr u32 HEADS_MAX = 256;

// A page without an estimate counts as much as the best page that has one.
KVT_DEVICE float part_of(float sum, float best) {
    return is_finite(sum) || sum == -infinity() ? exp_of(__fsub_rn(sum, best)) : 1.0f;
}

// One block: first each warp computes the best and the total of its heads, then each thread its pages.
KVT_DEVICE void shares(const SketchScoresParams& p) {
    KVT_SHARED(float, bests, HEADS_MAX);
    KVT_SHARED(float, totals, HEADS_MAX);
    const u32 heads = p.kv_heads * p.group;
    if (failed(p.status)) {
        return;
    }
    for (u32 head = kvt_warp(); head < heads; head += SHARE_THREADS / WARP) {
        const float* sums = at<const float>(p.sums) + static_cast<u64>(head) * p.pages;
        float best = -infinity();
        for (u32 page = kvt_lane(); page < p.pages; page += WARP) {
            best = is_finite(sums[page]) ? fmaxf(best, sums[page]) : best;
        }
        best = warp_max(best);
        best = best == -infinity() ? 0.0f : best;
        float total = 0.0f;
        for (u32 page = kvt_lane(); page < p.pages; page += WARP) {
            total += part_of(sums[page], best);
        }
        total = warp_sum(total);
        if (kvt_lane() == 0) {
            bests[head] = best;
            totals[head] = total;
        }
    }
    __syncthreads();
    const float weight = __fdiv_rn(1.0f, static_cast<float>(heads));
    for (u32 page = kvt_tid(); page < p.pages; page += SHARE_THREADS) {
        float share = 0.0f;
        for (u32 head = 0; head < heads; ++head) {
            const float sum = at<const float>(p.sums)[static_cast<u64>(head) * p.pages + page];
            const float part = __fmul_rn(weight, part_of(sum, bests[head]));
            share = totals[head] > 0.0f ? __fadd_rn(share, __fdiv_rn(part, totals[head])) : share;
        }
        at<float>(p.shares)[page] = share;
    }
}

}  // namespace

KVT_KERNEL(sketch_build_f16, SketchBuildParams, 128, build<f16>)
KVT_KERNEL(sketch_build_bf16, SketchBuildParams, 128, build<bf16>)
KVT_KERNEL(sketch_scores, SketchScoresParams, 256, scores)
KVT_KERNEL(sketch_shares, SketchScoresParams, 512, shares)
