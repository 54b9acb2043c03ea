/* Questions to a relay: an engine shares a prefix, and asks for prefixes that the store has and has not. Arguments: the daemon's socket.
 * KVTIDE_TEST_TOKEN names the token of a tenant without a relay. */
#include "check.h"

enum { PAGE_TOKENS = 16, PAGE = 4096, BLOCKS = 24 };
static const uint64_t SECOND = 1000 * 1000;
static uint8_t memory[BLOCKS][PAGE];

/* Wait for the end of a question, as an engine does that has other work to do. */
static kvt_answer ended(kvt_relay *relay, uint32_t question) {
    kvt_answer answer;
    kvt_status status;
    while ((status = kvt_relay_poll(relay, question, SECOND / 100, &answer)) == KVT_EAGAIN) CHECK(answer.blocks <= BLOCKS);
    EXPECT(status, KVT_OK);
    return answer;
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    const kvt_plane planes[] = {{.page_bytes = PAGE}};
    kvt_options options = {.struct_size = sizeof options, .abi_version = KVT_ABI_VERSION, .socket = argv[1], .space = "relay",
                           .page_tokens = PAGE_TOKENS, .planes = planes, .planes_count = 1};
    kvt_client *client, *tenant;
    kvt_channel *channel;
    kvt_relay *relay = NULL;
    OK(kvt_attach(&options, &client));
    OK(kvt_channel_open(client, 0, &channel));
    const kvt_piece piece = {.base = memory, .stride = PAGE, .bytes = PAGE};
    OK(kvt_client_set_blocks(client, BLOCKS, &piece, 1));
    kvt_hash hashes[BLOCKS], unknown = {{7, 7}}, none = {{0, 0}};
    uint32_t own[BLOCKS], tokens[BLOCKS * PAGE_TOKENS] = {0}, failed[BLOCKS], count, question;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        hashes[i] = (kvt_hash){{i + 1, 3}};
        memset(memory[own[i] = i], (int)i, PAGE);
    }
    OK(kvt_channel_store(channel, 0, NULL, hashes, own, BLOCKS, KVT_LEVEL_PUBLISHED, 0, failed, &count));

    OK(kvt_relay_open(client, &relay));
    OK(kvt_relay_ask(relay, KVT_QUESTION_SHARE, hashes, BLOCKS, 60 * SECOND, &question));
    CHECK(question != 0); /* an engine may use 0 for "no question" */
    kvt_answer answer = ended(relay, question);
    CHECK(answer.blocks == BLOCKS);
    OK(kvt_relay_ask(relay, KVT_QUESTION_AWAIT, hashes, BLOCKS, 60 * SECOND, &question));
    CHECK(ended(relay, question).blocks == BLOCKS);
    OK(kvt_relay_ask(relay, KVT_QUESTION_RECALL, hashes, BLOCKS, 60 * SECOND, &question));
    CHECK(ended(relay, question).blocks == BLOCKS);
    OK(kvt_relay_ask(relay, KVT_QUESTION_RECALL, &unknown, 1, 60 * SECOND, &question));
    answer = ended(relay, question);
    CHECK(answer.blocks == 0 && answer.within_us == 0);
    FAILS(kvt_relay_poll(relay, question, 0, &answer), KVT_ENOTFOUND, "no such question");
    OK(kvt_relay_ask(relay, KVT_QUESTION_RECALL, hashes, BLOCKS, 60 * SECOND, &question));
    OK(kvt_relay_forget(relay, question));
    FAILS(kvt_relay_poll(relay, question, 0, &answer), KVT_ENOTFOUND, "no such question");
    OK(kvt_relay_note(relay, hashes, BLOCKS, tokens, "adapter"));

    FAILS(kvt_relay_ask(relay, KVT_QUESTION_RECALL, &none, 1, SECOND, &question), KVT_EINVAL, "hash of 0");
    FAILS(kvt_relay_ask(relay, KVT_QUESTION_RECALL, hashes, 0, SECOND, &question), KVT_EINVAL, "at least one hash");
    FAILS(kvt_relay_ask(relay, KVT_QUESTION_RECALL, hashes, 1, SECOND, NULL), KVT_EINVAL, "question");
    FAILS(kvt_relay_ask(relay, 3, hashes, 1, SECOND, &question), KVT_EINVAL, "kvt_question_kind");
    FAILS(kvt_relay_ask(NULL, KVT_QUESTION_RECALL, hashes, 1, SECOND, &question), KVT_EINVAL, "kvt_relay");
    options.token_file = getenv("KVTIDE_TEST_TOKEN");
    OK(kvt_attach(&options, &tenant));
    kvt_relay *nobody;
    FAILS(kvt_relay_open(tenant, &nobody), KVT_ENOTFOUND, "relay_socket");
    OK(kvt_detach(tenant));
    OK(kvt_channel_close(channel));
    OK(kvt_detach(client));
    OK(kvt_relay_close(relay));
    FAILS(kvt_relay_poll(relay, question, 0, &answer), KVT_EINVAL, "closed");
    return 0;
}
