// Single instructions, compared with the PTX ISA (tests/instructions.rs).
#include "lib/prelude.cuh"

struct InstructionParams {
    u64 a;    // u16[16][16]
    u64 b;    // u16[16][8]
    u64 out;
    u32 bf16;
    u32 way;  // how fragments are loaded: 0 by the ISA's formulas, 1 by ldmatrix, 2 by ldmatrix with B transposed in memory
};

// One product of 16x16 by 16x8, out = f32[16][8].
template <class T>
__device__ void product_of(const InstructionParams& p) {
    u16* a_tile = kvt_shared<u16>(0);            // [16][24]: rows apart by 48 bytes
    u16* b_tile = kvt_shared<u16>(16 * 48);      // [16][16], or its transpose [8][24]
    const u16* a = reinterpret_cast<const u16*>(p.a);
    const u16* b = reinterpret_cast<const u16*>(p.b);
    u32 lane = threadIdx.x, g = lane / 4, t = lane % 4;
    for (u32 i = lane; i < 256; i += 32) {
        a_tile[i / 16 * 24 + i % 16] = a[i];
    }
    for (u32 i = lane; i < 128; i += 32) {
        u32 k = i / 8, n = i % 8;
        b_tile[p.way == 2 ? n * 24 + k : k * 16 + n] = b[i];
    }
    __syncthreads();
    u32 fa[4], fb[2];
    if (p.way == 0) {
        for (u32 i = 0; i < 8; ++i) {
            u32 row = (i < 2 || (i >= 4 && i < 6)) ? g : g + 8;
            u32 column = t * 2 + (i & 1) + (i < 4 ? 0 : 8);
            u32 bits = a[row * 16 + column];
            fa[i / 2] = i % 2 == 0 ? bits : fa[i / 2] | bits << 16;
        }
        for (u32 i = 0; i < 4; ++i) {
            u32 row = t * 2 + (i & 1) + (i < 2 ? 0 : 8);
            u32 bits = b[row * 8 + g];
            fb[i / 2] = i % 2 == 0 ? bits : fb[i / 2] | bits << 16;
        }
    } else {
        ldmatrix_x4(fa, a_tile + lane % 16 * 24 + lane / 16 * 8);
        if (p.way == 2) {
            ldmatrix_x2(fb, b_tile + lane % 8 * 24 + lane / 8 % 2 * 8);
        } else {
            ldmatrix_x2_trans(fb, b_tile + lane % 16 * 16);
        }
    }
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    mma_m16n8k16<T>(d, fa, fb[0], fb[1]);
    float* out = reinterpret_cast<float*>(p.out);
    for (u32 i = 0; i < 4; ++i) {
        u32 row = i < 2 ? g : g + 8;
        out[row * 8 + t * 2 + (i & 1)] = d[i];
    }
}
__device__ void product(const InstructionParams& p) {
    if (p.bf16 != 0) {
        product_of<bf16>(p);
    } else {
        product_of<f16>(p);
    }
}
KVT_KERNEL(kvt_sim_product, InstructionParams, 32, product)

// Conversions of 32-bit patterns a[i]: out[i] = f16 bits | bf16 bits << 16; way = count.
__device__ void convert(const InstructionParams& p) {
    const u32* in = reinterpret_cast<const u32*>(p.a);
    u32* out = reinterpret_cast<u32*>(p.out);
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < p.way; i += blockDim.x * gridDim.x) {
        float x = __uint_as_float(in[i]);
        out[i] = from_f32<f16>(x).bits | static_cast<u32>(from_f32<bf16>(x).bits) << 16;
    }
}
KVT_KERNEL(kvt_sim_convert, InstructionParams, 128, convert)

// Shuffles and votes of one warp: out[lane][8].
__device__ void lanes(const InstructionParams& p) {
    u32* out = reinterpret_cast<u32*>(p.out) + threadIdx.x * 8;
    u32 lane = threadIdx.x;
    out[0] = __shfl_sync(FULL, lane, 3, 8);
    out[1] = __shfl_up_sync(FULL, lane, 2, 16);
    out[2] = __shfl_down_sync(FULL, lane, 3, 8);
    out[3] = __shfl_xor_sync(FULL, lane, 5);
    out[4] = __ballot_sync(FULL, lane % 3 == 0);
    out[5] = lane < 16 ? __ballot_sync(0xffffu, lane > 2) : __ballot_sync(0xffff0000u, lane > 20);
    out[6] = static_cast<u32>(__any_sync(FULL, lane == 31)) * 2 + static_cast<u32>(__all_sync(FULL, lane < 31));
    out[7] = static_cast<u32>(__syncthreads_count(lane % 2 == 0));
}
KVT_KERNEL(kvt_sim_lanes, InstructionParams, 32, lanes)

// Ways to order shared memory besides __syncthreads: __syncwarp, a named barrier of two warps of four, atomics. out[grid][128].
__device__ void meetings(const InstructionParams& p) {
    KVT_SHARED(u32, words, 128);
    KVT_SHARED(u32, count, 1);
    u32 t = threadIdx.x, pair = t / 64;
    if (t == 0) {
        count[0] = 0;
    }
    words[t] = t;
    __syncwarp();
    u32 sum = words[t ^ 1];
    __syncwarp();
    words[t] = sum * 10;
    kvt_barrier(1 + pair, 64);
    sum += words[pair * 64 + (t + 32) % 64];
    __syncthreads();
    atomicAdd(count, 1u);
    __syncthreads();
    reinterpret_cast<u32*>(p.out)[blockIdx.x * 128 + t] = sum + count[0];
}
KVT_KERNEL(kvt_sim_meetings, InstructionParams, 128, meetings)
