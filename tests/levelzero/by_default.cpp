// SPDX-License-Identifier: Apache-2.0
// Spaces that name no devices, where Level Zero has the only ones. Each case is a process of its own, since what was
// found is kept.
#include <xmm/levelzero.hpp>
#include <xmm/xmm.hpp>

#include <memory_resource>
#include <numeric>
#include <string>
#include <vector>

#include "host_stream.hpp"
#include "rig.hpp"

namespace {

using namespace xmm;
using namespace xmm::literals;

bool has_levelzero(queue& line) { return line.native(levelzero::vmm::native_kind) != nullptr; }

}  // namespace

TEST_CASE("by default: the devices of Level Zero are a space's, pointers and launches included" *
          doctest::skip()) {
    if (test::is_skipped_without_maps()) {
        return;
    }
    auto asked = space::create({.devices = device_kind::levelzero});
    auto made = space::create();
    REQUIRE(made);
    auto line = made->make_queue(made->devices()[0]).value();
    if (!asked) {
        // A driver without physical host memory: the software devices take its place.
        CHECK(asked.code() == errc::unsupported);
        CHECK(std::string{asked.error().why}.find("host memory") != std::string::npos);
        CHECK_FALSE(has_levelzero(line));
        MESSAGE("skipped: no unified pointers on this driver");
        return;
    }
    CHECK(has_levelzero(line));
    CHECK(made->devices()[0] == asked->devices()[0]);  // one driver for all spaces
    auto soft_space = space::create({.devices = device_kind::soft}).value();
    auto soft_line = soft_space.make_queue(soft_space.devices()[0]).value();
    CHECK_FALSE(has_levelzero(soft_line));

    // One function object for both kinds of devices; the queue's takes its own.
    test::host_kernel twice{[](soft_ze::kernel_call& call) {
        auto* at = call.argument<std::uint64_t*>(0);
        std::uint64_t seen = 0;
        if (call.load(at, seen)) {
            (void)call.store(at, 2 * seen);
        }
    }};
    const auto run = [&](space& of, queue& in) {
        auto* at = static_cast<std::uint64_t*>(of.map(4_MiB).value());
        at[0] = 21;
        auto point = launch(in, {reads_writes(at, 8)},
                            overloads{[&](levelzero_stream& s) { return twice.launch(s, 1, at); },
                                      [&](soft::stream& s) {
                                          return s.parallel_for(1, [at](std::size_t) {
                                              const device_view<std::uint64_t> seen{at, 1};
                                              seen[0] = 2 * seen[0];
                                          });
                                      }});
        REQUIRE(point);
        REQUIRE(in.wait(*point));
        CHECK(of.residency_of(at).value() == of.devices()[0]);
        CHECK(at[0] == 42);
        REQUIRE(of.unmap(at));
    };
    run(*made, line);
    run(soft_space, soft_line);
}

// As examples/pmr_vector.cpp and examples/saxpy.cpp have them, written once for software and Level Zero devices.
TEST_CASE(
    "by default: loops over containers and arrays, written for device_view, run on Level Zero" *
    doctest::skip()) {
    if (test::is_skipped_without_maps() || !space::create({.devices = device_kind::levelzero})) {
        return;
    }
    space& of = default_space();
    const node_id device = of.devices()[0];
    auto line = of.make_queue(device).value();
    REQUIRE(has_levelzero(line));
    unified_pool memory{port_of(of), device};

    std::pmr::vector<std::int64_t> numbers(100'000, &memory);
    std::iota(numbers.begin(), numbers.end(), 1);
    std::pmr::vector<std::int64_t> sum(1, &memory);
    const device_view<const std::int64_t> in{numbers.data(), numbers.size()};
    const device_view<std::int64_t> out{sum.data(), sum.size()};
    auto done = launch<test::host_stream>(
        line, {reads(numbers), reads_writes(sum)}, [&](test::host_stream& on) {
            return on.parallel_for(in.size(), [in, out](std::size_t first, std::size_t last) {
                std::int64_t part = 0;
                in.for_each_span(first, last - first,
                                 [&](std::span<const std::int64_t> few, std::size_t) {
                                     part = std::accumulate(few.begin(), few.end(), part);
                                 });
                out.fetch_add(0, part);
            });
        });
    REQUIRE(done);
    REQUIRE(line.wait(*done));
    CHECK(sum[0] == 5'000'050'000);

    constexpr std::size_t count = 6_MiB / sizeof(float);
    auto* x = static_cast<float*>(gmmap(count * sizeof(float)).value());
    auto* y = static_cast<float*>(gmmap(count * sizeof(float)).value());
    for (std::size_t i = 0; i < count; ++i) {
        x[i] = static_cast<float>(i % 1024);
        y[i] = 1.0f;
    }
    for (int pass = 0; pass < 3; ++pass) {
        auto point = launch<test::host_stream>(
            line, {reads(x, count * sizeof(float)), reads_writes(y, count * sizeof(float))},
            [&](test::host_stream& on) {
                return on.parallel_for(count, [x, y](std::size_t first, std::size_t last) {
                    zip_spans(
                        [](std::span<const float> xs, std::span<float> ys) {
                            for (std::size_t i = 0; i < xs.size(); ++i) {
                                ys[i] += 0.5f * xs[i];
                            }
                        },
                        device_view<const float>{x + first, last - first},
                        device_view<float>{y + first, last - first});
                });
            });
        REQUIRE(point);
    }
    REQUIRE(line.synchronize());
    CHECK(of.residency_of(y).value() == device);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
        wrong += y[i] != 1.0f + 1.5f * static_cast<float>(i % 1024) ? 1 : 0;
    }
    CHECK(wrong == 0);
    REQUIRE(gmunmap(x));
    REQUIRE(gmunmap(y));
}

TEST_CASE("switched off: levelzero:off leaves Level Zero alone, and says so" * doctest::skip()) {
    REQUIRE_FALSE(conf::of_process().flag("levelzero", true));
    auto asked = space::create({.devices = device_kind::levelzero});
    REQUIRE_FALSE(asked);
    CHECK(asked.code() == errc::unsupported);
    CHECK(std::string{asked.error().why}.find("switched off") != std::string::npos);
    auto made = space::create();
    REQUIRE(made);
    auto line = made->make_queue(made->devices()[0]).value();
    CHECK_FALSE(has_levelzero(line));
}
