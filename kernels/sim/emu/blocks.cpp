// Memory between the blocks of a launch. What one block writes, another may read only after the writer's fence and an atomic
// operation on some word, and the reader's atomic operation on that word and fence, as in a ticket that finds the last block. The
// check needs no unlucky order of blocks. For each word of memory it notes which thread of which block wrote it, and when (a cell
// of shadow.cpp).
//
// A word whose bytes several threads write one by one is not checked.
#include "emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace emu {
namespace {

constexpr uint32_t MIXED = ~0u;
// Maximum releases of a launch, and steps to pass them on: above them blocks are not checked, and a line says so.
constexpr uint32_t RELEASES_MAX = 1u << 20;
constexpr uint64_t STEPS_MAX = 1u << 27;

template <class T>
T& push(List<T>& list) {
    if (list.count == list.room) {
        list.room = list.room == 0 ? 64 : 2 * list.room;
        list.all = static_cast<T*>(realloc(list.all, list.room * sizeof(T)));
        if (list.all == nullptr) {
            perror("kvt_emu: the order of blocks");
            abort();
        }
    }
    return list.all[list.count++];
}

template <class T>
T* zeroed(T*& words, bool& live) {
    if (!live) {
        words = words != nullptr ? words : static_cast<T*>(malloc(PAGE_WORDS * sizeof(T)));
        if (words == nullptr) {
            perror("kvt_emu: the writers of a page");
            abort();
        }
        memset(words, 0, PAGE_WORDS * sizeof(T));
        live = true;
    }
    return words;
}

bool holds(const List<const void*>& list, const void* word) {
    for (uint32_t i = 0; i < list.count; ++i) {
        if (list.all[i] == word) {
            return true;
        }
    }
    return false;
}

// Returns whether the thread's fence came after what it acquired.
bool acquired(const Fiber& me, const Met& met, const Acquisition& from, uint32_t until) {
    return from.fenced_when != 0 &&
           ((from.id == me.id && from.fenced_when <= until) || met_before(met, me.warp, stamp_of(from.id, from.fenced_when)));
}

void stop_checking(Grid& grid, const char* why) {
    if (grid.checked) {
        fprintf(stderr, "kvtide stand-in: the rest of a launch is not checked for races between blocks: %s\n", why);
        grid.checked = false;
    }
}

bool visible(const Block& block, const Cell& cell) {
    const Fiber& me = *block.current;
    // The newest first: most reads follow the last acquisition.
    for (uint32_t i = block.acquired.count; i-- > 0;) {
        const Acquisition& from = block.acquired.all[i];
        if (!acquired(me, me.met, from, ~0u)) {
            continue;
        }
        for (uint32_t at = from.newest; at != 0; at = block.grid_state->releases.all[at - 1].older) {
            const Release& release = block.grid_state->releases.all[at - 1];
            bool own = cell.stamp < stamp_of(release.id, release.when) && who_of(cell.stamp) == release.id + 1;
            if (release.block == cell.block && (own || met_before(release.met, release.warp, cell.stamp))) {
                return true;
            }
        }
    }
    return false;
}

void check(Block& block, Page& page, uint32_t word, uint64_t bits, uint32_t at, const char* now, const void* pc) {
    const Cell& cell = page.cells[word];
    uint64_t written = page.written[word / 16] >> word % 16 * 4;
    if (cell.block == 0 || cell.block == MIXED || cell.block == block.number || (written & bits) == 0 || visible(block, cell)) {
        return;
    }
    fail(block, FAULT_RACE, pc, "%s %p, which block number %u of the grid wrote, with no __threadfence and atomic operation between",
         now, reinterpret_cast<void*>(page.at * PAGE_BYTES + at), cell.block - 1);
}

}  // namespace

void check_blocks(Block& block, Page& page, uint32_t at, uint32_t bytes, bool write, const void* pc) {
    if (!write && !page.has_cells) {
        return;
    }
    if (block.meetings_held >= TIME_MAX) {
        stop_checking(*block.grid_state, "a block has too many barriers");
        return;
    }
    zeroed(page.cells, page.has_cells);
    Cell mine = {block.number, stamp_of(block.current->id, block.meetings_held)};
    for (uint32_t word = at / 4; word * 4 < at + bytes; ++word) {
        uint32_t low = word * 4 < at ? at - word * 4 : 0, high = at + bytes - word * 4 < 4 ? at + bytes - word * 4 : 4;
        uint64_t bits = (1u << high) - (1u << low);
        check(block, page, word, bits, word * 4 + low, write ? "writes" : "reads", pc);
        Cell& cell = page.cells[word];
        if (!write) {
            continue;
        }
        bool same = cell.block == mine.block && cell.stamp == mine.stamp;
        if (bits != 15 && cell.block != 0 && !same) {
            cell.block = MIXED;
        } else {
            cell = mine;
        }
    }
}

void fence(Block& block) {
    Fiber& me = *block.current;
    block.meetings_held += 1;
    me.fenced = me.met;
    me.fenced_when = block.meetings_held;
    for (uint32_t i = 0; i < block.acquired.count; ++i) {
        Acquisition& from = block.acquired.all[i];
        if (from.id == me.id && from.fenced_when == 0) {
            from.fenced_when = block.meetings_held;
        }
    }
}

void synchronise(Block& block, const void* p, bool reads, bool writes) {
    Grid& grid = *block.grid_state;
    Fiber& me = *block.current;
    if (!grid.checked) {
        return;
    }
    Page& page = page_of(grid.touched, reinterpret_cast<uint64_t>(p) / PAGE_BYTES);
    uint32_t* newest = &zeroed(page.newest, page.has_newest)[reinterpret_cast<uint64_t>(p) % PAGE_BYTES / 4];
    uint32_t before = *newest;
    // A newer release of the same thread contains an older one.
    auto contained = [&](const Release& from) {
        for (uint32_t at = *newest; at != 0; at = grid.releases.all[at - 1].older) {
            const Release& there = grid.releases.all[at - 1];
            grid.steps += 1;
            if (there.block == from.block && there.id == from.id && there.when >= from.when) {
                return true;
            }
        }
        return false;
    };
    auto release = [&](const Release& from) {
        if (contained(from)) {
            return;
        }
        push(grid.releases) = from;
        grid.releases.all[grid.releases.count - 1].older = *newest;
        *newest = grid.releases.count;
    };
    if (writes && me.fenced_when != 0) {
        release({0, block.number, me.id, me.warp, me.fenced_when, me.fenced});
        // What this block has acquired it passes on. The releases of a word only become more, so its newest acquisition suffices.
        block.passed_on.count = 0;
        for (uint32_t i = block.acquired.count; i-- > 0;) {
            Acquisition& from = block.acquired.all[i];
            if (from.word == p || from.superseded || !acquired(me, me.fenced, from, me.fenced_when)) {
                continue;
            }
            if (holds(block.passed_on, from.word)) {
                from.superseded = from.id == me.id;
                continue;
            }
            push(block.passed_on) = from.word;
            for (uint32_t at = from.newest; at != 0; at = grid.releases.all[at - 1].older) {
                release(Release(grid.releases.all[at - 1]));
            }
        }
    }
    if (reads && before != 0) {
        // A loop that waits for a word acquires once.
        const Acquisition* last = block.acquired.count > 0 ? &block.acquired.all[block.acquired.count - 1] : nullptr;
        if (last == nullptr || last->word != p || last->newest != before || last->id != me.id) {
            push(block.acquired) = {p, before, me.id, 0, false};
        }
    }
    if (grid.releases.count >= RELEASES_MAX || grid.steps >= STEPS_MAX) {
        stop_checking(grid, "too many atomic operations after fences");
    }
}

void free_blocks(Grid& grid) { free(grid.releases.all); }

}  // namespace emu
