// The bytes of memory that a launch reads and writes, other than by atomics, in granules of 64 bytes.
#include "emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace emu {
namespace {

constexpr uint32_t ROOM_MIN = 1024;

// Slots are twice as many as granules, and neighbours in memory are neighbours there.
uint32_t* slot_of(Touched& touched, uint64_t at) {
    uint32_t mask = 2 * touched.room - 1;
    for (uint32_t i = static_cast<uint32_t>(at) & mask;; i = (i + 1) & mask) {
        uint32_t* slot = &touched.slots[i];
        if (*slot == 0 || touched.all[*slot - 1].at == at) {
            return slot;
        }
    }
}

void grow(Touched& touched) {
    touched.room = touched.room == 0 ? ROOM_MIN : 2 * touched.room;
    touched.all = static_cast<Granule*>(realloc(touched.all, touched.room * sizeof(Granule)));
    free(touched.slots);
    touched.slots = static_cast<uint32_t*>(calloc(2 * static_cast<size_t>(touched.room), sizeof(uint32_t)));
    if (touched.all == nullptr || touched.slots == nullptr) {
        perror("kvt_emu: the bytes that a launch touches");
        abort();
    }
    for (uint32_t i = 0; i < touched.count; ++i) {
        *slot_of(touched, touched.all[i].at) = i + 1;
    }
}

Granule& granule(Touched& touched, uint64_t at) {
    if (touched.count == touched.room) {
        grow(touched);
    }
    uint32_t* slot = slot_of(touched, at);
    if (*slot == 0) {
        touched.all[touched.count] = {at, 0, 0};
        *slot = ++touched.count;
    }
    return touched.all[*slot - 1];
}

}  // namespace

void touch(Block& block, const void* p, uint32_t bytes, bool write) {
    uint64_t low = reinterpret_cast<uint64_t>(p);
    while (bytes > 0) {
        uint32_t first = low % GRANULE, here = bytes < GRANULE - first ? bytes : GRANULE - first;
        uint64_t mask = (~0ull >> (GRANULE - here)) << first;
        Granule& at = granule(block.touched, low / GRANULE);
        (write ? at.written : at.read) |= mask;
        low += here;
        bytes -= here;
    }
}

void touched_reset(Block& block) {
    Touched& touched = block.touched;
    // Last in, first out: a search passes only slots that were taken before its own.
    for (; touched.count > 0; --touched.count) {
        *slot_of(touched, touched.all[touched.count - 1].at) = 0;
    }
}

void free_touched(Block& block) {
    free(block.touched.all);
    free(block.touched.slots);
}

}  // namespace emu
