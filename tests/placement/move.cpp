// SPDX-License-Identifier: Apache-2.0
#include <xmm/placement/move.hpp>

#include "../facade/rig.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

// Claims pages of a region and asks for a frame for each.
struct batch_of {
    rig& r;
    std::vector<page_move> all;

    void add(void* at, node_id to, bool is_optional = false) {
        auto& state = r.of().state();
        granule* page = state.core.find(to_address(at));
        xmm::node& target = *state.core.find_node(to);
        with(page->lock, [&] { page->begin_transit_locked(is_optional); });
        auto taken = state.engine.frames.obtain(target, page->va.bytes);
        REQUIRE(taken);
        page_move one;
        one.moved = page;
        one.to = *taken;
        one.accessor = target.accessor();
        all.push_back(one);
    }
    unsigned move(bool is_quiet = false) { return r.of().state().engine.moves.move(all, is_quiet); }
};

}  // namespace

TEST_CASE("move: a batch both ways and first touches at once") {
    rig r;
    auto* data = r.map(12_MiB);
    fill<std::uint64_t>(data, 4_MiB, 1);
    r.fill_on_device<std::uint64_t>(page_of(data, 2), 4_MiB, 2);
    batch_of batch{r, {}};
    batch.add(page_of(data, 3), r.host());
    batch.add(page_of(data, 0), r.device());
    batch.add(page_of(data, 5), r.device());
    batch.add(page_of(data, 1), r.device());
    batch.add(page_of(data, 2), r.host());
    batch.add(page_of(data, 4), r.host());
    CHECK(batch.move() == 6);
    for (const page_move& one : batch.all) {
        CHECK(one.outcome);
        CHECK(one.bytes == 2_MiB);
        CHECK(!one.moved->is_moving());
    }
    const residency expected[] = {residency::on_device, residency::on_device, residency::on_host,
                                  residency::on_host,   residency::on_host,   residency::on_device};
    for (std::size_t page = 0; page < 6; ++page) {
        CAPTURE(page);
        CHECK(r.state(page_of(data, page)) == expected[page]);
    }
    CHECK(r.mapped(page_of(data, 0), r.device()) == access::read_write);
    CHECK(r.mapped(page_of(data, 0), r.host()) == access::none);
    CHECK(count_wrong<std::uint64_t>(data, 4_MiB, 1) == 0);
    CHECK(count_wrong<std::uint64_t>(page_of(data, 2), 4_MiB, 2) == 0);
    CHECK(count_nonzero(page_of(data, 4), 4_MiB) == 0);
}

TEST_CASE("move: an optional move that was written to meanwhile leaves the page where it is") {
    rig r;
    auto* data = r.map(4_MiB);
    data[0] = 1;
    page_of(data, 1)[0] = 1;
    batch_of batch{r, {}};
    batch.add(data, r.device(), true);
    batch.add(page_of(data, 1), r.device(), true);
    data[0] = 2;  // still mapped: nobody notices this one, the move has not begun
    granule* page = batch.all[0].moved;
    with(page->lock, [&] { page->was_touched = true; });
    const std::size_t free_before = r.usage(r.device()).free_frames;
    CHECK(batch.move(true) == 1);
    CHECK(batch.all[0].outcome.code == errc::busy);
    CHECK(batch.all[1].outcome);
    CHECK(r.state(data) == residency::on_host);
    CHECK(r.state(page_of(data, 1)) == residency::on_device);
    CHECK(r.usage(r.device()).free_frames == free_before + 2_MiB);
    CHECK(r.counters(r.device()).moves_given_up == 1);
    CHECK(data[0] == 2);
}

TEST_CASE("move: a CPU that writes into an optional move is not kept waiting") {
    auto slow = device_of(32_MiB);
    slow.link_in_bytes_per_second = 40'000'000;  // 50 ms a page
    rig r{{slow}};
    auto* data = r.map(2_MiB);
    data[0] = 1;
    auto job = r.of().advise_async(r.device(), data, 2_MiB, advice::will_need);
    REQUIRE(job);
    while (!r.inspect(
        data, [](granule& page) { return page.is_moving() && page.mapped[0] == access::read; })) {
        REQUIRE(!job->is_done());
        std::this_thread::yield();
    }
    data[0] = 2;
    CHECK(!job->is_done());
    job->wait();
    CHECK(r.state(data) == residency::on_host);
    CHECK(data[0] == 2);
    CHECK(r.counters(r.device()).moves_given_up == 1);
}

TEST_CASE("move: collapsing and dropping copies keep the data") {
    rig r{{device_of(16_MiB), device_of(16_MiB)}};
    auto* data = r.map(2_MiB, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    data[0] = 9;
    CHECK(r.read_on_device(data, 0) == 9);
    CHECK(r.read_on_device(data, 1) == 9);
    auto& state = r.of().state();
    granule* page = state.core.find(to_address(data));
    with(page->lock, [&] {
        CHECK(page->frames[0] != nullptr);
        CHECK(state.engine.moves.drop_copy_locked(*page, 1));
        CHECK(page->current() == residency::duplicated);
        CHECK(page->frames[1] == nullptr);
        CHECK(page->mapped[2] == access::read);  // the other reader is left alone
        CHECK(page->is_valid_locked());
        CHECK(state.engine.moves.drop_copy_locked(*page, 2));
        CHECK(page->current() == residency::on_host);
        CHECK(page->is_valid_locked());
    });
    CHECK(r.read_on_device(data, 1) == 9);
    with(page->lock, [&] {
        CHECK(state.engine.moves.collapse_locked(*page, 2));
        CHECK(page->current() == residency::on_device);
        CHECK(page->home == 2);
        CHECK(!page->has_mapping());
        CHECK(page->is_valid_locked());
    });
    CHECK(data[0] == 9);
}
