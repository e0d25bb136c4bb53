// SPDX-License-Identifier: Apache-2.0
#include "watched_new.hpp"

#include <cstdlib>
#include <new>

#include <xmm/core/types.hpp>

using xmm::test::watched_new;

namespace {

void note() noexcept {
    const xmm::detail::held_locks& held = xmm::detail::locks_of_this_thread();
    for (unsigned i = 0; i < held.count; ++i) {
        ++watched_new.under[static_cast<std::size_t>(held.entries[i].rank)];
    }
}
// Whether there is memory left for one more.
bool take_one() noexcept {
    note();
    if (watched_new.left == 0) {
        return false;
    }
    watched_new.left -= watched_new.left != SIZE_MAX ? 1 : 0;
    return true;
}
[[gnu::noinline]] void give_back(void* pointer) noexcept {
    note();
    std::free(pointer);
}

}  // namespace

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return take_one() ? std::malloc(bytes) : nullptr;
}
void* operator new(std::size_t bytes) {
    void* made = ::operator new(bytes, std::nothrow);
    return made != nullptr ? made : throw std::bad_alloc{};
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
    const auto unit = static_cast<std::size_t>(alignment);
    return take_one() ? std::aligned_alloc(unit, xmm::align_up(bytes, unit)) : nullptr;
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    void* made = ::operator new(bytes, alignment, std::nothrow);
    return made != nullptr ? made : throw std::bad_alloc{};
}
[[gnu::noinline]] void operator delete(void* pointer) noexcept { give_back(pointer); }
[[gnu::noinline]] void operator delete(void* pointer, std::size_t) noexcept { give_back(pointer); }
[[gnu::noinline]] void operator delete(void* pointer, std::align_val_t) noexcept {
    give_back(pointer);
}
[[gnu::noinline]] void operator delete(void* pointer, std::size_t, std::align_val_t) noexcept {
    give_back(pointer);
}
