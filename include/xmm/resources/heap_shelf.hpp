// SPDX-License-Identifier: Apache-2.0
// heap_shelf.hpp - the addresses of one queue and one tag: what serves its small blocks, and its large ones.
//
// Model    Shelves are made when a queue and tag are first seen, numbered as they come, and stay until the table
//          goes, so that they are found without a lock.
// Threads  Any. One mutex, taken before all ranked locks, is held while a shelf is made.
// Failure  no_memory leaves no shelf.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include <xmm/core/list.hpp>
#include <xmm/core/lock.hpp>
#include <xmm/resources/block_marks.hpp>
#include <xmm/resources/device_frames.hpp>
#include <xmm/resources/extent_heap.hpp>
#include <xmm/resources/malloc_request.hpp>
#include <xmm/resources/small_blocks.hpp>

namespace xmm {

struct heap_shelf;

// What stands behind the addresses of one reservation.
struct span_note {
    heap_shelf* owner = nullptr;
    bool is_small = false;
    block_marks marks;  // if small
    list_link link;     // among the owner's small ones
};

struct heap_shelf {
    using small_kind = small_blocks<device_frames>;

    heap_shelf(device_frames& frames, queue_id on, pool_tag as, unsigned its_number,
               bool uses_jemalloc) noexcept
        : queue{on}, tag{as}, number{its_number}, large{frames, on, {.tag = as.value}} {
        if (uses_jemalloc) {
            if (auto made = small_kind::make(frames, on, as.value)) {
                small = std::move(*made);
            }
        }
    }
    [[nodiscard]] static std::uint64_t key_of(queue_id queue, pool_tag tag) noexcept {
        return std::uint64_t{queue.value} << 16 | tag.value;
    }

    // (C) constant once published  (L) lock
    const queue_id queue;        // (C)
    const pool_tag tag;          // (C)
    const unsigned number;       // (C)  counts from 0
    heap_shelf* next = nullptr;  // (C)  in its bucket
    ranked_mutex<lock_rank::leaf> lock;
    list<span_note, &span_note::link> small_notes;  // (L)
    // Last, and so the first to go: their spans leave the lists above.
    extent_heap large;
    std::unique_ptr<small_kind> small;  // (C)  null: no jemalloc
};

class shelf_table {
public:
    shelf_table(device_frames& frames, bool uses_jemalloc) noexcept
        : frames_{frames}, uses_jemalloc_{uses_jemalloc} {}
    shelf_table(const shelf_table&) = delete;
    shelf_table& operator=(const shelf_table&) = delete;
    // No block of theirs is used any more.
    ~shelf_table() {
        for (auto& bucket : buckets_) {
            // relaxed: nobody else may use a table that is being destroyed.
            for (heap_shelf* one = bucket.load(std::memory_order_relaxed); one != nullptr;) {
                delete std::exchange(one, one->next);
            }
        }
    }

    // Null if there is none yet.
    [[nodiscard]] heap_shelf* find(queue_id queue, pool_tag tag) const noexcept {
        // acquire: pairs with the release in make; a shelf is complete before it is found.
        heap_shelf* one = buckets_[bucket_of(queue, tag)].load(std::memory_order_acquire);
        while (one != nullptr && !(one->queue == queue && one->tag == tag)) {
            one = one->next;
        }
        return one;
    }
    // Null: no memory. Another thread may have made it meanwhile.
    [[nodiscard]] heap_shelf* make(queue_id queue, pool_tag tag) noexcept {
        std::lock_guard guard{order_};
        if (heap_shelf* found = find(queue, tag)) {
            return found;
        }
        auto* made = new (std::nothrow) heap_shelf{frames_, queue, tag, count_, uses_jemalloc_};
        if (made != nullptr) {
            ++count_;
            std::atomic<heap_shelf*>& bucket = buckets_[bucket_of(queue, tag)];
            made->next =
                bucket.load(std::memory_order_relaxed);  // relaxed: written under this lock only
            // release: pairs with the acquire in find.
            bucket.store(made, std::memory_order_release);
        }
        return made;
    }
    // Those that are made meanwhile may be missed.
    template <class Fn>
    void for_each(Fn&& fn) {
        for (auto& bucket : buckets_) {
            // acquire: pairs with the release in make.
            for (heap_shelf* one = bucket.load(std::memory_order_acquire); one != nullptr;
                 one = one->next) {
                fn(*one);
            }
        }
    }

private:
    static constexpr unsigned bucket_count = 64;

    static unsigned bucket_of(queue_id queue, pool_tag tag) noexcept {
        return (queue.value * 2654435761u + tag.value * 40503u) >> 24 & (bucket_count - 1);
    }

    device_frames& frames_;
    const bool uses_jemalloc_;
    std::array<std::atomic<heap_shelf*>, bucket_count> buckets_{};  // written under order_
    std::mutex order_;
    unsigned count_ = 0;  // under order_
};

}  // namespace xmm
