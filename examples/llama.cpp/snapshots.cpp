#include "snapshots.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace {

// Page size in bytes: large enough for full disk speed, small enough to waste little in the last page.
constexpr size_t PAGE_BYTES = 256 << 10;
// Maximum blocks of one store and of one load (kvtide.h).
constexpr uint32_t STORE_MAX = 102;
constexpr uint32_t LOAD_MAX = 512;
// Duration of a lease in microseconds. A restore must end within it, because pages may be evicted afterwards.
constexpr uint64_t LEASE_US = 60 * 1000 * 1000;

// The first bytes of page 0.
struct Header {
    std::array<char, 8> magic;
    uint64_t tokens;
    uint64_t state_bytes;
};
constexpr std::array<char, 8> MAGIC{'k', 'v', 't', 'l', 'l', 'a', 'm', 'a'};

void check(kvt_status status, const char *tried) {
    if (status != KVT_OK) throw KvtideError(std::string(tried) + ": " + kvt_strerror(status) + ": " + kvt_last_error());
}

size_t pages_of(size_t state_bytes) { return (sizeof(Header) + state_bytes + PAGE_BYTES - 1) / PAGE_BYTES; }

// Return the hashes of a state's first `pages` pages.
std::vector<kvt_hash> names(std::span<const int32_t> tokens, size_t pages) {
    Sha256 prefix;
    prefix.add(tokens.data(), tokens.size_bytes());
    const Sha256::Digest content = prefix.digest();
    std::vector<kvt_hash> found(pages);
    for (uint64_t page = 0; page < pages; page++) {
        Sha256 name;
        name.add(content.data(), content.size());
        name.add(&page, sizeof page);
        const Sha256::Digest digest = name.digest();
        std::memcpy(found[page].words, digest.data(), sizeof found[page].words);
    }
    return found;
}

// Registers a buffer as the client's blocks, one page each, and unregisters it when destroyed.
class Blocks {
  public:
    Blocks(kvt_client *client, std::vector<uint8_t> &buffer) : client_(client) {
        kvt_piece piece = {};
        piece.base = buffer.data();
        piece.stride = piece.bytes = PAGE_BYTES;
        check(kvt_client_set_blocks(client, static_cast<uint32_t>(buffer.size() / PAGE_BYTES), &piece, 1), "register a buffer");
    }
    // kvtide refuses this while copies run, and the buffer must outlive them. Copies have ended when a call returns any status except
    // KVT_ETIMEDOUT and KVT_EDAEMON. After these two, `settled` waits for the copies.
    ~Blocks() { kvt_client_set_blocks(client_, 0, nullptr, 0); }
    Blocks(const Blocks &) = delete;
    Blocks &operator=(const Blocks &) = delete;

  private:
    kvt_client *client_;
};

// Return `status`, after copies that its call may have left running have ended.
kvt_status settled(kvt_channel *channel, kvt_status status) {
    if (status == KVT_ETIMEDOUT || status == KVT_EDAEMON) check(kvt_channel_settle(channel, 0), "wait for the end of copies");
    return status;
}

std::vector<uint32_t> numbers(uint32_t first, uint32_t count) {
    std::vector<uint32_t> found(count);
    for (uint32_t i = 0; i < count; i++) found[i] = first + i;
    return found;
}

}  // namespace

Snapshots::Snapshots(const std::string &socket, const Sha256::Digest &fingerprint) {
    kvt_plane plane = {};
    plane.page_bytes = PAGE_BYTES;
    kvt_options options = {};
    options.struct_size = sizeof options;
    options.abi_version = KVT_ABI_VERSION;
    options.page_tokens = 1;  // without meaning here: a page of a state has no fixed number of tokens
    options.socket = socket.c_str();
    options.space = "llama.cpp";
    std::copy(fingerprint.begin(), fingerprint.end(), options.fingerprint);
    options.planes = &plane;
    options.planes_count = 1;
    check(kvt_attach(&options, &client_), "attach");
    check(kvt_channel_open(client_, 0, &channel_), "open a channel");
}

Snapshots::~Snapshots() {
    if (channel_ != nullptr) kvt_channel_close(channel_);
    if (client_ != nullptr) kvt_detach(client_);
}

std::optional<Snapshots::Found> Snapshots::longest(std::span<const int32_t> tokens) {
    if (tokens.empty()) return std::nullopt;
    for (size_t held = (tokens.size() - 1) / STEP_TOKENS * STEP_TOKENS; held > 0; held -= STEP_TOKENS) {
        // The first page contains the length of the chain, so look up and load that page first.
        const auto prefix = tokens.first(held);
        const std::vector<kvt_hash> first = names(prefix, 1);
        uint32_t found = 0;
        check(kvt_channel_lookup(channel_, first.data(), 1, 0, &found, nullptr), "look up a state");
        if (found == 0) continue;
        std::vector<uint8_t> buffer(PAGE_BYTES);
        kvt_lease_info lease;
        const auto load = [&](const kvt_hash &last, uint32_t pages, std::vector<uint8_t> &into) {
            const kvt_status leased = kvt_channel_lease(channel_, &last, pages, LEASE_US, 0, &lease);
            if (leased == KVT_ENOTFOUND) return false;  // evicted since the lookup, or never complete
            check(leased, "lease a state");
            const Blocks blocks(client_, into);
            kvt_status status = KVT_OK;
            for (uint32_t at = 0; at < pages && status == KVT_OK; at += LOAD_MAX) {
                const uint32_t count = std::min(LOAD_MAX, pages - at);
                status = settled(channel_, kvt_channel_load(channel_, lease.id, at, numbers(at, count).data(), count, 0, nullptr, nullptr));
            }
            check(kvt_channel_end_lease(channel_, lease.id), "end a lease");
            // Treat a page that could not be loaded like a missing one: try a shorter state, or decode the tokens.
            if (status == KVT_EIO) return false;
            check(status, "load a state");
            return true;
        };
        if (!load(first[0], 1, buffer)) continue;
        Header header;
        std::memcpy(&header, buffer.data(), sizeof header);
        if (header.magic != MAGIC || header.tokens != held) throw KvtideError("a cached state has an unknown format: wrong magic or token count");
        const size_t pages = pages_of(header.state_bytes);
        buffer.resize(pages * PAGE_BYTES);
        if (pages > 1 && !load(names(prefix, pages).back(), static_cast<uint32_t>(pages), buffer)) continue;
        buffer.erase(buffer.begin(), buffer.begin() + sizeof header);
        buffer.resize(header.state_bytes);
        return Found{held, std::move(buffer)};
    }
    return std::nullopt;
}

bool Snapshots::keep(std::span<const int32_t> tokens, std::span<const uint8_t> state) {
    const auto pages = static_cast<uint32_t>(pages_of(state.size()));
    const Header header{MAGIC, tokens.size(), state.size()};
    std::vector<uint8_t> buffer(pages * PAGE_BYTES);
    std::memcpy(buffer.data(), &header, sizeof header);
    std::memcpy(buffer.data() + sizeof header, state.data(), state.size());
    const std::vector<kvt_hash> chain = names(tokens, pages);
    const Blocks blocks(client_, buffer);
    for (uint32_t at = 0; at < pages; at += STORE_MAX) {
        const uint32_t count = std::min(STORE_MAX, pages - at);
        const kvt_hash *parent = at == 0 ? nullptr : &chain[at - 1];
        const kvt_status status = settled(
            channel_, kvt_channel_store(channel_, at, parent, &chain[at], numbers(at, count).data(), count, KVT_LEVEL_PUBLISHED, 0, nullptr, nullptr));
        // The stored beginning of the chain is useless alone. It is never read, so it is evicted like other unused blocks.
        if (status == KVT_ENOSPC || status == KVT_ENOTADMITTED) return false;
        check(status, "store a state");
    }
    return true;
}
