/* The life of sequences: written, evicted, read back in passes, forked, cut, published, attached, parked, pinned. */
#include "engine.h"

static void layout(const engine *e) {
    const kvt_plane_layout *places = e->view.planes;
    CHECK(e->view.table_len > 0 && e->view.table_len % PLANES == 0);
    CHECK(places[0].size_class == 0 && places[1].size_class == 0 && places[2].size_class == 1);
    CHECK(places[0].base == places[1].base && places[0].frames == 24 && places[1].first_frame == places[0].first_frame);
    CHECK(places[2].page_bytes == 1000 && places[2].stride == 1024 && places[2].frames == 12);
    CHECK(places[0].mapped_frames == 0 && places[0].mapped_pages == 0);
}

/* More pages than tier 0 holds: the first pages leave it and are loaded again. */
static void beyond_tier0(engine *e) {
    text t = text_new(e, 11, 40, 2);
    const kvt_stats before = engine_stats(e);
    CHECK(before.bytes_tier0_to_host > 0);
    for (int round = 0; round < 3; round++) read_step(e, &t, 1);
    const kvt_stats after = engine_stats(e);
    CHECK(after.bytes_host_to_tier0 > before.bytes_host_to_tier0);
    CHECK(after.steps == before.steps + 3 && after.pages_missed > before.pages_missed);
    CHECK(after.jobs_invalid == 0 && after.jobs_failed == 0 && after.completions_stray == 0);
    OK(kvt_channel_drop_seq(e->channel, t.seq));
}

/* The same with mapped frames: streamed pages are read in place in host memory and not copied. */
static void in_place(const char *socket) {
    engine e = engine_attach_mapped(socket, 12, 80);
    CHECK(e.view.planes[0].mapped_frames == 80 && e.view.planes[2].mapped_frames == 80 && e.view.planes[2].mapped_pages != 0);
    text t = text_new(&e, 11, 40, 2);
    for (int round = 0; round < 3; round++) read_step(&e, &t, 1);
    const kvt_stats stats = engine_stats(&e);
    CHECK(stats.jobs_in_place > 0 && stats.jobs_failed == 0 && stats.jobs_invalid == 0);
    OK(kvt_channel_drop_seq(e.channel, t.seq));
    engine_detach(&e);
}

/* Pages that fit stay: such a step needs no message. */
static void resident(engine *e) {
    text t = text_new(e, 12, 3, 3);
    read_step(e, &t, 1);
    const kvt_stats before = engine_stats(e);
    for (int round = 0; round < 10; round++) read_step(e, &t, 1);
    const kvt_stats after = engine_stats(e);
    CHECK(after.steps_resident == before.steps_resident + 10);
    CHECK(after.messages_before_steps == before.messages_before_steps);
    OK(kvt_channel_drop_seq(e->channel, t.seq));
}

/* Tier 0 gives memory back and gets it again. */
static void resize(engine *e) {
    const uint32_t all = e->view.planes[0].frames;
    text t = text_new(e, 25, 3, 3);
    uint32_t frames;
    OK(kvt_channel_resize_tier0(e->channel, 0, all - 4, 0, &frames));
    CHECK(frames == all - 4);
    read_step(e, &t, 1);
    OK(kvt_channel_resize_tier0(e->channel, 0, all, 0, &frames));
    CHECK(frames == all);
    read_step(e, &t, 1);
    OK(kvt_channel_drop_seq(e->channel, t.seq));
}

static void fork_and_truncate(engine *e) {
    text parent = text_new(e, 13, 3, 3);
    text child = parent;
    OK(kvt_channel_fork(e->channel, parent.seq, 0, &child.seq));
    CHECK(child.seq != parent.seq);
    const text both[2] = {parent, child};
    read_step(e, both, 2);

    /* Each continues separately. */
    child.tags[1] = 14;
    child.from[1] = 3;
    child.parts = 2;
    write_pages(e, &child, 8, 1);
    write_pages(e, &parent, 7, 1);
    const text apart[2] = {parent, child};
    read_step(e, apart, 2);

    OK(kvt_channel_drop_seq(e->channel, parent.seq));
    read_step(e, &child, 1);
    OK(kvt_channel_drop_seq(e->channel, child.seq));

    /* Truncate to a length whose window pages are gone: refused, without loss. */
    text alone = text_new(e, 24, 8, 2);
    FAILS(kvt_channel_truncate(e->channel, alone.seq, 3 * PAGE_TOKENS, 0), KVT_ELOST, "truncate");
    read_step(e, &alone, 1);
    OK(kvt_channel_drop_seq(e->channel, alone.seq));

    /* A cut at a page boundary and one inside a sealed page, each followed by other text; the sibling keeps its pages. */
    text whole = text_new(e, 22, 3, 3);
    text cut = whole;
    OK(kvt_channel_fork(e->channel, whole.seq, 0, &cut.seq));
    OK(kvt_channel_truncate(e->channel, cut.seq, 2 * PAGE_TOKENS, 0));
    cut.tokens = 2 * PAGE_TOKENS;
    read_step(e, &cut, 1);
    OK(kvt_channel_truncate(e->channel, cut.seq, PAGE_TOKENS + 5, 0));
    cut.tokens = PAGE_TOKENS + 5;
    read_step(e, &cut, 1); /* page 1 is a copy, complete */
    cut.tags[1] = 23;
    cut.from[1] = 1;
    cut.parts = 2;
    write_pages(e, &cut, 6, 2);
    const text siblings[2] = {cut, whole};
    read_step(e, siblings, 2);
    OK(kvt_channel_drop_seq(e->channel, whole.seq));
    read_step(e, &cut, 1);
    OK(kvt_channel_drop_seq(e->channel, cut.seq));
}

/* A sequence that grows by one page at a time. */
static void grow(engine *e) {
    text t;
    memset(&t, 0, sizeof t);
    t.tags[0] = 16;
    t.parts = 1;
    OK(kvt_channel_create_seq(e->channel, &t.seq));
    EXPECT(kvt_channel_end_lease(e->channel, t.seq), KVT_ENOTFOUND); /* a sequence is no lease */
    for (uint32_t page = 0; page < 4; page++) {
        t.tokens += PAGE_TOKENS;
        OK(kvt_channel_reserve(e->channel, t.seq, t.tokens, 0));
        const kvt_step_seq seq = {.seq = t.seq, .tokens = t.tokens};
        OK(kvt_lane_begin(e->lane, &seq, 1));
        for (uint32_t plane = 0; plane < PLANES; plane++) {
            void *address;
            OK(kvt_lane_get_writable_page(e->lane, t.seq, page, (uint16_t)plane, &address));
            page_write(address, 16, page, plane);
            read_plane(e, plane, &t, 1);
        }
        OK(kvt_lane_end(e->lane));
        OK(kvt_channel_commit(e->channel, t.seq, t.tokens));
    }
    read_step(e, &t, 1);
    OK(kvt_channel_drop_seq(e->channel, t.seq));
}

/* One sequence maps the prefix that another has published: the same bytes without writing them. */
static void publish_and_map(engine *e) {
    text writer = text_new(e, 17, 4, 2);
    kvt_hash hashes[5];
    for (uint64_t i = 0; i < 5; i++) hashes[i] = (kvt_hash){{0x1000 + i, 17}};
    kvt_level reached = KVT_LEVEL_DURABLE;
    OK(kvt_channel_publish(e->channel, writer.seq, 0, NULL, hashes, 2, KVT_LEVEL_PUBLISHED, 0, &reached));
    CHECK(reached == KVT_LEVEL_PUBLISHED);
    OK(kvt_channel_publish(e->channel, writer.seq, 2, &hashes[1], &hashes[2], 2, KVT_LEVEL_PUBLISHED, 0, NULL));

    text reader = writer;
    uint32_t mapped = 0;
    OK(kvt_channel_create_seq(e->channel, &reader.seq));
    OK(kvt_channel_attach_prefix(e->channel, reader.seq, hashes, 5, 0, &mapped));
    CHECK(mapped == 4); /* the fifth block was not published */
    read_step(e, &reader, 1);
    OK(kvt_channel_drop_seq(e->channel, writer.seq));
    read_step(e, &reader, 1);
    OK(kvt_channel_drop_seq(e->channel, reader.seq));
}

static void park_and_resume(engine *e) {
    text idle = text_new(e, 18, 4, 4);
    OK(kvt_channel_park(e->channel, idle.seq, 1000));
    const kvt_step_seq step = {.seq = idle.seq, .tokens = idle.tokens};
    EXPECT(kvt_lane_begin(e->lane, &step, 1), KVT_ESTATE); /* parked */
    text busy = text_new(e, 19, 30, 2); /* takes all frames in the meantime */
    read_step(e, &busy, 1);
    OK(kvt_channel_drop_seq(e->channel, busy.seq));
    OK(kvt_channel_resume(e->channel, idle.seq, 0));
    read_step(e, &idle, 1);
    write_pages(e, &idle, 6, 1);
    OK(kvt_channel_drop_seq(e->channel, idle.seq));
}

/* Pinned pages stay in their frames while other pages are loaded and evicted. */
static void pins(engine *e) {
    text held = text_new(e, 20, 3, 3);
    const kvt_range range = {.seq = held.seq, .first = 0, .count = 2, .plane = 0, .planes = PLANES};
    kvt_pin *pin;
    OK(kvt_channel_acquire(e->channel, &range, 0, &pin));
    CHECK(pin != NULL);
    uint32_t blocks[4], n, frames[2][PLANES];
    OK(kvt_client_get_seq_blocks(e->client, held.seq, 0, blocks, 4, &n));
    CHECK(n == 3);
    read_step(e, &held, 1);
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t plane = 0; plane < PLANES; plane++) {
            frames[i][plane] = frame_of(e, blocks[i], plane);
        }
    }
    OK(kvt_channel_advise(e->channel, held.seq, 0, 2, KVT_ADVICE_DONTNEED, 0));
    text other = text_new(e, 21, 30, 2);
    read_step(e, &other, 1);
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t plane = 0; plane < PLANES; plane++) CHECK(frame_of(e, blocks[i], plane) == frames[i][plane]);
    }
    OK(kvt_channel_release(e->channel, pin));
    FAILS(kvt_channel_release(e->channel, pin), KVT_ESTATE, "release");
    OK(kvt_channel_drop_seq(e->channel, other.seq));
    read_step(e, &held, 1);
    OK(kvt_channel_drop_seq(e->channel, held.seq));
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    engine e = engine_attach(argv[1], 12);
    layout(&e);
    resident(&e);
    resize(&e);
    beyond_tier0(&e);
    fork_and_truncate(&e);
    grow(&e);
    publish_and_map(&e);
    park_and_resume(&e);
    pins(&e);
    engine_detach(&e);
    in_place(argv[1]);
    return 0;
}
