/* Calls without a daemon: versions, texts, and invalid arguments. */
#include "engine.h"

static void versions(void) {
    CHECK(strchr(kvt_version(), '.') != NULL);
    CHECK(strcmp(kvt_strerror(KVT_OK), "ok") == 0);
    for (int32_t code = 0; code <= KVT_EDEVICE; code++) {
        CHECK(strlen(kvt_strerror(code)) > 1);
        CHECK(strcmp(kvt_strerror(code), kvt_strerror(12345)) != 0);
    }
    CHECK(strstr(kvt_strerror(-1), "unknown") != NULL);
    CHECK(strcmp(kvt_last_error(), "") == 0);
}

/* A program that was compiled for ABI 2: the first members of its options, and their size. */
static void older_programs(void) {
    struct {
        uint32_t struct_size, page_tokens;
        const char *socket, *space;
        uint8_t others[152];
    } old = {.struct_size = 176, .page_tokens = KVT_ABI_VERSION, .socket = "/nonexistent/kvtide.sock", .space = "old"};
    _Static_assert(sizeof old == 176, "the size of kvt_options in ABI 2");
    kvt_client *client = NULL;
    for (old.struct_size = 104; old.struct_size <= 176; old.struct_size += 8) {
        FAILS(kvt_attach((const kvt_options *)(const void *)&old, &client), KVT_EVERSION, "the program uses C ABI 2");
        CHECK(strstr(kvt_last_error(), "has C ABI 5") != NULL);
    }
    uint32_t frames[CLASSES];
    kvt_options o = options_for("/nonexistent/kvtide.sock", 4, frames);
    o.abi_version = 4;
    FAILS(kvt_attach(&o, &client), KVT_EVERSION, "the program uses C ABI 4, this library");
    o.abi_version = 0;
    FAILS(kvt_attach(&o, &client), KVT_EVERSION, "the program uses C ABI 0, this library");
    CHECK(client == NULL);
}

/* NULL, and pointers that are no handle of that type. */
static void no_handles(void) {
    kvt_client *const client = NULL;
    kvt_channel *channel = NULL;
    kvt_lane *lane = NULL;
    uint32_t word;
    FAILS(kvt_detach(client), KVT_EINVAL, "the kvt_client is NULL");
    FAILS(kvt_channel_open(client, 0, &channel), KVT_EINVAL, "NULL");
    FAILS(kvt_channel_open(client, 0, NULL), KVT_EINVAL, "`channel`");
    FAILS(kvt_lane_open(client, 0, &lane), KVT_EINVAL, "NULL");
    FAILS(kvt_channel_close(channel), KVT_EINVAL, "kvt_channel");
    FAILS(kvt_lane_close(lane), KVT_EINVAL, "kvt_lane");
    FAILS(round_trip(channel, 0), KVT_EINVAL, "NULL");
    FAILS(kvt_channel_create_seq(channel, &word), KVT_EINVAL, "NULL");
    FAILS(kvt_channel_create_seq(channel, NULL), KVT_EINVAL, "`seq`");
    FAILS(kvt_lane_begin(lane, NULL, 1), KVT_EINVAL, "`seqs`");
    FAILS(kvt_lane_begin(lane, NULL, 0), KVT_EINVAL, "kvt_lane");
    FAILS(kvt_lane_end(lane), KVT_EINVAL, "NULL");
    kvt_lane_view view;
    FAILS(kvt_lane_get_view(lane, &view), KVT_EINVAL, "kvt_lane_get_view");
    FAILS(kvt_channel_release(channel, NULL), KVT_EINVAL, "NULL");
    FAILS(kvt_channel_poll(channel, NULL, 1, &word), KVT_EINVAL, "`completions`");

    /* An address is not a handle and is never dereferenced. */
    char something[64] = {0};
    FAILS(round_trip((kvt_channel *)(void *)something, 0), KVT_EINVAL, "is not a kvt_channel");
    FAILS(kvt_detach((kvt_client *)(uintptr_t)8), KVT_EINVAL, "is not a kvt_client");
    FAILS(kvt_lane_end((kvt_lane *)UINTPTR_MAX), KVT_EINVAL, "is not a kvt_lane");
}

static kvt_options good(uint32_t frames[CLASSES]) { return options_for("/nonexistent/kvtide.sock", 4, frames); }

static void bad_options(void) {
    uint32_t frames[CLASSES];
    kvt_client *client = NULL;
    kvt_options o = good(frames);
    FAILS(kvt_attach(&o, &client), KVT_EDAEMON, "/nonexistent/kvtide.sock");
    CHECK(client == NULL);
    FAILS(kvt_attach(&o, NULL), KVT_EINVAL, "`client` is NULL");
    FAILS(kvt_attach(NULL, &client), KVT_EINVAL, "`options` is NULL");

    o.struct_size = 8;
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "struct_size");
    o.struct_size = 1u << 20;
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "struct_size");

    /* A program compiled with a newer header: fields unknown to this library must be zero. */
    struct {
        kvt_options known;
        uint64_t later;
    } longer = {good(frames), 0};
    longer.known.struct_size = sizeof longer;
    FAILS(kvt_attach(&longer.known, &client), KVT_EDAEMON, "/nonexistent/kvtide.sock");
    longer.later = 1;
    FAILS(kvt_attach(&longer.known, &client), KVT_EVERSION, "uses byte");

    o = good(frames);
    o.reserved = 1;
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "reserved");
    o = good(frames);
    o.reserved_long = 1;
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "reserved");
    o = good(frames);
    o.socket = NULL;
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "`options->socket` is NULL");
    o = good(frames);
    o.space = "\xff\xfe";
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "UTF-8");
    o = good(frames);
    o.planes = NULL;
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "`options->planes` is NULL");
    o = good(frames);
    o.planes_count = 0;
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "plane");
    o = good(frames);
    o.classes_count = 1;
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "tier-0 frames");
    o = good(frames);
    o.tier0_frames = NULL;
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "`options->tier0_frames` is NULL");
    o = good(frames);
    o.page_tokens = 0;
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "page_tokens");
    o = good(frames);
    o.shard = 3;
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "shard");
    o = good(frames);
    o.lanes = 9;
    o.channels = 9;
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "lanes");
    kvt_plane odd[PLANES];
    memcpy(odd, planes, sizeof odd);
    odd[1].kind = 9;
    o = good(frames);
    o.planes = odd;
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "kind");
    CHECK(client == NULL);
}

int main(void) {
    versions();
    older_programs();
    no_handles();
    bad_options();
    return 0;
}
