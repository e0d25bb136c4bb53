// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/small_blocks.hpp>

#include <xmm/resources/device_frames.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "../os/child.hpp"
#include "../support/sanitizer.hpp"
#include "trap_port.hpp"

using namespace xmm::literals;

namespace {

using blocks_type = xmm::small_blocks<xmm::device_frames>;

// The frames of a device whose memory traps.
struct device {
    trap_port port;
    xmm::device_frames frames{port};

    // Slots in use: what can be given back is given back first.
    std::size_t used() {
        frames.trim(0);
        return port.frame_bytes() / 2_MiB;
    }
};

// Null, with a message, where the tests are built without jemalloc.
std::unique_ptr<blocks_type> make(device& on) {
    auto made = blocks_type::make(on.frames, xmm::queue_id{1});
    if (!made) {
        CHECK(made.code() == xmm::errc::unsupported);
        REQUIRE(xmm::jemalloc_table::find() == nullptr);
        MESSAGE("skipped: built without jemalloc");
        return nullptr;
    }
    return std::move(made).value();
}

// The number of tests' caches that jemalloc has made: what is dropped is counted no more.
unsigned next_cache_index() {
    unsigned index = 0;
    std::size_t bytes = sizeof index;
    const auto* functions = xmm::jemalloc_table::find();
    REQUIRE(functions->mallctl("tcache.create", &index, &bytes, nullptr, 0) == 0);
    REQUIRE(functions->mallctl("tcache.destroy", nullptr, nullptr, &index, sizeof index) == 0);
    return index;
}

// Blocks in use, by address; overlaps are found when one is added.
class book {
public:
    // False if it overlaps another.
    bool add(void* block, std::size_t bytes) {
        const std::lock_guard guard{lock_};
        const xmm::address at = xmm::to_address(block);
        const auto above = blocks_.lower_bound(at);
        const bool is_free =
            (above == blocks_.end() || above->first >= at + bytes) &&
            (above == blocks_.begin() || std::prev(above)->first + std::prev(above)->second <= at);
        blocks_[at] = bytes;
        return is_free;
    }
    void remove(void* block) {
        const std::lock_guard guard{lock_};
        blocks_.erase(xmm::to_address(block));
    }

private:
    std::mutex lock_;
    std::map<xmm::address, std::size_t> blocks_;
};

// A step at a time, in a thread of its own.
class worker {
public:
    template <class Fn>
    void run(Fn&& fn) {
        std::unique_lock guard{lock_};
        work_ = std::forward<Fn>(fn);
        changed_.notify_all();
        changed_.wait(guard, [&] { return work_ == nullptr; });
    }
    void end() {
        if (thread_.joinable()) {
            {
                const std::lock_guard guard{lock_};
                is_over_ = true;
            }
            changed_.notify_all();
            thread_.join();
        }
    }
    ~worker() { end(); }

private:
    std::mutex lock_;
    std::condition_variable changed_;
    std::function<void()> work_;
    bool is_over_ = false;
    std::thread thread_{[this] {
        std::unique_lock guard{lock_};
        for (;;) {
            changed_.wait(guard, [&] { return work_ != nullptr || is_over_; });
            if (work_ == nullptr) {
                return;
            }
            work_();
            work_ = nullptr;
            changed_.notify_all();
        }
    }};
};

}  // namespace

TEST_SUITE("small_blocks") {
    TEST_CASE("blocks are aligned, large enough, apart, and have frames") {
        device on;
        const auto blocks = make(on);
        if (blocks == nullptr) {
            return;
        }
        CHECK(on.port.reserved_bytes() == 0);
        book live;
        std::vector<void*> all;
        for (std::size_t alignment = 1; alignment <= 4096; alignment *= 2) {
            for (std::size_t bytes = 1; bytes <= 32_KiB; bytes = bytes * 5 / 4 + 1) {
                void* block = blocks->allocate(bytes, alignment).value_or(nullptr);
                REQUIRE(block != nullptr);
                CHECK(xmm::to_address(block) % alignment == 0);
                CHECK(blocks->usable_bytes(block) >= bytes);
                CHECK(blocks->contains(xmm::to_address(block)));
                CHECK(on.port.has_frames(xmm::to_address(block), bytes));
                CHECK(live.add(block, blocks->usable_bytes(block)));
                all.push_back(block);
            }
        }
        CHECK(!blocks->contains(xmm::to_address(&live)));
        for (void* block : all) {
            blocks->deallocate(block);
        }
        blocks->flush();
        CHECK(blocks->allocated_bytes() == 0);
        CHECK(blocks->committed_bytes() > 0);
        blocks->purge();
        CHECK(blocks->committed_bytes() == 0);
        CHECK(on.used() == 0);
        CHECK(blocks->is_valid());
        CHECK(on.port.mistakes() == 0);
    }

    TEST_CASE("a refused jemalloc makes no arena, and says why") {
        // The table that is there cannot be taken out, so only that there is an answer at all is seen here; the
        // refusals themselves are tested with the table.
        device on;
        auto made = blocks_type::make(on.frames, xmm::queue_id{});
        CHECK(made.has_value() == (xmm::jemalloc_table::find() != nullptr));
        if (!made) {
            CHECK(made.error().why[0] != '\0');
        }
    }

    TEST_CASE("destroyed with blocks in use and caches full, everything goes back") {
        device on;
        {
            const auto blocks = make(on);
            if (blocks == nullptr) {
                return;
            }
            for (int i = 0; i < 1000; ++i) {
                void* kept = blocks->try_allocate(3000, 256);
                void* freed = blocks->try_allocate(3000, 256);
                REQUIRE(kept != nullptr);
                blocks->deallocate(freed);
            }
            CHECK(on.used() > 0);
        }
        CHECK(on.used() == 0);
        CHECK(on.port.reserved_bytes() == 0);
        CHECK(on.port.mistakes() == 0);
    }

    TEST_CASE("out of memory is an answer; what is freed can be had again") {
        device on;
        on.port.most_bytes = 8_MiB;
        const auto blocks = make(on);
        if (blocks == nullptr) {
            return;
        }
        std::vector<void*> all;
        for (;;) {
            auto block = blocks->allocate(20000, 256);
            if (!block) {
                CHECK(block.code() == xmm::errc::no_memory);
                break;
            }
            all.push_back(*block);
            REQUIRE(all.size() < 1000);
        }
        CHECK(all.size() >= 8_MiB / 20480 - 20);
        const std::size_t reserved = on.port.reserved_bytes();
        for (int i = 0; i < 50; ++i) {
            CHECK(blocks->try_allocate(30000, 256) == nullptr);
        }
        CHECK(on.port.reserved_bytes() == reserved);
        // What one size gave back serves another, after flush and purge.
        for (void* block : all) {
            blocks->deallocate(block);
        }
        blocks->flush();
        blocks->purge();
        CHECK(on.used() == 0);
        for (int i = 0; i < 100; ++i) {
            REQUIRE(blocks->try_allocate(30000, 256) != nullptr);
        }
        CHECK(on.port.mistakes() == 0);
    }

    TEST_CASE("frames refused now and then: never a block without them, nothing lost") {
        device on;
        const auto blocks = make(on);
        if (blocks == nullptr) {
            return;
        }
        std::mt19937 random{3};
        std::vector<void*> all;
        std::size_t failures = 0;
        for (int round = 0; round < 60; ++round) {
            on.port.fail_create_after = random() % 3;
            for (int i = 0; i < 300; ++i) {
                const std::size_t bytes = 1 + random() % (32_KiB);
                if (void* block = blocks->try_allocate(bytes, 512)) {
                    REQUIRE(on.port.has_frames(xmm::to_address(block), bytes));
                    all.push_back(block);
                } else {
                    ++failures;
                }
            }
            on.port.fail_create_after = SIZE_MAX;
            REQUIRE(blocks->is_valid());
            std::shuffle(all.begin(), all.end(), random);
            while (all.size() > 100) {
                blocks->deallocate(all.back());
                all.pop_back();
            }
            if (round % 8 == 0) {
                blocks->flush();
                blocks->purge();
            }
        }
        CHECK(failures > 100);
        CHECK(on.port.refused() > 60);
        for (void* block : all) {
            blocks->deallocate(block);
        }
        blocks->flush();
        blocks->purge();
        CHECK(on.used() == 0);
        CHECK(on.port.mistakes() == 0);
    }

    TEST_CASE("a thread's cache goes back when it ends, and the next thread takes it over") {
        device on;
        const auto blocks = make(on);
        if (blocks == nullptr) {
            return;
        }
        const unsigned before = next_cache_index();
        for (int round = 0; round < 20; ++round) {
            std::thread{[&] {
                std::vector<void*> all;
                for (int i = 0; i < 200; ++i) {
                    all.push_back(blocks->try_allocate(4096, 256));
                }
                for (void* block : all) {
                    blocks->deallocate(block);
                }
            }}.join();
            // Nothing of it is hidden.
            CHECK(blocks->allocated_bytes() == 0);
        }
        // One cache served all of them.
        CHECK(next_cache_index() == before + 1);
        blocks->purge();
        CHECK(on.used() == 0);
    }

    TEST_CASE("threads outlive what they used, and use the next") {
        worker other;
        unsigned before = 0;
        for (int round = 0; round < 10; ++round) {
            device on;
            auto blocks = make(on);
            if (blocks == nullptr) {
                return;
            }
            if (round == 0) {
                before = next_cache_index();
            }
            void* block = nullptr;
            other.run([&] {
                block = blocks->try_allocate(100, 256);
                void* cached = blocks->try_allocate(100, 256);
                blocks->deallocate(cached);
            });
            REQUIRE(block != nullptr);
            blocks->deallocate(block);  // into this thread's cache
            blocks.reset();
            CHECK(on.used() == 0);
            CHECK(on.port.mistakes() == 0);
        }
        // No cache is left over.
        CHECK(next_cache_index() == before);
        other.end();
    }

    TEST_CASE("one thread uses more of them than it has at hand") {
        device on;
        std::vector<std::unique_ptr<blocks_type>> many;
        for (int i = 0; i < 70; ++i) {
            many.push_back(make(on));
            if (many.back() == nullptr) {
                return;
            }
        }
        const unsigned before = next_cache_index();
        for (int round = 0; round < 5; ++round) {
            std::vector<void*> all;
            for (auto& blocks : many) {
                all.push_back(blocks->try_allocate(1000, 256));
                REQUIRE(all.back() != nullptr);
                CHECK(blocks->contains(xmm::to_address(all.back())));
            }
            for (std::size_t i = 0; i < many.size(); ++i) {
                many[i]->deallocate(all[i]);
            }
        }
        CHECK(next_cache_index() == before + 70);
        std::erase_if(many, [&](auto& blocks) { return &blocks - many.data() >= 10; });
        CHECK(many.size() == 10);
        for (auto& blocks : many) {
            CHECK(blocks->try_allocate(1000, 256) != nullptr);
        }
        many.clear();
        CHECK(on.used() == 0);
        CHECK(on.port.mistakes() == 0);
    }

    TEST_CASE("without caches to be had, blocks come from the arena") {
        device on;
        const auto blocks = make(on);
        if (blocks == nullptr) {
            return;
        }
        const auto* functions = xmm::jemalloc_table::find();
        std::vector<unsigned> taken;
        for (;;) {
            unsigned index = 0;
            std::size_t bytes = sizeof index;
            if (functions->mallctl("tcache.create", &index, &bytes, nullptr, 0) != 0) {
                break;
            }
            taken.push_back(index);
        }
        CHECK(taken.size() > 1000);
        void* block = blocks->try_allocate(1000, 256);
        CHECK(block != nullptr);
        blocks->deallocate(block);
        CHECK(blocks->allocated_bytes() == 0);  // in no cache
        for (unsigned index : taken) {
            functions->mallctl("tcache.destroy", nullptr, nullptr, &index, sizeof index);
        }
        // From the next flush on there is a cache.
        blocks->flush();
        block = blocks->try_allocate(1000, 256);
        blocks->deallocate(block);
        CHECK(blocks->allocated_bytes() > 0);
    }

    TEST_CASE("flush reaches the caches of other threads when they next call") {
        device on;
        const auto blocks = make(on);
        if (blocks == nullptr) {
            return;
        }
        worker other;
        other.run([&] { blocks->deallocate(blocks->try_allocate(2048, 256)); });
        CHECK(blocks->allocated_bytes() > 0);
        blocks->flush();
        CHECK(blocks->allocated_bytes() > 0);
        other.run([&] {
            void* block = blocks->try_allocate(30000, 256);
            blocks->deallocate(block);
            blocks->flush();
        });
        CHECK(blocks->allocated_bytes() == 0);
    }

    TEST_CASE("flush makes no cache for a thread that has none") {
        device on;
        const auto blocks = make(on);
        if (blocks == nullptr) {
            return;
        }
        void* block = blocks->try_allocate(2048, 256);
        const unsigned before = next_cache_index();
        std::thread{[&] {
            blocks->flush();
            CHECK(xmm::detail::caches_of_this_thread.first == nullptr);
        }}.join();
        CHECK(next_cache_index() == before);
        blocks->deallocate(block);
    }

    TEST_CASE("threads that end while the owner does") {
        for (int round = 0; round < 50; ++round) {
            device on;
            auto blocks = make(on);
            if (blocks == nullptr) {
                return;
            }
            std::vector<std::thread> threads;
            std::atomic<int> called{0};
            for (int i = 0; i < 3; ++i) {
                threads.emplace_back([&] {
                    for (int k = 0; k < 100; ++k) {
                        blocks->deallocate(blocks->try_allocate(512, 256));
                    }
                    called.fetch_add(1);
                });
            }
            while (called.load() < 3) {
                std::this_thread::yield();
            }
            blocks.reset();
            for (auto& thread : threads) {
                thread.join();
            }
            CHECK(on.used() == 0);
            CHECK(on.port.mistakes() == 0);
        }
    }

    TEST_CASE("a fuzz over memory that traps: no overlap, no block without frames") {
        constexpr int thread_count = 3;
        constexpr int steps = 60000;
        device on;
        const auto blocks = make(on);
        if (blocks == nullptr) {
            return;
        }
        book live;
        std::mutex handed_lock;
        std::vector<void*> handed;  // from one thread to another
        std::atomic<std::size_t> overlaps{0};
        std::atomic<std::size_t> bare{0};
        std::atomic<std::size_t> misaligned{0};
        const auto work = [&](unsigned seed) {
            std::mt19937 random{seed};
            std::vector<void*> mine;
            const auto free_one = [&](void* block) {
                live.remove(block);
                blocks->deallocate(block);
            };
            for (int step = 0; step < steps; ++step) {
                const unsigned choice = random() % 100;
                if (mine.size() < 400 && (choice < 52 || mine.empty())) {
                    const std::size_t bytes = 1 + (random() % 32_KiB >> random() % 12);
                    const std::size_t alignment = std::size_t{1} << random() % 13;
                    void* block = blocks->try_allocate(bytes, alignment);
                    if (block == nullptr) {
                        continue;
                    }
                    misaligned += xmm::to_address(block) % alignment != 0 ? 1 : 0;
                    overlaps +=
                        live.add(block, std::max(bytes, blocks->usable_bytes(block))) ? 0 : 1;
                    if (step % 16 == 0) {
                        bare += on.port.has_frames(xmm::to_address(block), bytes) ? 0 : 1;
                    }
                    mine.push_back(block);
                } else if (choice < 56) {
                    const std::lock_guard guard{handed_lock};
                    handed.push_back(mine.back());
                    mine.pop_back();
                } else if (choice < 60) {
                    void* block = nullptr;
                    {
                        const std::lock_guard guard{handed_lock};
                        if (!handed.empty()) {
                            block = handed.back();
                            handed.pop_back();
                        }
                    }
                    if (block != nullptr) {
                        free_one(block);
                    }
                } else if (!mine.empty()) {
                    std::swap(mine[random() % mine.size()], mine.back());
                    free_one(mine.back());
                    mine.pop_back();
                }
                if (random() % 5000 == 0) {
                    blocks->flush();
                    blocks->purge();
                }
            }
            for (void* block : mine) {
                free_one(block);
            }
        };
        std::vector<std::thread> threads;
        for (unsigned seed = 1; seed <= thread_count; ++seed) {
            threads.emplace_back(work, seed);
        }
        for (auto& thread : threads) {
            thread.join();
        }
        for (void* block : handed) {
            blocks->deallocate(block);
        }
        CHECK(overlaps == 0);
        CHECK(bare == 0);
        CHECK(misaligned == 0);
        blocks->flush();
        CHECK(blocks->allocated_bytes() == 0);
        blocks->purge();
        CHECK(on.used() == 0);
        CHECK(blocks->is_valid());
        CHECK(on.port.mistakes() == 0);
    }
}

namespace {

const xmm_test::child_case without_memory{
    "small_blocks without memory", [] {
        device on;
        if (const auto* functions = xmm::jemalloc_table::find()) {
            functions->dallocx(functions->mallocx(100, 0),
                               0);  // it has no status for its own first call
        }
        rlimit before{};
        ::getrlimit(RLIMIT_AS, &before);
        const rlimit none{4096, before.rlim_max};
        ::setrlimit(RLIMIT_AS, &none);
        const bool is_refused = !blocks_type::make(on.frames, xmm::queue_id{1});
        ::setrlimit(RLIMIT_AS, &before);
        auto made = blocks_type::make(on.frames, xmm::queue_id{1});
        return is_refused && (made || made.code() == xmm::errc::unsupported) ? 0 : 1;
    }};

}  // namespace

TEST_CASE("small_blocks: a process without memory for the first ones is told so, and goes on") {
    if (xmm::test::has_sanitizer) {
        MESSAGE("skipped: a sanitizer needs memory of its own");
        return;
    }
    const auto end = xmm_test::run_child("small_blocks without memory");
    CHECK(end.exit_code == 0);
    CHECK(end.errors == "");
}
