// SPDX-License-Identifier: Apache-2.0
#include <xmm/mapping/address_space.hpp>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>

#include <doctest/doctest.h>

#include "paper_driver.hpp"

using namespace xmm;
using namespace xmm::literals;

namespace {

// Numbers of nodes on paper, far from those of this process's real ones.
node_id fresh_node() {
    static std::int32_t next = 30000;
    return node_id{next++};
}

struct rig {
    test::paper_driver first, second, third;
    node_id host = fresh_node();
    std::unique_ptr<address_space> space = std::make_unique<address_space>();

    explicit rig(unsigned drivers = 1) {
        first.ids = {fresh_node(), fresh_node()};
        second.ids = {fresh_node()};
        third.ids = {fresh_node()};
        REQUIRE(space->attach_host(backend_ref{first}, host));
        test::paper_driver* all[] = {&first, &second, &third};
        for (unsigned i = 0; i < drivers; ++i) {
            REQUIRE(space->attach_devices(backend_ref{*all[i]}));
        }
    }
    ~rig() {
        while (!regions.empty()) {
            unmap(regions.front());
        }
    }
    result<region*> map(std::size_t bytes, map_options wanted = {}) {
        auto made = space->map(bytes, wanted);
        if (made) {
            regions.push_back(*made);
        }
        return made;
    }
    void unmap(region* one) {
        std::erase(regions, one);
        CHECK(*space->claim_for_unmap(one->va.begin) == one);
        space->unmap(*one);
    }
    std::vector<region*> regions;
};

}  // namespace

TEST_CASE("address_space: nodes, hosts first, found by id") {
    rig r{2};
    CHECK(r.space->node_count() == 4);
    CHECK(r.space->host_count() == 1);
    CHECK(r.space->find_node(r.host)->is_host);
    CHECK(r.space->find_node(any_host) == r.space->find_node(r.host));
    CHECK(r.space->find_node(r.second.ids[0])->slot == 3);
    CHECK(r.space->find_node(no_node) == nullptr);
    CHECK(r.space->find_node(node_id{29999}) == nullptr);
    CHECK(r.space->host_carrier() == &r.space->at_slot(1));
    CHECK(r.first.queue_count == 2 * node::queue_count);
    CHECK(r.second.queue_count == node::queue_count);
    r.space.reset();
    CHECK(r.first.queue_count == 0);
    CHECK(r.second.queue_count == 0);
}

TEST_CASE("address_space: a region is made of untouched pages") {
    rig r;
    auto made = r.map(7_MiB, {.granule_bytes = 4_MiB,
                              .name = "a name that is longer than thirty-one characters"});
    REQUIRE(made);
    region& one = **made;
    CHECK(one.va.bytes == 8_MiB);  // whole pages
    CHECK(one.va.begin % 4_MiB == 0);
    CHECK(std::string{one.hints.name} == "a name that is longer than thir");
    CHECK(r.space->granule_count() == 2);
    CHECK(r.space->is_mapped(one.va));
    CHECK(!r.space->is_mapped({one.va.begin, one.va.bytes + 1}));
    CHECK(!r.space->is_mapped({one.va.begin - 1, 2}));
    CHECK(r.space->is_valid());
    CHECK(r.first.claims == std::vector{one.va});
    r.unmap(&one);
    CHECK(r.first.claims.empty());
    CHECK(r.space->granule_count() == 0);
}

TEST_CASE(
    "address_space: a granule is no larger than its region needs, by default 1/16 of the least "
    "device") {
    rig r;  // 64 MiB devices
    CHECK(r.space->default_granule() == 4_MiB);
    auto large = r.map(64_MiB);
    REQUIRE(large);
    CHECK((*large)->granule_bytes == 4_MiB);
    auto small = r.map(2_MiB, {.granule_bytes = 512_MiB});
    REQUIRE(small);
    CHECK((*small)->granule_bytes == 2_MiB);
    auto odd = r.map(6_MiB, {.granule_bytes = 512_MiB});
    REQUIRE(odd);
    CHECK(r.space->find((*odd)->va.begin)->va.bytes == 6_MiB);
    auto aligned = r.map(2_MiB, {.alignment = 1_GiB});
    REQUIRE(aligned);
    CHECK((*aligned)->va.begin % 1_GiB == 0);
}

TEST_CASE(
    "address_space: what a region just leaves is no plain memory, and nobody waits to learn that") {
    rig r;
    // Addresses that are free, so that the hole below can be made.
    void* free = ::mmap(nullptr, 4_MiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(free != MAP_FAILED);
    ::munmap(free, 4_MiB);
    r.first.next_proposal = align_up(to_address(free), page_bytes);
    region* one = r.map(2_MiB).value();
    const va_range range = one->va;
    std::vector<char> plain(4096);
    unsigned looks = 0;
    r.first.on_release = [&](va_range) {
        // The hole, which the driver still has.
        void* hole = ::mmap(to_pointer(range.begin), range.bytes, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        REQUIRE(hole == to_pointer(range.begin));
        // As a driver may, it waits here for somebody who is about to copy: that one gets its answer.
        std::thread copying{[&] {
            CHECK(r.space->find(range.begin) == nullptr);
            CHECK_FALSE(r.space->is_plain_memory(range));
            CHECK(r.space->is_plain_memory({to_address(plain.data()), plain.size()}));
        }};
        copying.join();
        ::munmap(hole, range.bytes);
        ++looks;
    };
    r.unmap(one);
    r.first.on_release = nullptr;
    CHECK(looks == 1);
}

TEST_CASE("address_space: hints of the region are those of its pages") {
    rig r;
    auto made = r.map(4_MiB, {.granule_bytes = 2_MiB,
                              .preferred = r.first.ids[1],
                              .fixed = r.first.ids[0],
                              .is_read_mostly = true});
    REQUIRE(made);
    granule* page = r.space->find((*made)->va.begin + 2_MiB);
    CHECK(page->preferred == 2);
    CHECK(page->is_fixed);
    CHECK(page->is_read_mostly);
}

TEST_CASE("address_space: addresses are examined again until all backends agree") {
    rig r{3};
    for (unsigned declines : {1u, 3u, 9u}) {
        CAPTURE(declines);
        r.first.proposed.clear();
        r.third.declines_left = declines;
        auto made = r.map(2_MiB);
        REQUIRE(made);
        CHECK(r.first.proposed.size() == declines + 1);
        CHECK((*made)->va == r.first.proposed.back());
        // What was declined is let go again, by all.
        for (auto* one : {&r.first, &r.second, &r.third}) {
            CHECK(one->claims == std::vector{(*made)->va});
        }
        r.unmap(*made);
    }
}

namespace {

// Proposes the lowest addresses that are free, as a kernel does: a proposal let go comes again.
struct stubborn_driver : test::paper_driver {
    result<va_range> va_examine(va_range range, std::size_t alignment) noexcept {
        if (range.begin == 0) {
            next_proposal = address{1} << 41;
            while (std::any_of(claims.begin(), claims.end(), [&](va_range one) {
                return one.contains(align_up(next_proposal, alignment));
            })) {
                next_proposal += page_bytes;
            }
        }
        return paper_driver::va_examine(range, alignment);
    }
};
static_assert(backend<stubborn_driver>);

// Declines everything below an address.
struct picky_driver : test::paper_driver {
    address lowest = 0;
    result<va_range> va_examine(va_range range, std::size_t alignment) noexcept {
        if (range.begin != 0 && range.begin < lowest) {
            return fail(errc::unsupported, "too low on paper");
        }
        return paper_driver::va_examine(range, alignment);
    }
};
static_assert(backend<picky_driver>);

}  // namespace

TEST_CASE("address_space: declined addresses stay reserved until the search ends") {
    stubborn_driver first;
    picky_driver second;
    first.ids = {fresh_node()};
    second.ids = {fresh_node()};
    address_space space;
    REQUIRE(space.attach_host(backend_ref{first}, fresh_node()));
    REQUIRE(space.attach_devices(backend_ref{first}));
    REQUIRE(space.attach_devices(backend_ref{second}));
    second.lowest = (address{1} << 41) + 5 * page_bytes;
    auto made = space.map(2_MiB, {});
    REQUIRE(made);  // would be offered the first page ten times otherwise
    CHECK((*made)->va.begin == second.lowest);
    CHECK(first.claims.size() == 1);
    CHECK(second.claims.size() == 1);
    REQUIRE(*space.claim_for_unmap((*made)->va.begin) == *made);
    space.unmap(**made);
}

TEST_CASE("address_space: ten refusals end in an error and nothing leaks") {
    rig r{3};
    r.third.declines_left = 1000;
    auto made = r.map(6_MiB);
    CHECK(!made);
    CHECK(std::string{made.error().why} == "declined on paper");
    CHECK(r.first.proposed.size() == 10);
    for (auto* one : {&r.first, &r.second, &r.third}) {
        CHECK(one->claims.empty());
    }
    CHECK(r.space->granule_count() == 0);
    r.third.declines_left = 0;
    CHECK(r.map(6_MiB));
}

TEST_CASE("address_space: no addresses, or such beyond the map, are an error") {
    rig r;
    r.first.next_proposal = address{1} << 48;
    auto beyond = r.map(2_MiB);
    CHECK(!beyond);
    CHECK(beyond.code() == errc::no_memory);
    CHECK(r.first.claims.empty());
    r.first.is_proposing = false;
    auto none = r.map(2_MiB);
    CHECK(none.code() == errc::no_memory);
    CHECK(std::string{none.error().why} == "no addresses on paper");

    address_space empty;
    CHECK(!empty.map(2_MiB, {}));
}

TEST_CASE("address_space: a driver is attached once") {
    rig r;
    const status again = r.space->attach_devices(backend_ref{r.first});
    CHECK(again.code == errc::busy);
    CHECK(r.space->node_count() == 3);
    CHECK(r.first.queue_count == 2 * node::queue_count);
}

TEST_CASE("address_space: a driver attached late claims the regions that exist, or stays away") {
    rig r;
    auto a = r.map(2_MiB);
    auto b = r.map(4_MiB);
    REQUIRE(a);
    REQUIRE(b);
    r.second.declines_left = 1;
    CHECK(r.space->attach_devices(backend_ref{r.second}).code == errc::unsupported);
    CHECK(r.second.claims.empty());
    CHECK(r.second.queue_count == 0);
    CHECK(r.space->node_count() == 3);

    r.second.queues_until_failure = 2;  // now it fails in the middle of a node
    CHECK(r.space->attach_devices(backend_ref{r.second}).code == errc::no_memory);
    CHECK(r.second.claims.empty());
    CHECK(r.second.queue_count == 0);
    CHECK(r.space->node_count() == 3);

    r.second.queues_until_failure = -1;
    REQUIRE(r.space->attach_devices(backend_ref{r.second}));
    CHECK(r.space->node_count() == 4);
    CHECK(r.second.claims == std::vector{(*a)->va, (*b)->va});
    r.unmap(*a);
    CHECK(r.second.claims == std::vector{(*b)->va});
}

TEST_CASE("address_space: the second node of a driver fails, and the first goes with it") {
    rig r{0};
    r.first.queues_until_failure = node::queue_count + 1;
    CHECK(!r.space->attach_devices(backend_ref{r.first}));
    CHECK(r.first.queue_count == 0);
    CHECK(r.space->node_count() == 1);
    r.first.queues_until_failure = -1;
    CHECK(r.space->attach_devices(backend_ref{r.first}));
    CHECK(r.space->node_count() == 3);
}

TEST_CASE("address_space: more nodes than slots") {
    rig r;
    for (unsigned i = 0; i < max_slots; ++i) {
        r.second.ids.push_back(fresh_node());
    }
    CHECK(r.space->attach_devices(backend_ref{r.second}).code == errc::no_memory);
    CHECK(r.space->node_count() == 3);
    CHECK(r.second.queue_count == 0);
}

TEST_CASE("address_space: one remover, and only from the start of a region") {
    rig r;
    auto made = r.map(6_MiB);
    REQUIRE(made);
    region* one = *made;
    CHECK(r.space->claim_for_unmap(one->va.begin + 2_MiB).code() == errc::not_mapped);
    CHECK(r.space->claim_for_unmap(one->va.begin + 1).code() == errc::not_mapped);
    CHECK(r.space->claim_for_unmap(one->va.end()).code() == errc::not_mapped);
    CHECK(r.space->claim_for_unmap(0).code() == errc::not_mapped);
    CHECK(*r.space->claim_for_unmap(one->va.begin) == one);
    CHECK(r.space->claim_for_unmap(one->va.begin).code() == errc::not_mapped);
    r.space->give_up_unmap(*one);
    r.unmap(one);
    CHECK(r.space->claim_for_unmap(one->va.begin).code() == errc::not_mapped);
}

TEST_CASE("address_space: a driver's granule that is no power of two is rounded to one below") {
    for (const std::size_t odd : {3_MiB, 2_MiB + 1, 7_MiB, 1_MiB, std::size_t{0}}) {
        CAPTURE(odd);
        test::paper_driver driver;
        driver.ids = {fresh_node()};
        driver.bytes_each = 1_GiB;
        driver.granule_bytes = odd;
        address_space space;
        REQUIRE(space.attach_host(backend_ref{driver}, fresh_node()));
        REQUIRE(space.attach_devices(backend_ref{driver}));
        CHECK(space.default_granule() == (odd == 7_MiB ? 4_MiB : 2_MiB));
    }
}

TEST_CASE("address_space: one of the wrong kind is refused and not claimed") {
    rig r;
    for (const bool is_arena : {false, true}) {
        CAPTURE(is_arena);
        auto made = r.map(6_MiB, {.is_arena = is_arena});
        REQUIRE(made);
        const address start = (*made)->va.begin;
        const region_kind own = is_arena ? region_kind::arena : region_kind::plain;
        const region_kind other = is_arena ? region_kind::plain : region_kind::arena;
        CHECK(r.space->claim_for_unmap(start, other).code() == errc::invalid_argument);
        CHECK(!(*made)->is_leaving);
        CHECK(*r.space->claim_for_unmap(start, own) == *made);
        CHECK(r.space->claim_for_unmap(start, other).code() == errc::invalid_argument);
        CHECK(r.space->claim_for_unmap(start, own).code() == errc::not_mapped);
        r.space->give_up_unmap(**made);
        r.unmap(*made);
    }
}

TEST_CASE("address_space: with_granule sees only pages of regions that are there") {
    rig r;
    auto made = r.map(2_MiB);
    REQUIRE(made);
    const address at = (*made)->va.begin;
    bool ran = false;
    CHECK(r.space->with_granule(at + 77, [&](granule& page) { ran = page.va.begin == at; }));
    CHECK(ran);
    r.unmap(*made);
    CHECK(!r.space->with_granule(at, [](granule&) { FAIL("nothing is there"); }));
}

TEST_CASE("address_space: regions by the hundred") {
    rig r;
    std::vector<region*> all;
    for (int i = 0; i < 300; ++i) {
        auto made = r.map(2_MiB * static_cast<std::size_t>(1 + i % 3), {.granule_bytes = 2_MiB});
        REQUIRE(made);
        all.push_back(*made);
    }
    CHECK(r.space->granule_count() == 600);
    CHECK(r.space->is_valid());
    for (std::size_t i = 0; i < all.size(); i += 2) {
        r.unmap(all[i]);
    }
    CHECK(r.space->granule_count() == 300);
    unsigned seen = 0;
    address from = 0;
    for (region_glance one = r.space->next_region(from); !one.va.is_empty();
         one = r.space->next_region(from)) {
        ++seen;
        CHECK(one.va.begin >= from);
        CHECK(r.space->is_mapped(one.va));
        from = one.va.end();
    }
    CHECK(seen == 150);
}
