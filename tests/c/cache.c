/* A cache for an engine's own KV in sixty lines: one "prefill" computes blocks, the next loads them. Argument: the daemon's socket. */
#include <stdio.h>
#include <string.h>

#include "kvtide.h"

#define TRY(call)                                                                     \
    do {                                                                              \
        if ((call) != KVT_OK) return fprintf(stderr, "%s\n", kvt_last_error()), 1;    \
    } while (0)

enum { BLOCK_TOKENS = 16, BLOCKS = 32, BLOCK_BYTES = BLOCK_TOKENS * 256, PROMPT_BLOCKS = 12 };

/* The engine's paged KV: K and V in separate tensors, indexed by block number. */
static uint8_t k[BLOCKS][BLOCK_BYTES], v[BLOCKS][BLOCK_BYTES];

/* Hash over a block's tokens and all before them. An engine uses a collision-resistant hash (truncated SHA-256) and starts with a salt. */
static kvt_hash chained(kvt_hash before, const uint16_t *tokens) {
    for (int i = 0; i < BLOCK_TOKENS; i++) {
        before.words[0] = (before.words[0] ^ tokens[i]) * 0x100000001b3u;
        before.words[1] = (before.words[1] ^ before.words[0]) * 0x9e3779b97f4a7c15u;
    }
    return before;
}

/* Placeholder for a forward pass over one block. */
static void compute(uint32_t block, const uint16_t *tokens) {
    for (uint32_t i = 0; i < BLOCK_BYTES; i++) {
        k[block][i] = (uint8_t)(tokens[i % BLOCK_TOKENS] + i);
        v[block][i] = (uint8_t)(tokens[i % BLOCK_TOKENS] * 3 + i);
    }
}

/* Fill blocks `first` and up with a prompt's KV: load the cached blocks, compute and store the others. Return how many were cached. */
static int prefill(kvt_channel *channel, const uint16_t *tokens, uint32_t first, uint32_t *cached) {
    kvt_hash hashes[PROMPT_BLOCKS], hash = {{0xcbf29ce484222325u, 1}};
    uint32_t own[PROMPT_BLOCKS], failed[PROMPT_BLOCKS], lost = 0;
    for (uint32_t i = 0; i < PROMPT_BLOCKS; i++) {
        hashes[i] = hash = chained(hash, tokens + i * BLOCK_TOKENS);
        own[i] = first + i;
    }
    TRY(kvt_channel_lookup(channel, hashes, PROMPT_BLOCKS, 0, cached, NULL));
    kvt_lease_info lease; /* pins the prefix until it ends */
    if (*cached > 0 && kvt_channel_lease(channel, &hashes[*cached - 1], *cached, 10 * 1000 * 1000, 0, &lease) != KVT_OK) {
        *cached = 0; /* the prefix was evicted since the lookup, for example: compute it */
    }
    if (*cached > 0) {
        if (kvt_channel_load(channel, lease.id, 0, own, *cached, 0, failed, &lost) != KVT_OK) {
            if (lost == 0) { /* the whole request failed: copies may continue for a moment */
                TRY(kvt_channel_settle(channel, 0));
                *cached = 0;
            }
            for (uint32_t i = 0; i < lost; i++) *cached = failed[i] < *cached ? failed[i] : *cached;
        }
        TRY(kvt_channel_end_lease(channel, lease.id));
    }
    const uint32_t rest = PROMPT_BLOCKS - *cached;
    for (uint32_t i = *cached; i < PROMPT_BLOCKS; i++) compute(own[i], tokens + i * BLOCK_TOKENS);
    if (rest > 0) {
        const kvt_hash *parent = *cached > 0 ? &hashes[*cached - 1] : NULL;
        TRY(kvt_channel_store(channel, *cached, parent, &hashes[*cached], &own[*cached], rest, KVT_LEVEL_PUBLISHED, 0, NULL, NULL));
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const kvt_plane plane = {.page_bytes = 2 * BLOCK_BYTES}; /* all layers' K and V in one page */
    const kvt_options options = {.struct_size = sizeof options, .abi_version = KVT_ABI_VERSION, .socket = argv[1], .space = "cache",
                                 .page_tokens = BLOCK_TOKENS, .planes = &plane, .planes_count = 1}; /* no tier 0 */
    const kvt_piece pieces[] = {{.base = k, .stride = BLOCK_BYTES, .bytes = BLOCK_BYTES}, {.base = v, .stride = BLOCK_BYTES, .bytes = BLOCK_BYTES}};
    kvt_client *client;
    kvt_channel *channel;
    TRY(kvt_attach(&options, &client));
    TRY(kvt_channel_open(client, 0, &channel));
    TRY(kvt_client_set_blocks(client, BLOCKS, pieces, 2));

    uint16_t tokens[PROMPT_BLOCKS * BLOCK_TOKENS];
    uint32_t cached, again;
    for (uint32_t i = 0; i < PROMPT_BLOCKS * BLOCK_TOKENS; i++) tokens[i] = (uint16_t)(i * i % 251);
    if (prefill(channel, tokens, 0, &cached) != 0) return 1;
    tokens[PROMPT_BLOCKS * BLOCK_TOKENS - 1]++; /* another last token after the same text */
    if (prefill(channel, tokens, PROMPT_BLOCKS, &again) != 0) return 1;
    const int equal = memcmp(k, k[PROMPT_BLOCKS], (PROMPT_BLOCKS - 1) * BLOCK_BYTES) == 0 && memcmp(v, v[PROMPT_BLOCKS], (PROMPT_BLOCKS - 1) * BLOCK_BYTES) == 0;
    printf("%u blocks cached at first, %u then, %s\n", cached, again, equal ? "equal" : "not equal");
    TRY(kvt_client_set_blocks(client, 0, NULL, 0));
    TRY(kvt_channel_close(channel));
    TRY(kvt_detach(client));
    return !(cached == 0 && again == PROMPT_BLOCKS - 1 && equal);
}
