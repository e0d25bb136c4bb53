// SPDX-License-Identifier: Apache-2.0
// shared_resource.hpp - a resource held by all who draw from it.
//
// Model    A handle that is copied like a pointer; the resource dies with the last handle. A pool goes
//          into a container's allocator that way without anyone having to outlive anyone.
#pragma once

#include <memory>
#include <utility>

#include <xmm/resources/memory_resource.hpp>
#include <xmm/resources/upstream.hpp>

namespace xmm {

template <resource R>
class shared_resource {
public:
    static constexpr reach static_reach = R::static_reach;
    using resource_type = R;

    explicit shared_resource(std::shared_ptr<R> held) noexcept : held_{std::move(held)} {
        XMM_ASSERT(held_ != nullptr, "a shared resource needs a resource");
    }

    [[nodiscard]] R& get() const noexcept { return *held_; }
    [[nodiscard]] node_id node() const noexcept { return held_->node(); }
    [[nodiscard]] reach reachable_by() const noexcept { return held_->reachable_by(); }
    [[nodiscard]] resource_usage usage() const noexcept { return detail::usage_of(*held_); }
    [[nodiscard]] queue_port queues() const noexcept { return detail::queues_of(*held_); }

    [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes,
                                 std::size_t alignment = host_alignment) {
        return held_->allocate(stream, bytes, alignment);
    }
    void deallocate(stream_ref stream, void* pointer, std::size_t bytes,
                    std::size_t alignment = host_alignment) noexcept {
        held_->deallocate(stream, pointer, bytes, alignment);
    }
    [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = host_alignment) {
        return held_->allocate_sync(bytes, alignment);
    }
    void deallocate_sync(void* pointer, std::size_t bytes,
                         std::size_t alignment = host_alignment) noexcept {
        held_->deallocate_sync(pointer, bytes, alignment);
    }
    friend bool operator==(const shared_resource& a, const shared_resource& b) noexcept {
        return *a.held_ == *b.held_;
    }

private:
    std::shared_ptr<R> held_;
};

template <resource R, class... Arguments>
[[nodiscard]] shared_resource<R> make_shared_resource(Arguments&&... arguments) {
    return shared_resource<R>{std::make_shared<R>(std::forward<Arguments>(arguments)...)};
}

}  // namespace xmm
