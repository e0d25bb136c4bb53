// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/extent_heap.hpp>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "../support/fake_frames.hpp"

using namespace xmm;
using namespace xmm::literals;
using test::fake_frames;

namespace {

// Everything went back to the device, and no rule was broken on the way.
void check_clean(const fake_frames& port) {
    CHECK(port.frame_count() == 0);
    CHECK(port.mapping_count() == 0);
    CHECK(port.reservation_count() == 0);
    CHECK(port.faults() == "");
}

}  // namespace

TEST_CASE("extent_heap: blocks are aligned, apart, backed, and known by their address") {
    fake_frames port;
    {
        device_frames frames{port};
        extent_heap heap{frames, queue_id{1}};
        std::vector<void*> blocks;
        for (std::size_t bytes : {1_KiB, 33_KiB, 100_KiB, 3_MiB, 70_MiB, 1_KiB}) {
            blocks.push_back(heap.allocate(bytes - 3).value());
            const va_range block = heap.find(blocks.back());
            CHECK(block.bytes == align_up(bytes - 3, extent_unit_bytes));
            CHECK(block.begin % extent_unit_bytes == 0);
            CHECK(port.is_backed(block));
            CHECK(heap.usable_bytes(blocks.back()) == block.bytes);
        }
        void* inside = to_pointer(to_address(blocks[4]) + 5_MiB);
        CHECK(heap.find(inside).is_empty());
        CHECK(heap.find_inside(inside).begin == to_address(blocks[4]));
        CHECK(heap.owns(inside));
        int outside = 0;
        CHECK_FALSE(heap.owns(&outside));
        CHECK(heap.find_inside(&outside).is_empty());
        CHECK(heap.block_count() == 6);
        std::size_t seen = 0;
        heap.for_each([&](va_range range, bool is_free) { seen += is_free ? 0 : range.bytes; });
        CHECK(seen == heap.live_bytes());
        CHECK(heap.is_valid());
        for (void* block : blocks) {
            heap.deallocate(block);
        }
        CHECK(heap.live_bytes() == 0);
        CHECK(heap.is_valid());
    }
    check_clean(port);
}

TEST_CASE("extent_heap: every alignment; what is asked wrongly is refused and changes nothing") {
    fake_frames port;
    {
        device_frames frames{port};
        extent_heap heap{frames, queue_id{1}};
        std::vector<void*> blocks;
        for (std::size_t alignment = 1; alignment <= 64_MiB; alignment *= 2) {
            blocks.push_back(heap.allocate(40_KiB, alignment).value());
            CHECK(to_address(blocks.back()) % alignment == 0);
        }
        CHECK(heap.allocate(0).code() == errc::invalid_argument);
        CHECK(heap.allocate(1_KiB, 3).code() == errc::invalid_argument);
        CHECK(heap.allocate(~std::size_t{0}).code() == errc::invalid_argument);
        CHECK(heap.block_count() == blocks.size());
        CHECK(heap.is_valid());
    }
    check_clean(port);
}

TEST_CASE("extent_heap: many holes that an alignment does not fit in are no hindrance") {
    fake_frames port;
    {
        device_frames frames{port};
        extent_heap heap{frames, queue_id{1}};
        std::vector<void*> blocks;
        for (int i = 0; i < 800; ++i) {
            blocks.push_back(heap.allocate(64_KiB).value());
        }
        for (std::size_t i = blocks.size(); i >= 2; i -= 2) {
            heap.deallocate(blocks[i - 1]);
        }
        void* aligned = heap.allocate(64_KiB, 2_MiB).value();
        CHECK(to_address(aligned) % 2_MiB == 0);
        CHECK(heap.is_valid());
    }
    check_clean(port);
}

TEST_CASE("extent_heap: a frame comes back to where it was without a call of the device") {
    fake_frames port{1_GiB, true};
    {
        device_frames frames{port};
        extent_heap heap{frames, queue_id{1}};
        // Two ranges that are never in use at once share their frames.
        const auto turn = [&](bool is_first) {
            std::vector<void*> blocks;
            for (int i = 0; i < 4; ++i) {
                blocks.push_back(heap.allocate(is_first ? 16_MiB : 20_MiB).value());
            }
            for (void* one : blocks) {
                heap.deallocate(one);
            }
        };
        for (int i = 0; i < 6; ++i) {
            turn(true);
            turn(false);
        }
        const auto before = port.calls();
        for (int i = 0; i < 6; ++i) {
            turn(true);
            turn(false);
        }
        CHECK(port.calls().map == before.map);
        CHECK(port.calls().unmap == before.unmap);
        CHECK(port.calls().create == before.create);
        CHECK(frames.is_valid());
    }
    check_clean(port);
}

TEST_CASE("extent_heap: a loop that has been learned makes no call to the device") {
    fake_frames port;
    {
        device_frames frames{port};
        extent_heap heap{frames, queue_id{1}};
        // A loop of a few phases, as a training step is one.
        const auto step = [&] {
            std::vector<void*> kept;
            for (std::size_t layer = 0; layer < 100; ++layer) {
                void* work = heap.allocate(72_MiB + layer).value();
                kept.push_back(heap.allocate(24_MiB + 64_KiB).value());
                heap.deallocate(work);
            }
            while (!kept.empty()) {
                void* work = heap.allocate(136_MiB).value();
                heap.deallocate(kept.back());
                kept.pop_back();
                heap.deallocate(work);
            }
        };
        // Small frames of the time when little was live go step by step, as larger ones are wanted.
        for (int i = 0; i < 14; ++i) {
            step();
        }
        CHECK(frames.counts().moved > 0);
        const auto before = port.calls();
        for (int i = 0; i < 4; ++i) {
            step();
        }
        const auto after = port.calls();
        CHECK(after.create == before.create);
        CHECK(after.map == before.map);
        CHECK(after.unmap == before.unmap);
        CHECK(after.wait == before.wait);
        CHECK(heap.is_valid());
    }
    check_clean(port);
}

TEST_CASE(
    "extent_heap: what one heap freed serves another, and no more is held than the peak needs") {
    fake_frames port;
    {
        device_frames frames{port};
        extent_heap a{frames, queue_id{1}};
        extent_heap b{frames, queue_id{2}};
        for (int round = 0; round < 4; ++round) {
            for (extent_heap* heap : {&a, &b}) {
                std::vector<void*> blocks;
                for (int i = 0; i < 20; ++i) {
                    blocks.push_back(heap->allocate(10_MiB).value());
                    port.use(heap->find(blocks.back()), heap->queue());
                }
                for (void* block : blocks) {
                    heap->deallocate(block);
                }
                port.finish(heap->queue());
            }
        }
        CHECK(frames.counts().live_peak == 200_MiB);
        CHECK(frames.counts().reserved_peak <= 204_MiB);
        CHECK(frames.counts().moved > 0);
        CHECK(frames.is_valid());
    }
    check_clean(port);
}

TEST_CASE("extent_heap: a failed request leaves everything as it was") {
    fake_frames port{64_MiB};
    {
        device_frames frames{port};
        extent_heap heap{frames, queue_id{1}};
        void* kept = heap.allocate(40_MiB).value();
        const std::size_t held = port.held_bytes();
        CHECK(heap.allocate(40_MiB).code() == errc::no_memory);
        CHECK(port.held_bytes() == held);
        CHECK(heap.block_count() == 1);
        CHECK(frames.counts().live_peak == 40_MiB);
        CHECK(heap.is_valid());
        CHECK(frames.is_valid());
        void* more = heap.allocate(20_MiB).value();
        heap.deallocate(kept);
        heap.deallocate(more);
        // All of it is idle now, and all of it serves.
        heap.deallocate(heap.allocate(62_MiB).value());
    }
    check_clean(port);
}

TEST_CASE("extent_heap: trim gives empty spans back; trimming the device leaves the heap usable") {
    fake_frames port;
    {
        device_frames frames{port};
        extent_heap heap{frames, queue_id{1}};
        void* block = heap.allocate(30_MiB).value();
        heap.deallocate(heap.allocate(5_MiB).value());
        heap.trim();
        CHECK(port.is_backed(heap.find(block)));
        frames.trim(0);
        CHECK(port.held_bytes() == 30_MiB);
        heap.deallocate(block);
        heap.trim();
        CHECK(port.held_bytes() == 0);
        CHECK(port.reservation_count() == 0);
        CHECK(heap.is_valid());
        heap.deallocate(heap.allocate(5_MiB).value());
    }
    check_clean(port);
}

TEST_CASE("extent_heap: trim takes nothing from a queue that cannot say how far it is") {
    fake_frames port;
    {
        device_frames frames{port};
        extent_heap heap{frames, queue_id{1}};
        void* block = heap.allocate(6_MiB).value();
        port.use(heap.find(block), queue_id{1});
        heap.deallocate(block);
        port.fail_with_chance(0, 0, 0, 1000);
        heap.trim();
        CHECK(port.held_bytes() == 6_MiB);
        CHECK(port.calls().record < 100);
        CHECK(heap.is_valid());
        port.fail_with_chance(0, 0, 0, 0);
        heap.trim();  // waits
        CHECK(port.calls().wait == 1);
        CHECK(port.held_bytes() == 0);
        CHECK(port.reservation_count() == 0);
        heap.deallocate(heap.allocate(5_MiB).value());
    }
    check_clean(port);
}

TEST_CASE("extent_heap: slots grow with the peak, and a whole slot's block does not straddle") {
    fake_frames port;
    {
        device_frames frames{port};
        extent_heap heap{frames, queue_id{1}};
        std::vector<void*> blocks;
        for (int i = 0; i < 10; ++i) {
            blocks.push_back(heap.allocate(1_GiB).value());
        }
        const auto before = port.calls();
        CHECK(before.create < 1500);  // 5120 of 2 MiB
        for (int i = 0; i < 4; ++i) {
            blocks.push_back(heap.allocate(512_MiB).value());
            blocks.push_back(heap.allocate(64_KiB).value());
        }
        CHECK(port.held_bytes() <= 12_GiB + 12_GiB / 64);
        for (void* block : blocks) {
            heap.deallocate(block);
        }
    }
    check_clean(port);
}

TEST_CASE("extent_heap: a heap that ends with blocks gives them back") {
    fake_frames port;
    {
        device_frames frames{port};
        {
            extent_heap heap{frames, queue_id{1}};
            for (std::size_t i = 1; i < 50; ++i) {
                const va_range block = heap.find(heap.allocate(i * 100_KiB).value());
                port.use(block, {1});
            }
        }
        CHECK(frames.counts().live_bytes == 0);
    }
    check_clean(port);
}

TEST_CASE("extent heap: extents that hold no aligned block do not hide the one that does") {
    fake_frames port{std::size_t{1} << 40};
    device_frames frames{port};
    extent_heap heap{frames, queue_id{1}};
    constexpr std::size_t bytes = 33 << 10;
    std::vector<void*> blocks;
    for (int i = 0; i < 1200; ++i) {
        blocks.push_back(heap.allocate(bytes).value());
    }
    for (std::size_t i = blocks.size(); i != 0; i -= 2) {
        heap.deallocate(blocks[i - 2]);  // the last one lived long: all are taken to be long-lived
    }
    for (std::size_t alignment = 4 * page_bytes; alignment <= 512 * page_bytes; alignment *= 2) {
        result<void*> block = heap.allocate(bytes, alignment);
        REQUIRE(block);
        CHECK(to_address(*block) % alignment == 0);
    }
    CHECK(heap.is_valid());
}

TEST_CASE("extent_heap: what is remembered of free extents changes no choice") {
    // The same steps, once with everything remembered and once with nothing. Blocks of two heaps that take frames
    // from each other, slots of more than one size, and spans that go.
    const auto places_of = [](bool remembers_places) {
        fake_frames port{3_GiB, true};
        std::vector<address> places;
        device_frames frames{port};
        extent_heap first{frames, queue_id{1}, {.remembers_places = remembers_places}};
        extent_heap second{frames, queue_id{2}, {.remembers_places = remembers_places}};
        extent_heap* heaps[] = {&first, &second};
        std::vector<void*> blocks[2];
        std::uint64_t dice = 1;
        const auto roll = [&](std::uint64_t below) {
            dice = dice * 6364136223846793005U + 1442695040888963407U;
            return (dice >> 33) % below;
        };
        for (int step = 0; step < 4000; ++step) {
            const std::size_t which = roll(2);
            std::vector<void*>& own = blocks[which];
            if (own.empty() || roll(2) == 0) {
                static constexpr std::size_t kinds[] = {3_MiB, 40_MiB, 150_MiB, 260_MiB, 700_MiB};
                const std::size_t alignment = roll(4) != 0 ? 1 : 16_MiB;
                const result<void*> made = heaps[which]->allocate(kinds[roll(5)], alignment);
                places.push_back(made ? to_address(*made) : 0);
                if (made) {
                    own.push_back(*made);
                }
            } else {
                std::swap(own[roll(own.size())], own.back());
                heaps[which]->deallocate(own.back());
                own.pop_back();
            }
            if (roll(200) == 0) {
                heaps[which]->trim();
            }
            port.finish(queue_id{1 + static_cast<std::uint32_t>(roll(2))});
        }
        for (std::size_t which = 0; which < 2; ++which) {
            CHECK(heaps[which]->is_valid());
            for (void* block : blocks[which]) {
                heaps[which]->deallocate(block);
            }
        }
        CHECK(port.faults() == "");
        return places;
    };
    const std::vector<address> remembered = places_of(true);
    const std::vector<address> worked_out = places_of(false);
    CHECK(remembered == worked_out);
    CHECK(std::count(remembered.begin(), remembered.end(), 0) < 1500);
}
