// SPDX-License-Identifier: Apache-2.0
// heap_shelf.hpp - the addresses of one queue and one tag: what serves its small blocks, and its large ones.
//
// Model    Shelves are made when a queue and tag are first seen, numbered as they come, and stay until the table
//          goes, so that they are found without a lock. When its queue is over a shelf is nobody's, and goes, with
//          what is on it, to the next queue that asks for that tag: there are never more than queues at once.
// Threads  Any. One mutex, taken before all ranked locks, is held while a shelf is made or changes hands.
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

// What stands behind the addresses of one reservation. Who has a block there reads it as it likes. Who has none may
// find a note that is another reservation's by now: see xpu_malloc::find.
struct span_note {
    // relaxed, all: who has a block got its address after these were written; who has none looks again under the
    // owner's lock.
    [[nodiscard]] heap_shelf* owner() const noexcept {
        return owner_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] bool is_small() const noexcept {
        return is_small_.load(std::memory_order_relaxed);
    }
    void set(heap_shelf& owner, bool is_small) noexcept {
        owner_.store(&owner, std::memory_order_relaxed);
        is_small_.store(is_small, std::memory_order_relaxed);
    }

    block_marks marks;  // if small
    list_link link;     // among the owner's small ones

private:
    std::atomic<heap_shelf*> owner_{nullptr};
    std::atomic<bool> is_small_{false};
};

struct heap_shelf {
    using small_kind = small_blocks<device_frames>;

    heap_shelf(device_frames& frames, queue_id on, pool_tag as, unsigned its_number,
               bool uses_jemalloc) noexcept
        : key{key_of(on, as)},
          tag{as},
          number{its_number},
          large{frames, on, {.tag = as.value, .owner = this}},
          queue_{on.value} {
        if (uses_jemalloc) {
            if (auto made = small_kind::make(frames, on, as.value, this)) {
                small = std::move(*made);
            }
        }
    }
    [[nodiscard]] static std::uint64_t key_of(queue_id queue, pool_tag tag) noexcept {
        return std::uint64_t{queue.value} << 16 | tag.value;
    }
    static constexpr std::uint64_t no_key = ~std::uint64_t{0};

    // Whose work may use its blocks without a word; 0 while it is nobody's.
    [[nodiscard]] queue_id queue() const noexcept {
        // relaxed: it changes when all work of the one before is done, so the one before is as good an answer.
        return {queue_.load(std::memory_order_relaxed)};
    }
    // Under the table's mutex, both. All work of the queue before is done. Number 0 is a queue as any other here.
    void go_to(queue_id next_one) noexcept { change_to(next_one, key_of(next_one, tag)); }
    void become_nobodys() noexcept { change_to({}, no_key); }

    // (C) constant once published  (A) atomic, written under the table's mutex  (L) lock
    std::atomic<std::uint64_t> key;          // (A)  no_key: it is nobody's
    const pool_tag tag;                      // (C)
    const unsigned number;                   // (C)  counts from 0
    std::atomic<heap_shelf*> next{nullptr};  // (A)  in its bucket
    heap_shelf* next_of_all = nullptr;       // (C)
    ranked_mutex<lock_rank::leaf> lock;
    list<span_note, &span_note::link> small_notes;  // (L)
    // Last, and so the first to go: their spans leave the lists above.
    extent_heap large;
    std::unique_ptr<small_kind> small;  // (C)  null: no jemalloc

private:
    void change_to(queue_id next_one, std::uint64_t its_key) noexcept {
        large.set_queue(next_one);
        if (small != nullptr) {
            small->set_queue(next_one);
        }
        queue_.store(next_one.value, std::memory_order_relaxed);
        // release: pairs with the acquire in shelf_table::find.
        key.store(its_key, std::memory_order_release);
    }

    std::atomic<std::uint32_t> queue_;  // (A)
};

class shelf_table {
public:
    shelf_table(device_frames& frames, bool uses_jemalloc) noexcept
        : frames_{frames}, uses_jemalloc_{uses_jemalloc} {}
    shelf_table(const shelf_table&) = delete;
    shelf_table& operator=(const shelf_table&) = delete;
    // No block of theirs is used any more.
    ~shelf_table() {
        // relaxed: nobody else may use a table that is being destroyed.
        for (heap_shelf* one = all_.load(std::memory_order_relaxed); one != nullptr;) {
            delete std::exchange(one, one->next_of_all);
        }
    }

    // Null if there is none yet, or if it changes hands right now: make() knows.
    [[nodiscard]] heap_shelf* find(queue_id queue, pool_tag tag) const noexcept {
        const std::uint64_t key = heap_shelf::key_of(queue, tag);
        // acquire, all three: pair with the releases in enter and change_to; a shelf is complete before it is found.
        heap_shelf* one = buckets_[bucket_of(key)].load(std::memory_order_acquire);
        while (one != nullptr && one->key.load(std::memory_order_acquire) != key) {
            one = one->next.load(std::memory_order_acquire);
        }
        return one;
    }
    // Null: no memory. Another thread may have made it meanwhile.
    [[nodiscard]] heap_shelf* make(queue_id queue, pool_tag tag) noexcept {
        std::lock_guard guard{order_};
        if (heap_shelf* found = find(queue, tag)) {
            return found;
        }
        const std::uint64_t key = heap_shelf::key_of(queue, tag);
        // relaxed, here and below: written under this mutex only.
        for (heap_shelf* one = all_.load(std::memory_order_relaxed); one != nullptr;
             one = one->next_of_all) {
            if (one->tag == tag && one->key.load(std::memory_order_relaxed) == heap_shelf::no_key) {
                one->go_to(queue);
                enter(*one, key);
                return one;
            }
        }
        auto* made = new (std::nothrow) heap_shelf{frames_, queue, tag, count_, uses_jemalloc_};
        if (made != nullptr) {
            ++count_;
            made->next_of_all = all_.load(std::memory_order_relaxed);
            // release: pairs with the acquire in for_each.
            all_.store(made, std::memory_order_release);
            enter(*made, key);
        }
        return made;
    }
    // The queue is over, all its work done, and nobody allocates on it. before(shelf&) for each of its shelves,
    // under the mutex.
    template <class Fn>
    void retire(queue_id queue, Fn&& before) noexcept {
        std::lock_guard guard{order_};
        for_each([&](heap_shelf& one) {
            const std::uint64_t key = one.key.load(std::memory_order_relaxed);
            if (key == heap_shelf::key_of(queue, one.tag)) {
                before(one);
                leave(one, key);
                one.become_nobodys();
            }
        });
    }
    // Those that are made meanwhile may be missed.
    template <class Fn>
    void for_each(Fn&& fn) {
        // acquire: pairs with the release in make.
        for (heap_shelf* one = all_.load(std::memory_order_acquire); one != nullptr;
             one = one->next_of_all) {
            fn(*one);
        }
    }

private:
    static constexpr unsigned bucket_count = 64;

    static unsigned bucket_of(std::uint64_t key) noexcept {
        return static_cast<unsigned>(key * 0x9e3779b97f4a7c15u >> 58);
    }
    void enter(heap_shelf& one, std::uint64_t key) noexcept {
        std::atomic<heap_shelf*>& bucket = buckets_[bucket_of(key)];
        one.next.store(bucket.load(std::memory_order_relaxed), std::memory_order_release);
        bucket.store(&one, std::memory_order_release);
    }
    // Who walks the bucket meanwhile may come out in another one, and miss what make() finds.
    void leave(heap_shelf& one, std::uint64_t key) noexcept {
        std::atomic<heap_shelf*>* link = &buckets_[bucket_of(key)];
        while (link->load(std::memory_order_relaxed) != &one) {
            link = &link->load(std::memory_order_relaxed)->next;
        }
        link->store(one.next.load(std::memory_order_relaxed), std::memory_order_release);
    }

    device_frames& frames_;
    const bool uses_jemalloc_;
    std::array<std::atomic<heap_shelf*>, bucket_count> buckets_{};  // written under order_
    std::atomic<heap_shelf*> all_{nullptr};                         // written under order_
    std::mutex order_;
    unsigned count_ = 0;  // under order_
};

}  // namespace xmm
