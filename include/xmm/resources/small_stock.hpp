// SPDX-License-Identifier: Apache-2.0
// small_stock.hpp - the small blocks of a heap: magazines of threads in front of the jemalloc of each shelf.
//
// Model    A thread takes from its magazine of the shelf, and fills it a quarter when it is empty; what it gives back
//          goes there, and half of a full one back to the shelf. A block outside of jemalloc is marked with its
//          class, and as given while the program has it.
// Threads  Any; a desk is its thread's alone, and a thread without one goes to the shelf each time. No lock of its
//          own: jemalloc has its own, taken before all ranked ones.
// Failure  allocate: no_memory from the shelf; unsupported in a thread's last destructors, see small_blocks.hpp.
// See      xpu_malloc.hpp has the short way of a block that a magazine has.
#pragma once

#include <cstddef>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/resources/block_classes.hpp>
#include <xmm/resources/block_magazine.hpp>
#include <xmm/resources/heap_desk.hpp>
#include <xmm/resources/heap_shelf.hpp>
#include <xmm/resources/heap_state.hpp>

namespace xmm {

class small_stock {
public:
    explicit small_stock(heap_state& heap) noexcept : heap_{heap} {}

    // The shelf has small blocks, and the size is one of theirs.
    [[nodiscard]] result<void*> allocate(heap_shelf& home, std::size_t bytes,
                                         heap_desk* mine) noexcept {
        const unsigned block_class = block_classes::index_of(bytes);
        result<void*> given = take(home, block_class, mine);
        if (given) {
            hand_out(home, to_address(*given), block_class, bytes, mine);
        }
        return given;
    }
    // Nothing uses the block any more but what the shelf's queue runs before what comes next.
    void put_back(heap_shelf& home, address at, unsigned block_class, heap_desk* mine) noexcept {
        block_magazine* magazine = mine != nullptr ? mine->magazine_of(home) : nullptr;
        if (magazine == nullptr) {
            return_to(home, to_pointer(at));
            return;
        }
        follow_flush(*mine);
        if (!magazine->push(block_class, to_pointer(at))) {
            magazine->drop_half(block_class, [&](unsigned, void* old) { return_to(home, old); });
            static_cast<void>(magazine->push(block_class, to_pointer(at)));
        }
    }

    // What others have asked for since.
    void follow_flush(heap_desk& mine) noexcept {
        if (heap_.flushes.bring_up(mine)) {
            empty_magazines(mine);
        }
    }
    void empty_magazines(heap_desk& mine) noexcept {
        mine.last_marks = {};
        heap_.shelves.for_each([&](heap_shelf& home) {
            if (block_magazine* kept = mine.find_magazine(home)) {
                kept->drop_all([&](unsigned, void* block) { return_to(home, block); });
            }
        });
    }
    // What the shelf's jemalloc keeps goes back to the frames.
    static void purge(heap_shelf& home) noexcept {
        if (home.small != nullptr) {
            home.small->flush();
            home.small->purge();
        }
    }

private:
    [[nodiscard]] result<void*> take(heap_shelf& home, unsigned block_class,
                                     heap_desk* mine) noexcept {
        block_magazine* magazine = nullptr;
        if (mine != nullptr) {
            follow_flush(*mine);
            magazine = mine->magazine_of(home);
        }
        if (magazine == nullptr) {
            return make(home, block_class);
        }
        if (void* kept = magazine->pop(block_class)) {
            return kept;
        }
        result<void*> first = make(home, block_class);
        for (unsigned more = block_magazine::capacity_of(block_class) / 4; first && more > 0;
             --more) {
            result<void*> next = make(home, block_class);
            if (!next || !magazine->push(block_class, *next)) {
                break;
            }
        }
        return first;
    }
    void hand_out(heap_shelf& home, address at, unsigned block_class, std::size_t requested,
                  heap_desk* mine) noexcept {
        heap_.notes.find(at)->marks.give(at, block_class);
        const std::size_t whole = block_classes::bytes_of(block_class);
        heap_.journal.count_given(mine, heap_pool::small, whole, whole);
        heap_.journal.note(trace_action::allocate, home, at, requested);
    }
    result<void*> make(heap_shelf& home, unsigned block_class) noexcept {
        result<void*> made =
            home.small->allocate(block_classes::bytes_of(block_class), block_classes::unit);
        if (made) {
            heap_.notes.find(to_address(*made))->marks.enter(to_address(*made), block_class);
        }
        return made;
    }
    void return_to(heap_shelf& home, void* block) noexcept {
        heap_.notes.find(to_address(block))->marks.clear(to_address(block));
        home.small->deallocate(block);
    }

    heap_state& heap_;
};

}  // namespace xmm
