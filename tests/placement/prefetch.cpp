// SPDX-License-Identifier: Apache-2.0
#include <xmm/placement/prefetch.hpp>

#include "../facade/rig.hpp"

using namespace xmm;
using namespace xmm::test;

TEST_CASE("prefetch: brings every granule that the range touches, mapped") {
    rig r;
    auto* data = r.map(20_MiB, {.granule_bytes = 4_MiB});
    fill<std::uint64_t>(data, 20_MiB, 3);
    REQUIRE(r.of().advise(r.device(), page_of(data, 3), 3_MiB, advice::will_need));
    CHECK(r.state(data) == residency::on_host);
    CHECK(r.state(page_of(data, 2)) == residency::on_device);  // rounded outward: granules 1 and 2
    CHECK(r.state(page_of(data, 4)) == residency::on_device);
    CHECK(r.state(page_of(data, 6)) == residency::on_host);
    CHECK(r.mapped(page_of(data, 2), r.device()) == access::read_write);
    CHECK(r.mapped(page_of(data, 2), r.host()) == access::none);
    CHECK(r.counters(r.device()).prefetched_bytes == 8_MiB);
    const auto faults = r.counters(r.device()).faults;
    CHECK(r.count_wrong_on_device<std::uint64_t>(page_of(data, 2), 8_MiB, 3 + 4_MiB / 8) == 0);
    CHECK(r.counters(r.device()).faults == faults);
    REQUIRE(r.of().advise(r.host(), data, 20_MiB, advice::will_need));
    CHECK(r.state(page_of(data, 4)) == residency::on_host);
    CHECK(r.mapped(page_of(data, 4), r.host()) == access::read_write);
    CHECK(count_wrong<std::uint64_t>(data, 20_MiB, 3) == 0);
}

TEST_CASE("prefetch: untouched pages come into being as zeroes") {
    rig r;
    auto* data = r.map(8_MiB);
    REQUIRE(r.of().advise(r.device(), data, 8_MiB, advice::will_need));
    CHECK(r.state(page_of(data, 3)) == residency::on_device);
    CHECK(r.counters(r.device()).bytes_in == 0);
    CHECK(count_nonzero(data, 8_MiB) == 0);
}

TEST_CASE("prefetch: more than the device holds brings the leading part") {
    rig r{{device_of(16_MiB)}};
    auto* data = r.map(48_MiB);
    fill<std::uint64_t>(data, 48_MiB, 3);
    auto* old = r.map(16_MiB);
    r.fill_on_device<std::uint64_t>(old, 16_MiB, 9);
    REQUIRE(r.of().advise(r.device(), data, 48_MiB, advice::will_need));
    for (std::size_t page = 0; page < 24; ++page) {
        CAPTURE(page);
        CHECK(r.state(page_of(data, page)) ==
              (page < 8 ? residency::on_device : residency::on_host));
    }
    CHECK(count_wrong<std::uint64_t>(old, 16_MiB, 9) == 0);
    CHECK(count_wrong<std::uint64_t>(data, 48_MiB, 3) == 0);
}

TEST_CASE("prefetch: pinned, fixed and held pages are passed by") {
    rig r;
    auto* data = r.map(6_MiB);
    fill<std::uint64_t>(data, 6_MiB, 1);
    REQUIRE(r.of().advise(r.host(), data, 1, advice::pin));
    auto held = r.of().access_on_host(page_of(data, 1), 1);
    REQUIRE(held);
    REQUIRE(r.of().advise(r.device(), data, 6_MiB, advice::will_need));
    CHECK(r.state(data) == residency::on_host);
    CHECK(r.state(page_of(data, 1)) == residency::on_host);
    CHECK(r.state(page_of(data, 2)) == residency::on_device);
    REQUIRE(r.of().advise(r.host(), data, 1, advice::unpin));
    REQUIRE(r.of().advise(r.device(), data, 2_MiB, advice::will_need));
    CHECK(r.state(data) == residency::on_device);
}

TEST_CASE("prefetch: read-mostly pages are duplicated") {
    rig r;
    auto* data = r.map(4_MiB, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    fill<std::uint64_t>(data, 4_MiB, 1);
    REQUIRE(r.of().advise(r.device(), data, 4_MiB, advice::will_need));
    CHECK(r.state(data) == residency::duplicated);
    CHECK(r.mapped(data, r.device()) == access::read);
    CHECK(!has_write(r.mapped(data, r.host())));
    CHECK(count_wrong<std::uint64_t>(data, 4_MiB, 1) == 0);
    CHECK(r.count_wrong_on_device<std::uint64_t>(data, 4_MiB, 1) == 0);
    CHECK(r.counters(r.device()).bytes_in == 4_MiB);
}

TEST_CASE("prefetch: copies on two devices, no longer read-mostly, to the host") {
    rig r{{device_of(16_MiB), device_of(16_MiB)}};
    auto* data = r.map(2_MiB, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    r.write_on_device<std::uint64_t>(data, 5, 0);
    CHECK(r.read_on_device(data, 1) == 5);
    REQUIRE(r.state(data) == residency::duplicated);
    REQUIRE(!r.has_frame(data, r.host()));
    REQUIRE(r.of().advise(r.host(), data, 2_MiB, advice::unset_read_mostly));
    CHECK(r.of().advise(r.host(), data, 2_MiB, advice::will_need));
    CHECK(r.of().is_valid());
    CHECK(data[0] == 5);
    data[0] = 6;
    CHECK(r.read_on_device(data, 0) == 6);
    CHECK(r.read_on_device(data, 1) == 6);
}

TEST_CASE("prefetch: a page written to on its way gives up and loses nothing") {
    auto slow = device_of(32_MiB);
    slow.link_in_bytes_per_second = 200'000'000;  // 2 MiB in 10 ms
    rig r{{slow}};
    auto* data = r.map(16_MiB);
    fill<std::uint64_t>(data, 16_MiB, 0);
    auto job = r.of().advise_async(r.device(), data, 16_MiB, advice::will_need);
    REQUIRE(job);
    std::uint64_t writes = 0;
    while (!job->is_done()) {
        for (std::size_t page = 0; page < 8; ++page) {
            if (r.of().residency_of(page_of(data, page)).value() == r.host()) {
                page_of(data, page)[1] += 1;
                ++writes;
            }
        }
        std::this_thread::yield();
    }
    job->wait();
    std::uint64_t found = 0;
    for (std::size_t page = 0; page < 8; ++page) {
        found += page_of(data, page)[1] - (page * page_bytes / 8 + 1);
        CHECK(page_of(data, page)[7] == page * page_bytes / 8 + 7);
    }
    CHECK(found == writes);
    CHECK(writes > 0);
}

TEST_CASE("prefetch: jobs from several threads, and a space that goes with one under way") {
    auto slow = device_of(32_MiB);
    slow.link_in_bytes_per_second = 400'000'000;
    rig r{{slow}};
    auto* data = r.map(24_MiB);
    fill<std::uint64_t>(data, 24_MiB, 4);
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back(
            [&] { static_cast<void>(r.of().advise(r.device(), data, 8_MiB, advice::will_need)); });
    }
    for (auto& one : threads) {
        one.join();
    }
    CHECK(r.state(data) == residency::on_device);
    CHECK(r.counters(r.device()).bytes_in == 8_MiB);  // each page once
    auto job = r.of().advise_async(r.device(), data, 24_MiB, advice::will_need);
    CHECK(job);
}

TEST_CASE("prefetch: a fault overtakes the prefetch that its page is part of") {
    auto slow = device_of(64_MiB);
    slow.link_in_bytes_per_second = 300'000'000;
    rig r{{slow}};
    auto* data = r.map(40_MiB);
    fill<std::uint64_t>(data, 40_MiB, 4);
    auto job = r.of().advise_async(r.device(), data, 40_MiB, advice::will_need);
    REQUIRE(job);
    CHECK(r.read_on_device(page_of(data, 19)) == 4 + 19 * page_bytes / 8);
    CHECK(!job->is_done());
    job->wait();
    CHECK(r.counters(r.device()).bytes_in == 40_MiB);
    CHECK(r.count_wrong_on_device<std::uint64_t>(data, 40_MiB, 4) == 0);
}

TEST_CASE("prefetch: unmapped under way") {
    auto slow = device_of(32_MiB);
    slow.link_in_bytes_per_second = 400'000'000;
    rig r{{slow}};
    auto* data = r.map(24_MiB);
    fill<std::uint64_t>(data, 24_MiB, 4);
    auto job = r.of().advise_async(r.device(), data, 24_MiB, advice::will_need);
    REQUIRE(job);
    REQUIRE(r.of().unmap(data));
    job->wait();
    CHECK(!r.of().contains(data));
    CHECK(r.of().is_valid());
}

TEST_CASE("prefetch: a budget of next to nothing ends the job, it does not go round for ever") {
    rig r;
    auto* data = r.map(8_MiB);
    fill<std::uint64_t>(data, 8_MiB, 3);
    for (std::size_t budget : {0u, 1u, 2u, 31u, 32u}) {
        CAPTURE(budget);
        REQUIRE(r.of().set_budget(r.device(), budget));
        CHECK(r.of().advise(r.device(), data, 8_MiB, advice::will_need));
        CHECK(r.state(data) == residency::on_host);
    }
    CHECK(count_wrong<std::uint64_t>(data, 8_MiB, 3) == 0);
}
