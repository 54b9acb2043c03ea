// ldmatrix and mma.m16n8k16, with the fragment layouts of the PTX ISA ("Matrix Fragments for mma.m16n8k16 with floating point
// type", "Warp-level matrix load instruction: ldmatrix"). Products of 16-bit floats are exact in f32; sums are added in order of k,
// while hardware guarantees no order: a test that compares bits across orders is wrong on a GPU, too.
#include "emu.h"

#include <string.h>

namespace emu {
namespace {

constexpr uint32_t ALL = 0xffffffffu;

float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

float widen(bool bf16, uint32_t half) {
    if (bf16) {
        return from_bits(half << 16);
    }
    // Exponent and mantissa shifted into place, then multiplied by the difference of the biases, which also handles subnormals.
    uint32_t size = half & 0x7fffu;
    uint32_t sign = (half & 0x8000u) << 16;
    if (size >= 0x7c00u) {
        return from_bits(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    }
    return from_bits(sign | (size << 13)) * 0x1p112f;
}

template <int COUNT>
void load(Block& block, Fiber* lanes, bool transposed) {
    uint16_t matrix[COUNT][8][8];
    Fiber* caller = block.current;
    for (uint32_t i = 0; i < COUNT * 8; ++i) {
        const void* row = reinterpret_cast<const void*>(lanes[i].in[0]);
        block.current = &lanes[i];
        if (!in_shared(block, row)) {
            fail(block, FAULT_ADDRESS, nullptr, "ldmatrix of %p, which is not in shared memory (%s:%d)", row, lanes[i].place.file,
                 lanes[i].place.line);
        }
        if (lanes[i].in[0] % 16 != 0) {
            fail(block, FAULT_MISALIGNED, nullptr, "ldmatrix of %p: rows are aligned to 16 bytes (%s:%d)", row, lanes[i].place.file,
                 lanes[i].place.line);
        }
        shared_read(block, row, 16, nullptr);
        memcpy(matrix[i / 8][i % 8], row, 16);
    }
    block.current = caller;
    for (uint32_t lane = 0; lane < WARP; ++lane) {
        uint32_t row = lane / 4, column = lane % 4 * 2;
        for (uint32_t i = 0; i < COUNT; ++i) {
            uint32_t low = transposed ? matrix[i][column][row] : matrix[i][row][column];
            uint32_t high = transposed ? matrix[i][column + 1][row] : matrix[i][row][column + 1];
            lanes[lane].out[i] = low | high << 16;
        }
    }
}

void load_matrices(Block& block, Fiber* lanes, uint32_t) {
    bool transposed = (lanes->kind & 1) != 0;
    if (lanes->kind >> 1 == 4) {
        load<4>(block, lanes, transposed);
    } else {
        load<2>(block, lanes, transposed);
    }
}

void multiply(Block&, Fiber* lanes, uint32_t) {
    bool bf16 = lanes->kind == KVT_ELEMENT_BF16;
    float a[16][16], b[16][8], d[16][8];
    for (uint32_t lane = 0; lane < WARP; ++lane) {
        uint32_t g = lane / 4, t = lane % 4 * 2;
        for (uint32_t i = 0; i < 4; ++i) {
            uint32_t pair = static_cast<uint32_t>(lanes[lane].in[i / 2] >> (32 * (i % 2)));
            uint32_t row = g + 8 * (i % 2), column = t + 8 * (i / 2);
            a[row][column] = widen(bf16, pair & 0xffffu);
            a[row][column + 1] = widen(bf16, pair >> 16);
            d[g + 8 * (i / 2)][t + i % 2] = lanes[lane].acc[i];
        }
        for (uint32_t i = 0; i < 2; ++i) {
            uint32_t pair = static_cast<uint32_t>(lanes[lane].in[2] >> (32 * i));
            b[t + 8 * i][g] = widen(bf16, pair & 0xffffu);
            b[t + 8 * i + 1][g] = widen(bf16, pair >> 16);
        }
    }
    for (uint32_t row = 0; row < 16; ++row) {
        for (uint32_t k = 0; k < 16; ++k) {
            for (uint32_t column = 0; column < 8; ++column) {
                d[row][column] += a[row][k] * b[k][column];
            }
        }
    }
    for (uint32_t lane = 0; lane < WARP; ++lane) {
        for (uint32_t i = 0; i < 4; ++i) {
            lanes[lane].acc[i] = d[lane / 4 + 8 * (i / 2)][lane % 4 * 2 + i % 2];
        }
    }
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

KvtFour kvt_emu_ldmatrix(const void* row, int count, int transposed, KvtPlace place) {
    Block& block = *the_block;
    Fiber& fiber = *block.current;
    fiber.in[0] = reinterpret_cast<uint64_t>(row);
    uint32_t kind = static_cast<uint32_t>(count) << 1 | (transposed != 0 ? 1u : 0u);
    meet(block, fiber, Collective::LDMATRIX, kind, ALL, place, load_matrices);
    return {{fiber.out[0], fiber.out[1], fiber.out[2], fiber.out[3]}};
}

KvtFourF kvt_emu_mma(KvtElement element, float d0, float d1, float d2, float d3, uint64_t a01, uint64_t a23, uint64_t b01,
                     KvtPlace place) {
    Block& block = *the_block;
    Fiber& fiber = *block.current;
    fiber.acc[0] = d0, fiber.acc[1] = d1, fiber.acc[2] = d2, fiber.acc[3] = d3;
    fiber.in[0] = a01, fiber.in[1] = a23, fiber.in[2] = b01;
    meet(block, fiber, Collective::MMA, element, ALL, place, multiply);
    return {{fiber.acc[0], fiber.acc[1], fiber.acc[2], fiber.acc[3]}};
}
}
