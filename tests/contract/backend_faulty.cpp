// SPDX-License-Identifier: Apache-2.0
#include "../support/faulty_backend.hpp"

#include "../soft/rig.hpp"

using namespace xmm;
using namespace xmm::test;

TEST_CASE("the wrapper fails the call that it was told to, and no other") {
    rig r;
    faulty_backend faulty{r.driver};
    faulty.plan(op::frame_create, {.fail_at = 2, .code = errc::busy});
    const frame first = *faulty.frame_create(rig::near, page_bytes);
    CHECK(faulty.frame_create(rig::near, page_bytes).code() == errc::busy);
    const frame third = *faulty.frame_create(rig::near, page_bytes);
    CHECK(faulty.calls(op::frame_create) == 3);
    CHECK(r.driver.statistics(rig::near).frame_bytes == 2 * page_bytes);
    faulty.frame_drop(first);
    faulty.frame_drop(third);
    faulty.fail_next(op::frame_create, errc::no_memory);
    CHECK(faulty.frame_create(rig::near, page_bytes).code() == errc::no_memory);
    CHECK(r.driver.statistics(rig::near).frame_bytes == 0);
}

TEST_CASE("a failing batch takes effect up to the entry named") {
    rig r;
    faulty_backend faulty{r.driver};
    const va_range range = r.reserve(3 * page_bytes);
    std::vector<run> runs;
    std::vector<va_range> pages;
    for (std::size_t i = 0; i < 3; ++i) {
        pages.push_back({range.begin + i * page_bytes, page_bytes});
        runs.push_back({pages.back(), r.create(rig::near), access::read_write});
    }
    faulty.fail_next(op::pmap_enter, errc::no_memory, 2);
    const progress some = faulty.pmap_enter(rig::near, runs);
    CHECK(some.done == 2);
    CHECK(some.outcome.code == errc::no_memory);
    CHECK(r.driver.statistics(rig::near).mapped_bytes == 2 * page_bytes);
    CHECK(faulty.entries(op::pmap_enter) == 3);
    CHECK(faulty.pmap_clear(rig::near, pages).done == 3);
    CHECK(r.driver.statistics(rig::near).mapped_bytes == 0);
}

TEST_CASE("abilities are stripped, ranges declined, calls delayed") {
    rig r;
    faulty_backend faulty{r.driver};
    const backend_ref erased{faulty};
    faulty.strip(ability::device_faults);
    faulty.strip(ability::host_calls);
    const node_description about = *erased.describe(rig::near);
    CHECK_FALSE(about.able.has(ability::device_faults));
    CHECK(about.able.has(ability::alias));
    CHECK(erased.on_device_fault({}).code == errc::unsupported);
    CHECK(erased
              .call(
                  r.queue(), [](void*) noexcept {}, nullptr)
              .code() == errc::unsupported);
    faulty.decline_va_examine(true);
    CHECK(erased.va_examine({0, page_bytes}, page_bytes).code() == errc::unsupported);
    faulty.plan(op::wait, {.delay = std::chrono::milliseconds{5}});
    const stopwatch watch;
    CHECK(erased.wait({}));
    CHECK(watch.seconds() >= 0.005);
}
