// Reductions over a full warp. Every lane gets the same bits, because a butterfly adds the same pairs in every lane.
#pragma once

namespace kvt {

KVT_DEVICE float warp_sum(float v) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        v += __shfl_xor_sync(FULL, v, step);
    }
    return v;
}
KVT_DEVICE u32 warp_sum(u32 v) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        v += __shfl_xor_sync(FULL, v, step);
    }
    return v;
}
KVT_DEVICE float warp_max(float v) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        v = fmaxf(v, __shfl_xor_sync(FULL, v, step));
    }
    return v;
}
KVT_DEVICE float warp_min(float v) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        v = fminf(v, __shfl_xor_sync(FULL, v, step));
    }
    return v;
}
KVT_DEVICE u32 warp_max(u32 v) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        v = max(v, __shfl_xor_sync(FULL, v, step));
    }
    return v;
}

}  // namespace kvt
