// SPDX-License-Identifier: Apache-2.0
// device_heap.hpp - the malloc of one node of a space.
//
// Model    The heap, the port through which it gets frames of the space, and the two ways of help in need: the
//          heap asks placement to demote unified memory, placement asks the heap for frames that lie idle.
// Threads  Any.
#pragma once

#include <xmm/placement/engine.hpp>
#include <xmm/resources/space_frames.hpp>
#include <xmm/resources/xpu_malloc.hpp>

namespace xmm {

class device_heap final : public frame_lender {
public:
    device_heap(address_space& core, placement_engine& engine, xmm::node& at)
        : engine_{engine},
          node_{at},
          port_{core, engine.moves, engine.releases, at},
          heap_{port_, at.id, {}, {this, &reclaim, &note_shortage}} {
        // release: pairs with the acquire in reclaimer; the heap is complete.
        node_.lender.store(this, std::memory_order_release);
    }
    // No thread is in a call of the space any more, nor do any of its own move pages.
    ~device_heap() { node_.lender.store(nullptr, std::memory_order_relaxed); }

    [[nodiscard]] xpu_malloc& heap() noexcept { return heap_; }

    std::size_t give_back(std::size_t bytes) noexcept override {
        const std::size_t held = heap_.frames().counts().reserved_bytes;
        // A fault may ask, and what would be waited for may be its own kernel.
        return heap_.frames().drop_finished(held > bytes ? held - bytes : 0);
    }

private:
    static std::size_t reclaim(void* self, std::size_t bytes) noexcept {
        auto& me = *static_cast<device_heap*>(self);
        return me.engine_.frames.reclaim(me.node_, bytes);
    }
    static void note_shortage(void* self, std::size_t bytes, const char* why) noexcept {
        auto& me = *static_cast<device_heap*>(self);
        me.engine_.frames.note_shortage(me.node_, bytes, why);
    }

    placement_engine& engine_;
    xmm::node& node_;
    space_frames port_;
    xpu_malloc heap_;
};

}  // namespace xmm
