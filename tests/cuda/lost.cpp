// SPDX-License-Identifier: Apache-2.0
// A device that fails: its tickets are reached, its host calls are made, what it held can be taken back. Needs a
// driver whose devices fail on request; they are well again once nobody holds their context.
#include "../../backends/cuda/launcher.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "../support/cuda_device.hpp"

namespace {

using namespace xmm;

struct lost_rig {
    test::soft_cuda_controls soft = test::find_soft_cuda();
    std::unique_ptr<cuda::vmm> opened{std::move(test::open_cuda(1).value())};
    cuda::vmm& b{*opened};
    node_id device{1};
    node_id host{0};
    queue_id queue{*b.queue_create(device, queue_priority::normal)};

    static bool can_run() {
        if (!test::cuda_state() || !test::find_soft_cuda()) {
            MESSAGE("skipped: no CUDA driver here whose devices fail on request");
            return false;
        }
        return true;
    }
    void lose() { CHECK(soft.break_device(0, cuda::CUDA_ERROR_ILLEGAL_ADDRESS) == 0); }
};

}  // namespace

TEST_CASE(
    "a lost device: tickets are reached and say so, nothing new begins, all can be taken back") {
    if (!lost_rig::can_run()) {
        return;
    }
    lost_rig r;
    const va_range va = r.b.va_examine({0, 3 * page_bytes}, page_bytes).value();
    const frame ours = r.b.frame_create(r.host, page_bytes).value();
    const frame theirs = r.b.frame_create(r.device, page_bytes).value();
    const va_range host_page{va.begin, page_bytes};
    const va_range device_page{va.begin + page_bytes, page_bytes};
    const run host_run{host_page, ours, access::read_write};
    const run device_run{device_page, theirs, access::read_write};
    REQUIRE(r.b.pmap_enter(r.host, {&host_run, 1}));
    REQUIRE(r.b.pmap_enter(r.device, {&host_run, 1}));
    REQUIRE(r.b.pmap_enter(r.device, {&device_run, 1}));
    auto early = r.b.record(r.queue);
    REQUIRE(early);
    CHECK(r.b.wait(*early));
    const va_range some{theirs.standing, 4096};
    auto late = r.b.zero(r.queue, {&some, 1});
    REQUIRE(late);
    // It is over, so that nothing fails behind our back; but nobody has asked for its ticket.
    {
        const cuda::device& on = *r.b.device_of(r.queue);
        const cuda::current_context here{on.calls(), on.context()};
        CHECK(on.calls().call(&cuda::driver_api::stream_synchronize, r.b.stream_of(r.queue)));
    }

    r.lose();
    CHECK_FALSE(r.b.is_lost(r.device));  // nobody has asked yet
    CHECK(r.b.record(r.queue).code() == errc::device_lost);
    CHECK(r.b.is_lost(r.device));
    CHECK(r.b.wait(*early));
    CHECK(r.b.is_done(*late));
    CHECK(r.b.wait(*late).code == errc::device_lost);
    CHECK(r.b.wait(*late).driver_code == 0);
    CHECK(r.b.zero(r.queue, {&some, 1}).code() == errc::device_lost);
    CHECK(r.b.frame_create(r.device, page_bytes).code() == errc::device_lost);
    CHECK(r.b.queue_create(r.device, queue_priority::normal).code() == errc::device_lost);

    // The CPU keeps what it has, and reaches host frames at their standing addresses now.
    *static_cast<std::uint64_t*>(to_pointer(va.begin)) = 7;
    CHECK(*static_cast<std::uint64_t*>(to_pointer(ours.standing)) == 7);
    auto more = r.b.frame_create(r.host, page_bytes);
    REQUIRE(more);
    *static_cast<std::uint64_t*>(to_pointer(more->standing)) = 8;
    r.b.frame_drop(*more);

    CHECK(r.b.pmap_clear(r.device, {&va, 1}).done == 1);
    CHECK(*static_cast<std::uint64_t*>(to_pointer(va.begin)) == 7);
    CHECK(r.b.pmap_clear(r.host, {&va, 1}).done == 1);
    r.b.frame_drop(ours);
    r.b.frame_drop(theirs);
    r.b.va_release(va);
    r.b.queue_destroy(r.queue);
    CHECK(r.soft.held(0) == 0);
}

TEST_CASE("a lost device: the host calls that it will not make are made, in order and once") {
    if (!lost_rig::can_run()) {
        return;
    }
    lost_rig r;
    struct calls {
        std::atomic<bool> may_go{false};
        std::atomic<int> made{0};
        std::atomic<bool> in_order{true};
    } seen;
    CHECK(r.b.call(
        r.queue,
        [](void* self) noexcept {
            auto& all = *static_cast<calls*>(self);
            while (!all.may_go.load()) {
                std::this_thread::yield();
            }
            all.in_order = all.in_order && all.made.fetch_add(1) == 0;
        },
        &seen));
    struct numbered {
        calls* all;
        int number;
    };
    numbered others[] = {{&seen, 1}, {&seen, 2}, {&seen, 3}};
    for (numbered& one : others) {
        CHECK(r.b.call(
            r.queue,
            [](void* self) noexcept {
                auto& me = *static_cast<numbered*>(self);
                me.all->in_order = me.all->in_order && me.all->made.fetch_add(1) == me.number;
            },
            &one));
    }
    auto last = r.b.record(r.queue);
    REQUIRE(last);
    r.lose();
    CHECK(r.b.is_done(*last));
    seen.may_go = true;
    r.b.queue_destroy(r.queue);
    CHECK(seen.made == 4);
    CHECK(seen.in_order);
}

TEST_CASE("a host call whose event finds the device lost is over when its ticket is there") {
    if (!lost_rig::can_run()) {
        return;
    }
    lost_rig r;
    std::atomic<int> made{0};
    r.soft.fail("cuEventRecord", 0, 1, cuda::CUDA_ERROR_ILLEGAL_ADDRESS);
    auto point = r.b.call(
        r.queue,
        [](void* self) noexcept {
            std::this_thread::sleep_for(std::chrono::milliseconds{50});
            ++*static_cast<std::atomic<int>*>(self);
        },
        &made);
    REQUIRE(point);
    CHECK(made == 1);
    CHECK(r.b.is_done(*point));
    CHECK(r.b.record(r.queue).code() == errc::device_lost);
    r.b.queue_destroy(r.queue);
    CHECK(made == 1);
}

TEST_CASE("a device that came back is another one") {
    if (!lost_rig::can_run()) {
        return;
    }
    lost_rig r;
    CHECK(r.b.wait(r.b.record(r.queue).value()));
    r.b.queue_destroy(r.queue);
}
