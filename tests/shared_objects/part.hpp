// SPDX-License-Identifier: Apache-2.0
// part.hpp - what each shared object of the test, and the program, tell about the registry they see.
#pragma once

#include <atomic>
#include <cstdint>

#include <xmm/os/fault_trap.hpp>
#include <xmm/os/registry.hpp>
#include <xmm/os/topology.hpp>
#include <xmm/os/turn.hpp>
#include <xmm/placement/policies.hpp>

namespace part {

// Has a vtable and a function pointer: code of whoever built it.
struct shared_object {
    static constexpr const char* registry_key = "test shared/1";

    shared_object() { built.fetch_add(1); }
    virtual int answer() { return 42; }
    virtual ~shared_object() = default;

    static int plain_answer() { return 43; }
    int (*function)() = &plain_answer;
    std::atomic<int> built{0};
    std::atomic<int> used{0};
};

struct view {
    void* registry;
    shared_object* object;
    xmm::fault_trap* trap;
    const xmm::topology* machine;
    std::uint32_t number;
};

inline view look() {
    return {&xmm::registry::instance(), &xmm::registry::object<shared_object>(),
            &xmm::fault_trap::instance(), &xmm::machine_topology(),
            xmm::registry::next_number(xmm::number_kind::other)};
}

// One OS page that reads as 7 once a sink of this shared object has served it.
struct page_of_sevens {
    xmm::va_range range;

    bool start() {
        const std::size_t bytes = xmm::os_page_bytes();
        void* at =
            ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        range = {xmm::to_address(at), bytes};
        auto& trap = xmm::fault_trap::instance();
        return trap.add({this,
                         [](void* self, xmm::address where) noexcept {
                             return static_cast<page_of_sevens*>(self)->range.contains(where);
                         },
                         [](void* self, xmm::address, xmm::access, const char**) noexcept {
                             const auto& r = static_cast<page_of_sevens*>(self)->range;
                             void* filled =
                                 xmm::detail::map_quietly(nullptr, r.bytes, PROT_READ | PROT_WRITE,
                                                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                             *static_cast<volatile int*>(filled) = 7;
                             ::mremap(filled, r.bytes, r.bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                                      xmm::to_pointer(r.begin));
                             return xmm::cpu_fault_outcome::resolved;
                         }}) &&
               trap.make_hole(range);
    }
    [[nodiscard]] int touch() const {
        return *static_cast<volatile int*>(xmm::to_pointer(range.begin));
    }
    void stop() {
        xmm::fault_trap::instance().remove(this);
        ::munmap(xmm::to_pointer(range.begin), range.bytes);
    }
};

}  // namespace part
