#include "sha256.h"

#include <bit>
#include <cmath>

namespace {

// Return the round constants of the standard: the first 32 bits of the fractional parts of the cube roots of the first 64 primes.
std::array<uint32_t, 64> round_constants() {
    std::array<uint32_t, 64> constants{};
    for (uint32_t n = 2, found = 0; found < constants.size(); n++) {
        bool prime = true;
        for (uint32_t d = 2; d * d <= n; d++) prime = prime && n % d != 0;
        if (!prime) continue;
        const long double root = std::cbrt(static_cast<long double>(n));
        constants[found++] = static_cast<uint32_t>((root - std::floor(root)) * 4294967296.0L);
    }
    return constants;
}

}  // namespace

void Sha256::block() {
    static const std::array<uint32_t, 64> k = round_constants();
    std::array<uint32_t, 64> w{};
    for (size_t i = 0; i < 16; i++) {
        w[i] = uint32_t{block_[4 * i]} << 24 | uint32_t{block_[4 * i + 1]} << 16 | uint32_t{block_[4 * i + 2]} << 8 | block_[4 * i + 3];
    }
    for (size_t i = 16; i < 64; i++) {
        const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
        const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (size_t i = 0; i < 64; i++) {
        const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
        const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + k[i] + w[i];
        const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
        const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<uint32_t, 8> added{a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; i++) state_[i] += added[i];
}

void Sha256::add(const void *data, size_t bytes) {
    const auto *from = static_cast<const uint8_t *>(data);
    for (size_t i = 0; i < bytes; i++) {
        block_[bytes_++ % 64] = from[i];
        if (bytes_ % 64 == 0) block();
    }
}

Sha256::Digest Sha256::digest() {
    const uint64_t bits = bytes_ * 8;
    const uint8_t one = 0x80, zero = 0;
    add(&one, 1);
    while (bytes_ % 64 != 56) add(&zero, 1);
    for (int shift = 56; shift >= 0; shift -= 8) {
        const auto byte = static_cast<uint8_t>(bits >> shift);
        add(&byte, 1);
    }
    Digest out{};
    for (size_t i = 0; i < out.size(); i++) out[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return out;
}
