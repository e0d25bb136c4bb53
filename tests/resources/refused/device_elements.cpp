// SPDX-License-Identifier: Apache-2.0
// device_elements.cpp - must not compile: a container constructs elements in device-only memory.
#include <vector>

#include <xmm/resources/allocator.hpp>
#include <xmm/resources/space_resource.hpp>

int main() {
    xmm::device_resource* device = nullptr;
    xmm::allocator<int, xmm::device_resource> there{*device};
#ifdef WITHOUT_FAULT
    (void)there;
#else
    std::vector<int, xmm::allocator<int, xmm::device_resource>> numbers(10, 1, there);
#endif
}
