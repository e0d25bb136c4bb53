// SPDX-License-Identifier: Apache-2.0
// consumer.cpp - a user of the installed library: names it, its version, and a value from its headers.
#include <cstdio>

#if __has_include(<xmm/xmm.hpp>)
#include <xmm/xmm.hpp>
#else
#include <xmm/concepts/backend_table.hpp>
#endif
#if __has_include(<xmm/os/topology.hpp>)
#include <xmm/os/topology.hpp>
#endif
#if defined(EXPECT_SOFT)
#include <xmm/soft.hpp>
#endif

#if defined(EXPECT_JEMALLOC)
#include <xmm/resources/jemalloc_table.hpp>
#endif

int main() {
#if defined(EXPECT_JEMALLOC)
    if (xmm::jemalloc_table::find() == nullptr) {
        std::printf("the private jemalloc is not linked in\n");
        return 1;
    }
#endif
#if __has_include(<xmm/os/topology.hpp>)
    // Needs hwloc at link time, as every user does.
    if (auto here = xmm::topology::discover(); !here) {
        std::printf("%s\n", here.error().why);
        return 1;
    }
#endif
    std::printf("xmm %d.%d.%d, pages of %zu bytes\n", XMM_VERSION_MAJOR, XMM_VERSION_MINOR,
                XMM_VERSION_PATCH, xmm::page_bytes);
    return xmm::page_bytes == std::size_t{2} << 20 ? 0 : 1;
}
