// The kernels in this library, and the driver's entry to run one.
#include "emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Start and end of this library, from the linker: constants of kernels are between them.
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start;
extern "C" __attribute__((visibility("hidden"))) const char _end;

namespace emu {
namespace {

KvtKernel* kernels = nullptr;

constexpr uint32_t SIDE_BY_SIDE = 2;
// Maximum pauses of a block's threads until the other block runs: rare enough to cost little.
constexpr uint32_t TURN_MAX = 32;

// Kept between the launches of a host thread.
__thread Block* kept[SIDE_BY_SIDE];

void* zeroed(size_t bytes) {
    void* memory = calloc(1, bytes);
    if (memory == nullptr) {
        perror("kvt_emu: a block");
        abort();
    }
    return memory;
}

void make_blocks() {
    Grid* grid = static_cast<Grid*>(zeroed(sizeof(Grid)));
    for (Block*& block : kept) {
        block = static_cast<Block*>(zeroed(sizeof(Block)));
        block->grid_state = grid;
        if (block == kept[0]) {
            make_stacks(*block);
        } else {
            share_stacks(*block, *kept[0]);
        }
        make_arena(*block);
        catch_signals(*block);
        block->library = {reinterpret_cast<uint64_t>(&__ehdr_start), reinterpret_cast<uint64_t>(&_end), false};
    }
}

bool shape_holds(Block& block, const Launch& launch) {
    uint64_t threads = static_cast<uint64_t>(launch.block[0]) * launch.block[1] * launch.block[2];
    uint64_t blocks = static_cast<uint64_t>(launch.grid[0]) * launch.grid[1] * launch.grid[2];
    if (threads == 0 || threads > launch.kernel->threads_max || threads > THREADS_MAX) {
        note_fault(block, FAULT_SHAPE, nullptr, "%lu threads a block; the kernel is for 1 to %u", static_cast<unsigned long>(threads),
                   launch.kernel->threads_max);
    } else if (blocks == 0 || launch.grid[0] > 0x7fffffffu || launch.grid[1] > 65535 || launch.grid[2] > 65535) {
        note_fault(block, FAULT_SHAPE, nullptr, "a grid of (%u,%u,%u)", launch.grid[0], launch.grid[1], launch.grid[2]);
    } else if (launch.shared_bytes > SHARED_MAX) {
        note_fault(block, FAULT_SHAPE, nullptr, "%u dynamic bytes of shared memory; %u is the limit", launch.shared_bytes, SHARED_MAX);
    }
    return block.outcome->fault == FAULT_NONE;
}

// Order of blocks that visits each once: steps with a stride coprime to their number.
struct Order {
    uint64_t count, at, stride;
    Order(Block& block, uint64_t blocks) : count(blocks), at(draw(block) % blocks), stride(1) {
        for (int tries = 0; tries < 32; ++tries) {
            uint64_t candidate = draw(block) % blocks;
            uint64_t a = candidate, b = blocks;
            while (b != 0) {
                uint64_t rest = a % b;
                a = b;
                b = rest;
            }
            if (a == 1) {
                stride = candidate;
                return;
            }
        }
    }
    uint64_t next() {
        uint64_t now = at;
        at = (at + stride) % count;
        return now;
    }
};

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

void kvt_emu_register(KvtKernel* kernel) {
    if (kvt_emu_find(kernel->name) != nullptr) {
        fprintf(stderr, "kvt_emu: two kernels are named %s\n", kernel->name);
        abort();
    }
    kernel->next = kernels;
    kernels = kernel;
}

const KvtKernel* kvt_emu_find(const char* name) {
    for (const KvtKernel* kernel = kernels; kernel != nullptr; kernel = kernel->next) {
        if (strcmp(kernel->name, name) == 0) {
            return kernel;
        }
    }
    return nullptr;
}

uint32_t kvt_emu_launch(const Launch* launch, Outcome* outcome) {
    if (kept[0] == nullptr) {
        make_blocks();
    }
    Block& first = *kept[0];
    Grid& grid = *first.grid_state;
    *outcome = {};
    first.outcome = outcome;
    first.launch = launch;
    first.current = nullptr;
    first.index = {0, 0, 0};
    if (!shape_holds(first, *launch)) {
        return outcome->fault;
    }
    uint64_t blocks = static_cast<uint64_t>(launch->grid[0]) * launch->grid[1] * launch->grid[2];
    first.random = launch->seed * 2 + 1;
    for (Block* block : kept) {
        block->outcome = outcome;
        block->launch = launch;
        block->current = nullptr;
        block->random = block == &first ? first.random : draw(first) | 1;
        block->dim = {launch->block[0], launch->block[1], launch->block[2]};
        block->grid = {launch->grid[0], launch->grid[1], launch->grid[2]};
        block->dynamic_bytes = launch->shared_bytes;
        memset(block->found, 0, sizeof(block->found));
        block->generation = __atomic_load_n(launch->generation, __ATOMIC_ACQUIRE);
    }
    touched_reset(grid.touched);
    grid.releases.count = 0;
    grid.steps = 0;
    grid.published = false;
    grid.checked = blocks > 1 && blocks < UINT32_MAX;
    Order order(first, blocks);
    // Two blocks share the stacks, if they suffice.
    bool alone = first.dim.x * first.dim.y * first.dim.z > THREADS_MAX / 2;
    uint32_t slots = alone || blocks == 1 ? 1 : SIDE_BY_SIDE;
    bool runs[SIDE_BY_SIDE] = {};
    for (uint64_t begun = 0, ended = 0; ended < blocks && outcome->fault == FAULT_NONE;) {
        uint32_t slot = draw_below(first, slots);
        Block& block = *kept[slot];
        the_block = &block;
        if (!runs[slot]) {
            if (begun == blocks) {
                continue;
            }
            uint64_t at = order.next();
            block.number = static_cast<uint32_t>(at) + 1;
            block.index.x = static_cast<uint32_t>(at % launch->grid[0]);
            block.index.y = static_cast<uint32_t>(at / launch->grid[0] % launch->grid[1]);
            block.index.z = static_cast<uint32_t>(at / launch->grid[0] / launch->grid[1]);
            begin_block(block);
            begun += 1;
            runs[slot] = true;
        }
        bool others = slots > 1 && (begun < blocks || runs[1 - slot]);
        if (run_block(block, others ? 1 + draw_below(block, TURN_MAX) : 0)) {
            runs[slot] = false;
            ended += 1;
        }
    }
    the_block = nullptr;
    return outcome->fault;
}

const Page* const* kvt_emu_touched(uint32_t* count) {
    const Touched& touched = kept[0]->grid_state->touched;
    *count = touched.count;
    return touched.all;
}

void kvt_emu_release() {
    if (kept[0] == nullptr) {
        return;
    }
    Grid* grid = kept[0]->grid_state;
    free_touched(grid->touched);
    free_blocks(*grid);
    free(grid);
    free_stacks(*kept[0]);
    for (Block*& block : kept) {
        free_arena(*block);
        free_queues(*block);
        release_signals(*block);
        free(block->acquired.all);
        free(block->passed_on.all);
        free(block);
        block = nullptr;
    }
}

uint3 kvt_emu_thread_index() { return the_block->current->index; }
uint3 kvt_emu_block_index() { return the_block->index; }
uint3 kvt_emu_block_dim() { return the_block->dim; }
uint3 kvt_emu_grid_dim() { return the_block->grid; }
unsigned char* kvt_emu_dynamic_shared() { return the_block->arena; }
}
