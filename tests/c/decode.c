/* An engine on a device in plain C. Two sequences grow by a token in each step and need more memory than tier 0 has. Every step's
 * attention, over full planes and one with a window, equals the result on the host. Then pages pass through layouts and a codec. */
#define _DEFAULT_SOURCE
#include <math.h>

#include "device.h"

enum {
    PAGE_TOKENS = 16, PLANES = 3, SEQS = 2, DIM = 32, GROUP = 2, TOKENS = 70, WINDOW = 40, WINDOW_PLANE = 2,
    PAGES = (TOKENS + PAGE_TOKENS - 1) / PAGE_TOKENS, TIER0_BLOCKS = 7, ROW = 2 * DIM, HALF = PAGE_TOKENS * ROW, PAGE = 2 * HALF,
};

/* The written keys and values as numbers: [plane][sequence][token]. */
static float keys[PLANES][SEQS][TOKENS][DIM], values[PLANES][SEQS][TOKENS][DIM];

static uint64_t seed = 88172645463325252u;

/* Roughly normal random numbers, the same in every run. */
static float number(void) {
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        sum += (float)(seed >> 40) / (1 << 24) - 0.5f;
    }
    return 1.7f * sum;
}

static uint16_t bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Round numbers to the device's format. */
static void fresh(float *to, uint16_t *bits, int count) {
    for (int i = 0; i < count; i++) {
        bits[i] = bf16(number());
        to[i] = from_bf16(bits[i]);
    }
}

static double dot(const float *a, const float *b) {
    double sum = 0;
    for (int d = 0; d < DIM; d++) sum += (double)a[d] * b[d];
    return sum;
}

/* Compute one query head over the visible tokens of a plane; add each page's share of the attention to `shares`. */
static void reference(int plane, int seq, int tokens, const float *q, double *out, double *shares) {
    const int first = plane == WINDOW_PLANE && tokens > WINDOW ? tokens - WINDOW : 0;
    double sum = 0, parts[PAGES] = {0};
    memset(out, 0, DIM * sizeof *out);
    for (int t = first; t < tokens; t++) {
        const double weight = exp(dot(q, keys[plane][seq][t]) / sqrt(DIM));
        sum += weight;
        parts[t / PAGE_TOKENS] += weight;
        for (int d = 0; d < DIM; d++) out[d] += weight * values[plane][seq][t][d];
    }
    for (int d = 0; d < DIM; d++) out[d] /= sum;
    for (int i = 0; i < PAGES; i++) shares[i] += parts[i] / sum / GROUP;
}

typedef struct engine {
    gpu gpu;
    kvt_client *client;
    kvt_channel *channel;
    kvt_lane *lane;
    kvt_batch *batch;
    kvt_kernels *kernels;
    kvt_attention *full, *window;
    kvt_batch_device rows;
    /* Device memory: queries, keys, values of a step, output, sums, lists of pages, scores. */
    uint64_t q, k, v, out, lse, items, words;
    uint32_t parts; /* boundaries that handed out only some pages */
} engine;

static const kvt_plane planes[PLANES] = {
    {.page_bytes = PAGE}, {.page_bytes = PAGE}, {.page_bytes = PAGE, .kind = KVT_PLANE_WINDOW, .window_tokens = WINDOW}};

static kvt_options options_for(const char *socket, const uint32_t *frames, const uint32_t *initial) {
    return (kvt_options){.struct_size = sizeof(kvt_options), .abi_version = KVT_ABI_VERSION, .socket = socket, .space = "c-device",
                         .page_tokens = PAGE_TOKENS, .planes = planes, .planes_count = PLANES, .tier0_frames = frames, .tier0_initial = initial, .classes_count = 1,
                         .device = "cuda:0", .timeout_us = 60 * 1000 * 1000};
}

static kvt_attention *attention_for(const engine *e, uint32_t window) {
    const kvt_attention_options options = {
        .struct_size = sizeof options, .element = KVT_ELEMENT_BF16, .head_dim = DIM, .kv_heads = 1, .group = GROUP, .window = window,
        .scale = 1.0f / sqrtf(DIM), .seqs = SEQS, .q_tokens = 1, .pages = PAGES, .chunk_tokens = 2 * PAGE_TOKENS, .passes = 1,
        .mass = 1};
    kvt_attention *made;
    OK(kvt_attention_open(e->client, &options, &made));
    return made;
}

static engine engine_open(const char *socket) {
    engine e;
    memset(&e, 0, sizeof e);
    e.gpu = gpu_open();
    const uint32_t frames = PLANES * TIER0_BLOCKS, initial = PLANES * 2, more = frames + 1;
    kvt_options options = options_for(socket, &frames, &more);
    FAILS(kvt_attach(&options, &e.client), KVT_EINVAL, "tier0_initial");
    options.tier0_initial = &initial;
    options.guaranteed_blocks = 1u << 30;
    FAILS(kvt_attach(&options, &e.client), KVT_ENOSPC, "the daemon can guarantee");
    options.guaranteed_blocks = 2;
    OK(kvt_attach(&options, &e.client));
    OK(kvt_channel_open(e.client, 0, &e.channel));
    OK(kvt_lane_open(e.client, 0, &e.lane));
    /* Tier 0 started below its maximum: the last frame gets memory now. */
    void *last;
    EXPECT(kvt_client_get_frame(e.client, frames - 1, &last), KVT_ERANGE);
    uint32_t now;
    OK(kvt_channel_resize_tier0(e.channel, 0, frames, 0, &now));
    CHECK(now == frames);
    OK(kvt_client_get_frame(e.client, frames - 1, &last));
    const kvt_batch_options rows = {.struct_size = sizeof rows, .seqs = SEQS, .max_blocks = PAGES, .table_planes = PLANES};
    EXPECT(kvt_batch_open(e.client, e.lane, &rows, &e.batch), KVT_ESTATE); /* not bound to a stream yet */
    OK(kvt_lane_bind(e.lane, (uint64_t)(uintptr_t)e.gpu.stream));
    OK(kvt_batch_open(e.client, e.lane, &rows, &e.batch));
    OK(kvt_kernels_open(e.client, &e.kernels));
    e.full = attention_for(&e, 0);
    e.window = attention_for(&e, WINDOW);
    e.rows.struct_size = sizeof e.rows;
    OK(kvt_batch_get_device(e.batch, &e.rows));
    CHECK(e.rows.seqs == SEQS && e.rows.max_blocks == PAGES);
    e.q = gpu_memory(&e.gpu, SEQS * GROUP * ROW);
    e.k = gpu_memory(&e.gpu, SEQS * ROW);
    e.v = gpu_memory(&e.gpu, SEQS * ROW);
    e.out = gpu_memory(&e.gpu, SEQS * GROUP * ROW);
    e.lse = gpu_memory(&e.gpu, SEQS * GROUP * 4);
    e.items = gpu_memory(&e.gpu, SEQS * PAGES * 8);
    e.words = gpu_memory(&e.gpu, SEQS * KVT_SCORES_WORDS * 8);
    return e;
}

/* Compare the starts of the window plane and the bits of missing pages: none is missing after a complete boundary. */
static void check_batch(engine *e, uint16_t plane, int tokens) {
    uint64_t starts;
    int32_t first[SEQS] = {0}, lengths[SEQS];
    OK(kvt_batch_get_starts(e->batch, plane, &starts));
    CHECK((starts != 0) == (plane == WINDOW_PLANE));
    if (starts != 0) gpu_get(&e->gpu, first, starts, sizeof first);
    gpu_get(&e->gpu, lengths, e->rows.lengths, sizeof lengths);
    const int seen = tokens > WINDOW ? (tokens - WINDOW) / PAGE_TOKENS * PAGE_TOKENS : 0;
    for (int s = 0; s < SEQS; s++) CHECK(lengths[s] == tokens && first[s] == (plane == WINDOW_PLANE ? seen : 0));
}

/* One plane of a step: append the new token's keys and values to their pages, then compute attention over all visible tokens. */
static void plane_step(engine *e, uint16_t plane, int tokens) {
    kvt_attention *attention = plane == WINDOW_PLANE ? e->window : e->full;
    uint16_t bits[SEQS * GROUP * DIM];
    float q[SEQS][GROUP][DIM];
    fresh(&q[0][0][0], bits, SEQS * GROUP * DIM);
    gpu_put(&e->gpu, e->q, bits, sizeof bits);
    for (int s = 0; s < SEQS; s++) {
        fresh(keys[plane][s][tokens - 1], bits, DIM);
        gpu_put(&e->gpu, e->k + (uint64_t)s * ROW, bits, ROW);
        fresh(values[plane][s][tokens - 1], bits, DIM);
        gpu_put(&e->gpu, e->v + (uint64_t)s * ROW, bits, ROW);
    }
    const kvt_append_part part = {.token_stride = ROW, .head_stride = ROW, .heads = 1, .row_bytes = ROW, .page_head_stride = HALF,
                                  .page_token_stride = ROW};
    kvt_append_rows rows = {.struct_size = sizeof rows, .rows = SEQS, .parts = {part, part}};
    rows.parts[0].source = e->k;
    rows.parts[1].source = e->v;
    rows.parts[1].page_offset = HALF;
    const kvt_queries queries = {.struct_size = sizeof queries, .plane = plane, .q = e->q, .out = e->out, .lse = e->lse};
    CUDA(e->gpu.fill(e->out, 0x7b, SEQS * GROUP * ROW, e->gpu.stream));

    kvt_pass pass;
    uint32_t listed = 0;
    int first = 1;
    do {
        OK(kvt_lane_boundary(e->lane, plane, &pass));
        if (first) OK(kvt_kernels_append(e->kernels, e->batch, plane, &rows));
        OK(kvt_batch_build_tables(e->batch, plane, 1, -1));
        if (pass.all) {
            check_batch(e, plane, tokens);
            OK(kvt_attention_compute(attention, e->batch, &queries));
        } else {
            uint32_t list[SEQS * PAGES][2];
            CHECK(listed + pass.count <= SEQS * PAGES);
            for (uint32_t i = 0; i < pass.count; i++) {
                list[i][0] = pass.ready[i].position;
                list[i][1] = pass.ready[i].index;
            }
            if (first) OK(kvt_attention_begin(attention, e->batch));
            const uint64_t at = e->items + (uint64_t)listed * 8;
            gpu_put(&e->gpu, at, list, (size_t)pass.count * 8);
            OK(kvt_attention_compute_part(attention, e->batch, &queries, at, pass.count));
            if (pass.last) OK(kvt_attention_merge(attention, e->batch, &queries));
            listed += pass.count;
            e->parts++;
        }
        first = 0;
    } while (!pass.last);
    OK(kvt_attention_compute_mass(attention, e->batch, &queries, (uint64_t)tokens, 4, e->words));

    uint16_t out[SEQS][GROUP][DIM];
    uint64_t words[SEQS][KVT_SCORES_WORDS];
    gpu_get(&e->gpu, out, e->out, sizeof out);
    gpu_get(&e->gpu, words, e->words, sizeof words);
    for (int s = 0; s < SEQS; s++) {
        double shares[PAGES] = {0}, error = 0, norm = 0;
        for (int h = 0; h < GROUP; h++) {
            double want[DIM];
            reference(plane, s, tokens, q[s][h], want, shares);
            for (int d = 0; d < DIM; d++) {
                const double off = from_bf16(out[s][h][d]) - want[d];
                error += off * off;
                norm += want[d] * want[d];
            }
        }
        if (!(error <= 1e-4 * norm)) fprintf(stderr, "plane %d, row %d, %d tokens: error %g of %g\n", plane, s, tokens, error, norm);
        CHECK(error <= 1e-4 * norm); /* 1 % of the norm */
        kvt_scores scores = {.struct_size = sizeof scores};
        OK(kvt_scores_read(words[s], &scores));
        CHECK(scores.plane == plane && scores.step == (uint64_t)tokens && scores.count > 0);
        double all = exp(scores.rest);
        for (uint32_t i = 0; i < scores.count; i++) {
            const double share = exp(scores.top[i].log_mass);
            CHECK(fabs(share - shares[scores.top[i].index]) < 0.02);
            all += share;
        }
        CHECK(fabs(all - 1.0) < 0.02);
    }
}

/* Convert the pages of a sequence's first block: engine layout, int8 and back. */
static void transforms(engine *e, const kvt_step_seq *seqs) {
    kvt_step_seq one = seqs[0];
    one.tokens = PAGE_TOKENS;
    kvt_pass pass;
    uint32_t block, count, frame;
    void *page;
    OK(kvt_lane_begin(e->lane, &one, 1));
    OK(kvt_batch_set_seqs(e->batch, &one, 1));
    OK(kvt_lane_boundary(e->lane, 0, &pass));
    CHECK(pass.last);
    OK(kvt_client_get_seq_blocks(e->client, one.seq, 0, &block, 1, &count));
    OK(kvt_lane_get_frame(e->lane, block, 0, &frame));
    OK(kvt_client_get_frame(e->client, frame, &page));
    const uint64_t at = (uint64_t)(uintptr_t)page;

    /* Keys and values separate, token first: [part][token]. */
    const uint64_t lists = gpu_memory(&e->gpu, 256), apart = gpu_memory(&e->gpu, PAGE), back = gpu_memory(&e->gpu, PAGE);
    const uint64_t bases[4] = {0, HALF, apart, apart + HALF}, item[2] = {at, 0};
    gpu_put(&e->gpu, lists, bases, sizeof bases);
    gpu_put(&e->gpu, lists + 64, item, sizeof item);
    const kvt_rows_layout ours = {.bases = lists, .head_stride = HALF, .token_stride = ROW};
    const kvt_rows_layout theirs = {.bases = lists + 16, .head_stride = HALF, .token_stride = ROW};
    const kvt_gather gather = {.struct_size = sizeof gather, .count = 1, .from = ours, .to = theirs, .items = lists + 64, .layers = 1,
                               .parts = 2, .heads = 1, .tokens = PAGE_TOKENS, .row_bytes = ROW};
    OK(kvt_kernels_gather(e->kernels, e->lane, &gather));
    uint16_t got[2][PAGE_TOKENS][DIM];
    gpu_get(&e->gpu, got, apart, sizeof got);
    for (int t = 0; t < PAGE_TOKENS; t++) {
        for (int d = 0; d < DIM; d++) {
            CHECK(from_bf16(got[0][t][d]) == keys[0][0][t][d] && from_bf16(got[1][t][d]) == values[0][0][t][d]);
        }
    }

    kvt_quant quant = {.struct_size = sizeof quant, .count = 1, .layout = ours, .items = lists + 96, .refused = lists + 128,
                       .layers = 1, .parts = 2, .heads = 1, .page_tokens = PAGE_TOKENS, .channels = DIM, .codec = KVT_CODEC_INT8,
                       .element = KVT_ELEMENT_BF16};
    OK(kvt_quant_get_bytes(&quant, &quant.image_stride));
    CHECK(quant.image_stride < PAGE);
    const uint64_t image = gpu_memory(&e->gpu, quant.image_stride);
    kvt_quant_item quantised = {.rows = at, .image = image, .tokens = PAGE_TOKENS};
    gpu_put(&e->gpu, lists + 96, &quantised, sizeof quantised);
    OK(kvt_kernels_quantize(e->kernels, e->lane, &quant));
    uint32_t refused;
    gpu_get(&e->gpu, &refused, lists + 128, sizeof refused);
    CHECK(refused == 0);
    quantised.rows = back; /* in kvtide's layout, beside the pages */
    gpu_put(&e->gpu, lists + 96, &quantised, sizeof quantised);
    OK(kvt_kernels_dequantize(e->kernels, e->lane, &quant));
    gpu_get(&e->gpu, got, back, sizeof got);
    for (int t = 0; t < PAGE_TOKENS; t++) {
        for (int d = 0; d < DIM; d++) CHECK(fabsf(from_bf16(got[0][t][d]) - keys[0][0][t][d]) < 0.05f);
    }

    OK(kvt_lane_end(e->lane));
    const uint64_t all[] = {lists, apart, back, image};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) CUDA(e->gpu.release(all[i]));
}

/* Invalid options are refused with a reason. */
static void refusals(engine *e) {
    kvt_attention *none;
    kvt_attention_options options = {.struct_size = sizeof options, .element = KVT_ELEMENT_F16, .head_dim = 96, .kv_heads = 1, .group = 1, .scale = 1.0f, .seqs = 1,
                                     .q_tokens = 1, .pages = 1};
    FAILS(kvt_attention_open(e->client, &options, &none), KVT_EINVAL, "32, 64, 128 or 256");
    options.head_dim = DIM;
    options.element = 7;
    FAILS(kvt_attention_open(e->client, &options, &none), KVT_EINVAL, "`element` is 7");
    kvt_queries queries = {.struct_size = sizeof queries, .plane = PLANES, .q = e->q, .out = e->out, .lse = e->lse};
    EXPECT(kvt_attention_compute(e->full, e->batch, &queries), KVT_ERANGE);
    queries.plane = 0;
    queries.table = PLANES;
    EXPECT(kvt_attention_compute(e->full, e->batch, &queries), KVT_ERANGE);
    queries.table = 0;
    queries.q = 0;
    FAILS(kvt_attention_compute(e->full, e->batch, &queries), KVT_EINVAL, "queries");
    EXPECT(kvt_batch_build_tables(e->batch, 0, PLANES + 1, -1), KVT_ERANGE);
    kvt_quant quant = {.struct_size = sizeof quant, .codec = 9, .parts = 2, .heads = 1, .page_tokens = 16, .channels = 32};
    uint64_t bytes;
    FAILS(kvt_quant_get_bytes(&quant, &bytes), KVT_EINVAL, "codec 9");
    EXPECT(kvt_kernels_gather(e->kernels, (kvt_lane *)e->batch, NULL), KVT_EINVAL);
    uint64_t silent[KVT_SCORES_WORDS];
    memset(silent, 0xff, sizeof silent);
    kvt_scores scores = {.struct_size = sizeof scores};
    EXPECT(kvt_scores_read(silent, &scores), KVT_ENOTFOUND);
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    engine e = engine_open(argv[1]);
    kvt_step_seq seqs[SEQS] = {{0}};
    for (int s = 0; s < SEQS; s++) OK(kvt_channel_create_seq(e.channel, &seqs[s].seq));
    for (int tokens = 1; tokens <= TOKENS; tokens++) {
        for (int s = 0; s < SEQS; s++) {
            seqs[s].tokens = (uint64_t)tokens;
            OK(kvt_channel_reserve(e.channel, seqs[s].seq, seqs[s].tokens, 0));
        }
        OK(kvt_lane_begin(e.lane, seqs, SEQS));
        OK(kvt_batch_set_seqs(e.batch, seqs, SEQS));
        for (uint16_t plane = 0; plane < PLANES; plane++) plane_step(&e, plane, tokens);
        OK(kvt_lane_check(e.lane));
        OK(kvt_lane_end(e.lane));
        for (int s = 0; s < SEQS; s++) OK(kvt_channel_commit(e.channel, seqs[s].seq, seqs[s].tokens));
    }
    CHECK(e.parts > 0); /* otherwise tier 0 held all pages, and passes were not tested */
    transforms(&e, seqs);
    refusals(&e);
    gpu_wait(&e.gpu);
    OK(kvt_attention_close(e.full));
    OK(kvt_attention_close(e.window));
    OK(kvt_kernels_close(e.kernels));
    OK(kvt_batch_close(e.batch));
    EXPECT(kvt_batch_close(e.batch), KVT_EINVAL);
    OK(kvt_lane_close(e.lane));
    OK(kvt_channel_close(e.channel));
    OK(kvt_detach(e.client));
    const uint64_t all[] = {e.q, e.k, e.v, e.out, e.lse, e.items, e.words};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) CUDA(e.gpu.release(all[i]));
    gpu_close(&e.gpu);
    return 0;
}
