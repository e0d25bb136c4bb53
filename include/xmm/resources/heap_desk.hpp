// SPDX-License-Identifier: Apache-2.0
// heap_desk.hpp - what one thread keeps of a heap: magazines of the shelves that it uses, and its counts.
//
// Model    A desk passes to another thread when its own ends. The desks of a heap stay until the heap goes.
// Threads  A desk is its thread's alone. One lock (rank leaf) guards the list of desks.
// Failure  take() and magazine_of() are null without memory: then a thread goes without.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include <xmm/core/lock.hpp>
#include <xmm/resources/block_magazine.hpp>
#include <xmm/resources/block_marks.hpp>
#include <xmm/resources/heap_shelf.hpp>
#include <xmm/resources/heap_statistics.hpp>

namespace xmm {

struct heap_desk {
    // The magazine of a shelf that has small blocks. Null: no memory.
    [[nodiscard]] block_magazine* magazine_of(heap_shelf& home) noexcept {
        last_key = home.key.load(std::memory_order_relaxed);  // relaxed: see xpu_malloc::try_kept
        if (last == &home) {
            return last_magazine;
        }
        try {
            if (magazines.size() <= home.number) {
                magazines.resize(home.number + 1);
            }
            if (magazines[home.number] == nullptr) {
                magazines[home.number] = std::make_unique<block_magazine>();
            }
        } catch (const std::bad_alloc&) {
            last_key = heap_shelf::no_key;
            return nullptr;
        }
        last = &home;
        last_marks = {};
        return last_magazine = magazines[home.number].get();
    }
    [[nodiscard]] block_magazine* find_magazine(const heap_shelf& home) const noexcept {
        return home.number < magazines.size() ? magazines[home.number].get() : nullptr;
    }

    // The first three and those of the last shelf are read for each cached block.
    // (A) atomic  (T) the thread that has it; all without a letter are (T)
    heap_statistics::stripe* counts = nullptr;  // null: there was no memory for one
    std::uint64_t epoch = 0;                    // that it has followed
    std::atomic<std::uint64_t> generation{0};   // (A)  of the threads that have had it
    // Where the thread was last: a shelf, its magazine, and the marks of one of the shelf's small spans.
    std::uint64_t last_key = heap_shelf::no_key;
    block_magazine* last_magazine = nullptr;
    heap_shelf* last = nullptr;
    mark_view last_marks;  // as long as nothing was flushed
    std::vector<std::unique_ptr<block_magazine>>
        magazines;  // by the shelf's number; null where unused
};

class desk_table {
public:
    // One that nobody has; null without memory.
    [[nodiscard]] heap_desk* take() noexcept {
        return with(lock_, [&]() -> heap_desk* {
            if (!idle_.empty()) {
                heap_desk* idle = idle_.back();
                idle_.pop_back();
                return idle;
            }
            try {
                idle_.reserve(desks_.size() + 1);  // so that give_back allocates nothing
                desks_.push_back(std::make_unique<heap_desk>());
                return desks_.back().get();
            } catch (const std::bad_alloc&) {
                return nullptr;
            }
        });
    }
    void give_back(heap_desk& one) noexcept {
        with(lock_, [&] { idle_.push_back(&one); });
    }

private:
    ranked_mutex<lock_rank::leaf> lock_;
    std::vector<std::unique_ptr<heap_desk>> desks_;  // under lock_, as the next
    std::vector<heap_desk*> idle_;
};

}  // namespace xmm
