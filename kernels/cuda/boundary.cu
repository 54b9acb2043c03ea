// Boundaries of a lane: write the agent's updates to the table, then build a batch's block tables and miss bits from it.
//
// Two kernels in stream order, because every block of the second reads the first one's output. The first is a single CTA,
// because updates of a page are ordered and a boundary has few of them. It is `boundary_apply`, or, in a captured graph,
// `boundary_gate`, which first waits for the host to complete the boundary.
#include "pages.cuh"

namespace {

constexpr u32 CHUNK = 256;
constexpr u32 NO_PAGE = 0xffffffffu;

// Pause between two reads of a word in host memory: much less than a copy of a page, and many times a read over the bus.
constexpr u32 POLL_NS = 500;

// Both kinds of boundary have a ring, a table and a status word.
template <class Params>
KVT_DEVICE u64 update_at(const Params& p, u32 index) {
    return ld_relaxed_sys(at<const u64>(p.updates) + (index & p.mask));
}

// Only the lane's first failure is kept.
template <class Params>
KVT_DEVICE void report(const Params& p, u32 status) {
    if (status != 0 && p.status != 0) {
        atomicCAS(at<u32>(p.status), 0u, status);
    }
}

// Applies the updates that thread 0 passes, with all threads of a block of CHUNK threads. More updates than the ring holds are
// none: not all of them can be valid.
template <class Params>
KVT_DEVICE void apply_range(const Params& p, u32 first_of_0, u32 count_of_0) {
    KVT_SHARED(u32, range, 2);
    KVT_SHARED(u32, pages, CHUNK);
    const u32 tid = kvt_tid();
    if (tid == 0) {
        const bool fits = count_of_0 <= p.mask + 1;
        range[0] = first_of_0;
        range[1] = fits ? count_of_0 : 0;
        report(p, fits ? 0 : BAD_UPDATE);
    }
    __syncthreads();
    const u32 first = range[0];
    const u32 count = range[1];
    u64 next = tid < count ? update_at(p, first + tid) : 0;
    for (u32 base = 0; base < count; base += CHUNK) {
        const u64 update = next;
        const u32 filled = min(CHUNK, count - base);
        // The next chunk crosses the bus while this one is processed.
        if (tid < count - base - filled) {
            next = update_at(p, first + base + CHUNK + tid);
        }
        const u32 page = static_cast<u32>(update);
        pages[tid] = tid < filled ? page : NO_PAGE;
        __syncthreads();
        bool last = tid < filled;
        if (last && page >= p.pages) {
            last = false;
            report(p, BAD_UPDATE);
        }
        for (u32 later = tid + 1; later < filled; ++later) {
            last = last && pages[later] != page;
        }
        if (last) {
            at<u32>(p.table)[page] = static_cast<u32>(update >> 32);
        }
        // Orders this chunk's writes before the next one's, and frees `pages`.
        __syncthreads();
    }
}

KVT_DEVICE void apply(const BoundaryApplyParams& p) {
    u64 words = p.first | static_cast<u64>(p.count) << 32;
    if (kvt_tid() == 0 && p.words != 0) {
        // Written before the word for which the stream waited was released: the newest value is valid.
        words = ld_relaxed_sys(at<const u64>(p.words));
        report(p, ld_relaxed_sys(at<const u32>(p.words) + 2));
    }
    apply_range(p, static_cast<u32>(words), static_cast<u32>(words >> 32));
}

KVT_DEVICE void open_gates(const GateOpenParams& p) {
    GateState* state = at<GateState>(p.state);
    state->step = p.step;
    state->ready = p.step - 1;
    state->next = p.next;
}

// Waits for one plane of the step, and applies the updates since the last gate.
KVT_DEVICE void gate(const BoundaryGateParams& p) {
    GateState* state = at<GateState>(p.state);
    // Only this stream's kernels write it. Every thread reads it before thread 0 changes it, below a barrier.
    const u64 step = state->step;
    if (state->ready == step) {
        return;  // everything is there and applied: no read over the bus
    }
    const u32 next = state->next;
    u32 end = next;
    u32 all = 0;
    if (kvt_tid() == 0) {
        const u64 record = (step & p.slots_mask) * p.planes + p.plane;
        const u64 words = p.words + record * sizeof(GateWords);
        // Acquire: pairs with the host's store, which follows those to the record and the ring.
        while (static_cast<i64>(ld_acquire_sys(at<const u64>(words)) - step) < 0) {
            __nanosleep(POLL_NS);
        }
        end = ld_relaxed_sys(at<const u32>(words) + 2);
        report(p, ld_relaxed_sys(at<const u32>(words) + 3));
        all = ld_relaxed_sys(at<const u32>(words) + 4);
    }
    apply_range(p, next, end - next);
    if (kvt_tid() == 0) {
        state->next = end;
        if (all != 0) {
            state->ready = step;
        }
    }
}

// One warp per word of miss bits, which covers 32 pages of a sequence, for all planes: the entries of a block are adjacent.
KVT_DEVICE void tables(const BoundaryTablesParams& p) {
    const u32 words = (p.max_blocks + 31) / 32;
    const u32 item = kvt_bid() * (kvt_bdim() / WARP) + kvt_warp();
    if (item >= p.seqs * words) {
        return;
    }
    const u32 seq = item / words;
    const u32 word = item % words;
    const u32 index = word * 32 + kvt_lane();
    const bool column = index < p.max_blocks;
    const u64 length = tokens_of(at<const i32>(p.lengths)[seq]);
    const u32 first = p.starts == 0 ? 0 : tokens_of(at<const i32>(p.starts)[seq]) / p.page_tokens;
    const bool needed = column && index >= first && static_cast<u64>(index) * p.page_tokens < length;
    i32 block = needed ? at<const i32>(p.block_ids)[static_cast<u64>(seq) * p.max_blocks + index] : -1;
    if (failed(p.status)) {
        block = -1;
    }
#pragma unroll 4
    for (u32 i = 0; i < p.plane_count; ++i) {
        u32 entry = entry_of(p.table, block, p.blocks, p.planes, p.plane + i);
        // A mapped frame has no address in a table of frames. 0 wraps around and counts as absent anyway.
        entry = entry - 1 - p.first_frame < p.frames ? entry : 0;
        const u64 row = static_cast<u64>(i) * p.seqs + seq;
        if (p.block_tables != 0 && column) {
            at<i32>(p.block_tables)[row * p.max_blocks + index] =
                entry == 0 ? p.absent : static_cast<i32>(entry - 1 - p.first_frame);
        }
        const u32 missing = __ballot_sync(FULL, needed && entry == 0);
        if (p.misses != 0 && kvt_lane() == 0) {
            at<u32>(p.misses)[row * words + word] = missing;
        }
    }
}

}  // namespace

KVT_KERNEL(boundary_apply, BoundaryApplyParams, 256, apply)
KVT_KERNEL(gate_open, GateOpenParams, 1, open_gates)
KVT_KERNEL(boundary_gate, BoundaryGateParams, 256, gate)
KVT_KERNEL(boundary_tables, BoundaryTablesParams, 256, tables)
