// SPDX-License-Identifier: Apache-2.0
// out_of_memory.hpp - the exception of every resource that has no memory to give.
//
// Model    A std::bad_alloc that says who refused how much and why; made and copied without allocating.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <new>

#include <xmm/core/types.hpp>

namespace xmm {

// What a resource has handed out and may hand out; 0 is unknown or unlimited.
struct resource_usage {
    std::size_t used = 0;
    std::size_t limit = 0;
};

class out_of_memory : public std::bad_alloc {
public:
    // Both texts are static: they are kept, not copied.
    out_of_memory(const char* resource, node_id node, std::size_t bytes, resource_usage usage,
                  const char* cause, std::int32_t driver_code = 0) noexcept
        : resource_{resource},
          cause_{cause},
          bytes_{bytes},
          usage_{usage},
          node_{node},
          driver_code_{driver_code} {
        std::snprintf(text_.data(), text_.size(),
                      "xmm: out of memory: %s on node %d: %zu bytes asked, %zu used, limit %zu: %s",
                      resource, node.value, bytes, usage.used, usage.limit, cause);
    }

    [[nodiscard]] const char* what() const noexcept override { return text_.data(); }
    [[nodiscard]] const char* resource_name() const noexcept { return resource_; }
    [[nodiscard]] const char* cause() const noexcept { return cause_; }
    [[nodiscard]] node_id node() const noexcept { return node_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    [[nodiscard]] std::size_t used() const noexcept { return usage_.used; }
    [[nodiscard]] std::size_t limit() const noexcept { return usage_.limit; }
    [[nodiscard]] std::int32_t driver_code() const noexcept { return driver_code_; }

private:
    const char* resource_;
    const char* cause_;
    std::size_t bytes_;
    resource_usage usage_;
    node_id node_;
    std::int32_t driver_code_;
    std::array<char, 256> text_;
};

}  // namespace xmm
