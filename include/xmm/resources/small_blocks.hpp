// SPDX-License-Identifier: Apache-2.0
// small_blocks.hpp - blocks of up to 32 KiB for one queue and tag, carved by the private jemalloc.
//
// Model    One jemalloc arena whose extents come through extent_hooks and whose records lie in host memory. A
//          thread keeps freed blocks in a cache of its own, one for each small_blocks that it uses. When
//          the thread ends, what is in it goes back and the next new thread takes the cache over.
// Threads  Any, but for the destructor: by then no thread may be in a call, though threads that once called
//          may live on. Callers hold no lock of ours: jemalloc's come before them.
// Failure  no_memory, or whatever the frames answered, and nothing has changed. Where there is no jemalloc, or
//          one that is refused, make() says unsupported: then the extent heap serves small blocks too. So does
//          allocate() once jemalloc's own destructor has run for the calling thread; blocks still go back then.
// See      jemalloc_table.hpp, extent_hooks.hpp
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>

#include <sys/types.h>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/mapping/slab.hpp>
#include <xmm/os/futex.hpp>
#include <xmm/os/registry.hpp>
#include <xmm/resources/extent_hooks.hpp>
#include <xmm/resources/jemalloc_table.hpp>

namespace xmm {

namespace detail {

// One explicit cache of jemalloc ("tcache") of one small_blocks, and who has it. The record is given back by
// whichever of its owner and its thread lets go last.
struct thread_cache {
    enum state : std::uint32_t {
        used,      // by a thread, which alone may touch the cache
        emptying,  // that thread is ending
        idle,      // empty, for the next thread
        orphan,    // its owner is gone, and the cache with it; a thread still has the record
    };

    // (C) constant while an owner has it  (A) atomic  (T) the thread that uses it  (O) its owner's list
    std::atomic<std::uint32_t> now{used};           // (A)
    const jemalloc_functions* functions = nullptr;  // (C)
    std::uint32_t owner = 0;                        // (C) its number; none is given twice
    std::uint32_t epoch = 0;                        // (T) of its last flush
    unsigned index = 0;                             // (C) jemalloc's name for it
    thread_cache* next_of_owner = nullptr;          // (O)
    thread_cache* next_of_thread = nullptr;         // (T)

    void flush() noexcept {
        functions->mallctl("tcache.flush", nullptr, nullptr, &index, sizeof index);
    }
    void drop() noexcept {
        functions->mallctl("tcache.destroy", nullptr, nullptr, &index, sizeof index);
    }
};

// All records of the process; never destroyed, since threads end in any order.
struct thread_cache_records {
    static constexpr const char* registry_key = "small_blocks_caches/1";
    slab<thread_cache> all;
};

// What a thread has at hand. Per shared object, like the code that looks here: a thread that calls from two
// of them has two caches.
struct thread_caches {
    struct entry {
        std::uint64_t key = 0;  // the owner's number and its epoch; numbers begin at 1
        int flags = 0;
    };
    static constexpr std::size_t entry_count = 32;

    std::array<entry, entry_count> entries{};
    thread_cache* first = nullptr;  // all that this thread uses
    bool is_over = false;           // the thread is ending: its caches are given back
};
// constinit, and nothing to destroy: reading it costs no check.
inline constinit thread_local thread_caches caches_of_this_thread{};

inline void give_back_thread_caches() noexcept {
    thread_caches& mine = caches_of_this_thread;
    mine.is_over = true;
    mine.entries = {};
    if (registry::is_forked_child()) {
        return;  // below jemalloc's hooks, locks may be held by threads that are not here
    }
    while (thread_cache* one = mine.first) {
        mine.first = one->next_of_thread;
        std::uint32_t was = thread_cache::used;
        // acquire: pairs with the release of `orphan`; the owner has let go of all else.
        if (one->now.compare_exchange_strong(was, thread_cache::emptying,
                                             std::memory_order_acquire)) {
            one->flush();
            // release: pairs with the acquire of who takes it over, or ends the owner.
            one->now.store(thread_cache::idle, std::memory_order_release);
            futex_wake_all(one->now);
        } else {
            registry::object<thread_cache_records>().all.give_back(one);
        }
    }
}

// Its destructor runs when the thread ends.
inline void watch_end_of_thread() noexcept {
    struct watcher {
        watcher() noexcept {}
        ~watcher() { give_back_thread_caches(); }
    };
    static thread_local watcher here;
    static_cast<void>(here);
}

}  // namespace detail

template <class Frames>
class small_blocks {
public:
    // Beyond it a cache would hide up to twenty blocks of each size.
    static constexpr std::size_t largest_bytes = std::size_t{32} << 10;
    static constexpr std::size_t largest_alignment = 4096;

    // An arena for that queue. Takes no device memory yet.
    [[nodiscard]] static result<std::unique_ptr<small_blocks>> make(Frames& frames, queue_id queue,
                                                                    std::uint32_t tag = 0,
                                                                    void* owner = nullptr) noexcept;

    // Its queue is over, all its work done: the arena and its blocks are another one's from here on.
    void set_queue(queue_id queue) noexcept { hooks_.set_queue(queue); }

    // The calling thread is past the destructors of its thread_local variables: what it gives back from here on
    // goes by no cache, since nobody would take the cache over.
    static void end_caches_of_thread() noexcept { detail::give_back_thread_caches(); }
    // Whether it is, or nearly so: nothing may be kept for it any more.
    [[nodiscard]] static bool is_end_of_thread() noexcept {
        return detail::caches_of_this_thread.is_over;
    }

    small_blocks(const small_blocks&) = delete;
    small_blocks& operator=(const small_blocks&) = delete;
    // Blocks that are still allocated go with it, untouched.
    ~small_blocks();

    // 1 to largest_bytes, at a multiple of a power of two up to largest_alignment. Null: allocate() says why.
    [[nodiscard]] void* try_allocate(std::size_t bytes, std::size_t alignment) noexcept {
        void* block = carve(bytes, alignment);
        return block != nullptr && is_from_here(block) ? block : nullptr;
    }
    [[nodiscard]] result<void*> allocate(std::size_t bytes, std::size_t alignment) noexcept {
        if (void* block = carve(bytes, alignment)) [[likely]] {
            if (is_from_here(block)) [[likely]] {
                return block;
            }
            return fail(errc::unsupported,
                        "jemalloc serves no arena to a thread in its last destructors");
        }
        const status failed = hooks_.last_failure();
        return failed ? fail(errc::no_memory, "the host has no memory for jemalloc's records")
                      : failed;
    }

    // A block from here, by any thread. Its size is of no use: jemalloc is not faster when it is told.
    void deallocate(void* block) noexcept { functions_.dallocx(block, flags_of_this_thread()); }

    // At least what was asked for; of a block from here.
    [[nodiscard]] std::size_t usable_bytes(const void* block) const noexcept {
        return functions_.sallocx(block, 0);
    }
    // Whether an address is in an extent of this arena.
    [[nodiscard]] bool contains(address at) const noexcept { return hooks_.contains(at); }

    // Gives back to the arena what the caches of threads hide: the caller's now, those of other threads when they
    // next call. An idle thread keeps what it has until it ends.
    void flush() noexcept {
        // relaxed: a thread that sees it late flushes late.
        key_.fetch_add(1, std::memory_order_relaxed);
        if (cache_at_hand() != nullptr) {
            static_cast<void>(flags_of_this_thread());
        }
    }
    // Gives back the frames of all slots without a block, but for what caches hide: flush() comes first.
    void purge() noexcept { control("purge"); }

    // Bytes of extents, in blocks or kept for them, and the slots that have frames for them.
    [[nodiscard]] std::size_t committed_bytes() const noexcept { return hooks_.committed_bytes(); }
    [[nodiscard]] std::size_t slot_count() const noexcept { return hooks_.slot_count(); }
    // Bytes in blocks, by size class, those in caches of threads included. Slow: for reports only.
    [[nodiscard]] std::size_t allocated_bytes() const noexcept;

    [[nodiscard]] bool is_valid() noexcept { return hooks_.is_valid(); }

private:
    // jemalloc's encoding of "that arena", "that cache", "no cache".
    static constexpr int arena_flags(unsigned arena) noexcept {
        return static_cast<int>((arena + 1) << 20);
    }
    static constexpr int cache_flags(unsigned cache) noexcept {
        return static_cast<int>((cache + 2) << 8);
    }
    static constexpr int no_cache_flags = 1 << 8;

    small_blocks(Frames& frames, queue_id queue, std::uint32_t tag, void* owner,
                 const jemalloc_functions& functions) noexcept
        : functions_{functions}, hooks_{frames, queue, tag, owner} {}

    [[nodiscard]] std::uint32_t number() const noexcept {
        // relaxed: the number in it never changes.
        return static_cast<std::uint32_t>(key_.load(std::memory_order_relaxed) >> 32);
    }

    [[nodiscard]] void* carve(std::size_t bytes, std::size_t alignment) noexcept {
        XMM_ASSERT(bytes != 0 && bytes <= largest_bytes, "small blocks have 1 byte to 32 KiB");
        XMM_ASSERT(
            alignment != 0 && (alignment & (alignment - 1)) == 0 && alignment <= largest_alignment,
            "small blocks are aligned to a power of two up to 4096");
        // A multiple of the alignment lies at one: a block's place in its slab is a multiple of its size class, and
        // classes keep the powers of two of what they are asked for. Cheaper than asking for an alignment.
        return functions_.mallocx(align_up(bytes, alignment), flags_of_this_thread());
    }
    // A thread that comes after jemalloc's own destructor is served host memory, whatever arena it names. That goes
    // straight back; what is given back finds its arena all the same.
    [[nodiscard]] bool is_from_here(void* block) noexcept {
        if (contains(to_address(block))) [[likely]] {
            return true;
        }
        functions_.dallocx(block, no_cache_flags);
        return false;
    }

    [[nodiscard]] int flags_of_this_thread() noexcept {
        auto& mine = detail::caches_of_this_thread.entries[entry_];
        // relaxed: an entry was written by this thread, and the key names nothing that others fill in.
        const std::uint64_t key = key_.load(std::memory_order_relaxed);
        return mine.key == key ? mine.flags : renewed_flags(key);
    }
    [[nodiscard, gnu::noinline]] int renewed_flags(std::uint64_t key) noexcept;
    [[nodiscard]] detail::thread_cache* cache_at_hand() noexcept;
    [[nodiscard]] detail::thread_cache* cache_of_this_thread() noexcept;
    [[nodiscard]] detail::thread_cache* idle_cache() noexcept;
    [[nodiscard]] detail::thread_cache* fresh_cache() noexcept;

    template <class T>
    bool set(const char* what, T value) noexcept {
        char name[64];
        std::snprintf(name, sizeof name, "arena.%u.%s", arena_, what);
        return functions_.mallctl(name, nullptr, nullptr, &value, sizeof value) == 0;
    }
    bool control(const char* what) noexcept {
        char name[64];
        std::snprintf(name, sizeof name, "arena.%u.%s", arena_, what);
        return functions_.mallctl(name, nullptr, nullptr, nullptr, 0) == 0;
    }

    // (C) constant once made  (A) atomic
    const jemalloc_functions functions_;               // (C) a copy: one load less
    detail::thread_cache_records* records_ = nullptr;  // (C)
    std::atomic<std::uint64_t> key_{0};  // (A) its number, then how often it was flushed
    std::size_t entry_ = 0;              // (C) its place among a thread's entries
    unsigned arena_ = 0;                 // (C)
    bool has_arena_ = false;             // (C)
    std::atomic<detail::thread_cache*> caches_{nullptr};  // (A) all ever made; only ever pushed
    extent_hooks<Frames> hooks_;
};

template <class Frames>
result<std::unique_ptr<small_blocks<Frames>>> small_blocks<Frames>::make(Frames& frames,
                                                                         queue_id queue,
                                                                         std::uint32_t tag,
                                                                         void* owner) noexcept {
    const jemalloc_functions* functions = jemalloc_table::find();
    if (functions == nullptr) {
        return fail(errc::unsupported, "no jemalloc is linked into this process");
    }
    if (const status refused = functions->check(); !refused) {
        return refused;
    }
    std::unique_ptr<small_blocks> made{new (std::nothrow)
                                           small_blocks{frames, queue, tag, owner, *functions}};
    if (made == nullptr) {
        return fail(errc::no_memory, "the host has no memory for records");
    }
    made->records_ = registry::try_object<detail::thread_cache_records>();
    if (made->records_ == nullptr) {
        return fail(errc::no_memory, "the host has no memory for records");
    }
    jemalloc_arena_config config{made->hooks_.table(), false};
    std::size_t bytes = sizeof made->arena_;
    if (const int error = functions->mallctl("experimental.arenas_create_ext", &made->arena_,
                                             &bytes, &config, sizeof config);
        error != 0) {
        return fail(errc::no_memory, "jemalloc cannot make another arena", error);
    }
    made->has_arena_ = true;
    // Freed memory is kept until purge(): by itself jemalloc would give frames back in the midst of a
    // deallocation, and large extents at once.
    if (!made->template set<ssize_t>("dirty_decay_ms", -1) ||
        !made->template set<ssize_t>("muzzy_decay_ms", 0) ||
        !made->template set<std::size_t>("oversize_threshold", std::size_t{1} << 40) ||
        !made->template set<std::size_t>("retain_grow_limit", std::size_t{64} << 20)) {
        return fail(errc::unsupported, "jemalloc refuses the settings of an arena");
    }
    const std::uint32_t number = registry::next_number(number_kind::resource);
    made->entry_ = number % detail::thread_caches::entry_count;
    // relaxed: the object is handed over by the caller.
    made->key_.store(std::uint64_t{number} << 32, std::memory_order_relaxed);
    // Some compilers do not move here by themselves.
    return result<std::unique_ptr<small_blocks>>{std::move(made)};
}

template <class Frames>
small_blocks<Frames>::~small_blocks() {
    // Caches first: one that outlived the arena would hand out what is gone.
    // relaxed: no thread is in a call.
    for (auto* one = caches_.load(std::memory_order_relaxed); one != nullptr;) {
        detail::thread_cache* next = one->next_of_owner;
        std::uint32_t was = detail::thread_cache::used;
        // A thread that still has it only looks at the state, and gives the record back. The cache is
        // dropped before, while the thread cannot have: it is not in a call.
        for (;;) {
            // acquire: pairs with the release of `idle`; the thread's flush is over.
            was = one->now.load(std::memory_order_acquire);
            if (was == detail::thread_cache::emptying) {
                detail::futex_wait(one->now, was);
            } else if (was == detail::thread_cache::idle) {
                one->drop();
                records_->all.give_back(one);
                break;
            } else {
                const unsigned index = one->index;
                // release: pairs with the acquire in give_back_thread_caches.
                if (one->now.compare_exchange_strong(was, detail::thread_cache::orphan,
                                                     std::memory_order_acq_rel)) {
                    functions_.mallctl("tcache.destroy", nullptr, nullptr,
                                       const_cast<unsigned*>(&index), sizeof index);
                    break;
                }
            }
        }
        one = next;
    }
    if (has_arena_) {
        [[maybe_unused]] const bool is_gone = control("destroy");
        XMM_ASSERT(is_gone, "an arena is some thread's own");
    }
}

template <class Frames>
int small_blocks<Frames>::renewed_flags(std::uint64_t key) noexcept {
    detail::thread_caches& mine = detail::caches_of_this_thread;
    if (mine.is_over) {
        return arena_flags(arena_) | no_cache_flags;
    }
    detail::watch_end_of_thread();
    int flags = arena_flags(arena_) | no_cache_flags;
    if (detail::thread_cache* cache = cache_of_this_thread()) {
        if (const auto epoch = static_cast<std::uint32_t>(key); cache->epoch != epoch) {
            cache->flush();
            cache->epoch = epoch;
        }
        flags = arena_flags(arena_) | cache_flags(cache->index);
    }
    mine.entries[entry_] = {key, flags};
    return flags;
}

// Null: this thread has none yet.
template <class Frames>
detail::thread_cache* small_blocks<Frames>::cache_at_hand() noexcept {
    detail::thread_caches& mine = detail::caches_of_this_thread;
    const std::uint32_t number = this->number();
    for (detail::thread_cache** at = &mine.first; *at != nullptr;) {
        detail::thread_cache* one = *at;
        // acquire: pairs with the release of `orphan`.
        if (one->now.load(std::memory_order_acquire) == detail::thread_cache::orphan) {
            *at = one->next_of_thread;
            records_->all.give_back(one);
        } else if (one->owner == number) {
            return one;
        } else {
            at = &one->next_of_thread;
        }
    }
    return nullptr;
}

// Null where jemalloc has none left: then this thread goes without.
template <class Frames>
detail::thread_cache* small_blocks<Frames>::cache_of_this_thread() noexcept {
    if (detail::thread_cache* cache = cache_at_hand()) {
        return cache;
    }
    detail::thread_cache* cache = idle_cache();
    if (cache == nullptr) {
        cache = fresh_cache();
    }
    if (cache != nullptr) {
        detail::thread_caches& mine = detail::caches_of_this_thread;
        cache->next_of_thread = mine.first;
        mine.first = cache;
    }
    return cache;
}

template <class Frames>
detail::thread_cache* small_blocks<Frames>::idle_cache() noexcept {
    // acquire: pairs with the release in fresh_cache.
    for (auto* one = caches_.load(std::memory_order_acquire); one != nullptr;
         one = one->next_of_owner) {
        std::uint32_t was = detail::thread_cache::idle;
        // acquire: pairs with the release of `idle`; what the last thread did to the cache is done.
        if (one->now.compare_exchange_strong(was, detail::thread_cache::used,
                                             std::memory_order_acquire)) {
            return one;
        }
    }
    return nullptr;
}

template <class Frames>
detail::thread_cache* small_blocks<Frames>::fresh_cache() noexcept {
    detail::thread_cache* made = records_->all.make();
    if (made == nullptr) {
        return nullptr;
    }
    std::size_t bytes = sizeof made->index;
    if (functions_.mallctl("tcache.create", &made->index, &bytes, nullptr, 0) != 0) {
        records_->all.give_back(made);
        return nullptr;
    }
    made->functions = jemalloc_table::find();
    made->owner = number();
    made->epoch = 0;
    made->next_of_thread = nullptr;
    made->now.store(detail::thread_cache::used, std::memory_order_relaxed);  // published below
    made->next_of_owner = caches_.load(std::memory_order_relaxed);
    // release: pairs with the acquire in idle_cache.
    while (!caches_.compare_exchange_weak(made->next_of_owner, made, std::memory_order_release,
                                          std::memory_order_relaxed)) {
    }
    return made;
}

template <class Frames>
std::size_t small_blocks<Frames>::allocated_bytes() const noexcept {
    std::uint64_t epoch = 1;
    std::size_t epoch_bytes = sizeof epoch;
    functions_.mallctl("epoch", &epoch, &epoch_bytes, &epoch, sizeof epoch);
    std::size_t sum = 0;
    for (const char* kind : {"small", "large"}) {
        char name[64];
        std::snprintf(name, sizeof name, "stats.arenas.%u.%s.allocated", arena_, kind);
        sum += functions_.value_of<std::size_t>(name, 0);
    }
    return sum;
}

}  // namespace xmm
