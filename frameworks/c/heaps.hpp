// SPDX-License-Identifier: Apache-2.0
// heaps.hpp - from a node's number, or a pointer, to the heap of the default space that it means.
//
// Model    Heaps live as long as the process, so each library remembers those that it has met.
// Threads  Any; no lock once a heap is known here.
#pragma once

#include <array>
#include <atomic>

#include <xmm/facade/default_space.hpp>
#include <xmm/resources/xpu_malloc.hpp>

#include "xmm.h"

namespace xmm::c_interface {

// The default space, or why there is none: a library must not end its program over that.
inline result<space*> the_space() noexcept {
    return registry::is_forked_child()
               ? fail(errc::forked, "this is a forked child: the devices are its parent's")
               : detail::try_default_space();
}

class heap_finder {
public:
    // The node that a caller's number means.
    static result<node*> node_of(int32_t number) noexcept {
        result<space*> all = the_space();
        if (!all) {
            return all.error();
        }
        address_space& core = (*all)->state().core;
        if (number == XMM_DEFAULT_NODE) {
            return core.node_count() > core.host_count()
                       ? result<node*>{&core.at_slot(core.host_count())}
                       : fail(errc::unknown_node, "there is no device");
        }
        if (number == any_host.value) {
            return core.host_count() > 0 ? result<node*>{&core.at_slot(0)}
                                         : fail(errc::unknown_node, "there is no host node");
        }
        return (*all)->state().check_node(node_id{number});
    }
    static result<xpu_malloc*> at(int32_t number) noexcept {
        // acquire: pairs with the release in remember.
        if (xpu_malloc* known =
                is_kept(number) ? kept(number).load(std::memory_order_acquire) : nullptr;
            known != nullptr && !registry::is_forked_child()) {
            return known;
        }
        result<node*> on = node_of(number);
        if (!on) {
            return on.error();
        }
        result<xpu_malloc*> heap = (*the_space())->heap((*on)->id);
        if (heap) {
            remember(number, **heap);
            remember((*on)->id.value, **heap);
        }
        return heap;
    }
    // The heap that has the address among its own; not_mapped if none has.
    static result<xpu_malloc*> around(const void* pointer) noexcept {
        if (registry::is_forked_child()) {
            return fail(errc::forked, "this is a forked child: the heap is its parent's");
        }
        for (std::size_t i = 0; i < most_kept; ++i) {
            // acquire: pairs with the release in remember.
            xpu_malloc* one = kept_[i].load(std::memory_order_acquire);
            if (one != nullptr && one->owns(pointer)) {
                return one;
            }
        }
        return around_unmet(pointer);
    }

private:
    static constexpr int32_t least_number = XMM_DEFAULT_NODE;
    static constexpr std::size_t most_kept = 64;

    static bool is_kept(int32_t number) noexcept {
        return number >= least_number && number < least_number + static_cast<int32_t>(most_kept);
    }
    static std::atomic<xpu_malloc*>& kept(int32_t number) noexcept {
        return kept_[static_cast<std::size_t>(number - least_number)];
    }
    static void remember(int32_t number, xpu_malloc& heap) noexcept {
        if (is_kept(number)) {
            // release: pairs with the acquires in at and around; the heap is complete.
            kept(number).store(&heap, std::memory_order_release);
        }
    }
    // Another library's block, of a node that this one was never asked about.
    static result<xpu_malloc*> around_unmet(const void* pointer) noexcept {
        result<space*> all = the_space();
        if (!all) {
            return all.error();
        }
        node_id home = no_node;
        (*all)->state().core.with_granule(to_address(pointer), [&](granule& page) {
            home = page.home != no_slot ? (*all)->state().core.at_slot(page.home).id : no_node;
        });
        if (!(home == no_node)) {
            if (result<xpu_malloc*> heap = at(home.value); heap && (*heap)->owns(pointer)) {
                return heap;
            }
        }
        return fail(errc::not_mapped, "the pointer is in no block");
    }

    // A cache for this library alone; by number.
    static inline std::array<std::atomic<xpu_malloc*>, most_kept> kept_{};
};

}  // namespace xmm::c_interface
