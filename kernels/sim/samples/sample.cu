#include "lib/prelude.cuh"
struct SampleParams { uint64_t in, out, words; uint32_t n; float scale; };
template <class T, int D>
__device__ void sample(const SampleParams& p) {
    KVT_SHARED(float, partial, 4);
    T* tile = kvt_shared<T>(0);
    u32 t = threadIdx.x;
    const T* in = reinterpret_cast<const T*>(p.in);
    cp_async16(tile + t * 8, in + t * 8);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    u32 a[4], b[4];
    ldmatrix_x4(a, tile + (t & 15) * 16);
    ldmatrix_x4_trans(b, tile + (t & 15) * 16);
    float d[4] = {};
    mma_m16n8k16<T>(d, a, b[0], b[1]);
    float s = warp_sum(ex2(d[0] * p.scale) + to_f32(from_f32<T>(lg2(d[1]))) + from_e4m3(to_e4m3(d[2])));
    if (kvt_lane() == 0) partial[kvt_warp()] = s;
    __syncthreads();
    u32* out = reinterpret_cast<u32*>(p.out);
    st16(out + t * 4, ld16_once(out + t * 4 + D));
    out[t] = pack2<T>(partial[0], partial[1]) + __float_as_uint(unpack2<T>(out[0]).x);
    u64* w = reinterpret_cast<u64*>(p.words);
    if (t == 0) { atomicAdd(w, u64(1)); atomicAdd(out, 1u); st_release_sys(w, ld_acquire_sys(w)); __threadfence_system(); }
}
KVT_KERNEL(kvt_sample_f16, SampleParams, 128, sample<f16, 64>)
KVT_KERNEL_MIN(kvt_sample_bf16, SampleParams, 128, 2, sample<bf16, 64>)
