// SPDX-License-Identifier: Apache-2.0
// adaptors.cpp - the one thing that each adaptor changes.
#include <xmm/resources/adaptors/aligned_resource.hpp>
#include <xmm/resources/adaptors/binning_resource.hpp>
#include <xmm/resources/adaptors/failure_callback_resource.hpp>
#include <xmm/resources/adaptors/limit_resource.hpp>
#include <xmm/resources/adaptors/logging_resource.hpp>
#include <xmm/resources/adaptors/prefetch_resource.hpp>
#include <xmm/resources/adaptors/statistics_resource.hpp>
#include <xmm/resources/adaptors/thread_cache_resource.hpp>
#include <xmm/resources/adaptors/thread_safe_resource.hpp>
#include <xmm/resources/adaptors/tracking_resource.hpp>

#include <cctype>
#include <fstream>
#include <sstream>
#include <thread>

#include <unistd.h>

#include <doctest/doctest.h>

#include <xmm/resources/host_resource.hpp>
#include <xmm/resources/pool_resource.hpp>
#include <xmm/resources/space_resource.hpp>

#include "fake_space.hpp"

using namespace xmm;
using namespace xmm::literals;
using test::fake_space;

namespace {

// Notes what it is asked for; not made for several threads.
class noting_resource final : public memory_resource {
public:
    static constexpr reach static_reach = reach::host;
    noting_resource() : memory_resource{"noting", node_id{0}, static_reach} {}

    std::size_t asked = 0;
    std::size_t returned = 0;
    std::size_t last_bytes = 0;
    std::size_t last_alignment = 0;
    std::size_t back_bytes = 0;
    std::size_t back_alignment = 0;
    int fails = 0;

private:
    void* do_allocate_on(stream_ref, std::size_t bytes, std::size_t alignment) override {
        ++asked;
        last_bytes = bytes;
        last_alignment = alignment;
        if (fails > 0) {
            --fails;
            refuse(bytes, "told to fail");
        }
        return ::operator new(bytes, std::align_val_t{alignment});
    }
    void do_deallocate_on(stream_ref, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept override {
        ++returned;
        back_bytes = bytes;
        back_alignment = alignment;
        ::operator delete(pointer, std::align_val_t{alignment});
    }
};

// Equal, where each `d` that is followed by time's digits stands for a digit.
[[nodiscard]] bool looks_like(std::string_view line, std::string_view pattern) {
    const std::size_t time_end = pattern.find_last_of('d', pattern.find(".dddddd") + 7);
    for (std::size_t i = 0; i < line.size() && i < pattern.size(); ++i) {
        const bool is_digit_wanted =
            pattern[i] == 'd' && time_end != std::string_view::npos && i <= time_end;
        if (is_digit_wanted ? std::isdigit(static_cast<unsigned char>(line[i])) == 0
                            : line[i] != pattern[i]) {
            return false;
        }
    }
    return line.size() == pattern.size();
}

}  // namespace

TEST_CASE("limit_resource: up to the last byte and not one more") {
    noting_resource plain;
    limit_resource limited{plain, 1000};
    void* a = limited.allocate_sync(400);
    void* b = limited.allocate_sync(600);
    CHECK(limited.usage().used == 1000);
    try {
        (void)limited.allocate_sync(1);
        FAIL("above the limit");
    } catch (const out_of_memory& refusal) {
        CHECK(refusal.used() == 1000);
        CHECK(refusal.limit() == 1000);
        CHECK(std::string_view{refusal.cause()} == "the limit of this resource");
    }
    CHECK(plain.asked == 2);
    limited.deallocate_sync(a, 400);
    CHECK_THROWS_AS((void)limited.allocate_sync(401), out_of_memory);
    a = limited.allocate_sync(400);
    limited.deallocate_sync(a, 400);
    limited.deallocate_sync(b, 600);
    CHECK(limited.usage().used == 0);
    plain.fails = 1;
    CHECK_THROWS_AS((void)limited.allocate_sync(500), out_of_memory);
    CHECK(limited.usage().used == 0);
}

TEST_CASE("limit_resource: threads share the limit and never pass it") {
    host_resource host;
    limit_resource limited{host, 4000};
    std::atomic<int> refused{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 2000; ++i) {
                try {
                    void* pointer = limited.allocate_sync(1500);
                    if (limited.usage().used > 4000) {
                        refused = 1'000'000;
                    }
                    limited.deallocate_sync(pointer, 1500);
                } catch (const out_of_memory&) {
                    ++refused;
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    CHECK(refused < 1'000'000);
    CHECK(limited.usage().used == 0);
}

TEST_CASE("statistics_resource: current, peak, total; sets pushed and popped") {
    noting_resource plain;
    statistics_resource counted{plain};
    void* a = counted.allocate_sync(100);
    void* b = counted.allocate_sync(50);
    counted.deallocate_sync(a, 100);
    CHECK(counted.statistics().bytes == usage_counter{50, 150, 150});
    CHECK(counted.statistics().blocks == usage_counter{1, 2, 2});
    CHECK(counted.push().bytes == usage_counter{50, 150, 150});
    CHECK(counted.statistics() == resource_statistics{});
    counted.deallocate_sync(b, 50);
    CHECK(counted.statistics().bytes == usage_counter{-50, 0, 0});
    void* c = counted.allocate_sync(180);
    CHECK(counted.statistics().bytes == usage_counter{130, 130, 180});
    plain.fails = 1;
    CHECK_THROWS_AS((void)counted.allocate_sync(10), out_of_memory);
    CHECK(counted.pop().bytes == usage_counter{130, 130, 180});
    CHECK(counted.statistics().bytes == usage_counter{180, 180, 330});
    CHECK(counted.statistics().blocks == usage_counter{1, 2, 3});
    CHECK(counted.statistics().failures == 1);
    CHECK(counted.pop() == counted.statistics());  // the last set stays
    counted.deallocate_sync(c, 180);
    CHECK(counted.statistics().bytes.current == 0);
}

TEST_CASE("tracking_resource: what is live, where an address belongs, what leaked") {
    noting_resource plain;
    std::FILE* file = std::tmpfile();
    {
        tracking_resource tracked{plain, false};
        auto* a = static_cast<char*>(tracked.allocate_sync(100, 32));
        auto* b = static_cast<char*>(tracked.allocate_sync(50));
        CHECK(tracked.live_count() == 2);
        CHECK(tracked.live_bytes() == 150);
        CHECK(tracked.find(a)->number == 1);
        CHECK(tracked.find(a + 99)->bytes == 100);
        CHECK(tracked.find(b + 49)->number == 2);
        CHECK(tracked.find(b + 49)->thread == ::gettid());
        CHECK_FALSE(tracked.find(a + 100).has_value());
        CHECK_FALSE(tracked.find(nullptr).has_value());
        tracked.deallocate_sync(a, 100, 32);
        CHECK_FALSE(tracked.find(a).has_value());
        CHECK(tracked.live_bytes() == 50);
        tracked.report(file);
        tracked.deallocate_sync(b, 50);
        CHECK(tracked.live().empty());
        void* foreign = plain.allocate_sync(10);
        tracked.deallocate_sync(foreign, 10);
        CHECK(tracked.unknown_count() == 1);
        CHECK(plain.returned == 3);
    }
    std::rewind(file);
    std::string text(500, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file));
    std::fclose(file);
    CHECK(text.find("1 blocks with 50 bytes are still live") != std::string::npos);
    CHECK(text.find("50 bytes, alignment 16, number 2") != std::string::npos);
}

TEST_CASE("logging_resource: lines as RMM's replay reads them, failures too") {
    noting_resource plain;
    char path[] = "/tmp/xmm_log_XXXXXX";
    ::close(::mkstemp(path));
    void* pointer = nullptr;
    {
        logging_resource logged{plain, path};
        pointer = logged.allocate_sync(100);
        plain.fails = 1;
        CHECK_THROWS_AS(
            (void)logged.allocate(
                stream_ref{queue_id{7}, nullptr, [](void*, queue_id) noexcept { return status{}; }},
                1 << 20),
            out_of_memory);
        logged.deallocate_sync(pointer, 100);
    }
    std::ifstream file{path};
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) {
        lines.push_back(line);
    }
    ::unlink(path);
    REQUIRE(lines.size() == 4);
    CHECK(lines[0] == "Thread,Time,Action,Pointer,Size,Stream");
    std::ostringstream at;
    at << pointer;
    const std::string prefix = std::to_string(::gettid()) + ",dd:dd:dd.dddddd,";
    CHECK(looks_like(lines[1], prefix + "allocate," + at.str() + ",100,0"));
    CHECK(looks_like(lines[2], prefix + "allocate failure,0x0,1048576,7"));
    CHECK(looks_like(lines[3], prefix + "free," + at.str() + ",100,0"));
    CHECK_FALSE(looks_like("12", "13"));
    CHECK_THROWS_AS((logging_resource{plain, "/nonexistent/log.csv"}), std::system_error);
}

TEST_CASE("failure_callback_resource: asks until told to stop, and can make room") {
    noting_resource plain;
    struct room {
        memory_resource* from;
        void* spare;
        std::size_t told = 0;
        int calls = 0;
    } context{&plain, plain.allocate_sync(64)};
    failure_callback_resource patient{plain,
                                      [](std::size_t bytes, void* self) {
                                          auto& mine = *static_cast<room*>(self);
                                          mine.told = bytes;
                                          if (mine.spare != nullptr) {
                                              mine.from->deallocate(mine.spare, 64);
                                              mine.spare = nullptr;
                                          }
                                          return ++mine.calls < 3;
                                      },
                                      &context};
    plain.fails = 2;
    void* pointer = patient.allocate_sync(1000);
    CHECK(context.calls == 2);
    CHECK(context.told == 1000);
    CHECK(context.spare == nullptr);
    patient.deallocate_sync(pointer, 1000);
    plain.fails = 1;
    CHECK_THROWS_AS((void)patient.allocate_sync(10), out_of_memory);
    CHECK(context.calls == 3);
}

TEST_CASE("aligned_resource: raises what is above the threshold, both ways") {
    noting_resource plain;
    aligned_resource aligned{plain, 4096, 1000};
    void* small = aligned.allocate_sync(999, 8);
    CHECK(plain.last_alignment == 8);
    void* large = aligned.allocate_sync(1000, 8);
    CHECK(plain.last_alignment == 4096);
    void* larger = aligned.allocate_sync(1000, 8192);
    CHECK(plain.last_alignment == 8192);
    aligned.deallocate_sync(larger, 1000, 8192);
    CHECK(plain.back_alignment == 8192);
    aligned.deallocate_sync(large, 1000, 8);
    CHECK(plain.back_alignment == 4096);
    aligned.deallocate_sync(small, 999, 8);
    CHECK(plain.back_alignment == 8);
    CHECK_THROWS_AS((aligned_resource{plain, 3}), std::invalid_argument);
    aligned_resource same{plain, 4096, 1000};
    aligned_resource other{plain, 4096, 999};
    CHECK(aligned == same);
    CHECK_FALSE(aligned == other);
}

TEST_CASE("binning_resource: each size to its bin") {
    noting_resource rest;
    noting_resource small;
    noting_resource middle;
    binning_resource bins{rest};
    bins.add_bin(4096, middle);
    bins.add_bin(64, small);
    const auto asked = [&] { return std::array{small.asked, middle.asked, rest.asked}; };
    const auto returned = [&] {
        return std::array{small.returned, middle.returned, rest.returned};
    };
    std::vector<std::pair<void*, std::size_t>> blocks;
    for (std::size_t bytes : {1UL, 64UL, 65UL, 4096UL, 4097UL, 100'000UL}) {
        blocks.emplace_back(bins.allocate_sync(bytes), bytes);
    }
    CHECK(asked() == std::array<std::size_t, 3>{2, 2, 2});
    for (auto [pointer, bytes] : blocks) {
        bins.deallocate_sync(pointer, bytes);
    }
    CHECK(returned() == std::array<std::size_t, 3>{2, 2, 2});

    fake_space space;
    unified_resource unified{space.port()};
    binning_resource on_both_sides{unified};
    CHECK_THROWS_AS(on_both_sides.add_bin(64, small), std::invalid_argument);
}

TEST_CASE("prefetch_resource: fresh blocks are brought to the node") {
    fake_space space;
    unified_resource unified{space.port()};
    prefetch_resource eager{unified, space.port(), fake_space::device};
    void* pointer = eager.allocate_sync(5_MiB);
    CHECK(space.counted().prefetches == 1);
    CHECK(space.counted().prefetched_to == fake_space::device);
    CHECK(space.counted().prefetched_bytes == 5_MiB);
    eager.deallocate_sync(pointer, 5_MiB);
    CHECK(space.counted().prefetches == 1);
    CHECK_THROWS_AS((prefetch_resource{unified, space.port(), node_id{9}}), std::invalid_argument);
}

TEST_CASE("thread_safe_resource: an upstream that knows no threads serves many") {
    noting_resource plain;
    thread_safe_resource safe{plain};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 500; ++i) {
                safe.deallocate_sync(safe.allocate_sync(100), 100);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    CHECK(plain.asked == 2000);
    CHECK(plain.returned == 2000);
}

TEST_CASE("thread_cache_resource: small blocks come back without the upstream") {
    noting_resource plain;
    thread_cache_resource cache{plain};
    void* first = cache.allocate_sync(100, 8);
    CHECK(plain.last_bytes == 112);
    cache.deallocate_sync(first, 100, 8);
    CHECK(plain.returned == 0);
    CHECK(cache.allocate_sync(97, 16) == first);  // the same class
    CHECK(plain.asked == 1);
    cache.deallocate_sync(first, 97, 16);

    SUBCASE("a stack holds sixteen, the rest goes back") {
        std::vector<void*> blocks;
        for (int i = 0; i < 20; ++i) {
            blocks.push_back(cache.allocate_sync(100));
        }
        for (void* block : blocks) {
            cache.deallocate_sync(block, 100);
        }
        CHECK(plain.returned == 4);
        cache.flush();
        CHECK(plain.returned == 20);
    }
    SUBCASE("large blocks, large alignments and streams pass") {
        cache.deallocate_sync(cache.allocate_sync(40_KiB), 40_KiB);
        CHECK(plain.returned == 1);
        cache.deallocate_sync(cache.allocate_sync(100, 512), 100, 512);
        CHECK(plain.returned == 2);
        const stream_ref stream{queue_id{1}, nullptr,
                                [](void*, queue_id) noexcept { return status{}; }};
        cache.deallocate(stream, cache.allocate(stream, 100), 100);
        CHECK(plain.returned == 3);
    }
    SUBCASE("when memory runs out, what is cached goes back first") {
        plain.fails = 1;
        void* other = cache.allocate_sync(1000);
        CHECK(plain.returned == 1);
        cache.deallocate_sync(other, 1000);
        plain.fails = 2;
        CHECK_THROWS_AS((void)cache.allocate_sync(2000), out_of_memory);
    }
    cache.flush();
    CHECK(plain.asked >= plain.returned);
}

TEST_CASE("adaptors: figures and queues of the upstream show through") {
    fake_space space;
    device_resource device{space.port(), fake_space::device};
    statistics_resource counted{device};
    tracking_resource tracked{counted};
    CHECK(tracked.node() == fake_space::device);
    CHECK(tracked.reachable_by() == reach::device);
    CHECK(static_cast<bool>(tracked.queues()));
    void* pointer = tracked.allocate_sync(1);
    CHECK(tracked.usage().used == page_bytes);
    tracked.deallocate_sync(pointer, 1);
    static_assert(std::is_base_of_v<device_memory_resource, decltype(tracked)>);
}
