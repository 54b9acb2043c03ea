/* The device resources of an engine: driver functions by name, a stream, pinned memory, graphs. The driver is the library in
 * KVTIDE_LIBCUDA, the same that kvtide uses. */
#ifndef KVTIDE_TESTS_DEVICE_H
#define KVTIDE_TESTS_DEVICE_H

#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include "check.h"
#include "kvtide_cuda.h"

#define CUDA(call)                                                                                \
    do {                                                                                          \
        const int got_ = (call);                                                                  \
        if (got_ != 0) {                                                                          \
            fprintf(stderr, "%s:%d: %s ended with CUDA error %d\n", __FILE__, __LINE__, #call, got_); \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

enum { CUDA_NOT_READY = 600, DEVICE_WAIT_S = 300 };

typedef struct gpu {
    int (*copy)(uint64_t, uint64_t, size_t, void *);
    int (*query)(void *);
    int (*destroy)(void *);
    int (*unregister)(void *);
    int (*capture)(void *, unsigned);
    int (*captured)(void *, void **);
    int (*instantiate)(void **, void *, unsigned long long);
    int (*launch)(void *, void *);
    int (*destroy_exec)(void *);
    int (*destroy_graph)(void *);
    void *stream;
    uint8_t *pinned; /* copies of pages go through its first half, one at a time; the second half is the program's */
} gpu;

enum { PINNED_BYTES = 1 << 20, PINNED_OWN = PINNED_BYTES / 2 };

static inline void *gpu_symbol(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) fprintf(stderr, "the driver lacks %s\n", name);
    CHECK(found != NULL);
    return found;
}

/* ISO C has no cast from an object's pointer to a function's. */
#define GPU_TAKE(to, name)                                  \
    do {                                                    \
        void *found_ = gpu_symbol(library, name);           \
        memcpy(&(to), &found_, sizeof found_);              \
    } while (0)

static inline gpu gpu_open(void) {
    const char *path = getenv("KVTIDE_LIBCUDA");
    void *library = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW);
    CHECK(library != NULL);
    int (*init)(unsigned), (*retain)(void **, int), (*push)(void *), (*create)(void **, unsigned, int);
    int (*host_register)(void *, size_t, unsigned);
    gpu g;
    GPU_TAKE(init, "cuInit");
    GPU_TAKE(retain, "cuDevicePrimaryCtxRetain");
    GPU_TAKE(push, "cuCtxPushCurrent_v2");
    GPU_TAKE(create, "cuStreamCreateWithPriority");
    GPU_TAKE(host_register, "cuMemHostRegister_v2");
    GPU_TAKE(g.copy, "cuMemcpyAsync");
    GPU_TAKE(g.query, "cuStreamQuery");
    GPU_TAKE(g.destroy, "cuStreamDestroy_v2");
    GPU_TAKE(g.unregister, "cuMemHostUnregister");
    GPU_TAKE(g.capture, "cuStreamBeginCapture_v2");
    GPU_TAKE(g.captured, "cuStreamEndCapture");
    GPU_TAKE(g.instantiate, "cuGraphInstantiateWithFlags");
    GPU_TAKE(g.launch, "cuGraphLaunch");
    GPU_TAKE(g.destroy_exec, "cuGraphExecDestroy");
    GPU_TAKE(g.destroy_graph, "cuGraphDestroy");
    void *context;
    CUDA(init(0));
    CUDA(retain(&context, 0));
    CUDA(push(context));
    CUDA(create(&g.stream, 1 /* not ordered with the default stream */, 0));
    g.pinned = mmap(NULL, PINNED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(g.pinned != MAP_FAILED);
    CUDA(host_register(g.pinned, PINNED_BYTES, 3 /* portable, mapped */));
    return g;
}

/* Wait until all work of the stream is done. */
static inline void gpu_wait(const gpu *g) {
    struct timespec now, since;
    clock_gettime(CLOCK_MONOTONIC, &since);
    int state;
    while ((state = g->query(g->stream)) == CUDA_NOT_READY) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        CHECK(now.tv_sec - since.tv_sec < DEVICE_WAIT_S);
        sched_yield();
    }
    CUDA(state);
}

static inline void gpu_close(gpu *g) {
    gpu_wait(g);
    CUDA(g->unregister(g->pinned));
    CUDA(g->destroy(g->stream));
    CHECK(munmap(g->pinned, PINNED_BYTES) == 0);
}

static inline void gpu_put(const gpu *g, uint64_t to, const void *from, size_t bytes) {
    CHECK(bytes <= PINNED_OWN);
    gpu_wait(g);
    memcpy(g->pinned, from, bytes);
    CUDA(g->copy(to, (uint64_t)(uintptr_t)g->pinned, bytes, g->stream));
}

static inline void gpu_get(const gpu *g, void *to, uint64_t from, size_t bytes) {
    CHECK(bytes <= PINNED_OWN);
    gpu_wait(g);
    CUDA(g->copy((uint64_t)(uintptr_t)g->pinned, from, bytes, g->stream));
    gpu_wait(g);
    memcpy(to, g->pinned, bytes);
}

#endif
