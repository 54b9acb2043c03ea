/* A child process cannot use its parent's session: every call fails, closing included, and the parent continues. */
#define _POSIX_C_SOURCE 200809L
#include <sys/wait.h>
#include <unistd.h>

#include "engine.h"

static void child(const engine *e, uint32_t seq, kvt_pin *pin, const char *socket) {
    uint32_t word;
    kvt_channel *channel;
    kvt_lane *lane;
    kvt_pass pass;
    void *page;
    const kvt_step_seq step = {.seq = seq, .tokens = 1};
    FAILS(round_trip(e->channel, 0), KVT_EFORK, "process");
    EXPECT(kvt_channel_create_seq(e->channel, &word), KVT_EFORK);
    EXPECT(kvt_channel_drop_seq(e->channel, seq), KVT_EFORK);
    EXPECT(kvt_channel_commit(e->channel, seq, 1), KVT_EFORK);
    EXPECT(kvt_channel_release(e->channel, pin), KVT_EFORK);
    EXPECT(kvt_lane_begin(e->lane, &step, 1), KVT_EFORK);
    EXPECT(kvt_lane_boundary(e->lane, 0, &pass), KVT_EFORK);
    EXPECT(kvt_lane_get_writable_page(e->lane, seq, 0, 0, &page), KVT_EFORK);
    EXPECT(kvt_lane_end(e->lane), KVT_EFORK);
    kvt_lane_view view;
    EXPECT(kvt_lane_get_view(e->lane, &view), KVT_EFORK);
    EXPECT(kvt_client_get_seq_blocks(e->client, seq, 0, NULL, 0, &word), KVT_EFORK);
    EXPECT(kvt_channel_open(e->client, 1, &channel), KVT_EFORK);
    EXPECT(kvt_lane_open(e->client, 1, &lane), KVT_EFORK);
    EXPECT(kvt_lane_close(e->lane), KVT_EFORK);
    EXPECT(kvt_channel_close(e->channel), KVT_EFORK);
    EXPECT(kvt_detach(e->client), KVT_EFORK);

    /* The child may attach its own session. */
    engine own = engine_attach(socket, 6);
    text t = text_new(&own, 77, 10, 2);
    read_step(&own, &t, 1);
    engine_detach(&own);
    EXPECT(round_trip(e->channel, 0), KVT_EFORK);
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    engine e = engine_attach(argv[1], 8);
    text t = text_new(&e, 5, 12, 2);
    const kvt_range range = {.seq = t.seq, .first = 0, .count = 1, .plane = 0, .planes = 1};
    kvt_pin *pin;
    OK(kvt_channel_acquire(e.channel, &range, 0, &pin));

    /* Fork once between steps and once within a step. */
    const kvt_step_seq step = {.seq = t.seq, .tokens = t.tokens};
    for (int within = 0; within < 2; within++) {
        if (within) OK(kvt_lane_begin(e.lane, &step, 1));
        fflush(NULL);
        const pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            child(&e, t.seq, pin, argv[1]);
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        OK(round_trip(e.channel, 0));
        if (within) {
            for (uint32_t plane = 0; plane < PLANES; plane++) read_plane(&e, plane, &t, 1);
            OK(kvt_lane_end(e.lane));
        } else {
            read_step(&e, &t, 1);
        }
    }
    OK(kvt_channel_release(e.channel, pin));
    write_pages(&e, &t, 14, 2);
    read_step(&e, &t, 1);
    engine_detach(&e);
    return 0;
}
