// SPDX-License-Identifier: Apache-2.0
// upstream.hpp - what a resource that is wrapped may tell beyond the concept: usage and queues.
//
// Model    `resource` asks for neither, so a wrapper works without: of a resource that does not tell, the
//          usage is all zero, and it knows of no queue.
#pragma once

#include <concepts>

#include <xmm/concepts/resource.hpp>
#include <xmm/resources/out_of_memory.hpp>
#include <xmm/resources/space_port.hpp>

namespace xmm {

template <class R>
concept reports_usage = resource<R> && requires(const R& one) {
    { one.usage() } noexcept -> std::same_as<resource_usage>;
};

template <class R>
concept knows_queues = resource<R> && requires(const R& one) {
    { one.queues() } noexcept -> std::same_as<queue_port>;
};

namespace detail {

template <resource R>
[[nodiscard]] resource_usage usage_of(const R& one) noexcept {
    if constexpr (reports_usage<R>) {
        return one.usage();
    } else {
        return {};
    }
}

template <resource R>
[[nodiscard]] queue_port queues_of(const R& one) noexcept {
    if constexpr (knows_queues<R>) {
        return one.queues();
    } else {
        return {};
    }
}

}  // namespace detail
}  // namespace xmm
