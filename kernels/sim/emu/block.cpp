// Life of a block: its threads start in a random order and run until all have returned; if some wait and none can run, that is a
// deadlock. A block runs until its turn is over, so that two blocks of a launch interleave.
#include "emu.h"

#include <stdio.h>
#include <string.h>

namespace emu {

// Loads and stores of a thread before another one runs: rare enough to cost little, frequent enough to expose wrong assumptions.
static uint32_t draw_budget(Block& block) { return 16 + draw_below(block, 256); }

void thread_main(Block& block) {
    block.launch->kernel->run(block.launch->params);
    Fiber& fiber = *block.current;
    fiber.state = State::DONE;
    block.done_count += 1;
}

void pause(Block& block) {
    Fiber& fiber = *block.current;
    fiber.budget = draw_budget(block);
    make_ready(block, fiber);
    if (block.turn != 0 && --block.turn == 0) {
        leave_block(block);
    } else {
        leave(block);
    }
}

static const char* file_name(const char* path) {
    const char* slash = strrchr(path, '/');
    return slash != nullptr ? slash + 1 : path;
}

// Reports which threads wait where; names the first one of each place.
static void report_deadlock(Block& block) {
    char text[400];
    size_t used = 0;
    uint32_t named = 0;
    for (uint32_t i = 0; i < block.threads && named < 3; ++i) {
        Fiber& fiber = block.fibers[i];
        if (fiber.state != State::WAITING) {
            continue;
        }
        auto same = [&](const Fiber& other) {
            return other.state == State::WAITING && other.wait == fiber.wait && other.place.line == fiber.place.line &&
                   strcmp(other.place.file, fiber.place.file) == 0;
        };
        uint32_t alike = 0;
        bool first = true;
        for (uint32_t j = 0; j < block.threads; ++j) {
            if (same(block.fibers[j])) {
                first &= j >= i;
                alike += 1;
            }
        }
        if (!first) {
            continue;
        }
        named += 1;
        const char* at = fiber.wait == Wait::BARRIER ? "a barrier" : "a collective of its warp";
        int more = snprintf(text + used, sizeof(text) - used, "; %u wait at %s (%s:%d), thread %u first", alike, at,
                            file_name(fiber.place.file), fiber.place.line, fiber.id);
        used = used + more < sizeof(text) ? used + more : sizeof(text) - 1;
        if (fiber.wait == Wait::WARP) {
            more = snprintf(text + used, sizeof(text) - used, " with mask %08x", fiber.mask);
            used = used + more < sizeof(text) ? used + more : sizeof(text) - 1;
        }
    }
    text[used] = 0;
    note_fault(block, FAULT_DEADLOCK, nullptr, "deadlock: %u of %u threads have returned%s", block.done_count, block.threads, text);
}

void begin_block(Block& block) {
    block.threads = block.dim.x * block.dim.y * block.dim.z;
    block.ready_count = 0;
    block.done_count = 0;
    block.meetings_held = 1;
    block.spins = 0;
    block.acquired.count = 0;
    memset(block.barrier_arrived, 0, sizeof(block.barrier_arrived));
    memset(block.meetings, 0, sizeof(block.meetings));
    shadow_reset(block);
    for (uint32_t i = 0; i < block.threads; ++i) {
        Fiber& fiber = block.fibers[i];
        fiber.id = i;
        fiber.lane = i % WARP;
        fiber.warp = i / WARP;
        fiber.index = {i % block.dim.x, i / block.dim.x % block.dim.y, i / block.dim.x / block.dim.y};
        fiber.met = {};
        fiber.fenced_when = 0;
        fiber.budget = draw_budget(block);
        fiber.copy_first = fiber.copy_count = fiber.group_open = fiber.group_done = 0;
        prepare_fiber(block, fiber);
        make_ready(block, fiber);
    }
}

bool run_block(Block& block, uint32_t turn) {
    block.turn = turn;
    run_ready(block);
    if (block.outcome->fault != FAULT_NONE) {
        return true;
    }
    if (block.ready_count == 0 && block.done_count < block.threads) {
        report_deadlock(block);
    }
    return block.ready_count == 0;
}

}  // namespace emu
