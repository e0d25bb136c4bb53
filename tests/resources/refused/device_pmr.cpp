// SPDX-License-Identifier: Apache-2.0
// device_pmr.cpp - must not compile: a pmr container on device-only memory.
#include <memory_resource>
#include <vector>

#include <xmm/resources/space_resource.hpp>

int main() {
    xmm::device_resource* device = nullptr;
#ifdef WITHOUT_FAULT
    std::pmr::memory_resource* for_bytes = device->raw_pmr();
    (void)for_bytes;
#else
    std::pmr::vector<int> numbers{device};
#endif
}
