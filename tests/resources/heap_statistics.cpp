// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/heap_statistics.hpp>

#include <doctest/doctest.h>

#include "watched_new.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace xmm;
using namespace xmm::literals;

namespace {

// One block after the other, each given back before the next: what a thread does over and over.
void give_and_take(heap_statistics::stripe& mine, heap_pool pool, std::size_t bytes, int times) {
    for (int i = 0; i < times; ++i) {
        mine.allocated(pool, bytes, bytes - 1);
        if (i % 2 == 0) {
            mine.freed(pool, bytes, bytes - 1);
        } else {
            mine.free_requested(pool, bytes);
            mine.free_completed(pool, bytes, bytes - 1);
        }
    }
}

}  // namespace

TEST_CASE("a block is allocated until it is given back and active until its last use is over") {
    heap_statistics all;
    heap_statistics::stripe* mine = all.try_attach();
    REQUIRE(mine != nullptr);

    mine->allocated(heap_pool::large, 2_MiB, 2_MiB - 100);
    mine->allocated(heap_pool::small, 512, 500);
    heap_figures now = all.read();
    CHECK(now.of(heap_metric::allocation).current == 2);
    CHECK(now.of(heap_metric::allocation, heap_pool::small).current == 1);
    CHECK(now.of(heap_metric::allocated_bytes).current == 2_MiB + 512);
    CHECK(now.of(heap_metric::requested_bytes).current == 2_MiB + 400);
    CHECK(now.of(heap_metric::requested_bytes, heap_pool::large).current == 2_MiB - 100);

    mine->free_requested(heap_pool::large, 2_MiB);
    now = all.read();
    CHECK(now.of(heap_metric::allocated_bytes).current == 512);
    CHECK(now.of(heap_metric::active_bytes).current == 2_MiB + 512);
    CHECK(now.of(heap_metric::active).current == 2);
    CHECK(now.of(heap_metric::requested_bytes).current == 2_MiB + 400);

    mine->free_completed(heap_pool::large, 2_MiB, 2_MiB - 100);
    now = all.read();
    CHECK(now.of(heap_metric::active_bytes) == heap_counter{512, 2_MiB + 512, 2_MiB + 512, 2_MiB});
    CHECK(now.of(heap_metric::requested_bytes).current == 500);
    CHECK(now.of(heap_metric::active, heap_pool::large) == heap_counter{0, 1, 1, 1});
}

TEST_CASE("a peak of large blocks is exact, whoever holds them") {
    heap_statistics all;
    heap_statistics::stripe* one = all.try_attach();
    heap_statistics::stripe* other = all.try_attach();
    REQUIRE(one != other);
    one->allocated(heap_pool::large, 3_MiB, 3_MiB);
    other->allocated(heap_pool::large, 5_MiB, 5_MiB);
    one->free_requested(heap_pool::large, 3_MiB);
    one->free_completed(heap_pool::large, 3_MiB, 3_MiB);
    other->allocated(heap_pool::large, 1_MiB, 1_MiB);
    // A block of another thread is given back here.
    one->free_requested(heap_pool::large, 5_MiB);
    one->free_completed(heap_pool::large, 5_MiB, 5_MiB);

    const heap_figures now = all.read();
    CHECK(now.of(heap_metric::active_bytes) == heap_counter{1_MiB, 8_MiB, 9_MiB, 8_MiB});
    CHECK(now.of(heap_metric::allocated_bytes).peak == 8_MiB);
    CHECK(now.of(heap_metric::allocation).peak == 2);
}

TEST_CASE("peaks of large blocks are exact however threads take turns") {
    heap_statistics all;
    std::array<heap_statistics::stripe*, 3> stripes{};
    for (heap_statistics::stripe*& one : stripes) {
        one = all.try_attach();
    }
    std::minstd_rand random{3};
    std::vector<std::size_t> blocks;
    std::size_t live = 0;
    std::size_t peak = 0;
    for (int i = 0; i < 20'000; ++i) {
        heap_statistics::stripe& mine = *stripes[random() % stripes.size()];
        const bool is_growing = i / 500 % 2 == 0;
        if (blocks.empty() || random() % 8 < (is_growing ? 5U : 3U)) {
            const std::size_t bytes = (1 + random() % 64) * 1_MiB;
            mine.allocated(heap_pool::large, bytes, bytes);
            blocks.push_back(bytes);
            peak = std::max(peak, live += bytes);
        } else {
            std::swap(blocks[random() % blocks.size()], blocks.back());
            mine.freed(heap_pool::large, blocks.back(), blocks.back());
            live -= blocks.back();
            blocks.pop_back();
        }
    }
    for (const std::size_t bytes : blocks) {
        stripes[0]->freed(heap_pool::large, bytes, bytes);
    }
    const heap_counter seen = all.read().of(heap_metric::active_bytes);
    CHECK(seen.current == 0);
    CHECK(seen.peak == static_cast<std::int64_t>(peak));
}

TEST_CASE("a peak of blocks of 1 MiB and more is exact whatever is left of a thread's share") {
    constexpr std::size_t bytes = 3U << 19;
    heap_statistics all;
    heap_statistics::stripe* one = all.try_attach();
    heap_statistics::stripe* other = all.try_attach();
    const auto take = [&](heap_statistics::stripe* by, int blocks) {
        for (int i = 0; i < blocks; ++i) {
            by->allocated(heap_pool::large, bytes, bytes);
        }
    };
    const auto give = [&](heap_statistics::stripe* by, int blocks) {
        for (int i = 0; i < blocks; ++i) {
            by->freed(heap_pool::large, bytes, bytes);
        }
    };
    take(one, 8);
    give(one, 8);
    take(other, 5);
    take(one, 4);
    give(one, 4);
    give(other, 5);
    CHECK(all.read().of(heap_metric::active_bytes).peak == 9 * bytes);
    CHECK(all.read().of(heap_metric::allocated_bytes).peak == 9 * bytes);
}

TEST_CASE("a peak of small blocks is missed by less than 1 MiB a stripe") {
    heap_statistics all;
    heap_statistics::stripe* mine = all.try_attach();
    for (int i = 0; i < 2500; ++i) {
        mine->allocated(heap_pool::small, 1_KiB, 1_KiB);
    }
    for (int i = 0; i < 2500; ++i) {
        mine->free_requested(heap_pool::small, 1_KiB);
        mine->free_completed(heap_pool::small, 1_KiB, 1_KiB);
    }
    const auto peak =
        static_cast<std::size_t>(all.read().of(heap_metric::active_bytes, heap_pool::small).peak);
    CHECK(peak <= 2500_KiB);
    CHECK(peak > 2500_KiB - 1_MiB);
}

TEST_CASE("frames: their peaks are exact") {
    heap_statistics all;
    all.frames_created(heap_pool::large, 32_MiB);
    all.frames_created(heap_pool::small, 4_MiB, 2);
    all.frames_dropped(heap_pool::large, 32_MiB);
    const heap_figures now = all.read();
    CHECK(now.of(heap_metric::reserved_bytes) == heap_counter{4_MiB, 36_MiB, 36_MiB, 32_MiB});
    CHECK(now.of(heap_metric::segment) == heap_counter{2, 3, 3, 1});
    CHECK(now.of(heap_metric::reserved_bytes, heap_pool::small).current == 4_MiB);
    CHECK(now.of(heap_metric::reserved_bytes, heap_pool::large).current == 0);
    CHECK(now.of(heap_metric::segment, heap_pool::small) == heap_counter{2, 2, 2, 0});
}

TEST_CASE("free bytes that blocks keep in place are those neither active nor idle") {
    heap_statistics all;
    all.frames_created(heap_pool::large, 10_MiB);
    heap_statistics::stripe* mine = all.try_attach();
    mine->allocated(heap_pool::large, 3_MiB, 3_MiB);
    CHECK(all.read(4_MiB).of(heap_metric::inactive_split_bytes) ==
          heap_counter{3_MiB, 3_MiB, 0, 0});
    CHECK(all.read(7_MiB).of(heap_metric::inactive_split_bytes) == heap_counter{0, 3_MiB, 0, 0});
    CHECK(all.read(9_MiB).of(heap_metric::inactive_split_bytes).current == 0);
}

TEST_CASE("peaks and totals begin anew") {
    heap_statistics all;
    heap_statistics::stripe* mine = all.try_attach();
    give_and_take(*mine, heap_pool::large, 4_MiB, 3);
    mine->allocated(heap_pool::large, 1_MiB, 1_MiB);
    all.frames_created(heap_pool::large, 8_MiB);
    all.count(heap_count::ooms, 2);

    all.reset_peaks();
    heap_figures now = all.read();
    CHECK(now.of(heap_metric::active_bytes).peak == 1_MiB);
    CHECK(now.of(heap_metric::active_bytes).allocated == 13_MiB);
    CHECK(now.of(heap_metric::reserved_bytes).peak == 8_MiB);
    give_and_take(*mine, heap_pool::large, 2_MiB, 1);
    CHECK(all.read().of(heap_metric::active_bytes).peak == 3_MiB);

    all.reset_accumulated();
    now = all.read();
    CHECK(now.of(heap_metric::active_bytes) == heap_counter{1_MiB, 3_MiB, 0, 0});
    CHECK(now.of(heap_metric::reserved_bytes) == heap_counter{8_MiB, 8_MiB, 0, 0});
    CHECK(now.of(heap_count::ooms) == 0);
    give_and_take(*mine, heap_pool::small, 100, 2);
    all.count(heap_count::ooms);
    now = all.read();
    CHECK(now.of(heap_metric::allocation).allocated == 2);
    CHECK(now.of(heap_metric::allocation).freed == 2);
    CHECK(now.of(heap_count::ooms) == 1);
}

TEST_CASE("a stripe keeps its counts when its thread ends, and another one goes on with it") {
    heap_statistics all;
    heap_statistics::stripe* first = nullptr;
    std::thread{[&] {
        first = all.try_attach();
        first->allocated(heap_pool::small, 64, 64);
    }}.join();
    first->free_requested(heap_pool::small, 64);
    first->free_completed(heap_pool::small, 64, 64);
    all.on_shared([](heap_statistics::stripe& shared) {
        shared.allocated(heap_pool::large, 6_MiB, 6_MiB);
        shared.free_requested(heap_pool::large, 6_MiB);
    });
    all.on_shared([](heap_statistics::stripe& shared) {
        shared.free_completed(heap_pool::large, 6_MiB, 6_MiB);
    });
    const heap_figures now = all.read();
    CHECK(now.of(heap_metric::active) == heap_counter{0, 1, 2, 2});
    CHECK(now.of(heap_metric::active_bytes).peak == 6_MiB);
}

TEST_CASE("a reader among writers sees each thread as it was at one moment, and the end is exact") {
    constexpr int threads = 3;
    constexpr int rounds = 20'000;
    heap_statistics all;
    std::atomic<int> running{threads};
    std::vector<std::thread> writers;
    for (int t = 0; t < threads; ++t) {
        writers.emplace_back([&] {
            heap_statistics::stripe* mine = all.try_attach();
            give_and_take(*mine, heap_pool::small, 100, rounds);
            give_and_take(*mine, heap_pool::large, 1_MiB, rounds / 100);
            all.on_shared([](heap_statistics::stripe& shared) {
                shared.allocated(heap_pool::large, 2_MiB, 2_MiB);
            });
            all.on_shared([](heap_statistics::stripe& shared) {
                shared.freed(heap_pool::large, 2_MiB, 2_MiB);
            });
            running.fetch_sub(1);
        });
    }
    bool is_sound = true;
    while (running.load() != 0) {
        const heap_figures now = all.read();
        for (const auto metric : {heap_metric::allocation, heap_metric::active,
                                  heap_metric::active_bytes, heap_metric::requested_bytes}) {
            is_sound = is_sound && now.of(metric).current >= 0 &&
                       now.of(metric).freed <= now.of(metric).allocated;
        }
        is_sound =
            is_sound && now.of(heap_metric::active).current <= std::int64_t{2} * threads &&
            now.of(heap_metric::active_bytes).current <= static_cast<std::int64_t>(threads * 3_MiB);
        std::this_thread::yield();
    }
    for (std::thread& writer : writers) {
        writer.join();
    }
    CHECK(is_sound);
    const heap_figures now = all.read();
    CHECK(now.of(heap_metric::allocation).current == 0);
    CHECK(now.of(heap_metric::allocation).allocated ==
          std::int64_t{threads} * (rounds + rounds / 100 + 1));
    CHECK(now.of(heap_metric::active_bytes).current == 0);
    CHECK(now.of(heap_metric::active_bytes).peak >= static_cast<std::int64_t>(2_MiB));
    CHECK(now.of(heap_metric::active_bytes).peak <= static_cast<std::int64_t>(threads * 3_MiB));
}

TEST_CASE("the names are PyTorch's, each once, and a text has a line for each") {
    heap_statistics all;
    heap_statistics::stripe* mine = all.try_attach();
    mine->allocated(heap_pool::large, 2_MiB, 2_MiB - 7);
    all.count(heap_count::alloc_retries);
    std::map<std::string, std::int64_t> figures;
    all.read().for_each([&](const char* name, std::int64_t value) {
        CHECK_MESSAGE(figures.emplace(name, value).second, name);
    });
    std::set<std::string> expected{"num_alloc_retries", "num_ooms",        "num_sync_all_streams",
                                   "num_device_alloc",  "num_device_free", "num_oom_rejections",
                                   "max_split_size"};
    for (const std::string field : {"current", "peak", "allocated", "freed"}) {
        for (const std::string metric :
             {"allocation", "segment", "active", "inactive_split", "allocated_bytes",
              "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"}) {
            for (const std::string pool : {"all", "small_pool", "large_pool"}) {
                std::string name{metric};
                name.append(".").append(pool).append(".").append(field);
                expected.insert(name);
            }
        }
        expected.insert("oversize_allocations." + field);
        expected.insert("oversize_segments." + field);
    }
    for (const std::string& name : expected) {
        CHECK_MESSAGE(figures.count(name) == 1, name);
    }
    for (const auto& [name, value] : figures) {
        CHECK_MESSAGE((expected.count(name) == 1 || name.rfind("xmm.", 0) == 0), name);
    }
    CHECK(figures["requested_bytes.large_pool.peak"] == 2_MiB - 7);
    CHECK(figures["num_alloc_retries"] == 1);
    CHECK(figures["max_split_size"] == -1);

    std::ostringstream text;
    text << all.read();
    std::istringstream lines{text.str()};
    std::map<std::string, std::int64_t> read_back;
    for (std::string name; lines >> name;) {
        lines >> read_back[name];
    }
    CHECK(read_back == figures);
}

TEST_CASE("heap_statistics: many short driver calls add up") {
    heap_statistics all;
    for (int i = 0; i < 10'000; ++i) {
        all.count_driver_ns(300);
    }
    CHECK(all.read().of(heap_count::driver_us) == 3000);
    all.reset_accumulated();
    CHECK(all.read().of(heap_count::driver_us) == 0);
}

TEST_CASE("heap_statistics: a thread's counts are made without a lock, and none are lost") {
    heap_statistics all;
    const std::size_t before = test::watched_new.count_under(lock_rank::leaf);
    for (int i = 0; i < 100; ++i) {
        test::watched_new.left = 1;  // nothing is needed beside the counts themselves
        const heap_statistics::stripe* made = all.try_attach();
        const heap_statistics::stripe* none = all.try_attach();
        test::watched_new.left = SIZE_MAX;
        CHECK(made != nullptr);
        CHECK(none == nullptr);
    }
    CHECK(test::watched_new.count_under(lock_rank::leaf) == before);
}

namespace {

constexpr std::array block_metrics{heap_metric::allocation, heap_metric::allocated_bytes,
                                   heap_metric::active, heap_metric::active_bytes,
                                   heap_metric::requested_bytes};

// What the counts ought to be, by metric; of each: all, small, large.
struct count_model {
    using places = std::array<std::array<std::int64_t, 3>, block_metrics.size()>;
    places now{};
    places peaks{};

    void change(heap_pool pool, std::array<std::int64_t, block_metrics.size()> by) {
        for (std::size_t metric = 0; metric < block_metrics.size(); ++metric) {
            for (const std::size_t at : {std::size_t{0}, 1 + static_cast<std::size_t>(pool)}) {
                now[metric][at] += by[metric];
                peaks[metric][at] = std::max(peaks[metric][at], now[metric][at]);
            }
        }
    }
};

}  // namespace

TEST_CASE("each metric of each pool has a peak of its own, whenever that was") {
    for (const auto& [stripe_count, are_huge] :
         {std::pair{1U, true}, {4U, true}, {1U, false}, {4U, false}}) {
        CAPTURE(stripe_count);
        CAPTURE(are_huge);
        heap_statistics all;
        std::vector<heap_statistics::stripe*> stripes;
        for (std::size_t i = 0; i < stripe_count; ++i) {
            stripes.push_back(all.try_attach());
        }
        struct block {
            heap_pool pool;
            unsigned block_class;
            std::int64_t bytes;
        };
        std::minstd_rand random{7};
        std::vector<block> live;
        std::vector<block> waiting;
        count_model model;
        const auto take = [&](std::vector<block>& from) {
            std::swap(from[random() % from.size()], from.back());
            const block one = from.back();
            from.pop_back();
            return one;
        };
        for (int i = 0; i < 200'000; ++i) {
            heap_statistics::stripe& mine = *stripes[random() % stripes.size()];
            // Phases in which there are many small ones, or a few large ones, or many that wait.
            const int phase = i / 10'000 % 4;
            const bool is_large = random() % 100 < (phase == 0 ? 1U : 60U);
            if (live.empty() || random() % 100 < (phase % 2 == 0 ? 60U : 40U)) {
                const unsigned of = static_cast<unsigned>(random() % block_classes::count);
                const std::int64_t bytes =
                    is_large ? static_cast<std::int64_t>(are_huge ? (1 + random() % 40) * 1_MiB
                                                                  : 33_KiB + random() % 990_KiB)
                             : static_cast<std::int64_t>(block_classes::bytes_of(of));
                const block one{is_large ? heap_pool::large : heap_pool::small, of, bytes};
                if (is_large) {
                    mine.allocated(one.pool, static_cast<std::size_t>(bytes),
                                   static_cast<std::size_t>(bytes - 7));
                } else {
                    mine.small_allocated(of);
                }
                model.change(one.pool, {1, bytes, 1, bytes, is_large ? bytes - 7 : bytes});
                live.push_back(one);
            } else if (const block one = take(live); one.pool == heap_pool::small) {
                mine.small_freed(one.block_class);
                model.change(one.pool, {-1, -one.bytes, -1, -one.bytes, -one.bytes});
            } else {
                mine.free_requested(one.pool, static_cast<std::size_t>(one.bytes));
                model.change(one.pool, {-1, -one.bytes, 0, 0, 0});
                waiting.push_back(one);
            }
            while (waiting.size() > (phase == 3 ? 200U : 2U)) {
                const block one = take(waiting);
                mine.free_completed(one.pool, static_cast<std::size_t>(one.bytes),
                                    static_cast<std::size_t>(one.bytes - 7));
                model.change(one.pool, {0, 0, -1, -one.bytes, -(one.bytes - 7)});
            }
        }
        const heap_figures seen = all.read();
        for (std::size_t metric = 0; metric < block_metrics.size(); ++metric) {
            CAPTURE(metric);
            const bool is_count = metric % 2 == 0 && metric < 4;
            const std::int64_t slack =
                static_cast<std::int64_t>(stripe_count) * (is_count ? 4096 : 1'048'576);
            const heap_counter& large = seen.of(block_metrics[metric], heap_pool::large);
            CHECK(large.current == model.now[metric][2]);
            if (are_huge) {
                CHECK(large.peak == model.peaks[metric][2]);
            }
            for (const std::size_t place : {0U, 1U, 2U}) {
                CAPTURE(place);
                const heap_counter& one = place == 0 ? seen.of(block_metrics[metric])
                                          : place == 1
                                              ? seen.of(block_metrics[metric], heap_pool::small)
                                              : large;
                CHECK(one.current == model.now[metric][place]);
                CHECK(one.peak <= model.peaks[metric][place]);
                CHECK(one.peak > model.peaks[metric][place] - slack);
            }
        }
    }
}

TEST_CASE("a peak of counts is not hidden by one of bytes, nor a small pool's by a large block") {
    heap_statistics all;
    heap_statistics::stripe& mine = *all.try_attach();
    mine.allocated(heap_pool::large, 100_MiB, 100_MiB);
    mine.freed(heap_pool::large, 100_MiB, 100_MiB);
    const unsigned of = block_classes::index_of(1000);
    for (int i = 0; i < 60'000; ++i) {
        mine.small_allocated(of);
    }
    for (int i = 0; i < 60'000; ++i) {
        mine.small_freed(of);
    }
    heap_figures now = all.read();
    CHECK(now.of(heap_metric::allocation).peak > 60'000 - 4096);
    CHECK(now.of(heap_metric::active, heap_pool::small).peak > 60'000 - 4096);
    CHECK(now.of(heap_metric::allocated_bytes, heap_pool::small).peak > 60'000 * 1024 - 1'048'576);
    CHECK(now.of(heap_metric::active_bytes).peak == 100_MiB);
    all.reset_peaks();
    mine.allocated(heap_pool::large, 100_MiB, 100_MiB);
    mine.freed(heap_pool::large, 100_MiB, 100_MiB);
    for (int i = 0; i < 90; ++i) {
        mine.allocated(heap_pool::large, 1_MiB, 1_MiB);
    }
    for (int i = 0; i < 90; ++i) {
        mine.freed(heap_pool::large, 1_MiB, 1_MiB);
    }
    now = all.read();
    CHECK(now.of(heap_metric::allocation).peak == 90);
    CHECK(now.of(heap_metric::active_bytes).peak == 100_MiB);
}

TEST_CASE("the most that was allocated is known although more was active, and waited, before") {
    heap_statistics all;
    heap_statistics::stripe& mine = *all.try_attach();
    mine.allocated(heap_pool::large, 80_MiB, 80_MiB);
    mine.free_requested(heap_pool::large, 80_MiB);
    mine.allocated(heap_pool::large, 80_MiB, 80_MiB);
    mine.free_completed(heap_pool::large, 80_MiB, 80_MiB);
    mine.allocated(heap_pool::large, 60_MiB, 60_MiB);
    mine.freed(heap_pool::large, 60_MiB, 60_MiB);
    const heap_figures now = all.read();
    CHECK(now.of(heap_metric::allocated_bytes).peak == 140_MiB);
    CHECK(now.of(heap_metric::active_bytes).peak == 160_MiB);
}

TEST_CASE("what small and large blocks add between two looks is below 1 MiB together") {
    heap_statistics all;
    heap_statistics::stripe& mine = *all.try_attach();
    const unsigned largest = block_classes::count - 1;
    mine.allocated(heap_pool::large, 100_MiB, 100_MiB);
    for (int i = 0; i < 31; ++i) {
        mine.small_allocated(largest);
    }
    mine.allocated(heap_pool::large, 900_KiB, 900_KiB);
    mine.freed(heap_pool::large, 900_KiB, 900_KiB);
    for (int i = 0; i < 31; ++i) {
        mine.small_freed(largest);
    }
    mine.freed(heap_pool::large, 100_MiB, 100_MiB);
    const std::size_t most = 100_MiB + 900_KiB + 31 * 32_KiB;
    CHECK(all.read().of(heap_metric::active_bytes).peak > static_cast<std::int64_t>(most - 1_MiB));
}
