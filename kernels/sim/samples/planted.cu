// A correct kernel and its possible bugs, each of which must be caught (tests/planted.rs).
#include "lib/prelude.cuh"

struct PlantedParams {
    u64 in;   // u32[n]
    u64 out;  // u32[grid]: sums of the blocks' shares
    u64 word; // u64
    u32 n;
    u32 bug;
};

enum Bug : u32 {
    NONE,
    NO_BARRIER,
    READS_BEYOND,
    NEVER_WRITTEN,
    RETURNS_EARLY,
    TWO_BARRIERS,
    NO_COPY_WAIT,
    LANES_MISSING,
    MISALIGNED,
    GIVES_UP,
    SHARED_BEYOND,
    NO_WARP_SYNC,
    NULL_POINTER,
    DIVIDES_BY_ZERO,
    SOURCE_LANE_ABSENT,
    ENDLESS_RECURSION,
    OTHERS_LOCAL,
    INDEX_BEYOND,
    WRITES_PARAMS,
    TWO_WRITE,
    WRITES_WHAT_OTHERS_READ,
};

__device__ __noinline__ u32 deeper(volatile u32* from, u32 depth) {
    volatile u32 local[64];
    local[depth & 63] = *from;
    return deeper(local, depth + 1) + local[(depth + 1) & 63];
}

__device__ void planted(const PlantedParams& p) {
    constexpr u32 THREADS = 128;
    u32* stage = kvt_shared<u32>(0);          // u32[THREADS]
    KVT_SHARED(u32, sums, 4);
    KVT_SHARED(u64, pointer, 1);
    const u32* in = reinterpret_cast<const u32*>(p.in);
    u32 t = threadIdx.x, at = blockIdx.x * THREADS + t;
    u32 value = 0;
    if (at < p.n) {
        value = in[at];
    }
    if (t % 4 == 0) {
        cp_async16(stage + t, in + at);
    }
    cp_async_commit();
    if (p.bug != NO_COPY_WAIT) {
        cp_async_wait<0>();
    }
    if (p.bug == RETURNS_EARLY && t >= 64) {
        return;
    }
    if (p.bug != NO_BARRIER) {
        __syncthreads();
    }
    value += stage[(t + 1) % THREADS];
    switch (p.bug) {
        case READS_BEYOND:
            value += in[p.n];
            break;
        case NEVER_WRITTEN:
            value += sums[0];
            break;
        case TWO_BARRIERS:
            if (t < 64) {
                __syncthreads();
            } else {
                __syncthreads();
            }
            break;
        case LANES_MISSING:
            if (t % 32 != 7) {
                value += __ballot_sync(FULL, 1);
            }
            break;
        case MISALIGNED:
            value += ld16(in + t + 1).x;
            break;
        case GIVES_UP:
            if (t == 5) {
                kvt_trap();
            }
            break;
        case SHARED_BEYOND:
            stage[THREADS + t / 127] = value;
            break;
        case NO_WARP_SYNC:
            __syncthreads();
            stage[t] = value;
            value += stage[t ^ 1];
            break;
        case NULL_POINTER:
            value += *reinterpret_cast<const u32*>(p.word);
            break;
        case DIVIDES_BY_ZERO:
            value /= static_cast<u32>(p.word);
            break;
        case SOURCE_LANE_ABSENT:
            if (t % 32 < 16) {
                value += __shfl_sync(0xffffu, value, 20);
            }
            break;
        case ENDLESS_RECURSION:
            value += deeper(&value, 0);
            break;
        case OTHERS_LOCAL:
            if (t == 0) {
                pointer[0] = reinterpret_cast<u64>(&value);
            }
            __syncthreads();
            value += *reinterpret_cast<u32*>(pointer[0]);
            break;
        case INDEX_BEYOND: {
            u32 local[4] = {value, 1, 2, 3};
            value += local[p.n];
            break;
        }
        case WRITES_PARAMS:
            const_cast<PlantedParams&>(p).n = 0;
            break;
        case TWO_WRITE:
            sums[t / 64] = value;
            break;
        case WRITES_WHAT_OTHERS_READ:
            // The neighbour has read by now, because a shuffle waits for it; but a shuffle orders no memory.
            value = __shfl_sync(FULL, value, 0);
            if (t % 32 != 0) {
                stage[t] = value;
            }
            break;
        default:
            break;
    }
    u32 sum = warp_sum(value);
    if (kvt_lane() == 0) {
        sums[kvt_warp()] = sum;
    }
    __syncthreads();
    if (t == 0) {
        u32* out = reinterpret_cast<u32*>(p.out);
        out[blockIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
    }
}
KVT_KERNEL(kvt_sim_planted, PlantedParams, 128, planted)

// Sums `n` words slowly, to expose a stream that delivers too late; if `word` is not 0, adds to it.
__device__ void total(const PlantedParams& p) {
    const u32* in = reinterpret_cast<const u32*>(p.in);
    u32 sum = 0;
    for (u32 i = threadIdx.x; i < p.n; i += 32) {
        sum += in[i];
    }
    sum = warp_sum(sum);
    if (threadIdx.x == 0) {
        *reinterpret_cast<u32*>(p.out) = sum;
        if (p.word != 0) {
            atomicAdd(reinterpret_cast<u64*>(p.word), u64(1));
        }
    }
}
KVT_KERNEL(kvt_sim_total, PlantedParams, 32, total)

// Counts the threads of all blocks.
__device__ void count(const PlantedParams& p) { atomicAdd(reinterpret_cast<u64*>(p.word), u64(1)); }
KVT_KERNEL(kvt_sim_count, PlantedParams, 1024, count)
