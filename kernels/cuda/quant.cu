// Codecs of the device: fp8 e4m3, int8 and int4, fused with gathering rows from any layout and scattering them into any layout.
//
// Keys have a scale per channel, because their outliers stay in few channels; values have one per token (KIVI, arXiv 2402.02750).
// For one layer an image holds
//
//   K codes [heads][tokens][channels] | V codes the same | K scales u32 [heads][channels] | V scales u32 [heads][tokens]
//
// A scale of int8 and int4 is two binary16: x ≈ zero + code × scale, scale in the low half; of fp8 it is the f32: x ≈ code × scale.
// int4 packs the even channel into the low nibble. A block of threads takes the keys of up to 64 channels of a head, or the values
// of some tokens of a head, and holds all of it in registers, so that data in host memory is read once.
#include "pages.cuh"

namespace {

constexpr u32 THREADS = 256;
constexpr u32 FLIGHT = 4;       // vectors of 8 values that a thread holds
constexpr u32 KEY_CHANNELS = 64;
constexpr u32 FP8 = 0;
constexpr u32 INT4 = 2;

// Work of a block of threads.
struct Tile {
    u64 rows;        // the 16-bit rows of the head, from the tile's first channel
    u64 codes;       // the head's codes, from the tile's first channel
    u64 scales;      // the head's scales: keys of the tile's channels, values of all tokens
    u64 row_stride;  // bytes between two tokens of the rows
    u32 code_stride; // bytes between two tokens of the codes
    u32 threads;     // threads that share a row: 4 to 32, a power of two
    u32 token;       // the first token
    u32 tokens;      // number of tokens that count, from 0
    u32 item;
    bool keys;
};

// Tiles of a head: key tiles, then value tiles.
KVT_DEVICE u32 key_tiles(const QuantParams& p) { return (p.channels + KEY_CHANNELS - 1) / KEY_CHANNELS; }
KVT_DEVICE u32 value_tokens(const QuantParams& p) { return FLIGHT * THREADS / (p.channels / 8); }
KVT_DEVICE u32 value_tiles(const QuantParams& p) {
    return p.parts == 1 ? 0 : (p.page_tokens + value_tokens(p) - 1) / value_tokens(p);
}

KVT_DEVICE Tile tile_of(const QuantParams& p, u64 unit) {
    const u32 tiles = key_tiles(p) + value_tiles(p);
    const u32 inside = static_cast<u32>(unit % tiles);
    unit /= tiles;
    const u32 head = static_cast<u32>(unit % p.heads);
    unit /= p.heads;
    const u32 layer = static_cast<u32>(unit % p.layers);
    unit /= p.layers;
    const QuantItem item = at<const QuantItem>(p.items)[unit];
    Tile tile;
    tile.item = static_cast<u32>(unit);
    tile.keys = inside < key_tiles(p);
    tile.tokens = min(item.tokens, p.page_tokens);
    tile.row_stride = p.layout.token_stride;
    tile.code_stride = p.codec == INT4 ? p.channels / 2 : p.channels;
    const u32 part = tile.keys ? 0 : 1;
    const u32 channel = tile.keys ? inside * KEY_CHANNELS : 0;
    tile.token = tile.keys ? 0 : (inside - key_tiles(p)) * value_tokens(p);
    tile.threads = tile.keys ? min(KEY_CHANNELS, p.channels) / 8 : p.channels / 8;
    const u64 image = item.image + layer * p.image_stride;
    const u64 head_codes = static_cast<u64>(p.page_tokens) * tile.code_stride;
    tile.rows = base_of(p.layout, layer * p.parts + part, item.rows) + head * p.layout.head_stride + channel * 2;
    tile.codes = image + (part * p.heads + head) * head_codes + (p.codec == INT4 ? channel / 2 : channel);
    tile.scales = image + p.parts * p.heads * head_codes +
                  4 * (tile.keys ? static_cast<u64>(head) * p.channels + channel
                                 : static_cast<u64>(p.heads) * p.channels + static_cast<u64>(head) * p.page_tokens);
    return tile;
}

// Returns the token of a thread's vector i; beyond the page: page_tokens.
KVT_DEVICE u32 token_of(const QuantParams& p, const Tile& tile, u32 i) {
    const u32 token = tile.token + i * (THREADS / tile.threads) + kvt_tid() / tile.threads;
    return min(token, p.page_tokens);
}

KVT_DEVICE float next_up(float x) { return __uint_as_float(__float_as_uint(x) + 1u); }  // of a finite, non-negative number

// Returns the step of a word, as in x ≈ zero + code × step.
KVT_DEVICE float step_of(const QuantParams& p, u32 word) {
    return p.codec == FP8 ? __uint_as_float(word) : to_f32(f16{static_cast<u16>(word)});
}
KVT_DEVICE float zero_of(const QuantParams& p, u32 word) {
    return p.codec == FP8 ? 0.0f : to_f32(f16{static_cast<u16>(word >> 16)});
}
KVT_DEVICE float inverse_of(float step) { return step > 0.0f ? rcp(step) : 0.0f; }

// Returns the word with codes from `low` to `high`; sets `*refused` if no word has them. `low` above `high`: no token counts.
KVT_DEVICE u32 word_of(const QuantParams& p, float low, float high, bool* refused) {
    if (low > high) {
        return 0;
    }
    if (!is_finite(low) || !is_finite(high)) {
        *refused = true;
        return 0;
    }
    if (p.codec == FP8) {
        // The constant is the smallest f32 above 1/448. A step below 2^-126 would have no reciprocal.
        const float reach = fmaxf(fabsf(low), fabsf(high));
        return reach == 0.0f ? 0u : __float_as_uint(fmaxf(next_up(__fmul_rn(reach, 0.0022321429569274187f)), 1.1754943508222875e-38f));
    }
    // The constants are the smallest f32 above 1/15 and 1/255. The product is raised twice, so the step is at least the quotient.
    const u16 zero = f16_down(low);
    const float reach = next_up(__fsub_rn(high, to_f32(f16{zero})));
    const u16 step = f16_up(next_up(__fmul_rn(reach, p.codec == INT4 ? 0.066666670143604279f : 0.0039215688593685627f)));
    if ((zero & 0x7c00u) == 0x7c00u || step >= 0x7c00u) {
        *refused = true;
        return 0;
    }
    return static_cast<u32>(zero) << 16 | step;
}

KVT_DEVICE u32 code_of(const QuantParams& p, float zero, float inverse, float x) {
    if (p.codec == FP8) {
        return to_e4m3(x * inverse);
    }
    const float most = p.codec == INT4 ? 15.0f : 255.0f;
    return static_cast<u32>(fminf(fmaxf((x - zero) * inverse, 0.0f), most) + 0.5f);
}

KVT_DEVICE float value_of(const QuantParams& p, float zero, float step, u32 code) {
    return p.codec == FP8 ? __fmul_rn(from_e4m3(static_cast<u8>(code)), step) : fmaf(static_cast<float>(code), step, zero);
}

KVT_DEVICE void put_codes(const QuantParams& p, u64 address, const u32 (&codes)[8]) {
    if (p.codec == INT4) {
        u32 word = 0;
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            word |= codes[i] << (4 * i);
        }
        *at<u32>(address) = word;
        return;
    }
    uint2 words = make_uint2(0, 0);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        words.x |= codes[i] << (8 * i);
        words.y |= codes[i + 4] << (8 * i);
    }
    *at<uint2>(address) = words;
}

KVT_DEVICE void take_codes(const QuantParams& p, uint2 words, u32 (&codes)[8]) {
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        if (p.codec == INT4) {
            codes[i] = words.x >> (4 * i) & 15u;
        } else {
            codes[i] = (i < 4 ? words.x : words.y) >> (8 * (i % 4)) & 255u;
        }
    }
}

// Writes the codes of a thread's vector i to the image.
template <class T>
KVT_DEVICE void store_codes(const QuantParams& p, const Tile& tile, u32 i, const uint4& v, const float (&zero)[8],
                            const float (&inverse)[8]) {
    const u32 token = token_of(p, tile, i);
    if (token >= p.page_tokens) {
        return;
    }
    float x[8];
    unpack8<T>(v, x);
    u32 codes[8];
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
        codes[j] = token < tile.tokens ? code_of(p, zero[j], inverse[j], x[j]) : 0u;
    }
    const u32 column = kvt_tid() % tile.threads;
    put_codes(p, tile.codes + token * tile.code_stride + column * (p.codec == INT4 ? 4 : 8), codes);
}

// Keys: minimum and maximum of each channel over all tokens, within a warp by shuffles, between warps in shared memory. Its two
// barriers also order one tile's reads of shared memory before the next one's writes.
template <class T>
KVT_DEVICE bool quantize_keys(const QuantParams& p, const Tile& tile, const uint4 (&flight)[FLIGHT]) {
    KVT_SHARED(float, lows, THREADS / WARP * KEY_CHANNELS);
    KVT_SHARED(float, highs, THREADS / WARP * KEY_CHANNELS);
    KVT_SHARED(u32, words, KEY_CHANNELS);
    const u32 tid = kvt_tid();
    bool refused = false;
    float low[8];
    float high[8];
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
        low[j] = __uint_as_float(0x7f800000u);
        high[j] = __uint_as_float(0xff800000u);
    }
#pragma unroll
    for (u32 i = 0; i < FLIGHT; ++i) {
        if (token_of(p, tile, i) < tile.tokens) {
            float x[8];
            unpack8<T>(flight[i], x);
#pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                low[j] = fminf(low[j], x[j]);
                high[j] = fmaxf(high[j], x[j]);
                refused = refused || !is_finite(x[j]);
            }
        }
    }
    for (u32 step = tile.threads; step < WARP; step <<= 1) {
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            low[j] = fminf(low[j], __shfl_xor_sync(FULL, low[j], step));
            high[j] = fmaxf(high[j], __shfl_xor_sync(FULL, high[j], step));
        }
    }
    if (kvt_lane() < tile.threads) {
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            lows[kvt_warp() * KEY_CHANNELS + kvt_lane() * 8 + j] = low[j];
            highs[kvt_warp() * KEY_CHANNELS + kvt_lane() * 8 + j] = high[j];
        }
    }
    __syncthreads();
    if (tid < tile.threads * 8) {
        float least = lows[tid];
        float most = highs[tid];
#pragma unroll
        for (u32 i = 1; i < THREADS / WARP; ++i) {
            least = fminf(least, lows[i * KEY_CHANNELS + tid]);
            most = fmaxf(most, highs[i * KEY_CHANNELS + tid]);
        }
        words[tid] = word_of(p, least, most, &refused);
        at<u32>(tile.scales)[tid] = words[tid];
    }
    __syncthreads();
#pragma unroll
    for (u32 j = 0; j < 8; ++j) {
        const u32 word = words[tid % tile.threads * 8 + j];
        low[j] = zero_of(p, word);
        high[j] = inverse_of(step_of(p, word));
    }
#pragma unroll
    for (u32 i = 0; i < FLIGHT; ++i) {
        store_codes<T>(p, tile, i, flight[i], low, high);
    }
    return refused;
}

// Values: minimum and maximum of each token over its channels, by shuffles among the threads that share the row.
template <class T>
KVT_DEVICE bool quantize_values(const QuantParams& p, const Tile& tile, const uint4 (&flight)[FLIGHT]) {
    bool refused = false;
#pragma unroll
    for (u32 i = 0; i < FLIGHT; ++i) {
        const u32 token = token_of(p, tile, i);
        const bool counts = token < tile.tokens;
        float x[8];
        unpack8<T>(flight[i], x);
        float low = x[0];
        float high = x[0];
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            low = fminf(low, x[j]);
            high = fmaxf(high, x[j]);
            refused = refused || !is_finite(x[j]);
        }
        for (u32 step = 1; step < tile.threads; step <<= 1) {
            low = fminf(low, __shfl_xor_sync(FULL, low, step));
            high = fmaxf(high, __shfl_xor_sync(FULL, high, step));
        }
        const u32 word = counts ? word_of(p, low, high, &refused) : 0;
        if (kvt_tid() % tile.threads == 0 && token < p.page_tokens) {
            at<u32>(tile.scales)[token] = word;
        }
        float zero[8];
        float inverse[8];
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            zero[j] = zero_of(p, word);
            inverse[j] = inverse_of(step_of(p, word));
        }
        store_codes<T>(p, tile, i, flight[i], zero, inverse);
    }
    return refused;
}

KVT_DEVICE u64 units_of(const QuantParams& p) {
    return static_cast<u64>(p.count) * p.layers * p.heads * (key_tiles(p) + value_tiles(p));
}

template <class T>
KVT_DEVICE void quantize(const QuantParams& p) {
    if (failed(p.status)) {
        return;
    }
    for (u64 unit = kvt_bid(); unit < units_of(p); unit += kvt_gdim()) {
        const Tile tile = tile_of(p, unit);
        uint4 flight[FLIGHT];
#pragma unroll
        for (u32 i = 0; i < FLIGHT; ++i) {
            const u32 token = token_of(p, tile, i);
            flight[i] = make_uint4(0, 0, 0, 0);
            if (token < tile.tokens) {
                const u64 column = kvt_tid() % tile.threads * 16;
                flight[i] = ld16_stream(at<const uint4>(tile.rows + token * tile.row_stride + column));
            }
        }
        const bool refused = tile.keys ? quantize_keys<T>(p, tile, flight) : quantize_values<T>(p, tile, flight);
        if (refused) {
            atomicOr(at<u32>(p.refused) + tile.item, 1u);
        }
    }
}

template <class T>
KVT_DEVICE void dequantize(const QuantParams& p) {
    if (failed(p.status)) {
        return;
    }
    for (u64 unit = kvt_bid(); unit < units_of(p); unit += kvt_gdim()) {
        const Tile tile = tile_of(p, unit);
        const u32 column = kvt_tid() % tile.threads;
        uint2 flight[FLIGHT];
#pragma unroll
        for (u32 i = 0; i < FLIGHT; ++i) {
            const u32 token = token_of(p, tile, i);
            flight[i] = make_uint2(0, 0);
            if (token < tile.tokens) {
                const u64 codes = tile.codes + token * tile.code_stride;
                if (p.codec == INT4) {
                    flight[i].x = *at<const u32>(codes + column * 4);
                } else {
                    flight[i] = *at<const uint2>(codes + column * 8);
                }
            }
        }
        u32 words[8];  // words of the thread's 8 channels
#pragma unroll
        for (u32 j = 0; j < 8; ++j) {
            words[j] = tile.keys ? at<const u32>(tile.scales)[column * 8 + j] : 0u;
        }
#pragma unroll
        for (u32 i = 0; i < FLIGHT; ++i) {
            const u32 token = token_of(p, tile, i);
            if (token >= tile.tokens) {
                continue;
            }
            const u32 row = tile.keys ? 0u : at<const u32>(tile.scales)[token];
            u32 codes[8];
            take_codes(p, flight[i], codes);
            float x[8];
#pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                const u32 word = tile.keys ? words[j] : row;
                x[j] = value_of(p, zero_of(p, word), step_of(p, word), codes[j]);
            }
            const uint4 v = make_uint4(pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]), pack2<T>(x[4], x[5]), pack2<T>(x[6], x[7]));
            st16_stream(at<uint4>(tile.rows + token * tile.row_stride + column * 16), v);
        }
    }
}

}  // namespace

KVT_KERNEL(quantize_f16, QuantParams, 256, quantize<f16>)
KVT_KERNEL(quantize_bf16, QuantParams, 256, quantize<bf16>)
KVT_KERNEL(dequantize_f16, QuantParams, 256, dequantize<f16>)
KVT_KERNEL(dequantize_bf16, QuantParams, 256, dequantize<bf16>)
