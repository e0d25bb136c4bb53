// SPDX-License-Identifier: Apache-2.0
// malloc_ladder.hpp - what a heap wins back for a block that finds no memory, from the cheap to the dear.
//
// Model    Finished blocks and caches first, then waiting for queues, then idle frames of any size, then the
//          user's callback, then unified memory that gives way; after each rung the block is tried again. The last
//          rung is left out where all unified memory would not do: blocks that the program has are not to be won.
//          trim() takes the cheap rungs for nobody; while the device is over its limit idle frames go, too.
// Threads  Any, with no lock held: queues are waited for, and the callback is the user's.
// Failure  climb: no_memory, as the last try said it. What was won on the way stays won; unified memory is asked for
//          only if that can be enough, as far as this heap knows: what other spaces or pins hold may be in the way.
// See      xpu_malloc.hpp allocates; shortage_desk.hpp has the callback.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>
#include <xmm/mapping/ledger.hpp>
#include <xmm/resources/heap_desk.hpp>
#include <xmm/resources/heap_shelf.hpp>
#include <xmm/resources/heap_state.hpp>
#include <xmm/resources/malloc_request.hpp>
#include <xmm/resources/returned_blocks.hpp>
#include <xmm/resources/shortage_desk.hpp>
#include <xmm/resources/small_stock.hpp>

namespace xmm {

class malloc_ladder {
public:
    malloc_ladder(heap_state& heap, small_stock& small, returned_blocks& returned,
                  malloc_surroundings around) noexcept
        : heap_{heap},
          small_{small},
          returned_{returned},
          around_{around},
          book_{heap.port.book()} {}

    [[nodiscard]] shortage_desk& users_help() noexcept { return users_help_; }

    // Nothing has to be given back, and there can be room for that much: asked for every large block.
    [[nodiscard]] bool is_within_limit(std::size_t bytes) const noexcept {
        return book_ != nullptr ? std::max(bytes, book_->used()) <= book_->limit()
                                : bytes <= heap_.port.most_bytes();
    }
    // The heap may hold more than there is to be had: frames from before the device's limit was lowered.
    [[nodiscard]] bool can_ever_fit(std::size_t bytes) const noexcept {
        return bytes <= heap_.port.most_bytes() || bytes <= heap_.frames.counts().reserved_bytes;
    }
    // The limit was lowered below what is in use, or others took of the device. Asked often.
    [[nodiscard]] bool is_over_limit() const noexcept {
        return book_ != nullptr && book_->is_over_limit();
    }
    // Idle frames go as far as the device is over its limit: those whose queues are done. Nobody is waited for, since
    // whoever asks may have a block that needs no new frame.
    void give_excess_back() noexcept {
        heap_.port.drop_kept();
        static_cast<void>(heap_.frames.drop_finished(most_to_keep()));
    }
    // try_it() is asked once more after each rung, as long as it says no_memory.
    template <class Try>
    result<void*> climb(const heap_shelf& home, const malloc_request& wanted, heap_desk* mine,
                        Try&& try_it) noexcept {
        heap_.journal.statistics().count(heap_count::alloc_retries);
        const char* why = "";
        const auto again = [&]() -> std::optional<result<void*>> {
            result<void*> given = try_it();
            if (given || given.code() != errc::no_memory) {
                return given;
            }
            why = given.error().why;
            return std::nullopt;
        };
        empty_caches(mine, false);
        if (auto given = again()) {
            return std::move(*given);
        }
        empty_caches(mine, true);
        if (auto given = again()) {
            return std::move(*given);
        }
        static_cast<void>(heap_.frames.trim(0));
        if (auto given = again()) {  // others may have dropped some meanwhile
            return std::move(*given);
        }
        while (users_help_.ask(wanted.bytes)) {
            empty_caches(mine, true);
            static_cast<void>(heap_.frames.trim(0));
            if (auto given = again()) {
                return std::move(*given);
            }
        }
        for (unsigned tries = 0;
             tries < most_reclaims && can_be_won(wanted.bytes) && reclaim(wanted.bytes) != 0;
             ++tries) {
            if (auto given = again()) {
                return std::move(*given);
            }
        }
        return out_of_memory(home, wanted, why);
    }
    status out_of_memory(const heap_shelf& home, const malloc_request& wanted,
                         const char* why) noexcept {
        heap_.journal.statistics().count(heap_count::ooms);
        heap_.journal.note(trace_action::out_of_memory, home, free_bytes(), wanted.bytes);
        if (around_.note_shortage != nullptr) {
            around_.note_shortage(around_.self, wanted.bytes, why);
        }
        return fail(errc::no_memory, why);
    }

    // Drops idle frames until the heap holds no more than that; answers how many bytes went.
    std::size_t trim(std::size_t keep_bytes, heap_desk* mine) noexcept {
        empty_caches(mine, false);
        const std::size_t gone = heap_.frames.trim(keep_bytes);
        heap_.port.drop_kept();
        return gone;
    }
    // Drops those of one tag's addresses.
    std::size_t trim(pool_tag tag, heap_desk* mine) noexcept {
        empty_caches(mine, false, &tag);
        const std::size_t before = heap_.frames.reserved_bytes(tag.value);
        heap_.shelves.for_each([&](heap_shelf& one) {
            if (one.tag == tag) {
                one.large.trim();
            }
        });
        static_cast<void>(heap_.frames.trim(0, tag.value));
        heap_.port.drop_kept();
        const std::size_t after = heap_.frames.reserved_bytes(tag.value);
        return before > after ? before - after : 0;  // others may allocate meanwhile
    }

private:
    static constexpr unsigned most_reclaims = 64;  // others may take what was won

    [[nodiscard]] std::size_t most_to_keep() const noexcept {
        const std::size_t used = book_->used();
        const std::size_t excess = used - std::min(used, book_->limit());
        const std::size_t held = heap_.frames.counts().reserved_bytes;
        return held - std::min(held, excess);
    }
    // What threads, queues and jemalloc keep goes back to the shelves.
    void empty_caches(heap_desk* mine, bool waits, const pool_tag* only = nullptr) noexcept {
        if (waits) {
            returned_.await_and_drain(mine);
        } else {
            returned_.drain(mine);
        }
        // After the drain, which fills this thread's magazines.
        heap_.flushes.ask_for_flush();
        if (mine != nullptr) {
            small_.follow_flush(*mine);
        }
        heap_.shelves.for_each([&](heap_shelf& one) {
            if (only == nullptr || one.tag == *only) {
                small_stock::purge(one);
            }
        });
    }
    // Of the device's limit; 0: not known.
    [[nodiscard]] std::size_t free_bytes() const noexcept {
        return book_ == nullptr ? 0 : book_->limit() - std::min(book_->limit(), book_->used());
    }
    // With caches empty and queues awaited: whether there is room beside the blocks that the program has.
    [[nodiscard]] bool can_be_won(std::size_t bytes) const noexcept {
        const std::size_t most = heap_.port.most_bytes();
        return bytes <= most - std::min(most, heap_.frames.counts().live_bytes);
    }
    std::size_t reclaim(std::size_t bytes) noexcept {
        return around_.reclaim != nullptr ? around_.reclaim(around_.self, bytes) : 0;
    }

    heap_state& heap_;
    small_stock& small_;
    returned_blocks& returned_;
    const malloc_surroundings around_;
    const ledger* const book_;  // null: the port has none
    shortage_desk users_help_;
};

}  // namespace xmm
