// The work of the whole path, from the lengths of the sequences. A unit is one chunk of one sequence, for one KV head and row tile.
//
// The grid has at most as many blocks as the device runs at a time, whatever the lengths. A block computes unit after unit: first
// the one of its own index, then those that a counter in the workspace gives it. So a ragged batch starts no empty blocks, the
// grid of a captured graph fits every later step within its maxima, and a block that starts late, because copies take its place, leaves its units to
// others. Which block computes a unit has no effect on results.
//
// Units are numbered by sequence, chunk, then KV head and row tile, so that blocks that run together read the same pages.
#pragma once

namespace kvt {

// Returns the chunks of a sequence, for all rows; at least 1, whose blocks report a sequence that is empty or too long.
KVT_DEVICE u32 listed_chunks(const AttentionParams& p, u32 seq) {
    if (seq >= p.seqs) {
        return 0;
    }
    const Chunks c = chunks_of(p, span_of(p, seq, 0, p.q_tokens * p.group));
    return c.count == TOO_MANY ? 1 : max(c.count, 1u);
}

// Returns the sum over the lanes up to this one.
KVT_DEVICE u32 sum_up_to(u32 v) {
#pragma unroll
    for (u32 step = 1; step < WARP; step <<= 1) {
        const u32 other = __shfl_up_sync(FULL, v, step);
        v += kvt_lane() >= step ? other : 0;
    }
    return v;
}

struct Unit {
    u32 seq, chunk;        // chunk: from the first one of the sequence
    u32 head, tile;        // KV head, row tile
    u32 chunks;            // of the row tile; 0: nothing is read. `chunk` may lie beyond them
    bool missing;          // a page of the chunk is not readable
};

// All units of a launch, and the one that this block computes next. In shared memory, because attention needs the registers.
struct Work {
    u32 before[WARP];  // chunks of the sequences before those of lane i; a lane has seqs / 32 of them, rounded up
    u32 chunks;        // of all sequences
    u32 next;          // number of the unit
    Unit held;

    // Called by all threads of the block.
    KVT_DEVICE void begin(const AttentionParams& p) {
        const u32 per = (p.seqs + WARP - 1) / WARP;
        u32 mine = 0;
        for (u32 i = 0; i < per; i++) {
            mine += listed_chunks(p, kvt_lane() * per + i);
        }
        const u32 end = sum_up_to(mine);
        if (threadIdx.x < WARP) {
            before[threadIdx.x] = end - mine;
        }
        if (threadIdx.x == WARP - 1) {
            chunks = end;
            next = blockIdx.x;
        }
        __syncthreads();
    }

    // Reports whether a unit is left for this block.
    KVT_DEVICE bool left(const AttentionParams& p) const { return next < chunks * p.kv_heads * p.tiles; }

    KVT_DEVICE Unit now(const AttentionParams& p) const {
        const u32 per = (p.seqs + WARP - 1) / WARP;
        const u32 parts = p.kv_heads * p.tiles;
        const u32 chunk = next / parts;
        // Every sequence has a chunk, so only lanes without sequences have as many chunks before them as there are.
        const u32 low = before[kvt_lane()];
        const u32 lane = static_cast<u32>(__popc(__ballot_sync(FULL, low <= chunk))) - 1;
        Unit unit;
        unit.chunks = 0;
        unit.missing = false;
        unit.head = next % parts / p.tiles;
        unit.tile = next % p.tiles;
        unit.seq = lane * per;
        unit.chunk = chunk - __shfl_sync(FULL, low, lane);
        for (u32 base = 0; per > 1 && base < per; base += WARP) {
            const u32 i = base + kvt_lane();
            const u32 mine = i < per ? listed_chunks(p, lane * per + i) : 0;
            const u32 end = sum_up_to(mine);
            const u32 holds = __ballot_sync(FULL, unit.chunk < end);
            if (holds != 0) {
                const u32 holder = static_cast<u32>(__ffs(static_cast<i32>(holds))) - 1;
                unit.seq += base + holder;
                unit.chunk -= __shfl_sync(FULL, end - mine, holder);
                break;
            }
            unit.chunk -= __shfl_sync(FULL, end, WARP - 1);
        }
        return unit;
    }

    // Keeps the unit in shared memory while its pages are computed.
    KVT_DEVICE void hold(const Unit& unit) {
        if (threadIdx.x == 0) {
            held = unit;
        }
        __syncthreads();
    }

    // Reserves another unit. Only thread 0 gets it, some time before `advance`, so that no thread waits for the counter.
    KVT_DEVICE u32 reserve(const AttentionParams& p) const {
        return threadIdx.x == 0 ? gridDim.x + atomicAdd(reinterpret_cast<u32*>(p.queue), 1u) : 0;
    }
    // Continues with the reserved unit, after all threads have finished with the block's shared memory and with `held`.
    KVT_DEVICE void advance(u32 reserved) {
        __syncthreads();
        if (threadIdx.x == 0) {
            next = reserved;
        }
        __syncthreads();
    }
    // Ends this block's work. The last block resets the counters for the next launch.
    KVT_DEVICE void end(const AttentionParams& p) const {
        u32* queue = reinterpret_cast<u32*>(p.queue);
        if (threadIdx.x == 0 && atomicAdd(queue + 1, 1u) + 1 == gridDim.x) {
            atomicExch(queue, 0u);
            atomicExch(queue + 1, 0u);
        }
    }
};

}  // namespace kvt
