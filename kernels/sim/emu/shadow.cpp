// Shared memory and its shadow. For each byte two cells record which thread wrote it and which read it since, and when, in the
// block's count of synchronisations. Two accesses of different threads, one of them a write, need a synchronisation between them (a
// barrier, or __syncwarp within a warp; shuffles and votes guarantee no order of memory); atomics need none among themselves. Bytes
// never written may not be read.
//
// Synchronisations are tracked pairwise: an order that exists only through a third warp over two named barriers is not recognised.
#include "emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace emu {
namespace {

// A cell: the time in the upper bits, the thread in the lower bits. 0 is no thread; 1 to 1024 a thread; then groups of threads, by
// kind.
constexpr uint32_t WHO_MASK = (1u << WHO_BITS) - 1;
constexpr uint32_t READERS_OF_WARP = 1025;  // + warp
constexpr uint32_t READERS = READERS_OF_WARP + WARPS_MAX;
constexpr uint32_t ATOMICS_OF_WARP = READERS + 1;  // + warp
constexpr uint32_t ATOMICS = ATOMICS_OF_WARP + WARPS_MAX;
constexpr uint32_t IN_FLIGHT = ATOMICS + 1;
static_assert(IN_FLIGHT <= WHO_MASK, "who fits its bits");
// Above TIME_MAX synchronisations of a block the times no longer fit: races are not checked then, everything else is.

constexpr unsigned char POISON = 0xff;  // NaN in every float format, -1 as an index
constexpr uint32_t GAP = 128;

bool met_warp(const Met& met, uint32_t mine, uint32_t warp, uint32_t time) {
    return (warp == mine && time < met.warp) || (time < met.warps_when && (met.warps >> warp & 1) != 0);
}

}  // namespace

bool met_before(const Met& met, uint32_t mine, uint32_t cell) {
    uint32_t who = cell & WHO_MASK, time = cell >> WHO_BITS;
    if (time < met.block) {
        return true;
    }
    if (who <= THREADS_MAX) {
        uint32_t warp = (who - 1) / WARP, lane = (who - 1) % WARP;
        return met_warp(met, mine, warp, time) || (warp == mine && time < met.lanes_when && (met.lanes >> lane & 1) != 0);
    }
    if (who >= READERS_OF_WARP && who < READERS) {
        return met_warp(met, mine, who - READERS_OF_WARP, time);
    }
    if (who >= ATOMICS_OF_WARP && who < ATOMICS) {
        return met_warp(met, mine, who - ATOMICS_OF_WARP, time);
    }
    return false;
}

namespace {

// Returns whether the access in `cell` happened before now, for this thread.
bool ordered(const Fiber& me, uint32_t cell) {
    return (cell & WHO_MASK) == me.id + 1 || met_before(me.met, me.warp, cell);
}

void name(char* text, size_t bytes, uint32_t cell) {
    uint32_t who = cell & WHO_MASK;
    if (who <= THREADS_MAX) {
        snprintf(text, bytes, "thread %u", who - 1);
    } else if (who < READERS) {
        snprintf(text, bytes, "threads of warp %u", who - READERS_OF_WARP);
    } else if (who >= ATOMICS_OF_WARP && who < ATOMICS) {
        snprintf(text, bytes, "atomics of warp %u", who - ATOMICS_OF_WARP);
    } else {
        snprintf(text, bytes, "several warps");
    }
}

[[noreturn]] void race(Block& block, uint32_t at, const char* now, uint32_t cell, const char* before, const void* pc) {
    if ((cell & WHO_MASK) == IN_FLIGHT) {
        fail(block, FAULT_RACE, pc, "%s shared byte %u while a cp.async to it is under way: no cp_async_wait covers it yet", now, at);
    }
    char other[40];
    name(other, sizeof(other), cell);
    fail(block, FAULT_RACE, pc, "%s shared byte %u, which %s %s with no barrier between", now, at, other, before);
}

// Returns the shadow index of an access, which must be within one array.
uint32_t locate(Block& block, const void* p, uint32_t bytes, const char* now, const void* pc) {
    uint32_t at = static_cast<uint32_t>(static_cast<const unsigned char*>(p) - block.arena);
    if (at + bytes <= block.dynamic_bytes) {
        return at;
    }
    for (uint32_t i = 0; i < block.static_count; ++i) {
        const Static& array = block.statics[i];
        if (at >= array.offset && at + bytes <= array.offset + array.bytes) {
            return at;
        }
    }
    fail(block, FAULT_ADDRESS, pc, "%s %u shared bytes at offset %u: outside of the %u dynamic bytes and of every static array", now,
         bytes, at, block.dynamic_bytes);
}

uint32_t stamp(const Block& block, uint32_t who) { return block.meetings_held << WHO_BITS | who; }

bool watching(const Block& block) { return block.meetings_held < TIME_MAX; }

// Reports a race if a thread accessed these bytes since this thread last synchronised with it.
void claim(Block& block, uint32_t at, uint32_t bytes, uint32_t mine, const char* now, const void* pc) {
    Fiber& me = *block.current;
    for (uint32_t i = at; i < at + bytes; ++i) {
        uint32_t written = block.written[i];
        if (written != 0 && ((written & WHO_MASK) == IN_FLIGHT || (!ordered(me, written) && watching(block)))) {
            race(block, i, now, written, "wrote", pc);
        }
        uint32_t seen = block.seen[i];
        if (seen != 0 && !ordered(me, seen) && watching(block)) {
            race(block, i, now, seen, "read", pc);
        }
        block.written[i] = mine;
        block.seen[i] = 0;
    }
}

}  // namespace

void make_arena(Block& block) {
    size_t shadow = ARENA_BYTES * sizeof(uint32_t);
    void* all = mmap(nullptr, ARENA_BYTES + 2 * shadow, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) {
        perror("kvt_emu: shared memory");
        abort();
    }
    block.arena = static_cast<unsigned char*>(all);
    block.written = reinterpret_cast<uint32_t*>(block.arena + ARENA_BYTES);
    block.seen = block.written + ARENA_BYTES;
}

void free_arena(Block& block) { munmap(block.arena, ARENA_BYTES + 2 * ARENA_BYTES * sizeof(uint32_t)); }

void shadow_reset(Block& block) {
    block.static_count = 0;
    block.static_bytes = 0;
    block.arena_used = (block.dynamic_bytes + 2 * GAP - 1) / GAP * GAP;
    memset(block.arena, POISON, block.arena_used);
    memset(block.written, 0, block.arena_used * sizeof(uint32_t));
    memset(block.seen, 0, block.arena_used * sizeof(uint32_t));
}

void shared_write(Block& block, const void* p, uint32_t bytes, const void* pc) {
    uint32_t at = locate(block, p, bytes, "writes", pc);
    claim(block, at, bytes, stamp(block, block.current->id + 1), "writes", pc);
}

void shared_read(Block& block, const void* p, uint32_t bytes, const void* pc) {
    uint32_t at = locate(block, p, bytes, "reads", pc);
    Fiber& me = *block.current;
    uint32_t mine = stamp(block, me.id + 1);
    uint32_t passed = 0;  // the last cell found in order: bytes of a word mostly have the same
    for (uint32_t i = at; i < at + bytes; ++i) {
        uint32_t written = block.written[i];
        if (written == 0) {
            fail(block, FAULT_RACE, pc, "reads shared byte %u, which was never written", i);
        }
        if (written != passed && ((written & WHO_MASK) == IN_FLIGHT || (!ordered(me, written) && watching(block)))) {
            race(block, i, "reads", written, "wrote", pc);
        }
        passed = written;
        uint32_t seen = block.seen[i];
        if (seen == 0 || ordered(me, seen)) {
            block.seen[i] = mine;
            continue;
        }
        uint32_t who = seen & WHO_MASK;
        uint32_t warp = who <= THREADS_MAX ? (who - 1) / WARP : who - READERS_OF_WARP;
        block.seen[i] = stamp(block, who < READERS && warp == me.warp ? READERS_OF_WARP + warp : READERS);
    }
}

void shared_atomic(Block& block, const void* p, uint32_t bytes, const void* pc) {
    uint32_t at = locate(block, p, bytes, "atomically changes", pc);
    Fiber& me = *block.current;
    for (uint32_t i = at; i < at + bytes; ++i) {
        uint32_t written = block.written[i];
        uint32_t who = written & WHO_MASK;
        if (written == 0) {
            fail(block, FAULT_RACE, pc, "atomically changes shared byte %u, which was never written", i);
        }
        bool atomic = who >= ATOMICS_OF_WARP && who <= ATOMICS;
        if (who == IN_FLIGHT || (!atomic && !ordered(me, written) && watching(block))) {
            race(block, i, "atomically changes", written, "wrote", pc);
        }
        uint32_t seen = block.seen[i];
        if (seen != 0 && !ordered(me, seen) && watching(block)) {
            race(block, i, "atomically changes", seen, "read", pc);
        }
        bool alone = !atomic || ordered(me, written) || who == ATOMICS_OF_WARP + me.warp;
        block.written[i] = stamp(block, alone ? ATOMICS_OF_WARP + me.warp : ATOMICS);
        block.seen[i] = 0;
    }
}

void shared_copy_begins(Block& block, const void* p, uint32_t bytes) {
    uint32_t at = locate(block, p, bytes, "copies to", nullptr);
    claim(block, at, bytes, stamp(block, IN_FLIGHT), "copies to", nullptr);
}

void shared_copy_ends(Block& block, const void* p, uint32_t bytes) {
    uint32_t at = static_cast<uint32_t>(static_cast<const unsigned char*>(p) - block.arena);
    for (uint32_t i = at; i < at + bytes; ++i) {
        block.written[i] = stamp(block, block.current->id + 1);
    }
}

}  // namespace emu

using namespace emu;

extern "C" void* kvt_emu_static_shared(const void* key, size_t bytes, size_t align) {
    Block& block = *the_block;
    for (uint32_t i = 0; i < block.static_count; ++i) {
        if (block.statics[i].key == key) {
            return block.arena + block.statics[i].offset;
        }
    }
    if (block.static_count == STATICS_MAX || align > GAP || block.dynamic_bytes + block.static_bytes + bytes > SHARED_MAX) {
        fail(block, FAULT_SHAPE, nullptr, "%zu more static bytes of shared memory, after %u dynamic and %u static ones: %u is the limit",
             bytes, block.dynamic_bytes, block.static_bytes, SHARED_MAX);
    }
    uint32_t offset = block.arena_used;
    uint32_t room = static_cast<uint32_t>((bytes + 2 * GAP - 1) / GAP * GAP);
    if (offset + room > ARENA_BYTES) {
        fail(block, FAULT_SHAPE, nullptr, "static arrays leave no gaps in %u bytes of shared memory", ARENA_BYTES);
    }
    memset(block.arena + offset, POISON, room);
    memset(block.written + offset, 0, room * sizeof(uint32_t));
    memset(block.seen + offset, 0, room * sizeof(uint32_t));
    block.statics[block.static_count++] = {key, offset, static_cast<uint32_t>(bytes)};
    block.static_bytes += static_cast<uint32_t>(bytes);
    block.arena_used = offset + room;
    return block.arena + offset;
}
