// SPDX-License-Identifier: Apache-2.0
// resource_port.hpp - a space as the memory resources see it.
//
// Model    port_of(space) is what unified_resource, device_resource, pinned_resource and the pools are made
//          from. The space lives as long as they do; its handle may be moved meanwhile.
// Threads  Any.
#pragma once

#include <xmm/facade/space.hpp>
#include <xmm/resources/queue_driver.hpp>
#include <xmm/resources/space_port.hpp>

namespace xmm {
namespace detail {

// The functions behind the port of a space.
struct port_functions {
    static space_state& of(void* self) noexcept { return *static_cast<space_state*>(self); }

    static result<void*> map(void* self, const page_request& wanted) noexcept {
        return of(self).map(wanted.bytes, {.granule_bytes = wanted.granule_bytes,
                                           .alignment = wanted.alignment,
                                           .preferred = wanted.preferred,
                                           .fixed = wanted.fixed,
                                           .name = wanted.name});
    }
    static status unmap(void* self, void* pointer) noexcept { return of(self).unmap(pointer); }
    static status prefetch(void* self, node_id node, void* pointer, std::size_t bytes) noexcept {
        return of(self).start_prefetch(node, pointer, bytes).error();
    }
    static resource_usage usage(void* self, node_id node) noexcept {
        result<xmm::node*> found = of(self).check_node(node);
        if (!found) {
            return {};
        }
        const node_usage now = space_state::usage_of(**found);
        return {now.used, now.limit};
    }
    static reach reach_of(void* self, node_id node) noexcept {
        const xmm::node* found = of(self).core.find_node(node);
        return found == nullptr ? reach::none : (found->is_host ? reach::host : reach::device);
    }
    static result<ticket> record(void* self, queue_id queue) noexcept {
        const status alive = of(self).check_alive();
        return alive ? driver_of(self, queue).record(queue) : result<ticket>{alive};
    }
    static bool is_done(void* self, ticket point) noexcept {
        return !of(self).check_alive() || driver_of(self, point.queue).is_done(point);
    }
    static status wait(void* self, ticket point) noexcept {
        const status alive = of(self).check_alive();
        return alive ? driver_of(self, point.queue).wait(point) : alive;
    }
    static result<xpu_malloc*> heap(void* self, node_id node) noexcept {
        return of(self).heap_of(node);
    }
    static backend_ref driver_of(void* self, queue_id queue) noexcept {
        address_space& core = of(self).core;
        return detail::driver_of(core, queue, core.at_slot(core.node_count() - 1).driver);
    }

    static constexpr space_table table() noexcept {
        return {&map, &unmap, &prefetch, &usage, &reach_of, {&record, &is_done, &wait}, &heap};
    }
};

inline constexpr space_table table_of_space = port_functions::table();

}  // namespace detail

[[nodiscard]] inline space_port port_of(space& one) noexcept {
    return {&one.state(), detail::table_of_space};
}

}  // namespace xmm
