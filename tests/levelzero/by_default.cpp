// SPDX-License-Identifier: Apache-2.0
// Spaces that name no devices, where Level Zero has the only ones. Each case is a process of its own, since what was
// found is kept.
#include <xmm/levelzero.hpp>
#include <xmm/xmm.hpp>

#include <string>

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
