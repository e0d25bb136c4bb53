// SPDX-License-Identifier: Apache-2.0
// part.cpp - a library that embeds xmm and the private jemalloc, and exports one symbol.
#include "part.hpp"

#include <xmm/resources/small_blocks.hpp>

#include "../resources/fake_slots.hpp"

namespace {

struct holder {
    fake_slots frames;
    std::unique_ptr<xmm::small_blocks<fake_slots>> blocks;
};
holder* of(void* made) { return static_cast<holder*>(made); }

constexpr part_functions functions = {
    .table = []() -> const void* { return xmm::jemalloc_table::find(); },
    .refusal = [] { return xmm::jemalloc_table::find()->check().why; },
    .make = []() -> void* {
        auto made = std::make_unique<holder>();
        auto blocks = xmm::small_blocks<fake_slots>::make(made->frames, xmm::queue_id{1});
        if (!blocks) {
            return nullptr;
        }
        made->blocks = std::move(blocks).value();
        return made.release();
    },
    .destroy = [](void* made) { delete of(made); },
    .allocate = [](void* made,
                   std::size_t bytes) { return of(made)->blocks->try_allocate(bytes, 256); },
    .deallocate = [](void* made, void* block) { of(made)->blocks->deallocate(block); },
    .allocated = [](void* made) { return of(made)->blocks->allocated_bytes(); },
    .active_fit =
        [] {
            return xmm::jemalloc_table::find()->value_of<std::size_t>(
                "opt.lg_extent_max_active_fit", 0);
        },
};

}  // namespace

#if defined(PART_IS_FIRST)
#define PART_NAME part_first
#else
#define PART_NAME part_second
#endif
extern "C" __attribute__((visibility("default"))) const part_functions* PART_NAME() {
    return &functions;
}
