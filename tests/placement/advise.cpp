// SPDX-License-Identifier: Apache-2.0
#include <xmm/placement/advise.hpp>

#include "../facade/rig.hpp"

using namespace xmm;
using namespace xmm::test;

TEST_CASE("advise: each hint has a name") {
    for (unsigned i = 0; i <= static_cast<unsigned>(advice::unpin); ++i) {
        CHECK(std::string{name_of(static_cast<advice>(i))} != "?");
    }
    CHECK(std::string{name_of(static_cast<advice>(99))} == "?");
}

TEST_CASE("advise: dont_need rounds inward to granules and frees their frames") {
    rig r;
    auto* data = r.map(18_MiB, {.granule_bytes = 4_MiB});  // 4 granules and a tail of 2 MiB
    fill<std::uint64_t>(data, 18_MiB, 1);
    // From inside granule 0 to inside granule 3.
    REQUIRE(r.of().advise(r.host(), data + 8, 14_MiB, advice::dont_need));
    CHECK(r.state(data) == residency::on_host);
    CHECK(r.state(page_of(data, 2)) == residency::untouched);
    CHECK(r.state(page_of(data, 4)) == residency::untouched);
    CHECK(r.state(page_of(data, 6)) == residency::on_host);
    CHECK(r.state(page_of(data, 8)) == residency::on_host);
    CHECK(data[0] == 1);
    CHECK(page_of(data, 2)[0] == 0);  // comes back as zeroes
    REQUIRE(r.of().advise(r.host(), page_of(data, 8), 2_MiB - 1, advice::dont_need));
    CHECK(r.state(page_of(data, 8)) == residency::on_host);
    REQUIRE(r.of().advise(r.host(), page_of(data, 8), 2_MiB, advice::dont_need));
    CHECK(r.state(page_of(data, 8)) == residency::untouched);
    REQUIRE(r.of().advise(r.host(), data, 1, advice::dont_need));
    CHECK(data[0] == 1);
}

TEST_CASE("advise: dont_need leaves pinned, held and used pages alone") {
    rig r;
    auto* data = r.map(8_MiB);
    fill<std::uint64_t>(data, 8_MiB, 5);
    REQUIRE(r.of().advise(r.host(), data, 1, advice::pin));
    {
        auto held = r.of().access_on_host(page_of(data, 1), 1);
        REQUIRE(held);
        auto kernel = r.start_kernel<std::uint64_t>(page_of(data, 2), 99);
        REQUIRE(r.of().advise(r.host(), data, 8_MiB, advice::dont_need));
        CHECK(data[0] == 5);
        CHECK(page_of(data, 1)[1] == 5 + page_bytes / 8 + 1);
        CHECK(r.state(page_of(data, 2)) != residency::untouched);
        CHECK(r.state(page_of(data, 3)) == residency::untouched);
        REQUIRE(r.finish(kernel));
        CHECK(page_of(data, 2)[0] == 100);
    }
    REQUIRE(r.line().synchronize());
    REQUIRE(r.of().advise(r.host(), data, 8_MiB, advice::dont_need));
    CHECK(data[0] == 5);
    CHECK(r.state(page_of(data, 1)) == residency::untouched);
    CHECK(r.state(page_of(data, 2)) == residency::untouched);
    REQUIRE(r.of().advise(r.host(), data, 1, advice::unpin));
}

TEST_CASE("advise: dont_need of a duplicated page frees all copies") {
    rig r;
    auto* data = r.map(2_MiB, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    data[0] = 3;
    CHECK(r.read_on_device(data) == 3);
    REQUIRE(r.of().advise(r.host(), data, 2_MiB, advice::dont_need));
    CHECK(r.state(data) == residency::untouched);
    CHECK(r.usage(r.device()).free_frames == 2_MiB);
    CHECK(r.read_on_device(data) == 0);
}

TEST_CASE("advise: pins count, and nothing moves a pinned page") {
    rig r{{device_of(16_MiB)}};
    auto* data = r.map(4_MiB);
    r.fill_on_device<std::uint64_t>(data, 4_MiB, 8);
    REQUIRE(r.of().advise(r.device(), data, 4_MiB, advice::pin));
    REQUIRE(r.of().advise(r.device(), page_of(data, 1), 1, advice::pin));
    CHECK(r.pins(data) == 1);
    CHECK(r.pins(page_of(data, 1)) == 2);
    auto* other = r.map(32_MiB);
    r.fill_on_device<std::uint64_t>(other, 32_MiB, 1);  // pressure
    CHECK(r.home(data) == r.device());
    REQUIRE(r.of().advise(r.host(), data, 4_MiB, advice::will_need));
    CHECK(r.home(data) == r.device());
    CHECK(r.of().make_resident(data, 8, r.host()).code == errc::busy);
    CHECK(!r.of().access_on_host(data, 8));
    CHECK(r.of().advise(r.host(), data, 8, advice::pin).code == errc::busy);
    CHECK(r.pins(data) == 1);

    REQUIRE(r.of().advise(r.device(), data, 4_MiB, advice::unpin));
    CHECK(r.pins(data) == 0);
    CHECK(r.pins(page_of(data, 1)) == 1);
    CHECK(data[0] == 8);  // may move again
    // More often than pinned: refused as a whole.
    CHECK(r.of().advise(r.device(), data, 4_MiB, advice::unpin).code == errc::invalid_argument);
    CHECK(r.pins(page_of(data, 1)) == 1);
    REQUIRE(r.of().advise(r.device(), page_of(data, 1), 2_MiB, advice::unpin));
    CHECK(r.of().advise(r.device(), page_of(data, 1), 1, advice::unpin).code ==
          errc::invalid_argument);
    CHECK(count_wrong<std::uint64_t>(data, 4_MiB, 8) == 0);
}

TEST_CASE("advise: a pin is all or nothing") {
    rig r;
    auto* data = r.map(6_MiB);
    REQUIRE(r.of().advise(r.host(), page_of(data, 2), 1, advice::pin));
    CHECK(r.of().advise(r.device(), data, 6_MiB, advice::pin).code == errc::busy);
    CHECK(r.pins(data) == 0);
    CHECK(r.pins(page_of(data, 1)) == 0);
    CHECK(r.pins(page_of(data, 2)) == 1);

    rig small{{device_of(8_MiB)}};
    auto* more = small.map(16_MiB);
    CHECK(small.of().advise(small.device(), more, 16_MiB, advice::pin).code == errc::no_memory);
    for (std::size_t page = 0; page < 8; ++page) {
        CHECK(small.pins(page_of(more, page)) == 0);
    }
    REQUIRE(small.of().advise(small.device(), more, 8_MiB, advice::pin));
    // Pinned full: kernels go on over the link.
    small.fill_on_device<std::uint64_t>(page_of(more, 4), 8_MiB, 2);
    CHECK(count_wrong<std::uint64_t>(page_of(more, 4), 8_MiB, 2) == 0);
    REQUIRE(small.of().advise(small.device(), more, 8_MiB, advice::unpin));
}

TEST_CASE("advise: a pinned duplicate is one page on its node") {
    rig r;
    auto* data = r.map(2_MiB, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    data[0] = 4;
    CHECK(r.read_on_device(data) == 4);
    REQUIRE(r.of().advise(r.host(), data, 1, advice::pin));
    CHECK(r.state(data) == residency::on_host);
    CHECK(r.read_on_device(data) == 4);  // over the link
    CHECK(r.state(data) == residency::on_host);
    REQUIRE(r.of().advise(r.host(), data, 1, advice::unpin));
}

TEST_CASE("advise: pages pinned on the host are reached in place") {
    rig r;
    auto* data = r.map(2_MiB);
    REQUIRE(r.of().advise(any_host, data, 2_MiB, advice::pin));
    r.write_on_device<std::uint64_t>(data, 44);
    CHECK(r.state(data) == residency::on_host);
    CHECK(data[0] == 44);
    REQUIRE(r.of().advise(any_host, data, 2_MiB, advice::unpin));
}

TEST_CASE("advise: sticky hints come and go") {
    rig r;
    auto* data = r.map(4_MiB);
    REQUIRE(r.of().advise(r.device(), data, 1, advice::read_mostly));
    data[0] = 1;
    CHECK(r.read_on_device(data) == 1);
    CHECK(r.state(data) == residency::duplicated);
    REQUIRE(r.of().advise(r.device(), data, 1, advice::unset_read_mostly));
    data[0] = 2;
    CHECK(r.read_on_device(data) == 2);
    CHECK(r.state(data) == residency::on_device);

    auto* second = page_of(data, 1);
    REQUIRE(r.of().advise(r.host(), second, 1, advice::preferred));
    r.write_on_device<std::uint64_t>(second, 3);
    CHECK(r.home(second) == r.host());
    REQUIRE(r.of().advise(r.host(), second, 1, advice::unset_preferred));
    REQUIRE(r.of().advise(r.host(), second, 2_MiB, advice::dont_need));
    r.write_on_device<std::uint64_t>(second, 3);
    CHECK(r.home(second) == r.device());
}

TEST_CASE("advise: read-mostly set while the device may write") {
    rig r;
    auto* data = r.map(2_MiB);
    r.write_on_device<std::uint64_t>(data, 1);
    REQUIRE(r.of().advise(r.device(), data, 1, advice::read_mostly));
    CHECK(data[0] == 1);  // a copy; the device's write access is gone
    CHECK(r.state(data) == residency::duplicated);
    CHECK(!has_write(r.mapped(data, r.device())));
    r.write_on_device<std::uint64_t>(data, 2);
    CHECK(data[0] == 2);
}

TEST_CASE("advise: every hint against unmap in another thread") {
    rig r;
    for (int round = 0; round < 25; ++round) {
        auto* data = r.map(16_MiB);
        fill<std::uint64_t>(data, 2_MiB, 1);
        std::atomic<bool> go{false};
        std::atomic<int> odd{0};
        std::thread adviser{[&] {
            while (!go.load()) {
            }
            const advice all[] = {advice::will_need, advice::cold, advice::read_mostly,
                                  advice::preferred, advice::pin,  advice::dont_need,
                                  advice::unpin};
            for (int i = 0; i < 8; ++i) {
                const status one = r.of().advise(r.device(), data, 16_MiB, all[(round + i) % 7]);
                // pins of a page that went in between may be refused, too
                odd += one || one.code == errc::not_mapped || one.code == errc::invalid_argument
                           ? 0
                           : 1;
            }
        }};
        go = true;
        const status gone = r.of().unmap(data);
        adviser.join();
        CHECK(gone);
        CHECK(odd == 0);
        CHECK(!r.of().contains(data));
    }
}
