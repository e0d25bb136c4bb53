// SPDX-License-Identifier: Apache-2.0
// embedder.cpp - a shared object with a copy of xmm's headers of its own, as an extension of some program may be.
#include <xmm/facade/default_space.hpp>

using namespace xmm;

#define SHOWN extern "C" __attribute__((visibility("default")))

SHOWN void* embedder_heap(int node) {
    result<xpu_malloc*> heap = default_space().heap(node_id{node});
    return heap ? *heap : nullptr;
}
SHOWN void* embedder_malloc(std::size_t bytes, int node) {
    result<xpu_malloc*> heap = default_space().heap(node_id{node});
    return heap ? (*heap)->allocate({.bytes = bytes}).value_or(nullptr) : nullptr;
}
// 0: it was a block of that heap.
SHOWN int embedder_free(void* block, int node) {
    result<xpu_malloc*> heap = default_space().heap(node_id{node});
    return heap && (*heap)->deallocate(block) ? 0 : 1;
}
SHOWN long embedder_blocks(int node) {
    result<xpu_malloc*> heap = default_space().heap(node_id{node});
    return heap ? (*heap)->figures().of(heap_metric::allocation).current : -1;
}
