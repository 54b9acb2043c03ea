/* A small engine for the C tests: it writes pages whose every byte identifies the page, and reads them back through
 * steps, whatever tier they were in. */
#ifndef KVTIDE_TESTS_ENGINE_H
#define KVTIDE_TESTS_ENGINE_H

#include "check.h"
#include "kvtide_paged.h"

/* Three planes in two size classes; the last has a window, and its page size is not a power of two. */
enum { PAGE_TOKENS = 16, PLANES = 3, CLASSES = 2, WINDOW_TOKENS = 40, SEQ_BLOCKS_MAX = 512, SEQS_MAX = 8 };

static const kvt_plane planes[PLANES] = {
    {.page_bytes = 4096, .kind = KVT_PLANE_FULL},
    {.page_bytes = 4096, .kind = KVT_PLANE_FULL},
    {.page_bytes = 1000, .kind = KVT_PLANE_WINDOW, .window_tokens = WINDOW_TOKENS},
};

typedef struct engine {
    kvt_client *client;
    kvt_channel *channel;
    kvt_lane *lane;
    kvt_lane_view view;
} engine;

/* A sequence and the content of its pages: `tag` of the pages from `from[i]` on is `tags[i]`. */
typedef struct text {
    uint32_t seq;
    uint32_t tags[4];
    uint32_t from[4];
    uint32_t parts;
    uint64_t tokens;
} text;

/* Frames of the three planes: `blocks` whole blocks fit into tier 0. */
static inline kvt_options options_for(const char *socket, uint32_t blocks, uint32_t frames[CLASSES]) {
    frames[0] = 2 * blocks;
    frames[1] = blocks;
    kvt_options options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.abi_version = KVT_ABI_VERSION;
    options.page_tokens = PAGE_TOKENS;
    options.socket = socket;
    options.space = "c-test";
    memset(options.fingerprint, 7, sizeof options.fingerprint);
    options.planes = planes;
    options.planes_count = PLANES;
    options.tier0_frames = frames;
    options.classes_count = CLASSES;
    options.lanes = 2;
    options.channels = 2;
    options.depth = 64;
    options.seqs_max = SEQS_MAX;
    options.timeout_us = 30 * 1000 * 1000;
    return options;
}

static inline engine engine_attach_mapped(const char *socket, uint32_t blocks, uint32_t mapped) {
    uint32_t frames[CLASSES];
    kvt_options options = options_for(socket, blocks, frames);
    options.mapped_frames = mapped;
    engine e;
    OK(kvt_attach(&options, &e.client));
    OK(kvt_channel_open(e.client, 0, &e.channel));
    OK(kvt_lane_open(e.client, 0, &e.lane));
    OK(kvt_lane_get_view(e.lane, &e.view));
    CHECK(e.view.planes_count == PLANES && e.view.page_tokens == PAGE_TOKENS);
    CHECK(e.view.table != NULL && e.view.device_table == 0 && e.view.device_status == 0);
    return e;
}

static inline engine engine_attach(const char *socket, uint32_t blocks) {
    return engine_attach_mapped(socket, blocks, 0);
}

static inline void engine_detach(engine *e) {
    OK(kvt_lane_close(e->lane));
    OK(kvt_channel_close(e->channel));
    OK(kvt_detach(e->client));
}

static inline uint32_t tag_of(const text *t, uint32_t index) {
    uint32_t tag = 0;
    for (uint32_t i = 0; i < t->parts; i++) {
        if (index >= t->from[i]) tag = t->tags[i];
    }
    return tag;
}

static inline uint32_t word_of(uint32_t tag, uint32_t index, uint32_t plane, uint32_t i) {
    uint32_t x = tag * 0x9e3779b1u ^ index * 0x85ebca77u ^ plane * 0xc2b2ae3du ^ i * 0x27d4eb2fu;
    x ^= x >> 15;
    x *= 0x2c1b3c6du;
    return x ^ x >> 13;
}

static inline void page_write(void *page, uint32_t tag, uint32_t index, uint32_t plane) {
    for (uint32_t i = 0; i < planes[plane].page_bytes / 4; i++) {
        const uint32_t word = word_of(tag, index, plane, i);
        memcpy((char *)page + 4 * i, &word, 4);
    }
}

static inline void page_check(const void *page, uint32_t tag, uint32_t index, uint32_t plane) {
    CHECK(page != NULL);
    for (uint32_t i = 0; i < planes[plane].page_bytes / 4; i++) {
        uint32_t word;
        memcpy(&word, (const char *)page + 4 * i, 4);
        if (word != word_of(tag, index, plane, i)) {
            fprintf(stderr, "page %u of plane %u, tag %u: word %u is %08x, not %08x\n", index, plane, tag, i, word,
                    word_of(tag, index, plane, i));
            exit(1);
        }
    }
}

/* The first block that plane `plane` needs at a length; the last is (tokens - 1) / PAGE_TOKENS. */
static inline uint32_t first_needed(uint32_t plane, uint64_t tokens) {
    if (planes[plane].kind != KVT_PLANE_WINDOW || tokens <= WINDOW_TOKENS) return 0;
    return (uint32_t)((tokens - WINDOW_TOKENS) / PAGE_TOKENS);
}

static inline void *frame_address(const engine *e, uint32_t plane, uint32_t frame) {
    const kvt_plane_layout *layout = &e->view.planes[plane];
    CHECK(frame >= layout->first_frame && frame - layout->first_frame < layout->frames + layout->mapped_frames);
    const uint32_t own = frame - layout->first_frame;
    if (own < layout->frames) return layout->base + (size_t)own * layout->stride;
    return (void *)(uintptr_t)((const uint64_t *)(uintptr_t)layout->mapped_pages)[own - layout->frames];
}

/* Return the frame of a page, as of the lane's last boundary. */
static inline uint32_t frame_of(const engine *e, uint32_t block, uint32_t plane) {
    const uint32_t entry = e->view.table[(size_t)block * PLANES + plane];
    CHECK(entry != 0);
    return entry - 1;
}

/* Read all pages that one plane needs of all sequences, in as many passes as needed; each page exactly once. */
static inline void read_plane(engine *e, uint32_t plane, const text *texts, uint32_t count) {
    static _Thread_local uint8_t seen[SEQS_MAX][SEQ_BLOCKS_MAX];
    memset(seen, 0, sizeof seen);
    kvt_pass pass;
    do {
        OK(kvt_lane_boundary(e->lane, (uint16_t)plane, &pass));
        if (pass.all) {
            CHECK(pass.last && pass.count == 0);
            for (uint32_t s = 0; s < count; s++) {
                uint32_t blocks[SEQ_BLOCKS_MAX], n;
                OK(kvt_client_get_seq_blocks(e->client, texts[s].seq, 0, blocks, SEQ_BLOCKS_MAX, &n));
                for (uint32_t i = first_needed(plane, texts[s].tokens); i * PAGE_TOKENS < texts[s].tokens; i++) {
                    CHECK(i < n);
                    page_check(kvt_view_page(&e->view, blocks[i], plane), tag_of(&texts[s], i), i, plane);
                    CHECK(seen[s][i]++ == 0);
                }
            }
        }
        CHECK(pass.all || pass.count > 0);
        for (uint32_t r = 0; r < pass.count; r++) {
            const kvt_ready ready = pass.ready[r];
            CHECK(ready.position < count && ready.index < SEQ_BLOCKS_MAX);
            const text *t = &texts[ready.position];
            page_check(frame_address(e, plane, ready.frame), tag_of(t, ready.index), ready.index, plane);
            CHECK(seen[ready.position][ready.index]++ == 0);
        }
    } while (!pass.last);
    for (uint32_t s = 0; s < count; s++) {
        for (uint32_t i = 0; i < SEQ_BLOCKS_MAX; i++) {
            const int needed = i >= first_needed(plane, texts[s].tokens) && i * PAGE_TOKENS < texts[s].tokens;
            CHECK(seen[s][i] == needed);
        }
    }
}

/* Do one step that only reads. */
static inline void read_step(engine *e, const text *texts, uint32_t count) {
    kvt_step_seq seqs[SEQS_MAX];
    memset(seqs, 0, sizeof seqs);
    for (uint32_t s = 0; s < count; s++) {
        seqs[s].seq = texts[s].seq;
        seqs[s].tokens = texts[s].tokens;
    }
    OK(kvt_lane_begin(e->lane, seqs, count));
    for (uint32_t plane = 0; plane < PLANES; plane++) read_plane(e, plane, texts, count);
    OK(kvt_lane_end(e->lane));
}

/* Write whole pages up to `pages`, `chunk` per step, and read all earlier pages in each step; commit them. `kvt_channel_reserve`
 * must have reserved the blocks. */
static inline void write_pages(engine *e, text *t, uint32_t pages, uint32_t chunk) {
    uint32_t done = (uint32_t)(t->tokens / PAGE_TOKENS);
    while (done < pages) {
        const uint32_t next = done + chunk < pages ? done + chunk : pages;
        t->tokens = (uint64_t)next * PAGE_TOKENS;
        OK(kvt_channel_reserve(e->channel, t->seq, t->tokens, 0));
        const kvt_step_seq seq = {.seq = t->seq, .tokens = t->tokens};
        OK(kvt_lane_begin(e->lane, &seq, 1));
        for (uint32_t plane = 0; plane < PLANES; plane++) {
            for (uint32_t i = done; i < next; i++) {
                void *page;
                OK(kvt_lane_get_writable_page(e->lane, t->seq, i, (uint16_t)plane, &page));
                page_write(page, tag_of(t, i), i, plane);
            }
            read_plane(e, plane, t, 1);
        }
        OK(kvt_lane_end(e->lane));
        OK(kvt_channel_commit(e->channel, t->seq, t->tokens));
        done = next;
    }
}

/* Create a sequence of `pages` pages. */
static inline text text_new(engine *e, uint32_t tag, uint32_t pages, uint32_t chunk) {
    text t;
    memset(&t, 0, sizeof t);
    t.tags[0] = tag;
    t.parts = 1;
    OK(kvt_channel_create_seq(e->channel, &t.seq));
    write_pages(e, &t, pages, chunk);
    return t;
}

static inline kvt_stats engine_stats(const engine *e) {
    kvt_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    OK(kvt_client_get_stats(e->client, &stats));
    return stats;
}

#endif
