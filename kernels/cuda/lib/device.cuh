// The device version: CUDA's built-ins and inline PTX (ISA 7.0 and newer, sm_80 and newer).
//
// Pointers are to global memory (device memory, or registered host memory, which is in the same window) unless a function says
// shared; `ld.global` takes a generic address there because the global window of the generic space is the identity.
#pragma once

// Defines a kernel. `function` is a device function that takes `const Params&`; `threads_max` bounds a block; `blocks_min` blocks
// must fit a multiprocessor (0: the compiler's choice). The template arguments of `function` may contain commas.
#define KVT_KERNEL_MIN(name, Params, threads_max, blocks_min, ...)                                                     \
    extern "C" __global__ void __launch_bounds__(threads_max, blocks_min) name(const __grid_constant__ Params params) { \
        __VA_ARGS__(params);                                                                                           \
    }
#define KVT_KERNEL(name, Params, threads_max, ...)                                                         \
    extern "C" __global__ void __launch_bounds__(threads_max) name(const __grid_constant__ Params params) { \
        __VA_ARGS__(params);                                                                               \
    }

// A static array in shared memory, visible from here to the end of its scope; initially undefined.
#define KVT_SHARED(type, name, count) __shared__ type name[count]

extern __shared__ __align__(128) unsigned char kvt_dynamic_shared[];

namespace kvt {

// ---- Threads ----

KVT_DEVICE u32 kvt_tid() { return threadIdx.x; }
KVT_DEVICE u32 kvt_bid() { return blockIdx.x; }
KVT_DEVICE u32 kvt_bdim() { return blockDim.x; }
KVT_DEVICE u32 kvt_gdim() { return gridDim.x; }
// Lane in the warp and warp in the block, for blocks with one dimension.
KVT_DEVICE u32 kvt_lane() { return threadIdx.x & 31; }
KVT_DEVICE u32 kvt_warp() { return threadIdx.x >> 5; }

// Dynamic shared memory from a byte offset on, which must be a multiple of T's alignment. The base is aligned to 128 bytes.
template <class T>
KVT_DEVICE T* kvt_shared(u32 bytes) {
    return reinterpret_cast<T*>(kvt_dynamic_shared + bytes);
}

// A named barrier of the block, `id` 1 to 15, for `threads` threads (a multiple of 32) of whole warps.
KVT_DEVICE void kvt_barrier(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// Ends the whole launch with an error.
KVT_DEVICE void kvt_trap() { asm volatile("trap;"); }

// ---- Asynchronous copies to shared memory (a thread sees its own after cp_async_wait, other threads also need a barrier) ----

KVT_DEVICE u32 kvt_shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// Copies 16 bytes, both sides aligned to 16, bypassing L1.
KVT_DEVICE void cp_async16(void* shared, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(kvt_shared_address(shared)), "l"(from) : "memory");
}
// The same with a hint to fetch the surrounding 256 bytes into L2.
KVT_DEVICE void cp_async16_ahead(void* shared, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(kvt_shared_address(shared)), "l"(from)
                 : "memory");
}
// Reads the first `bytes` (0 to 16) of 16 bytes and sets the rest to zero. With 0 `from` is not read.
KVT_DEVICE void cp_async16_zfill(void* shared, const void* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(kvt_shared_address(shared)), "l"(from), "r"(bytes)
                 : "memory");
}
KVT_DEVICE void cp_async8(void* shared, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(kvt_shared_address(shared)), "l"(from) : "memory");
}
KVT_DEVICE void cp_async4(void* shared, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(kvt_shared_address(shared)), "l"(from) : "memory");
}
// Closes this thread's group of copies (an empty group counts too).
KVT_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the newest N of this thread's groups are in flight.
template <int N>
KVT_DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
// Waits for all copies of this thread, committed or not.
KVT_DEVICE void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- Matrices (PTX ISA, "Matrix multiply-accumulate operation using mma instruction"); all lanes of the warp participate ----

// Loads four 8x8 matrices of 16-bit elements: lanes 8i to 8i+7 give the addresses of the rows of matrix i (16 bytes each, aligned
// to 16); r[i] of lane l becomes elements (row l/4, columns 2(l%4) and +1) of matrix i; with _trans, of its transpose.
KVT_DEVICE void ldmatrix_x4(u32 (&r)[4], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(kvt_shared_address(shared_row))
                 : "memory");
}
KVT_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(kvt_shared_address(shared_row))
                 : "memory");
}
// Loads two matrices: lanes 0 to 15 give the rows. The other lanes' addresses are not used but must be valid.
KVT_DEVICE void ldmatrix_x2(u32 (&r)[2], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(kvt_shared_address(shared_row))
                 : "memory");
}
KVT_DEVICE void ldmatrix_x2_trans(u32 (&r)[2], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(kvt_shared_address(shared_row))
                 : "memory");
}

// d += A (16x16, row) * B (16x8, column), f32 accumulation. With g = lane / 4 and t = lane % 4, low half first:
//   a[0] (g, 2t..) a[1] (g+8, 2t..) a[2] (g, 2t+8..) a[3] (g+8, 2t+8..)   of A (row, column)
//   b[0] (2t.., g) b[1] (2t+8.., g)                                       of B (row, column)
//   d[0] (g, 2t) d[1] (g, 2t+1) d[2] (g+8, 2t) d[3] (g+8, 2t+1)
template <class T>
KVT_DEVICE void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <>
KVT_DEVICE void mma_m16n8k16<f16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
KVT_DEVICE void mma_m16n8k16<bf16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- Numbers ----

// 2^x and log2 x by the special function unit (relative error about 2^-22); subnormals are treated as zero.
KVT_DEVICE float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
KVT_DEVICE float lg2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// 1/x, with the same precision.
KVT_DEVICE float rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

KVT_DEVICE float to_f32(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
KVT_DEVICE float to_f32(bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }

// Converts to nearest, ties to even.
template <class T>
KVT_DEVICE T from_f32(float x);
template <>
KVT_DEVICE f16 from_f32<f16>(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
template <>
KVT_DEVICE bf16 from_f32<bf16>(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
template <>
KVT_DEVICE float from_f32<float>(float x) {
    return x;
}

// Converts two values: `low` goes to the low half.
template <class T>
KVT_DEVICE u32 pack2(float low, float high);
template <>
KVT_DEVICE u32 pack2<f16>(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
template <>
KVT_DEVICE u32 pack2<bf16>(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

// ---- Loads and stores of 16 bytes in global memory ----

KVT_DEVICE uint4 ld16(const void* p) { return *static_cast<const uint4*>(p); }
// Loads bytes that are constant during the kernel and read once: bypasses L1.
KVT_DEVICE uint4 ld16_once(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
// Loads bytes that pass through once: first to be evicted from the caches.
KVT_DEVICE uint4 ld16_stream(const void* p) {
    uint4 v;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
KVT_DEVICE void st16(void* p, uint4 v) { *static_cast<uint4*>(p) = v; }
KVT_DEVICE void st16_stream(void* p, uint4 v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// ---- Words shared with the host or with other blocks ----

#define KVT_WORD(type, suffix, reg)                                                                                   \
    KVT_DEVICE type ld_acquire_sys(const type* p) {                                                                   \
        type v;                                                                                                       \
        asm volatile("ld.acquire.sys.global." suffix " %0, [%1];" : "=" reg(v) : "l"(p) : "memory");                  \
        return v;                                                                                                     \
    }                                                                                                                 \
    KVT_DEVICE type ld_relaxed_sys(const type* p) {                                                                   \
        type v;                                                                                                       \
        asm volatile("ld.relaxed.sys.global." suffix " %0, [%1];" : "=" reg(v) : "l"(p) : "memory");                  \
        return v;                                                                                                     \
    }                                                                                                                 \
    KVT_DEVICE type ld_acquire_gpu(const type* p) {                                                                   \
        type v;                                                                                                       \
        asm volatile("ld.acquire.gpu.global." suffix " %0, [%1];" : "=" reg(v) : "l"(p) : "memory");                  \
        return v;                                                                                                     \
    }                                                                                                                 \
    KVT_DEVICE void st_release_sys(type* p, type v) {                                                                 \
        asm volatile("st.release.sys.global." suffix " [%0], %1;" ::"l"(p), reg(v) : "memory");                       \
    }                                                                                                                 \
    KVT_DEVICE void st_relaxed_sys(type* p, type v) {                                                                 \
        asm volatile("st.relaxed.sys.global." suffix " [%0], %1;" ::"l"(p), reg(v) : "memory");                       \
    }                                                                                                                 \
    KVT_DEVICE void st_release_gpu(type* p, type v) {                                                                 \
        asm volatile("st.release.gpu.global." suffix " [%0], %1;" ::"l"(p), reg(v) : "memory");                       \
    }
KVT_WORD(u32, "u32", "r")
KVT_WORD(u64, "u64", "l")
#undef KVT_WORD

// CUDA declares its 64-bit atomics for unsigned long long, which is not the type of u64 under glibc.
KVT_DEVICE u64 atomicAdd(u64* p, u64 v) { return ::atomicAdd(reinterpret_cast<unsigned long long*>(p), v); }
KVT_DEVICE u64 atomicMax(u64* p, u64 v) { return ::atomicMax(reinterpret_cast<unsigned long long*>(p), v); }
KVT_DEVICE u64 atomicMin(u64* p, u64 v) { return ::atomicMin(reinterpret_cast<unsigned long long*>(p), v); }
KVT_DEVICE u64 atomicOr(u64* p, u64 v) { return ::atomicOr(reinterpret_cast<unsigned long long*>(p), v); }
KVT_DEVICE u64 atomicExch(u64* p, u64 v) { return ::atomicExch(reinterpret_cast<unsigned long long*>(p), v); }
KVT_DEVICE u64 atomicCAS(u64* p, u64 compare, u64 v) {
    return ::atomicCAS(reinterpret_cast<unsigned long long*>(p), compare, v);
}
using ::atomicAdd;
using ::atomicAnd;
using ::atomicCAS;
using ::atomicExch;
using ::atomicMax;
using ::atomicMin;
using ::atomicOr;
using ::atomicSub;
using ::atomicXor;

}  // namespace kvt
