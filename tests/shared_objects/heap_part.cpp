// SPDX-License-Identifier: Apache-2.0
// heap_part.cpp - a shared object that asks the default space for a heap; heap_program.cpp loads two of it.
#include <xmm/facade/default_space.hpp>

namespace {

// 1 if a block was had there, and given back.
int use_heap(xmm::node_id node) {
    xmm::result<xmm::xpu_malloc*> heap = xmm::default_space().heap(node);
    if (!heap) {
        return 0;
    }
    xmm::result<void*> block = (*heap)->allocate({.bytes = 100'000});
    return block && (*heap)->deallocate(*block) ? 1 : 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int part_use_host() {
    return use_heap(xmm::default_space().nodes()[0]);
}
extern "C" __attribute__((visibility("default"))) int part_use_device() {
    return use_heap(xmm::default_space().devices()[0]);
}
