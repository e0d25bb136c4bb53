// SPDX-License-Identifier: Apache-2.0
// Random work against a model: no overlap, no live byte without a frame, nothing leaked, no frame moved while in
// use; with every call of the port failing now and then, several heaps, several threads.
#include <map>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <xmm/resources/extent_heap.hpp>

#include "../support/fake_frames.hpp"

using namespace xmm;
using namespace xmm::literals;
using test::fake_frames;

namespace {

class dice {
public:
    explicit dice(std::uint64_t seed) : state_{seed * 0x9E3779B97F4A7C15 + 1} {}
    std::uint64_t roll(std::uint64_t below) {
        state_ = state_ * 6364136223846793005U + 1442695040888963407U;
        return (state_ >> 33) % below;
    }

private:
    std::uint64_t state_;
};

// One thread's blocks in one heap, by address: what the heap says is compared with it.
class model {
public:
    model(fake_frames& port, extent_heap& heap, std::uint64_t seed)
        : port_{&port}, heap_{&heap}, dice_{seed} {}

    void step() {
        const std::uint64_t what = dice_.roll(100);
        if (what < 50) {
            allocate();
        } else if (what < 95) {
            deallocate();
        } else if (what < 98) {
            port_->finish(heap_->queue());
        } else if (what < 99) {
            heap_->trim();
        } else {
            check_some();
        }
    }
    void finish() {
        while (!blocks_.empty()) {
            deallocate();
        }
    }
    [[nodiscard]] unsigned refused() const { return refused_; }
    [[nodiscard]] unsigned given() const { return given_; }

private:
    void allocate() {
        // Mostly sizes of a few kinds, as programs have them; now and then anything.
        static constexpr std::size_t kinds[] = {40_KiB, 1_MiB, 2_MiB, 3_MiB + 512, 8_MiB, 21_MiB};
        const std::size_t bytes =
            dice_.roll(8) != 0 ? kinds[dice_.roll(6)] : 1 + dice_.roll(30_MiB);
        const std::size_t alignment = dice_.roll(6) != 0 ? 1 : std::size_t{1} << dice_.roll(22);
        result<void*> made = heap_->allocate(bytes, alignment);
        if (!made) {
            REQUIRE(made.code() == errc::no_memory);
            ++refused_;
            return;
        }
        const address begin = to_address(made.value());
        REQUIRE(begin % alignment == 0);
        const auto after = blocks_.lower_bound(begin);
        REQUIRE((after == blocks_.end() || begin + bytes <= after->first));
        if (after != blocks_.begin()) {
            const auto before = std::prev(after);
            REQUIRE(before->first + before->second <= begin);
        }
        REQUIRE(heap_->usable_bytes(to_pointer(begin)) >= bytes);
        ++given_;
        blocks_[begin] = bytes;
        port_->use({begin, bytes},
                   heap_->queue());  // a byte without a frame is a fault of the port
    }
    void deallocate() {
        if (blocks_.empty()) {
            return;
        }
        auto at = blocks_.begin();
        std::advance(at, static_cast<std::ptrdiff_t>(dice_.roll(blocks_.size())));
        if (dice_.roll(2) == 0) {
            port_->use({at->first, at->second}, heap_->queue());
        }
        heap_->deallocate(to_pointer(at->first));
        blocks_.erase(at);
    }
    void check_some() {
        for (const auto& [begin, bytes] : blocks_) {
            if (dice_.roll(4) == 0) {
                REQUIRE(port_->is_backed({begin, bytes}));
                REQUIRE(heap_->find_inside(to_pointer(begin + bytes - 1)).begin == begin);
            }
        }
    }

    fake_frames* port_;
    extent_heap* heap_;
    dice dice_;
    std::map<address, std::size_t> blocks_;
    unsigned refused_ = 0;
    unsigned given_ = 0;
};

void fuzz(std::uint64_t seed, bool can_alias, std::size_t device_bytes, bool has_failures,
          std::size_t steps) {
    fake_frames port{device_bytes, can_alias};
    unsigned refused = 0;
    {
        device_frames frames{port};
        extent_heap a{frames, queue_id{1}};
        extent_heap b{frames, queue_id{2}, {.tag = 1}};
        extent_heap c{frames, queue_id{2}, {.short_life = 0}};
        model models[] = {{port, a, seed}, {port, b, seed + 1}, {port, c, seed + 2}};
        dice chance{seed + 3};
        for (std::size_t i = 0; i < steps; ++i) {
            if (has_failures && i % 64 == 0) {
                const bool is_bad = chance.roll(3) == 0;
                port.fail_with_chance(is_bad ? 200 : 0, is_bad ? 200 : 0, is_bad ? 100 : 0,
                                      is_bad ? 200 : 0);
            }
            models[chance.roll(3)].step();
            if (i % 512 == 0) {
                REQUIRE(a.is_valid());
                REQUIRE(b.is_valid());
                REQUIRE(c.is_valid());
                REQUIRE(frames.is_valid());
                REQUIRE(frames.counts().reserved_bytes == port.held_bytes());
                REQUIRE(port.faults() == "");
            }
            if (chance.roll(2000) == 0) {
                frames.trim(port.held_bytes() / 2);
            }
        }
        port.fail_with_chance(0, 0, 0, 0);
        for (model& one : models) {
            CHECK(one.given() > steps / 20);
            refused += one.refused();
            one.finish();
        }
        frames.trim(0);
        CHECK(port.frame_count() == 0);
        for (extent_heap* heap : {&a, &b, &c}) {
            heap->trim();  // tells what it had not told yet
        }
        CHECK(frames.counts().live_bytes == 0);
    }
    CHECK(port.frame_count() == 0);
    CHECK(port.mapping_count() == 0);
    CHECK(port.reservation_count() == 0);
    CHECK(port.faults() == "");
    CHECK((refused > 0) == (has_failures || device_bytes < 1_GiB));
}

}  // namespace

TEST_CASE("extent_heap fuzz: room for all") { fuzz(1, false, std::size_t{1} << 40, false, 30'000); }
TEST_CASE("extent_heap fuzz: with alias") { fuzz(2, true, std::size_t{1} << 40, false, 30'000); }
TEST_CASE("extent_heap fuzz: a full device") { fuzz(3, false, 256_MiB, false, 30'000); }
TEST_CASE("extent_heap fuzz: a full device, with alias") { fuzz(4, true, 256_MiB, false, 30'000); }
TEST_CASE("extent_heap fuzz: every call may fail") { fuzz(5, false, 512_MiB, true, 30'000); }
TEST_CASE("extent_heap fuzz: every call may fail, with alias") {
    fuzz(6, true, 512_MiB, true, 30'000);
}

TEST_CASE("extent_heap fuzz: threads, each on a heap of its own and on a shared one") {
    fake_frames port{512_MiB};
    {
        device_frames frames{port};
        extent_heap shared{frames, queue_id{9}};
        std::vector<std::thread> threads;
        for (std::uint32_t i = 0; i < 3; ++i) {
            threads.emplace_back([&, i] {
                extent_heap own{frames, queue_id{i + 1}};
                model mine{port, own, i};
                model ours{port, shared, 100 + i};
                for (int step = 0; step < 4'000; ++step) {
                    (step % 3 == 0 ? ours : mine).step();
                }
                mine.finish();
                ours.finish();
                if (!own.is_valid()) {
                    std::abort();
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        CHECK(shared.is_valid());
        CHECK(shared.block_count() == 0);
        CHECK(frames.is_valid());
    }
    CHECK(port.frame_count() == 0);
    CHECK(port.mapping_count() == 0);
    CHECK(port.faults() == "");
}
