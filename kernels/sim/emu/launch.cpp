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

Block* make_block() {
    Block* block = static_cast<Block*>(calloc(1, sizeof(Block)));
    Grid* grid = static_cast<Grid*>(calloc(1, sizeof(Grid)));
    if (block == nullptr || grid == nullptr) {
        perror("kvt_emu: a block");
        abort();
    }
    block->grid_state = grid;
    make_stacks(*block);
    make_arena(*block);
    catch_signals(*block);
    block->library = {reinterpret_cast<uint64_t>(&__ehdr_start), reinterpret_cast<uint64_t>(&_end), false};
    return block;
}

// Kept between the launches of a host thread.
__thread Block* kept = nullptr;

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
    if (kept == nullptr) {
        kept = make_block();
    }
    Block& block = *kept;
    outcome->fault = FAULT_NONE;
    outcome->pc = nullptr;
    outcome->read_words = false;
    outcome->text[0] = 0;
    block.outcome = outcome;
    block.launch = launch;
    block.current = nullptr;
    block.index = {0, 0, 0};
    if (!shape_holds(block, *launch)) {
        return outcome->fault;
    }
    block.random = launch->seed * 2 + 1;
    block.dim = {launch->block[0], launch->block[1], launch->block[2]};
    block.grid = {launch->grid[0], launch->grid[1], launch->grid[2]};
    block.dynamic_bytes = launch->shared_bytes;
    memset(block.found, 0, sizeof(block.found));
    block.generation = __atomic_load_n(launch->generation, __ATOMIC_ACQUIRE);
    Grid& grid = *block.grid_state;
    grid.published = false;
    touched_reset(grid.touched);
    grid.releases.count = 0;
    the_block = &block;
    uint64_t blocks = static_cast<uint64_t>(launch->grid[0]) * launch->grid[1] * launch->grid[2];
    grid.checked = blocks > 1 && blocks < UINT32_MAX;
    Order order(block, blocks);
    for (uint64_t i = 0; i < blocks && outcome->fault == FAULT_NONE; ++i) {
        uint64_t at = order.next();
        block.number = static_cast<uint32_t>(at) + 1;
        block.index.x = static_cast<uint32_t>(at % launch->grid[0]);
        block.index.y = static_cast<uint32_t>(at / launch->grid[0] % launch->grid[1]);
        block.index.z = static_cast<uint32_t>(at / launch->grid[0] / launch->grid[1]);
        run_block(block);
    }
    the_block = nullptr;
    return outcome->fault;
}

const Page* const* kvt_emu_touched(uint32_t* count) {
    const Touched& touched = kept->grid_state->touched;
    *count = touched.count;
    return touched.all;
}

void kvt_emu_release() {
    if (kept == nullptr) {
        return;
    }
    free_stacks(*kept);
    free_arena(*kept);
    free_queues(*kept);
    free(kept->acquired.all);
    free_touched(kept->grid_state->touched);
    free_blocks(*kept->grid_state);
    free(kept->grid_state);
    release_signals(*kept);
    free(kept);
    kept = nullptr;
}

uint3 kvt_emu_thread_index() { return the_block->current->index; }
uint3 kvt_emu_block_index() { return the_block->index; }
uint3 kvt_emu_block_dim() { return the_block->dim; }
uint3 kvt_emu_grid_dim() { return the_block->grid; }
unsigned char* kvt_emu_dynamic_shared() { return the_block->arena; }
}
