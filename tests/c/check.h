/* Shared by the C tests: a check that prints its place and condition, and the small geometry used to attach.
 *
 * A program receives the daemon's socket as first argument and the daemon's process id as second. It exits with 0 if every
 * check held. tests/capi.rs compiles and runs them. */
#ifndef KVTIDE_TESTS_CHECK_H
#define KVTIDE_TESTS_CHECK_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvtide.h"

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition);   \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

/* Return whether the last error has a reason. A mistake of the caller must have one: the text of its status alone does not say what
 * to change. */
static inline int has_reason(kvt_status status) {
    switch (status) {
    case KVT_EINVAL:
    case KVT_ENOTFOUND:
    case KVT_ERANGE:
    case KVT_ELIMIT:
    case KVT_ESTATE: {
        const char *general = kvt_strerror((int32_t)status), *found = strstr(kvt_last_error(), general);
        return found == NULL || found[strlen(general)] != '\0';
    }
    default:
        return 1;
    }
}

/* Check that the call returns exactly this status, with a reason; print the detail text otherwise. */
#define EXPECT(call, expected)                                                                            \
    do {                                                                                                  \
        const kvt_status got_ = (call);                                                                   \
        if (got_ != (expected) || !has_reason(got_)) {                                                    \
            fprintf(stderr, "%s:%d: %s\n  ended with %d (%s), not " #expected ", or without a reason\n"   \
                    "  last error: %s\n",                                                                 \
                    __FILE__, __LINE__, #call, (int)got_, kvt_strerror((int32_t)got_), kvt_last_error()); \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

#define OK(call) EXPECT(call, KVT_OK)

/* Check that the call fails with this status and that the last error contains `text`. */
#define FAILS(call, expected, text)                                                                  \
    do {                                                                                             \
        EXPECT(call, expected);                                                                      \
        if (strstr(kvt_last_error(), (text)) == NULL) {                                              \
            fprintf(stderr, "%s:%d: %s\n  says \"%s\", which lacks \"%s\"\n", __FILE__, __LINE__,    \
                    #call, kvt_last_error(), (text));                                                \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)

/* Make a round trip to the daemon: look up a block that nobody has stored. */
static inline kvt_status round_trip(kvt_channel *channel, uint64_t timeout_us) {
    const kvt_hash nobody = {{UINT64_MAX, UINT64_MAX}};
    uint32_t blocks;
    return kvt_channel_lookup(channel, &nobody, 1, timeout_us, &blocks, NULL);
}

#endif
