/* Two threads on one client, each with its own channel and lane; both need more than their share of tier 0. */
#include <pthread.h>

#include "engine.h"

typedef struct worker {
    kvt_client *client;
    uint16_t index;
} worker;

static void *work(void *argument) {
    const worker *w = argument;
    engine e = {.client = w->client};
    OK(kvt_channel_open(e.client, w->index, &e.channel));
    OK(kvt_lane_open(e.client, w->index, &e.lane));
    OK(kvt_lane_get_view(e.lane, &e.view));
    for (uint32_t round = 0; round < 3; round++) {
        text a = text_new(&e, 100u * w->index + 2 * round, 14, 2);
        text b = text_new(&e, 100u * w->index + 2 * round + 1, 5, 1);
        const text both[2] = {a, b};
        read_step(&e, both, 2);
        read_step(&e, both, 2);
        (void)engine_stats(&e);
        OK(kvt_channel_drop_seq(e.channel, a.seq));
        OK(kvt_channel_drop_seq(e.channel, b.seq));
    }
    /* The last error belongs to the thread that caused it. */
    if (w->index == 0) FAILS(kvt_channel_drop_seq(e.channel, 7), KVT_ENOTFOUND, "7");
    if (w->index == 1) CHECK(strcmp(kvt_last_error(), "") == 0);
    OK(kvt_lane_close(e.lane));
    OK(kvt_channel_close(e.channel));
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    uint32_t frames[CLASSES];
    const kvt_options options = options_for(argv[1], 16, frames);
    kvt_client *client;
    OK(kvt_attach(&options, &client));
    pthread_t threads[2];
    worker workers[2];
    for (uint16_t i = 0; i < 2; i++) {
        workers[i] = (worker){client, i};
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    OK(kvt_detach(client));
    return 0;
}
