// SPDX-License-Identifier: Apache-2.0
#include <xmm/mapping/granule.hpp>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "../core/child.hpp"

using namespace xmm;
using namespace xmm::literals;

namespace {

void nap() { std::this_thread::sleep_for(std::chrono::milliseconds{20}); }

struct granule_rig {
    granule page;
    frame_record host{}, device{};
    granule_rig() {
        page.va = {1_GiB, 2_MiB};
        page.state = residency::untouched;
        host.backing = {1, 1, 2_MiB, node_id{0}};
        host.is_host = true;
        host.owner = &page;
        device.backing = {2, 2, 2_MiB, node_id{1}};
        device.owner = &page;
    }
};

}  // namespace

TEST_CASE("granule: at the full level a record that is left inconsistent ends the program") {
    granule_rig r;
    CHECK(!test::in_child([&] { r.page.check_locked(); }).is_crash());
    r.page.home = 1;  // without a frame
    const auto how = test::in_child([&] { r.page.check_locked(); });
    CHECK(how.is_crash() == checks_full);
    CHECK(how.says("inconsistent") == checks_full);
}

TEST_CASE("granule: all who await rest wake when the transit ends") {
    granule_rig r;
    with(r.page.lock, [&] { r.page.begin_transit_locked(false); });
    CHECK(r.page.is_moving());
    CHECK(!r.page.is_urgent);
    std::atomic<int> rested{0};
    std::vector<std::thread> waiters;
    for (int i = 0; i < 3; ++i) {
        waiters.emplace_back([&] {
            r.page.await_rest();
            ++rested;
        });
    }
    nap();
    CHECK(rested == 0);
    CHECK(r.page.is_urgent);  // the mover can see that somebody waits
    with(r.page.lock, [&] { r.page.end_transit_locked(); });
    for (auto& one : waiters) {
        one.join();
    }
    CHECK(rested == 3);
    r.page.await_rest();  // at rest: returns at once
    with(r.page.lock, [&] {
        r.page.begin_transit_locked(true);
        CHECK(!r.page.is_urgent);
        CHECK(r.page.is_optional);
        r.page.end_transit_locked();
    });
}

TEST_CASE("granule: holds end when the last one is dropped") {
    granule_rig r;
    with(r.page.lock, [&] { r.page.add_hold_locked(), r.page.add_hold_locked(); });
    std::atomic<bool> is_free{false};
    std::thread waiter{[&] {
        r.page.await_no_holds();
        is_free = true;
    }};
    r.page.drop_hold();
    nap();
    CHECK(!is_free);
    CHECK(r.page.is_held());
    r.page.drop_hold();
    waiter.join();
    CHECK(!r.page.is_held());
}

TEST_CASE("granule: which records are consistent") {
    granule_rig r;
    granule& page = r.page;
    CHECK(page.is_valid_locked());

    page.mapped[cpu_accessor] = access::read;  // nothing to map yet
    CHECK(!page.is_valid_locked());
    page.mapped[cpu_accessor] = access::none;

    page.frames[0] = &r.host;  // a frame without a home
    CHECK(!page.is_valid_locked());
    page.home = 0;
    page.state = residency::on_host;
    CHECK(page.is_valid_locked());
    page.mapped[cpu_accessor] = access::read_write;
    CHECK(page.is_valid_locked());
    page.state = residency::on_device;  // but the frame is a host's
    CHECK(!page.is_valid_locked());

    page.state = residency::on_host;
    page.frames[1] = &r.device;
    CHECK(!page.is_valid_locked());  // two frames, not duplicated
    page.state = residency::duplicated;
    CHECK(!page.is_valid_locked());  // ... which nobody may write
    page.mapped[cpu_accessor] = access::read;
    CHECK(page.is_valid_locked());

    page.frames[0] = nullptr;
    page.home = 1;
    page.state = residency::on_device;
    CHECK(!page.is_valid_locked());  // the CPU cannot see a device's frame
    page.mapped[cpu_accessor] = access::none;
    CHECK(page.is_valid_locked());
    r.device.owner = nullptr;
    CHECK(!page.is_valid_locked());
    r.device.owner = &page;
    r.device.backing.bytes = 4_MiB;
    CHECK(!page.is_valid_locked());
}

#if XMM_CHECKS
TEST_CASE("granule: an illegal step aborts") {
    const auto how = test::in_child([] {
        granule page;
        page.step_locked(residency_step::move, residency::on_host);
    });
    CHECK(how.signal == SIGABRT);
    CHECK(how.says("illegal residency step"));
}
#endif
