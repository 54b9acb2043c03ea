/* Reading contracts: an engine on the CPU that picks pages by digests, tells its attention, and is told what it omitted. */
#include <math.h>

#include "check.h"

enum { PAGE_TOKENS = 16, CHANNELS = 4, PAGES = 8, PAGE_BYTES = 1024 };
static const uint64_t MINUTE_US = 60 * 1000 * 1000;
static const float query[CHANNELS] = {1, 0, 0, 0};

/* A page whose keys all score this much against the query. */
static void fill(void *bytes, float score) {
    float *keys = bytes;
    memset(bytes, 0, PAGE_BYTES);
    for (int token = 0; token < PAGE_TOKENS; token++) keys[token * CHANNELS] = score;
}

/* One step's boundary of the only plane: bit i of the result is page i, if it was handed out. */
static uint32_t boundary(kvt_lane *lane) {
    uint32_t seen = 0;
    kvt_pass pass;
    do {
        OK(kvt_lane_boundary(lane, 0, &pass));
        if (pass.all) return (1u << PAGES) - 1;
        for (uint32_t i = 0; i < pass.count; i++) seen |= 1u << pass.ready[i].index;
    } while (!pass.last);
    return seen;
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    const kvt_plane plane = {.page_bytes = PAGE_BYTES, .kind = KVT_PLANE_FULL};
    const uint32_t frames[] = {32};
    kvt_digests digests = {.element = KVT_KEY_F32, .heads = 1, .channels = CHANNELS, .tile_tokens = PAGE_TOKENS,
                           .token_stride = 4 * CHANNELS, .channel_stride = 4, .groups = 2, .bounds = 1, .pages = 64};
    const kvt_options options = {.struct_size = sizeof options, .socket = argv[1], .space = "contracts",
                                 .page_tokens = PAGE_TOKENS, .planes = &plane, .planes_count = 1, .tier0_frames = frames,
                                 .classes_count = 1, .digests = &digests, .timeout_us = MINUTE_US};
    kvt_client *client;
    kvt_channel *channel;
    kvt_lane *lane;
    digests.element = 3;
    FAILS(kvt_attach(&options, &client), KVT_EINVAL, "kvt_key_element");
    digests.element = KVT_KEY_F32;
    digests.groups = 17; /* more than 5 % of a page */
    FAILS(kvt_attach(&options, &client), KVT_EINVAL, "digests");
    digests.groups = 2;
    OK(kvt_attach(&options, &client));
    OK(kvt_channel_open(client, 0, &channel));
    OK(kvt_lane_open(client, 0, &lane));

    const float scores[PAGES] = {0, -6, 5, -7, -2, -1, 0, 1};
    kvt_step_seq step = {.tokens = PAGES * PAGE_TOKENS};
    OK(kvt_seq_create(channel, &step.seq));
    OK(kvt_reserve(channel, step.seq, step.tokens, MINUTE_US));
    OK(kvt_lane_begin(lane, &step, 1));
    for (uint32_t page = 0; page < PAGES; page++) {
        void *bytes;
        OK(kvt_lane_page_mut(lane, step.seq, page, 0, &bytes));
        fill(bytes, scores[page]);
    }
    OK(kvt_lane_end(lane));
    OK(kvt_commit(channel, step.seq, step.tokens));

    FAILS(kvt_seq_contract(channel, step.seq, 3, 0, MINUTE_US), KVT_EINVAL, "kvt_contract");
    EXPECT(kvt_seq_contract(channel, step.seq, KVT_CONTRACT_APPROX, 1001, MINUTE_US), KVT_ERANGE);
    EXPECT(kvt_seq_contract(channel, step.seq, KVT_CONTRACT_APPROX, 1 << 16, MINUTE_US), KVT_ERANGE);
    OK(kvt_seq_contract(channel, step.seq, KVT_CONTRACT_APPROX, 500, MINUTE_US));

    /* Four of eight pages: the first, the last two, and the best of the others. */
    kvt_omission omission;
    OK(kvt_lane_begin(lane, &step, 1));
    EXPECT(kvt_lane_query(lane, step.seq, 0, query, CHANNELS - 1), KVT_ERANGE);
    EXPECT(kvt_lane_query(lane, step.seq, 1, query, CHANNELS), KVT_ERANGE);
    OK(kvt_lane_query(lane, step.seq, 0, query, CHANNELS));
    CHECK(boundary(lane) == (1u << 0 | 1u << 2 | 1u << 6 | 1u << 7));
    float shares[PAGES], sum = 0;
    for (int page = 0; page < PAGES; page++) {
        shares[page] = page == 0 || page == 2 || page >= 6 ? expf(scores[page]) : NAN;
        if (!isnan(shares[page])) sum += shares[page];
    }
    for (int page = 0; page < PAGES; page++) shares[page] /= sum;
    EXPECT(kvt_lane_mass(lane, step.seq, 0, shares, PAGES - 1), KVT_ERANGE);
    OK(kvt_lane_mass(lane, step.seq, 0, shares, PAGES));
    OK(kvt_lane_omission(lane, step.seq, 0, &omission));
    CHECK(omission.needed == PAGES && omission.omitted == 4 && omission.waived == 0);
    CHECK(omission.share > 0 && omission.share < 0.1f);
    OK(kvt_lane_scores(lane, KVT_SCORE_AHEAD, step.seq, 0, shares, PAGES));
    EXPECT(kvt_lane_scores(lane, 3, step.seq, 0, shares, PAGES), KVT_EINVAL);
    OK(kvt_lane_ahead(lane, step.seq, 0, query, CHANNELS));
    uint8_t complete = 9;
    const float total = 5;
    EXPECT(kvt_lane_prove(lane, step.seq, 0, &total, 1, &complete), KVT_ESTATE);
    EXPECT(kvt_lane_omission(lane, step.seq, 1, &omission), KVT_ESTATE);
    OK(kvt_lane_end(lane));

    /* By a bound everything that is there is read, and what is proved of nothing is nothing. */
    OK(kvt_seq_contract(channel, step.seq, KVT_CONTRACT_BOUNDED, 10000, MINUTE_US));
    OK(kvt_lane_begin(lane, &step, 1));
    OK(kvt_lane_query(lane, step.seq, 0, query, CHANNELS));
    CHECK(boundary(lane) == (1u << PAGES) - 1);
    OK(kvt_lane_prove(lane, step.seq, 0, &total, 1, &complete));
    CHECK(complete == 1);
    OK(kvt_lane_omission(lane, step.seq, 0, &omission));
    CHECK(omission.needed == PAGES && omission.omitted == 0 && omission.share == 0);
    OK(kvt_lane_end(lane));

    kvt_stats stats = {.struct_size = sizeof stats};
    OK(kvt_client_stats(client, &stats));
    CHECK(stats.pages_unpicked == 4 && stats.pages_waived == 0 && stats.pages_skipped == 0);
    CHECK(stats.omissions == 1 && stats.scores == 4);
    OK(kvt_lane_close(lane));
    OK(kvt_channel_close(channel));
    OK(kvt_detach(client));
    return 0;
}
