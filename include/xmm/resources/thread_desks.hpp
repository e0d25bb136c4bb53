// SPDX-License-Identifier: Apache-2.0
// thread_desks.hpp - the desk of the calling thread: found without a lock, passed on when the thread ends.
//
// Model    Threads find their desk in a table of their own, and remember the last one. A thread that ends empties
//          its magazines, and its desk waits for the next thread that comes. From then on the thread gets no desk of
//          any heap: nobody might learn that it has left again.
// Threads  Any. The end of a thread runs under the directory's lock of os/per_thread.hpp, before all ranked locks.
// Failure  Null without memory, or at the very end of a thread: then it goes without magazines. Null for a thread of
//          a forked child that has none yet: whoever had the locks is not there.
// See      heap_desk.hpp is what a desk holds.
#pragma once

#include <atomic>
#include <cstdint>

#include <xmm/os/per_thread.hpp>
#include <xmm/os/registry.hpp>
#include <xmm/resources/heap_desk.hpp>
#include <xmm/resources/heap_shelf.hpp>
#include <xmm/resources/heap_statistics.hpp>
#include <xmm/resources/small_stock.hpp>

namespace xmm {

class thread_desks {
public:
    // Both outlive it, and so do the shelves: threads that end come here as long as it is there.
    thread_desks(heap_statistics& statistics, small_stock& small) noexcept
        : statistics_{statistics}, small_{small} {}
    thread_desks(const thread_desks&) = delete;
    thread_desks& operator=(const thread_desks&) = delete;

    [[nodiscard]] heap_desk* of_thread() noexcept {
        // One a shared object; each just remembers what the thread's table says.
        struct memory {
            std::uint64_t owner = 0;
            heap_desk* mine = nullptr;
            std::uint64_t generation = 0;
        };
        static thread_local memory last;
        // relaxed: only a thread that has left can see another generation, and it looks for nothing else.
        if (last.owner == number_ &&
            last.mine->generation.load(std::memory_order_relaxed) == last.generation) {
            return last.mine;
        }
        heap_desk* mine = look_up();
        if (mine != nullptr) {
            last = {number_, mine, mine->generation.load(std::memory_order_relaxed)};
        }
        return mine;
    }

private:
    [[gnu::noinline]] heap_desk* look_up() noexcept {
        void* found = items_.find();
        return found != nullptr ? static_cast<heap_desk*>(found) : make();
    }
    heap_desk* make() noexcept {
        if (heap_shelf::small_kind::is_end_of_thread() || registry::is_forked_child()) {
            return nullptr;
        }
        heap_desk* made = desks_.take();
        if (made == nullptr) {
            return nullptr;
        }
        if (made->counts == nullptr) {
            made->counts = statistics_.try_attach();
        }
        if (made->counts == nullptr || !items_.set(made)) {
            desks_.give_back(*made);
            return nullptr;
        }
        return made;
    }
    static void thread_left(void* self, void* item) noexcept {
        if (registry::is_forked_child()) {
            return;
        }
        auto& all = *static_cast<thread_desks*>(self);
        auto* mine = static_cast<heap_desk*>(item);
        // relaxed: see of_thread
        mine->generation.fetch_add(1, std::memory_order_relaxed);
        // Keys of threads are destroyed after thread_local variables.
        heap_shelf::small_kind::end_caches_of_thread();
        all.small_.empty_magazines(*mine);
        all.desks_.give_back(*mine);
    }

    const std::uint64_t number_ = registry::next_number(number_kind::other);
    heap_statistics& statistics_;
    small_stock& small_;
    desk_table desks_;
    thread_items items_{&thread_left, this};  // the first to go: then no thread comes any more
};

}  // namespace xmm
