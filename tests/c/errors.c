/* Mistakes of a program with a running daemon: each returns its own status and a reason, and damages nothing. */
#include "engine.h"

static void handles(engine *e) {
    kvt_channel *channel;
    kvt_lane *lane;
    uint32_t seq;
    FAILS(kvt_channel_open(e->client, 0, &channel), KVT_ESTATE, "channel");
    FAILS(kvt_channel_open(e->client, 99, &channel), KVT_ERANGE, "99");
    FAILS(kvt_lane_open(e->client, 0, &lane), KVT_ESTATE, "lane");
    FAILS(kvt_lane_open(e->client, 99, &lane), KVT_ERANGE, "99");
    /* A handle of the wrong type. */
    FAILS(round_trip((kvt_channel *)(void *)e->lane, 0), KVT_EINVAL, "is not a kvt_channel");
    FAILS(kvt_channel_release(e->channel, (kvt_pin *)(void *)e->channel), KVT_EINVAL, "is not a kvt_pin");
    /* Closing twice; a new handle in the same slot differs from the old one. */
    OK(kvt_channel_open(e->client, 1, &channel));
    OK(kvt_channel_close(channel));
    FAILS(kvt_channel_close(channel), KVT_EINVAL, "already closed");
    FAILS(kvt_channel_create_seq(channel, &seq), KVT_EINVAL, "already closed");
}

static void sequences(engine *e) {
    kvt_channel *c = e->channel;
    uint32_t n, blocks[2];
    FAILS(kvt_channel_drop_seq(c, 5), KVT_ENOTFOUND, "5");
    FAILS(kvt_channel_drop_seq(c, 4000000000u), KVT_ENOTFOUND, "4000000000");
    FAILS(kvt_channel_reserve(c, 5, 10, 0), KVT_ENOTFOUND, "5");
    FAILS(kvt_channel_commit(c, 5, 1), KVT_ENOTFOUND, "5");
    FAILS(kvt_channel_fork(c, 5, 0, &n), KVT_ENOTFOUND, "5");
    FAILS(kvt_channel_truncate(c, 5, 0, 0), KVT_ENOTFOUND, "5");
    FAILS(kvt_channel_park(c, 5, 0), KVT_ENOTFOUND, "5");
    FAILS(kvt_channel_resume(c, 5, 0), KVT_ENOTFOUND, "5");
    FAILS(kvt_client_get_seq_blocks(e->client, 5, 0, blocks, 2, &n), KVT_ENOTFOUND, "5");

    text t = text_new(e, 1, 3, 3);
    FAILS(kvt_client_get_seq_blocks(e->client, t.seq, 4, blocks, 2, &n), KVT_ERANGE, "3 blocks");
    OK(kvt_client_get_seq_blocks(e->client, t.seq, 1, NULL, 0, &n));
    CHECK(n == 2);
    FAILS(kvt_channel_commit(c, t.seq, t.tokens + 1), KVT_ESTATE, "commit");
    FAILS(kvt_channel_commit(c, t.seq, t.tokens - 1), KVT_ESTATE, "commit");
    FAILS(kvt_channel_truncate(c, t.seq, t.tokens + 1, 0), KVT_ERANGE, "truncate");
    CHECK(kvt_channel_reserve(c, t.seq, UINT64_MAX, 0) != KVT_OK);
    CHECK(kvt_channel_reserve(c, t.seq, UINT32_MAX, 0) != KVT_OK);
    read_step(e, &t, 1);

    /* Dropping twice. */
    OK(kvt_channel_drop_seq(c, t.seq));
    FAILS(kvt_channel_drop_seq(c, t.seq), KVT_ENOTFOUND, "drop");
    OK(round_trip(c, 0)); /* after the daemon's answer the slot is free again */
    OK(kvt_channel_trace(c, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
    FAILS(kvt_channel_trace(c, "00-4bf9-00f0-01"), KVT_EINVAL, "traceparent");
    OK(kvt_channel_trace(c, NULL));

    /* More sequences than the options allow. */
    uint32_t seqs[SEQS_MAX];
    for (uint32_t i = 0; i < SEQS_MAX; i++) OK(kvt_channel_create_seq(c, &seqs[i]));
    FAILS(kvt_channel_create_seq(c, &n), KVT_ELIMIT, "sequence");
    for (uint32_t i = 0; i < SEQS_MAX; i++) OK(kvt_channel_drop_seq(c, seqs[i]));
    OK(round_trip(c, 0));
}

static void publishing(engine *e) {
    kvt_channel *c = e->channel;
    text t = text_new(e, 2, 2, 2);
    const kvt_hash hashes[3] = {{{1, 0}}, {{2, 0}}, {{3, 0}}};
    uint32_t n;
    FAILS(kvt_channel_publish(c, t.seq, 0, NULL, hashes, 1, 77, 0, NULL), KVT_EINVAL, "kvt_level");
    FAILS(kvt_channel_publish(c, t.seq, 0, NULL, NULL, 1, 0, 0, NULL), KVT_EINVAL, "`hashes`");
    CHECK(kvt_channel_publish(c, t.seq, 1, NULL, hashes, 2, 0, 0, NULL) != KVT_OK); /* one block too many */
    FAILS(kvt_channel_attach_prefix(c, t.seq, hashes, 1, 0, &n), KVT_ESTATE, "attach a prefix");
    FAILS(kvt_channel_advise(c, t.seq, 0, 1, 99, 0), KVT_EINVAL, "kvt_advice");
    FAILS(kvt_channel_advise(c, t.seq, 0, 1, KVT_ADVICE_PRIORITY, 256), KVT_EINVAL, "256");
    FAILS(kvt_channel_advise(c, t.seq, 1, 5, KVT_ADVICE_COLD, 0), KVT_ERANGE, "advise");
    FAILS(kvt_channel_advise(c, 77, 0, 0, KVT_ADVICE_REMAINING, 8), KVT_ENOTFOUND, "advise");
    OK(kvt_channel_advise(c, t.seq, 0, 0, KVT_ADVICE_REMAINING, 300)); /* above the maximum priority */
    OK(kvt_channel_advise(c, t.seq, 0, 0, KVT_ADVICE_REMAINING, UINT32_MAX));
    OK(kvt_channel_drop_seq(c, t.seq));
}

static void pinning(engine *e, uint32_t tier0_blocks) {
    kvt_channel *c = e->channel;
    text t = text_new(e, 3, 2 * tier0_blocks, 2);
    kvt_pin *pin = NULL;
    kvt_range range = {.seq = t.seq, .first = 0, .count = 2 * tier0_blocks, .plane = 0, .planes = 2};
    FAILS(kvt_channel_acquire(c, &range, 0, &pin), KVT_ETOOBIG, "acquire");
    range.count = 2 * tier0_blocks + 1;
    FAILS(kvt_channel_acquire(c, &range, 0, &pin), KVT_ERANGE, "acquire");
    range.count = 1;
    range.planes = PLANES + 1;
    FAILS(kvt_channel_acquire(c, &range, 0, &pin), KVT_ERANGE, "acquire");
    range.seq = 7;
    range.planes = 1;
    FAILS(kvt_channel_acquire(c, &range, 0, &pin), KVT_ENOTFOUND, "acquire");
    CHECK(pin == NULL);
    range.seq = t.seq;
    OK(kvt_channel_acquire(c, &range, 0, &pin));
    OK(kvt_channel_release(c, pin));
    FAILS(kvt_channel_release(c, pin), KVT_ESTATE, "release");
    read_step(e, &t, 1); /* the sequence is undamaged */
    OK(kvt_channel_drop_seq(c, t.seq));
}

static void steps(engine *e) {
    kvt_pass pass;
    void *page;
    text t = text_new(e, 4, 2, 2);
    kvt_step_seq seq = {.seq = t.seq, .tokens = t.tokens};
    FAILS(kvt_lane_end(e->lane), KVT_ESTATE, "end");
    FAILS(kvt_lane_boundary(e->lane, 0, &pass), KVT_ESTATE, "boundary");
    const kvt_step_seq unknown = {.seq = 6, .tokens = 1};
    FAILS(kvt_lane_begin(e->lane, &unknown, 1), KVT_ENOTFOUND, "begin");
    seq.tokens = t.tokens + 1;
    FAILS(kvt_lane_begin(e->lane, &seq, 1), KVT_ERANGE, "begin");
    seq.tokens = t.tokens;
    OK(kvt_lane_begin(e->lane, &seq, 1));
    FAILS(kvt_lane_begin(e->lane, &seq, 1), KVT_ESTATE, "begin");
    FAILS(kvt_lane_boundary(e->lane, PLANES, &pass), KVT_ERANGE, "3");
    FAILS(kvt_lane_get_writable_page(e->lane, t.seq, 0, 0, &page), KVT_ENOTFOUND, "writable"); /* sealed */
    FAILS(kvt_lane_get_writable_page(e->lane, t.seq, 2, 0, &page), KVT_ENOTFOUND, "writable"); /* not reserved */
    FAILS(kvt_channel_drop_seq(e->channel, t.seq), KVT_ESTATE, "drop");
    uint32_t child;
    FAILS(kvt_channel_fork(e->channel, t.seq, 0, &child), KVT_ESTATE, "fork");
    FAILS(kvt_channel_truncate(e->channel, t.seq, 1, 0), KVT_ESTATE, "truncate");

    /* A sequence is in one step at a time. */
    kvt_lane *second;
    OK(kvt_lane_open(e->client, 1, &second));
    FAILS(kvt_lane_begin(second, &seq, 1), KVT_ESTATE, "begin");
    read_plane(e, 0, &t, 1);
    FAILS(kvt_lane_boundary(e->lane, 0, &pass), KVT_ESTATE, "boundary"); /* complete */
    read_plane(e, 2, &t, 1);
    FAILS(kvt_lane_boundary(e->lane, 1, &pass), KVT_ESTATE, "boundary"); /* passed */
    OK(kvt_lane_end(e->lane));
    FAILS(kvt_lane_get_writable_page(e->lane, t.seq, 0, 0, &page), KVT_ENOTFOUND, "writable"); /* no step */
    OK(kvt_lane_begin(second, &seq, 1));
    OK(kvt_lane_close(second)); /* ends its step */
    FAILS(kvt_lane_end(second), KVT_EINVAL, "already closed");
    read_step(e, &t, 1);
    OK(kvt_lane_open(e->client, 1, &second));
    OK(kvt_lane_begin(second, &seq, 1));
    OK(kvt_lane_end(second));
    OK(kvt_lane_close(second));
    OK(kvt_channel_drop_seq(e->channel, t.seq));
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    enum { TIER0_BLOCKS = 8 };
    engine e = engine_attach(argv[1], TIER0_BLOCKS);
    handles(&e);
    sequences(&e);
    publishing(&e);
    pinning(&e, TIER0_BLOCKS);
    steps(&e);
    OK(round_trip(e.channel, 0)); /* the session is still alive */
    engine_detach(&e);
    FAILS(kvt_detach(e.client), KVT_EINVAL, "already closed");
    return 0;
}
