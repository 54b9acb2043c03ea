// A cache of whole sequence states, keyed by their tokens, over kvtide's block API.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvtide.h"
#include "sha256.h"

// A failed kvtide call. The text has the operation and kvtide's error.
struct KvtideError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A state is opaque and has any length: llama.cpp does not divide it by token. It is stored as a chain of pages, each a block of kvtide. Page 0
// begins with a header that contains the length of the state. The hash of a page covers the state's tokens and the page's number. The space's
// fingerprint covers the model and everything else that changes a state. kvtide caches no block without its parent, so a chain is complete or its
// end is missing.
class Snapshots {
  public:
    // States are taken at multiples of this many tokens, so a prompt needs one lookup per multiple to find the longest cached prefix.
    static constexpr size_t STEP_TOKENS = 64;

    // Attach to the daemon at `socket`. Programs share states only if they give the same fingerprint. Throws KvtideError.
    Snapshots(const std::string &socket, const Sha256::Digest &fingerprint);
    ~Snapshots();
    Snapshots(const Snapshots &) = delete;
    Snapshots &operator=(const Snapshots &) = delete;

    struct Found {
        size_t tokens;
        std::vector<uint8_t> state;
    };

    // Return the state of the longest cached prefix of `tokens`. At least one token stays to be decoded, because its logits are needed.
    std::optional<Found> longest(std::span<const int32_t> tokens);

    // Store the state of a sequence of exactly `tokens`. Return false if the daemon has no room for it or does not admit it.
    bool keep(std::span<const int32_t> tokens, std::span<const uint8_t> state);

  private:
    kvt_client *client_ = nullptr;
    kvt_channel *channel_ = nullptr;
};
