// cp.async: bytes arrive when their group is awaited, or immediately, at random. Until the wait no thread may access them, and the
// source may be read as late as the wait.
#include "emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace emu {
namespace {

Copy* queue_of(Block& block, const Fiber& fiber) { return block.copies + static_cast<size_t>(fiber.id) * COPIES_MAX; }

void make_queues(Block& block) {
    size_t bytes = sizeof(Copy) * COPIES_MAX * THREADS_MAX;
    void* all = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) {
        perror("kvt_emu: queues of asynchronous copies");
        abort();
    }
    block.copies = static_cast<Copy*>(all);
}

void land(const Copy& copy) {
    memcpy(copy.to, copy.from, copy.given);
    memset(copy.to + copy.given, 0, copy.bytes - copy.given);
}

}  // namespace

void free_queues(Block& block) {
    if (block.copies != nullptr) {
        munmap(block.copies, sizeof(Copy) * COPIES_MAX * THREADS_MAX);
    }
}

}  // namespace emu

using namespace emu;

extern "C" {

void kvt_emu_copy_async(void* shared, const void* from, uint32_t bytes, uint32_t given) {
    Block& block = *the_block;
    Fiber& fiber = *block.current;
    if (!in_shared(block, shared)) {
        fail(block, FAULT_ADDRESS, nullptr, "cp.async to %p, which is not in shared memory", shared);
    }
    if (reinterpret_cast<uint64_t>(shared) % bytes != 0 || (given != 0 && reinterpret_cast<uint64_t>(from) % bytes != 0)) {
        fail(block, FAULT_MISALIGNED, nullptr, "cp.async of %u bytes from %p to %p: both are aligned to it", bytes, from, shared);
    }
    if (given > bytes) {
        fail(block, FAULT_TRAP, nullptr, "cp.async of %u bytes of which %u are to be read", bytes, given);
    }
    if (given != 0) {
        if (check_global(block, from, given, false, __builtin_return_address(0)) != nullptr) {
            touch(block, from, given, false, __builtin_return_address(0));
        }
    }
    if (block.copies == nullptr) {
        make_queues(block);
    }
    Copy* queue = queue_of(block, fiber);
    if (fiber.copy_first + fiber.copy_count == COPIES_MAX) {
        if (fiber.copy_first == 0) {
            fail(block, FAULT_TRAP, nullptr, "more than %u asynchronous copies of one thread are under way", COPIES_MAX);
        }
        memmove(queue, queue + fiber.copy_first, fiber.copy_count * sizeof(Copy));
        fiber.copy_first = 0;
    }
    shared_copy_begins(block, shared, bytes);
    Copy copy = {static_cast<unsigned char*>(shared), static_cast<const unsigned char*>(from), static_cast<uint16_t>(bytes),
                 static_cast<uint16_t>(given), fiber.group_open, draw_below(block, 4) == 0};
    if (copy.done) {
        land(copy);
    }
    queue[fiber.copy_first + fiber.copy_count++] = copy;
}

void kvt_emu_copy_commit() { the_block->current->group_open += 1; }

void kvt_emu_copy_wait(int groups) {
    Block& block = *the_block;
    Fiber& fiber = *block.current;
    if (groups < 0) {
        fiber.group_open += 1;
        groups = 0;
    }
    uint32_t under_way = static_cast<uint32_t>(groups);
    uint32_t landed = fiber.group_open > under_way ? fiber.group_open - under_way : 0;
    Copy* queue = block.copies != nullptr ? queue_of(block, fiber) : nullptr;
    while (fiber.copy_count > 0 && queue[fiber.copy_first].group < landed) {
        const Copy& copy = queue[fiber.copy_first];
        if (!copy.done) {
            land(copy);
        }
        shared_copy_ends(block, copy.to, copy.bytes);
        fiber.copy_first += 1;
        fiber.copy_count -= 1;
    }
    if (fiber.copy_count == 0) {
        fiber.copy_first = 0;
    }
}
}
