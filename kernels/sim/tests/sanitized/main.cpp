// The emulator under AddressSanitizer and UndefinedBehaviorSanitizer (tests/sanitized.rs builds and runs this): correct launches,
// and after each fault that ends a launch in the middle of its threads, a correct one again.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../emu/emu.h"

namespace {

struct Planted {
    uint64_t in, out, word;
    uint32_t n, bug;
};
struct Instruction {
    uint64_t a, b, out;
    uint32_t bf16, way;
};

constexpr uint32_t BLOCKS = 17;
constexpr size_t BYTES = 1 << 16;
unsigned char* memory = nullptr;
uint64_t generation = 1;

bool find(uint32_t, uint64_t address, emu::Range* range) {
    range->low = reinterpret_cast<uint64_t>(memory);
    range->high = range->low + BYTES;
    range->host = true;
    return address >= range->low && address < range->high;
}

void publish(const void*) {}

emu::Fault launch(const char* name, uint32_t grid, uint32_t block, uint32_t shared, const void* params, uint64_t seed) {
    emu::Launch asked = {kvt_emu_find(name), {grid, 1, 1}, {block, 1, 1}, shared, params, seed, find, 0, publish, nullptr, &generation};
    emu::Outcome outcome;
    kvt_emu_launch(&asked, &outcome);
    if (outcome.fault != emu::FAULT_NONE) {
        printf("%s\n", outcome.text);
    }
    return outcome.fault;
}

void require(bool holds, const char* what) {
    if (!holds) {
        fprintf(stderr, "not so: %s\n", what);
        exit(1);
    }
}

void right_launch(uint64_t seed) {
    uint32_t* in = reinterpret_cast<uint32_t*>(memory);
    uint32_t* out = in + BLOCKS * 128;
    uint32_t sum = 0, expected = 0;
    for (uint32_t i = 0; i < BLOCKS * 128; ++i) {
        in[i] = i * 7;
        expected += 2 * in[i];
    }
    Planted params = {reinterpret_cast<uint64_t>(in), reinterpret_cast<uint64_t>(out), 0, BLOCKS * 128, 0};
    require(launch("kvt_sim_planted", BLOCKS, 128, 512, &params, seed) == emu::FAULT_NONE, "a right kernel passes");
    for (uint32_t i = 0; i < BLOCKS; ++i) {
        sum += out[i];
    }
    require(sum == expected, "the sums are right");
}

}  // namespace

int main() {
    memory = static_cast<unsigned char*>(aligned_alloc(4096, BYTES));
    memset(memory, 0, BYTES);
    uint64_t base = reinterpret_cast<uint64_t>(memory);
    right_launch(1);
    // No barrier, early return, two barriers, no wait for a copy, missing lanes, trap, beyond the end, an absent lane: threads stop
    // in the middle.
    const struct {
        uint32_t bug;
        emu::Fault fault;
    } faults[] = {{1, emu::FAULT_RACE},      {4, emu::FAULT_DEADLOCK}, {5, emu::FAULT_DIVERGENT}, {6, emu::FAULT_RACE},
                  {7, emu::FAULT_DIVERGENT}, {9, emu::FAULT_TRAP},     {10, emu::FAULT_ADDRESS},  {14, emu::FAULT_DIVERGENT}};
    for (const auto& planted : faults) {
        Planted params = {base, base + 32768, 0, 256, planted.bug};
        require(launch("kvt_sim_planted", 2, 128, 512, &params, planted.bug) == planted.fault, "a planted bug is caught");
        right_launch(planted.bug + 100);
    }
    for (uint32_t way = 0; way < 6; ++way) {
        Instruction params = {base, base + 1024, base + 2048, way / 3, way % 3};
        require(launch("kvt_sim_product", 1, 32, 2048, &params, way) == emu::FAULT_NONE, "products pass");
    }
    Instruction convert = {base, 0, base + 16384, 0, 1000};
    require(launch("kvt_sim_convert", 3, 128, 0, &convert, 5) == emu::FAULT_NONE, "conversions pass");
    Instruction lanes = {0, 0, base, 0, 0};
    require(launch("kvt_sim_lanes", 1, 32, 0, &lanes, 6) == emu::FAULT_NONE, "lanes pass");
    // Two right kernels, and two bugs that end one block of two in the middle.
    const uint32_t bugs[] = {0, 12, 1, 5};
    for (uint32_t bug : bugs) {
        memset(memory, 0, 8);
        Planted params = {0, base + 4096, base, 0, bug};
        emu::Fault fault = bug == 0 || bug == 12 ? emu::FAULT_NONE : emu::FAULT_RACE;
        require(launch("kvt_sim_blocks", 19, 128, 0, &params, bug) == fault, "memory between blocks");
    }
    Instruction shape = {base, 0, base, 0, 0};
    require(launch("kvt_sim_lanes", 1, 64, 0, &shape, 7) == emu::FAULT_SHAPE, "a block that is too large is refused");
    require(kvt_emu_copy(memory + 4096, memory, 4096), "a copy");
    require(!kvt_emu_copy(memory, reinterpret_cast<void*>(4096), 64), "a copy of what is not there");
    kvt_emu_release();
    right_launch(8);
    kvt_emu_release();
    free(memory);
    printf("clean\n");
    return 0;
}
