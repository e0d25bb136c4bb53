/* SPDX-License-Identifier: Apache-2.0
 * streams.c - streams of a CUDA program as queues of xmm.h, from C99: adopted, used, forgotten, and what is refused.
 *
 * Needs two CUDA devices, the software driver's or real ones.
 */
#define _POSIX_C_SOURCE 200809L

#include <xmm.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static int failures = 0;
static int checks = 0;

#define CHECK(condition) check((condition), #condition, __LINE__)
#define REFUSED(call, expected) CHECK((call) == (expected))

static void check(int is_true, const char* what, int line) {
    ++checks;
    if (!is_true) {
        ++failures;
        fprintf(stderr, "streams.c:%d: %s (last error: %s)\n", line, what, xmm_last_error());
    }
}

/* ---- the driver, as a program that knows nothing of xmm uses it */

typedef void* stream;
typedef void* context;

static struct {
    int (*init)(unsigned);
    int (*retain)(context*, int);
    int (*set_current)(context);
    int (*create)(stream*, unsigned);
    int (*destroy)(stream);
    int (*synchronize)(stream);
    int (*query)(stream);
    int (*fill)(unsigned long long, unsigned char, size_t, stream);
    int (*copy_out)(void*, unsigned long long, size_t, stream);
    int (*begin_capture)(stream, int);
    int (*end_capture)(stream, void**);
    int (*destroy_graph)(void*);
} cu;

static int find_driver(void) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    const struct {
        void* to;
        const char* name;
    } all[] = {{&cu.init, "cuInit"},
               {&cu.retain, "cuDevicePrimaryCtxRetain"},
               {&cu.set_current, "cuCtxSetCurrent"},
               {&cu.create, "cuStreamCreate"},
               {&cu.destroy, "cuStreamDestroy_v2"},
               {&cu.synchronize, "cuStreamSynchronize"},
               {&cu.query, "cuStreamQuery"},
               {&cu.fill, "cuMemsetD8Async"},
               {&cu.copy_out, "cuMemcpyDtoHAsync_v2"},
               {&cu.begin_capture, "cuStreamBeginCapture_v2"},
               {&cu.end_capture, "cuStreamEndCapture"},
               {&cu.destroy_graph, "cuGraphDestroy"}};
    for (size_t i = 0; library != NULL && i < sizeof all / sizeof *all; ++i) {
        void* found = dlsym(library, all[i].name);
        if (found == NULL) {
            fprintf(stderr, "streams.c: no %s\n", all[i].name);
            return 0;
        }
        memcpy(all[i].to, &found, sizeof found);
    }
    return library != NULL && cu.init(0) == 0;
}

static context contexts[2];
static int32_t devices[2];

static xmm_queue_description described(xmm_queue queue) {
    xmm_queue_description about;
    memset(&about, 0, sizeof about);
    about.struct_size = sizeof about;
    CHECK(xmm_describe_queue(queue, &about) == XMM_OK);
    return about;
}
static int is_all(const unsigned char* bytes, size_t count, unsigned char wanted) {
    for (size_t i = 0; i < count; ++i) {
        if (bytes[i] != wanted) {
            return 0;
        }
    }
    return 1;
}

/* What only the software driver has: null on a real one. */
static struct {
    int (*fail)(const char*, unsigned, unsigned, int);
    int (*delay)(const char*, unsigned);
    unsigned long long (*calls)(const char*);
} soft;

static void find_soft_driver(void) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    const struct {
        void* to;
        const char* name;
    } all[] = {{&soft.fail, "xmmSoftCudaFail"},
               {&soft.delay, "xmmSoftCudaDelay"},
               {&soft.calls, "xmmSoftCudaCalls"}};
    for (size_t i = 0; library != NULL && i < sizeof all / sizeof *all; ++i) {
        void* found = dlsym(library, all[i].name);
        memcpy(all[i].to, &found, sizeof found);
    }
}

/* ---- */

static void adopted_and_forgotten(void) {
    stream users = NULL;
    stream others = NULL;
    xmm_queue queue = NULL;
    xmm_queue again = NULL;
    xmm_queue other = NULL;
    CHECK(cu.create(&users, 1) == 0 && cu.create(&others, 0) == 0);
    CHECK(xmm_queue_adopt(users, &queue) == XMM_OK && queue != NULL && queue != users);
    CHECK(xmm_queue_adopt(users, &again) == XMM_OK && again == queue);
    CHECK(xmm_queue_adopt(others, &other) == XMM_OK && other != queue);
    const xmm_queue_description about = described(queue);
    CHECK(about.native == users && about.is_native && about.is_adopted);
    CHECK(about.node == devices[0]);

    REFUSED(xmm_queue_destroy(queue), XMM_INVALID_ARGUMENT);
    CHECK(xmm_queue_forget(queue) == XMM_OK);
    CHECK(xmm_queue_synchronize(queue) == XMM_OK); /* adopted twice */
    void* block = xmm_malloc(100, XMM_DEFAULT_NODE, queue);
    CHECK(block != NULL);
    CHECK(xmm_queue_forget(queue) == XMM_OK);
    REFUSED(xmm_queue_forget(queue), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_queue_synchronize(queue), XMM_INVALID_ARGUMENT);
    CHECK(xmm_malloc(100, XMM_DEFAULT_NODE, queue) == NULL);
    CHECK(xmm_last_status() == XMM_INVALID_ARGUMENT);
    CHECK(xmm_free(block) == XMM_OK);
    CHECK(cu.query(users) == 0); /* the stream is as it was */

    CHECK(xmm_queue_adopt(users, &again) == XMM_OK && described(again).native == users);
    CHECK(xmm_queue_forget(again) == XMM_OK && xmm_queue_forget(other) == XMM_OK);
    CHECK(cu.destroy(users) == 0 && cu.destroy(others) == 0);
}

/* xmm's work and the program's are in one order. */
static void in_order(void) {
    const size_t bytes = 8 * MIB;
    unsigned char* pattern = malloc(bytes);
    unsigned char* seen = malloc(bytes);
    memset(pattern, 7, bytes);
    stream users = NULL;
    xmm_queue queue = NULL;
    CHECK(cu.create(&users, 1) == 0 && xmm_queue_adopt(users, &queue) == XMM_OK);
    unsigned char* block = xmm_malloc(bytes, XMM_DEFAULT_NODE, queue);
    CHECK(block != NULL);
    const unsigned long long at = (unsigned long long)(uintptr_t)block;
    CHECK(xmm_copy(block, pattern, bytes, queue) == XMM_OK);
    CHECK(cu.fill(at + bytes / 2, 9, bytes / 2, users) == 0);
    CHECK(cu.copy_out(seen, at, bytes, users) == 0);
    CHECK(xmm_free(block) == XMM_OK); /* what was submitted still has it */
    void* next = xmm_malloc(bytes, XMM_DEFAULT_NODE, queue);
    CHECK(next == block); /* and comes before what is next */
    CHECK(cu.fill(at, 1, bytes, users) == 0);
    CHECK(xmm_queue_synchronize(queue) == XMM_OK);
    CHECK(is_all(seen, bytes / 2, 7) && is_all(seen + bytes / 2, bytes / 2, 9));

    unsigned char* zeroed = xmm_calloc(1, 4096, XMM_DEFAULT_NODE, queue);
    CHECK(zeroed != NULL &&
          cu.copy_out(seen, (unsigned long long)(uintptr_t)zeroed, 4096, users) == 0);
    CHECK(cu.synchronize(users) == 0 && is_all(seen, 4096, 0));
    xmm_block about;
    about.struct_size = sizeof about;
    CHECK(xmm_find_block(zeroed + 5, &about) == XMM_OK && about.queue == queue);
    CHECK(xmm_free(zeroed) == XMM_OK && xmm_free(next) == XMM_OK);

    /* The other way round: the stream of a queue that xmm made. */
    xmm_queue own = NULL;
    CHECK(xmm_queue_create(XMM_DEFAULT_NODE, &own) == XMM_OK);
    const xmm_queue_description ours = described(own);
    CHECK(ours.is_native && !ours.is_adopted && ours.native != NULL && ours.node == devices[0]);
    block = xmm_malloc(4096, XMM_DEFAULT_NODE, own);
    CHECK(cu.fill((unsigned long long)(uintptr_t)block, 3, 4096, ours.native) == 0);
    CHECK(xmm_copy(seen, block, 4096, own) == XMM_OK && xmm_queue_synchronize(own) == XMM_OK);
    CHECK(is_all(seen, 4096, 3));
    CHECK(xmm_free(block) == XMM_OK);
    REFUSED(xmm_queue_forget(own), XMM_INVALID_ARGUMENT);
    CHECK(xmm_queue_destroy(own) == XMM_OK);
    CHECK(xmm_queue_forget(queue) == XMM_OK && cu.destroy(users) == 0);
    free(pattern);
    free(seen);
}

static void special_streams(void) {
    stream const legacy_by_name = (stream)(uintptr_t)1;
    stream const per_thread = (stream)(uintptr_t)2;
    xmm_queue queue = NULL;
    xmm_queue same = NULL;
    xmm_queue second = NULL;
    CHECK(xmm_queue_adopt(NULL, &queue) == XMM_OK && queue != NULL);
    const xmm_queue_description about = described(queue);
    CHECK(about.native == NULL && about.is_native && about.is_adopted && about.node == devices[0]);
    CHECK(xmm_queue_adopt(legacy_by_name, &same) == XMM_OK && same == queue);
    CHECK(cu.set_current(contexts[1]) == 0);
    CHECK(xmm_queue_adopt(NULL, &second) == XMM_OK && second != queue);
    CHECK(described(second).node == devices[1]);
    void* block = xmm_malloc(100, devices[1], second);
    CHECK(block != NULL && xmm_free(block) == XMM_OK);

    xmm_queue none = &checks;
    CHECK(cu.set_current(NULL) == 0);
    REFUSED(xmm_queue_adopt(NULL, &none), XMM_UNSUPPORTED); /* no context, no legacy stream */
    CHECK(cu.set_current(contexts[0]) == 0);
    REFUSED(xmm_queue_adopt(per_thread, &none), XMM_UNSUPPORTED);
    REFUSED(xmm_queue_adopt(NULL, NULL), XMM_INVALID_ARGUMENT);
    CHECK(none == &checks);
    CHECK(xmm_queue_forget(queue) == XMM_OK && xmm_queue_forget(same) == XMM_OK);
    REFUSED(xmm_queue_forget(queue), XMM_INVALID_ARGUMENT);
    CHECK(xmm_queue_forget(second) == XMM_OK);
}

static void captured(void) {
    stream users = NULL;
    xmm_queue queue = NULL;
    void* graph = NULL;
    CHECK(cu.create(&users, 1) == 0 && xmm_queue_adopt(users, &queue) == XMM_OK);
    void* block = xmm_malloc(4096, XMM_DEFAULT_NODE, queue);
    char byte = 1;
    CHECK(cu.begin_capture(users, 0) == 0);
    REFUSED(xmm_copy(block, &byte, 1, queue), XMM_BUSY);
    REFUSED(xmm_queue_synchronize(queue), XMM_BUSY);
    REFUSED(xmm_queue_forget(queue), XMM_BUSY);
    /* What the stream does to the block cannot be waited for now, so the block stays. */
    xmm_queue other = NULL;
    CHECK(xmm_queue_create(XMM_DEFAULT_NODE, &other) == XMM_OK);
    CHECK(xmm_realloc(block, 8192, XMM_DEFAULT_NODE, NULL) == NULL);
    CHECK(xmm_last_status() == XMM_BUSY);
    CHECK(xmm_realloc(block, 8192, XMM_DEFAULT_NODE, other) == NULL);
    CHECK(xmm_last_status() == XMM_BUSY);
    CHECK(xmm_usable_size(block) == 4096);
    xmm_queue again = NULL;
    CHECK(xmm_queue_adopt(users, &again) == XMM_OK && again == queue);
    CHECK(xmm_queue_forget(again) == XMM_OK);
    CHECK(cu.end_capture(users, &graph) == 0 && graph != NULL && cu.destroy_graph(graph) == 0);
    CHECK(xmm_copy(block, &byte, 1, queue) == XMM_OK);
    block = xmm_realloc(block, 8192, XMM_DEFAULT_NODE, other);
    CHECK(block != NULL && xmm_free(block) == XMM_OK);
    CHECK(xmm_queue_destroy(other) == XMM_OK && xmm_queue_forget(queue) == XMM_OK);
    CHECK(cu.destroy(users) == 0);
}

/* A block whose zeroes fail half way goes back when none of them is under way any more. */
static void zeroes_that_fail(void) {
    if (soft.fail == NULL) {
        return;
    }
    const unsigned skipped = 2; /* of four, since frames beside each other are zeroed at once */
    const unsigned long long before = soft.calls("memset");
    CHECK(soft.delay("memset", 20000) == 0);
    CHECK(soft.fail("cuMemsetD32Async", skipped, 1, 2) == 0);
    CHECK(xmm_calloc(1, 100 * MIB, devices[0], NULL) == NULL);
    CHECK(soft.calls("memset") == before + skipped);
    CHECK(soft.fail("cuMemsetD32Async", 0, 0, 0) == 0 && soft.delay("memset", 0) == 0);
    void* block = xmm_calloc(1, 100 * MIB, devices[0], NULL);
    CHECK(block != NULL && xmm_free(block) == XMM_OK);
}

int main(void) {
    if (!find_driver() || cu.retain(&contexts[0], 0) != 0 || cu.retain(&contexts[1], 1) != 0) {
        printf("skipped: no CUDA driver with two devices\n0 passed, 0 failed, 1 skipped\n");
        return 0;
    }
    CHECK(cu.set_current(contexts[0]) == 0);
    int32_t nodes[16];
    size_t count = 0;
    CHECK(xmm_list_nodes(nodes, 16, &count) == XMM_OK && count >= 3 && count <= 16);
    for (size_t i = 0; i < count; ++i) {
        xmm_node_description about;
        about.struct_size = sizeof about;
        CHECK(xmm_describe_node(nodes[i], &about) == XMM_OK);
        if (about.is_device) { /* in the order of the driver's numbers */
            devices[0] = nodes[i];
            devices[1] = nodes[i + 1];
            break;
        }
    }
    adopted_and_forgotten();
    in_order();
    special_streams();
    captured();
    find_soft_driver();
    zeroes_that_fail();
    printf("%d checks, %d failures\n", checks, failures);
    return failures == 0 ? 0 : 1;
}
