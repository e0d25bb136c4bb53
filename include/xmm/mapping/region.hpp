// SPDX-License-Identifier: Apache-2.0
// region.hpp - one reserved range: its granule and the hints its pages start with.
//
// Model    Made by map, gone with unmap. The pages carry the hints from then on: advise changes pages.
#pragma once

#include <array>

#include <xmm/core/list.hpp>
#include <xmm/core/types.hpp>

namespace xmm {

// How a region is wanted.
struct map_options {
    // What moves at once: a power of two, 2 to 512 MiB; 0: the space's choice.
    std::size_t granule_bytes = 0;
    std::size_t alignment = page_bytes;  // of the address: a power of two
    node_id preferred = no_node;         // where first touch puts pages, whoever touches them
    node_id fixed = no_node;  // they live there and never move: device-only or page-locked memory
    bool is_read_mostly = false;
    bool is_arena =
        false;  // fixed memory whose frames an allocator gives and takes: see space_frames
    const char* name = "";  // shown in reports; copied, 31 characters
};

[[nodiscard]] constexpr va_range granule_of(va_range region, std::size_t granule_bytes,
                                            address at) noexcept {
    const address begin = region.begin + align_down(at - region.begin, granule_bytes);
    const std::size_t left = region.end() - begin;
    return {begin, left < granule_bytes ? left : granule_bytes};
}

struct region {
    // (C) constant while mapped  (S) address_space lock
    va_range va;                    // (C)
    std::size_t granule_bytes = 0;  // (C)
    map_options hints;              // (C)
    std::array<char, 32> name{};    // (C)
    bool is_leaving = false;        // (S)  somebody is unmapping it
    list_link link;                 // (S)  place on the space's list

    // The granule around an address; the last one is the region's tail and may be shorter.
    [[nodiscard]] va_range granule_at(address at) const noexcept {
        return granule_of(va, granule_bytes, at);
    }
};

// What a region was when somebody looked.
struct region_glance {
    va_range va;
    std::size_t granule_bytes = 0;
    std::array<char, 32> name{};  // NUL-terminated

    [[nodiscard]] va_range granule_at(address at) const noexcept {
        return granule_of(va, granule_bytes, at);
    }
};

}  // namespace xmm
