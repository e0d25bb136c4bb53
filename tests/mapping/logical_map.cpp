// SPDX-License-Identifier: Apache-2.0
#include <xmm/mapping/logical_map.hpp>

#include <memory>
#include <set>

#include <doctest/doctest.h>

using namespace xmm;
using namespace xmm::literals;

namespace {

region& make_region(logical_map& map, address begin, std::size_t bytes, std::size_t granule_bytes) {
    region* one = map.make_region();
    REQUIRE(one != nullptr);
    one->va = {begin, bytes};
    one->granule_bytes = granule_bytes;
    return *one;
}

}  // namespace

TEST_CASE("logical_map: one record a granule, all pages of it lead there") {
    auto map = std::make_unique<logical_map>();
    region& one = make_region(*map, 1_GiB, 10_MiB, 4_MiB);
    int prepared = 0;
    REQUIRE(map->add(one, [&](granule& page) {
        ++prepared;
        page.preferred = 3;
    }));
    CHECK(prepared == 3);
    CHECK(map->granule_count() == 3);
    std::set<granule*> records;
    for (address at = one.va.begin; at < one.va.end(); at += 1_MiB) {
        granule* found = map->find(at);
        REQUIRE(found != nullptr);
        records.insert(found);
        CHECK(found->va.contains(at));
        CHECK(found->owner == &one);
        CHECK(found->preferred == 3);
        CHECK(found->current() == residency::untouched);
        CHECK(found->is_valid_locked());
    }
    CHECK(records.size() == 3);
    CHECK(map->find(one.va.end() - 1)->va.bytes == 2_MiB);
    CHECK(map->find(one.va.end()) == nullptr);
    map->remove(one.va);
    map->drop_region(one);
    CHECK(map->granule_count() == 0);
    CHECK(map->find(1_GiB) == nullptr);
}

TEST_CASE("logical_map: a record that went is empty, and comes back clean") {
    auto map = std::make_unique<logical_map>();
    region& one = make_region(*map, 1_GiB, 2_MiB, 2_MiB);
    REQUIRE(map->add(one, [](granule& page) {
        page.pins = 2;
        page.is_fixed = page.is_read_mostly = true;
        page.preferred = 1;
    }));
    granule* stale = map->find(1_GiB);
    map->remove(one.va);
    CHECK(stale->current() == residency::released);
    CHECK(!stale->va.contains(1_GiB));
    CHECK(stale->owner == nullptr);

    one.va = {2_GiB, 2_MiB};
    REQUIRE(map->add(one, [](granule&) {}));
    granule* fresh = map->find(2_GiB);
    CHECK(fresh == stale);  // records are reused
    CHECK(fresh->pins == 0);
    CHECK(!fresh->is_fixed);
    CHECK(!fresh->is_read_mostly);
    CHECK(fresh->preferred == no_slot);
    map->remove(one.va);
}
