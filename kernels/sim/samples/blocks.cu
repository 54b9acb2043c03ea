// Blocks of a launch that read what others wrote, right or with a bug that must be caught (tests/blocks.rs).
#include "lib/prelude.cuh"

struct BlocksParams {
    u64 in;    // not used
    u64 out;   // u32[grid]: a value of each block; then their sum, and one more word
    u64 word;  // u32[2]: tickets, 0 before
    u32 n;
    u32 bug;
};

enum BlocksBug : u32 {
    RIGHT,
    NO_FENCE_BEFORE,
    NO_FENCE_AFTER,
    BLOCK_FENCE,
    NO_BARRIER_BEFORE,
    NO_TICKET,
    WRITES_A_WORD_OF_OTHERS,
    COUNTS_WITHOUT_ATOMICS,
    RELAXED_FLAG,
    // Right too.
    EACH_WARP_TAKES_A_TICKET,
    BYTES_SIDE_BY_SIDE,
    RELEASED_FLAG,
    THROUGH_A_SECOND_TICKET,
    VALUES_ARE_ATOMIC,
    MEETS_ANOTHER,
};

// Returns whether this thread's block is the last of `count`.
__device__ bool take(u32* ticket, u32 count, u32 bug) {
    if (bug == BLOCK_FENCE) {
        __threadfence_block();
    } else if (bug != NO_FENCE_BEFORE) {
        __threadfence();
    }
    bool last = atomicAdd(ticket, 1u) + 1 == count;
    if (bug != NO_FENCE_AFTER) {
        __threadfence();
    }
    return last;
}

__device__ void sum_up(const BlocksParams& p) {
    KVT_SHARED(u32, last, 1);
    u32* values = reinterpret_cast<u32*>(p.out);
    u32* tickets = reinterpret_cast<u32*>(p.word);
    u32 t = threadIdx.x, b = blockIdx.x, blocks = gridDim.x;
    switch (p.bug) {
        case NO_TICKET:
            values[b] = b;
            values[blocks] += values[(b + 1) % blocks];
            return;
        case WRITES_A_WORD_OF_OTHERS:
            values[t == 0 ? b : blocks] = b;
            return;
        case COUNTS_WITHOUT_ATOMICS:
            if (t == 0) {
                values[b] = b;
                tickets[0] += 1;
            }
            return;
        case BYTES_SIDE_BY_SIDE:
            if (t == 33) {
                reinterpret_cast<u8*>(values)[b] = static_cast<u8>(b);
            }
            break;
        case RELEASED_FLAG:
        case RELAXED_FLAG:
            // The first block that comes here writes, the others read if they see its flag.
            if (t == 0) {
                if (atomicAdd(tickets, 1u) == 0) {
                    values[0] = 7;
                    p.bug == RELAXED_FLAG ? st_relaxed_sys(tickets + 1, 1u) : st_release_gpu(tickets + 1, 1u);
                } else if (ld_acquire_gpu(tickets + 1) == 1) {
                    values[1 + b] = values[0];
                }
            }
            return;
        case MEETS_ANOTHER:
            // Counts the blocks that began and had not ended.
            if (t == 0) {
                u32 others = 0;
                atomicAdd(tickets, 1u);
                for (u32 i = 0; i < 10000 && others == 0; ++i) {
                    u32 ended = ld_relaxed_sys(tickets + 1);
                    others = ld_relaxed_sys(tickets) - ended - 1;
                }
                atomicAdd(tickets + 1, 1u);
                values[b] = others;
            }
            return;
        case VALUES_ARE_ATOMIC:
            if (t == 0) {
                atomicExch(values + b, b);
                atomicExch(values + blocks, atomicAdd(values + (b + 1) % blocks, 0u));
            }
            return;
        case EACH_WARP_TAKES_A_TICKET:
            // Lanes of a warp, not of the block, are ordered by __syncwarp.
            if (t % 32 == 1) {
                values[b * 4 + t / 32] = 1;
            }
            __syncwarp();
            if (t % 32 == 0 && take(tickets, blocks * 4, RIGHT)) {
                u32 sum = 0;
                for (u32 i = 0; i < blocks * 4; ++i) {
                    sum += values[i];
                }
                values[blocks * 4] = sum;
            }
            return;
        default:
            break;
    }
    if (t == 33 && p.bug != BYTES_SIDE_BY_SIDE) {
        values[b] = b;
    }
    if (p.bug != NO_BARRIER_BEFORE) {
        __syncthreads();
    }
    if (t == 0) {
        last[0] = take(tickets, blocks, p.bug);
        if (p.bug == THROUGH_A_SECOND_TICKET && last[0] != 0) {
            // What it has acquired by the first ticket it passes on by the second.
            last[0] = take(tickets + 1, 1, RIGHT);
        }
    }
    __syncthreads();
    if (last[0] != 0 && t == 64) {
        u32 sum = 0;
        for (u32 i = 0; i < blocks; ++i) {
            sum += p.bug == BYTES_SIDE_BY_SIDE ? reinterpret_cast<u8*>(values)[i] : values[i];
        }
        values[blocks] = sum;
    }
}
KVT_KERNEL(kvt_sim_blocks, BlocksParams, 128, sum_up)
