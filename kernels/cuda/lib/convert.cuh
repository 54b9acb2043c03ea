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

}  // namespace kvt
