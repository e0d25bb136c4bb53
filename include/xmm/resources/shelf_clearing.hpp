// SPDX-License-Identifier: Apache-2.0
// shelf_clearing.hpp - gives back every block of a shelf that is left in the program's hands.
//
// Model    A few blocks at a time. Large ones leave the list that is walked, so each walk begins at its front; small
//          ones are looked for in the order of their addresses, each place once.
// Threads  Any. The shelf's locks are held while blocks are listed, not while they are given back.
// Failure  False: some could not be given back.
// See      heap_shelf.hpp, xpu_malloc::release.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include <xmm/core/lock.hpp>
#include <xmm/core/types.hpp>
#include <xmm/resources/extents.hpp>
#include <xmm/resources/heap_shelf.hpp>

namespace xmm {

// Where small blocks begin from an address on, as many as there is room for; answers how many. Then `from` is where the
// next ones are to be looked for.
inline std::size_t list_small_blocks(heap_shelf& home, address& from,
                                     std::span<address> found) noexcept {
    std::lock_guard guard{home.lock};
    std::size_t count = 0;
    for (;;) {
        const span_note* lowest = nullptr;
        home.small_notes.for_each([&](const span_note& note) {
            const va_range range = note.marks.range();
            if (range.end() > from &&
                (lowest == nullptr || range.begin < lowest->marks.range().begin)) {
                lowest = &note;
            }
        });
        if (lowest == nullptr) {
            return count;
        }
        for (va_range one = lowest->marks.find_next(from); !one.is_empty();
             one = lowest->marks.find_next(from)) {
            found[count++] = one.begin;
            from = one.begin + block_classes::unit;
            if (count == found.size()) {
                return count;
            }
        }
        from = lowest->marks.range().end();
    }
}

// give_back(address) says whether the block is gone.
template <class GiveBack>
[[nodiscard]] bool clear_shelf(heap_shelf& home, GiveBack&& give_back) noexcept {
    std::array<address, 64> found;
    const auto give_back_those = [&](std::size_t count) {
        std::size_t gone = 0;
        for (std::size_t i = 0; i < count; ++i) {
            gone += give_back(found[i]) ? 1 : 0;
        }
        return gone;
    };
    bool is_clear = true;
    for (bool is_over = false; !is_over;) {
        const std::size_t count = home.large.list_blocks(found);
        const std::size_t gone = give_back_those(count);
        is_clear = gone == count;
        is_over = count < found.size() || gone == 0;
    }
    address from = 0;
    for (bool is_over = false; !is_over;) {
        const std::size_t count = list_small_blocks(home, from, found);
        is_clear = give_back_those(count) == count && is_clear;
        is_over = count < found.size();
    }
    return is_clear;
}

}  // namespace xmm
