// SPDX-License-Identifier: Apache-2.0
// types.hpp - bytes, pages, addresses, nodes, queues, frames: the small value types.
//
// Model    Everything here is a value: copied freely, owned by nobody.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include <xmm/core/config.hpp>

namespace xmm {

// The unit of accounting: one page is 2 MiB of virtual address, whatever the OS page is.
inline constexpr std::size_t page_shift = 21;
inline constexpr std::size_t page_bytes = std::size_t{1} << page_shift;
inline constexpr std::size_t largest_frame_bytes = std::size_t{512} << 20;

namespace literals {
constexpr std::size_t operator""_KiB(unsigned long long count) { return std::size_t{count} << 10; }
constexpr std::size_t operator""_MiB(unsigned long long count) { return std::size_t{count} << 20; }
constexpr std::size_t operator""_GiB(unsigned long long count) { return std::size_t{count} << 30; }
}  // namespace literals

using address = std::uintptr_t;

[[nodiscard]] inline address to_address(const void* pointer) noexcept {
    return reinterpret_cast<address>(pointer);
}
[[nodiscard]] inline void* to_pointer(address at) noexcept { return reinterpret_cast<void*>(at); }

// Alignments are powers of two.
[[nodiscard]] constexpr std::size_t align_down(std::size_t value, std::size_t alignment) noexcept {
    return value & ~(alignment - 1);
}
[[nodiscard]] constexpr std::size_t align_up(std::size_t value, std::size_t alignment) noexcept {
    return align_down(value + alignment - 1, alignment);
}

// A half-open stretch of addresses: [begin, begin + bytes).
struct va_range {
    address begin = 0;
    std::size_t bytes = 0;

    [[nodiscard]] constexpr address end() const noexcept { return begin + bytes; }
    [[nodiscard]] constexpr bool is_empty() const noexcept { return bytes == 0; }
    [[nodiscard]] constexpr bool contains(address at) const noexcept { return at - begin < bytes; }
    [[nodiscard]] constexpr bool contains(va_range other) const noexcept {
        return other.begin >= begin && other.end() <= end();
    }
    [[nodiscard]] constexpr bool overlaps(va_range other) const noexcept {
        return begin < other.end() && other.begin < end();
    }
    friend constexpr bool operator==(va_range, va_range) = default;
};

[[nodiscard]] constexpr va_range intersect(va_range a, va_range b) noexcept {
    const address begin = a.begin > b.begin ? a.begin : b.begin;
    const address end = a.end() < b.end() ? a.end() : b.end();
    return end > begin ? va_range{begin, end - begin} : va_range{begin, 0};
}

// A place with memory: hosts first, then devices. The numbers are process-wide and stable.
struct node_id {
    std::int32_t value = -2;
    friend constexpr auto operator<=>(node_id, node_id) = default;
    friend constexpr bool operator==(node_id, node_id) = default;
};
inline constexpr node_id any_host{-1};  // "the host", where no particular host node is meant
inline constexpr node_id no_node{-2};

struct queue_id {
    std::uint32_t value = 0;  // 0 names no queue
    friend constexpr auto operator<=>(queue_id, queue_id) = default;
    friend constexpr bool operator==(queue_id, queue_id) = default;
};

// A point in the work of one queue; reached once all work submitted before it is done.
struct ticket {
    queue_id queue;
    std::uint64_t value = 0;  // 0 is always reached
};

enum class access : std::uint8_t {
    none = 0,
    read = 1,
    write = 2,
    read_write = 3,
    // Beside what a device's fault asks for: without a frame there. Pages that the kernel needs at once have
    // pushed each other out, so a mapping of the host's frame has to do.
    in_place = 4,
};

[[nodiscard]] constexpr access operator|(access a, access b) noexcept {
    return static_cast<access>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
[[nodiscard]] constexpr access operator&(access a, access b) noexcept {
    return static_cast<access>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}
[[nodiscard]] constexpr bool covers(access have, access want) noexcept {
    return (have & want) == want;
}
[[nodiscard]] constexpr bool has_write(access a) noexcept { return covers(a, access::write); }

// One physical handle on one node, 2 to 512 MiB: a driver maps whole handles only.
struct frame {
    std::uint64_t handle = 0;  // the backend's own name for it; 0 is no frame
    address standing = 0;      // where copies reach it, mapped or not; its device address
    std::size_t bytes = 0;
    node_id node = no_node;
    bool zeroed = false;  // fresh from the driver and known to read as zero

    [[nodiscard]] constexpr explicit operator bool() const noexcept { return handle != 0; }
};

// A stretch of addresses backed by one frame, as one accessor sees it.
struct run {
    va_range va;
    frame backing;
    access who = access::read_write;
};

// One part of a copy, between standing addresses or plain host memory; both sides equally long.
struct piece {
    va_range to;
    va_range from;
};

}  // namespace xmm
