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

/* A lookup of a block that nobody has stored. */
static kvt_request lookup(void *user) {
    static const kvt_hash nobody = {{99, 1}};
    kvt_request r = request(KVT_REQUEST_LOOKUP, user);
    r.args.lookup = (kvt_lookup_request){.hashes = &nobody, .count = 1};
    return r;
}

/* Several requests in flight at once, distinguished by their user data. */
static void many(engine *e) {
    enum { SENT = 3 };
    static char users[SENT];
    static const uint32_t kinds[SENT] = {KVT_REQUEST_LOOKUP, KVT_REQUEST_ACQUIRE, KVT_REQUEST_LOOKUP};
    text t = text_new(e, 1, 3, 3);
    text pinned = text_new(e, 4, 3, 3);
    const kvt_hash hashes[2] = {{{21, 1}}, {{22, 1}}};
    OK(kvt_channel_publish(e->channel, t.seq, 0, NULL, hashes, 2, KVT_LEVEL_PUBLISHED, 0, NULL));
    kvt_request requests[SENT] = {lookup(&users[0]), request(KVT_REQUEST_ACQUIRE, &users[1]), lookup(&users[2])};
    requests[0].args.lookup = (kvt_lookup_request){.hashes = hashes, .count = 2};
    requests[1].args.acquire = (kvt_range){.seq = pinned.seq, .first = 0, .count = 3, .plane = 0, .planes = PLANES};
    uint64_t tickets[SENT];
    for (int i = 0; i < SENT; i++) OK(kvt_channel_submit(e->channel, &requests[i], &tickets[i]));

    int seen[SENT] = {0};
    kvt_completion done[SENT];
    for (int i = 0; i < SENT; i++) {
        const kvt_completion next_done = next(e);
        const ptrdiff_t which = (char *)next_done.user - users;
        CHECK(which >= 0 && which < SENT && seen[which]++ == 0 && next_done.ticket == tickets[which]);
        CHECK(next_done.kind == kinds[which]);
        if (next_done.status != KVT_OK) fprintf(stderr, "request %td: %s\n", which, kvt_last_error());
        CHECK(next_done.status == KVT_OK);
        done[which] = next_done;
    }
    CHECK(done[0].result.lookup.blocks == 2 && done[1].result.pin != NULL && done[2].result.lookup.blocks == 0);
    OK(kvt_channel_release(e->channel, done[1].result.pin));
    read_step(e, &pinned, 1);

    /* A ticket is valid once. */
    FAILS(kvt_channel_wait(e->channel, tickets[0], 0, &done[0]), KVT_ENOTFOUND, "wait");
    FAILS(kvt_channel_wait(e->channel, UINT64_MAX, 0, &done[0]), KVT_ENOTFOUND, "wait");
    EXPECT(kvt_channel_cancel(e->channel, tickets[0]), KVT_ENOTFOUND);
    OK(kvt_channel_drop_seq(e->channel, t.seq));
    OK(kvt_channel_drop_seq(e->channel, pinned.seq));
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
    /* The kind was not set; the one after the last kind. */
    static const uint32_t unknown[2] = {0, KVT_REQUEST_ACQUIRE + 1};
    for (int i = 0; i < 2; i++) {
        r = request((kvt_request_kind)unknown[i], NULL);
        FAILS(kvt_channel_submit(e->channel, &r, NULL), KVT_EINVAL, "not a kvt_request_kind");
    }
    r = lookup(NULL);
    r.struct_size = 3;
    FAILS(kvt_channel_submit(e->channel, &r, NULL), KVT_EINVAL, "struct_size");
    /* A result pointer is checked before anything is sent: `full`, below, would find the completion. */
    r = lookup(NULL);
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
            const kvt_request r = lookup((void *)(uintptr_t)(sent + 1));
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

int main(int argc, char **argv) {
    CHECK(argc > 1);
    engine e = engine_attach(argv[1], 10);
    many(&e);
    failing(&e);
    full(&e);
    cancelled(&e);
    engine_detach(&e);
    return 0;
}
