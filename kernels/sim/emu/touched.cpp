// The bytes of memory that a launch reads and writes, other than by atomics, page by page.
#include "emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace emu {
namespace {

constexpr uint32_t ROOM_MIN = 256;

// There are twice as many slots as pages.
uint32_t* slot_of(Touched& touched, uint64_t at) {
    uint32_t mask = 2 * touched.room - 1;
    for (uint32_t i = static_cast<uint32_t>(at * 0x9e3779b97f4a7c15ull >> 32) & mask;; i = (i + 1) & mask) {
        uint32_t* slot = &touched.slots[i];
        if (*slot == 0 || touched.all[*slot - 1]->at == at) {
            return slot;
        }
    }
}

void* checked(void* memory) {
    if (memory == nullptr) {
        perror("kvt_emu: the bytes that a launch touches");
        abort();
    }
    return memory;
}

void grow(Touched& touched) {
    uint32_t before = touched.room;
    touched.room = before == 0 ? ROOM_MIN : 2 * before;
    touched.all = static_cast<Page**>(checked(realloc(touched.all, touched.room * sizeof(Page*))));
    memset(touched.all + before, 0, (touched.room - before) * sizeof(Page*));
    free(touched.slots);
    touched.slots = static_cast<uint32_t*>(checked(calloc(2 * static_cast<size_t>(touched.room), sizeof(uint32_t))));
    for (uint32_t i = 0; i < touched.count; ++i) {
        *slot_of(touched, touched.all[i]->at) = i + 1;
    }
}

}  // namespace

Page& find_page(Touched& touched, uint64_t at) {
    if (touched.count == touched.room) {
        grow(touched);
    }
    uint32_t* slot = slot_of(touched, at);
    if (*slot == 0) {
        Page*& page = touched.all[touched.count];
        if (page == nullptr) {
            page = static_cast<Page*>(checked(calloc(1, sizeof(Page))));
        }
        page->at = at;
        page->has_cells = page->has_newest = false;
        memset(page->read, 0, sizeof(page->read));
        memset(page->written, 0, sizeof(page->written));
        *slot = ++touched.count;
    }
    Page* page = touched.all[*slot - 1];
    touched.recent[at % RECENT] = page;
    return *page;
}

// Keeps the pages for the next launch.
void touched_reset(Touched& touched) {
    memset(touched.recent, 0, sizeof(touched.recent));
    // Last in, first out: a search passes only slots that were taken before its own.
    for (; touched.count > 0; --touched.count) {
        *slot_of(touched, touched.all[touched.count - 1]->at) = 0;
    }
}

void free_touched(Touched& touched) {
    for (uint32_t i = 0; i < touched.room && touched.all[i] != nullptr; ++i) {
        free(touched.all[i]->cells);
        free(touched.all[i]->newest);
        free(touched.all[i]);
    }
    free(touched.all);
    free(touched.slots);
}

}  // namespace emu
