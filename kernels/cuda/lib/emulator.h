// Interface of the host version to the SIMT emulator (kernels/sim/emu): one C function for each instruction that needs other
// threads or memory rules. Both sides include this file, so they cannot drift apart.
//
// Values are passed in registers, not through pointers, so that a kernel's accumulators stay in registers, where they need no
// checks.
#pragma once

struct KvtFour {
    uint32_t r[4];
};
struct KvtFourF {
    float d[4];
};
// A source location, for reports.
struct KvtPlace {
    const char* file;
    int line;
};

enum KvtShuffle { KVT_SHUFFLE_INDEX, KVT_SHUFFLE_UP, KVT_SHUFFLE_DOWN, KVT_SHUFFLE_XOR };
enum KvtVote { KVT_VOTE_BALLOT, KVT_VOTE_ANY, KVT_VOTE_ALL };
enum KvtReduce { KVT_REDUCE_NONE, KVT_REDUCE_OR, KVT_REDUCE_AND, KVT_REDUCE_COUNT };
enum KvtElement { KVT_ELEMENT_F16, KVT_ELEMENT_BF16 };
enum KvtAtomic {
    KVT_ATOMIC_ADD,
    KVT_ATOMIC_ADD_F32,
    KVT_ATOMIC_MIN,
    KVT_ATOMIC_MIN_SIGNED,
    KVT_ATOMIC_MAX,
    KVT_ATOMIC_MAX_SIGNED,
    KVT_ATOMIC_AND,
    KVT_ATOMIC_OR,
    KVT_ATOMIC_XOR,
    KVT_ATOMIC_EXCHANGE,
    KVT_ATOMIC_COMPARE
};

extern "C" {
// Constant during a thread's life, so that the compiler may reuse the results.
__attribute__((const)) uint3 kvt_emu_thread_index();
__attribute__((const)) uint3 kvt_emu_block_index();
__attribute__((const)) uint3 kvt_emu_block_dim();
__attribute__((const)) uint3 kvt_emu_grid_dim();
__attribute__((const)) unsigned char* kvt_emu_dynamic_shared();
// Memory for the static array with the key `key`.
void* kvt_emu_static_shared(const void* key, size_t bytes, size_t align);

int kvt_emu_barrier(uint32_t id, uint32_t threads, KvtReduce kind, int predicate, KvtPlace place);
void kvt_emu_sync_warp(uint32_t mask, KvtPlace place);
uint32_t kvt_emu_shuffle(KvtShuffle kind, uint32_t mask, uint32_t value, uint32_t lane, int width, KvtPlace place);
uint32_t kvt_emu_vote(KvtVote kind, uint32_t mask, int predicate, KvtPlace place);
KvtFour kvt_emu_ldmatrix(const void* row, int count, int transposed, KvtPlace place);
KvtFourF kvt_emu_mma(KvtElement element, float d0, float d1, float d2, float d3, uint64_t a01, uint64_t a23, uint64_t b01,
                     KvtPlace place);

void kvt_emu_copy_async(void* shared, const void* from, uint32_t bytes, uint32_t given);
void kvt_emu_copy_commit();
void kvt_emu_copy_wait(int groups);

uint64_t kvt_emu_atomic(KvtAtomic what, void* p, uint32_t bytes, uint64_t value, uint64_t compare);
// Loads and stores of words that hosts and other blocks share; with 0 they are relaxed.
uint64_t kvt_emu_load(const void* p, uint32_t bytes, int acquire);
void kvt_emu_store(void* p, uint32_t bytes, uint64_t value, int release);
// For the device, or with 0 for the block only.
void kvt_emu_fence(int device);
// Lets other threads run: a loop that waits for another thread must call a function that does.
void kvt_emu_yield();
[[noreturn]] void kvt_emu_trap(KvtPlace place);

// A kernel as registered by KVT_KERNEL; `next` links the list.
struct KvtKernel {
    const char* name;
    uint32_t params_bytes;
    uint32_t threads_max;
    void (*run)(const void* params);
    KvtKernel* next;
};
void kvt_emu_register(KvtKernel* kernel);
}
