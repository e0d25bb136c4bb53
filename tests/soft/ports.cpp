// SPDX-License-Identifier: Apache-2.0
#include "../../backends/soft/device.hpp"

#include <cstdlib>
#include <new>

#include "../core/child.hpp"
#include "rig.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

thread_local unsigned allocations = 0;  // of this thread

}  // namespace

void* operator new(std::size_t bytes) {
    ++allocations;
    void* made = std::malloc(bytes);
    if (made == nullptr) {
        throw std::bad_alloc{};
    }
    return made;
}
// Of the same kind: a sanitizer looks whether what is freed was had so.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

// A kernel writes without pause while its page changes frames. After the old mapping is gone nothing
// may land in the old frame: its words are read plainly here, so the thread sanitizer watches too.
TEST_CASE("no write lands in the old frame after clear has returned") {
    rig r;
    const va_range range = r.reserve(page_bytes);
    const frame frames[] = {r.create(rig::near), r.create(rig::near)};
    std::atomic<bool> stop{false};
    std::atomic<int> generation{0};  // even: mapped
    auto answer = [&](node_id, address, xmm::access) {
        while (generation.load() % 2 != 0) {
            std::this_thread::yield();
        }
        return fault_outcome::resolved;
    };
    REQUIRE(r.driver.on_device_fault(sink_of(answer)));
    r.enter(rig::near, range.begin, frames[0]);
    const device_view<std::uint64_t> view{pointer<std::uint64_t>(range.begin), page_bytes / 8};
    auto point = r.stream().parallel_for(2, [&stop, view](std::size_t unit) {
        for (std::uint64_t i = 1; !stop.load(std::memory_order_relaxed); ++i) {
            view[unit] = i;
            view.for_each_span(64 + unit * 64, 8, [i](std::span<std::uint64_t> some, std::size_t) {
                std::fill(some.begin(), some.end(), i);
            });
        }
    });
    REQUIRE(point);
    const auto sum = [](const frame& one) {
        std::uint64_t total = 0;
        for (std::size_t i = 0; i < 256; ++i) {
            total += at<std::uint64_t>(one.standing + 8 * i);
        }
        return total;
    };
    std::uint64_t progressed = 0;
    for (int flip = 0; flip < 200; ++flip) {
        const frame& old = frames[flip % 2];
        const frame& fresh = frames[(flip + 1) % 2];
        if (flip % 3 == 0) {  // replaced in one step
            r.enter(rig::near, range.begin, fresh);
        } else if (flip % 3 == 1) {  // read-only first
            ++generation;
            r.enter(rig::near, range.begin, old, access::read);
        } else {
            ++generation;
            r.clear(rig::near, range);
        }
        const std::uint64_t before = sum(old);
        std::this_thread::sleep_for(std::chrono::microseconds{100});
        CHECK(sum(old) == before);
        progressed += before;
        if (flip % 3 != 0) {
            r.enter(rig::near, range.begin, fresh);
            ++generation;
        }
        std::this_thread::sleep_for(std::chrono::microseconds{200});
    }
    stop = true;
    CHECK(r.driver.wait(*point));
    CHECK(progressed > 0);
    CHECK(r.driver.statistics(rig::near).shootdowns >= 200);
    r.driver.off_device_fault(&answer);
}

TEST_CASE("a downgrade reaches a port that has the page cached; an upgrade needs no fault") {
    rig r;
    const va_range range = r.reserve(page_bytes);
    const frame one = r.create(rig::near);
    const soft::stream stream = r.stream();
    const device_view<int> view{pointer<int>(range.begin), 4};
    const auto store = [&](int value) {
        auto point = stream.run([=] { view.store(0, value); });
        REQUIRE(point);
        return r.driver.wait(*point).code;
    };
    int upgrades = 0;
    auto answer = [&](node_id, address, xmm::access wanted) {
        CHECK(wanted == access::write);
        ++upgrades;
        r.enter(rig::near, range.begin, one);
        return fault_outcome::resolved;
    };
    REQUIRE(r.driver.on_device_fault(sink_of(answer)));
    r.enter(rig::near, range.begin, one);
    CHECK(store(1) == errc::ok);
    r.enter(rig::near, range.begin, one, access::read);
    CHECK(store(2) == errc::ok);
    CHECK(upgrades == 1);
    CHECK(at<int>(one.standing) == 2);
    CHECK(r.driver.statistics(rig::near).faults == 1);
    CHECK(r.driver.statistics(rig::near).mapped_bytes == page_bytes);
    r.driver.off_device_fault(&answer);
}

TEST_CASE("pages that share a place in the TLB stay apart") {
    soft::device_options options;
    options.units = 1;
    rig r{options};
    const va_range range = r.reserve(65 * page_bytes);
    const frame one = r.create(rig::near);
    const frame other = r.create(rig::near);
    r.enter(rig::near, range.begin, one);
    r.enter(rig::near, range.begin + 64 * page_bytes, other);
    const device_view<int> view{pointer<int>(range.begin), range.bytes / sizeof(int)};
    auto point = r.stream().run([=] {
        for (int i = 0; i < 10; ++i) {
            view[0] += 1;
            view[64 * page_bytes / sizeof(int)] += 2;
        }
    });
    REQUIRE(point);
    CHECK(r.driver.wait(*point));
    CHECK(at<int>(one.standing) == 10);
    CHECK(at<int>(other.standing) == 20);
}

TEST_CASE("many scattered ranges are cleared in one batch") {
    rig r;
    const va_range range = r.reserve(80 * page_bytes);
    const frame one = r.create(rig::near);
    std::vector<va_range> cleared;
    for (std::size_t i = 0; i < 80; i += 2) {
        r.enter(rig::near, range.begin + i * page_bytes, one);
        cleared.push_back({range.begin + i * page_bytes, page_bytes});
    }
    CHECK(r.driver.statistics(rig::near).mapped_bytes == 40 * page_bytes);
    CHECK(r.driver.pmap_clear(rig::near, cleared).done == 40);
    CHECK(r.driver.statistics(rig::near).mapped_bytes == 0);
}

TEST_CASE("what a kernel reaches over the link is counted and paced") {
    soft::device_options options;
    options.link_in_bytes_per_second = 200'000'000;
    options.units = 1;
    rig r{options};
    const va_range range = r.reserve(2 * page_bytes);
    r.enter(rig::near, range.begin, r.create(rig::host));
    r.enter(rig::near, range.begin + page_bytes, r.create(rig::near));
    const device_view<const char> remote{pointer<char>(range.begin), page_bytes};
    const device_view<char> local{pointer<char>(range.begin + page_bytes), page_bytes};
    const soft::stream stream = r.stream();
    const stopwatch watch;
    auto point = stream.run([=] {
        remote.for_each_span(0, page_bytes, [](std::span<const char>, std::size_t) {});
        local.for_each_span(0, page_bytes, [](std::span<char>, std::size_t) {});
    });
    REQUIRE(point);
    CHECK(r.driver.wait(*point));
    CHECK(watch.seconds() >= static_cast<double>(page_bytes) / 2e8);
    CHECK(r.driver.statistics(rig::near).link_in_bytes == page_bytes);
    CHECK(r.driver.statistics(rig::near).link_out_bytes == 0);
    const device_view<char> writable{pointer<char>(range.begin), page_bytes};
    auto second = stream.run([=] { writable.store(0, 1); });
    REQUIRE(second);
    CHECK(r.driver.wait(*second));
    CHECK(r.driver.statistics(rig::near).link_out_bytes == 1);
}

TEST_CASE("a kernel reaches its peer's frames") {
    rig r;
    const va_range range = r.reserve(page_bytes);
    const frame one = r.create(rig::far);
    r.enter(rig::near, range.begin, one);
    const device_view<int> view{pointer<int>(range.begin), 1};
    auto point = r.stream().run([=] { view[0] = 7; });
    REQUIRE(point);
    CHECK(r.driver.wait(*point));
    CHECK(at<int>(one.standing) == 7);
    CHECK(r.driver.statistics(rig::far).link_in_bytes == sizeof(int));
    CHECK(r.driver.statistics(rig::near).link_out_bytes == sizeof(int));
}

TEST_CASE("who waits for seconds until a kernel lets go of its spans says why") {
    if (!is_fresh_process()) {
        const ending how = in_fresh_process();
        CHECK_FALSE(how.is_crash());
        CHECK(how.says("through a plain pointer?"));
        CHECK(how.text.find("plain pointer") == how.text.rfind("plain pointer"));  // once
        return;
    }
    rig r;
    const va_range range = r.reserve(2 * page_bytes);
    const va_range first{range.begin, page_bytes};
    const va_range second{first.end(), page_bytes};
    r.enter(rig::near, first.begin, r.create(rig::near));
    r.enter(rig::near, second.begin, r.create(rig::near));
    const device_view<int> view{pointer<int>(range.begin), 8};
    std::atomic<bool> is_inside{false};
    auto point = r.stream().run([&, view] {
        view.for_each_span(0, 8, [&](std::span<int>, std::size_t) {
            is_inside = true;
            nap(2500);
        });
    });
    REQUIRE(point);
    while (!is_inside) {
        nap(1);
    }
    std::thread other{[&] { r.clear(rig::near, second); }};
    r.clear(rig::near, first);
    other.join();
    CHECK(r.driver.wait(*point));
}

TEST_CASE(
    "a view that is touched while another's spans are in place ends the program, and says why") {
    if constexpr (XMM_CHECKS == 0) {
        return;
    }
    const auto how = xmm::test::in_child([] {
        ::alarm(60);
        rig r;
        const va_range range = r.reserve(2 * page_bytes);
        r.enter(rig::near, range.begin, r.create(rig::near));
        r.enter(rig::near, range.begin + page_bytes, r.create(rig::near));
        const device_view<int> one{pointer<int>(range.begin), 8};
        const device_view<int> other{pointer<int>(range.begin + page_bytes), 8};
        auto point = r.stream().run([=] {
            one.for_each_span(0, 8, [&](std::span<int> some, std::size_t) { some[0] = other[0]; });
        });
        static_cast<void>(r.driver.wait(*point));
    });
    CHECK(how.is_crash());
    CHECK(how.says("touches another view while spans are in place"));
}

TEST_CASE("a kernel's access over the link allocates nothing") {
    rig r;
    const va_range range = r.reserve(page_bytes);
    r.enter(rig::near, range.begin, r.create(rig::host));
    const device_view<std::uint64_t> view{pointer<std::uint64_t>(range.begin), page_bytes / 8};
    unsigned more = 1;
    auto point = r.stream().run([&more, view] {
        const unsigned before = allocations;
        view.store(0, view.load(1) + 1);
        more = allocations - before;
    });
    REQUIRE(point);
    REQUIRE(r.driver.wait(*point));
    CHECK(more == 0);
}
