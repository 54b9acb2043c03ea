/* Non-blocking requests: user data, polling, an event loop on the channel's descriptor, cancelling, and a full channel. */
#define _POSIX_C_SOURCE 200809L
#include <poll.h>

#include "engine.h"

enum { DEPTH = 64, SECONDS = 60 };

static kvt_request request(kvt_request_kind kind, void *user) {
    kvt_request r;
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    r.kind = kind;
    r.user = user;
    return r;
}

/* Wait on the descriptor until a completion arrives, as an event loop would. */
static kvt_completion next(engine *e) {
    int fd;
    OK(kvt_channel_get_fd(e->channel, &fd));
    for (;;) {
        kvt_completion done;
        uint32_t count;
        OK(kvt_channel_poll(e->channel, &done, 1, &count));
        if (count == 1) return done;
        bool ready;
        OK(kvt_channel_arm(e->channel, &ready));
        if (ready) continue;
        struct pollfd poller = {.fd = fd, .events = POLLIN};
        CHECK(poll(&poller, 1, SECONDS * 1000) == 1);
    }
}

/* Requests of all kinds in flight at once, distinguished by their user data. */
static void many(engine *e) {
    static char users[DEPTH];
    static const uint32_t kinds[5] = {KVT_REQUEST_NOP, KVT_REQUEST_FORK, KVT_REQUEST_PUBLISH, KVT_REQUEST_ACQUIRE,
                                      KVT_REQUEST_RESERVE};
    text t = text_new(e, 1, 3, 3);
    text pinned = text_new(e, 4, 3, 3);
    const kvt_hash hashes[2] = {{{21, 1}}, {{22, 1}}};
    uint32_t empty;
    OK(kvt_channel_create_seq(e->channel, &empty));
    uint64_t tickets[5];

    kvt_request r = request(KVT_REQUEST_NOP, &users[0]);
    OK(kvt_channel_submit(e->channel, &r, &tickets[0]));
    r = request(KVT_REQUEST_FORK, &users[1]);
    r.args.fork.seq = t.seq;
    OK(kvt_channel_submit(e->channel, &r, &tickets[1]));
    r = request(KVT_REQUEST_PUBLISH, &users[2]);
    r.args.publish = (kvt_publish_request){.seq = t.seq, .hashes = hashes, .count = 2, .level = KVT_LEVEL_PUBLISHED};
    OK(kvt_channel_submit(e->channel, &r, &tickets[2]));
    r = request(KVT_REQUEST_ACQUIRE, &users[3]);
    r.args.acquire = (kvt_range){.seq = pinned.seq, .first = 0, .count = 3, .plane = 0, .planes = PLANES};
    OK(kvt_channel_submit(e->channel, &r, &tickets[3]));
    r = request(KVT_REQUEST_RESERVE, &users[4]);
    r.args.reserve = (kvt_tokens_request){.seq = empty, .tokens = 2 * PAGE_TOKENS};
    OK(kvt_channel_submit(e->channel, &r, &tickets[4]));

    text child = t;
    int seen[5] = {0};
    kvt_pin *pin = NULL;
    for (int i = 0; i < 5; i++) {
        const kvt_completion done = next(e);
        const ptrdiff_t which = (char *)done.user - users;
        CHECK(which >= 0 && which < 5 && seen[which]++ == 0 && done.ticket == tickets[which]);
        CHECK(done.kind == kinds[which]);
        if (done.status != KVT_OK) fprintf(stderr, "request %td: %s\n", which, kvt_last_error());
        CHECK(done.status == KVT_OK);
        if (which == 1) child.seq = done.result.child;
        if (which == 2) CHECK(done.result.level == KVT_LEVEL_PUBLISHED);
        if (which == 3) pin = done.result.pin;
    }
    CHECK(pin != NULL);
    OK(kvt_channel_release(e->channel, pin));
    read_step(e, &child, 1);

    /* A prefix published by a non-blocking request can be mapped. */
    text reader = t;
    OK(kvt_channel_create_seq(e->channel, &reader.seq));
    r = request(KVT_REQUEST_ATTACH_PREFIX, NULL);
    r.args.attach_prefix = (kvt_attach_prefix_request){.seq = reader.seq, .hashes = hashes, .count = 2};
    OK(kvt_channel_submit(e->channel, &r, &tickets[0]));
    kvt_completion done;
    OK(kvt_channel_wait(e->channel, tickets[0], 0, &done));
    CHECK(done.status == KVT_OK && done.result.blocks == 2 && done.ticket == tickets[0] && done.user == NULL);
    reader.tokens = 2 * PAGE_TOKENS;
    read_step(e, &reader, 1);

    /* A ticket is valid once. */
    FAILS(kvt_channel_wait(e->channel, tickets[0], 0, &done), KVT_ENOTFOUND, "wait");
    FAILS(kvt_channel_wait(e->channel, UINT64_MAX, 0, &done), KVT_ENOTFOUND, "wait");
    EXPECT(kvt_channel_cancel(e->channel, tickets[0]), KVT_ENOTFOUND);
    OK(kvt_channel_drop_seq(e->channel, reader.seq));
    OK(kvt_channel_drop_seq(e->channel, child.seq));
    OK(kvt_channel_drop_seq(e->channel, t.seq));
    OK(kvt_channel_drop_seq(e->channel, pinned.seq));
    OK(kvt_channel_drop_seq(e->channel, empty));
}

/* A request that fails reports its error in the completion, not when it is submitted. */
static void failing(engine *e) {
    text t = text_new(e, 2, 24, 2);
    kvt_request r = request(KVT_REQUEST_ACQUIRE, &t);
    r.args.acquire = (kvt_range){.seq = t.seq, .first = 0, .count = 24, .plane = 0, .planes = 2};
    uint64_t ticket = 0;
    const kvt_status sent = kvt_channel_submit(e->channel, &r, &ticket);
    if (sent == KVT_OK) {
        const kvt_completion done = next(e);
        CHECK(done.status == KVT_ETOOBIG && done.kind == KVT_REQUEST_ACQUIRE && done.result.pin == NULL && done.user == &t);
    } else {
        CHECK(sent == KVT_ETOOBIG); /* detected without a request to the daemon */
    }
    r = request((kvt_request_kind)4711, NULL);
    FAILS(kvt_channel_submit(e->channel, &r, NULL), KVT_EINVAL, "4711");
    r = request(KVT_REQUEST_RESIZE_TIER0 + 1, NULL);
    FAILS(kvt_channel_submit(e->channel, &r, NULL), KVT_EINVAL, "not a kvt_request_kind");
    r = request(KVT_REQUEST_NOP, NULL);
    r.struct_size = 3;
    FAILS(kvt_channel_submit(e->channel, &r, NULL), KVT_EINVAL, "struct_size");
    /* A result pointer is checked before anything is sent: `full`, below, would find the completion. */
    r = request(KVT_REQUEST_NOP, NULL);
    _Alignas(8) char room[16];
    FAILS(kvt_channel_submit(e->channel, &r, (uint64_t *)(void *)(room + 1)), KVT_EINVAL, "ticket");
    OK(kvt_channel_drop_seq(e->channel, t.seq));
}

/* Submit as many requests as the channel is deep, not one more. None is lost, and the room becomes free again. */
static void full(engine *e) {
    for (int round = 0; round < 3; round++) {
        uint32_t sent = 0;
        kvt_status status;
        do {
            kvt_request r = request(KVT_REQUEST_NOP, (void *)(uintptr_t)(sent + 1));
            status = kvt_channel_submit(e->channel, &r, NULL);
            if (status == KVT_OK) sent++;
            CHECK(sent <= DEPTH);
        } while (status == KVT_OK);
        CHECK(status == KVT_EAGAIN && sent > 0);
        uintptr_t users = 0;
        for (uint32_t i = 0; i < sent; i++) {
            const kvt_completion done = next(e);
            CHECK(done.status == KVT_OK);
            users += (uintptr_t)done.user;
        }
        CHECK(users == (uintptr_t)sent * (sent + 1) / 2);
        OK(round_trip(e->channel, 0));
    }
}

/* In every outcome of the race the request ends once, cancelled or done. */
static void cancelled(engine *e) {
    text t = text_new(e, 3, 24, 2);
    kvt_request r = request(KVT_REQUEST_ACQUIRE, NULL);
    r.args.acquire = (kvt_range){.seq = t.seq, .first = 0, .count = 6, .plane = 0, .planes = 2};
    uint64_t ticket;
    OK(kvt_channel_submit(e->channel, &r, &ticket));
    OK(kvt_channel_cancel(e->channel, ticket));
    kvt_completion done;
    OK(kvt_channel_wait(e->channel, ticket, 0, &done));
    if (done.status == KVT_OK) {
        OK(kvt_channel_release(e->channel, done.result.pin));
    } else {
        CHECK(done.status == KVT_ECANCELED && done.result.pin == NULL);
    }
    read_step(e, &t, 1);
    OK(kvt_channel_drop_seq(e->channel, t.seq));
}

static kvt_completion run(engine *e, const kvt_request *r) {
    uint64_t ticket;
    kvt_completion done;
    OK(kvt_channel_submit(e->channel, r, &ticket));
    OK(kvt_channel_wait(e->channel, ticket, 0, &done));
    if (done.status != KVT_OK) fprintf(stderr, "kind %u: %s\n", r->kind, kvt_last_error());
    CHECK(done.status == KVT_OK && done.kind == r->kind);
    return done;
}

/* The kinds that the other tests do not use, each with the effect of its blocking call. */
static void others(engine *e) {
    enum { FRAMES = 20 };
    text t = text_new(e, 5, 3, 3);
    kvt_request r = request(KVT_REQUEST_ADVISE, NULL);
    r.args.advise = (kvt_advise_request){.seq = t.seq, .count = 2, .advice = KVT_ADVICE_PRIORITY, .value = 200};
    run(e, &r);
    r.args.advise.value = 256;
    FAILS(kvt_channel_submit(e->channel, &r, NULL), KVT_EINVAL, "256");
    r = request(KVT_REQUEST_PARK, NULL);
    r.args.park = (kvt_park_request){.seq = t.seq, .due_us = 1000};
    run(e, &r);
    const kvt_step_seq step = {.seq = t.seq, .tokens = t.tokens};
    EXPECT(kvt_lane_begin(e->lane, &step, 1), KVT_ESTATE); /* parked */
    r = request(KVT_REQUEST_RESUME, NULL);
    r.args.resume.seq = t.seq;
    run(e, &r);
    read_step(e, &t, 1);
    r = request(KVT_REQUEST_TRUNCATE, NULL);
    r.args.truncate = (kvt_tokens_request){.seq = t.seq, .tokens = 2 * PAGE_TOKENS};
    run(e, &r);
    t.tokens = 2 * PAGE_TOKENS;
    uint32_t blocks;
    OK(kvt_client_get_seq_blocks(e->client, t.seq, 0, NULL, 0, &blocks));
    CHECK(blocks == 2);
    read_step(e, &t, 1);
    r = request(KVT_REQUEST_RESIZE_TIER0, NULL);
    r.args.resize_tier0 = (kvt_resize_tier0_request){.size_class = 0, .frames = FRAMES - 4};
    CHECK(run(e, &r).result.frames == FRAMES - 4);
    r.args.resize_tier0.frames = FRAMES;
    CHECK(run(e, &r).result.frames == FRAMES);
    read_step(e, &t, 1);
    r = request(KVT_REQUEST_RESERVE_BLOCKS, NULL);
    r.args.reserve_blocks.count = 2;
    CHECK(run(e, &r).result.blocks >= 2);
    OK(kvt_channel_append(e->channel, t.seq, PAGE_TOKENS)); /* takes from that reserve */
    OK(kvt_channel_drop_seq(e->channel, t.seq));
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    engine e = engine_attach(argv[1], 10);
    many(&e);
    failing(&e);
    full(&e);
    cancelled(&e);
    others(&e);
    engine_detach(&e);
    return 0;
}
