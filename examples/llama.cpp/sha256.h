// SHA-256 (FIPS 180-4). Hashes of snapshots need a collision-resistant function; this avoids a library for it alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

class Sha256 {
  public:
    using Digest = std::array<uint8_t, 32>;

    // Append bytes to the message.
    void add(const void *data, size_t bytes);

    // Finish and return the hash. Call it once; do not call `add` after it.
    Digest digest();

  private:
    void block();

    std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<uint8_t, 64> block_{};
    uint64_t bytes_ = 0;
};
