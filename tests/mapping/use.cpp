// SPDX-License-Identifier: Apache-2.0
#include <xmm/mapping/use.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "paper_driver.hpp"

using namespace xmm;
using namespace xmm::literals;

namespace {

struct use_rig {
    static constexpr unsigned pages = 20;
    test::paper_driver driver;
    std::unique_ptr<logical_map> map = std::make_unique<logical_map>();
    use_table uses{*map};
    region* whole = nullptr;

    use_rig() {
        driver.reached = 0;  // nothing is done before a wait
        whole = map->make_region();
        whole->va = {1_GiB, pages * 2_MiB};
        whole->granule_bytes = 2_MiB;
        REQUIRE(map->add(*whole, [](granule&) {}));
    }
    granule& page(unsigned i) { return *map->find(1_GiB + i * 2_MiB); }
    use one_use(unsigned first, unsigned count = 1) {
        for (unsigned i = first; i < first + count; ++i) {
            with(page(i).lock, [&] { use_table::mark_locked(page(i)); });
        }
        return {{1_GiB + first * 2_MiB + 5, count * 2_MiB - 10}, access::read};
    }
    unsigned used() {
        unsigned count = 0;
        for (unsigned i = 0; i < pages; ++i) {
            count += page(i).uses.load();
        }
        return count;
    }
};

}  // namespace

TEST_CASE("use: marks last until the ticket is reached") {
    use_rig r;
    const use mine = r.one_use(2, 3);
    r.uses.note_launch(backend_ref{r.driver}, {queue_id{1}, 5}, {&mine, 1});
    CHECK(r.uses.in_flight() == 1);
    r.uses.retire_finished();
    CHECK(r.used() == 3);
    CHECK(!r.page(1).is_used());
    CHECK(r.page(4).is_used());
    r.driver.reached = 4;
    r.uses.retire_finished();
    CHECK(r.used() == 3);
    r.driver.reached = 5;
    r.uses.retire_finished();
    CHECK(r.used() == 0);
    CHECK(r.uses.in_flight() == 0);
}

TEST_CASE("use: a launch with many ranges, and two launches of one page") {
    use_rig r;
    std::vector<use> many;
    for (unsigned i = 0; i < use_rig::pages; ++i) {
        many.push_back(r.one_use(i));
    }
    r.uses.note_launch(backend_ref{r.driver}, {queue_id{1}, 1}, many);
    const use again = r.one_use(7);
    r.uses.note_launch(backend_ref{r.driver}, {queue_id{1}, 2}, {&again, 1});
    CHECK(r.used() == use_rig::pages + 1);
    r.driver.reached = 1;
    r.uses.retire_finished();
    CHECK(r.used() == 1);
    CHECK(r.page(7).is_used());
    r.driver.reached = 2;
    r.uses.retire_finished();
    CHECK(r.used() == 0);
}

TEST_CASE("use: marks of what was never launched are taken back") {
    use_rig r;
    const use mine[] = {r.one_use(0, 2), r.one_use(10)};
    r.uses.take_back(mine);
    CHECK(r.used() == 0);
}

TEST_CASE("use: awaiting a page waits for the launches that name it, for no others") {
    use_rig r;
    const use one = r.one_use(1, 4);
    const use other = r.one_use(9);
    r.uses.note_launch(backend_ref{r.driver}, {queue_id{1}, 3}, {&one, 1});
    r.uses.note_launch(backend_ref{r.driver}, {queue_id{1}, 9}, {&other, 1});
    r.uses.await_unused(r.page(0), r.page(0).va);
    CHECK(r.driver.waits == 0);
    r.uses.await_unused(r.page(4), r.page(4).va);
    CHECK(r.driver.waits == 1);
    CHECK(r.driver.reached == 3);
    CHECK(!r.page(4).is_used());
    CHECK(r.page(9).is_used());
    r.driver.reached = 9;
    r.uses.retire_finished();
}

TEST_CASE("use: marks of work without a ticket last until there is one") {
    for (const errc refusal : {errc::no_memory, errc::busy, errc::device_lost}) {
        CAPTURE(name_of(refusal));
        use_rig r;
        r.driver.record_failure = refusal;
        const use mine = r.one_use(2, 3);
        r.uses.note_launch(backend_ref{r.driver}, queue_id{1}, {&mine, 1});
        r.uses.retire_finished();
        CHECK(r.used() == (refusal == errc::device_lost ? 0u : 3u));
        r.driver.record_failure = errc::ok;
        r.uses.retire_finished();  // it has one now, which is not reached
        CHECK(r.used() == (refusal == errc::device_lost ? 0u : 3u));
        r.driver.reached = 1;
        r.uses.retire_finished();
        CHECK(r.used() == 0);
        CHECK(r.uses.in_flight() == 0);
    }
}

TEST_CASE("use: who awaits work without a ticket gets it") {
    use_rig r;
    r.driver.record_failure = errc::no_memory;
    const use mine = r.one_use(2);
    r.uses.note_launch(backend_ref{r.driver}, queue_id{1}, {&mine, 1});
    std::thread giver{[&] {
        std::this_thread::sleep_for(std::chrono::milliseconds{20});
        r.driver.record_failure = errc::ok;
    }};
    r.uses.await_unused(r.page(2), r.page(2).va);
    giver.join();
    CHECK(r.driver.reached == 1);
    CHECK(r.used() == 0);
}

TEST_CASE("use: a record that stands for other addresses by now is not awaited") {
    use_rig r;
    const va_range before = r.page(3).va;
    const use mark = r.one_use(3);  // of a launch that is still in the making
    with(r.page(3).lock, [&] { r.page(3).va = {2_GiB, 2_MiB}; });
    std::atomic<bool> is_over{false};
    std::thread waiter{[&] {
        r.uses.await_unused(r.page(3), before);
        is_over = true;
    }};
    for (int i = 0; i < 3000 && !is_over; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    CHECK(is_over);
    with(r.page(3).lock, [&] { r.page(3).va = before; });
    r.uses.take_back({&mark, 1});
    waiter.join();
}
