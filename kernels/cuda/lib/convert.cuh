// Conversions with the same code on the device and on the host.
#pragma once

namespace kvt {

// The two halves of a packed pair.
template <class T>
KVT_DEVICE float2 unpack2(u32 pair);
template <>
KVT_DEVICE float2 unpack2<f16>(u32 pair) {
    return make_float2(to_f32(f16{static_cast<u16>(pair)}), to_f32(f16{static_cast<u16>(pair >> 16)}));
}
template <>
KVT_DEVICE float2 unpack2<bf16>(u32 pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// Converts f32 to e4m3 (OCP 8-bit: bias 7, largest 448, no infinity, NaN 0x7f): to nearest, ties to even, saturating at the
// largest; NaN stays NaN. Uses integers, because sm_80 has no instruction.
KVT_DEVICE u8 to_e4m3(float x) {
    u32 bits = __float_as_uint(x);
    u32 sign = (bits >> 24) & 0x80u;
    u32 size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return static_cast<u8>(sign | 0x7fu);
    }
    if (size >= 0x43e00000u) {  // 448 and above, infinity included
        return static_cast<u8>(sign | 0x7eu);
    }
    if (size < 0x3c800000u) {  // below 2^-6: units of 2^-9, rounded by adding 2^23 / 2^9 in f32
        u32 units = __float_as_uint(__uint_as_float(size) + 16384.0f) - 0x46800000u;
        return static_cast<u8>(sign | units);
    }
    u32 odd = (size >> 20) & 1u;
    u32 rounded = (size + 0x7ffffu + odd) >> 20;  // exponent and 3 bits of mantissa
    return static_cast<u8>(sign | (rounded - ((127u - 7u) << 3)));
}

KVT_DEVICE float from_e4m3(u8 code) {
    u32 sign = (code & 0x80u) << 24;
    u32 size = code & 0x7fu;
    if (size == 0x7fu) {
        return __uint_as_float(0x7fc00000u | sign);
    }
    if (size < 8u) {  // subnormal: units of 2^-9
        return __uint_as_float(sign | __float_as_uint(static_cast<float>(size) * 0.001953125f));
    }
    return __uint_as_float(sign | ((size << 20) + ((127u - 7u) << 23)));
}

}  // namespace kvt
