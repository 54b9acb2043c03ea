// A cache of whole states of sequences, by the tokens that they hold, over kvtide's block API.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvtide.h"
#include "sha256.h"

// A call of kvtide failed; the text says what was tried, on what, and why it failed.
struct KvtideError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A state is opaque and of any length: llama.cpp's is not divided by token. It is kept as a chain of pages: page 0 begins with a header, and the
// name of each page covers the tokens that the state holds, which page it is, and with the space's fingerprint the model and what else decides
// what a state means. A chain is there whole or up to some page, since kvtide keeps no block without what it stands on; the header says which.
class Snapshots {
  public:
    // States are taken after so many tokens and multiples of it: so a later prompt finds them with few questions, whatever its length.
    static constexpr size_t STEP_TOKENS = 64;

    // Attaches to the daemon at `socket`. States are found by programs that give the same fingerprint.
    Snapshots(const std::string &socket, const Sha256::Digest &fingerprint);
    ~Snapshots();
    Snapshots(const Snapshots &) = delete;
    Snapshots &operator=(const Snapshots &) = delete;

    struct Found {
        size_t tokens;
        std::vector<uint8_t> state;
    };

    // The state of the longest prefix of `tokens` that is cached and leaves at least one of them to decode, which gives the next logits.
    std::optional<Found> longest(std::span<const int32_t> tokens);

    // Keeps the state of a sequence that holds exactly `tokens`. False: there is no room for it now.
    bool keep(std::span<const int32_t> tokens, std::span<const uint8_t> state);

  private:
    kvt_client *client_ = nullptr;
    kvt_channel *channel_ = nullptr;
};
