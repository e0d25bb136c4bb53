// SPDX-License-Identifier: Apache-2.0
// shelf_clearing.hpp - gives back every block of a shelf that is left in the program's hands.
//
// Model    A few blocks at a time: what is given back leaves the lists that are walked.
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

// Writes down where blocks begin, as many as there is room for; answers how many.
inline std::size_t list_blocks(heap_shelf& home, std::span<address> found) noexcept {
    std::size_t count = 0;
    const auto add = [&](address at) {
        if (count < found.size()) {
            found[count++] = at;
        }
    };
    home.large.for_each_extent([&](const extent& one) {
        if (!one.is_free && !one.is_pending) {
            add(one.range.begin);
        }
    });
    with(home.lock, [&] {
        home.small_notes.for_each([&](span_note& note) {
            note.marks.for_each(note.marks.range(), [&](va_range one) { add(one.begin); });
        });
    });
    return count;
}

// give_back(address) says whether the block is gone.
template <class GiveBack>
[[nodiscard]] bool clear_shelf(heap_shelf& home, GiveBack&& give_back) noexcept {
    std::array<address, 64> found;
    for (;;) {
        const std::size_t count = list_blocks(home, found);
        std::size_t gone = 0;
        for (std::size_t i = 0; i < count; ++i) {
            gone += give_back(found[i]) ? 1 : 0;
        }
        if (count < found.size() || gone == 0) {
            return gone == count;
        }
    }
}

}  // namespace xmm
