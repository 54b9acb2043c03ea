// The host version: the names of device.cuh and of CUDA's built-ins, implemented on the emulator. device.cuh and CUDA's
// documentation define their effects.
//
// g++ instruments every load and store of a kernel (-fsanitize=thread, with the emulator's own runtime). The instrumentation checks
// the access and may switch to another thread. The functions of emulator.h check their own accesses.
#pragma once

// g++ turns a kernel's structure copies and clears into these calls, so they are checked too.
extern "C" {
void* memcpy(void*, const void*, size_t) __asm__("kvt_emu_memcpy");
void* memmove(void*, const void*, size_t) __asm__("kvt_emu_memmove");
void* memset(void*, int, size_t) __asm__("kvt_emu_memset");
}

#include <math.h>

#include "emulator.h"

#define KVT_KERNEL_MIN(name, Params, threads_max, blocks_min, ...) KVT_KERNEL(name, Params, threads_max, __VA_ARGS__)
#define KVT_KERNEL(name, Params, threads_max, ...)                                                       \
    static void name##_run(const void* params) { __VA_ARGS__(*static_cast<const Params*>(params)); }     \
    static KvtKernel name##_entry = {#name, sizeof(Params), threads_max, name##_run, nullptr};           \
    __attribute__((constructor)) static void name##_register() { kvt_emu_register(&name##_entry); }

#define KVT_SHARED(type, name, count)                                                                                  \
    static const char name##_site = 0;                                                                                 \
    type(&name)[count] = *static_cast<type(*)[count]>(kvt_emu_static_shared(&name##_site, sizeof(type[count]), alignof(type)))

#define threadIdx (kvt_emu_thread_index())
#define blockIdx (kvt_emu_block_index())
#define blockDim (kvt_emu_block_dim())
#define gridDim (kvt_emu_grid_dim())

// The caller's source location, as a default argument.
#define KVT_HERE                               \
    KvtPlace place = {                         \
        __builtin_FILE(), __builtin_LINE()     \
    }

// ---- CUDA's built-ins ----

KVT_DEVICE void __syncthreads(KVT_HERE) { kvt_emu_barrier(0, 0, KVT_REDUCE_NONE, 0, place); }
KVT_DEVICE int __syncthreads_or(int predicate, KVT_HERE) { return kvt_emu_barrier(0, 0, KVT_REDUCE_OR, predicate, place); }
KVT_DEVICE int __syncthreads_and(int predicate, KVT_HERE) { return kvt_emu_barrier(0, 0, KVT_REDUCE_AND, predicate, place); }
KVT_DEVICE int __syncthreads_count(int predicate, KVT_HERE) {
    return kvt_emu_barrier(0, 0, KVT_REDUCE_COUNT, predicate, place);
}
KVT_DEVICE void __syncwarp(unsigned mask = 0xffffffffu, KVT_HERE) { kvt_emu_sync_warp(mask, place); }

template <class T>
KVT_DEVICE T kvt_shuffle(KvtShuffle kind, unsigned mask, T value, unsigned lane, int width, KvtPlace place) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint32_t words[sizeof(T) / 4];
    __builtin_memcpy(words, &value, sizeof(T));
    for (uint32_t& word : words) {
        word = kvt_emu_shuffle(kind, mask, word, lane, width, place);
    }
    __builtin_memcpy(&value, words, sizeof(T));
    return value;
}
template <class T>
KVT_DEVICE T __shfl_sync(unsigned mask, T value, int lane, int width = 32, KVT_HERE) {
    return kvt_shuffle(KVT_SHUFFLE_INDEX, mask, value, static_cast<unsigned>(lane), width, place);
}
template <class T>
KVT_DEVICE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, KVT_HERE) {
    return kvt_shuffle(KVT_SHUFFLE_UP, mask, value, delta, width, place);
}
template <class T>
KVT_DEVICE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, KVT_HERE) {
    return kvt_shuffle(KVT_SHUFFLE_DOWN, mask, value, delta, width, place);
}
template <class T>
KVT_DEVICE T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, KVT_HERE) {
    return kvt_shuffle(KVT_SHUFFLE_XOR, mask, value, static_cast<unsigned>(bits), width, place);
}
KVT_DEVICE unsigned __ballot_sync(unsigned mask, int predicate, KVT_HERE) {
    return kvt_emu_vote(KVT_VOTE_BALLOT, mask, predicate, place);
}
KVT_DEVICE int __any_sync(unsigned mask, int predicate, KVT_HERE) {
    return static_cast<int>(kvt_emu_vote(KVT_VOTE_ANY, mask, predicate, place));
}
KVT_DEVICE int __all_sync(unsigned mask, int predicate, KVT_HERE) {
    return static_cast<int>(kvt_emu_vote(KVT_VOTE_ALL, mask, predicate, place));
}

// Fences order memory; they neither wait nor switch the emulator's threads. The real host reads what kernels publish, so a real
// fence is needed.
KVT_DEVICE void __threadfence() { kvt_emu_fence(1); }
KVT_DEVICE void __threadfence_block() { kvt_emu_fence(0); }
KVT_DEVICE void __threadfence_system() { kvt_emu_fence(1); }
KVT_DEVICE void __nanosleep(unsigned) { kvt_emu_yield(); }

KVT_DEVICE unsigned __float_as_uint(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}
KVT_DEVICE float __uint_as_float(unsigned bits) {
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}
KVT_DEVICE int __float_as_int(float x) { return static_cast<int>(__float_as_uint(x)); }
KVT_DEVICE float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
KVT_DEVICE int __popc(unsigned x) { return __builtin_popcount(x); }
KVT_DEVICE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
KVT_DEVICE int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
KVT_DEVICE int __ffsll(long long x) { return __builtin_ffsll(x); }
KVT_DEVICE int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
KVT_DEVICE int __ffs(int x) { return __builtin_ffs(x); }
KVT_DEVICE unsigned __brev(unsigned x) {
    x = (x >> 16) | (x << 16);
    x = ((x & 0xff00ff00u) >> 8) | ((x & 0x00ff00ffu) << 8);
    x = ((x & 0xf0f0f0f0u) >> 4) | ((x & 0x0f0f0f0fu) << 4);
    x = ((x & 0xccccccccu) >> 2) | ((x & 0x33333333u) << 2);
    return ((x & 0xaaaaaaaau) >> 1) | ((x & 0x55555555u) << 1);
}
// Returns the bytes of y:x selected by the nibbles of `selector` (0 to 7; the sign mode, bit 3, is not supported).
KVT_DEVICE unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long all = (static_cast<unsigned long long>(y) << 32) | x;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; ++i) {
        result |= static_cast<unsigned>((all >> (8 * ((selector >> (4 * i)) & 7u))) & 0xffu) << (8 * i);
    }
    return result;
}
KVT_DEVICE unsigned __umulhi(unsigned x, unsigned y) {
    return static_cast<unsigned>((static_cast<unsigned long long>(x) * y) >> 32);
}
// Each result is rounded once: kernels are compiled with -ffp-contract=off.
KVT_DEVICE float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
KVT_DEVICE float __fadd_rn(float x, float y) { return x + y; }
KVT_DEVICE float __fsub_rn(float x, float y) { return x - y; }
KVT_DEVICE float __fmul_rn(float x, float y) { return x * y; }
KVT_DEVICE float __fdiv_rn(float x, float y) { return x / y; }
KVT_DEVICE float __fsqrt_rn(float x) { return sqrtf(x); }
KVT_DEVICE float __fdividef(float x, float y) { return x / y; }
KVT_DEVICE float __frcp_rn(float x) { return 1.0f / x; }
KVT_DEVICE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
// As in CUDA: to nearest, ties to even; out of range to the nearest end, NaN to 0.
KVT_DEVICE int __float2int_rn(float x) {
    if (!(x == x)) {
        return 0;
    }
    float nearest = rintf(x);
    return nearest >= 2147483648.0f ? 2147483647 : nearest < -2147483648.0f ? -2147483647 - 1 : static_cast<int>(nearest);
}
KVT_DEVICE float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

#define KVT_MIN_MAX(type)                                                 \
    KVT_DEVICE type min(type x, type y) { return y < x ? y : x; }         \
    KVT_DEVICE type max(type x, type y) { return x < y ? y : x; }
KVT_MIN_MAX(int)
KVT_MIN_MAX(unsigned)
KVT_MIN_MAX(long)
KVT_MIN_MAX(unsigned long)
KVT_MIN_MAX(unsigned long long)
#undef KVT_MIN_MAX
KVT_DEVICE float min(float x, float y) { return fminf(x, y); }
KVT_DEVICE float max(float x, float y) { return fmaxf(x, y); }

#define KVT_ATOMICS(type, small, big)                                                                        \
    KVT_DEVICE type atomicAdd(type* p, type v) {                                                             \
        return static_cast<type>(kvt_emu_atomic(KVT_ATOMIC_ADD, p, sizeof(type), static_cast<uint64_t>(v), 0)); \
    }                                                                                                        \
    KVT_DEVICE type atomicMin(type* p, type v) {                                                             \
        return static_cast<type>(kvt_emu_atomic(small, p, sizeof(type), static_cast<uint64_t>(v), 0));       \
    }                                                                                                        \
    KVT_DEVICE type atomicMax(type* p, type v) {                                                             \
        return static_cast<type>(kvt_emu_atomic(big, p, sizeof(type), static_cast<uint64_t>(v), 0));         \
    }                                                                                                        \
    KVT_DEVICE type atomicAnd(type* p, type v) {                                                             \
        return static_cast<type>(kvt_emu_atomic(KVT_ATOMIC_AND, p, sizeof(type), static_cast<uint64_t>(v), 0)); \
    }                                                                                                        \
    KVT_DEVICE type atomicOr(type* p, type v) {                                                              \
        return static_cast<type>(kvt_emu_atomic(KVT_ATOMIC_OR, p, sizeof(type), static_cast<uint64_t>(v), 0)); \
    }                                                                                                        \
    KVT_DEVICE type atomicXor(type* p, type v) {                                                             \
        return static_cast<type>(kvt_emu_atomic(KVT_ATOMIC_XOR, p, sizeof(type), static_cast<uint64_t>(v), 0)); \
    }                                                                                                        \
    KVT_DEVICE type atomicExch(type* p, type v) {                                                            \
        return static_cast<type>(kvt_emu_atomic(KVT_ATOMIC_EXCHANGE, p, sizeof(type), static_cast<uint64_t>(v), 0)); \
    }                                                                                                        \
    KVT_DEVICE type atomicCAS(type* p, type compare, type v) {                                               \
        return static_cast<type>(kvt_emu_atomic(KVT_ATOMIC_COMPARE, p, sizeof(type), static_cast<uint64_t>(v), \
                                                static_cast<uint64_t>(compare)));                            \
    }
KVT_ATOMICS(int, KVT_ATOMIC_MIN_SIGNED, KVT_ATOMIC_MAX_SIGNED)
KVT_ATOMICS(unsigned, KVT_ATOMIC_MIN, KVT_ATOMIC_MAX)
KVT_ATOMICS(uint64_t, KVT_ATOMIC_MIN, KVT_ATOMIC_MAX)
KVT_ATOMICS(unsigned long long, KVT_ATOMIC_MIN, KVT_ATOMIC_MAX)
#undef KVT_ATOMICS
KVT_DEVICE unsigned atomicSub(unsigned* p, unsigned v) { return atomicAdd(p, 0u - v); }
KVT_DEVICE float atomicAdd(float* p, float v) {
    return __uint_as_float(static_cast<unsigned>(kvt_emu_atomic(KVT_ATOMIC_ADD_F32, p, 4, __float_as_uint(v), 0)));
}

// ---- The names of device.cuh ----

namespace kvt {

KVT_DEVICE u32 kvt_tid() { return threadIdx.x; }
KVT_DEVICE u32 kvt_bid() { return blockIdx.x; }
KVT_DEVICE u32 kvt_bdim() { return blockDim.x; }
KVT_DEVICE u32 kvt_gdim() { return gridDim.x; }
KVT_DEVICE u32 kvt_lane() { return threadIdx.x & 31; }
KVT_DEVICE u32 kvt_warp() { return threadIdx.x >> 5; }

template <class T>
KVT_DEVICE T* kvt_shared(u32 bytes) {
    return reinterpret_cast<T*>(kvt_emu_dynamic_shared() + bytes);
}

KVT_DEVICE void kvt_barrier(u32 id, u32 threads, KVT_HERE) { kvt_emu_barrier(id, threads, KVT_REDUCE_NONE, 0, place); }
KVT_DEVICE void kvt_trap(KVT_HERE) { kvt_emu_trap(place); }

KVT_DEVICE void cp_async16(void* shared, const void* from) { kvt_emu_copy_async(shared, from, 16, 16); }
KVT_DEVICE void cp_async16_ahead(void* shared, const void* from) { kvt_emu_copy_async(shared, from, 16, 16); }
KVT_DEVICE void cp_async16_zfill(void* shared, const void* from, u32 bytes) { kvt_emu_copy_async(shared, from, 16, bytes); }
KVT_DEVICE void cp_async8(void* shared, const void* from) { kvt_emu_copy_async(shared, from, 8, 8); }
KVT_DEVICE void cp_async4(void* shared, const void* from) { kvt_emu_copy_async(shared, from, 4, 4); }
KVT_DEVICE void cp_async_commit() { kvt_emu_copy_commit(); }
template <int N>
KVT_DEVICE void cp_async_wait() {
    static_assert(N >= 0, "groups under way");
    kvt_emu_copy_wait(N);
}
KVT_DEVICE void cp_async_wait_all() { kvt_emu_copy_wait(-1); }

KVT_DEVICE void ldmatrix_x4(u32 (&r)[4], const void* shared_row, KVT_HERE) {
    KvtFour four = kvt_emu_ldmatrix(shared_row, 4, 0, place);
    r[0] = four.r[0], r[1] = four.r[1], r[2] = four.r[2], r[3] = four.r[3];
}
KVT_DEVICE void ldmatrix_x4_trans(u32 (&r)[4], const void* shared_row, KVT_HERE) {
    KvtFour four = kvt_emu_ldmatrix(shared_row, 4, 1, place);
    r[0] = four.r[0], r[1] = four.r[1], r[2] = four.r[2], r[3] = four.r[3];
}
KVT_DEVICE void ldmatrix_x2(u32 (&r)[2], const void* shared_row, KVT_HERE) {
    KvtFour four = kvt_emu_ldmatrix(shared_row, 2, 0, place);
    r[0] = four.r[0], r[1] = four.r[1];
}
KVT_DEVICE void ldmatrix_x2_trans(u32 (&r)[2], const void* shared_row, KVT_HERE) {
    KvtFour four = kvt_emu_ldmatrix(shared_row, 2, 1, place);
    r[0] = four.r[0], r[1] = four.r[1];
}

template <class T>
struct Element;
template <>
struct Element<f16> {
    static constexpr KvtElement KIND = KVT_ELEMENT_F16;
};
template <>
struct Element<bf16> {
    static constexpr KvtElement KIND = KVT_ELEMENT_BF16;
};
template <class T>
KVT_DEVICE void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, KVT_HERE) {
    KvtFourF four = kvt_emu_mma(Element<T>::KIND, d[0], d[1], d[2], d[3], a[0] | static_cast<u64>(a[1]) << 32,
                                a[2] | static_cast<u64>(a[3]) << 32, b0 | static_cast<u64>(b1) << 32, place);
    d[0] = four.d[0], d[1] = four.d[1], d[2] = four.d[2], d[3] = four.d[3];
}

// A subnormal becomes a zero of the same sign, as .ftz does with operands and results.
KVT_DEVICE float flush(float x) {
    return (__float_as_uint(x) & 0x7f800000u) == 0 ? __uint_as_float(__float_as_uint(x) & 0x80000000u) : x;
}
KVT_DEVICE float ex2(float x) { return flush(exp2f(flush(x))); }
KVT_DEVICE float lg2(float x) { return log2f(flush(x)); }
KVT_DEVICE float rcp(float x) { return flush(1.0f / flush(x)); }

KVT_DEVICE float to_f32(f16 x) {
    u32 sign = static_cast<u32>(x.bits & 0x8000u) << 16;
    u32 size = x.bits & 0x7fffu;
    if (size >= 0x7c00u) {
        return __uint_as_float(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    }
    if (size < 0x400u) {
        return __uint_as_float(sign | __float_as_uint(static_cast<float>(size) * 5.9604644775390625e-8f));  // units of 2^-24
    }
    return __uint_as_float(sign | ((size << 13) + ((127u - 15u) << 23)));
}
KVT_DEVICE float to_f32(bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }

template <class T>
KVT_DEVICE T from_f32(float x);
template <>
KVT_DEVICE f16 from_f32<f16>(float x) {
    u32 bits = __float_as_uint(x);
    u32 sign = (bits >> 16) & 0x8000u;
    u32 size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return f16{static_cast<u16>(0x7fffu)};
    }
    if (size >= 0x477ff000u) {  // 65520 and above round to infinity
        return f16{static_cast<u16>(sign | 0x7c00u)};
    }
    if (size < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to units of 2^-24
        return f16{static_cast<u16>(sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u))};
    }
    u32 rounded = (size + 0xfffu + ((size >> 13) & 1u)) >> 13;
    return f16{static_cast<u16>(sign | (rounded - ((127u - 15u) << 10)))};
}
template <>
KVT_DEVICE bf16 from_f32<bf16>(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return bf16{static_cast<u16>(0x7fffu)};
    }
    return bf16{static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
template <>
KVT_DEVICE float from_f32<float>(float x) {
    return x;
}
template <class T>
KVT_DEVICE u32 pack2(float low, float high) {
    return from_f32<T>(low).bits | static_cast<u32>(from_f32<T>(high).bits) << 16;
}

KVT_DEVICE uint4 ld16(const void* p) { return *static_cast<const uint4*>(p); }
KVT_DEVICE uint4 ld16_once(const void* p) { return *static_cast<const uint4*>(p); }
KVT_DEVICE uint4 ld16_stream(const void* p) { return *static_cast<const uint4*>(p); }
KVT_DEVICE void st16(void* p, uint4 v) { *static_cast<uint4*>(p) = v; }
KVT_DEVICE void st16_stream(void* p, uint4 v) { *static_cast<uint4*>(p) = v; }

#define KVT_WORD(type)                                                                                       \
    KVT_DEVICE type ld_acquire_sys(const type* p) { return static_cast<type>(kvt_emu_load(p, sizeof(type), 1)); } \
    KVT_DEVICE type ld_relaxed_sys(const type* p) { return static_cast<type>(kvt_emu_load(p, sizeof(type), 0)); } \
    KVT_DEVICE type ld_acquire_gpu(const type* p) { return static_cast<type>(kvt_emu_load(p, sizeof(type), 1)); } \
    KVT_DEVICE void st_release_sys(type* p, type v) { kvt_emu_store(p, sizeof(type), v, 1); }                \
    KVT_DEVICE void st_relaxed_sys(type* p, type v) { kvt_emu_store(p, sizeof(type), v, 0); }                \
    KVT_DEVICE void st_release_gpu(type* p, type v) { kvt_emu_store(p, sizeof(type), v, 1); }
KVT_WORD(u32)
KVT_WORD(u64)
#undef KVT_WORD

}  // namespace kvt
