// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/memory_resource.hpp>

#include <string_view>

#include <doctest/doctest.h>

#include <xmm/resources/host_resource.hpp>
#include <xmm/resources/space_resource.hpp>

#include "fake_space.hpp"

using namespace xmm;
using test::fake_space;

namespace {

// A queue as the facade hands it out, and another library's stream.
struct own_queue {
    int waits = 0;
    [[nodiscard]] queue_id id() const { return queue_id{5}; }
    status synchronize() {
        ++waits;
        return {};
    }
};
struct foreign_stream {
    using value_type = int*;
    int* counter;
    [[nodiscard]] int* get() const { return counter; }
    void sync() const { ++*counter; }
};
struct failing_stream {
    using value_type = int*;
    int* counter;
    [[nodiscard]] int* get() const { return counter; }
    void sync() const { throw 1; }
};

}  // namespace

TEST_CASE("stream_ref: none, a queue of ours, another library's stream") {
    CHECK(stream_ref{}.is_none());
    CHECK(stream_ref{}.synchronize().is_ok());

    own_queue queue;
    const stream_ref own = queue;
    CHECK(own.queue() == queue_id{5});
    CHECK(own.synchronize().is_ok());
    CHECK(queue.waits == 1);

    int counter = 0;
    const stream_ref foreign = foreign_stream{&counter};
    CHECK_FALSE(foreign.is_none());
    CHECK(foreign.queue() == queue_id{});
    CHECK(foreign.native() == &counter);
    CHECK(foreign.synchronize().is_ok());
    CHECK(counter == 1);

    const stream_ref failing = failing_stream{&counter};
    CHECK(failing.synchronize().code == errc::device_lost);
}

TEST_CASE("out_of_memory: says who refused how much and why") {
    fake_space space{4 * page_bytes};
    unified_resource unified{space.port(), fake_space::device};
    void* held = unified.allocate_sync(page_bytes);
    try {
        (void)unified.allocate_sync(8 * page_bytes);
        FAIL("eight pages of four");
    } catch (const out_of_memory& refusal) {
        CHECK(refusal.bytes() == 8 * page_bytes);
        CHECK(refusal.node() == fake_space::device);
        CHECK(refusal.limit() == 4 * page_bytes);
        CHECK(refusal.driver_code() == 12);
        CHECK(std::string_view{refusal.cause()} == "the fake node is full");
        CHECK(std::string_view{refusal.what()} ==
              "xmm: out of memory: unified on node 1: 16777216 bytes asked, 0 used, limit 8388608: "
              "the fake node is full");
        const out_of_memory copy = refusal;
        CHECK(std::string_view{copy.what()} == refusal.what());
    }
    unified.deallocate_sync(held, page_bytes);
}

TEST_CASE("out_of_memory: a long cause is cut, not overrun") {
    const std::string cause(1000, 'x');
    const out_of_memory refusal{"some", node_id{3}, 1, {}, cause.c_str()};
    CHECK(std::string_view{refusal.what()}.size() == 255);
}

TEST_CASE("memory_resource: pmr, base and derived calls reach the same block") {
    host_resource host;
    std::pmr::memory_resource* pmr = &host;
    resource_base* base = &host;
    void* a = pmr->allocate(100);
    base->deallocate_sync(a, 100);
    void* b = base->allocate_sync(100, 64);
    host.deallocate(b, 100, 64);
    void* c = host.allocate(100, 64);  // pmr's name
    pmr->deallocate(c, 100, 64);
    CHECK(*pmr == host);
    CHECK_FALSE(*pmr == *std::pmr::new_delete_resource());
    CHECK_FALSE(*std::pmr::new_delete_resource() == *pmr);
}

TEST_CASE("memory_resource: device-only memory is aligned for devices whatever is asked") {
    fake_space space;
    device_resource device{space.port(), fake_space::device};
    void* pointer = device.allocate_sync(10, 1);
    CHECK(to_address(pointer) % device_alignment == 0);
    device.deallocate_sync(pointer, 10, 1);
    CHECK(to_address(device.allocate_sync(0, 1)) % device_alignment == 0);
}
