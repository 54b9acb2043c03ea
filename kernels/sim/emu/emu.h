// The SIMT emulator: a block's threads are fibers on one thread of the host. Blocks begin in a random order, and two at a time run in
// turns.
//
// Between synchronisation points, and sometimes at a load or store, a seeded generator picks the next thread to run, so a kernel
// that relies on an unsynchronised order breaks here. Shared memory is tracked byte by byte (shadow.cpp): races, and reads of bytes
// that were never written or are still in flight. Every other address must be in memory that the driver knows (access.cpp). The
// first fault ends the launch; its text names kernel, block and thread.
//
// Files: fiber.cpp stacks and switching; block.cpp a block's life and its deadlocks; sync.cpp barriers and warps; matrix.cpp
// ldmatrix and mma; copy.cpp cp.async; access.cpp entry points of instrumented code, and atomics; shadow.cpp shared memory;
// touched.cpp the memory that a launch touches; blocks.cpp its order between blocks; fault.cpp faults, signals and undefined behaviour; launch.cpp the registry and the driver's entry. No file depends on the
// driver's API.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct uint3 {
    uint32_t x, y, z;
};
#include "../../cuda/lib/emulator.h"

namespace emu {

constexpr uint32_t THREADS_MAX = 1024;
constexpr uint32_t WARP = 32;
constexpr uint32_t WARPS_MAX = THREADS_MAX / WARP;
// Shared memory of a block: the limit of compute capability 9.0 (CUDA C++ Programming Guide, "Compute Capabilities").
constexpr uint32_t SHARED_MAX = 227 * 1024;
// Space for it with gaps between arrays.
constexpr uint32_t ARENA_BYTES = 256 * 1024;
constexpr uint32_t STACK_BYTES = 128 * 1024;
constexpr uint32_t BARRIERS = 16;
constexpr uint32_t STATICS_MAX = 64;
constexpr uint32_t COPIES_MAX = 4096;

// Reason why a launch ended early. The driver maps it to CUDA's codes.
enum Fault : uint32_t {
    FAULT_NONE,
    FAULT_ADDRESS,     // a load or store outside the kernel's memory
    FAULT_MISALIGNED,  // an address that is not a multiple of the access size
    FAULT_RACE,        // memory without a barrier, or fences, between accesses, or read before it was written
    FAULT_DEADLOCK,    // threads wait for others that never arrive
    FAULT_DIVERGENT,   // threads arrive at different collectives
    FAULT_TRAP,        // the kernel trapped, or undefined behaviour
    FAULT_SHAPE,       // grid, block or shared memory beyond the limits
};

enum class State : uint8_t { READY, WAITING, DONE };
enum class Wait : uint8_t { NONE, BARRIER, WARP };

enum class Collective : uint8_t { SYNC, SHUFFLE, VOTE, LDMATRIX, MMA };

struct Block;

struct Copy {
    unsigned char* to;
    const unsigned char* from;
    uint16_t bytes, given;
    uint32_t group;
    bool done;
};

// When this thread last synchronised with others, in the block's count of synchronisations.
struct Met {
    uint32_t block;        // all threads of the block
    uint32_t warp;         // its whole warp
    uint32_t lanes_when;   // some lanes of its warp
    uint32_t lanes;        // mask of those lanes
    uint32_t warps_when;   // some warps, at a named barrier
    uint32_t warps;        // mask of those warps
};

template <class T>
struct List {
    T* all;
    uint32_t count, room;
};

// A thread's atomic operation on a word, after its fence: what the fence covers is visible to those that acquire it.
struct Release {
    uint32_t older;  // on the same word, plus one
    uint32_t block, id, warp, when;
    Met met;
};

// A thread's atomic operation on a word that has releases, and its next fence; 0 if there was none yet.
struct Acquisition {
    const void* word;
    uint32_t newest, id, fenced_when;
    bool superseded;  // its thread has acquired the word again, and passed that on
};

struct Fiber {
    void* sp;
    char* stack_low;
    char* stack_high;
    uint3 index;
    uint32_t id, lane, warp;
    State state;
    Wait wait;
    // Place of its wait.
    KvtPlace place;
    uint32_t mask;      // lanes of a collective
    uint32_t barrier;   // number of a barrier
    Collective what;
    uint32_t kind;
    // Input and output of a collective.
    uint64_t in[4];
    float acc[4];
    uint32_t out[4];
    // Loads and stores until another thread runs.
    uint32_t budget;
    Met met;
    // The same at its last fence; 0 if there was none.
    Met fenced;
    uint32_t fenced_when;
    uint32_t copy_first, copy_count;  // its queue in Block::copies
    uint32_t group_open, group_done;
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack;
#endif
};

struct Meeting {  // lanes of a warp that gather at one collective
    uint32_t mask, arrived;
    Collective what;
    uint32_t kind;
};

struct Static {
    const void* key;
    uint32_t offset, bytes;
};

struct Range {
    uint64_t low, high;
    bool host;
};

constexpr uint32_t PAGE_BYTES = 4096;
constexpr uint32_t PAGE_WORDS = PAGE_BYTES / 4;

// Who wrote a word of memory: the block's number in the grid plus one, and the thread and time as in shadow.cpp.
struct Cell {
    uint32_t block, stamp;
};

// Accesses of a launch to a page of memory.
struct Page {
    uint64_t at;  // address / PAGE_BYTES
    uint64_t read[PAGE_BYTES / 64];  // a bit for each byte
    uint64_t written[PAGE_BYTES / 64];
    // For each word its writer, and the newest release by an atomic operation on it, plus one. Allocated when needed, and kept for
    // later launches.
    bool has_cells, has_newest;
    Cell* cells;
    uint32_t* newest;
};

constexpr uint32_t RECENT = 256;

struct Touched {
    Page** all;
    uint32_t count, room;
    uint32_t* slots;       // hash table: index in `all` plus one, or 0
    Page* recent[RECENT];  // some of them, by their number modulo RECENT
};

// Request of the driver, and functions that it provides.
struct Launch {
    const KvtKernel* kernel;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes;
    const void* params;
    uint64_t seed;
    // Finds the device's allocation or the registered host range that contains an address; false if there is none.
    bool (*find)(uint32_t device, uint64_t address, Range* range);
    uint32_t device;
    // Called before a word of host memory is written atomically: a host may read it.
    void (*publish)(const void* context);
    const void* context;
    // Changes when ranges are removed: earlier results are invalid then.
    const uint64_t* generation;
};

struct Outcome {
    Fault fault;
    const void* pc;  // of the faulting load or store, if known
    bool read_words;  // a word was read that hosts or streams may write
    char text[480];
};

// State of a launch that its blocks share.
struct Grid {
    Touched touched;
    bool published;
    bool checked;  // whether memory between blocks is checked
    List<Release> releases;
    uint64_t steps;  // over releases
};

// A block that runs. A host thread keeps two, from its first launch until it ends.
struct Block {
    void* main_sp;
    Fiber* current;
    Fiber fibers[THREADS_MAX];
    uint16_t ready[THREADS_MAX];
    uint32_t ready_count, threads, done_count;
    uint32_t turn;  // pauses until another block runs; 0: there is no other
    Meeting meetings[WARPS_MAX][WARP];
    uint32_t barrier_arrived[BARRIERS];
    uint32_t barrier_warps[BARRIERS];
    uint32_t barrier_expected[BARRIERS];
    KvtPlace barrier_place[BARRIERS];
    KvtReduce barrier_kind[BARRIERS];
    uint32_t barrier_true[BARRIERS];
    uint32_t meetings_held;  // the clock of Met

    uint3 index, dim, grid;
    const Launch* launch;
    uint64_t random;
    uint64_t spins;  // loads of words that other blocks or hosts may change, in this block

    unsigned char* arena;  // shared memory with gaps
    uint32_t dynamic_bytes, arena_used, static_bytes;
    Static statics[STATICS_MAX];
    uint32_t static_count;
    uint32_t* written;  // shadow: last writer of a byte, and time
    uint32_t* seen;     // shadow: readers since then

    Copy* copies;  // COPIES_MAX per thread, allocated on first use

    Range found[4];
    uint32_t found_next;
    uint64_t generation;
    Range library;
    Grid* grid_state;
    uint32_t number;              // in the grid, plus one
    List<Acquisition> acquired;   // by its threads
    List<const void*> passed_on;  // words whose acquisitions an atomic operation has passed on

    Outcome* outcome;
    char* stacks;
    char* landing;  // where execution continues after a signal
    bool own_signal_stack;
    uint32_t signal_fault;
    const char* signal_what;
    const void* signal_pc;
    const void* signal_address;
#if defined(__SANITIZE_ADDRESS__)
    void* main_fake_stack;
    const void* main_stack;
    size_t main_stack_bytes;
#endif
};

// The block that this host thread executes; null outside a launch.
extern __thread Block* the_block __attribute__((tls_model("initial-exec")));

inline uint64_t draw(Block& block) {  // xorshift64*
    block.random ^= block.random >> 12;
    block.random ^= block.random << 25;
    block.random ^= block.random >> 27;
    return block.random * 0x2545f4914f6cdd1dull;
}
inline uint32_t draw_below(Block& block, uint32_t bound) {
    return static_cast<uint32_t>(((draw(block) >> 32) * bound) >> 32);
}

// fiber.cpp
void make_stacks(Block& block);
void free_stacks(Block& block);
void prepare_fiber(Block& block, Fiber& fiber);
void share_stacks(Block& block, const Block& with);  // the upper half of its stacks
void leave_block(Block& block);  // out of the block
void leave(Block& block);       // from the current thread to the next ready one, or out of the block
void run_ready(Block& block);   // from outside, until no thread is ready
[[noreturn]] void abandon(Block& block);
// block.cpp
void thread_main(Block& block);
void begin_block(Block& block);
bool run_block(Block& block, uint32_t turn);  // returns whether it has ended
inline void make_ready(Block& block, Fiber& fiber) {
    fiber.state = State::READY;
    fiber.wait = Wait::NONE;
    block.ready[block.ready_count++] = static_cast<uint16_t>(fiber.id);
}
void pause(Block& block);  // stays ready, lets others run
// sync.cpp
// Executes a collective for the lanes of `mask`; `lanes` are the warp's.
typedef void (*CarryOut)(Block& block, Fiber* lanes, uint32_t mask);
void meet(Block& block, Fiber& fiber, Collective what, uint32_t kind, uint32_t mask, const KvtPlace& place, CarryOut carry_out);
// shadow.cpp
void shadow_reset(Block& block);
void shared_write(Block& block, const void* p, uint32_t bytes, const void* pc);
void shared_read(Block& block, const void* p, uint32_t bytes, const void* pc);
void shared_atomic(Block& block, const void* p, uint32_t bytes, const void* pc);
// A thread and a time in one number, which grows with the time.
constexpr uint32_t WHO_BITS = 11;
constexpr uint32_t TIME_MAX = (1u << (32 - WHO_BITS)) - 1;
inline uint32_t stamp_of(uint32_t id, uint32_t time) { return time << WHO_BITS | (id + 1); }
inline uint32_t who_of(uint32_t stamp) { return stamp & ((1u << WHO_BITS) - 1); }
// Returns whether a thread of `warp` with these synchronisations synchronised with the stamp's thread after its time.
bool met_before(const Met& met, uint32_t warp, uint32_t stamp);
void shared_copy_begins(Block& block, const void* p, uint32_t bytes);
void shared_copy_ends(Block& block, const void* p, uint32_t bytes);
inline bool in_shared(const Block& block, const void* p) {
    return static_cast<size_t>(static_cast<const unsigned char*>(p) - block.arena) < ARENA_BYTES;
}
void make_arena(Block& block);
void free_arena(Block& block);
// access.cpp
// Returns the range of device or host memory; null for parameters and constants.
const Range* check_global(Block& block, const void* p, uint32_t bytes, bool write, const void* pc);
// blocks.cpp
void check_blocks(Block& block, Page& page, uint32_t at, uint32_t bytes, bool write, const void* pc);
void fence(Block& block);
void synchronise(Block& block, const void* word, bool reads, bool writes);
void free_blocks(Grid& grid);
// touched.cpp
Page& find_page(Touched& touched, uint64_t at);
inline Page& page_of(Touched& touched, uint64_t at) {
    Page* recent = touched.recent[at % RECENT];
    return recent != nullptr && recent->at == at ? *recent : find_page(touched, at);
}
inline void touch(Block& block, const void* p, uint32_t bytes, bool write, const void* pc) {
    Grid& grid = *block.grid_state;
    const uint64_t end = reinterpret_cast<uint64_t>(p) + bytes;
    for (uint64_t low = end - bytes, here = 0; low < end; low += here) {
        const uint64_t first = low % 64;
        here = end - low < 64 - first ? end - low : 64 - first;
        Page& page = page_of(grid.touched, low / PAGE_BYTES);
        const uint32_t at = low % PAGE_BYTES;
        if (grid.checked && (write || page.has_cells)) {
            check_blocks(block, page, at, static_cast<uint32_t>(here), write, pc);
        }
        (write ? page.written : page.read)[at / 64] |= (~0ull >> (64 - here)) << first;
    }
}
void touched_reset(Touched& touched);
void free_touched(Touched& touched);
// copy.cpp
void free_queues(Block& block);
// fault.cpp
// Records the launch's first fault; `fail` also aborts the block, from one of its threads.
__attribute__((format(printf, 4, 5))) void note_fault(Block& block, Fault fault, const void* pc, const char* format, ...);
[[noreturn]] __attribute__((format(printf, 4, 5))) void fail(Block& block, Fault fault, const void* pc, const char* format, ...);
void catch_signals(Block& block);
void release_signals(Block& block);

}  // namespace emu

extern "C" {
const KvtKernel* kvt_emu_find(const char* name);
// Runs a launch to its end on this thread. Returns 0, or the fault described by `outcome`.
uint32_t kvt_emu_launch(const emu::Launch* launch, emu::Outcome* outcome);
bool kvt_emu_copy(void* to, const void* from, size_t bytes);
bool kvt_emu_fill(void* to, int byte, size_t bytes);
// Returns what the last launch of this thread touched.
const emu::Page* const* kvt_emu_touched(uint32_t* count);
// Returns how often kernels have loaded a word that hosts or other blocks may write.
uint64_t kvt_emu_word_loads();
// Frees memory kept by this thread's launches.
void kvt_emu_release();
}
