// SPDX-License-Identifier: Apache-2.0
#include <xmm/placement/release.hpp>

#include "../facade/rig.hpp"

using namespace xmm;
using namespace xmm::test;

TEST_CASE("release: frames go back to their pools, addresses to the drivers") {
    rig r;
    auto& driver = *r.of().state().own_driver;
    auto* data = r.map(8_MiB, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    data[0] = 1;
    CHECK(r.read_on_device(data) == 1);
    r.write_on_device<std::uint64_t>(page_of(data, 1), 1);
    CHECK(r.of().state().core.granule_count() == 4);
    REQUIRE(r.of().unmap(data));
    CHECK(r.of().state().core.granule_count() == 0);
    CHECK(r.usage(r.device()).free_frames == 4_MiB);
    CHECK(r.usage(r.device()).used == 4_MiB);
    CHECK(r.usage(r.host()).free_frames == 2_MiB);
    CHECK(driver.statistics(r.device()).mapped_bytes == 0);
    CHECK(!r.of().contains(data));
}

TEST_CASE("release: waits for kernels, holds and moves") {
    auto slow = device_of(32_MiB);
    slow.link_in_bytes_per_second = 100'000'000;
    rig r{{slow}};
    auto* used = r.map(2_MiB);
    auto kernel = r.start_kernel<std::uint64_t>(used, 1);
    auto* held = r.map(2_MiB);
    auto hold = std::make_unique<result<host_access>>(r.of().access_on_host(held, 1));
    REQUIRE(*hold);
    auto* moving = r.map(8_MiB);
    std::memset(moving, 1, 8_MiB);
    auto job = r.of().advise_async(r.device(), moving, 8_MiB, advice::will_need);
    REQUIRE(job);
    std::atomic<int> gone{0};
    std::vector<std::thread> threads;
    for (auto* data : {used, held, moving}) {
        threads.emplace_back([&, data] { gone += r.of().unmap(data) ? 1 : 0; });
    }
    nap(30);
    CHECK(r.of().contains(used));
    CHECK(r.of().contains(held));
    CHECK(r.finish(kernel));
    hold.reset();
    for (auto& one : threads) {
        one.join();
    }
    CHECK(gone == 3);
    CHECK(r.of().state().core.granule_count() == 0);
    job->wait();
}

TEST_CASE("release: two threads unmap one region, one of them succeeds") {
    rig r;
    for (int round = 0; round < 20; ++round) {
        auto* data = r.map(8_MiB);
        data[0] = 1;
        std::atomic<int> done{0}, refused{0};
        const auto unmap = [&] {
            const status one = r.of().unmap(data);
            done += one ? 1 : 0;
            refused += one.code == errc::not_mapped ? 1 : 0;
        };
        std::thread other{unmap};
        unmap();
        other.join();
        CHECK(done == 1);
        CHECK(refused == 1);
    }
}

TEST_CASE("release: a space takes its regions with it") {
    auto made = space::create_soft({device_of(16_MiB)});
    REQUIRE(made);
    for (int i = 0; i < 3; ++i) {
        auto data = made->map(4_MiB);
        REQUIRE(data);
        *static_cast<int*>(*data) = 1;
    }
    REQUIRE(made->advise(made->devices()[0], *made->map(2_MiB), 1, advice::pin));
}
