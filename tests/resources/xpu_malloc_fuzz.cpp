// SPDX-License-Identifier: Apache-2.0
// xpu_malloc_fuzz.cpp - two million operations on a heap over memory that traps on any access, against a model:
// no touch, no overlap, no live byte without a frame, no leak. Then the same from four threads on three queues: two
// million under the thread sanitizer, fewer without. XMM_TEST_OPERATIONS says how many a case plays instead.
#include <xmm/resources/xpu_malloc.hpp>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "../support/sanitizer.hpp"
#include "trap_port.hpp"

using namespace xmm;
using namespace xmm::literals;
using xmm::test::has_sanitizer;
using xmm::test::has_thread_sanitizer;

namespace {

// What is live, by address; finds overlaps.
class live_map {
public:
    // False: it overlaps another one.
    bool add(address at, std::size_t bytes) {
        std::lock_guard guard{lock_};
        const auto after = live_.lower_bound(at);
        const bool is_clear =
            (after == live_.end() || after->first >= at + bytes) &&
            (after == live_.begin() || std::prev(after)->first + std::prev(after)->second <= at);
        live_[at] = bytes;
        return is_clear;
    }
    void remove(address at) {
        std::lock_guard guard{lock_};
        live_.erase(at);
    }

private:
    std::mutex lock_;
    std::map<address, std::size_t> live_;
};

struct fuzz_block {
    address at = 0;
    std::size_t bytes = 0;
};

class player {
public:
    player(xpu_malloc& heap, trap_port& port, live_map& live, unsigned seed, std::size_t bound)
        : heap_{heap}, port_{port}, live_{live}, random_{seed}, bound_{bound} {}

    void play(std::size_t operations) {
        for (std::size_t i = 0; i < operations; ++i) {
            const unsigned what = below(64);
            // Load rises and falls, so that frames come and go.
            const bool is_rising = (i / 20'000) % 2 == 0;
            // What is refused climbs through everything that is done in need: so it is rare.
            const bool is_full = live_bytes_ > bound_ && below(256) != 0;
            if (blocks_.empty() || (!is_full && what < (is_rising ? 34U : 28U))) {
                allocate();
            } else if (what < 60) {
                give_back(below(static_cast<unsigned>(blocks_.size())));
            } else if (what == 60) {
                misuse();
            } else if (what == 61) {
                look_inside();
            } else if (what == 62) {
                wrong += blocks_.empty() || record_use() ? 0 : 1;
            } else if (below(400) == 0) {
                static_cast<void>(below(2) == 0 ? heap_.trim(below(64) * 1_MiB)
                                                : heap_.trim(pool_tag{1}));
            }
        }
    }
    void give_back_all() {
        while (!blocks_.empty()) {
            give_back(0);
        }
    }

    std::size_t wrong = 0;
    std::size_t refused = 0;

private:
    unsigned below(unsigned bound) { return static_cast<unsigned>(random_() % bound); }
    // Mostly small, some large, a few huge; often exactly at a boundary.
    std::size_t size() {
        const unsigned kind = below(100);
        const unsigned most = kind < 70 ? 15 : (kind < 95 ? 20 : 25);
        std::size_t bytes = std::size_t{1} << below(most + 1);
        bytes += below(3) == 0 ? 0 : below(static_cast<unsigned>(bytes));
        return bytes + below(3) - (bytes > 1 ? 1 : 0);
    }
    queue_id queue() { return {below(4)}; }

    void allocate() {
        const malloc_request wanted{.bytes = size(),
                                    .alignment = std::size_t{1} << below(14),
                                    .queue = queue(),
                                    .tag = {static_cast<std::uint16_t>(below(2))}};
        result<void*> made = heap_.allocate(wanted);
        if (!made) {
            ++refused;
            wrong += made.code() == errc::no_memory ? 0 : 1;
            return;
        }
        const address at = xmm::to_address(*made);
        const std::size_t bytes = wanted.bytes == 0 ? 1 : wanted.bytes;
        wrong += at % wanted.alignment == 0 && at % 256 == 0 ? 0 : 1;
        wrong += live_.add(at, bytes) ? 0 : 1;
        wrong += port_.has_frames(at, bytes) ? 0 : 1;
        live_bytes_ += bytes;
        blocks_.push_back({at, bytes});
    }
    void give_back(unsigned which) {
        const fuzz_block one = blocks_[which];
        blocks_[which] = blocks_.back();
        blocks_.pop_back();
        live_bytes_ -= one.bytes;
        wrong += port_.has_frames(one.at, one.bytes) ? 0 : 1;  // all the time that it was live
        live_.remove(one.at);
        wrong += heap_.deallocate(to_pointer(one.at), queue()) ? 0 : 1;
    }
    void misuse() {
        if (blocks_.empty()) {
            return;
        }
        const fuzz_block one = blocks_[below(static_cast<unsigned>(blocks_.size()))];
        wrong += heap_.deallocate(to_pointer(one.at + 1)).is_ok() ? 1 : 0;
        wrong += heap_.allocate({.bytes = 1, .alignment = 48}).has_value() ? 1 : 0;
    }
    void look_inside() {
        if (blocks_.empty()) {
            return;
        }
        const fuzz_block one = blocks_[below(static_cast<unsigned>(blocks_.size()))];
        result<block_info> found = heap_.find(to_pointer(one.at + random_() % one.bytes));
        wrong += found && found->range.begin == one.at && found->range.bytes >= one.bytes ? 0 : 1;
    }
    bool record_use() {
        const fuzz_block one = blocks_[below(static_cast<unsigned>(blocks_.size()))];
        return heap_.record_use(to_pointer(one.at), queue()).is_ok();
    }

    xpu_malloc& heap_;
    trap_port& port_;
    live_map& live_;
    std::mt19937_64 random_;
    const std::size_t bound_;
    std::size_t live_bytes_ = 0;
    std::vector<fuzz_block> blocks_;
};

struct fuzz_rig {
    trap_port port;
    live_map live;
    xpu_malloc heap;

    explicit fuzz_rig(bool uses_jemalloc = true)
        : heap{port, node_id{1}, {.uses_jemalloc = uses_jemalloc}} {}
    // Nothing is left.
    void check_empty() {
        static_cast<void>(heap.trim());
        CHECK(heap.figures().of(heap_metric::active).current == 0);
        CHECK(heap.figures().of(heap_metric::allocated_bytes).current == 0);
        CHECK(port.frame_bytes() == 0);
        CHECK(port.mistakes() == 0);
    }
};

// Of a whole test case, whatever number of threads: XMM_TEST_OPERATIONS, or so many.
std::size_t operations(std::size_t usual) {
    const char* asked = std::getenv("XMM_TEST_OPERATIONS");
    const std::size_t wanted = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 0;
    return wanted != 0 ? wanted : usual;
}

}  // namespace

TEST_CASE("xpu_malloc: millions of operations over memory that traps") {
    for (const bool uses_jemalloc : {true, false}) {
        CAPTURE(uses_jemalloc);
        fuzz_rig r{uses_jemalloc};
        r.port.most_bytes = 768_MiB;  // less than what random load comes to: in need now and then
        player one{r.heap, r.port, r.live, uses_jemalloc ? 1u : 2u, 640_MiB};
        const std::size_t all = operations(has_sanitizer ? 300'000 : 2'000'000);
        one.play(uses_jemalloc ? all : all / 4);
        CHECK(one.wrong == 0);
        CHECK((all < 2'000'000 || one.refused > 0));  // the ways of need were gone, too
        one.give_back_all();
        CHECK(one.wrong == 0);
        r.check_empty();
    }
}

TEST_CASE("xpu_malloc: four threads on three queues over memory that traps") {
    fuzz_rig r;
    r.port.most_bytes = 1_GiB;
    std::vector<player> players;
    for (unsigned i = 0; i < 4; ++i) {
        players.emplace_back(r.heap, r.port, r.live, 10 + i, 200_MiB);
    }
    // Under the thread sanitizer, not optimized, two million are 48 s of one core (Xeon, 2026; without jemalloc).
    const std::size_t all =
        operations(has_thread_sanitizer ? 2'000'000 : (has_sanitizer ? 120'000 : 800'000));
    std::vector<std::thread> threads;
    for (player& one : players) {
        threads.emplace_back([&one, all] {
            one.play(all / 4);
            one.give_back_all();
        });
    }
    for (std::thread& one : threads) {
        one.join();
    }
    for (const player& one : players) {
        CHECK(one.wrong == 0);
    }
    r.check_empty();
}
