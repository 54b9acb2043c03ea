/* A tenant's token: in the options, in the environment, and the error for a wrong one. The path of the correct token's file is in
 * KVTIDE_TEST_TOKEN; the daemon also accepts this user without a token. */
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>

#include "engine.h"

/* Create a file with this content; the caller removes it. */
static void write_file(char *path, const char *content) {
    strcpy(path, "/tmp/kvtide-token-XXXXXX");
    const int fd = mkstemp(path);
    CHECK(fd >= 0);
    CHECK(write(fd, content, strlen(content)) == (ssize_t)strlen(content));
    CHECK(close(fd) == 0);
}

static void attaches(kvt_options o) {
    kvt_client *client;
    OK(kvt_attach(&o, &client));
    OK(kvt_detach(client));
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    const char *right = getenv("KVTIDE_TEST_TOKEN");
    CHECK(right != NULL);
    char wrong[64], shorter[64];
    write_file(wrong, "0123456789abcdef0123456789abcdef\n");
    write_file(shorter, "password\n");

    uint32_t frames[CLASSES];
    kvt_client *client;
    kvt_options o = options_for(argv[1], 4, frames);
    attaches(o);
    o.token_file = right;
    attaches(o);
    o.token_file = wrong;
    FAILS(kvt_attach(&o, &client), KVT_EPERM, "unknown token");
    o.token_file = shorter;
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "length is 8");
    CHECK(strstr(kvt_last_error(), "password") == NULL);
    o.token_file = "/nonexistent/token";
    FAILS(kvt_attach(&o, &client), KVT_ESYSTEM, "/nonexistent/token");

    /* The environment variable applies if the options contain no token. An empty one is an error: without it the uid would decide. */
    o.token_file = NULL;
    CHECK(setenv("KVTIDE_TOKEN_FILE", wrong, 1) == 0);
    FAILS(kvt_attach(&o, &client), KVT_EPERM, "unknown token");
    o.token_file = right;
    attaches(o);
    o.token_file = NULL;
    CHECK(setenv("KVTIDE_TOKEN_FILE", "", 1) == 0);
    FAILS(kvt_attach(&o, &client), KVT_EINVAL, "KVTIDE_TOKEN_FILE is empty");
    CHECK(unlink(wrong) == 0 && unlink(shorter) == 0);
    return 0;
}
