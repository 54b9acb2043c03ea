// The headers are also valid C++17: they compile without a warning, and a program links against the C symbols.
#include "kvtide.h"
#include "kvtide_cuda.h"
#include "kvtide_paged.h"

static_assert(sizeof(kvt_status) == 4 && sizeof(kvt_level) == 4, "codes are 32 bits wide in both languages");

int main() {
    kvt_options options{};
    options.struct_size = sizeof options;
    options.abi_version = KVT_ABI_VERSION;
    kvt_client *client = nullptr;
    const kvt_status status = kvt_attach(&options, &client);
    return status == KVT_EINVAL && client == nullptr ? 0 : 1;
}
