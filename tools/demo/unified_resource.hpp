// SPDX-License-Identifier: Apache-2.0
// unified_resource.hpp - unified memory for std::pmr containers: a mapping for each large block.
//
// Threads  Any.
// Failure  std::bad_alloc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory_resource>
#include <new>

#include <xmm/xmm.hpp>

namespace xmm::demo {

class unified_resource final : public std::pmr::memory_resource {
public:
    explicit unified_resource(space& memory, map_options options = {})
        : memory_{memory}, options_{options} {}

private:
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        map_options wanted = options_;
        wanted.alignment = std::max(wanted.alignment, alignment);
        auto mapped = memory_.map(bytes, wanted);
        if (!mapped) {
            throw std::bad_alloc{};
        }
        return *mapped;
    }
    void do_deallocate(void* pointer, std::size_t, std::size_t) override {
        (void)memory_.unmap(pointer);
    }
    [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        const auto* same = dynamic_cast<const unified_resource*>(&other);
        return same != nullptr && &same->memory_ == &memory_;
    }

    space& memory_;
    map_options options_;
};

}  // namespace xmm::demo
