/* The daemon is killed: calls end with KVT_EDAEMON within their timeout, tier 0 stays readable, and another daemon
 * takes the session over. Arguments: socket and process id of the daemon, socket of another. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <time.h>

#include "engine.h"

enum { TIMEOUT_US = 5 * 1000 * 1000 };

/* Call until this process notices the death. Each call is bounded by its timeout, the number of calls by a maximum. */
static void await_death(engine *e) {
    for (int i = 0; i < 1000; i++) {
        const kvt_status status = round_trip(e->channel, TIMEOUT_US);
        if (status == KVT_EDAEMON) return;
        CHECK(status == KVT_OK);
    }
    CHECK(!"the daemon's death was never noticed");
}

int main(int argc, char **argv) {
    CHECK(argc > 3);
    engine e = engine_attach(argv[1], 12);
    text t = text_new(&e, 31, 4, 2);
    text other = text_new(&e, 32, 3, 3);
    const text both[2] = {t, other};
    read_step(&e, both, 2);

    /* In the middle of a step whose pages are all resident. */
    const kvt_step_seq step = {.seq = t.seq, .tokens = t.tokens};
    OK(kvt_lane_begin(e.lane, &step, 1));
    read_plane(&e, 0, &t, 1);
    CHECK(kill((pid_t)strtol(argv[2], NULL, 10), SIGKILL) == 0);
    await_death(&e);
    FAILS(round_trip(e.channel, TIMEOUT_US), KVT_EDAEMON, "tier 0");

    /* This step and the next one can still read tier 0. */
    read_plane(&e, 1, &t, 1);
    read_plane(&e, 2, &t, 1);
    OK(kvt_lane_end(e.lane));
    read_step(&e, both, 2);

    /* Calls that need the daemon fail. */
    kvt_pin *pin;
    uint32_t child;
    const kvt_range range = {.seq = t.seq, .first = 0, .count = 1, .plane = 0, .planes = 1};
    EXPECT(kvt_channel_reserve(e.channel, t.seq, t.tokens + 1, TIMEOUT_US), KVT_EDAEMON);
    EXPECT(kvt_channel_fork(e.channel, t.seq, TIMEOUT_US, &child), KVT_EDAEMON);
    EXPECT(kvt_channel_truncate(e.channel, t.seq, 1, TIMEOUT_US), KVT_EDAEMON);
    const kvt_status acquired = kvt_channel_acquire(e.channel, &range, TIMEOUT_US, &pin);
    CHECK(acquired == KVT_EDAEMON || acquired == KVT_OK); /* resident: no daemon needed */

    /* Another daemon: the same sequences and pages, without writing them again. The old handles must be closed first: no
     * lane may read frames that the new session moves. */
    engine again;
    FAILS(kvt_reattach(e.client, argv[3], &again.client), KVT_ESTATE, "reattach");
    OK(kvt_lane_close(e.lane));
    OK(kvt_channel_close(e.channel));
    FAILS(kvt_reattach(e.client, "/nonexistent/kvtide.sock", &again.client), KVT_EDAEMON, "/nonexistent");
    OK(kvt_reattach(e.client, argv[3], &again.client));
    EXPECT(kvt_reattach(e.client, argv[3], &again.client), KVT_ESTATE);
    OK(kvt_detach(e.client));
    OK(kvt_channel_open(again.client, 0, &again.channel));
    OK(kvt_lane_open(again.client, 0, &again.lane));
    OK(kvt_lane_get_view(again.lane, &again.view));
    OK(round_trip(again.channel, 0));
    read_step(&again, both, 2);
    write_pages(&again, &t, 30, 2);
    read_step(&again, &t, 1);
    engine_detach(&again);
    return 0;
}
