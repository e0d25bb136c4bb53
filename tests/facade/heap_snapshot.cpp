// SPDX-License-Identifier: Apache-2.0
#include <xmm/facade/device_heap.hpp>

#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include "rig.hpp"

#include <xmm/resources/export/replay_csv.hpp>
#include <xmm/resources/export/viewer_history.hpp>

using namespace xmm;
using namespace xmm::test;

namespace {

// Two queues and two tags on one device; blocks of all sizes, some lent to the other queue.
struct busy_heap : rig {
    std::mt19937 random{7};
    std::vector<std::pair<void*, std::size_t>> held;
    queue other{of().make_queue(device()).value()};

    busy_heap() : rig{{device_of(96_MiB)}} {}
    xpu_malloc& heap() { return *of().heap(device()).value(); }

    void allocate() {
        const std::size_t most = random() % 4 == 0 ? 5_MiB : 40_KiB;
        const malloc_request wanted{.bytes = 1 + random() % most,
                                    .queue = random() % 2 == 0 ? line().id() : other.id(),
                                    .tag = {static_cast<std::uint16_t>(random() % 2 == 0 ? 0 : 3)}};
        if (result<void*> given = heap().allocate(wanted)) {
            held.emplace_back(*given, wanted.bytes);
        }
    }
    void give_back() {
        const std::size_t at = random() % held.size();
        std::swap(held[at], held.back());
        CHECK(heap().deallocate(held.back().first, random() % 3 == 0 ? line().id() : queue_id{}));
        held.pop_back();
    }
    void play(int steps) {
        for (int step = 0; step < steps; ++step) {
            if (held.size() < 10 || (held.size() < 60 && random() % 2 == 0)) {
                allocate();
            } else {
                give_back();
            }
            if (step % 200 == 199) {
                heap().trim();
            }
        }
    }
};

std::size_t sum(const heap_snapshot& of, std::size_t (snapshot_segment::*bytes)() const noexcept) {
    std::size_t total = 0;
    for (const snapshot_segment& segment : of.segments) {
        total += (segment.*bytes)();
    }
    return total;
}

}  // namespace

TEST_CASE("heap: a snapshot has every frame and every block, and agrees with the figures") {
    busy_heap r;
    r.play(300);
    REQUIRE(r.heap().recorder().start());
    r.play(1200);
    REQUIRE(!r.held.empty());

    const heap_snapshot seen = r.heap().snapshot();
    const heap_figures figures = r.heap().figures();
    CHECK(figures.of(heap_count::frames_moved) > 0);
    CHECK(static_cast<std::uint64_t>(figures.of(heap_count::frames_moved)) ==
          r.heap().frames().counts().moved);
    CHECK(seen.is_valid());
    CHECK(seen.node == r.device());
    std::size_t reserved = 0;
    std::map<address, snapshot_block> blocks;
    for (const snapshot_segment& segment : seen.segments) {
        reserved += segment.range.bytes;
        CHECK((segment.owner.stream == r.line().id().value ||
               segment.owner.stream == r.other.id().value));
        for (const snapshot_block& block : segment.blocks) {
            blocks[block.range.begin] = block;
        }
    }
    CHECK(reserved == static_cast<std::size_t>(figures.of(heap_metric::reserved_bytes).current));
    CHECK(sum(seen, &snapshot_segment::allocated_bytes) ==
          static_cast<std::size_t>(figures.of(heap_metric::allocated_bytes).current));
    CHECK(sum(seen, &snapshot_segment::active_bytes) ==
          static_cast<std::size_t>(figures.of(heap_metric::active_bytes).current));
    std::size_t allocated = 0;
    for (const auto& [at, block] : blocks) {
        allocated += block.state == block_state::active_allocated ? 1 : 0;
    }
    CHECK(allocated == r.held.size());
    for (const auto& [pointer, bytes] : r.held) {
        const snapshot_block block = blocks[to_address(pointer)];
        CHECK(block.state == block_state::active_allocated);
        CHECK(block.range.bytes >= bytes);
        CHECK(block.requested >= bytes);  // small ones from before the recording: as served
        CHECK(block.requested <= block.range.bytes);
    }
}

TEST_CASE("heap: what it records can be taken back event by event, and replayed") {
    busy_heap r;
    REQUIRE(r.heap().recorder().start());
    r.play(1500);
    const heap_snapshot seen = r.heap().snapshot();
    CHECK(seen.trace.lost == 0);
    const std::vector<trace_event> kept = xmm::detail::viewer_history::of(seen);
    CHECK(kept.size() == seen.trace.events.size());
    CHECK(kept.size() > 2000);

    std::ostringstream text;
    write_replay_csv(text, seen.trace, seen.segments);
    std::istringstream lines{text.str()};
    std::string line;
    std::size_t live = 0, peak = 0;
    while (std::getline(lines, line)) {
        std::size_t id = 0, bytes = 0;
        char op = 0;
        if (std::sscanf(line.c_str(), "%c,%zu,%zu", &op, &id, &bytes) == 3 && op != 'r') {
            live = op == 'a' ? live + bytes : live - bytes;
            peak = std::max(peak, live);
        }
    }
    CHECK(live == sum(seen, &snapshot_segment::requested_bytes));
    CHECK(peak >= live);
}

TEST_CASE("heap: snapshots while threads allocate are sound, whatever they miss") {
    busy_heap r;
    REQUIRE(r.heap().recorder().start(2000));
    std::atomic<bool> is_over{false};
    std::vector<std::thread> workers;
    for (unsigned seed = 0; seed < 2; ++seed) {
        workers.emplace_back([&, seed] {
            std::mt19937 random{seed};
            std::vector<void*> held;
            for (int i = 0; i < 1500; ++i) {
                const queue_id queue = seed == 0 ? r.line().id() : r.other.id();
                const std::size_t most = i % 5 == 0 ? 2_MiB : 20_KiB;
                if (result<void*> given =
                        r.heap().allocate({.bytes = 1 + random() % most, .queue = queue})) {
                    held.push_back(*given);
                }
                if (held.size() > 20) {
                    static_cast<void>(r.heap().deallocate(held.front()));
                    held.erase(held.begin());
                }
            }
            for (void* one : held) {
                static_cast<void>(r.heap().deallocate(one));
            }
        });
    }
    std::thread watcher{[&] {
        while (!is_over.load()) {
            const heap_snapshot seen = r.heap().snapshot();
            CHECK(seen.is_valid());
            CHECK(xmm::detail::viewer_history::of(seen).size() <= seen.trace.events.size());
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
        }
    }};
    for (std::thread& worker : workers) {
        worker.join();
    }
    is_over.store(true);
    watcher.join();
    const heap_snapshot quiet = r.heap().snapshot();
    CHECK(sum(quiet, &snapshot_segment::active_bytes) == 0);
}
