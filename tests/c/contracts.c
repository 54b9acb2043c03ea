/* Reading contracts: an engine on the CPU that picks pages by digests, reports its attention, and reads how much it skipped. */
#include <math.h>

#include "check.h"
#include "kvtide_paged.h"

enum { PAGE_TOKENS = 16, CHANNELS = 4, PAGES = 8, PAGE_BYTES = 1024 };
static const uint64_t MINUTE_US = 60 * 1000 * 1000;
static const float query[CHANNELS] = {1, 0, 0, 0};

/* Fill a page with keys that all have this score against the query. */
static void fill(void *bytes, float score) {
    float *keys = bytes;
    memset(bytes, 0, PAGE_BYTES);
    for (int token = 0; token < PAGE_TOKENS; token++) keys[token * CHANNELS] = score;
}

/* Do one step's boundary of the only plane, which has `pages` pages. Bit i of the result is set if page i was handed out. `first`
 * receives the first channel of the first key of each of those pages, read through the table; may be NULL. */
static uint32_t boundary_of(kvt_lane *lane, uint32_t pages, const uint32_t *blocks, float *first) {
    uint32_t seen = 0;
    kvt_pass pass;
    kvt_lane_view view;
    OK(kvt_lane_get_view(lane, &view));
    do {
        OK(kvt_lane_boundary(lane, 0, &pass));
        uint32_t now = pass.all ? (1u << pages) - 1 : 0;
        for (uint32_t i = 0; i < pass.count; i++) now |= 1u << pass.ready[i].index;
        for (uint32_t page = 0; first != NULL && page < pages; page++) {
            if (now >> page & 1) memcpy(&first[page], kvt_view_page(&view, blocks[page], 0), sizeof *first);
        }
        seen |= now;
    } while (!pass.last);
    return seen;
}

static uint32_t boundary(kvt_lane *lane) { return boundary_of(lane, PAGES, NULL, NULL); }

/* Return the attention of a query head to a set of pages: the sum of exponentials over all their tokens. */
static double attention(uint32_t head, const float *scores, uint32_t pages, uint32_t set) {
    double sum = 0;
    for (uint32_t page = 0; page < pages; page++) {
        if (set >> page & 1) sum += PAGE_TOKENS * exp(head == 0 ? scores[page] : 0.0);
    }
    return sum;
}

/* A sequence with twice as many pages as tier 0 has frames. */
static void under_pressure(const char *socket, kvt_digests digests) {
    enum { LONG = 24, HEADS = 2, STEPS = 4 };
    const kvt_plane plane = {.page_bytes = PAGE_BYTES, .kind = KVT_PLANE_FULL};
    digests.pages = LONG;
    const uint32_t frames[] = {14};
    const kvt_options options = {.struct_size = sizeof options, .abi_version = KVT_ABI_VERSION, .socket = socket,
                                 .space = "contracts under pressure", .page_tokens = PAGE_TOKENS, .planes = &plane, .planes_count = 1, .tier0_frames = frames,
                                 .classes_count = 1, .digests = &digests, .timeout_us = MINUTE_US};
    kvt_client *client;
    kvt_channel *channel;
    kvt_lane *lane;
    OK(kvt_attach(&options, &client));
    OK(kvt_channel_open(client, 0, &channel));
    OK(kvt_lane_open(client, 0, &lane));
    kvt_step_seq step = {0};
    OK(kvt_channel_create_seq(channel, &step.seq));
    /* One page has most of the attention of the head that looks for it; for the other head all pages are equal. */
    float scores[LONG];
    for (uint32_t page = 0; page < LONG; page++) scores[page] = page == 5 ? 4.0f : -0.125f * (float)(page % 7);
    for (uint32_t page = 0; page < LONG; page++) {
        void *bytes;
        step.tokens += PAGE_TOKENS;
        OK(kvt_channel_reserve(channel, step.seq, step.tokens, MINUTE_US));
        OK(kvt_lane_begin(lane, &step, 1));
        OK(kvt_lane_get_writable_page(lane, step.seq, page, 0, &bytes));
        fill(bytes, scores[page]);
        OK(kvt_lane_end(lane));
        OK(kvt_channel_commit(channel, step.seq, step.tokens));
    }
    uint32_t blocks[LONG], count;
    OK(kvt_client_get_seq_blocks(client, step.seq, 0, blocks, LONG, &count));
    CHECK(count == LONG);

    const float queries[HEADS * CHANNELS] = {1, 0, 0, 0, 0, 0, 0, 0};
    const uint32_t all = (1u << LONG) - 1;
    OK(kvt_channel_set_contract(channel, step.seq, KVT_CONTRACT_APPROX, 300, MINUTE_US));
    for (int round = 0; round < STEPS; round++) {
        OK(kvt_lane_begin(lane, &step, 1));
        kvt_wants wants = {0};
        OK(kvt_lane_get_wants(lane, step.seq, &wants));
        CHECK(wants.ahead && wants.mass);
        OK(kvt_lane_report_query(lane, step.seq, 0, queries, HEADS * CHANNELS));
        const uint32_t read = boundary_of(lane, LONG, NULL, NULL);
        CHECK(read != 0 && read != all);
        double lost = 0, most = 0;
        float shares[LONG], sums[HEADS];
        for (uint32_t page = 0; page < LONG; page++) shares[page] = NAN;
        for (uint32_t head = 0; head < HEADS; head++) {
            const double sum = attention(head, scores, LONG, read), whole = attention(head, scores, LONG, all);
            sums[head] = (float)log(sum);
            lost += (1 - sum / whole) / HEADS;
            if (1 - sum / whole > most) most = 1 - sum / whole;
            for (uint32_t page = 0; page < LONG; page++) {
                if (!(read >> page & 1)) continue;
                const double share = attention(head, scores, LONG, 1u << page) / sum / HEADS;
                shares[page] = (float)(head == 0 ? share : shares[page] + share);
            }
        }
        OK(kvt_lane_report_mass(lane, step.seq, 0, shares, LONG, sums, HEADS));
        kvt_omission omission;
        OK(kvt_lane_get_omission(lane, step.seq, 0, &omission));
        CHECK(omission.needed == LONG && omission.omitted == LONG - (uint32_t)__builtin_popcount(read));
        /* The reported share equals the true one, over both heads and for the worst head. */
        CHECK(omission.share > 0 && fabs(omission.share - lost) < 0.05 + 0.1 * lost);
        CHECK(omission.share_worst > omission.share && fabs(omission.share_worst - most) < 0.05 + 0.1 * most);
        OK(kvt_lane_end(lane));
    }
    kvt_stats stats = {.struct_size = sizeof stats};
    OK(kvt_client_get_stats(client, &stats));
    CHECK(stats.pages_unpicked > 0 && stats.omissions == STEPS);

    /* Back to exact: every page is read, and the sum is bit-identical to the one without tiers. */
    OK(kvt_channel_set_contract(channel, step.seq, KVT_CONTRACT_EXACT, 0, MINUTE_US));
    float found[LONG];
    OK(kvt_lane_begin(lane, &step, 1));
    kvt_wants wants = {.ahead = true, .mass = true};
    OK(kvt_lane_get_wants(lane, step.seq, &wants));
    CHECK(!wants.ahead && !wants.mass); /* exact picks no pages */
    CHECK(boundary_of(lane, LONG, blocks, found) == all);
    OK(kvt_lane_end(lane));
    const double plain = attention(0, scores, LONG, all), paged = attention(0, found, LONG, all);
    CHECK(memcmp(&plain, &paged, sizeof plain) == 0);
    OK(kvt_lane_close(lane));
    OK(kvt_channel_close(channel));
    OK(kvt_detach(client));
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    const kvt_plane plane = {.page_bytes = PAGE_BYTES, .kind = KVT_PLANE_FULL};
    const uint32_t frames[] = {32};
    kvt_digests digests = {.element = KVT_ELEMENT_F32, .heads = 1, .channels = CHANNELS, .tile_tokens = PAGE_TOKENS,
                           .token_stride = 4 * CHANNELS, .channel_stride = 4, .groups = 2, .pages = 64};
    const kvt_options options = {.struct_size = sizeof options, .abi_version = KVT_ABI_VERSION, .socket = argv[1],
                                 .space = "contracts", .page_tokens = PAGE_TOKENS, .planes = &plane, .planes_count = 1, .tier0_frames = frames,
                                 .classes_count = 1, .digests = &digests, .timeout_us = MINUTE_US};
    kvt_client *client;
    kvt_channel *channel;
    kvt_lane *lane;
    digests.element = 3;
    FAILS(kvt_attach(&options, &client), KVT_EINVAL, "kvt_element");
    digests.element = KVT_ELEMENT_F32;
    digests.groups = 17; /* more than 5 % of a page */
    FAILS(kvt_attach(&options, &client), KVT_EINVAL, "digests");
    digests.groups = 2;
    OK(kvt_attach(&options, &client));
    OK(kvt_channel_open(client, 0, &channel));
    OK(kvt_lane_open(client, 0, &lane));

    const float scores[PAGES] = {0, -6, 5, -7, -2, -1, 0, 1};
    kvt_step_seq step = {.tokens = PAGES * PAGE_TOKENS};
    OK(kvt_channel_create_seq(channel, &step.seq));
    OK(kvt_channel_reserve(channel, step.seq, step.tokens, MINUTE_US));
    OK(kvt_lane_begin(lane, &step, 1));
    for (uint32_t page = 0; page < PAGES; page++) {
        void *bytes;
        OK(kvt_lane_get_writable_page(lane, step.seq, page, 0, &bytes));
        fill(bytes, scores[page]);
    }
    OK(kvt_lane_end(lane));
    OK(kvt_channel_commit(channel, step.seq, step.tokens));

    FAILS(kvt_channel_set_contract(channel, step.seq, 2, 0, MINUTE_US), KVT_EINVAL, "kvt_contract");
    EXPECT(kvt_channel_set_contract(channel, step.seq, KVT_CONTRACT_APPROX, 1001, MINUTE_US), KVT_ERANGE);
    EXPECT(kvt_channel_set_contract(channel, step.seq, KVT_CONTRACT_APPROX, 1 << 16, MINUTE_US), KVT_ERANGE);
    OK(kvt_channel_set_contract(channel, step.seq, KVT_CONTRACT_APPROX, 500, MINUTE_US));

    /* The whole sequence is in tier 0, so all of it is read, whatever the budget. */
    kvt_omission omission;
    OK(kvt_lane_begin(lane, &step, 1));
    EXPECT(kvt_lane_report_query(lane, step.seq, 0, query, CHANNELS - 1), KVT_ERANGE);
    EXPECT(kvt_lane_report_query(lane, step.seq, 1, query, CHANNELS), KVT_ERANGE);
    OK(kvt_lane_report_query(lane, step.seq, 0, query, CHANNELS));
    const float total = 5;
    EXPECT(kvt_lane_report_mass(lane, step.seq, 0, scores, PAGES, &total, 1), KVT_ESTATE); /* before the boundary */
    CHECK(boundary(lane) == (1u << PAGES) - 1);
    float shares[PAGES], sum = 0;
    for (int page = 0; page < PAGES; page++) sum += shares[page] = expf(scores[page]);
    for (int page = 0; page < PAGES; page++) shares[page] /= sum;
    const float totals[2] = {total, total};
    EXPECT(kvt_lane_report_mass(lane, step.seq, 0, shares, PAGES - 1, NULL, 0), KVT_ERANGE);
    EXPECT(kvt_lane_report_mass(lane, step.seq, 0, shares, PAGES, totals, 2), KVT_ERANGE); /* the query has one head */
    FAILS(kvt_lane_report_mass(lane, step.seq, 0, shares, PAGES, NULL, 1), KVT_EINVAL, "`sums`");
    OK(kvt_lane_report_mass(lane, step.seq, 0, shares, PAGES, &total, 1));
    OK(kvt_lane_get_omission(lane, step.seq, 0, &omission));
    CHECK(omission.needed == PAGES && omission.omitted == 0 && omission.waived == 0);
    CHECK(omission.share == 0 && omission.share_worst == 0);
    OK(kvt_lane_report_ahead(lane, step.seq, 0, query, CHANNELS));
    EXPECT(kvt_lane_get_omission(lane, step.seq, 1, &omission), KVT_ESTATE);
    OK(kvt_lane_end(lane));

    kvt_stats stats = {.struct_size = sizeof stats};
    OK(kvt_client_get_stats(client, &stats));
    CHECK(stats.pages_unpicked == 0 && stats.pages_waived == 0);
    CHECK(stats.omissions == 0 && stats.scores == 1);
    OK(kvt_lane_close(lane));
    OK(kvt_channel_close(channel));
    OK(kvt_detach(client));
    under_pressure(argv[1], digests);
    return 0;
}
