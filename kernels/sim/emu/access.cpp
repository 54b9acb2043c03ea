// Functions that instrumented kernels call at each load and store (with the names of -fsanitize=thread; this is the runtime), and
// atomics.
#include "emu.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

namespace emu {
namespace {

// Maximum loads of shared words by a thread in a launch. A thread that exceeds it waits for a value that never comes.
constexpr uint64_t SPINS_MAX = 1u << 26;

// Loads of shared words in all launches.
uint64_t word_loads;

bool within(const Range& range, uint64_t low, uint64_t high) { return low >= range.low && high <= range.high; }

const Range* find_global(Block& block, const void* p, uint32_t bytes, bool write, const void* pc) {
    uint64_t low = reinterpret_cast<uint64_t>(p), high = low + bytes;
    uint64_t params = reinterpret_cast<uint64_t>(block.launch->params);
    if (within({params, params + block.launch->kernel->params_bytes, false}, low, high) || within(block.library, low, high)) {
        if (write) {
            fail(block, FAULT_ADDRESS, pc, "writes %u bytes at %p, which are parameters or constants", bytes, p);
        }
        return nullptr;
    }
    Range range;
    if (!block.launch->find(block.launch->device, low, &range)) {
        fail(block, FAULT_ADDRESS, pc, "%s %u bytes at %p: neither device memory nor registered host memory", write ? "writes" : "reads",
             bytes, p);
    }
    if (!within(range, low, high)) {
        fail(block, FAULT_ADDRESS, pc, "%s %u bytes at %p, which end %lu bytes beyond the allocation", write ? "writes" : "reads", bytes,
             p, static_cast<unsigned long>(high - range.high));
    }
    Range& kept = block.found[block.found_next++ % 4];
    kept = range;
    return &kept;
}

void tick(Block& block, uint32_t cost) {
    Fiber& fiber = *block.current;
    if (fiber.budget <= cost) {
        pause(block);
    } else {
        fiber.budget -= cost;
    }
}

template <bool WRITE>
inline __attribute__((always_inline)) void access(void* p, uint32_t bytes, uint32_t align, const void* pc) {
    Block* at = the_block;
    if (at == nullptr) {
        return;  // constructors of the library
    }
    Block& block = *at;
    Fiber& fiber = *block.current;
    if (static_cast<size_t>(static_cast<char*>(p) - fiber.stack_low) < STACK_BYTES) {
        return;
    }
    if (reinterpret_cast<uint64_t>(p) % align != 0) {
        fail(block, FAULT_MISALIGNED, pc, "%s %u bytes at %p", WRITE ? "writes" : "reads", bytes, p);
    }
    if (in_shared(block, p)) {
        if (WRITE) {
            shared_write(block, p, bytes, pc);
        } else {
            shared_read(block, p, bytes, pc);
        }
    } else {
        if (check_global(block, p, bytes, WRITE, pc) != nullptr) {
            touch(block, p, bytes, WRITE, pc);
        }
    }
    tick(block, 1);
}

template <class T>
struct SignedOf;
template <>
struct SignedOf<uint32_t> {
    typedef int32_t Type;
};
template <>
struct SignedOf<uint64_t> {
    typedef int64_t Type;
};

template <class T>
T change(KvtAtomic what, T* p, T value, T compare) {
    typedef typename SignedOf<T>::Type Signed;
    switch (what) {
        case KVT_ATOMIC_ADD: return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
        case KVT_ATOMIC_AND: return __atomic_fetch_and(p, value, __ATOMIC_RELAXED);
        case KVT_ATOMIC_OR: return __atomic_fetch_or(p, value, __ATOMIC_RELAXED);
        case KVT_ATOMIC_XOR: return __atomic_fetch_xor(p, value, __ATOMIC_RELAXED);
        case KVT_ATOMIC_EXCHANGE: return __atomic_exchange_n(p, value, __ATOMIC_RELAXED);
        case KVT_ATOMIC_COMPARE:
            __atomic_compare_exchange_n(p, &compare, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
            return compare;
        default: break;
    }
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    for (;;) {
        T next = old;
        switch (what) {
            case KVT_ATOMIC_MIN: next = value < old ? value : old; break;
            case KVT_ATOMIC_MAX: next = old < value ? value : old; break;
            case KVT_ATOMIC_MIN_SIGNED: next = static_cast<Signed>(value) < static_cast<Signed>(old) ? value : old; break;
            case KVT_ATOMIC_MAX_SIGNED: next = static_cast<Signed>(old) < static_cast<Signed>(value) ? value : old; break;
            default: {
                float sum, term;
                memcpy(&sum, &old, 4);
                memcpy(&term, &value, 4);
                sum += term;
                memcpy(&next, &sum, 4);
            }
        }
        if (__atomic_compare_exchange_n(p, &old, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            return old;
        }
    }
}

void check_word(Block& block, const void* p, uint32_t bytes, bool read, bool write, const void* pc) {
    if (reinterpret_cast<uint64_t>(p) % bytes != 0) {
        fail(block, FAULT_MISALIGNED, pc, "a word of %u bytes at %p", bytes, p);
    }
    if (in_shared(block, p)) {
        shared_atomic(block, p, bytes, pc);
        return;
    }
    const Range* range = check_global(block, p, bytes, write, pc);
    if (range != nullptr) {
        synchronise(block, p, read, write);
        if (write && range->host && !block.grid_state->published) {
            block.grid_state->published = true;
            block.launch->publish(block.launch->context);
        }
    }
}

}  // namespace

const Range* check_global(Block& block, const void* p, uint32_t bytes, bool write, const void* pc) {
    uint64_t generation = __atomic_load_n(block.launch->generation, __ATOMIC_ACQUIRE);
    if (generation != block.generation) {
        memset(block.found, 0, sizeof(block.found));
        block.generation = generation;
    }
    uint64_t low = reinterpret_cast<uint64_t>(p);
    for (const Range& range : block.found) {
        if (within(range, low, low + bytes)) {
            return &range;
        }
    }
    return find_global(block, p, bytes, write, pc);
}

}  // namespace emu

using namespace emu;

extern "C" {

#define ACCESS(bytes, align)                                                                                          \
    void __tsan_read##bytes(void* p) { access<false>(p, bytes, align, __builtin_return_address(0)); }                 \
    void __tsan_write##bytes(void* p) { access<true>(p, bytes, align, __builtin_return_address(0)); }                 \
    void __tsan_volatile_read##bytes(void* p) { access<false>(p, bytes, align, __builtin_return_address(0)); }        \
    void __tsan_volatile_write##bytes(void* p) { access<true>(p, bytes, align, __builtin_return_address(0)); }        \
    void __tsan_unaligned_read##bytes(void* p) { access<false>(p, bytes, 1, __builtin_return_address(0)); }           \
    void __tsan_unaligned_write##bytes(void* p) { access<true>(p, bytes, 1, __builtin_return_address(0)); }           \
    void __tsan_unaligned_volatile_read##bytes(void* p) { access<false>(p, bytes, 1, __builtin_return_address(0)); }  \
    void __tsan_unaligned_volatile_write##bytes(void* p) { access<true>(p, bytes, 1, __builtin_return_address(0)); }
ACCESS(1, 1)
ACCESS(2, 2)
ACCESS(4, 4)
ACCESS(8, 8)
// The compiler guarantees alignment 8 for 16 bytes; -fsanitize=alignment checks types that require 16.
ACCESS(16, 8)
#undef ACCESS
void __tsan_read_range(void* p, unsigned long bytes) {
    access<false>(p, static_cast<uint32_t>(bytes), 1, __builtin_return_address(0));
}
void __tsan_write_range(void* p, unsigned long bytes) {
    access<true>(p, static_cast<uint32_t>(bytes), 1, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

// C functions that g++ generates for structure copies and loops in kernels (host.cuh renames them).
void* kvt_emu_memcpy(void* to, const void* from, size_t bytes) {
    if (bytes != 0) {
        access<false>(const_cast<void*>(from), static_cast<uint32_t>(bytes), 1, __builtin_return_address(0));
        access<true>(to, static_cast<uint32_t>(bytes), 1, __builtin_return_address(0));
    }
    return memcpy(to, from, bytes);
}
void* kvt_emu_memmove(void* to, const void* from, size_t bytes) {
    if (bytes != 0) {
        access<false>(const_cast<void*>(from), static_cast<uint32_t>(bytes), 1, __builtin_return_address(0));
        access<true>(to, static_cast<uint32_t>(bytes), 1, __builtin_return_address(0));
    }
    return memmove(to, from, bytes);
}
void* kvt_emu_memset(void* to, int byte, size_t bytes) {
    if (bytes != 0) {
        access<true>(to, static_cast<uint32_t>(bytes), 1, __builtin_return_address(0));
    }
    return memset(to, byte, bytes);
}

uint64_t kvt_emu_atomic(KvtAtomic what, void* p, uint32_t bytes, uint64_t value, uint64_t compare) {
    Block& block = *the_block;
    check_word(block, p, bytes, true, true, __builtin_return_address(0));
    uint64_t old = bytes == 4 ? change<uint32_t>(what, static_cast<uint32_t*>(p), static_cast<uint32_t>(value),
                                                 static_cast<uint32_t>(compare))
                              : change<uint64_t>(what, static_cast<uint64_t*>(p), value, compare);
    tick(block, 8);
    return old;
}

uint64_t kvt_emu_load(const void* p, uint32_t bytes, int acquire) {
    Block& block = *the_block;
    check_word(block, p, bytes, true, false, __builtin_return_address(0));
    if (acquire != 0) {
        fence(block);
    }
    block.outcome->read_words = true;
    block.spins += 1;
    __atomic_fetch_add(&word_loads, 1, __ATOMIC_RELAXED);
    if (block.spins % 1024 == 0) {
        sched_yield();
    }
    if (block.spins == SPINS_MAX) {
        fail(block, FAULT_DEADLOCK, __builtin_return_address(0), "waits for a word at %p; two blocks run at a time here", p);
    }
    uint64_t word = bytes == 4 ? __atomic_load_n(static_cast<const uint32_t*>(p), __ATOMIC_ACQUIRE)
                               : __atomic_load_n(static_cast<const uint64_t*>(p), __ATOMIC_ACQUIRE);
    tick(block, 16);
    return word;
}

uint64_t kvt_emu_word_loads() { return __atomic_load_n(&word_loads, __ATOMIC_RELAXED); }

void kvt_emu_store(void* p, uint32_t bytes, uint64_t value, int release) {
    Block& block = *the_block;
    if (release != 0) {
        fence(block);
    }
    check_word(block, p, bytes, false, true, __builtin_return_address(0));
    if (bytes == 4) {
        __atomic_store_n(static_cast<uint32_t*>(p), static_cast<uint32_t>(value), __ATOMIC_RELEASE);
    } else {
        __atomic_store_n(static_cast<uint64_t*>(p), value, __ATOMIC_RELEASE);
    }
    tick(block, 8);
}

void kvt_emu_fence(int device) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (device != 0) {
        fence(*the_block);
    }
}

void kvt_emu_yield() {
    pause(*the_block);
    // A thread that pauses waits for the host or for another stream: leave them the processor.
    usleep(20);
}
}
