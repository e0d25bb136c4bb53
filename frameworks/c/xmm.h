/* SPDX-License-Identifier: Apache-2.0
 * xmm.h - the XPU malloc for every language that can call C.
 *
 * Model    Memory of a node (a device; or a host, page-locked) for work in the order of a queue. A block is known
 *          by its address; it belongs to the queue and the tag that it was asked for with.
 *          A queue is an opaque pointer: one of xmm_queue_create, or a stream of the caller's that
 *          xmm_queue_adopt has made a queue of. NULL is no queue: the caller orders all use of the block, and what
 *          is given back is taken to be unused from then on.
 *          Everything is of the process's default space: all users in a process share one heap a node.
 * Threads  Any, in every function. Texts that are returned are of the calling thread or live for ever.
 * Failure  Functions answer XMM_OK or what went wrong; those that answer a pointer or a size answer NULL or 0.
 *          xmm_last_status() and xmm_last_error() say what the calling thread's last failure was about; a
 *          function that succeeds leaves both as they are. What fails changes nothing, but for what it says:
 *          xmm_set_budget that answers XMM_BUSY has set the budget, and a queue is gone also where
 *          xmm_queue_destroy or xmm_queue_forget tells that its work failed. Nothing is thrown.
 * Growth   Structures begin with struct_size, which the caller sets to sizeof: a newer library fills only what
 *          the caller knows. An older one fills less, and says in struct_size how much. Functions and constants
 *          are added, never changed, within one soname.
 *
 * C99 and C++11.
 */
#ifndef XMM_H
#define XMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The same as in xmm/core/config.hpp, where both are included. */
#ifndef XMM_VERSION_MAJOR
#define XMM_VERSION_MAJOR 0
#define XMM_VERSION_MINOR 4
#define XMM_VERSION_PATCH 0
#endif
#define XMM_VERSION (XMM_VERSION_MAJOR * 10000 + XMM_VERSION_MINOR * 100 + XMM_VERSION_PATCH)

#if defined(__GNUC__)
#define XMM_API __attribute__((visibility("default")))
#else
#define XMM_API
#endif

#ifdef __cplusplus
#define XMM_NOEXCEPT noexcept
extern "C" {
#else
#define XMM_NOEXCEPT
#endif

/* ---- values */

typedef int32_t xmm_status;
enum {
    XMM_OK = 0,
    XMM_NO_MEMORY = 1,        /* the device, or the host's bookkeeping, has no more */
    XMM_BUSY = 2,             /* lost to other work; may succeed later */
    XMM_NOT_MAPPED = 3,       /* the pointer is in no block */
    XMM_UNSUPPORTED = 4,      /* this device cannot do it */
    XMM_DEVICE_LOST = 5,      /* the device faulted or its driver gave up */
    XMM_INVALID_ARGUMENT = 6, /* malformed: see the error text */
    XMM_UNKNOWN_NODE = 7,     /* no such node */
    XMM_FORKED = 8,           /* a child of fork: its parent's devices are not its own */
    XMM_FAILED = 9            /* a file could not be written, or what nobody expected */
};

typedef void* xmm_queue;
typedef uint32_t xmm_tag; /* 0: everything that has no tag */

enum {
    XMM_DEFAULT_NODE = -3, /* the first device; for a block that exists, the one that it is on */
    XMM_ALL_DEVICES = -4   /* in xmm_export */
};

/* ---- version and errors */

/* XMM_VERSION of the library that is loaded. */
XMM_API uint32_t xmm_version(void) XMM_NOEXCEPT;
/* "0.4.0" */
XMM_API const char* xmm_version_text(void) XMM_NOEXCEPT;
/* "no memory", ...; "?" for what is no status. */
XMM_API const char* xmm_status_name(xmm_status status) XMM_NOEXCEPT;
/* Of the calling thread's last failure: what kind it was, and a sentence about it ("" if there was none). */
XMM_API xmm_status xmm_last_status(void) XMM_NOEXCEPT;
XMM_API const char* xmm_last_error(void) XMM_NOEXCEPT;
XMM_API void xmm_clear_error(void) XMM_NOEXCEPT;

/* ---- nodes */

typedef struct xmm_node_description {
    size_t struct_size;
    int32_t node;
    uint32_t is_device;   /* 0: a host */
    uint64_t bytes;       /* of memory that the node has */
    uint64_t limit_bytes; /* what xmm may hold there now */
    uint64_t used_bytes;  /* what xmm holds, of all its users in this process */
    char name[64];        /* UTF-8, cut to fit */
} xmm_node_description;

/* The numbers of all nodes, hosts first: at most capacity of them are written, count says how many there are.
 * Numbers are the same in the whole process and never change. */
XMM_API xmm_status xmm_list_nodes(int32_t* nodes, size_t capacity, size_t* count) XMM_NOEXCEPT;
XMM_API xmm_status xmm_describe_node(int32_t node, xmm_node_description* description) XMM_NOEXCEPT;
/* What xmm may hold on a node; UINT64_MAX: all there is. XMM_BUSY: that is the budget now, but used or pinned memory
 * keeps the node above it for the moment. */
XMM_API xmm_status xmm_set_budget(int32_t node, uint64_t bytes) XMM_NOEXCEPT;

/* ---- queues */

XMM_API xmm_status xmm_queue_create(int32_t node, xmm_queue* queue) XMM_NOEXCEPT;
/* Waits for its work, and answers how that went; the queue is gone also where that failed. Its blocks stay. */
XMM_API xmm_status xmm_queue_destroy(xmm_queue queue) XMM_NOEXCEPT;

/* Since 0.2: a stream of the caller's, a cudaStream_t or CUstream, as a queue of its device. 0 is the legacy stream of
 * the context that is current in the calling thread. The same stream again, by whomever in this process, is the same
 * queue, and is forgotten when all have forgotten it; the stream is destroyed after that.
 * XMM_UNSUPPORTED: not a stream of the primary context of a device of xmm's, or the per-thread stream. */
XMM_API xmm_status xmm_queue_adopt(void* native, xmm_queue* queue) XMM_NOEXCEPT;
/* The stream stays the caller's. The last one to forget it waits for its work, and answers how that went; the queue is
 * gone also where that failed. XMM_BUSY: it stays, since the stream is being captured. Its blocks stay; what the stream
 * gets from then on is the caller's to order with them. */
XMM_API xmm_status xmm_queue_forget(xmm_queue queue) XMM_NOEXCEPT;

typedef struct xmm_queue_description {
    size_t struct_size;
    int32_t node;
    uint32_t is_adopted; /* 0: of xmm_queue_create */
    uint32_t is_native;  /* 0: of a software device, whose queues are no vendor's streams */
    void* native;        /* if it is: the cudaStream_t; 0: the legacy stream */
} xmm_queue_description;

XMM_API xmm_status xmm_describe_queue(xmm_queue queue,
                                      xmm_queue_description* description) XMM_NOEXCEPT;
XMM_API xmm_status xmm_queue_synchronize(xmm_queue queue) XMM_NOEXCEPT;
/* Copies between blocks and plain memory in the order of the queue: plain memory stays valid until then. With
 * NULL it is done on return. The ranges do not overlap. Plain memory can be read, or written, as the copy needs:
 * only that it is mapped is checked. */
XMM_API xmm_status xmm_copy(void* to, const void* from, size_t bytes, xmm_queue queue) XMM_NOEXCEPT;
/* Since 0.4: how many copies in the order of a queue came to nothing when their turn came, in this process so far:
 * plain memory was gone by then, or no memory was left for a page. The queue goes on, and xmm_queue_synchronize
 * answers XMM_OK: who must know compares this before and after. */
XMM_API uint64_t xmm_copy_failures(void) XMM_NOEXCEPT;

/* ---- blocks */

/* Aligned to 256 bytes or more. Work submitted to the queue from now on may use the block. 0 bytes: a block like
 * any other. The contents are undefined. A device's block is reached by kernels and xmm_copy, not by the CPU. */
XMM_API void* xmm_malloc(size_t bytes, int32_t node, xmm_queue queue) XMM_NOEXCEPT;
/* The alignment is a power of two, 4 GiB at most. */
XMM_API void* xmm_aligned_malloc(size_t alignment, size_t bytes, int32_t node,
                                 xmm_queue queue) XMM_NOEXCEPT;
/* The same for a tag. */
XMM_API void* xmm_tagged_malloc(xmm_tag tag, size_t alignment, size_t bytes, int32_t node,
                                xmm_queue queue) XMM_NOEXCEPT;
/* Zeroed by the device, in the order of the queue. */
XMM_API void* xmm_calloc(size_t count, size_t bytes, int32_t node, xmm_queue queue) XMM_NOEXCEPT;
/* A block of at least that size with the old contents, as far as they fit: the old block, or a new one of the
 * same tag for that queue. The device copies in the order of the queue, after what was submitted to the block's own
 * queue before; the old block is given back on the queue then. Between two nodes the call waits for that. NULL as
 * pointer: xmm_malloc. 0 bytes: xmm_free_on, and NULL. On failure the old block stays. */
XMM_API void* xmm_realloc(void* block, size_t bytes, int32_t node, xmm_queue queue) XMM_NOEXCEPT;

/* Gives a block back: work of its own queue that was submitted before may still use it. NULL: nothing.
 * XMM_BUSY, from this and the next two: the block stays the caller's, since another queue that uses it cannot say how
 * far it is: it is being captured. XMM_NO_MEMORY likewise: too much waits in that queue. Both pass: try again later.
 * XMM_NOT_MAPPED, XMM_INVALID_ARGUMENT: no block begins there, or it was given back already. */
XMM_API xmm_status xmm_free(void* block) XMM_NOEXCEPT;
/* The same, and work that was submitted to that other queue before may use it, too. */
XMM_API xmm_status xmm_free_on(void* block, xmm_queue queue) XMM_NOEXCEPT;
/* xmm_free, refused if the block is smaller than that. */
XMM_API xmm_status xmm_free_sized(void* block, size_t bytes) XMM_NOEXCEPT;
/* Work of that queue uses the block, too: what was submitted, and what will be before the block is given back. */
XMM_API xmm_status xmm_record_use(void* block, xmm_queue queue) XMM_NOEXCEPT;

/* ---- pointers */

typedef struct xmm_block {
    size_t struct_size;
    void* base;
    uint64_t bytes; /* all may be used: at least what was asked for */
    xmm_queue queue;
    int32_t node;
    xmm_tag tag;
} xmm_block;

/* The block around any pointer into it. XMM_NOT_MAPPED: there is none. A block of a queue that is over belongs to no
 * queue (NULL), then to the next one that takes over that queue's free memory. */
XMM_API xmm_status xmm_find_block(const void* pointer, xmm_block* block) XMM_NOEXCEPT;
/* The bytes of the block that begins there; 0: none does. */
XMM_API size_t xmm_usable_size(const void* block) XMM_NOEXCEPT;

/* ---- tags: kinds of contents, seen and trimmed apart */

/* The tag of that name, made if it is new: at most 31 bytes. */
XMM_API xmm_status xmm_tag_create(const char* name, xmm_tag* tag) XMM_NOEXCEPT;
/* NULL if there is no such tag. */
XMM_API const char* xmm_tag_name(xmm_tag tag) XMM_NOEXCEPT;

/* ---- memory */

/* Gives unused frames back to the device until the heap holds that many bytes of frames, used ones among them, or has
 * no unused ones left. freed may be NULL. */
XMM_API xmm_status xmm_trim(int32_t node, uint64_t keep_bytes, uint64_t* freed) XMM_NOEXCEPT;
/* Those of one tag's addresses only. */
XMM_API xmm_status xmm_trim_tag(int32_t node, xmm_tag tag, uint64_t* freed) XMM_NOEXCEPT;

/* Called when nothing else is left, by the thread that asks for memory, with no lock held: true if it gave back
 * enough for another try. NULL: none. When the function below returns, no other thread is in the callback before any
 * more; called from that one, it does not wait. Hold nothing there that the callback may wait for. The callback throws
 * nothing: an exception of C++ ends the program. */
typedef bool (*xmm_oom_callback)(size_t bytes, void* context);
XMM_API xmm_status xmm_set_oom_callback(int32_t node, xmm_oom_callback callback,
                                        void* context) XMM_NOEXCEPT;

/* ---- seeing it */

typedef struct xmm_counter {
    int64_t current;
    int64_t peak;
    int64_t allocated; /* all that was ever added */
    int64_t freed;     /* and taken off */
} xmm_counter;

/* Under PyTorch's names, as torch.cuda.memory_stats() explains them. Peaks of blocks below 1 MiB may be too low by less
 * than 1 MiB, and 4096 blocks, a thread. inactive_split_bytes is measured at each reading, and has no allocated and
 * freed: bytes of frames that neither blocks use nor trim could give back now, those that caches keep among them.
 * num_device_alloc: frames made or taken, and mappings made; num_device_free: mappings ended, and frames given up.
 * frames_moved: frames that changed their address; queue_waits: waits for a queue before one could; driver_us:
 * microseconds in the driver, waits included. */
typedef struct xmm_statistics {
    size_t struct_size;
    xmm_counter allocation;
    xmm_counter allocated_bytes;
    xmm_counter active;
    xmm_counter active_bytes;
    xmm_counter requested_bytes;
    xmm_counter segment;
    xmm_counter reserved_bytes;
    xmm_counter inactive_split_bytes;
    int64_t num_alloc_retries;
    int64_t num_ooms;
    int64_t num_sync_all_streams;
    int64_t num_device_alloc;
    int64_t num_device_free;
    int64_t frames_moved;
    int64_t queue_waits;
    int64_t driver_us;
} xmm_statistics;

XMM_API xmm_status xmm_get_statistics(int32_t node, xmm_statistics* statistics) XMM_NOEXCEPT;
/* The same as lines of "name value", with pools apart. Written as snprintf does: cut to capacity with its NUL; the
 * answer is the length of the whole. 0: a failure. */
XMM_API size_t xmm_statistics_text(int32_t node, char* text, size_t capacity) XMM_NOEXCEPT;
XMM_API xmm_status xmm_reset_peak_statistics(int32_t node) XMM_NOEXCEPT;
XMM_API xmm_status xmm_reset_accumulated_statistics(int32_t node) XMM_NOEXCEPT;

/* Records what the heap does, from now on and anew; the oldest of more than that many events are forgotten. */
XMM_API xmm_status xmm_trace_start(int32_t node, size_t events) XMM_NOEXCEPT;
XMM_API xmm_status xmm_trace_stop(int32_t node) XMM_NOEXCEPT;

typedef int32_t xmm_export_form;
enum {
    XMM_RMM_CSV = 0, /* the log of RMM's logging adaptor, for its replay */
    XMM_TORCH_SNAPSHOT =
        1, /* a pickle as of torch.cuda.memory._snapshot(), for PyTorch's memory viewer */
    XMM_CHROME_TRACE = 2, /* JSON for Perfetto and chrome://tracing */
    XMM_REPLAY_CSV = 3    /* for xmm-replay */
};

/* Writes what was recorded, and what the heap looks like now, to a file. XMM_ALL_DEVICES in the forms that hold
 * several: the pickle and the JSON. */
XMM_API xmm_status xmm_export(int32_t node, xmm_export_form form, const char* path) XMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* XMM_H */
