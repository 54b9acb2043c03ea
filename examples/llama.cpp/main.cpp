// Runs one turn of a conversation with llama.cpp. Its state is stored in kvtide between turns. `kvtide-llama MODEL.gguf SOCKET|- TOKENS` reads the
// conversation so far (token ids) from stdin, decodes TOKENS more and prints one line of JSON. README.md describes the fields and the format.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>

#include "llama.h"
#include "snapshots.h"

namespace {

constexpr uint32_t CONTEXT_TOKENS = 8192;

struct Failed : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct FreeModel {
    void operator()(llama_model *model) const { llama_model_free(model); }
};
struct FreeContext {
    void operator()(llama_context *context) const { llama_free(context); }
};

double ms_since(std::chrono::steady_clock::time_point began) {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
}

// Return a hash of everything that changes a state: the model file, llama.cpp's state format and build, and this program's context settings.
Sha256::Digest fingerprint(const char *model, const llama_context_params &params) {
    Sha256 hash;
    std::ifstream file(model, std::ios::binary);
    std::vector<char> chunk(1 << 20);
    while (file.read(chunk.data(), static_cast<std::streamsize>(chunk.size())), file.gcount() > 0) hash.add(chunk.data(), file.gcount());
    if (!file.eof()) throw Failed(std::string("cannot read the model ") + model);
    const std::array<int32_t, 5> setup{LLAMA_STATE_SEQ_VERSION, params.type_k, params.type_v, params.flash_attn_type, static_cast<int32_t>(Snapshots::STEP_TOKENS)};
    hash.add(setup.data(), sizeof setup);
    const std::string system = llama_print_system_info();
    hash.add(system.data(), system.size());
    return hash.digest();
}

class Conversation {
  public:
    explicit Conversation(const char *path) {
        llama_model_params model_params = llama_model_default_params();
        model_.reset(llama_model_load_from_file(path, model_params));
        if (!model_) throw Failed(std::string("llama.cpp cannot load ") + path);
        params_ = llama_context_default_params();
        params_.n_ctx = CONTEXT_TOKENS;
        params_.n_batch = params_.n_ubatch = Snapshots::STEP_TOKENS;
        params_.n_threads = params_.n_threads_batch = 1;
        params_.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        context_.reset(llama_init_from_model(model_.get(), params_));
        if (!context_) throw Failed("llama.cpp cannot create a context");
    }

    const llama_context_params &params() const { return params_; }

    // Replace the sequence by a stored state.
    void restore(const std::vector<uint8_t> &state) {
        if (llama_state_seq_set_data(context_.get(), state.data(), state.size(), 0) == 0) throw Failed("llama.cpp rejected a stored state");
    }

    // Truncate the sequence to its first `tokens` tokens and return its state.
    std::vector<uint8_t> state(size_t tokens) {
        if (!llama_memory_seq_rm(llama_get_memory(context_.get()), 0, static_cast<llama_pos>(tokens), -1)) {
            throw Failed("cannot truncate this model's memory to " + std::to_string(tokens) + " tokens");
        }
        std::vector<uint8_t> bytes(llama_state_seq_get_size(context_.get(), 0));
        bytes.resize(llama_state_seq_get_data(context_.get(), bytes.data(), bytes.size(), 0));
        if (bytes.empty()) throw Failed("llama.cpp returned an empty state");
        return bytes;
    }

    // Append and decode tokens; `at` is the length of the sequence before them. Batches end at multiples of STEP_TOKENS, so a turn with a restored
    // state uses the same batches, and rounds equally, as one without. Afterwards the logits are those of the last token.
    void decode(std::span<const int32_t> tokens, size_t at) {
        for (size_t done = 0; done < tokens.size();) {
            const size_t portion = std::min(Snapshots::STEP_TOKENS - (at + done) % Snapshots::STEP_TOKENS, tokens.size() - done);
            std::vector<llama_token> some(tokens.begin() + done, tokens.begin() + done + portion);
            const int32_t status = llama_decode(context_.get(), llama_batch_get_one(some.data(), static_cast<int32_t>(portion)));
            if (status != 0) throw Failed("llama_decode failed with status " + std::to_string(status));
            done += portion;
            decoded += portion;
        }
    }

    // Return the most likely next token.
    int32_t next() const {
        const float *logits = llama_get_logits_ith(context_.get(), -1);
        const int32_t count = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
        return static_cast<int32_t>(std::max_element(logits, logits + count) - logits);
    }

    // Tokens decoded so far.
    size_t decoded = 0;

  private:
    std::unique_ptr<llama_model, FreeModel> model_;
    llama_context_params params_{};
    std::unique_ptr<llama_context, FreeContext> context_;
};

int turn(const char *model, const std::string &socket, size_t answer_tokens) {
    std::vector<int32_t> tokens;
    for (int32_t token; std::cin >> token;) tokens.push_back(token);
    if (tokens.empty() || tokens.size() + answer_tokens > CONTEXT_TOKENS) throw Failed("the conversation is empty, or it and its answer exceed " + std::to_string(CONTEXT_TOKENS) + " tokens");
    Conversation conversation(model);
    std::unique_ptr<Snapshots> snapshots;
    if (socket != "-") snapshots = std::make_unique<Snapshots>(socket, fingerprint(model, conversation.params()));

    const auto began = std::chrono::steady_clock::now();
    size_t restored = 0;
    if (snapshots) {
        if (const auto found = snapshots->longest(tokens)) {
            conversation.restore(found->state);
            restored = found->tokens;
        }
    }
    const double restore_ms = ms_since(began);
    conversation.decode(std::span(tokens).subspan(restored), restored);
    const size_t prefilled = conversation.decoded;
    const double first_token_ms = ms_since(began);

    std::vector<int32_t> answer;
    while (answer.size() < answer_tokens) {
        answer.push_back(conversation.next());
        tokens.push_back(answer.back());
        // Decode the last token too: its KV is part of the stored state.
        conversation.decode(std::span(tokens).last(1), tokens.size() - 1);
    }
    const size_t held = tokens.size() / Snapshots::STEP_TOKENS * Snapshots::STEP_TOKENS;
    size_t kept = 0, state_bytes = 0;
    if (snapshots && held > restored) {
        const std::vector<uint8_t> state = conversation.state(held);
        state_bytes = state.size();
        kept = snapshots->keep(std::span(tokens).first(held), state) ? held : 0;
    }
    std::printf("{\"restored\": %zu, \"prefilled\": %zu, \"kept\": %zu, \"state_bytes\": %zu, \"restore_ms\": %.2f, \"first_token_ms\": %.2f, \"answer\": [", restored,
                prefilled, kept, state_bytes, restore_ms, first_token_ms);
    for (size_t i = 0; i < answer.size(); i++) std::printf("%s%d", i == 0 ? "" : ", ", answer[i]);
    std::puts("]}");
    return 0;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 4) {
        std::fprintf(stderr, "usage: %s MODEL.gguf SOCKET|- TOKENS < TOKEN_IDS\n", argv[0]);
        return 2;
    }
    llama_log_set([](ggml_log_level level, const char *text, void *) { if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr); }, nullptr);
    try {
        return turn(argv[1], argv[2], std::strtoul(argv[3], nullptr, 10));
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
        return 1;
    }
}
