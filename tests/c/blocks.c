/* The block API in a small engine: its KV is in two tensors of its own, K and V, with the block as first dimension. It stores a prompt's
 * blocks, finds them again, and loads them into other blocks, as after a restart. Arguments: the daemon's socket. */
#include "check.h"

enum { PAGE_TOKENS = 16, TOKEN_BYTES = 128, BLOCKS = 64, PROMPT = 24, HALF = PAGE_TOKENS * TOKEN_BYTES };

static uint8_t k[BLOCKS][HALF], v[BLOCKS][HALF];

/* Any hash over a block's tokens and all tokens before them is valid; here it is a number. */
static kvt_hash hash_of(uint32_t prompt, uint32_t index) {
    return (kvt_hash){{(uint64_t)prompt << 32 | (index + 1), prompt}};
}

static void attend(uint32_t block, uint32_t prompt, uint32_t index) {
    memset(k[block], (int)(prompt * 7 + index), HALF);
    memset(v[block], (int)(prompt * 11 + index), HALF);
}

static int holds(uint32_t block, uint32_t prompt, uint32_t index) {
    for (uint32_t i = 0; i < HALF; i++) {
        if (k[block][i] != (uint8_t)(prompt * 7 + index) || v[block][i] != (uint8_t)(prompt * 11 + index)) return 0;
    }
    return 1;
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    const kvt_plane planes[] = {{.page_bytes = 2 * HALF}}; /* all layers in one page */
    const kvt_options options = {.struct_size = sizeof options, .abi_version = KVT_ABI_VERSION, .socket = argv[1], .space = "blocks",
                                 .page_tokens = PAGE_TOKENS, .planes = planes, .planes_count = 1};
    kvt_client *client;
    kvt_channel *channel;
    OK(kvt_attach(&options, &client));
    OK(kvt_channel_open(client, 0, &channel));
    const kvt_piece pieces[] = {{.base = k, .stride = HALF, .bytes = HALF}, {.base = v, .stride = HALF, .bytes = HALF}};
    FAILS(kvt_client_set_blocks(client, BLOCKS, pieces, 1), KVT_EINVAL, "a page has");
    kvt_hash hashes[PROMPT + 1] = {hash_of(1, 0)};
    const uint32_t none[] = {0};
    FAILS(kvt_channel_store(channel, 0, NULL, hashes, none, 1, KVT_LEVEL_PUBLISHED, 0, NULL, NULL), KVT_ESTATE, "set_blocks");
    OK(kvt_client_set_blocks(client, BLOCKS, pieces, 2));

    uint32_t own[PROMPT], failed[PROMPT], count, found, share;
    for (uint32_t i = 0; i < PROMPT; i++) {
        hashes[i] = hash_of(1, i);
        attend(own[i] = 2 * i, 1, i);
    }
    OK(kvt_channel_store(channel, 0, NULL, hashes, own, PROMPT, KVT_LEVEL_PUBLISHED, 0, failed, &count));
    CHECK(count == 0);

    /* Another prompt begins with the same blocks and continues with one that was never stored. */
    hashes[PROMPT] = hash_of(2, PROMPT);
    OK(kvt_channel_lookup(channel, hashes, PROMPT + 1, 0, &found, &share));
    CHECK(found == PROMPT && share == 1000);
    kvt_lease_info lease;
    OK(kvt_channel_lease(channel, &hashes[found - 1], found, 60 * 1000 * 1000, 0, &lease));
    CHECK(lease.in_host == PROMPT && lease.on_nvme == 0 && lease.elsewhere == 0);
    memset(k, 0, sizeof k);
    memset(v, 0, sizeof v);
    for (uint32_t i = 0; i < PROMPT; i++) own[i] = BLOCKS - 1 - i;
    OK(kvt_channel_load(channel, lease.id, 0, own, found, 0, failed, &count));
    for (uint32_t i = 0; i < PROMPT; i++) CHECK(holds(own[i], 1, i));

    /* A block that does not exist: nothing is copied. */
    own[1] = BLOCKS;
    attend(own[0], 7, 7);
    FAILS(kvt_channel_load(channel, lease.id, 3, own, 3, 0, failed, &count), KVT_ERANGE, "blocks[1] is 64; only 64 blocks");
    CHECK(count == 0 && holds(own[0], 7, 7));
    FAILS(kvt_channel_store(channel, 0, NULL, hashes, own, 2, KVT_LEVEL_PUBLISHED, 0, failed, &count), KVT_ERANGE, "blocks[1] is 64");
    FAILS(kvt_channel_load(channel, lease.id, found, own, 1, 0, failed, &count), KVT_ERANGE, "24 blocks");
    OK(kvt_channel_end_lease(channel, lease.id));
    FAILS(kvt_channel_load(channel, lease.id, 0, own, 1, 0, failed, &count), KVT_ENOTFOUND, "load blocks");
    CHECK(count == 0);
    EXPECT(kvt_channel_lease(channel, &hashes[PROMPT], 1, 1000, 0, &lease), KVT_ENOTFOUND);
    const kvt_hash nobody = hash_of(9, 0);
    EXPECT(kvt_channel_store(channel, 1, &nobody, &hashes[1], own, 1, KVT_LEVEL_PUBLISHED, 0, failed, &count), KVT_ENOTADMITTED);
    CHECK(count == 1 && failed[0] == 0);
    OK(kvt_channel_settle(channel, 0));
    OK(kvt_client_set_blocks(client, 0, NULL, 0));
    OK(kvt_channel_close(channel));
    OK(kvt_detach(client));
    puts("ok");
    return 0;
}
