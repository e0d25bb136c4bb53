// SPDX-License-Identifier: Apache-2.0
// The malloc of a device: blocks in the order of a queue, what it tells of itself, and giving memory back.
#include <xmm/xmm.hpp>

#include <cstdint>
#include <cstdio>
#include <fstream>

#include <xmm/resources/export/torch_snapshot.hpp>

using namespace xmm::literals;

int main(int count, char** words) {
    xmm::space space = xmm::space::create({.devices = xmm::device_kind::soft}).value();
    const xmm::node_id device = space.devices().at(0);
    xmm::queue queue = space.make_queue(device).value();
    xmm::xpu_malloc& heap = *space.heap(device).value();
    if (!heap.recorder().start()) {
        return 1;
    }

    // Given back at once: what comes next in the queue may have the memory, others when this is done.
    std::size_t wrong = 0;
    for (int round = 0; round < 3; ++round) {
        const xmm::result<void*> block = heap.allocate({.bytes = 3_MiB, .queue = queue.id()});
        if (!block) {
            std::fprintf(stderr, "no block: %s\n", block.error().why);
            return 1;
        }
        const xmm::device_view<std::uint64_t> numbers{static_cast<std::uint64_t*>(*block), 1000};
        const auto done =
            xmm::launch(queue, {xmm::writes(numbers.data(), 8000)}, [&](xmm::soft::stream& on) {
                return on.parallel_for(numbers.size(),
                                       [numbers](std::size_t i) { numbers.store(i, 7 * i); });
            });
        std::uint64_t last = 0;
        // In the queue's order, too: a copy without a queue would not wait for the kernel.
        const auto copied = space.copy(queue, &last, numbers.data() + 999, sizeof last);
        const xmm::status over = queue.synchronize();
        wrong += !done || !copied || !over || last != 7 * 999 ? 1 : 0;
        wrong += heap.deallocate(*block, queue.id()) ? 0 : 1;
    }

    const xmm::heap_figures seen = heap.figures();
    std::printf("allocated at most %zu KiB, reserved %zu KiB\n",
                static_cast<std::size_t>(seen.of(xmm::heap_metric::allocated_bytes).peak >> 10),
                static_cast<std::size_t>(seen.of(xmm::heap_metric::reserved_bytes).current >> 10));
    if (count > 1) {  // for PyTorch's memory viewer
        std::ofstream file{words[1], std::ios::binary};
        xmm::write_torch_snapshot(file, heap.snapshot());
    }
    std::printf("given back: %zu KiB\n", heap.trim() >> 10);
    return wrong == 0 ? 0 : 1;
}
