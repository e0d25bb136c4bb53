// SPDX-License-Identifier: Apache-2.0
// static_program.cpp - the registry and the fault trap in a program without a dynamic linker.
#include <cstdio>

#include <xmm/os/fault_trap.hpp>
#include <xmm/os/registry.hpp>

namespace {

struct counted {
    static constexpr const char* registry_key = "test counted/1";
    int built = 1;
};
xmm::va_range range;

}  // namespace

int main() {
    auto& one = xmm::registry::object<counted>();
    const bool is_one = &one == &xmm::registry::object<counted>() && one.built == 1;
    const bool counts = xmm::registry::next_number(xmm::number_kind::other) == 1 &&
                        xmm::registry::next_number(xmm::number_kind::other) == 2;
    const std::size_t bytes = xmm::os_page_bytes();
    range = {xmm::to_address(::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
             bytes};
    const bool is_added =
        xmm::fault_trap::instance()
            .add({&range, [](void*, xmm::address at) noexcept { return range.contains(at); },
                  [](void*, xmm::address, xmm::access, const char**) noexcept {
                      ::mprotect(xmm::to_pointer(range.begin), range.bytes, PROT_READ | PROT_WRITE);
                      return xmm::cpu_fault_outcome::resolved;
                  }})
            .is_ok();
    *static_cast<volatile char*>(xmm::to_pointer(range.begin)) = 1;
    std::printf("%d %d %d\n", is_one, counts, is_added);
    return is_one && counts && is_added ? 0 : 1;
}
