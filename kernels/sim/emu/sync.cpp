// Barriers and collectives of a warp. The last thread to arrive executes the collective for all; the others sleep until then.
#include "emu.h"

#include <string.h>

namespace emu {
namespace {

bool same_place(const KvtPlace& a, const KvtPlace& b) { return a.line == b.line && strcmp(a.file, b.file) == 0; }

int reduced(KvtReduce kind, uint32_t yes, uint32_t all) {
    switch (kind) {
        case KVT_REDUCE_OR: return yes != 0;
        case KVT_REDUCE_AND: return yes == all;
        case KVT_REDUCE_COUNT: return static_cast<int>(yes);
        case KVT_REDUCE_NONE: break;
    }
    return 0;
}

void met_at_barrier(Block& block, Fiber& fiber, uint32_t id) {
    if (block.barrier_expected[id] == block.threads) {
        fiber.met.block = block.meetings_held;
    } else {
        fiber.met.warps_when = block.meetings_held;
        fiber.met.warps = block.barrier_warps[id];
    }
}

const char* name_of(Collective what) {
    switch (what) {
        case Collective::SYNC: return "__syncwarp";
        case Collective::SHUFFLE: return "a shuffle";
        case Collective::VOTE: return "a vote";
        case Collective::LDMATRIX: return "ldmatrix";
        case Collective::MMA: return "mma";
    }
    return "";
}

void sync_lanes(Block& block, Fiber* lanes, uint32_t mask) {
    block.meetings_held += 1;
    for (uint32_t lane = 0; lane < WARP; ++lane) {
        if ((mask >> lane & 1) == 0) {
            continue;
        }
        if (mask == 0xffffffffu) {
            lanes[lane].met.warp = block.meetings_held;
        } else {
            lanes[lane].met.lanes_when = block.meetings_held;
            lanes[lane].met.lanes = mask;
        }
    }
}

void shuffle(Block& block, Fiber* lanes, uint32_t mask) {
    for (uint32_t lane = 0; lane < WARP; ++lane) {
        if ((mask >> lane & 1) == 0) {
            continue;
        }
        Fiber& fiber = lanes[lane];
        uint32_t width = fiber.kind >> 8;
        uint32_t argument = static_cast<uint32_t>(fiber.in[1]);
        uint32_t first = lane & ~(width - 1);
        uint32_t from = lane;
        switch (fiber.kind & 0xff) {
            case KVT_SHUFFLE_INDEX: from = first | (argument & (width - 1)); break;
            case KVT_SHUFFLE_UP: from = argument <= lane - first ? lane - argument : lane; break;
            case KVT_SHUFFLE_DOWN: from = argument < width - (lane - first) ? lane + argument : lane; break;
            case KVT_SHUFFLE_XOR: from = (lane ^ argument) < first + width ? lane ^ argument : lane; break;
        }
        if ((mask >> from & 1) == 0) {
            fail(block, FAULT_DIVERGENT, nullptr, "lane %u shuffles from lane %u, which is not in the mask %08x (%s:%d)", lane, from,
                 mask, fiber.place.file, fiber.place.line);
        }
        fiber.out[0] = static_cast<uint32_t>(lanes[from].in[0]);
    }
}

void vote(Block&, Fiber* lanes, uint32_t mask) {
    uint32_t yes = 0;
    for (uint32_t lane = 0; lane < WARP; ++lane) {
        yes |= (mask >> lane & 1) != 0 && lanes[lane].in[0] != 0 ? 1u << lane : 0;
    }
    for (uint32_t lane = 0; lane < WARP; ++lane) {
        if ((mask >> lane & 1) == 0) {
            continue;  // its result may be another vote's, which it has not read yet
        }
        switch (lanes[lane].kind) {
            case KVT_VOTE_BALLOT: lanes[lane].out[0] = yes; break;
            case KVT_VOTE_ANY: lanes[lane].out[0] = yes != 0; break;
            case KVT_VOTE_ALL: lanes[lane].out[0] = yes == mask; break;
        }
    }
}

}  // namespace

// Joins the lanes of `mask` at one collective.
void meet(Block& block, Fiber& fiber, Collective what, uint32_t kind, uint32_t mask, const KvtPlace& place, CarryOut carry_out) {
    fiber.place = place;
    fiber.what = what;
    fiber.kind = kind;
    fiber.mask = mask;
    if ((mask >> fiber.lane & 1) == 0) {
        fail(block, FAULT_DIVERGENT, nullptr, "the mask %08x of %s leaves out the lane that calls it (%s:%d)", mask, name_of(what),
             place.file, place.line);
    }
    Meeting* free = nullptr;
    Meeting* ours = nullptr;
    for (Meeting& meeting : block.meetings[fiber.warp]) {
        if (meeting.arrived == 0) {
            free = free != nullptr ? free : &meeting;
        } else if (meeting.mask == mask) {
            ours = &meeting;
        }
    }
    if (ours == nullptr) {
        ours = free;  // there are as many entries as lanes, and each lane waits at one
        *ours = {mask, 0, what, kind};
    } else if (ours->what != what || ours->kind != kind) {
        fail(block, FAULT_DIVERGENT, nullptr, "lanes of a warp diverge: this one calls %s (%s:%d), others wait at %s", name_of(what),
             place.file, place.line, name_of(ours->what));
    }
    ours->arrived |= 1u << fiber.lane;
    if (ours->arrived != mask) {
        fiber.state = State::WAITING;
        fiber.wait = Wait::WARP;
        leave(block);
        return;
    }
    Fiber* lanes = &block.fibers[fiber.warp * WARP];
    carry_out(block, lanes, mask);
    ours->arrived = 0;
    for (uint32_t lane = 0; lane < WARP; ++lane) {
        if ((mask >> lane & 1) != 0 && lane != fiber.lane) {
            make_ready(block, lanes[lane]);
        }
    }
}

}  // namespace emu

using namespace emu;

extern "C" {

int kvt_emu_barrier(uint32_t id, uint32_t threads, KvtReduce kind, int predicate, KvtPlace place) {
    Block& block = *the_block;
    Fiber& fiber = *block.current;
    uint32_t expected = threads == 0 ? block.threads : threads;
    if (id >= BARRIERS || expected > block.threads || (threads != 0 && threads % WARP != 0)) {
        fail(block, FAULT_SHAPE, nullptr, "barrier %u for %u threads: there are 16, for whole warps of the block (%s:%d)", id, threads,
             place.file, place.line);
    }
    if (block.barrier_arrived[id] == 0) {
        block.barrier_expected[id] = expected;
        block.barrier_place[id] = place;
        block.barrier_kind[id] = kind;
        block.barrier_true[id] = 0;
        block.barrier_warps[id] = 0;
    } else if (block.barrier_expected[id] != expected || block.barrier_kind[id] != kind ||
               (id == 0 && !same_place(block.barrier_place[id], place))) {
        fail(block, FAULT_DIVERGENT, nullptr, "threads meet at different barriers: this one at %s:%d, others at %s:%d", place.file,
             place.line, block.barrier_place[id].file, block.barrier_place[id].line);
    }
    block.barrier_arrived[id] += 1;
    block.barrier_true[id] += predicate != 0;
    block.barrier_warps[id] |= 1u << fiber.warp;
    fiber.place = place;
    fiber.barrier = id;
    if (block.barrier_arrived[id] < expected) {
        fiber.state = State::WAITING;
        fiber.wait = Wait::BARRIER;
        leave(block);
        return static_cast<int>(fiber.out[0]);
    }
    int result = reduced(kind, block.barrier_true[id], expected);
    block.barrier_arrived[id] = 0;
    block.meetings_held += 1;
    met_at_barrier(block, fiber, id);
    for (uint32_t i = 0; i < block.threads; ++i) {
        Fiber& other = block.fibers[i];
        if (other.state == State::WAITING && other.wait == Wait::BARRIER && other.barrier == id) {
            other.out[0] = static_cast<uint32_t>(result);
            met_at_barrier(block, other, id);
            make_ready(block, other);
        }
    }
    pause(block);
    return result;
}

void kvt_emu_sync_warp(uint32_t mask, KvtPlace place) {
    meet(*the_block, *the_block->current, Collective::SYNC, 0, mask, place, sync_lanes);
}

uint32_t kvt_emu_shuffle(KvtShuffle kind, uint32_t mask, uint32_t value, uint32_t lane, int width, KvtPlace place) {
    Block& block = *the_block;
    Fiber& fiber = *block.current;
    if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
        fail(block, FAULT_TRAP, nullptr, "a shuffle's width is a power of two up to 32, not %d (%s:%d)", width, place.file, place.line);
    }
    fiber.in[0] = value;
    fiber.in[1] = lane;
    meet(block, fiber, Collective::SHUFFLE, kind | static_cast<uint32_t>(width) << 8, mask, place, shuffle);
    return fiber.out[0];
}

uint32_t kvt_emu_vote(KvtVote kind, uint32_t mask, int predicate, KvtPlace place) {
    Block& block = *the_block;
    Fiber& fiber = *block.current;
    fiber.in[0] = predicate != 0;
    meet(block, fiber, Collective::VOTE, kind, mask, place, vote);
    return fiber.out[0];
}
}
