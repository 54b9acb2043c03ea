// Stacks and switching. A switch saves only the registers that the calling convention preserves.
#include "emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" void kvt_emu_switch(void** save, void* load);

#if defined(__x86_64__)
asm(R"(
    .text
    .p2align 4
    .hidden kvt_emu_switch
    .globl kvt_emu_switch
    .type kvt_emu_switch, @function
kvt_emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size kvt_emu_switch, .-kvt_emu_switch
)");
constexpr size_t SAVED_WORDS = 6;
constexpr size_t RETURN_WORD = 6;
#elif defined(__aarch64__)
asm(R"(
    .text
    .p2align 4
    .hidden kvt_emu_switch
    .globl kvt_emu_switch
    .type kvt_emu_switch, %function
kvt_emu_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size kvt_emu_switch, .-kvt_emu_switch
)");
constexpr size_t SAVED_WORDS = 20;
constexpr size_t RETURN_WORD = 11;
#else
#error "the emulator's fiber switch knows x86-64 and aarch64"
#endif

namespace emu {

__thread Block* the_block __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

constexpr size_t GUARD_BYTES = 4096;

void enter_thread() {
#if defined(__SANITIZE_ADDRESS__)
    Block& at = *the_block;
    const void* bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (at.main_stack == nullptr) {
        at.main_stack = bottom;
        at.main_stack_bytes = bytes;
    }
#endif
    thread_main(*the_block);
    leave(*the_block);
    abort();  // a thread that has ended is never ready again
}

}  // namespace

void make_stacks(Block& block) {
    size_t each = STACK_BYTES + GUARD_BYTES;
    void* all = mmap(nullptr, each * THREADS_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) {
        perror("kvt_emu: stacks for 1024 threads");
        abort();
    }
    block.stacks = static_cast<char*>(all);
    for (uint32_t i = 0; i < THREADS_MAX; ++i) {
        char* low = block.stacks + i * each;
        if (mprotect(low, GUARD_BYTES, PROT_NONE) != 0) {
            perror("kvt_emu: guard of a stack");
            abort();
        }
        block.fibers[i].stack_low = low + GUARD_BYTES;
        block.fibers[i].stack_high = low + each;
    }
}

void share_stacks(Block& block, const Block& with) {
    for (uint32_t i = 0; i < THREADS_MAX / 2; ++i) {
        block.fibers[i].stack_low = with.fibers[THREADS_MAX / 2 + i].stack_low;
        block.fibers[i].stack_high = with.fibers[THREADS_MAX / 2 + i].stack_high;
    }
}

void free_stacks(Block& block) { munmap(block.stacks, (STACK_BYTES + GUARD_BYTES) * THREADS_MAX); }

void prepare_fiber(Block&, Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
    // The previous user of the stack may have left it without unwinding.
    ASAN_UNPOISON_MEMORY_REGION(fiber.stack_low, STACK_BYTES);
#endif
    // As if enter_thread's caller had called the switch: the return address above the saved registers, and the stack aligned as
    // after a call. Stacks begin at different cache lines: with one page offset for all they would share a few lines of the
    // first-level cache.
    void** top = reinterpret_cast<void**>(fiber.stack_high - 64 - fiber.id % 48 * 320);
    *--top = nullptr;
#if defined(__x86_64__)
    top -= SAVED_WORDS + 1;
#else
    *--top = nullptr;
    top -= SAVED_WORDS;
#endif
    for (size_t i = 0; i < SAVED_WORDS; ++i) {
        top[i] = nullptr;
    }
    top[RETURN_WORD] = reinterpret_cast<void*>(enter_thread);
    fiber.sp = top;
#if defined(__SANITIZE_ADDRESS__)
    fiber.fake_stack = nullptr;
#endif
}

// Switches to `to`, or out of the block if it is null; returns when another thread switches back.
static void go(Block& block, Fiber* from, Fiber* to) {
    void** save = from != nullptr ? &from->sp : &block.main_sp;
    void* load = to != nullptr ? to->sp : block.main_sp;
    block.current = to;
#if defined(__SANITIZE_ADDRESS__)
    void** fake = from == nullptr ? &block.main_fake_stack : from->state == State::DONE ? nullptr : &from->fake_stack;
    if (to != nullptr) {
        __sanitizer_start_switch_fiber(fake, to->stack_low, STACK_BYTES);
    } else {
        __sanitizer_start_switch_fiber(fake, block.main_stack, block.main_stack_bytes);
    }
#endif
    kvt_emu_switch(save, load);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from != nullptr ? from->fake_stack : block.main_fake_stack, nullptr, nullptr);
#endif
}

static Fiber* next_ready(Block& block) {
    if (block.ready_count == 0) {
        return nullptr;
    }
    uint32_t at = draw_below(block, block.ready_count);
    Fiber& fiber = block.fibers[block.ready[at]];
    block.ready[at] = block.ready[--block.ready_count];
    return &fiber;
}

void leave(Block& block) {
    Fiber* from = block.current;
    Fiber* to = next_ready(block);
    if (to != from) {
        go(block, from, to);
    }
}

void leave_block(Block& block) { go(block, block.current, nullptr); }

void run_ready(Block& block) {
    if (Fiber* first = next_ready(block)) {
        go(block, nullptr, first);
    }
}

void abandon(Block& block) {
    Fiber* from = block.current;
    from->state = State::DONE;
    go(block, from, nullptr);
    abort();  // an abandoned block is never resumed
}

}  // namespace emu
