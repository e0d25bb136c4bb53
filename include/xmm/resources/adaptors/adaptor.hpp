// SPDX-License-Identifier: Apache-2.0
// adaptor.hpp - the base of the adaptors: a resource that wraps another one and changes one thing.
//
// Model    An adaptor is what its upstream is: on the CPU's side a std::pmr resource, else device-only.
//          It refers to an upstream that outlives it: any type that satisfies `resource`. Adaptors stack
//          in any order.
// Threads  Any, if the upstream is; each adaptor's own state has its own lock or is atomic.
// Failure  An upstream's exception passes through after the adaptor has undone its own part.
#pragma once

#include <xmm/resources/memory_resource.hpp>
#include <xmm/resources/upstream.hpp>

namespace xmm {

template <resource Upstream>
class adaptor : public detail::base_for<Upstream::static_reach> {
public:
    static constexpr reach static_reach = Upstream::static_reach;

    [[nodiscard]] Upstream& upstream() const noexcept { return upstream_; }
    [[nodiscard]] resource_usage usage() const noexcept override {
        return detail::usage_of(upstream_);
    }
    [[nodiscard]] queue_port queues() const noexcept override {
        return detail::queues_of(upstream_);
    }

protected:
    adaptor(const char* name, Upstream& upstream) noexcept
        : detail::base_for<Upstream::static_reach>{name, upstream.node(), upstream.reachable_by()},
          upstream_{upstream} {}

private:
    Upstream& upstream_;
};

}  // namespace xmm
