/* An engine with tier 0 on a device, in plain C. Copies on the lane's stream stand for its kernels: they write and read pages whose bytes
 * say which page it is. Two sequences grow beyond tier 0; then steps wait in the stream, at boundaries and at the gates of a graph. */
#define _DEFAULT_SOURCE
#include "device.h"
#include "engine.h"

enum { SEQS = 2, PAGES = 6, TIER0_BLOCKS = 10, ROUNDS = 3, PAGE_BYTES_MAX = 4096 };

/* The planes of `engine.h` are two size classes. One sequence fits into tier 0, two do not. */
static const uint32_t all_frames[CLASSES] = {2 * TIER0_BLOCKS, TIER0_BLOCKS}, few_frames[CLASSES] = {4, 2};

static uint32_t parts; /* boundaries that handed out only some pages */

static void resize(const engine *e, const uint32_t frames[CLASSES]) {
    for (uint32_t size_class = 0; size_class < CLASSES; size_class++) {
        uint32_t now;
        OK(kvt_channel_resize_tier0(e->channel, size_class, frames[size_class], 0, &now));
        CHECK(now == frames[size_class]);
    }
}

/* Attach with a tier 0 below its maximum, then give it the rest. */
static engine attach(const char *socket) {
    uint32_t frames[CLASSES];
    const uint32_t more[CLASSES] = {few_frames[0], TIER0_BLOCKS + 1};
    kvt_options options = options_for(socket, TIER0_BLOCKS, frames);
    options.device = "cuda:0";
    options.timeout_us = 60 * 1000 * 1000;
    options.tier0_initial = more;
    engine e;
    memset(&e, 0, sizeof e);
    FAILS(kvt_attach(&options, &e.client), KVT_EINVAL, "tier0_initial");
    options.tier0_initial = few_frames;
    options.guaranteed_blocks = 1u << 30;
    FAILS(kvt_attach(&options, &e.client), KVT_ENOSPC, "the daemon can guarantee");
    options.guaranteed_blocks = 2;
    OK(kvt_attach(&options, &e.client));
    OK(kvt_channel_open(e.client, 0, &e.channel));
    OK(kvt_lane_open(e.client, 0, &e.lane));
    OK(kvt_lane_get_view(e.lane, &e.view));
    CHECK(e.view.device_table != 0 && e.view.device_status != 0);
    resize(&e, all_frames);
    return e;
}

/* A lane needs a stream. */
static void bind_lane(const engine *e, const gpu *g, uint32_t seq) {
    const uint64_t stream = (uint64_t)(uintptr_t)g->stream;
    const kvt_step_seq step = {.seq = seq, .tokens = PAGE_TOKENS};
    OK(kvt_channel_reserve(e->channel, seq, PAGE_TOKENS, 0));
    EXPECT(kvt_lane_begin(e->lane, &step, 1), KVT_ESTATE);
    EXPECT(kvt_lane_bind(e->lane, 0), KVT_EINVAL);
    OK(kvt_lane_bind(e->lane, stream));
    OK(kvt_lane_begin(e->lane, &step, 1));
    EXPECT(kvt_lane_bind(e->lane, stream), KVT_ESTATE);
    OK(kvt_lane_end(e->lane));
    EXPECT(kvt_lane_open_gates(e->lane), KVT_ESTATE); /* no step */
    FAILS(kvt_lane_gate(e->lane, PLANES), KVT_ERANGE, "3 planes");
    OK(kvt_lane_gate(e->lane, 0)); /* closed: the stream passes it */
    gpu_wait(g);
}

static uint32_t block_of(const engine *e, const text *t, uint32_t index) {
    uint32_t block, count;
    OK(kvt_client_get_seq_blocks(e->client, t->seq, index, &block, 1, &count));
    return block;
}

/* Write an unsealed page. Only the device can. */
static void put_page(const engine *e, const gpu *g, const text *t, uint32_t index, uint16_t plane) {
    uint8_t page[PAGE_BYTES_MAX] = {0};
    void *address;
    EXPECT(kvt_lane_get_writable_page(e->lane, t->seq, index, plane, &address), KVT_ENOTFOUND);
    page_write(page, tag_of(t, index), index, plane);
    address = kvt_view_page(&e->view, block_of(e, t, index), plane);
    CHECK(address != NULL);
    gpu_put(g, (uint64_t)(uintptr_t)address, page, planes[plane].page_bytes);
}

/* Read a page in the order of the stream, and check its bytes. */
static void check_page(const engine *e, const gpu *g, const text *t, uint32_t index, uint16_t plane, uint32_t frame) {
    uint8_t page[PAGE_BYTES_MAX] = {0};
    gpu_get(g, page, (uint64_t)(uintptr_t)frame_address(e, plane, frame), planes[plane].page_bytes);
    page_check(page, tag_of(t, index), index, plane);
}

/* Read all pages that one plane needs, in as many passes as needed. */
static void check_plane(const engine *e, const gpu *g, const text *texts, uint16_t plane) {
    kvt_pass pass;
    uint32_t seen = 0, needed = 0;
    do {
        OK(kvt_lane_boundary(e->lane, plane, &pass));
        for (uint32_t r = 0; r < pass.count; r++) {
            const kvt_ready ready = pass.ready[r];
            CHECK(ready.position < SEQS);
            check_page(e, g, &texts[ready.position], ready.index, plane, ready.frame);
        }
        seen += pass.count;
        parts += !pass.all;
    } while (!pass.last);
    for (uint32_t s = 0; s < SEQS; s++) {
        const text *t = &texts[s];
        for (uint32_t i = first_needed(plane, t->tokens); i * PAGE_TOKENS < t->tokens; i++, needed++) {
            if (pass.all) check_page(e, g, t, i, plane, frame_of(e, block_of(e, t, i), plane));
        }
    }
    CHECK(pass.all || seen == needed);
}

static void begin_both(const engine *e, const text *texts) {
    kvt_step_seq seqs[SEQS];
    memset(seqs, 0, sizeof seqs);
    for (uint32_t s = 0; s < SEQS; s++) {
        seqs[s].seq = texts[s].seq;
        seqs[s].tokens = texts[s].tokens;
    }
    OK(kvt_lane_begin(e->lane, seqs, SEQS));
}

/* Each step writes a page of both sequences and reads all of theirs. */
static void grow(const engine *e, const gpu *g, text *texts) {
    for (uint32_t page = 0; page < PAGES; page++) {
        for (uint32_t s = 0; s < SEQS; s++) {
            texts[s].tokens += PAGE_TOKENS;
            OK(kvt_channel_reserve(e->channel, texts[s].seq, texts[s].tokens, 0));
        }
        begin_both(e, texts);
        for (uint16_t plane = 0; plane < PLANES; plane++) {
            for (uint32_t s = 0; s < SEQS; s++) put_page(e, g, &texts[s], page, plane);
            check_plane(e, g, texts, plane);
        }
        OK(kvt_lane_check(e->lane));
        OK(kvt_lane_end(e->lane));
        for (uint32_t s = 0; s < SEQS; s++) OK(kvt_channel_commit(e->channel, texts[s].seq, texts[s].tokens));
    }
}

/* Leave too few pages in tier 0 for the next step. */
static void evict(const engine *e) {
    resize(e, few_frames);
    resize(e, all_frames);
}

/* The stream cannot wait for more pages than fit into tier 0: the host does, in passes. */
static void too_large(const engine *e, const gpu *g, const text *texts) {
    const uint32_t before = parts;
    evict(e);
    begin_both(e, texts);
    FAILS(kvt_lane_open_gates(e->lane), KVT_ESTATE, "do not fit into tier 0");
    for (uint16_t plane = 0; plane < PLANES; plane++) check_plane(e, g, texts, plane);
    OK(kvt_lane_end(e->lane));
    CHECK(parts > before);
}

/* Enqueue what a kernel does behind a boundary or gate: read the table's entries of the plane. */
static void copy_entries(const engine *e, const gpu *g, const text *t, uint16_t plane) {
    for (uint32_t i = first_needed(plane, t->tokens); i < PAGES; i++) {
        const uint64_t entry = e->view.device_table + 4 * ((uint64_t)block_of(e, t, i) * PLANES + plane);
        const uint64_t to = (uint64_t)(uintptr_t)g->pinned + PINNED_OWN + 4 * (plane * PAGES + i);
        CUDA(g->copy(to, entry, 4, g->stream));
    }
}

/* Every entry that the stream copied names a frame with the page. */
static void check_entries(const engine *e, const gpu *g, const text *t, uint16_t plane) {
    gpu_wait(g);
    OK(kvt_lane_check(e->lane));
    for (uint32_t i = first_needed(plane, t->tokens); i < PAGES; i++) {
        uint32_t entry;
        memcpy(&entry, g->pinned + PINNED_OWN + 4 * (plane * PAGES + i), 4);
        CHECK(entry != 0);
        check_page(e, g, t, i, plane, entry - 1);
    }
}

/* Begin a step over one sequence, of which pages are missing. */
static void begin_missing(const engine *e, const gpu *g, const text *t) {
    const kvt_step_seq step = {.seq = t->seq, .tokens = t->tokens};
    evict(e);
    memset(g->pinned + PINNED_OWN, 0, PINNED_BYTES - PINNED_OWN);
    OK(kvt_lane_begin(e->lane, &step, 1));
}

/* The stream waits at boundaries. A page may be evicted from the next boundary on. */
static void asynchronous(const engine *e, const gpu *g, const text *t) {
    begin_missing(e, g, t);
    for (uint16_t plane = 0; plane < PLANES; plane++) {
        OK(kvt_lane_boundary_async(e->lane, plane));
        copy_entries(e, g, t, plane);
        check_entries(e, g, t, plane);
    }
    OK(kvt_lane_end(e->lane));
}

/* A graph is captured once; its gates wait for the pages of each later step. */
static void gated(const engine *e, const gpu *g, const text *t) {
    void *graph, *step;
    CUDA(g->capture(g->stream, 0 /* global */));
    for (uint16_t plane = 0; plane < PLANES; plane++) {
        OK(kvt_lane_gate(e->lane, plane));
        copy_entries(e, g, t, plane);
    }
    CUDA(g->captured(g->stream, &graph));
    CUDA(g->instantiate(&step, graph, 0));
    CUDA(g->destroy_graph(graph));
    for (int round = 0; round < ROUNDS; round++) {
        begin_missing(e, g, t);
        OK(kvt_lane_open_gates(e->lane));
        CUDA(g->launch(step, g->stream));
        for (uint16_t plane = 0; plane < PLANES; plane++) check_entries(e, g, t, plane);
        OK(kvt_lane_end(e->lane));
    }
    CUDA(g->destroy_exec(step));
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    gpu g = gpu_open();
    engine e = attach(argv[1]);
    text texts[SEQS];
    memset(texts, 0, sizeof texts);
    for (uint32_t s = 0; s < SEQS; s++) {
        texts[s].tags[0] = 31 + s;
        texts[s].parts = 1;
        OK(kvt_channel_create_seq(e.channel, &texts[s].seq));
    }
    bind_lane(&e, &g, texts[0].seq);
    grow(&e, &g, texts);
    too_large(&e, &g, texts);
    const kvt_stats before = engine_stats(&e);
    for (int round = 0; round < ROUNDS; round++) asynchronous(&e, &g, &texts[round % SEQS]);
    gated(&e, &g, &texts[0]);
    const kvt_stats stats = engine_stats(&e);
    CHECK(stats.steps == before.steps + 2 * ROUNDS && stats.steps_resident == before.steps_resident);
    CHECK(stats.bytes_host_to_tier0 > before.bytes_host_to_tier0);
    CHECK(stats.jobs_failed == 0 && stats.jobs_invalid == 0 && stats.sample_failed == 0);
    gpu_wait(&g);
    engine_detach(&e);
    gpu_close(&g);
    return 0;
}
