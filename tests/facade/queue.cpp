// SPDX-License-Identifier: Apache-2.0
#include <xmm/facade/queue.hpp>

#include "rig.hpp"

using namespace xmm;
using namespace xmm::test;

TEST_CASE("queue: waits for what was submitted, in it and in another") {
    rig r;
    auto* data = r.map(2_MiB);
    auto second = r.of().make_queue(r.device());
    REQUIRE(second);
    auto kernel = r.start_kernel<std::uint64_t>(data, 1);
    REQUIRE(second->wait_for(kernel.done));
    auto after = second->record();
    REQUIRE(after);
    nap(10);
    CHECK(!second->is_done(*after));
    CHECK(r.finish(kernel));
    CHECK(second->wait(*after));
    CHECK(second->is_done(*after));
    CHECK(second->is_done(ticket{}));
    CHECK(second->node() == r.device());
}

TEST_CASE("queue: a handle that was moved from is refused, its work goes on") {
    rig r;
    auto* data = r.map(2_MiB);
    auto made = r.of().make_queue(r.device());
    REQUIRE(made);
    queue first = std::move(*made);
    queue second = std::move(first);
    CHECK(first.record().code() == errc::invalid_argument);
    CHECK(first.synchronize().code == errc::invalid_argument);
    CHECK(first.wait_for(ticket{}).code == errc::invalid_argument);
    CHECK(launch(first, {reads(data, 8)}, [](soft::stream&) {}).code() == errc::invalid_argument);
    std::uint64_t plain = 0;
    CHECK(r.of().copy(first, &plain, data, 8).code() == errc::invalid_argument);
    CHECK(!r.inspect(data, [](granule& page) { return page.is_used(); }));
    CHECK(second.synchronize());
    first = std::move(second);
    CHECK(first.synchronize());
    CHECK(second.record().code() == errc::invalid_argument);
}

TEST_CASE("queue: of another space") {
    rig r, other;
    auto* data = r.map(2_MiB);
    std::uint64_t plain = 0;
    CHECK(r.of().copy(other.line(), &plain, data, 8).code() == errc::unknown_node);
    // Of one driver the nodes are the same, the queue still is not: it would outlive this space.
    auto driver = xmm::detail::make_soft_driver({device_of(16_MiB)}, machine_topology());
    REQUIRE(driver);
    auto first = space::create_on(**driver);
    auto second = space::create_on(**driver);
    REQUIRE(first);
    REQUIRE(second);
    auto line = second->make_queue(second->devices()[0]);
    REQUIRE(line);
    std::uint64_t target = 0;
    CHECK(first->copy(*line, &target, &plain, 8).code() == errc::unknown_node);
    CHECK(second->copy(*line, &target, &plain, 8));
    CHECK(launch(other.line(), {reads(data, 8)}, [](soft::stream&) {}).code() == errc::not_mapped);
}

TEST_CASE("queue: a ticket that was never given is refused, not waited for") {
    rig r;
    const ticket future{r.line().id(), 1000000};
    CHECK(r.line().wait(future).code == errc::invalid_argument);
    CHECK(r.line().wait_for(future).code == errc::invalid_argument);
    CHECK(r.line().synchronize());
}

TEST_CASE("queue: a priority that does not exist is refused") {
    rig r;
    CHECK(r.of().make_queue(r.device(), static_cast<queue_priority>(9)).code() ==
          errc::invalid_argument);
    CHECK(r.of().make_queue(r.device(), queue_priority::urgent));
    CHECK(r.of().make_queue(r.device(), queue_priority::background));
}
