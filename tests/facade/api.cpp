// SPDX-License-Identifier: Apache-2.0
#include <xmm/facade/api.hpp>

#include "rig.hpp"

using namespace xmm;
using namespace xmm::test;

TEST_CASE("api: the gm* functions are the default space's") {
    auto where = gmmap(4_MiB, {.granule_bytes = 2_MiB});
    REQUIRE(where);
    auto* data = static_cast<std::uint64_t*>(*where);
    CHECK(default_space().contains(data));
    CHECK(&default_space() == &default_space());
    fill<std::uint64_t>(data, 4_MiB, 1);
    REQUIRE(!default_space().devices().empty());
    const node_id device = default_space().devices()[0];
    REQUIRE(gmadvise(device, data, 4_MiB, advice::will_need));
    CHECK(default_space().residency_of(data).value() == device);
    std::vector<std::uint64_t> plain(4_MiB / 8);
    REQUIRE(gmemcpy(plain.data(), data, 4_MiB));
    CHECK(count_wrong<std::uint64_t>(plain.data(), 4_MiB, 1) == 0);
    auto line = default_space().make_queue(device);
    REQUIRE(line);
    auto point = gmemcpy(*line, data, plain.data() + 1, 8);
    REQUIRE(point);
    REQUIRE(line->wait(*point));
    REQUIRE(gmadvise(any_host, data, 4_MiB, advice::will_need));
    CHECK(data[0] == 2);
    CHECK(gmadvise(device, &plain, 8, advice::cold).code == errc::not_mapped);
    REQUIRE(gmunmap(data));
    CHECK(gmunmap(data).code == errc::not_mapped);
    CHECK(default_space().is_valid());
}
