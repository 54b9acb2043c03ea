// Types and qualifiers that both versions share.
#pragma once

// The fixed-width names as in glibc on 64-bit Linux. Repeating an equal typedef is allowed, so this agrees with <stdint.h> if a
// host compiler included it, and replaces it under NVRTC, which has no headers. The generated params.h uses these names.
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;

#if defined(KVT_HOST)
#define KVT_DEVICE inline __attribute__((always_inline))
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#else
#define KVT_DEVICE __device__ __forceinline__
#endif

// The vector types that CUDA builds into its compilers.
#if defined(KVT_HOST)
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct uint3 {
    unsigned x, y, z;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
#endif

namespace kvt {

typedef int8_t i8;
typedef uint8_t u8;
typedef int16_t i16;
typedef uint16_t u16;
typedef int32_t i32;
typedef uint32_t u32;
typedef int64_t i64;
typedef uint64_t u64;
typedef float f32;

static_assert(sizeof(u64) == 8 && sizeof(u32) == 4 && sizeof(void*) == 8, "64-bit Linux");

// IEEE binary16 and bfloat16 as storage: arithmetic is done in f32 or in the tensor cores.
struct alignas(2) f16 {
    u16 bits;
};
struct alignas(2) bf16 {
    u16 bits;
};

// Threads of a warp.
constexpr u32 WARP = 32;
// The mask of a full warp.
constexpr u32 FULL = 0xffffffffu;

}  // namespace kvt
