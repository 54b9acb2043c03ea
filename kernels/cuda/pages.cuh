// Shared by the kernels over pages: addresses in parameters, the lane's status word, vectors of 16-bit values.
#pragma once

#include "lib/prelude.cuh"
#include "params.h"

namespace kvt {

template <class T>
KVT_DEVICE T* at(u64 address) {
    return reinterpret_cast<T*>(address);
}

// Returns whether an earlier boundary of this lane failed: then nothing is emitted.
KVT_DEVICE bool failed(u64 status) { return status != 0 && ld_relaxed_sys(at<const u32>(status)) != 0; }

// Returns the entry of a page: 0 if its block is outside the table or the page is absent, else frame + 1.
KVT_DEVICE u32 entry_of(u64 table, i32 block, u32 blocks, u32 planes, u32 plane) {
    if (block < 0 || static_cast<u32>(block) >= blocks) {
        return 0;
    }
    return at<const u32>(table)[static_cast<u64>(block) * planes + plane];
}

// Returns the token count written by the host; a negative number counts as 0.
KVT_DEVICE u32 tokens_of(i32 tokens) { return tokens < 0 ? 0u : static_cast<u32>(tokens); }

// Returns the address of a part of an item: see GatherLayout.
KVT_DEVICE u64 base_of(const GatherLayout& layout, u32 index, u64 offset) {
    return at<const u64>(layout.bases)[index] + offset;
}

KVT_DEVICE bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

// Converts eight 16-bit values of a vector to f32.
template <class T>
KVT_DEVICE void unpack8(const uint4& v, float (&x)[8]) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack2<T>(words[i]);
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
    }
}

}  // namespace kvt
