/* The non-blocking block API, and blocks of two members: an engine with two cache groups that number their blocks separately. It submits
 * stores, a lookup, a lease and loads, and waits for their completions on the channel's descriptor. Arguments: the daemon's socket. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>

#include "check.h"

enum { IDS = 32, FULL = 4096, WINDOW = 1024, PROMPT = 6, SECONDS = 60 };

static uint8_t full[IDS][FULL], window[IDS][WINDOW];
static kvt_client *client;
static kvt_channel *channel;

static kvt_hash hash_of(uint32_t prompt, uint32_t index) {
    return (kvt_hash){{(uint64_t)prompt << 32 | (index + 1), prompt}};
}

static kvt_request request(kvt_request_kind kind, uintptr_t user) {
    kvt_request r;
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    r.kind = kind;
    r.user = (void *)user;
    return r;
}

static uint64_t submit(const kvt_request *r) {
    uint64_t ticket;
    OK(kvt_channel_submit(channel, r, &ticket));
    return ticket;
}

/* Wait on the descriptor until a completion arrives, as an event loop would. */
static kvt_completion next(void) {
    int fd;
    OK(kvt_channel_get_fd(channel, &fd));
    for (;;) {
        kvt_completion done;
        uint32_t count;
        OK(kvt_channel_poll(channel, &done, 1, &count));
        if (count == 1) return done;
        bool ready;
        OK(kvt_channel_arm(channel, &ready));
        if (ready) continue;
        struct pollfd poller = {.fd = fd, .events = POLLIN};
        CHECK(poll(&poller, 1, SECONDS * 1000) == 1);
    }
}

static void write_block(const uint32_t ids[2], uint32_t prompt, uint32_t index) {
    memset(full[ids[0]], (int)(prompt * 16 + index), FULL);
    memset(window[ids[1]], (int)(prompt * 16 + index + 128), WINDOW);
}

static int holds(const uint32_t ids[2], uint32_t prompt, uint32_t index) {
    for (uint32_t i = 0; i < FULL; i++) {
        if (full[ids[0]][i] != (uint8_t)(prompt * 16 + index)) return 0;
    }
    for (uint32_t i = 0; i < WINDOW; i++) {
        if (window[ids[1]][i] != (uint8_t)(prompt * 16 + index + 128)) return 0;
    }
    return 1;
}

/* Store two prompts at once, under names whose ids are scattered. */
static void store(void) {
    uint32_t names[PROMPT], ids[2 * PROMPT];
    kvt_hash hashes[2][PROMPT];
    uint64_t tickets[2];
    for (uint32_t prompt = 0; prompt < 2; prompt++) {
        for (uint32_t i = 0; i < PROMPT; i++) {
            names[i] = 1000 * prompt + i;
            ids[2 * i] = 16 * prompt + i;
            ids[2 * i + 1] = IDS - 1 - 16 * prompt - 2 * i;
            write_block(&ids[2 * i], prompt + 1, i);
            hashes[prompt][i] = hash_of(prompt + 1, i);
        }
        kvt_request r = request(KVT_REQUEST_STORE, prompt);
        r.args.store = (kvt_store_request){.hashes = hashes[prompt], .blocks = names, .count = PROMPT, .level = KVT_LEVEL_PUBLISHED};
        FAILS(kvt_channel_submit(channel, &r, NULL), KVT_ERANGE, "submit"); /* the names have no ids yet */
        OK(kvt_client_name_blocks(client, 1000 * prompt, ids, 2 * PROMPT));
        tickets[prompt] = submit(&r);
        /* Until the completion of a store was polled, its names cannot be changed. */
        EXPECT(kvt_client_name_blocks(client, 1000 * prompt + PROMPT - 1, ids, 2), KVT_ESTATE);
        EXPECT(kvt_client_set_blocks(client, 0, NULL, 0), KVT_ESTATE);
    }
    for (int i = 0; i < 2; i++) {
        const kvt_completion done = next();
        const uintptr_t prompt = (uintptr_t)done.user;
        CHECK(prompt < 2 && done.ticket == tickets[prompt]);
        CHECK(done.status == KVT_OK && done.kind == KVT_REQUEST_STORE && done.result.store.failed_count == 0 &&
              done.result.store.level == KVT_LEVEL_PUBLISHED);
    }
}

static void find_and_load(void) {
    kvt_hash chain[PROMPT + 300];
    for (uint32_t i = 0; i < PROMPT + 300; i++) chain[i] = hash_of(i < PROMPT ? 1 : 9, i);
    kvt_request r = request(KVT_REQUEST_LOOKUP, 7);
    r.args.lookup = (kvt_lookup_request){.hashes = chain, .count = PROMPT + 300};
    submit(&r);
    kvt_completion done = next();
    CHECK(done.status == KVT_OK && done.user == (void *)7 && done.result.lookup.blocks == PROMPT &&
          done.result.lookup.in_host_permille == 1000);

    r = request(KVT_REQUEST_LEASE, 8);
    r.args.lease = (kvt_lease_request){.hash = chain[PROMPT - 1], .count = PROMPT, .lease_us = (uint64_t)SECONDS * 1000 * 1000};
    submit(&r);
    /* A request goes on while its channel is closed, and its completion says what it was. */
    OK(kvt_channel_close(channel));
    OK(kvt_channel_open(client, 0, &channel));
    done = next();
    CHECK(done.kind == KVT_REQUEST_LEASE);
    CHECK(done.status == KVT_OK && done.result.lease.in_host == PROMPT && done.result.lease.on_nvme == 0);
    const uint32_t lease = done.result.lease.id;
    r.args.lease.count = PROMPT - 1;
    submit(&r);
    done = next();
    CHECK(done.status == KVT_EINVAL && done.kind == KVT_REQUEST_LEASE && done.result.lease.id == 0);

    /* Into other blocks of both groups. */
    const uint32_t ids[2][2] = {{30, 29}, {29, 30}}, names[2] = {5, 6};
    OK(kvt_client_name_blocks(client, 5, ids[0], 4));
    r = request(KVT_REQUEST_LOAD, 9);
    r.args.load = (kvt_load_request){.lease = lease, .first = 2, .blocks = names, .count = 2};
    const uint64_t ticket = submit(&r);
    OK(kvt_channel_wait(channel, ticket, 0, &done));
    CHECK(done.status == KVT_OK && done.ticket == ticket && holds(ids[0], 1, 2) && holds(ids[1], 1, 3));
    uint32_t failed[2], count;
    EXPECT(kvt_channel_get_failed(channel, ticket, failed, 2, &count), KVT_ENOTFOUND);

    /* In every outcome of the race a cancelled request ends once. */
    r = request(KVT_REQUEST_LOAD, 10);
    r.args.load = (kvt_load_request){.lease = lease, .blocks = names, .count = 2};
    const uint64_t late = submit(&r);
    OK(kvt_channel_cancel(channel, late));
    done = next();
    CHECK(done.ticket == late && (done.status == KVT_OK || done.status == KVT_ECANCELED));
    EXPECT(kvt_channel_cancel(channel, late), KVT_ENOTFOUND);
    OK(kvt_channel_end_lease(channel, lease));
}

/* The completion that was polled last lists the failed blocks. */
static void failing(void) {
    const kvt_piece once[] = {{.base = full, .stride = FULL, .bytes = FULL},
                              {.base = window, .stride = WINDOW, .bytes = WINDOW, .plane = 1}};
    OK(kvt_client_set_blocks(client, IDS, once, 2));
    EXPECT(kvt_client_name_blocks(client, 0, &(uint32_t){0}, 1), KVT_ESTATE); /* the blocks are numbered once: there is nothing to name */
    const uint32_t own[2] = {0, IDS};
    const kvt_hash hashes[2] = {hash_of(3, 1), hash_of(3, 2)}, nobody = hash_of(3, 0);
    kvt_request r = request(KVT_REQUEST_STORE, 1);
    r.args.store = (kvt_store_request){.hashes = hashes, .blocks = own, .count = 2, .first = 1, .parent = &nobody};
    FAILS(kvt_channel_submit(channel, &r, NULL), KVT_ERANGE, "blocks[1] is 32");
    const uint32_t there[2] = {0, 1};
    r.args.store.blocks = there;
    const uint64_t ticket = submit(&r);
    kvt_completion done = next();
    CHECK(done.status == KVT_ENOTADMITTED && done.kind == KVT_REQUEST_STORE && done.result.store.failed_count == 2);
    CHECK(strstr(kvt_last_error(), "2 blocks failed") != NULL);
    uint32_t failed[2], count;
    OK(kvt_channel_get_failed(channel, ticket, NULL, 0, &count));
    CHECK(count == 2);
    OK(kvt_channel_get_failed(channel, ticket, failed, 1, &count));
    CHECK(count == 2 && failed[0] == 0);
    OK(kvt_channel_get_failed(channel, ticket, failed, 2, &count));
    CHECK(failed[1] == 1);
    OK(kvt_channel_poll(channel, &done, 1, &count));
    CHECK(count == 0);
    FAILS(kvt_channel_get_failed(channel, ticket, failed, 2, &count), KVT_ENOTFOUND, "the last poll");

    /* No version of the structure is that short. */
    r = request(KVT_REQUEST_LOOKUP, 2);
    r.struct_size = offsetof(kvt_request, args);
    FAILS(kvt_channel_submit(channel, &r, NULL), KVT_EINVAL, "struct_size");
    r.struct_size = sizeof r;
    r.args.lookup.reserved = 1;
    FAILS(kvt_channel_submit(channel, &r, NULL), KVT_EINVAL, "request->args.lookup.reserved");
    r = request(KVT_REQUEST_LOAD, 2);
    r.args.load.count = 1;
    FAILS(kvt_channel_submit(channel, &r, NULL), KVT_EINVAL, "request->args.load.blocks");
    /* Only the member of the kind is read: the others may contain anything. */
    r = request(KVT_REQUEST_LOOKUP, 2);
    memset(&r.args, 0xff, sizeof r.args);
    r.args.lookup = (kvt_lookup_request){.hashes = &nobody, .count = 1};
    submit(&r);
    CHECK(next().status == KVT_OK);
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    const kvt_plane planes[] = {{.page_bytes = FULL}, {.page_bytes = WINDOW}};
    const kvt_options options = {.struct_size = sizeof options, .abi_version = KVT_ABI_VERSION, .socket = argv[1], .space = "members",
                                 .page_tokens = 16, .planes = planes, .planes_count = 2};
    OK(kvt_attach(&options, &client));
    OK(kvt_channel_open(client, 0, &channel));
    const kvt_piece pieces[] = {{.base = full, .stride = FULL, .bytes = FULL},
                                {.base = window, .stride = WINDOW, .bytes = WINDOW, .plane = 1, .member = 1}};
    OK(kvt_client_set_blocks(client, IDS, pieces, 2));
    store();
    find_and_load();
    failing();
    OK(kvt_channel_close(channel));
    OK(kvt_detach(client));
    puts("ok");
    return 0;
}
