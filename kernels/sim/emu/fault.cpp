// Faults: their text, the signals that cause them, and undefined behaviour (-fsanitize=undefined calls the handlers below).
#include "emu.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

namespace emu {
namespace {

constexpr size_t LANDING_BYTES = 64 * 1024;

struct sigaction before_segv, before_bus, before_fpe;

// Runs in place of the thread that received a signal, on a separate stack.
[[noreturn]] void land() {
    Block& block = *the_block;
    fail(block, static_cast<Fault>(block.signal_fault), block.signal_pc, "%s at %p", block.signal_what, block.signal_address);
}

const struct sigaction& before(int number) {
    return number == SIGSEGV ? before_segv : number == SIGBUS ? before_bus : before_fpe;
}

// Set while this thread copies for the driver; the copy may access memory that is gone.
__thread bool copying __attribute__((tls_model("initial-exec"))) = false;
__thread jmp_buf copy_failed __attribute__((tls_model("initial-exec")));

[[noreturn]] void leave_copy() { longjmp(copy_failed, 1); }

void on_signal(int number, siginfo_t* info, void* opaque) {
    Block* block = the_block;
    if (copying && number != SIGFPE) {
        // On the copy's own stack, below its red zone: it does not return.
        ucontext_t* context = static_cast<ucontext_t*>(opaque);
#if defined(__x86_64__)
        greg_t& sp = context->uc_mcontext.gregs[REG_RSP];
        sp = ((sp - 256) & ~static_cast<greg_t>(15)) - 8;
        context->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(leave_copy);
#else
        context->uc_mcontext.sp = (context->uc_mcontext.sp - 256) & ~15ull;
        context->uc_mcontext.pc = reinterpret_cast<uint64_t>(leave_copy);
#endif
        return;
    }
    if (block == nullptr || block->current == nullptr) {
        // Not a fault of a kernel: the previous handler decides. The default action is restored and takes effect when the
        // instruction runs again.
        const struct sigaction& old = before(number);
        if ((old.sa_flags & SA_SIGINFO) != 0) {
            old.sa_sigaction(number, info, opaque);
        } else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) {
            old.sa_handler(number);
        } else {
            sigaction(number, &old, nullptr);
        }
        return;
    }
    ucontext_t* context = static_cast<ucontext_t*>(opaque);
    block->signal_fault = number == SIGFPE ? FAULT_TRAP : FAULT_ADDRESS;
    block->signal_what = number == SIGFPE ? "an integer division by zero" : "memory that is not mapped, or a thread's stack at its end,";
    block->signal_address = info->si_addr;
    char* top = block->landing + LANDING_BYTES - 64;
#if defined(__x86_64__)
    block->signal_pc = reinterpret_cast<const void*>(context->uc_mcontext.gregs[REG_RIP]);
    context->uc_mcontext.gregs[REG_RSP] = reinterpret_cast<greg_t>(top - 8);
    context->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(land);
#else
    block->signal_pc = reinterpret_cast<const void*>(context->uc_mcontext.pc);
    context->uc_mcontext.sp = reinterpret_cast<uint64_t>(top);
    context->uc_mcontext.pc = reinterpret_cast<uint64_t>(land);
#endif
}

pthread_once_t once = PTHREAD_ONCE_INIT;
bool installed = false;

void install() {
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    installed = sigaction(SIGSEGV, &action, &before_segv) == 0 && sigaction(SIGBUS, &action, &before_bus) == 0 &&
                sigaction(SIGFPE, &action, &before_fpe) == 0;
}

}  // namespace

// Installs handlers for the process once, and alternate stacks once per thread.
void catch_signals(Block& block) {
    pthread_once(&once, install);
    stack_t stack = {};
    void* both = mmap(nullptr, 2 * LANDING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!installed || both == MAP_FAILED || sigaltstack(nullptr, &stack) != 0) {
        perror("kvt_emu: signals of kernels");
        abort();
    }
    block.landing = static_cast<char*>(both);
    if ((stack.ss_flags & SS_DISABLE) != 0) {
        stack = {};
        stack.ss_sp = block.landing + LANDING_BYTES;
        stack.ss_size = LANDING_BYTES;
        if (sigaltstack(&stack, nullptr) != 0) {
            perror("kvt_emu: a stack for signals");
            abort();
        }
        block.own_signal_stack = true;
    }
}

void release_signals(Block& block) {
    if (block.own_signal_stack) {
        stack_t none = {};
        none.ss_flags = SS_DISABLE;
        sigaltstack(&none, nullptr);
    }
    munmap(block.landing, 2 * LANDING_BYTES);
}

static void note(Block& block, Fault fault, const void* pc, const char* format, va_list arguments) {
    Outcome& outcome = *block.outcome;
    if (outcome.fault != FAULT_NONE) {
        return;
    }
    outcome.fault = fault;
    outcome.pc = pc;
    int used = snprintf(outcome.text, sizeof(outcome.text), "%s: block (%u,%u,%u)", block.launch->kernel->name, block.index.x,
                        block.index.y, block.index.z);
    if (block.current != nullptr) {
        const Fiber& fiber = *block.current;
        used += snprintf(outcome.text + used, sizeof(outcome.text) - used, " thread %u (warp %u, lane %u)", fiber.id, fiber.warp,
                         fiber.lane);
    }
    used += snprintf(outcome.text + used, sizeof(outcome.text) - used, ": ");
    vsnprintf(outcome.text + used, sizeof(outcome.text) - used, format, arguments);
}

void note_fault(Block& block, Fault fault, const void* pc, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    note(block, fault, pc, format, arguments);
    va_end(arguments);
}

void fail(Block& block, Fault fault, const void* pc, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    note(block, fault, pc, format, arguments);
    va_end(arguments);
    abandon(block);
}

}  // namespace emu

using namespace emu;

extern "C" {

// Copies bytes for the driver; returns false if memory on either side is gone.
bool kvt_emu_copy(void* to, const void* from, size_t bytes) {
    pthread_once(&once, install);
    if (_setjmp(copy_failed) != 0) {
        copying = false;
        return false;
    }
    copying = true;
    memmove(to, from, bytes);
    copying = false;
    return true;
}

bool kvt_emu_fill(void* to, int byte, size_t bytes) {
    pthread_once(&once, install);
    if (_setjmp(copy_failed) != 0) {
        copying = false;
        return false;
    }
    copying = true;
    memset(to, byte, bytes);
    copying = false;
    return true;
}

void kvt_emu_trap(KvtPlace place) {
    fail(*the_block, FAULT_TRAP, nullptr, "the kernel trapped (%s:%d)", place.file, place.line);
}

// First argument from the compiler: the source location.
struct KvtUndefined {
    const char* file;
    uint32_t line, column;
};

#define UNDEFINED(name, text)                                                                                    \
    void __ubsan_handle_##name(const KvtUndefined* at) {                                                         \
        if (the_block == nullptr || the_block->current == nullptr) {                                             \
            fprintf(stderr, "kvt_emu: " text " (%s:%u)\n", at->file, at->line);                                  \
            abort();                                                                                             \
        }                                                                                                        \
        fail(*the_block, FAULT_TRAP, __builtin_return_address(0), text " (%s:%u:%u)", at->file, at->line, at->column); \
    }
UNDEFINED(add_overflow_abort, "a signed sum overflows")
UNDEFINED(sub_overflow_abort, "a signed difference overflows")
UNDEFINED(mul_overflow_abort, "a signed product overflows")
UNDEFINED(negate_overflow_abort, "a negation overflows")
UNDEFINED(divrem_overflow_abort, "a division by zero, or one that overflows")
UNDEFINED(shift_out_of_bounds_abort, "a shift by more bits than the type has, or of a negative")
UNDEFINED(out_of_bounds_abort, "an index beyond its array")
UNDEFINED(load_invalid_value_abort, "a value that its type does not have")
UNDEFINED(float_cast_overflow_abort, "a float that its integer type cannot hold")
UNDEFINED(vla_bound_not_positive_abort, "an array of no elements")
UNDEFINED(pointer_overflow_abort, "a pointer that leaves the address space")
UNDEFINED(builtin_unreachable, "a place that was promised unreachable")
UNDEFINED(missing_return, "a function without its return value")
UNDEFINED(nonnull_arg_abort, "a null argument")
UNDEFINED(invalid_builtin_abort, "a builtin without an answer for this argument")

// A null pointer, or a pointer with the wrong alignment for its type.
struct KvtMismatch {
    KvtUndefined at;
    const void* type;
    uint8_t log_alignment, kind;
};
void __ubsan_handle_type_mismatch_v1_abort(const KvtMismatch* what, uint64_t pointer) {
    Fault fault = pointer == 0 ? FAULT_ADDRESS : FAULT_MISALIGNED;
    fail(*the_block, fault, __builtin_return_address(0), "%p for a type of alignment %u (%s:%u:%u)",
         reinterpret_cast<const void*>(pointer), 1u << what->log_alignment, what->at.file, what->at.line, what->at.column);
}
}
