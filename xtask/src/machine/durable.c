/* An engine that stores blocks durably, and finds them in a later run: after a restart of the daemon, or of the machine. Arguments: the
 * daemon's socket, and `store` or `find`. */
#include <stdio.h>
#include <string.h>

#include "kvtide.h"

#define TRY(call)                                                                     \
    do {                                                                              \
        if ((call) != KVT_OK) return fprintf(stderr, "%s\n", kvt_last_error()), 1;    \
    } while (0)

enum { PAGE_TOKENS = 16, BLOCKS = 64, BLOCK_BYTES = 64 << 10 };

static uint8_t kv[BLOCKS][BLOCK_BYTES];

/* Byte `at` of a block. */
static uint8_t byte_of(uint32_t block, uint32_t at) {
    return (uint8_t)(block * 37 + at * 11 + (at >> 8));
}

int main(int argc, char **argv) {
    const int store = argc == 3 && strcmp(argv[2], "store") == 0;
    if (argc != 3 || (!store && strcmp(argv[2], "find") != 0)) return fprintf(stderr, "usage: durable SOCKET store|find\n"), 2;
    const kvt_plane planes[] = {{.page_bytes = BLOCK_BYTES}};
    const kvt_options options = {.struct_size = sizeof options, .abi_version = KVT_ABI_VERSION, .socket = argv[1], .space = "durable",
                                 .page_tokens = PAGE_TOKENS, .planes = planes, .planes_count = 1};
    const kvt_piece piece = {.base = kv, .stride = BLOCK_BYTES, .bytes = BLOCK_BYTES};
    kvt_client *client;
    kvt_channel *channel;
    kvt_hash hashes[BLOCKS];
    uint32_t own[BLOCKS], failed[BLOCKS], count, found, share;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        hashes[i] = (kvt_hash){{i + 1, 7}};
        own[i] = i;
    }
    TRY(kvt_attach(&options, &client));
    TRY(kvt_channel_open(client, 0, &channel));
    TRY(kvt_client_set_blocks(client, BLOCKS, &piece, 1));
    if (store) {
        for (uint32_t i = 0; i < BLOCKS; i++) {
            for (uint32_t at = 0; at < BLOCK_BYTES; at++) kv[i][at] = byte_of(i, at);
        }
        TRY(kvt_channel_store(channel, 0, NULL, hashes, own, BLOCKS, KVT_LEVEL_DURABLE, 0, failed, &count));
        printf("stored %u\n", BLOCKS - count);
    } else {
        uint32_t equal = 0;
        kvt_lease_info lease;
        TRY(kvt_channel_lookup(channel, hashes, BLOCKS, 0, &found, &share));
        if (found > 0) {
            TRY(kvt_channel_lease(channel, &hashes[found - 1], found, 60 * 1000 * 1000, 0, &lease));
            TRY(kvt_channel_load(channel, lease.id, 0, own, found, 0, failed, &count));
            TRY(kvt_channel_end_lease(channel, lease.id));
        }
        for (uint32_t i = 0; i < found; i++) {
            uint32_t at = 0;
            while (at < BLOCK_BYTES && kv[i][at] == byte_of(i, at)) at++;
            equal += at == BLOCK_BYTES;
        }
        printf("found %u of %u, %u equal\n", found, BLOCKS, equal);
        if (equal != BLOCKS) return 1;
    }
    TRY(kvt_channel_close(channel));
    TRY(kvt_detach(client));
    return 0;
}
