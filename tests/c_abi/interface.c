/* SPDX-License-Identifier: Apache-2.0
 * interface.c - every function of xmm.h, called from C99 on software devices: what it does and what it refuses.
 *
 * interface FOLDER, with XMM_CONF=soft_devices:2,soft_bytes:268435456,soft_link:400000000
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, beside what POSIX has */

#include <xmm.h>

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static int failures = 0;
static int checks = 0;

#define CHECK(condition) check((condition), #condition, __LINE__)
/* The call fails, with this status, and its text names the function. */
#define REFUSED(call, expected)               \
    do {                                      \
        xmm_clear_error();                    \
        (void)(call);                         \
        refused(#call, (expected), __LINE__); \
    } while (0)

static void check(int is_true, const char* what, int line) {
    ++checks;
    if (!is_true) {
        ++failures;
        fprintf(stderr, "interface.c:%d: %s (last error: %s)\n", line, what, xmm_last_error());
    }
}
static void refused(const char* call, xmm_status expected, int line) {
    char function[64];
    size_t length = strcspn(call, "(");
    memcpy(function, call, length);
    function[length] = '\0';
    ++checks;
    if (xmm_last_status() != expected || strncmp(xmm_last_error(), function, length) != 0 ||
        strstr(xmm_last_error(), xmm_status_name(expected)) == NULL) {
        ++failures;
        fprintf(stderr, "interface.c:%d: %s: status %d, not %d; \"%s\"\n", line, call,
                (int)xmm_last_status(), (int)expected, xmm_last_error());
    }
}

static int32_t device = 0;
static int32_t other_device = 0;
static int32_t host = 0;

static void fill(unsigned char* bytes, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; ++i) {
        bytes[i] = (unsigned char)((i * 31 + seed) >> 3);
    }
}
static int holds(const void* block, const unsigned char* expected, size_t count, xmm_queue queue) {
    unsigned char* seen = malloc(count);
    int is_same = seen != NULL && xmm_copy(seen, block, count, queue) == XMM_OK &&
                  (queue == NULL || xmm_queue_synchronize(queue) == XMM_OK) &&
                  memcmp(seen, expected, count) == 0;
    free(seen);
    return is_same;
}
static xmm_statistics statistics(void) {
    xmm_statistics now;
    memset(&now, 0, sizeof now);
    now.struct_size = sizeof now;
    CHECK(xmm_get_statistics(device, &now) == XMM_OK);
    return now;
}

static void versions_and_errors(void) {
    CHECK(xmm_version() == XMM_VERSION);
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", XMM_VERSION_MAJOR, XMM_VERSION_MINOR,
             XMM_VERSION_PATCH);
    CHECK(strcmp(xmm_version_text(), text) == 0);
    CHECK(xmm_last_status() == XMM_OK);
    CHECK(strcmp(xmm_last_error(), "") == 0);
    for (xmm_status status = XMM_OK; status <= XMM_FAILED; ++status) {
        CHECK(strcmp(xmm_status_name(status), "?") != 0);
    }
    CHECK(strcmp(xmm_status_name(-1), "?") == 0);
    CHECK(strcmp(xmm_status_name(XMM_FAILED + 1), "?") == 0);
}

static void nodes(void) {
    size_t count = 0;
    CHECK(xmm_list_nodes(NULL, 0, &count) == XMM_OK);
    CHECK(count >= 3);
    int32_t numbers[16];
    size_t again = 0;
    CHECK(xmm_list_nodes(numbers, 16, &again) == XMM_OK && again == count);
    int devices = 0;
    for (size_t i = 0; i < count && i < 16; ++i) {
        xmm_node_description about;
        about.struct_size = sizeof about;
        CHECK(xmm_describe_node(numbers[i], &about) == XMM_OK);
        CHECK(about.node == numbers[i] && about.struct_size == sizeof about);
        CHECK(about.limit_bytes <= about.bytes && about.name[0] != '\0');
        if (about.is_device) {
            *(devices++ == 0 ? &device : &other_device) = numbers[i];
            CHECK(about.bytes == 256 * MIB);
        } else {
            host = numbers[i];
            CHECK(devices == 0); /* hosts come first */
        }
    }
    CHECK(devices == 2);
    int32_t first = -7;
    CHECK(xmm_list_nodes(&first, 1, &again) == XMM_OK && first == numbers[0] && again == count);

    xmm_node_description about;
    about.struct_size = sizeof about;
    CHECK(xmm_describe_node(XMM_DEFAULT_NODE, &about) == XMM_OK && about.node == device);
    /* A caller who knows less gets less. */
    memset(&about, 0x5a, sizeof about);
    about.struct_size = offsetof(xmm_node_description, bytes);
    CHECK(xmm_describe_node(device, &about) == XMM_OK && about.node == device);
    CHECK(about.bytes == 0x5a5a5a5a5a5a5a5aULL);
    /* One who knows more is told where the answer ends. */
    struct {
        xmm_node_description about;
        uint64_t of_a_newer_library;
    } more;
    memset(&more, 0x5a, sizeof more);
    more.about.struct_size = sizeof more;
    CHECK(xmm_describe_node(device, &more.about) == XMM_OK && more.about.node == device);
    CHECK(more.about.struct_size == sizeof about);
    CHECK(more.of_a_newer_library == 0x5a5a5a5a5a5a5a5aULL);
    about.struct_size = 0;
    REFUSED(xmm_describe_node(device, &about), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_describe_node(device, NULL), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_describe_node(12345, &about), XMM_UNKNOWN_NODE);
    REFUSED(xmm_list_nodes(numbers, 1, NULL), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_list_nodes(NULL, 1, &count), XMM_INVALID_ARGUMENT);
}

static void blocks(void) {
    const size_t sizes[] = {0, 1, 255, 4096, 32768, 40000, 3 * MIB + 5};
    unsigned char pattern[5000];
    fill(pattern, sizeof pattern, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        unsigned char* block = xmm_malloc(sizes[i], device, NULL);
        CHECK(block != NULL && (uintptr_t)block % 256 == 0);
        CHECK(xmm_usable_size(block) >= sizes[i] && xmm_usable_size(block) > 0);
        xmm_block about;
        about.struct_size = sizeof about;
        CHECK(xmm_find_block(block + sizes[i] / 2, &about) == XMM_OK);
        CHECK(about.base == block && about.bytes == xmm_usable_size(block) && about.node == device);
        CHECK(about.queue == NULL && about.tag == 0);
        const size_t part = sizes[i] < sizeof pattern ? sizes[i] : sizeof pattern;
        CHECK(xmm_copy(block, pattern, part, NULL) == XMM_OK && holds(block, pattern, part, NULL));
        if (sizes[i] > 2) {
            REFUSED(xmm_free(block + 1), XMM_INVALID_ARGUMENT);
            REFUSED(xmm_usable_size(block + 1), XMM_INVALID_ARGUMENT);
        }
        REFUSED(xmm_free_sized(block, about.bytes + 1), XMM_INVALID_ARGUMENT);
        CHECK(xmm_free_sized(block, sizes[i]) == XMM_OK);
        REFUSED(xmm_free(block), XMM_INVALID_ARGUMENT);
        REFUSED(xmm_find_block(block, &about), XMM_NOT_MAPPED);
        CHECK(xmm_usable_size(block) == 0);
    }
    for (size_t alignment = 1; alignment <= 4 * MIB; alignment *= 8) {
        void* block = xmm_aligned_malloc(alignment, 1000, device, NULL);
        CHECK(block != NULL && (uintptr_t)block % (alignment > 256 ? alignment : 256) == 0);
        CHECK(xmm_free(block) == XMM_OK);
    }
    CHECK(xmm_free(NULL) == XMM_OK && xmm_free_on(NULL, NULL) == XMM_OK &&
          xmm_free_sized(NULL, 5) == XMM_OK);
    REFUSED(xmm_aligned_malloc(3, 100, device, NULL), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_aligned_malloc(0, 100, device, NULL), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_malloc(100, 4711, NULL), XMM_UNKNOWN_NODE);
    char figures[128];
    xmm_node_description now = {.struct_size = sizeof now};
    REFUSED(xmm_malloc(4096 * MIB, device, NULL), XMM_NO_MEMORY);
    CHECK(xmm_describe_node(device, &now) == XMM_OK);
    snprintf(figures, sizeof figures,
             "on node %d: %zu bytes asked, %llu used, limit %llu: ", (int)device, 4096 * MIB,
             (unsigned long long)now.used_bytes, (unsigned long long)now.limit_bytes);
    CHECK(strstr(xmm_last_error(), figures) != NULL);
    REFUSED(xmm_malloc(SIZE_MAX, device, NULL), XMM_NO_MEMORY);
    REFUSED(xmm_malloc(SIZE_MAX - 4096, device, NULL), XMM_NO_MEMORY);
    REFUSED(xmm_malloc(100, device, &failures), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_free(&failures), XMM_NOT_MAPPED);
    REFUSED(xmm_record_use(&failures, NULL), XMM_NOT_MAPPED);
    REFUSED(xmm_realloc(&failures, 10, device, NULL), XMM_NOT_MAPPED);
    REFUSED(xmm_find_block(NULL, NULL), XMM_NOT_MAPPED);
    REFUSED(xmm_usable_size(NULL), XMM_NOT_MAPPED);
    void* block = xmm_malloc(100, XMM_DEFAULT_NODE, NULL);
    REFUSED(xmm_find_block(block, NULL), XMM_INVALID_ARGUMENT);
    CHECK(xmm_free(block) == XMM_OK);
}

static void zeroed_and_moved(xmm_queue queue) {
    const size_t bytes = 5 * MIB + 300; /* more than a frame's worth, with an odd end */
    unsigned char* pattern = malloc(bytes);
    unsigned char* zeroes = calloc(1, bytes);
    fill(pattern, bytes, 2);
    const xmm_queue queues[] = {NULL, queue};
    for (int i = 0; i < 2; ++i) {
        xmm_queue line = queues[i];
        /* Twice the same memory: dirty, then zeroed by the device. */
        void* block = xmm_malloc(bytes, device, line);
        CHECK(xmm_copy(block, pattern, bytes, line) == XMM_OK);
        CHECK(xmm_free(block) == XMM_OK);
        block = xmm_calloc(5, bytes / 5, device, line);
        CHECK(block != NULL && holds(block, zeroes, bytes / 5 * 5, line));

        CHECK(xmm_copy(block, pattern, bytes / 2, line) == XMM_OK);
        void* grown = xmm_realloc(block, 3 * bytes, XMM_DEFAULT_NODE, line);
        CHECK(grown != NULL && grown != block && xmm_usable_size(grown) >= 3 * bytes);
        CHECK(holds(grown, pattern, bytes / 2, line));
        CHECK(xmm_usable_size(block) == 0);
        void* same = xmm_realloc(grown, 3 * bytes - 100, device, line);
        CHECK(same == grown);
        void* shrunk = xmm_realloc(grown, 1000, XMM_DEFAULT_NODE, line);
        CHECK(shrunk != NULL && xmm_usable_size(shrunk) < MIB &&
              holds(shrunk, pattern, 1000, line));
        void* moved = xmm_realloc(shrunk, 1000, other_device, NULL);
        xmm_block about;
        about.struct_size = sizeof about;
        CHECK(xmm_find_block(moved, &about) == XMM_OK && about.node == other_device);
        CHECK(holds(moved, pattern, 1000, NULL));
        CHECK(xmm_realloc(moved, 0, XMM_DEFAULT_NODE, NULL) == NULL && xmm_usable_size(moved) == 0);
    }
    void* fresh = xmm_realloc(NULL, 700, device, queue);
    CHECK(fresh != NULL);
    REFUSED(xmm_realloc(fresh, 1024 * MIB, device, queue), XMM_NO_MEMORY);
    CHECK(xmm_usable_size(fresh) >= 700); /* it stays */
    REFUSED(xmm_realloc((char*)fresh + 16, 100, device, queue), XMM_INVALID_ARGUMENT);
    CHECK(xmm_free(fresh) == XMM_OK);
    char on_node[32];
    snprintf(on_node, sizeof on_node, "on node %d: ", (int)device);
    REFUSED(xmm_calloc(SIZE_MAX / 2, 3, device, NULL), XMM_NO_MEMORY);
    CHECK(strstr(xmm_last_error(), on_node) != NULL && strstr(xmm_last_error(), "limit ") != NULL);
    void* nothing = xmm_calloc(0, 8, device, NULL);
    CHECK(nothing != NULL && xmm_free(nothing) == XMM_OK);
    free(pattern);
    free(zeroes);
}

static void queues(void) {
    xmm_queue queue = NULL;
    xmm_queue other = NULL;
    CHECK(xmm_queue_create(device, &queue) == XMM_OK && queue != NULL);
    CHECK(xmm_queue_create(device, &other) == XMM_OK && other != queue);
    zeroed_and_moved(queue);

    /* Its own queue has a block again at once; another one's work is waited for: 32 MiB take 80 ms here. */
    const size_t bytes = 32 * MIB;
    unsigned char* pattern = malloc(bytes);
    unsigned char* dirt = calloc(1, bytes);
    fill(pattern, bytes, 3);
    void* block = xmm_malloc(bytes, device, queue);
    CHECK(xmm_copy(block, pattern, bytes, queue) == XMM_OK);
    CHECK(xmm_free(block) == XMM_OK);
    void* next = xmm_malloc(bytes, device, queue);
    CHECK(next == block);
    CHECK(xmm_queue_synchronize(queue) == XMM_OK);

    CHECK(xmm_copy(next, pattern, bytes, other) == XMM_OK);
    CHECK(xmm_free_on(next, other) == XMM_OK);
    void* third = xmm_malloc(bytes, device, queue);
    CHECK(third != next); /* `other` still writes there */
    CHECK(xmm_queue_synchronize(other) == XMM_OK);

    /* Lent to a second queue, given back on the first: `other` still reads it. */
    CHECK(xmm_copy(third, pattern, bytes, queue) == XMM_OK &&
          xmm_queue_synchronize(queue) == XMM_OK);
    CHECK(xmm_record_use(third, other) == XMM_OK);
    unsigned char* seen = calloc(1, bytes);
    CHECK(xmm_copy(seen, third, bytes, other) == XMM_OK);
    CHECK(xmm_free(third) == XMM_OK);
    for (int i = 0; i < 3; ++i) { /* nobody gets it meanwhile */
        void* writer = xmm_malloc(bytes, device, queue);
        CHECK(writer != NULL && xmm_copy(writer, dirt, bytes, queue) == XMM_OK);
        CHECK(xmm_free(writer) == XMM_OK);
    }
    CHECK(xmm_queue_synchronize(other) == XMM_OK && memcmp(seen, pattern, bytes) == 0);
    CHECK(xmm_queue_synchronize(queue) == XMM_OK);

    /* A block changes its queue while its own one is yet to fill it: the copy comes after that. */
    const xmm_queue takers[] = {other, NULL};
    for (unsigned i = 0; i < 2; ++i) {
        fill(pattern, bytes, 4 + i);
        void* before = xmm_malloc(bytes, device, queue);
        block = xmm_malloc(bytes, device, queue);
        CHECK(xmm_copy(before, dirt, bytes, queue) == XMM_OK);
        CHECK(xmm_copy(block, pattern, bytes, queue) == XMM_OK);
        void* taken = xmm_realloc(block, bytes + MIB, XMM_DEFAULT_NODE, takers[i]);
        CHECK(taken != NULL && taken != block);
        CHECK(holds(taken, pattern, bytes, takers[i]));
        CHECK(xmm_free(taken) == XMM_OK && xmm_free(before) == XMM_OK);
    }

    /* What a copy in the queue's order reads is gone when its turn comes, after 80 ms of another: that is counted. */
    const uint64_t failed_before = xmm_copy_failures();
    void* gone = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    block = xmm_malloc(bytes, device, queue);
    CHECK(gone != MAP_FAILED && xmm_copy(block, pattern, bytes, queue) == XMM_OK);
    CHECK(xmm_copy(block, gone, 4096, queue) == XMM_OK);
    munmap(gone, 4096);
    CHECK(xmm_queue_synchronize(queue) == XMM_OK);
    CHECK(xmm_copy_failures() == failed_before + 1);
    CHECK(holds(block, pattern, bytes, queue) && xmm_free(block) == XMM_OK);

    xmm_block about;
    about.struct_size = sizeof about;
    block = xmm_malloc(77, device, queue);
    CHECK(xmm_find_block(block, &about) == XMM_OK && about.queue == queue);
    REFUSED(xmm_record_use(block, &failures), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_free_on(block, &failures), XMM_INVALID_ARGUMENT);
    CHECK(xmm_record_use(block, NULL) == XMM_OK);
    CHECK(xmm_queue_destroy(other) == XMM_OK);
    REFUSED(xmm_queue_destroy(other), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_queue_synchronize(other), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_malloc(1, device, other), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_copy(pattern, block, 1, other), XMM_INVALID_ARGUMENT);
    CHECK(xmm_queue_destroy(queue) == XMM_OK);
    CHECK(xmm_free(block) == XMM_OK); /* after its queue */
    REFUSED(xmm_queue_create(device, NULL), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_queue_create(host, &queue), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_queue_create(-77, &queue), XMM_UNKNOWN_NODE);
    REFUSED(xmm_copy(pattern, NULL, 10, NULL), XMM_INVALID_ARGUMENT);
    free(pattern);
    free(dirt);
    free(seen);
}

/* Here no queue is a vendor's stream; tests/c_abi/streams.c is where they are. */
static void no_streams(void) {
    xmm_queue queue = NULL;
    xmm_queue_description about;
    CHECK(xmm_queue_create(other_device, &queue) == XMM_OK);
    memset(&about, 0x5a, sizeof about);
    about.struct_size = sizeof about;
    CHECK(xmm_describe_queue(queue, &about) == XMM_OK && about.struct_size == sizeof about);
    CHECK(about.node == other_device && !about.is_adopted && !about.is_native && !about.native);
    memset(&about, 0x5a, sizeof about);
    about.struct_size = offsetof(xmm_queue_description, is_adopted);
    CHECK(xmm_describe_queue(queue, &about) == XMM_OK && about.node == other_device);
    CHECK(about.is_adopted == 0x5a5a5a5aU);
    REFUSED(xmm_describe_queue(queue, NULL), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_describe_queue(NULL, &about), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_describe_queue(&failures, &about), XMM_INVALID_ARGUMENT);
    xmm_queue adopted = &checks;
    REFUSED(xmm_queue_adopt(NULL, &adopted), XMM_UNSUPPORTED);
    REFUSED(xmm_queue_adopt(&failures, &adopted), XMM_UNSUPPORTED);
    CHECK(adopted == &checks);
    REFUSED(xmm_queue_adopt(NULL, NULL), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_queue_forget(queue), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_queue_forget(NULL), XMM_INVALID_ARGUMENT);
    CHECK(xmm_queue_destroy(queue) == XMM_OK);
    REFUSED(xmm_describe_queue(queue, &about), XMM_INVALID_ARGUMENT);
}

static void tags(void) {
    xmm_tag weights = 99;
    xmm_tag activations = 99;
    xmm_tag again = 99;
    CHECK(xmm_tag_create("weights", &weights) == XMM_OK && weights != 0 && weights != 99);
    CHECK(xmm_tag_create("activations", &activations) == XMM_OK && activations != weights);
    CHECK(xmm_tag_create("weights", &again) == XMM_OK && again == weights);
    CHECK(strcmp(xmm_tag_name(weights), "weights") == 0 && strcmp(xmm_tag_name(0), "") == 0);
    CHECK(xmm_tag_name(1000000) == NULL);
    REFUSED(xmm_tag_name(60000), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_tag_create("", &again), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_tag_create(NULL, &again), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_tag_create("weights", NULL), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_tag_create("a name of thirty-two bytes, well!", &again), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_tagged_malloc(60000, 256, 1, device, NULL), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_trim_tag(device, 60000, NULL), XMM_INVALID_ARGUMENT);

    uint64_t freed = 0;
    CHECK(xmm_trim(device, 0, &freed) == XMM_OK);
    const int64_t before = statistics().reserved_bytes.current;
    xmm_node_description node;
    node.struct_size = sizeof node;
    void* kept = xmm_tagged_malloc(weights, 256, 32 * MIB, device, NULL);
    void* gone = xmm_tagged_malloc(activations, 256, 32 * MIB, device, NULL);
    xmm_block about;
    about.struct_size = sizeof about;
    CHECK(xmm_find_block(kept, &about) == XMM_OK && about.tag == weights);
    CHECK(xmm_find_block(gone, &about) == XMM_OK && about.tag == activations);
    CHECK(statistics().reserved_bytes.current - before >= (int64_t)(64 * MIB));
    CHECK(xmm_free(gone) == XMM_OK);
    CHECK(xmm_trim_tag(device, weights, &freed) == XMM_OK && freed == 0);
    CHECK(xmm_trim_tag(device, activations, &freed) == XMM_OK && freed >= 32 * MIB);
    CHECK(xmm_free(kept) == XMM_OK);
    CHECK(xmm_trim(device, 64 * MIB, &freed) == XMM_OK && freed == 0); /* that much may stay */
    CHECK(xmm_describe_node(device, &node) == XMM_OK);
    CHECK(node.used_bytes == (uint64_t)statistics().reserved_bytes.current); /* nothing beside */
    CHECK(xmm_trim(device, 0, NULL) == XMM_OK);
    CHECK(statistics().reserved_bytes.current <= before);
    CHECK(xmm_describe_node(device, &node) == XMM_OK);
    CHECK(node.used_bytes == (uint64_t)statistics().reserved_bytes.current);
    REFUSED(xmm_trim(9999, 0, NULL), XMM_UNKNOWN_NODE);
}

static void* to_give_back = NULL;
static size_t asked_for = 0;
static bool give_back(size_t bytes, void* context) {
    ++*(int*)context;
    asked_for = bytes;
    void* block = to_give_back;
    to_give_back = NULL;
    return block != NULL && xmm_free(block) == XMM_OK;
}

static void out_of_memory(void) {
    int calls = 0;
    CHECK(xmm_trim(device, 0, NULL) == XMM_OK);
    to_give_back = xmm_malloc(128 * MIB, device, NULL);
    CHECK(to_give_back != NULL);
    CHECK(xmm_set_oom_callback(device, give_back, &calls) == XMM_OK);
    void* block = xmm_malloc(160 * MIB, device, NULL);
    CHECK(block != NULL && calls == 1 && asked_for == 160 * MIB);
    const xmm_statistics before = statistics();
    REFUSED(xmm_malloc(200 * MIB, device, NULL), XMM_NO_MEMORY);
    CHECK(calls == 2);
    CHECK(statistics().num_ooms == before.num_ooms + 1);
    CHECK(statistics().allocated_bytes.current == before.allocated_bytes.current);
    CHECK(xmm_set_oom_callback(device, NULL, NULL) == XMM_OK);
    REFUSED(xmm_malloc(200 * MIB, device, NULL), XMM_NO_MEMORY);
    CHECK(calls == 2);
    CHECK(xmm_free(block) == XMM_OK);
    CHECK(xmm_trim(device, 0, NULL) == XMM_OK);

    CHECK(xmm_set_budget(device, 64 * MIB) == XMM_OK);
    REFUSED(xmm_malloc(100 * MIB, device, NULL), XMM_NO_MEMORY);
    CHECK(xmm_set_budget(device, UINT64_MAX) == XMM_OK);
    block = xmm_malloc(100 * MIB, device, NULL);
    CHECK(block != NULL && xmm_free(block) == XMM_OK);
    REFUSED(xmm_set_budget(9999, 1), XMM_UNKNOWN_NODE);
    REFUSED(xmm_set_oom_callback(9999, NULL, NULL), XMM_UNKNOWN_NODE);
}

/* A queue is destroyed, and another one takes over what is free, while a request on the first is served. */
struct exchange {
    xmm_queue leaves;
    xmm_queue comes;
    void* to_give_back;
    void* of_next;
};
static bool exchange_queues(size_t bytes, void* context) {
    struct exchange* all = context;
    (void)bytes;
    if (all->leaves == NULL) {
        return false;
    }
    CHECK(xmm_queue_destroy(all->leaves) == XMM_OK);
    all->leaves = NULL;
    CHECK(xmm_free(all->to_give_back) == XMM_OK);
    all->of_next = xmm_malloc(MIB, device, all->comes);
    return all->of_next != NULL;
}
static void queues_that_end_meanwhile(void) {
    for (int kind = 0; kind < 3; ++kind) {
        struct exchange all = {NULL, NULL, NULL, NULL};
        const int64_t before = statistics().allocation.current;
        CHECK(xmm_queue_create(device, &all.leaves) == XMM_OK);
        CHECK(xmm_queue_create(device, &all.comes) == XMM_OK);
        void* old = xmm_malloc(MIB, device, all.leaves); /* so that it has its shelf */
        unsigned char pattern[100];
        fill(pattern, sizeof pattern, 9);
        CHECK(xmm_copy(old, pattern, sizeof pattern, NULL) == XMM_OK);
        all.to_give_back = xmm_malloc(128 * MIB, device, NULL);
        CHECK(xmm_set_oom_callback(device, exchange_queues, &all) == XMM_OK);
        void* block = NULL;
        if (kind == 0) {
            /* Nobody could use it on that queue any more. */
            REFUSED(xmm_malloc(160 * MIB, device, all.leaves), XMM_INVALID_ARGUMENT);
        } else {
            /* What the device does on the queue is done before that ends. */
            xmm_queue queue = all.leaves;
            block = kind == 1 ? xmm_calloc(1, 160 * MIB, device, queue)
                              : xmm_realloc(old, 160 * MIB, device, queue);
            unsigned char zero[100] = {0};
            CHECK(block != NULL);
            CHECK(holds(block, kind == 1 ? zero : pattern, sizeof zero, NULL));
            xmm_block about;
            about.struct_size = sizeof about;
            CHECK(xmm_find_block(block, &about) == XMM_OK && about.queue == NULL);
            CHECK(xmm_free(block) == XMM_OK);
        }
        CHECK(all.leaves == NULL && all.of_next != NULL);
        CHECK(xmm_set_oom_callback(device, NULL, NULL) == XMM_OK);
        CHECK(xmm_free(all.of_next) == XMM_OK);
        CHECK(kind == 2 || xmm_free(old) == XMM_OK);
        CHECK(xmm_queue_destroy(all.comes) == XMM_OK);
        CHECK(statistics().allocation.current == before);
    }
    CHECK(xmm_trim(device, 0, NULL) == XMM_OK);
}

static void figures(void) {
    CHECK(xmm_trim(device, 0, NULL) == XMM_OK);
    CHECK(xmm_reset_accumulated_statistics(device) == XMM_OK &&
          xmm_reset_peak_statistics(device) == XMM_OK);
    const xmm_statistics before = statistics();
    CHECK(before.allocation.allocated == 0 && before.allocation.peak == before.allocation.current);
    void* a = xmm_malloc(3 * MIB, device, NULL);
    void* b = xmm_malloc(5 * MIB, device, NULL);
    CHECK(xmm_free(a) == XMM_OK);
    const xmm_statistics now = statistics();
    CHECK(now.allocation.current == before.allocation.current + 1);
    CHECK(now.allocation.allocated == 2 && now.allocation.freed == 1);
    CHECK(now.active_bytes.peak >= before.active_bytes.current + (int64_t)(8 * MIB));
    CHECK(now.requested_bytes.current == before.requested_bytes.current + (int64_t)(5 * MIB));
    CHECK(now.reserved_bytes.current >= now.active_bytes.current && now.segment.current > 0);
    CHECK(now.num_device_alloc > 0);
    CHECK(xmm_free(b) == XMM_OK);

    char small[20];
    const size_t length = xmm_statistics_text(device, NULL, 0);
    CHECK(length > 1000);
    CHECK(xmm_statistics_text(device, small, sizeof small) >= 1000 &&
          strlen(small) == sizeof small - 1);
    char* text = malloc(2 * length);
    CHECK(xmm_statistics_text(device, text, 2 * length) == strlen(text));
    CHECK(strstr(text, "\nallocated_bytes.all.peak ") != NULL &&
          strstr(text, "num_ooms 0\n") != NULL);
    free(text);
    xmm_statistics part;
    memset(&part, 0x5a, sizeof part);
    part.struct_size = offsetof(xmm_statistics, active);
    CHECK(xmm_get_statistics(device, &part) == XMM_OK);
    CHECK(part.allocation.allocated == 2 && part.driver_us == 0x5a5a5a5a5a5a5a5aLL);
    REFUSED(xmm_get_statistics(device, NULL), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_get_statistics(9999, &part), XMM_UNKNOWN_NODE);
    REFUSED(xmm_statistics_text(device, NULL, 5), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_reset_peak_statistics(9999), XMM_UNKNOWN_NODE);
}

static long bytes_of(const char* path) {
    FILE* file = fopen(path, "rb");
    long bytes = -1;
    if (file != NULL) {
        fseek(file, 0, SEEK_END);
        bytes = ftell(file);
        fclose(file);
    }
    return bytes;
}

/* An export that fails half way leaves the file that an earlier one wrote. */
static void keeps_what_was_there(const char* path) {
    const long before = bytes_of(path);
    struct rlimit old, tight = {16, 16};
    CHECK(before > 16);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    tight.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_FSIZE, &tight);
    const xmm_status outcome = xmm_export(device, XMM_REPLAY_CSV, path);
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK(outcome == XMM_FAILED);
    CHECK(bytes_of(path) == before);
    CHECK(xmm_export(device, XMM_REPLAY_CSV, path) == XMM_OK);
}

static int holds_files(const char* folder, int count) {
    int found = 0;
    DIR* all = opendir(folder);
    for (struct dirent* one = readdir(all); one != NULL; one = readdir(all)) {
        found += one->d_name[0] != '.';
    }
    closedir(all);
    return found == count;
}
static void* read_pipe(void* path) {
    FILE* file = fopen(path, "rb");
    intptr_t count = 0;
    while (file != NULL && fgetc(file) != EOF) {
        ++count;
    }
    if (file != NULL) {
        fclose(file);
    }
    return (void*)count;
}
/* A link leads to the file that is written, a file keeps its mode, and a pipe stays one. */
static void writes_where_it_is_told(const char* folder) {
    char inside[512], file[600], link[600], loose[600], pipe[600];
    struct stat about;
    snprintf(inside, sizeof inside, "%s/kinds-XXXXXX", folder);
    CHECK(mkdtemp(inside) != NULL);
    snprintf(file, sizeof file, "%s/file", inside);
    snprintf(link, sizeof link, "%s/link", inside);
    snprintf(loose, sizeof loose, "%s/loose", inside);
    snprintf(pipe, sizeof pipe, "%s/pipe", inside);
    fclose(fopen(file, "wb"));
    CHECK(chmod(file, 0640) == 0 && symlink("file", link) == 0 && symlink("later", loose) == 0);
    CHECK(xmm_export(device, XMM_REPLAY_CSV, link) == XMM_OK);
    CHECK(lstat(link, &about) == 0 && S_ISLNK(about.st_mode));
    CHECK(lstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0);
    CHECK((about.st_mode & 0777) == 0640);
    CHECK(xmm_export(device, XMM_REPLAY_CSV, loose) == XMM_OK);
    CHECK(lstat(loose, &about) == 0 && S_ISLNK(about.st_mode));
    CHECK(stat(loose, &about) == 0 && about.st_size > 0);
    CHECK(mkfifo(pipe, 0600) == 0);
    pthread_t reader;
    CHECK(pthread_create(&reader, NULL, read_pipe, pipe) == 0);
    CHECK(xmm_export(device, XMM_REPLAY_CSV, pipe) == XMM_OK);
    void* got = NULL;
    CHECK(pthread_join(reader, &got) == 0 && (intptr_t)got > 0);
    CHECK(lstat(pipe, &about) == 0 && S_ISFIFO(about.st_mode));
    CHECK(holds_files(inside, 5)); /* file, later, two links and the pipe */
    /* A file by the name of an open descriptor: another one in its place would not be open there. */
    char number[64];
    const int open_file = open(file, O_WRONLY | O_TRUNC);
    snprintf(number, sizeof number, "/dev/fd/%d", open_file);
    CHECK(write(open_file, "mine", 4) == 4);
    REFUSED(xmm_export(device, XMM_REPLAY_CSV, number), XMM_FAILED);
    CHECK(write(open_file, "too", 3) == 3 && close(open_file) == 0);
    CHECK(stat(file, &about) == 0 && about.st_size == 7);
    CHECK(holds_files(inside, 5));
    CHECK(unlink(file) == 0 && unlink(link) == 0 && unlink(loose) == 0 && unlink(pipe) == 0);
    snprintf(file, sizeof file, "%s/later", inside);
    CHECK(unlink(file) == 0 && rmdir(inside) == 0);
}

/* What is written on the way lies beside the file, under a name that others may guess: no link there is followed. */
static void follows_no_link_beside(const char* folder) {
    char inside[512], file[600], link[700], victim[600];
    struct stat about;
    snprintf(inside, sizeof inside, "%s/links-XXXXXX", folder);
    CHECK(mkdtemp(inside) != NULL);
    snprintf(file, sizeof file, "%s/file", inside);
    snprintf(victim, sizeof victim, "%s/victim", inside);
    for (int i = 0; i < 200; ++i) {
        snprintf(link, sizeof link, "%s/xmm-%d-%d.part", inside, (int)getpid(), i);
        CHECK(symlink("victim", link) == 0);
    }
    CHECK(xmm_export(device, XMM_REPLAY_CSV, file) == XMM_OK);
    CHECK(lstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0);
    CHECK(stat(victim, &about) != 0);
    for (int i = 0; i < 200; ++i) {
        snprintf(link, sizeof link, "%s/xmm-%d-%d.part", inside, (int)getpid(), i);
        CHECK(unlink(link) == 0);
    }
    CHECK(unlink(file) == 0);
    char longest[900]; /* 255 characters, the most that a name may have */
    snprintf(longest, sizeof longest, "%s/%0255d", inside, 7);
    CHECK(xmm_export(device, XMM_REPLAY_CSV, longest) == XMM_OK && unlink(longest) == 0);
    CHECK(rmdir(inside) == 0);
}

static void exports(const char* folder) {
    static const char* const names[] = {"rmm.csv", "snapshot.pickle", "trace.json", "replay.csv"};
    char path[512];
    CHECK(xmm_trace_start(device, 1000) == XMM_OK);
    void* a = xmm_malloc(3 * MIB, device, NULL);
    void* b = xmm_malloc(100, device, NULL);
    CHECK(xmm_free(a) == XMM_OK);
    for (xmm_export_form form = XMM_RMM_CSV; form <= XMM_REPLAY_CSV; ++form) {
        snprintf(path, sizeof path, "%s/%s", folder, names[form]);
        const int holds_all = form == XMM_TORCH_SNAPSHOT || form == XMM_CHROME_TRACE;
        CHECK(xmm_export(holds_all ? XMM_ALL_DEVICES : device, form, path) == XMM_OK);
        FILE* file = fopen(path, "rb");
        CHECK(file != NULL && fgetc(file) != EOF);
        if (file != NULL) {
            fclose(file);
        }
    }
    CHECK(xmm_trace_stop(device) == XMM_OK && xmm_free(b) == XMM_OK);
    REFUSED(xmm_export(device, XMM_RMM_CSV, NULL), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_export(device, 17, path), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_export(XMM_ALL_DEVICES, XMM_RMM_CSV, path), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_export(9999, XMM_RMM_CSV, path), XMM_UNKNOWN_NODE);
    REFUSED(xmm_export(device, XMM_RMM_CSV, "/no/such/folder/file"), XMM_FAILED);
    CHECK(strstr(xmm_last_error(), "No such file") != NULL);
    REFUSED(xmm_export(device, XMM_RMM_CSV, "/dev/full"), XMM_FAILED);
    keeps_what_was_there(path);
    writes_where_it_is_told(folder);
    follows_no_link_beside(folder);
    REFUSED(xmm_trace_start(device, 0), XMM_INVALID_ARGUMENT);
    REFUSED(xmm_trace_start(9999, 10), XMM_UNKNOWN_NODE);
    REFUSED(xmm_trace_stop(9999), XMM_UNKNOWN_NODE);
}

/* Blocks change hands: each thread gives back, on its own queue, what another one has just left here. */
static pthread_mutex_t shelf_lock = PTHREAD_MUTEX_INITIALIZER;
static void* shelf[8];

static void* exchanged(size_t place, void* block) {
    pthread_mutex_lock(&shelf_lock);
    void* found = shelf[place];
    shelf[place] = block;
    pthread_mutex_unlock(&shelf_lock);
    return found;
}
static void* one_thread(void* seed) {
    size_t number = (size_t)(uintptr_t)seed;
    size_t wrong = 0;
    xmm_queue queue = NULL;
    wrong += xmm_queue_create(device, &queue) != XMM_OK;
    for (size_t i = 0; i < 400; ++i) {
        const size_t bytes = (number * 7919 + i * 104729) % (i % 16 == 0 ? 2 * MIB : 50000) + 1;
        void* block = xmm_malloc(bytes, device, queue);
        if (i % 7 == 0) {
            block = xmm_realloc(block, 2 * bytes, XMM_DEFAULT_NODE, queue);
        }
        wrong += block == NULL || xmm_usable_size(block) < bytes;
        void* other = exchanged((number + i) % 8, block);
        wrong += i % 5 == 0 && other != NULL && xmm_record_use(other, queue) != XMM_OK;
        wrong += xmm_free_on(other, queue) != XMM_OK;
        if (i % 100 == 99) {
            wrong += xmm_trim(device, 8 * MIB, NULL) != XMM_OK ||
                     xmm_statistics_text(device, NULL, 0) == 0;
        }
    }
    wrong += xmm_queue_destroy(queue) != XMM_OK;
    return (void*)(uintptr_t)wrong;
}
static void threads(void) {
    pthread_t running[4];
    const int64_t before = statistics().allocation.current;
    for (size_t i = 0; i < 4; ++i) {
        CHECK(pthread_create(&running[i], NULL, one_thread, (void*)(uintptr_t)i) == 0);
    }
    for (size_t i = 0; i < 4; ++i) {
        void* wrong = NULL;
        CHECK(pthread_join(running[i], &wrong) == 0 && wrong == NULL);
    }
    for (size_t i = 0; i < 8; ++i) {
        CHECK(xmm_free(shelf[i]) == XMM_OK);
    }
    CHECK(statistics().allocation.current == before);
}

int main(int argc, char** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: interface FOLDER\n");
        return 2;
    }
    versions_and_errors();
    nodes();
    blocks();
    queues();
    no_streams();
    tags();
    out_of_memory();
    queues_that_end_meanwhile();
    figures();
    exports(argv[1]);
    threads();
    printf("%d checks, %d failures\n", checks, failures);
    return failures == 0 ? 0 : 1;
}
