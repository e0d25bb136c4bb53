// SPDX-License-Identifier: Apache-2.0
#include <xmm/placement/reclaim.hpp>

#include "../facade/rig.hpp"

using namespace xmm;
using namespace xmm::test;

TEST_CASE("reclaim: a lowered budget demotes pages at once, with their contents") {
    rig r;
    auto* data = r.map(16_MiB);
    r.fill_on_device<std::uint64_t>(data, 16_MiB, 1);
    REQUIRE(r.of().set_budget(r.device(), 6_MiB));
    CHECK(r.usage(r.device()).used <= 6_MiB);
    CHECK(r.usage(r.device()).limit == 6_MiB);
    CHECK(r.state(data) == residency::on_host);  // the oldest went
    CHECK(r.state(page_of(data, 7)) == residency::on_device);
    CHECK(r.of().is_valid());
    CHECK(count_wrong<std::uint64_t>(data, 16_MiB, 1) == 0);
    REQUIRE(r.of().set_budget(r.device(), SIZE_MAX));
    CHECK(r.usage(r.device()).limit == 32_MiB);
}

TEST_CASE("reclaim: two who lower one budget at once do not stand in each other's way") {
    rig r;
    auto* data = r.map(24_MiB);
    auto& engine = r.of().state().engine;
    xmm::node& device = *r.of().state().core.find_node(r.device());
    for (int round = 0; round < 20; ++round) {
        REQUIRE(r.of().set_budget(r.device(), SIZE_MAX));
        r.fill_on_device<std::uint64_t>(data, 24_MiB, 1);
        device.book->set_budget(2_MiB);
        std::atomic<int> failures{0};
        std::vector<std::thread> both;
        for (int i = 0; i < 2; ++i) {
            both.emplace_back([&] { failures += engine.frames.shrink_to_limit(device) ? 0 : 1; });
        }
        for (std::thread& one : both) {
            one.join();
        }
        CHECK(failures == 0);
        CHECK(r.usage(r.device()).used <= 2_MiB);
    }
    REQUIRE(r.of().set_budget(r.device(), SIZE_MAX));
}

TEST_CASE("reclaim: several who can win nothing come to an end") {
    rig r{{device_of(16_MiB)}};
    auto* data = r.map(16_MiB);
    auto& engine = r.of().state().engine;
    xmm::node& device = *r.of().state().core.find_node(r.device());
    r.fill_on_device<std::uint64_t>(data, 16_MiB, 1);
    static_cast<void>(r.of().set_budget(r.host(), r.usage(r.host()).used));  // nowhere to go
    device.book->set_budget(2_MiB);
    // Each look takes a while, so that they see each other end.
    struct : frame_lender {
        std::size_t give_back(std::size_t) noexcept override {
            nap(1);
            return 0;
        }
    } slow;
    device.lender.store(&slow, std::memory_order_release);
    std::atomic<int> ended{0};
    std::atomic<int> successes{0};
    std::vector<std::thread> all;
    for (int i = 0; i < 4; ++i) {
        all.emplace_back([&] {
            for (int round = 0; round < 20; ++round) {
                successes += engine.frames.shrink_to_limit(device) ? 1 : 0;
            }
            ++ended;
        });
    }
    for (int i = 0; i < 2500 && ended < 4; ++i) {
        nap(2);
    }
    CHECK(ended == 4);
    CHECK(successes == 0);
    CHECK(r.usage(r.device()).used == 16_MiB);
    REQUIRE(r.of().set_budget(r.host(), SIZE_MAX));  // whoever is left gets what it wants
    for (std::thread& one : all) {
        one.join();
    }
    device.lender.store(nullptr, std::memory_order_release);
    REQUIRE(r.of().set_budget(r.device(), SIZE_MAX));
    CHECK(count_wrong<std::uint64_t>(data, 16_MiB, 1) == 0);
}

TEST_CASE("reclaim: memory that is no frame is charged, and pages make room for it") {
    rig r;
    auto* data = r.map(24_MiB);
    r.fill_on_device<std::uint64_t>(data, 24_MiB, 1);
    REQUIRE(r.of().set_budget(r.device(), 24_MiB));
    auto& frames = r.of().state().engine.frames;
    xmm::node& device = *r.of().state().core.find_node(r.device());
    REQUIRE(frames.reserve(device, 10_MiB));
    CHECK(r.usage(r.device()).used <= 24_MiB);
    CHECK(r.usage(r.device()).free_frames == 0);
    CHECK(r.state(data) == residency::on_host);  // the oldest went
    CHECK(r.state(page_of(data, 11)) == residency::on_device);
    // More than there will ever be moves nothing.
    const auto moved = r.usage(r.device()).used;
    CHECK(frames.reserve(device, 25_MiB).code() == errc::no_memory);
    CHECK(frames.last_shortage().bytes == 25_MiB);
    CHECK(r.usage(r.device()).used == moved);
    // What is charged already does not go.
    CHECK(frames.reserve(device, 16_MiB).code() == errc::no_memory);
    CHECK(r.usage(r.device()).used >= 10_MiB);
    device.book->release(10_MiB);
    CHECK(r.of().is_valid());
    CHECK(count_wrong<std::uint64_t>(data, 24_MiB, 1) == 0);
    REQUIRE(r.of().set_budget(r.device(), SIZE_MAX));
}

TEST_CASE(
    "reclaim: who finds nothing waits for one that is at work, however many end with nothing") {
    rig r;
    auto* data = r.map(4_MiB);
    REQUIRE(r.of().advise(r.device(), data, 4_MiB, advice::pin));
    REQUIRE(r.of().set_budget(r.device(), 4_MiB));
    auto& frames = r.of().state().engine.frames;
    xmm::node& device = *r.of().state().core.find_node(r.device());
    // One that takes long, made of its marks.
    device.reclaims.fetch_add(1);
    std::atomic<bool> is_answered{false};
    bool is_had = false;
    std::thread waiting{[&] {
        result<frame_record*> got = frames.obtain(device, 2_MiB);
        is_had = static_cast<bool>(got);
        is_answered = true;
        if (got) {
            r.of().state().engine.moves.stock().give_back(device, **got);
        }
    }};
    const auto end = [&] {
        device.reclaims_ended.fetch_add(1);
        xmm::detail::futex_wake(device.reclaims_ended, INT32_MAX);
    };
    for (int others = 0; others < 300 && !is_answered; ++others) {
        end();
        nap(1);
    }
    CHECK(!is_answered);
    device.book->set_budget(6_MiB);  // what it won
    device.reclaims_won.fetch_add(1);
    device.reclaims.fetch_sub(1);
    end();
    waiting.join();
    CHECK(is_had);
    // None is at work: nobody waits.
    device.book->set_budget(4_MiB);
    device.pool.trim(0);
    CHECK(frames.obtain(device, 2_MiB).code() == errc::no_memory);
    REQUIRE(r.of().advise(r.device(), data, 4_MiB, advice::unpin));
    REQUIRE(r.of().set_budget(r.device(), SIZE_MAX));
}

TEST_CASE("reclaim: many who ask for pages at once on a small node all get theirs") {
    rig r;
    constexpr unsigned threads = 16;
    constexpr int rounds = 20;
    REQUIRE(r.of().set_budget(r.device(), 8_MiB));
    std::vector<unsigned char*> pages;
    for (unsigned i = 0; i < 2 * threads; ++i) {
        pages.push_back(r.map<unsigned char>(2_MiB));
        pages.back()[0] = static_cast<unsigned char>(i);
    }
    std::atomic<int> refused{0};
    std::vector<std::thread> all;
    for (unsigned i = 0; i < threads; ++i) {
        all.emplace_back([&, i] {
            for (int round = 0; round < rounds; ++round) {
                unsigned char* mine = pages[2 * i + static_cast<unsigned>(round & 1)];
                refused += r.of().make_resident(mine, 1, r.device()) ? 0 : 1;
            }
        });
    }
    for (std::thread& one : all) {
        one.join();
    }
    CHECK(refused == 0);
    CHECK(r.of().state().core.find_node(r.device())->coming == 0);
    for (unsigned i = 0; i < pages.size(); ++i) {
        CHECK(pages[i][0] == i);
    }
    REQUIRE(r.of().set_budget(r.device(), SIZE_MAX));
}

TEST_CASE("reclaim: who finds nothing waits for a frame on its way, and not with one of its own") {
    rig r;
    REQUIRE(r.of().set_budget(r.device(), 2_MiB));
    auto& state = r.of().state();
    auto& frames = state.engine.frames;
    xmm::node& device = *state.core.find_node(r.device());
    auto* data = r.map(2_MiB);
    granule* page = state.core.find(to_address(data));
    with(page->lock, [&] { page->begin_transit_locked(false); });
    result<frame_record*> taken = frames.obtain(device, 2_MiB);
    REQUIRE(taken);
    CHECK(device.coming == 1);
    CHECK(frames.obtain(device, 2_MiB, awaited::reclaims).code() == errc::no_memory);
    std::atomic<bool> is_answered{false};
    bool is_had = false;
    std::thread waiting{[&] {
        result<frame_record*> got = frames.obtain(device, 2_MiB);
        is_had = static_cast<bool>(got);
        is_answered = true;
        if (got) {
            state.engine.moves.stock().give_back(device, **got);
        }
    }};
    nap(50);
    CHECK(!is_answered);
    page_move one{.moved = page};
    CHECK(frames.bring(one, std::move(taken)));  // it is the oldest page now, and goes
    waiting.join();
    CHECK(is_had);
    CHECK(device.coming == 0);
    REQUIRE(r.of().set_budget(r.device(), SIZE_MAX));
}

TEST_CASE("reclaim: free frames go first when the budget is lowered") {
    rig r;
    auto* data = r.map(8_MiB);
    r.fill_on_device<std::uint64_t>(data, 8_MiB, 1);
    REQUIRE(r.of().advise(r.device(), data, 4_MiB, advice::dont_need));
    CHECK(r.usage(r.device()).free_frames == 4_MiB);
    REQUIRE(r.of().set_budget(r.device(), 4_MiB));
    CHECK(r.usage(r.device()).used == 4_MiB);
    CHECK(r.usage(r.device()).free_frames == 0);
    CHECK(r.state(page_of(data, 2)) == residency::on_device);
    CHECK(r.state(page_of(data, 3)) == residency::on_device);
}

TEST_CASE("reclaim: pinned pages keep a node above its budget") {
    rig r;
    auto* data = r.map(8_MiB);
    REQUIRE(r.of().advise(r.device(), data, 4_MiB, advice::pin));
    CHECK(r.of().set_budget(r.device(), 2_MiB).code == errc::busy);
    CHECK(r.state(data) == residency::on_device);
    CHECK(r.usage(r.device()).used == 4_MiB);
    REQUIRE(r.of().advise(r.device(), data, 4_MiB, advice::unpin));
    CHECK(r.of().set_budget(r.device(), 2_MiB));
    CHECK(r.usage(r.device()).used <= 2_MiB);
}

TEST_CASE("reclaim: the page mapped longest ago goes first, whatever its address") {
    rig r;
    REQUIRE(r.of().set_budget(r.device(), 8_MiB));
    auto* data = r.map(16_MiB);
    for (std::size_t page : {3u, 1u, 2u, 0u}) {
        r.write_on_device<std::uint64_t>(page_of(data, page), page);
    }
    auto& engine = r.of().state().engine;
    xmm::node& device = *r.of().state().core.find_node(r.device());
    CHECK(engine.frames.reclaim(device, 1) == 2_MiB);
    CHECK(r.state(page_of(data, 3)) == residency::on_host);
    CHECK(engine.frames.reclaim(device, 2_MiB) == 2_MiB);
    CHECK(r.state(page_of(data, 1)) == residency::on_host);
    CHECK(r.state(page_of(data, 2)) == residency::on_device);
    CHECK(r.state(page_of(data, 0)) == residency::on_device);
}

TEST_CASE("reclaim: cold pages go first") {
    rig r;
    auto* data = r.map(8_MiB);
    for (std::size_t page : {0u, 1u, 2u, 3u}) {
        r.write_on_device<std::uint64_t>(page_of(data, page), page);
    }
    REQUIRE(r.of().advise(r.device(), page_of(data, 2), 1, advice::cold));
    auto& engine = r.of().state().engine;
    xmm::node& device = *r.of().state().core.find_node(r.device());
    CHECK(engine.frames.reclaim(device, 1) == 2_MiB);
    CHECK(r.state(page_of(data, 2)) == residency::on_host);
    CHECK(r.state(data) == residency::on_device);
}

TEST_CASE("reclaim: will_need moves to the recent end") {
    rig r;
    auto* data = r.map(8_MiB);
    for (std::size_t page : {0u, 1u, 2u}) {
        r.write_on_device<std::uint64_t>(page_of(data, page), page);
    }
    REQUIRE(r.of().advise(r.device(), data, 1, advice::will_need));
    auto& engine = r.of().state().engine;
    xmm::node& device = *r.of().state().core.find_node(r.device());
    CHECK(engine.frames.reclaim(device, 1) == 2_MiB);
    CHECK(r.state(page_of(data, 1)) == residency::on_host);
    CHECK(r.state(data) == residency::on_device);
}

TEST_CASE("reclaim: a full host keeps pages where they are") {
    rig r{{device_of(8_MiB)}};
    auto* data = r.map(8_MiB);
    r.fill_on_device<std::uint64_t>(data, 8_MiB, 3);
    const std::size_t held = r.usage(r.host()).used;
    static_cast<void>(r.of().set_budget(r.host(), held));
    auto& engine = r.of().state().engine;
    xmm::node& device = *r.of().state().core.find_node(r.device());
    CHECK(engine.frames.reclaim(device, 2_MiB) == 0);
    for (std::size_t page = 0; page < 4; ++page) {
        CHECK(r.state(page_of(data, page)) == residency::on_device);
        CHECK(!r.inspect(page_of(data, page), [](granule& one) { return one.is_moving(); }));
    }
    CHECK(r.of().is_valid());
    REQUIRE(r.of().set_budget(r.host(), SIZE_MAX));
    CHECK(engine.frames.reclaim(device, 2_MiB) >= 2_MiB);  // they are still on the list
    CHECK(count_wrong<std::uint64_t>(data, 8_MiB, 3) == 0);
}

TEST_CASE("reclaim: from a host only clean copies can go") {
    rig r;
    auto* data = r.map(4_MiB, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    r.fill_on_device<std::uint64_t>(data, 2_MiB, 1);
    CHECK(data[0] == 1);  // a copy on the host, home on the device
    REQUIRE(r.state(data) == residency::duplicated);
    page_of(data, 1)[0] = 5;
    auto& engine = r.of().state().engine;
    xmm::node& host = r.of().state().core.at_slot(0);
    CHECK(engine.frames.reclaim(host, 32_MiB) == 2_MiB);
    CHECK(r.state(data) == residency::on_device);
    CHECK(r.mapped(data, r.host()) == access::none);
    CHECK(r.state(page_of(data, 1)) == residency::on_host);
    CHECK(data[1] == 2);
}

TEST_CASE("reclaim: the home of a duplicated page goes, a copy becomes the home") {
    rig r;
    auto* data = r.map(2_MiB, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    r.write_on_device<std::uint64_t>(data, 6);
    CHECK(data[0] == 6);
    REQUIRE(r.home(data) == r.device());
    REQUIRE(r.of().set_budget(r.device(), 0));
    CHECK(r.state(data) == residency::on_host);
    CHECK(r.counters(r.device()).copies_dropped == 1);
    CHECK(r.counters(r.device()).bytes_out == 2_MiB);  // the copy made for the reader; none now
    CHECK(data[0] == 6);
}

TEST_CASE("reclaim: frames of different sizes make room for one another") {
    rig r{{device_of(16_MiB)}};
    auto* small = r.map(16_MiB, {.granule_bytes = 2_MiB});
    auto* large = r.map(24_MiB, {.granule_bytes = 8_MiB});
    r.fill_on_device<std::uint64_t>(small, 16_MiB, 1);
    r.fill_on_device<std::uint64_t>(large, 24_MiB, 2);
    CHECK(r.count_wrong_on_device<std::uint64_t>(small, 16_MiB, 1) == 0);
    CHECK(r.count_wrong_on_device<std::uint64_t>(large, 24_MiB, 2) == 0);
    CHECK(r.usage(r.device()).used <= 16_MiB);
    CHECK(r.counters(r.device()).mapped_in_place == 0);
}
