// SPDX-License-Identifier: Apache-2.0
// malloc_request.hpp - what is asked of a device's malloc, and what it says of a block.
//
// Model    Everything here is a value.
// Units    Bytes.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include <xmm/core/types.hpp>
#include <xmm/resources/device_frames.hpp>

namespace xmm {

// A kind of contents whose memory can be seen and trimmed apart: weights, activations, ...
struct pool_tag {
    std::uint16_t value = 0;  // 0: everything else
    friend constexpr auto operator<=>(pool_tag, pool_tag) = default;
    friend constexpr bool operator==(pool_tag, pool_tag) = default;
};

struct malloc_request {
    std::size_t bytes = 0;        // 0 is served as 1
    std::size_t alignment = 256;  // a power of two
    queue_id queue{};             // whose work uses it; 0: of no queue, the caller orders its use
    pool_tag tag{};
    // False: the queue may end meanwhile. busy, where it has no shelf for that tag yet, which nobody would clear away.
    bool may_make_shelf = true;
};

struct malloc_options {
    bool uses_jemalloc = true;  // for small blocks, where a private one is linked in
    device_frames_options frames{};
};

// What a heap may ask of its surroundings.
struct malloc_surroundings {
    void* self = nullptr;
    // Makes the device give up about that many bytes of frames of unified memory, and says how many; or null.
    std::size_t (*reclaim)(void* self, std::size_t bytes) noexcept = nullptr;
    // Told of a request that found no memory, and why; or null. The text is static.
    void (*note_shortage)(void* self, std::size_t bytes, const char* why) noexcept = nullptr;
};

// Asked when nothing else is left: true if it freed something worth another try. Runs on the thread that
// allocates, with no lock held. It does not throw: an exception ends the program.
using shortage_callback = bool (*)(std::size_t bytes, void* context);

struct block_info {
    node_id node = no_node;
    va_range range;  // of the block: at least what was asked for
    queue_id queue{};
    pool_tag tag{};
};

}  // namespace xmm
