// SPDX-License-Identifier: Apache-2.0
// prefetch_resource.hpp - fresh blocks are brought to a node before they are used.
//
// Model    For unified memory that a device uses first: no page has to be fetched by a fault. A hint: a
//          space that declines it changes nothing.
#pragma once

#include <xmm/resources/adaptors/adaptor.hpp>

namespace xmm {

template <resource Upstream>
class prefetch_resource final : public adaptor<Upstream> {
public:
    // The upstream's memory belongs to the space. Throws std::invalid_argument on an empty port or an unknown node.
    prefetch_resource(Upstream& upstream, space_port space, node_id node)
        : adaptor<Upstream>{"prefetch", upstream}, space_{space}, target_{node} {
        if (!space || space.reach_of(node) == reach::none) {
            throw std::invalid_argument{"xmm::prefetch_resource: the space has no such node"};
        }
    }

private:
    void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
        void* pointer = this->upstream().allocate(stream, bytes, alignment);
        (void)space_.prefetch(target_, pointer, bytes);
        return pointer;
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept override {
        this->upstream().deallocate(stream, pointer, bytes, alignment);
    }
    bool do_is_equal_to(const resource_base& other) const noexcept override {
        const auto* same = dynamic_cast<const prefetch_resource*>(&other);
        return same != nullptr && same->space_ == space_ && same->target_ == target_ &&
               this->upstream() == same->upstream();
    }

    space_port space_;
    node_id target_;
};

}  // namespace xmm
