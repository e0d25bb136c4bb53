// SPDX-License-Identifier: Apache-2.0
// unified_pool.hpp - small blocks of unified memory: what pmr containers are given.
//
// Model    A pool_resource that owns its unified_resource. List nodes and strings share pages, and the
//          pages move under them; the pool's own bookkeeping lies in plain host memory.
// Threads  Any.
#pragma once

#include <xmm/resources/pool_resource.hpp>
#include <xmm/resources/space_resource.hpp>

namespace xmm {
namespace detail {

// A base, so that the resource is made before the pool that draws from it and dies after.
struct holds_unified {
    unified_resource held;
};

}  // namespace detail

class unified_pool final : private detail::holds_unified, public pool_resource<unified_resource> {
public:
    explicit unified_pool(space_port space, node_id preferred = no_node, pool_options options = {})
        : holds_unified{unified_resource{space, preferred}}, pool_resource{held, options} {}
};

}  // namespace xmm
