// SPDX-License-Identifier: Apache-2.0
// debug_device.cpp - must not compile: guards and poison in memory that the CPU does not reach.
#include <xmm/resources/debug_resource.hpp>
#include <xmm/resources/space_resource.hpp>

int main() {
    xmm::device_resource* device = nullptr;
    (void)device;
#ifndef WITHOUT_FAULT
    xmm::debug_resource<xmm::device_resource> debug{*device};
#endif
}
