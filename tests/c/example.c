/* A complete engine in sixty lines: two planes, more context than tier 0 holds. Argument: the daemon's socket. */
#include <stdio.h>
#include <string.h>

#include "kvtide_paged.h"

#define TRY(call)                                                                     \
    do {                                                                              \
        if ((call) != KVT_OK) return fprintf(stderr, "%s\n", kvt_last_error()), 1;    \
    } while (0)

/* Placeholder for attention over one page. */
static uint64_t attend(const uint8_t *page, uint32_t bytes) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < bytes; i++) sum += page[i];
    return sum;
}

int main(int argc, char **argv) {
    enum { PAGE_TOKENS = 16, PLANES = 2, PAGES = 64, TIER0_BLOCKS = 8 };
    if (argc < 2) return 2;
    const kvt_plane planes[PLANES] = {{.page_bytes = 4096}, {.page_bytes = 4096}};
    const uint32_t frames[] = {PLANES * TIER0_BLOCKS}; /* one size class */
    const kvt_options options = {.struct_size = sizeof options, .abi_version = KVT_ABI_VERSION, .socket = argv[1],
                                 .space = "example", .page_tokens = PAGE_TOKENS, .planes = planes, .planes_count = PLANES,
                                 .tier0_frames = frames, .classes_count = 1};
    kvt_client *client;
    kvt_channel *channel;
    kvt_lane *lane;
    kvt_lane_view view;
    kvt_step_seq step = {0};
    TRY(kvt_attach(&options, &client));
    TRY(kvt_channel_open(client, 0, &channel));
    TRY(kvt_lane_open(client, 0, &lane));
    TRY(kvt_lane_get_view(lane, &view));
    TRY(kvt_channel_create_seq(channel, &step.seq));

    uint64_t sum = 0;
    uint32_t blocks[PAGES], count;
    for (uint32_t page = 0; page < PAGES; page++) { /* one page of tokens per step */
        step.tokens += PAGE_TOKENS;
        TRY(kvt_channel_reserve(channel, step.seq, step.tokens, 0));
        TRY(kvt_client_get_seq_blocks(client, step.seq, 0, blocks, PAGES, &count));
        TRY(kvt_lane_begin(lane, &step, 1));
        for (uint16_t plane = 0; plane < PLANES; plane++) {
            void *fresh;
            kvt_pass pass = {0};
            TRY(kvt_lane_get_writable_page(lane, step.seq, page, plane, &fresh));
            memset(fresh, (int)(page % 251), planes[plane].page_bytes);
            do { /* the plane in as many passes as needed; each page comes once */
                TRY(kvt_lane_boundary(lane, plane, &pass));
                const uint32_t readable = pass.all ? count : pass.count;
                for (uint32_t i = 0; i < readable; i++) {
                    const uint32_t index = pass.all ? i : pass.ready[i].index;
                    sum += attend(kvt_view_page(&view, blocks[index], plane), planes[plane].page_bytes);
                }
            } while (!pass.last);
        }
        TRY(kvt_lane_end(lane));
        TRY(kvt_channel_commit(channel, step.seq, step.tokens));
    }
    uint64_t expected = 0;
    for (uint64_t page = 0; page < PAGES; page++) expected += PLANES * 4096 * (page % 251) * (PAGES - page);
    printf("read %llu, expected %llu\n", (unsigned long long)sum, (unsigned long long)expected);
    TRY(kvt_lane_close(lane));
    TRY(kvt_channel_close(channel));
    TRY(kvt_detach(client));
    return sum != expected;
}
