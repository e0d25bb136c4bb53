// SPDX-License-Identifier: Apache-2.0
#include <xmm/facade/space.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "../core/child.hpp"
#include "rig.hpp"
#include "tests/support/sanitizer.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

// Ids of devices of this process come after those of its real hosts, so a made-up second host would share
// its number with the first device: give the low numbers away before any test can.
// Not in a fresh process, whose case may want to be there before the machine is looked at.
[[maybe_unused]] const bool low_numbers_are_taken = [] {
    for (int i = 0; i < 4 && !is_fresh_process(); ++i) {
        static_cast<void>(register_device_node("padding"));
    }
    return true;
}();

// All that must not change when a call is refused.
struct footprint {
    std::size_t granules;
    std::size_t host_used, device_used;
    std::uint64_t host_in, device_in;
    explicit footprint(rig& r)
        : granules{r.of().state().core.granule_count()},
          host_used{r.usage(r.host()).used},
          device_used{r.usage(r.device()).used},
          host_in{r.counters(r.host()).bytes_in},
          device_in{r.counters(r.device()).bytes_in} {}
    bool operator==(const footprint&) const = default;
};

}  // namespace

TEST_CASE("space: software devices whose granule is no power of two") {
    soft::device_options one = device_of(64_MiB);
    one.granule_bytes = 3_MiB;
    rig r{{one}};
    auto* data = r.map(14_MiB, {});
    CHECK(r.of().describe(r.device())->granule_bytes == 2_MiB);
    fill<std::uint64_t>(data, 14_MiB, 1);
    CHECK(r.count_wrong_on_device<std::uint64_t>(data, 14_MiB, 1) == 0);
}

TEST_CASE("space: map rounds up, aligns, and names") {
    rig r;
    for (std::size_t bytes : {std::size_t{1}, std::size_t{2}, 2_MiB, 2_MiB + 1, 33_MiB}) {
        auto where = r.of().map(bytes);
        REQUIRE(where);
        CHECK(to_address(*where) % page_bytes == 0);
        CHECK(r.of().contains(*where));
        CHECK(r.of().contains(static_cast<char*>(*where) + align_up(bytes, page_bytes) - 1));
        auto* last = static_cast<char*>(*where) + bytes - 1;
        *last = 1;
        CHECK(*last == 1);
        REQUIRE(r.of().unmap(*where));
        CHECK(!r.of().contains(*where));
    }
    auto aligned = r.of().map(2_MiB, {.alignment = 64_MiB});
    REQUIRE(aligned);
    CHECK(to_address(*aligned) % 64_MiB == 0);
    CHECK(r.of().map(2_MiB, {.alignment = 1}));
}

TEST_CASE("space: bad maps are refused and change nothing") {
    rig r;
    const footprint before{r};
    const auto code = [&](std::size_t bytes, map_options wanted = {}) {
        return r.of().map(bytes, wanted).code();
    };
    CHECK(code(0) == errc::invalid_argument);
    CHECK(code(SIZE_MAX) == errc::no_memory);
    CHECK(code(SIZE_MAX - page_bytes) == errc::no_memory);
    CHECK(code(SIZE_MAX / 2) == errc::no_memory);
    CHECK(code(std::size_t{1} << 50) == errc::no_memory);
    CHECK(code(2_MiB, {.granule_bytes = 3_MiB}) == errc::invalid_argument);
    CHECK(code(2_MiB, {.granule_bytes = 1_MiB}) == errc::invalid_argument);
    CHECK(code(2_MiB, {.granule_bytes = 1_GiB}) == errc::invalid_argument);
    CHECK(code(2_MiB, {.granule_bytes = SIZE_MAX}) == errc::invalid_argument);
    CHECK(code(2_MiB, {.alignment = 0}) == errc::invalid_argument);
    CHECK(code(2_MiB, {.alignment = 6_MiB}) == errc::invalid_argument);
    CHECK(code(2_MiB, {.alignment = std::size_t{1} << 63}) == errc::no_memory);
    CHECK(code(2_MiB, {.preferred = node_id{9999}}) == errc::unknown_node);
    CHECK(code(2_MiB, {.fixed = node_id{-7}}) == errc::unknown_node);
    CHECK(code(2_MiB, {.name = nullptr}) == errc::invalid_argument);
    CHECK(code(64_MiB, {.fixed = r.device()}) == errc::no_memory);  // more than the device has
    CHECK(r.usage(r.device()).used == r.usage(r.device()).free_frames);
    REQUIRE(r.of().set_budget(r.device(), 0));  // drops what the last attempt left in the pool
    REQUIRE(r.of().set_budget(r.device(), SIZE_MAX));
    CHECK(footprint{r} == before);
    CHECK(r.of().map(2_MiB));
}

TEST_CASE("space: bad unmaps are refused") {
    rig r;
    auto* data = r.map<char>(6_MiB);
    data[0] = 1;
    const footprint before{r};
    int local = 0;
    CHECK(r.of().unmap(nullptr).code == errc::not_mapped);
    CHECK(r.of().unmap(&local).code == errc::not_mapped);
    CHECK(r.of().unmap(data + 1).code == errc::not_mapped);
    CHECK(r.of().unmap(data + 2_MiB).code == errc::not_mapped);
    CHECK(r.of().unmap(data + 6_MiB).code == errc::not_mapped);
    CHECK(r.of().unmap(reinterpret_cast<void*>(~address{0})).code == errc::not_mapped);
    CHECK(footprint{r} == before);
    CHECK(data[0] == 1);
    REQUIRE(r.of().unmap(data));
    CHECK(r.of().unmap(data).code == errc::not_mapped);
}

TEST_CASE("space: bad ranges and nodes of hints are refused and change nothing") {
    rig r;
    auto* data = r.map<char>(6_MiB);
    std::memset(data, 1, 6_MiB);
    const footprint before{r};
    char local = 0;
    for (unsigned i = 0; i <= static_cast<unsigned>(advice::unpin); ++i) {
        const auto what = static_cast<advice>(i);
        CAPTURE(name_of(what));
        const auto code = [&](node_id node, void* at, std::size_t bytes) {
            const errc plain = r.of().advise(node, at, bytes, what).code;
            CHECK(r.of().advise_async(node, at, bytes, what).code() == plain);
            return plain;
        };
        for (void* any :
             {static_cast<void*>(data), static_cast<void*>(&local), static_cast<void*>(nullptr)}) {
            CHECK(code(r.device(), any, 0) == errc::ok);  // nothing to do
        }
        CHECK(code(node_id{12345}, data, 0) == errc::unknown_node);
        CHECK(code(r.device(), data + 1, SIZE_MAX) == errc::invalid_argument);
        CHECK(code(r.device(), data, SIZE_MAX - to_address(data) + 1) == errc::invalid_argument);
        CHECK(code(r.device(), data, 6_MiB + 1) == errc::not_mapped);
        CHECK(code(r.device(), data - 1, 2) == errc::not_mapped);
        CHECK(code(r.device(), &local, 1) == errc::not_mapped);
        CHECK(code(r.device(), nullptr, 1) == errc::not_mapped);
        CHECK(code(node_id{12345}, data, 1) == errc::unknown_node);
        CHECK(code(no_node, data, 1) == errc::unknown_node);
        CHECK(code(node_id{-3}, data, 1) == errc::unknown_node);
    }
    for (const std::size_t bytes : {0, 1}) {
        CHECK(r.of().advise(r.device(), data, bytes, static_cast<advice>(77)).code ==
              errc::invalid_argument);
    }
    CHECK(r.of().make_resident(data, 0, r.host()).code == errc::invalid_argument);
    CHECK(r.of().make_resident(data, 7_MiB, r.host()).code == errc::not_mapped);
    CHECK(r.of().make_resident(data, 1, node_id{77777}).code == errc::unknown_node);
    CHECK(r.of().access_on_host(data, 0).code() == errc::invalid_argument);
    CHECK(r.of().access_on_host(data + 5_MiB, 2_MiB).code() == errc::not_mapped);
    CHECK(r.of().residency_of(&local).code() == errc::not_mapped);
    CHECK(footprint{r} == before);
    CHECK(r.state(data) == residency::on_host);
    CHECK(r.pins(data) == 0);
    CHECK(!r.inspect(data, [](granule& page) { return page.is_read_mostly; }));
}

TEST_CASE("space: small sizes and odd ends of hints") {
    rig r;
    auto* data = r.map<char>(6_MiB);
    std::memset(data, 3, 6_MiB);
    for (std::size_t bytes : {1u, 2u, 4095u}) {
        REQUIRE(r.of().advise(r.device(), data + 2_MiB - 1, bytes, advice::will_need));
        CHECK(r.state(data) == residency::on_device);
        CHECK(r.state(data + 2_MiB) == (bytes == 1 ? residency::on_host : residency::on_device));
    }
    REQUIRE(r.of().advise(r.device(), data + 1, 4_MiB, advice::dont_need));
    CHECK(data[0] == 3);
    CHECK(r.state(data + 2_MiB) == residency::untouched);
    CHECK(data[4_MiB] == 3);
}

TEST_CASE("space: bad copies are refused and change nothing") {
    rig r;
    auto* data = r.map<char>(6_MiB);
    std::memset(data, 1, 6_MiB);
    std::vector<char> plain(4_MiB, 2);
    const footprint before{r};
    const auto code = [&](void* to, const void* from, std::size_t bytes) {
        const errc now = r.of().copy(to, from, bytes).code;
        CHECK(r.of().copy(r.line(), to, from, bytes).code() == now);
        return now;
    };
    CHECK(code(nullptr, nullptr, 0) == errc::ok);
    CHECK(code(data, reinterpret_cast<void*>(1), 0) == errc::ok);
    CHECK(code(data, data, 1) == errc::invalid_argument);
    CHECK(code(data, data + 1, 2) == errc::invalid_argument);
    CHECK(code(data + 2_MiB, data, 2_MiB + 1) == errc::invalid_argument);
    CHECK(code(plain.data() + 1, plain.data(), 2) == errc::invalid_argument);
    CHECK(code(data, nullptr, 1) == errc::invalid_argument);
    CHECK(code(nullptr, data, 1) == errc::invalid_argument);
    CHECK(code(data, plain.data(), SIZE_MAX) == errc::invalid_argument);
    CHECK(code(data, plain.data(), SIZE_MAX - to_address(data)) != errc::ok);
    // At once, though it takes hours to look at so many pages.
    CHECK(code(plain.data(), data, SIZE_MAX / 4) == errc::not_mapped);
    char* top = reinterpret_cast<char*>(&data);
    CHECK(code(top, top + 1, SIZE_MAX / 4) == errc::not_mapped);
    CHECK(code(top, data, SIZE_MAX - to_address(top) - 2) == errc::not_mapped);
    CHECK(code(top, top - 8, SIZE_MAX - to_address(top) - 2) == errc::not_mapped);
    CHECK(code(data + 4_MiB, plain.data(), 2_MiB + 1) == errc::not_mapped);
    CHECK(code(plain.data(), data + 4_MiB, 2_MiB + 1) == errc::not_mapped);
    // Plain memory that is not there, wholly or in part.
    auto* hole = static_cast<char*>(
        ::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(::munmap(hole + 4096, 4096) == 0);
    CHECK(code(data, hole + 4096, 1) == errc::not_mapped);
    CHECK(code(hole, data, 4097) == errc::not_mapped);
    CHECK(code(data, hole, 4096) == errc::ok);
    REQUIRE(r.line().synchronize());
    ::munmap(hole, 4096);
    CHECK(r.of().copy_failures() == 0);
    CHECK(footprint{r}.granules == before.granules);
    CHECK(data[4096] == 1);
    CHECK(plain[0] == 2);
}

TEST_CASE("space: a copy in queue order comes after the kernel before it") {
    rig r;
    auto* data = r.map(4_MiB);
    std::vector<std::uint64_t> plain(4_MiB / 8, 1);
    auto kernel = r.start_kernel<std::uint64_t>(data, 41);
    auto point = r.of().copy(r.line(), plain.data(), data, 4_MiB);
    REQUIRE(point);
    nap(20);
    CHECK(!r.line().is_done(*point));
    CHECK(plain[0] == 1);
    REQUIRE(r.finish(kernel));
    REQUIRE(r.line().wait(*point));
    CHECK(plain[0] == 42);
    CHECK(plain.back() == 0);
    // And before the one after it.
    plain[0] = 7;
    REQUIRE(r.of().copy(r.line(), data, plain.data(), 8));
    CHECK(r.read_on_device(data) == 7);
}

TEST_CASE("space: an unmap waits for a copy in queue order") {
    rig r;
    auto* data = r.map(2_MiB);
    auto* other = r.map(2_MiB);
    data[0] = 1;
    auto kernel = r.start_kernel<std::uint64_t>(other, 1);
    auto point = r.of().copy(r.line(), other, data, 2_MiB);
    REQUIRE(point);
    std::atomic<bool> is_gone{false};
    std::thread remover{[&] {
        CHECK(r.of().unmap(data));
        is_gone = true;
    }};
    nap(20);
    CHECK(!is_gone);
    REQUIRE(r.finish(kernel));
    remover.join();
    REQUIRE(r.line().wait(*point));
    CHECK(other[0] == 1);
    CHECK(r.of().copy_failures() == 0);
}

TEST_CASE("space: a copy in queue order whose plain memory is gone by then is counted") {
    rig r;
    auto* other = r.map(2_MiB);
    void* plain = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(plain != MAP_FAILED);
    auto kernel = r.start_kernel<std::uint64_t>(other, 1);
    auto point = r.of().copy(r.line(), plain, other, 4096);
    REQUIRE(point);
    ::munmap(plain, 4096);
    REQUIRE(r.finish(kernel));
    static_cast<void>(r.line().wait(*point));
    CHECK(r.of().copy_failures() == 1);
    CHECK(r.of().is_valid());
}

TEST_CASE(
    "space: a copy whose unified side is unmapped meanwhile is refused, whenever that happens") {
    rig r;
    std::atomic<char*> shared{nullptr};
    std::atomic<bool> is_over{false};
    std::atomic<bool> is_wrong{false};
    std::thread copying{[&] {
        std::vector<char> plain(4_MiB);
        while (!is_over) {
            if (char* at = shared) {
                // Only read: what is at these addresses later may be anybody's.
                const status read = r.of().copy(plain.data(), at, plain.size());
                is_wrong = is_wrong || (!read && read.code != errc::not_mapped);
            }
        }
    }};
    for (int i = 0; i < (has_sanitizer ? 200 : 1500); ++i) {
        auto made = r.of().map(4_MiB);
        REQUIRE(made);
        shared = static_cast<char*>(*made);
        nap(i % 3 == 0 ? 1 : 0);
        shared = nullptr;
        REQUIRE(r.of().unmap(*made));
    }
    is_over = true;
    copying.join();
    CHECK_FALSE(is_wrong);
    CHECK(r.of().is_valid());
}

TEST_CASE("space: a device with faults waits for pages that one without is using") {
    rig r{{device_of(32_MiB), device_of(32_MiB, false)}};
    auto* data = r.map(2_MiB);
    data[7] = 41;
    auto end = std::make_shared<signal_flag>();
    const device_view<std::uint64_t> view{data, 8};
    auto held = launch(r.line(1), {reads(data, 64)}, [&](soft::stream& s) {
        return s.run([view, end] {
            end->await();
            CHECK(view.load(7) == 41);
        });
    });
    REQUIRE(held);
    CHECK(r.of().residency_of(data).value() == r.device(1));
    auto writer = launch(r.line(0), {writes(data, 64)},
                         [&](soft::stream& s) { return s.run([view] { view.store(7, 42); }); });
    REQUIRE(writer);
    nap(20);
    CHECK(!r.line(0).is_done(*writer));
    end->set();
    REQUIRE(r.line(1).wait(*held));
    REQUIRE(r.line(0).wait(*writer));
    CHECK(data[7] == 42);
}

TEST_CASE("space: system calls on memory that was made resident") {
    rig r;
    auto* data = r.map<char>(8_MiB);
    r.fill_on_device<char>(data, 8_MiB, 'a');
    int file = ::memfd_create("io", 0);
    REQUIRE(file >= 0);
    REQUIRE(r.of().make_resident(data, 8_MiB, r.host()));
    CHECK(r.home(data) == r.host());
    CHECK(r.mapped(data, r.host()) == access::read_write);
    REQUIRE(::write(file, data, 8_MiB) == static_cast<ssize_t>(8_MiB));
    r.fill_on_device<char>(data, 8_MiB, 'x');
    {
        auto held = r.of().access_on_host(data, 8_MiB);
        REQUIRE(held);
        REQUIRE(::pread(file, data, 8_MiB, 0) == static_cast<ssize_t>(8_MiB));
        // A kernel and a hint meanwhile: it stays, the kernel works over the link.
        r.write_on_device<char>(data + 1, 'K');
        REQUIRE(r.of().advise(r.device(), data, 8_MiB, advice::will_need));
        CHECK(r.home(data) == r.host());
        CHECK(data[1] == 'K');
        auto moved = std::move(*held);
        CHECK(r.inspect(data, [](granule& page) { return page.holds.load(); }) == 1);
    }
    CHECK(r.inspect(data, [](granule& page) { return page.holds.load(); }) == 0);
    data[1] = static_cast<char>('a' + 1);
    CHECK(count_wrong<char>(data, 8_MiB, 'a') == 0);
    REQUIRE(r.of().advise(r.device(), data, 8_MiB, advice::will_need));
    CHECK(r.home(data) == r.device());
    ::close(file);
}

TEST_CASE("space: make_resident is exact where will_need may give up") {
    rig r{{device_of(8_MiB)}};
    auto* data = r.map(16_MiB);
    CHECK(r.of().make_resident(data, 8_MiB, r.device()));
    CHECK(r.home(page_of(data, 3)) == r.device());
    CHECK(r.of().make_resident(page_of(data, 4), 8_MiB, r.device()));
    CHECK(r.home(page_of(data, 7)) == r.device());
    CHECK(r.home(data) == r.host());
    REQUIRE(r.of().advise(r.device(), page_of(data, 4), 8_MiB, advice::pin));
    CHECK(r.of().make_resident(data, 2_MiB, r.device()).code == errc::no_memory);
    CHECK(r.home(data) == r.host());
    CHECK(!r.inspect(data, [](granule& page) { return page.is_moving(); }));
    REQUIRE(r.of().advise(r.device(), page_of(data, 4), 8_MiB, advice::unpin));
}

TEST_CASE("space: make_resident brings all of the range, or says that it did not") {
    const auto count = [](rig& r, const char* data, std::size_t bytes, node_id on) {
        std::size_t there = 0;
        for (std::size_t at = 0; at < bytes; at += page_bytes) {
            there += r.home(data + at) == on ? 1 : 0;
        }
        return there;
    };
    for (const bool is_read_mostly : {false, true}) {
        CAPTURE(is_read_mostly);
        rig r{{device_of(128_MiB)}};
        auto* data =
            r.map<char>(64_MiB, {.granule_bytes = page_bytes, .is_read_mostly = is_read_mostly});
        fill<char>(data, 64_MiB, 'a');
        REQUIRE(r.of().set_budget(r.device(), 32_MiB));
        // More than the node may hold: no page moves.
        CHECK(r.of().make_resident(data, 64_MiB, r.device()).code == errc::no_memory);
        CHECK(count(r, data, 64_MiB, r.device()) == 0);
        CHECK(r.of().last_shortage().bytes == 64_MiB);
        CHECK(r.of().make_resident(data, 32_MiB + 1, r.device()).code == errc::no_memory);
        CHECK(r.of().make_resident(data, 32_MiB, r.device()));
        CHECK(count(r, data, 64_MiB, r.device()) == 16);
        CHECK(count(r, data, 32_MiB, r.device()) == 16);
        // What is there is older than what comes: the range pushes out the rest, and none of its own.
        for (const std::size_t first : {32_MiB, 22_MiB, 2_MiB, 26_MiB, 32_MiB}) {
            for (const std::size_t bytes : {14_MiB, 30_MiB, 32_MiB}) {
                CAPTURE(first);
                CAPTURE(bytes);
                CHECK(r.of().make_resident(data + first, bytes, r.device()));
                CHECK(count(r, data + first, bytes, r.device()) == bytes / page_bytes);
            }
        }
        // Beside what is pinned.
        REQUIRE(r.of().advise(r.device(), data, 8_MiB, advice::pin));
        CHECK(r.of().make_resident(data + 8_MiB, 26_MiB, r.device()).code == errc::no_memory);
        CHECK(r.home(data) == r.device());
        CHECK(r.of().make_resident(data + 8_MiB, 24_MiB, r.device()));
        CHECK(count(r, data, 32_MiB, r.device()) == 16);
        CHECK(r.of().make_resident(data, 32_MiB, r.device()));
        REQUIRE(r.of().advise(r.device(), data, 8_MiB, advice::unpin));
        // What is there already stays so, whatever the budget is by now.
        REQUIRE(r.of().advise(r.device(), data, 8_MiB, advice::pin));
        CHECK(r.of().set_budget(r.device(), 4_MiB).code == errc::busy);
        CHECK(r.of().make_resident(data, 8_MiB, r.device()));
        REQUIRE(r.of().advise(r.device(), data, 8_MiB, advice::unpin));
        // The other way: pages that have come stay, and the contents are kept.
        REQUIRE(r.of().set_budget(r.device(), SIZE_MAX));
        REQUIRE(r.of().make_resident(data, 64_MiB, r.device()));
        REQUIRE(r.of().advise(r.device(), data + 8_MiB, 1, advice::pin));
        CHECK(r.of().make_resident(data, 64_MiB, r.host()).code == errc::busy);
        CHECK(count(r, data, 8_MiB, r.host()) == 4);
        CHECK(count(r, data, 64_MiB, r.device()) == 28);
        REQUIRE(r.of().advise(r.device(), data + 8_MiB, 1, advice::unpin));
        CHECK(count_wrong<char>(data, 64_MiB, 'a') == 0);
    }
}

TEST_CASE("space: make_resident beside others that want the node is exact, or says so") {
    rig r{{device_of(32_MiB)}};
    auto* mine = r.map<char>(20_MiB);
    auto* theirs = r.map<char>(20_MiB);
    fill<char>(mine, 20_MiB, 'a');
    fill<char>(theirs, 20_MiB, 'b');
    std::atomic<bool> is_over{false};
    std::atomic<int> wrong{0};
    std::thread other{[&] {
        while (!is_over.load(std::memory_order_relaxed)) {
            const errc code = r.of().make_resident(theirs, 20_MiB, r.device()).code;
            wrong += code == errc::ok || code == errc::no_memory || code == errc::busy ? 0 : 1;
        }
    }};
    for (int round = 0; round < 20; ++round) {
        const errc code = r.of().make_resident(mine, 20_MiB, r.device()).code;
        wrong += code == errc::ok || code == errc::no_memory || code == errc::busy ? 0 : 1;
        mine[static_cast<std::size_t>(round) * 1_MiB] += 0;  // and the CPU
    }
    is_over.store(true, std::memory_order_relaxed);
    other.join();
    CHECK(wrong == 0);
    CHECK(r.of().make_resident(mine, 20_MiB, r.device()));
    for (std::size_t at = 0; at < 20_MiB; at += page_bytes) {
        CHECK(r.home(mine + at) == r.device());
    }
    CHECK(count_wrong<char>(mine, 20_MiB, 'a') == 0);
    CHECK(count_wrong<char>(theirs, 20_MiB, 'b') == 0);
}

TEST_CASE("space: a device that is lost gives queues whose work is lost") {
    rig r{{device_of(16_MiB, false)}};
    auto* data = r.map(4_MiB);
    CHECK(r.run(data, 8, access::read, [other = page_of(data, 1)](device_view<std::uint64_t>) {
               static_cast<void>(device_view<std::uint64_t>{other, 1}.load(0));
           }).code == errc::device_lost);
    auto made = r.of().make_queue(r.device());
    REQUIRE(made);
    bool ran = false;
    auto point = launch(*made, {reads(data, 8)}, [&](soft::stream&) { ran = true; });
    CHECK(point.code() == errc::device_lost);
    CHECK(!ran);
    // What was on the device is lost with it; the rest of the space goes on.
    auto* other = r.map(4_MiB);
    other[0] = 3;
    CHECK(r.of().copy(page_of(other, 1), other, 8));
    CHECK(page_of(other, 1)[0] == 3);
}

TEST_CASE("space: granules as seen from outside") {
    rig r;
    auto* data = r.map(10_MiB, {.granule_bytes = 4_MiB, .name = "looked at"});
    data[0] = 1;
    r.write_on_device<std::uint64_t>(page_of(data, 2), 1);
    REQUIRE(r.of().advise(r.host(), data, 1, advice::pin));
    std::vector<granule_view> seen;
    r.of().for_each_granule([&](const granule_view& one) { seen.push_back(one); });
    REQUIRE(seen.size() == 3);
    CHECK(seen[0].va == va_range{to_address(data), 4_MiB});
    CHECK(seen[0].state == residency::on_host);
    CHECK(seen[0].home == r.host());
    CHECK(seen[0].is_pinned);
    CHECK(seen[0].copies == 1);
    CHECK(seen[1].home == r.device());
    CHECK(!seen[1].is_pinned);
    CHECK(seen[2].va.bytes == 2_MiB);
    CHECK(seen[2].state == residency::untouched);
    CHECK(seen[2].home == no_node);
    CHECK(seen[2].copies == 0);
    CHECK(std::string{seen[2].region.data()} == "looked at");
    REQUIRE(r.of().advise(r.host(), data, 1, advice::unpin));
}

TEST_CASE("space: who looks at granules may map and unmap meanwhile") {
    rig r;
    void* first = r.map(4_MiB, {.granule_bytes = 2_MiB});
    unsigned seen = 0;
    void* added = nullptr;
    r.of().for_each_granule([&](const granule_view& one) {
        if (seen++ == 0) {
            CHECK(one.va.begin == to_address(first));
            added = r.of().map(2_MiB).value();
            CHECK(r.of().unmap(first).is_ok());
        }
    });
    CHECK(seen >= 1);
    CHECK(r.of().contains(added));
    CHECK(!r.of().contains(first));
}

TEST_CASE("space: of several attaches of one driver at once, one is made") {
    std::unique_ptr<soft::driver> late;  // outlives the space
    rig r;
    const node_id id = register_device_node("late");
    const node_id host = r.host();
    const soft::device_options card = device_of(16_MiB);
    soft::driver_options options;
    late = std::make_unique<soft::driver>(std::span{&card, 1}, std::span{&id, 1},
                                          std::span{&host, 1}, options);
    std::atomic<int> made{0};
    std::atomic<int> refused{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            const status outcome = r.of().attach(*late);
            (outcome ? made : refused) += outcome || outcome.code == errc::busy ? 1 : 0;
        });
    }
    for (auto& one : threads) {
        one.join();
    }
    CHECK(made == 1);
    CHECK(refused == 3);
}

TEST_CASE("space: nodes, usage and policies") {
    rig r{{device_of(32_MiB), device_of(16_MiB)}};
    CHECK(r.of().devices().size() == 2);
    CHECK(r.of().nodes().size() == r.of().hosts().size() + 2);
    auto about = r.of().describe(r.device(1));
    REQUIRE(about);
    CHECK(about->bytes == 16_MiB);
    CHECK(r.of().describe(node_id{4242}).code() == errc::unknown_node);
    CHECK(r.of().usage(node_id{4242}).code() == errc::unknown_node);
    CHECK(r.of().set_budget(node_id{4242}, 1).code == errc::unknown_node);
    CHECK(r.of().make_queue(node_id{4242}).code() == errc::unknown_node);
    CHECK(r.of().make_queue(r.host()).code() == errc::invalid_argument);
    CHECK(r.of().set_policy("no such policy").code == errc::invalid_argument);
    CHECK(r.of().set_policy(static_cast<const char*>(nullptr)).code == errc::invalid_argument);
    CHECK(std::string{r.of().policy_name()} == "first_touch");
    CHECK(r.of().set_policy("mapped"));
    CHECK(r.of().set_policy(policy_ref{}).code == errc::invalid_argument);
    CHECK(std::string{r.of().policy_name()} == "mapped");
    CHECK(space::create_soft({device_of(16_MiB)}, {.policy = "none"}).code() ==
          errc::invalid_argument);
    CHECK(space::create_soft({device_of(16_MiB)}, {.policy = nullptr}).code() ==
          errc::invalid_argument);
}

TEST_CASE("space: without any device the host works on its own") {
    auto made = space::create_soft({});
    REQUIRE(made);
    CHECK(made->devices().empty());
    auto* a = static_cast<std::uint64_t*>(*made->map(4_MiB));
    auto* b = static_cast<std::uint64_t*>(*made->map(4_MiB));
    fill<std::uint64_t>(a, 4_MiB, 1);
    REQUIRE(made->copy(b, a, 4_MiB));
    CHECK(count_wrong<std::uint64_t>(b, 4_MiB, 1) == 0);
    REQUIRE(made->advise(any_host, a, 4_MiB, advice::will_need));
    REQUIRE(made->unmap(a));
    CHECK(made->is_valid());
}

TEST_CASE("space: a host is as large as the topology says, cgroup limits included") {
    rig r;
    CHECK(r.of().describe(r.host())->bytes ==
          align_down(machine_topology().hosts().front().bytes, page_bytes));
    auto machine = topology::discover("numa:2(memory=1GB) core:1 pu:1");
    REQUIRE(machine);
    rig two{{device_of(16_MiB)}, {.machine = &*machine}};
    for (const host_node& host : machine->hosts()) {
        CHECK(two.of().describe(host.id)->bytes == align_down(host.bytes, page_bytes));
    }
}

TEST_CASE("space: several hosts, each with its budget") {
    auto machine = topology::discover("numa:2 core:1 pu:1");
    REQUIRE(machine);
    REQUIRE(machine->hosts().size() == 2);
    rig r{{device_of(16_MiB)}, {.machine = &*machine}};
    REQUIRE(r.of().hosts().size() == 2);
    const node_id far = r.of().hosts()[1];
    auto* data = r.map(4_MiB, {.granule_bytes = 2_MiB, .preferred = far});
    data[0] = 5;
    CHECK(r.home(data) == far);
    CHECK(r.mapped(data, r.host()) == access::read_write);
    REQUIRE(r.of().make_resident(data, 1, r.host()));
    CHECK(r.home(data) == r.host());
    CHECK(data[0] == 5);
    REQUIRE(r.of().make_resident(data, 1, far));
    CHECK(r.home(data) == far);
    CHECK(data[0] == 5);
    CHECK(r.read_on_device(data + 0) == 5);

    // The first host is full: pages come to be on the second.
    auto* more = r.map(8_MiB);
    const std::size_t held = r.usage(r.host()).used - r.usage(r.host()).free_frames;
    static_cast<void>(r.of().set_budget(r.host(), held));
    fill<std::uint64_t>(more, 8_MiB, 1);
    CHECK(r.home(more) == far);
    CHECK(r.usage(r.host()).used == held);
    CHECK(r.of().make_resident(more, 1, r.host()).code ==
          errc::no_memory);  // that host and no other
    CHECK(r.of().make_resident(more, 8_MiB, any_host));
    CHECK(r.home(more) == far);
    CHECK(r.count_wrong_on_device<std::uint64_t>(more, 8_MiB, 1) == 0);
    REQUIRE(r.of().set_budget(r.device(), 0));  // demoted to where there is room
    CHECK(r.home(more) == far);
    CHECK(count_wrong<std::uint64_t>(more, 8_MiB, 1) == 0);

    // So do those that are wanted early on any host, and fixed ones.
    REQUIRE(r.of().set_budget(r.device(), no_budget));
    REQUIRE(r.of().advise(r.device(), more, 8_MiB, advice::will_need));
    REQUIRE(r.home(more) == r.device());
    REQUIRE(r.of().advise(any_host, more, 8_MiB, advice::will_need));
    CHECK(r.home(more) == far);
    CHECK(r.home(page_of(more, 3)) == far);
    CHECK(r.of().map(held + 2_MiB, {.fixed = r.host()}).code() == errc::no_memory);
    CHECK(r.of().map(held + 2_MiB, {.granule_bytes = page_bytes, .fixed = any_host}));
}

TEST_CASE("space: a forked child is refused everywhere, its parent goes on") {
    rig r;
    auto* data = r.map(4_MiB);
    data[0] = 77;
    r.write_on_device<std::uint64_t>(page_of(data, 1), 78);
    const node_id host = r.host(), device = r.device();
    char plain[8] = {};
    CHECK(r.of().set_budget(device, 0));
    CHECK(!r.of().make_resident(data, 2_MiB, device));  // so that there is a shortage to tell of
    CHECK(r.of().last_shortage().node == device);
    CHECK(r.of().set_budget(device, no_budget));
    const ending calls = in_child([&] {
        space& s = r.of();
        const errc codes[] = {
            s.map(2_MiB).code(),
            s.unmap(data).code,
            s.advise(device, data, 8, advice::will_need).code,
            s.advise(device, data, 8, advice::pin).code,
            s.advise_async(device, data, 8, advice::will_need).code(),
            s.copy(plain, data, 8).code,
            s.copy(r.line(), plain, data, 8).code(),
            s.make_resident(data, 8, host).code,
            s.access_on_host(data, 8).code(),
            s.residency_of(data).code(),
            s.set_budget(device, 0).code,
            s.usage(device).code(),
            s.describe(device).code(),
            s.make_queue(device).code(),
            s.set_policy("mapped").code,
            launch(r.line(), {reads(data, 8)}, [](soft::stream&) {}).code(),
            r.line().record().code(),
            r.line().synchronize().code,
            space::create_soft({device_of(16_MiB)}).code(),
        };
        int index = 0;
        for (errc one : codes) {
            if (one != errc::forked) {
                std::printf("call %d answers: %s\n", index, name_of(one));
            }
            ++index;
        }
        // These have nothing to say it with.
        int granules = 0;
        s.for_each_granule([&](const granule_view&) { ++granules; });
        const bool is_silent = granules == 0 && !s.is_valid() && s.statistics().count == 0 &&
                               s.last_shortage().node == no_node && s.policy_name()[0] == '\0';
        const queue_port queues = port_of(s).queues();
        if (!is_silent || queues.record(r.line().id()).code() != errc::forked ||
            !queues.is_done({r.line().id(), ~std::uint64_t{0}}) ||
            queues.wait({r.line().id(), 1}).code != errc::forked) {
            std::puts("a forked child looks into its parent's space");
        }
        std::puts("all asked");
    });
    CHECK(calls.says("all asked"));
    CHECK(!calls.is_crash());
    if (calls.text != "all asked\n") {
        FAIL_CHECK(calls.text);
    }
    for (std::size_t page : {0u, 1u}) {
        const ending touch = in_child([&] {
            std::printf(
                "read %d\n",
                static_cast<int>(*static_cast<volatile std::uint64_t*>(page_of(data, page))));
        });
        CHECK(touch.is_crash());
        CHECK(!touch.says("read 7"));
        CHECK(touch.says("child of fork"));
    }
    CHECK(data[0] == 77);
    CHECK(page_of(data, 1)[0] == 78);
}

TEST_CASE("space: copies between two spaces do not wait for each other") {
    rig a, b;
    constexpr std::size_t bytes = 4_MiB;
    auto* in_a = a.map(bytes);
    auto* in_b = b.map(bytes);
    const auto cross = [](rig& own, std::uint64_t* mine, const std::uint64_t* other) {
        for (int i = 0; i < 20; ++i) {
            // Frames come and go, so that first touches need the queues.
            CHECK(own.of().advise(any_host, mine, bytes, advice::dont_need));
            CHECK(own.of().copy(mine, other, bytes));
        }
    };
    std::thread one{[&] { cross(a, in_a, in_b); }};
    std::thread other{[&] { cross(b, in_b, in_a); }};
    one.join();
    other.join();
    a.fill_on_device<std::uint64_t>(in_a, bytes, 7);
    CHECK(b.of().copy(in_b, in_a, bytes));
    CHECK(b.count_wrong_on_device<std::uint64_t>(in_b, bytes, 7) == 0);
    b.fill_on_device<std::uint64_t>(in_b, bytes, 9);
    CHECK(b.of().copy(in_a, in_b, bytes));
    CHECK(a.count_wrong_on_device<std::uint64_t>(in_a, bytes, 9) == 0);
}

TEST_CASE("space: memory that another space has on a device for good is not copied") {
    rig a, b;
    auto* plain = a.map(2_MiB);
    auto* fixed = b.map(2_MiB, {.granule_bytes = page_bytes, .fixed = b.device()});
    auto* pinned = b.map(2_MiB);
    REQUIRE(b.of().advise(b.device(), pinned, 2_MiB, advice::pin));
    void* block = b.of().heap(b.device()).value()->allocate({.bytes = 2_MiB}).value();
    plain[0] = 1;
    const footprint before{a};
    for (void* one : {static_cast<void*>(fixed), static_cast<void*>(pinned), block}) {
        CHECK(a.of().copy(plain, one, 8).code == errc::unsupported);
        CHECK(a.of().copy(one, plain, 8).code == errc::unsupported);
    }
    CHECK(footprint{a} == before);
    CHECK(plain[0] == 1);
    REQUIRE(b.of().advise(b.device(), pinned, 2_MiB, advice::unpin));
    CHECK(a.of().copy(pinned, plain, 8));
    CHECK(pinned[0] == 1);
    CHECK(b.of().heap(b.device()).value()->deallocate(block));
}

TEST_CASE("space: a queue copies no memory of another space") {
    rig a, b;
    auto* own = a.map(2_MiB);
    auto* other = b.map(2_MiB);
    own[0] = 1;
    other[0] = 2;
    CHECK(a.of().copy(a.line(), own, other, 8).code() == errc::unsupported);
    CHECK(a.of().copy(a.line(), other, own, 8).code() == errc::unsupported);
    CHECK(own[0] == 1);
    CHECK(other[0] == 2);
    CHECK(a.of().copy(own, other, 8));  // the calling thread does
    CHECK(own[0] == 2);
}

TEST_CASE("space: who looks at granules may throw") {
    rig r;
    r.map(2_MiB);
    CHECK_THROWS_AS(r.of().for_each_granule([](const granule_view&) { throw 1; }), int);
    CHECK(r.of().is_valid());
}

TEST_CASE("space: what one space keeps of a device's memory starves no other") {
    soft::device_options device = device_of(64_MiB);
    auto driver = xmm::detail::make_soft_driver({device}, machine_topology());
    REQUIRE(driver);
    auto first = space::create_on(**driver);
    auto second = space::create_on(**driver);
    REQUIRE((first && second));
    const node_id there = first->devices()[0];
    auto all = first->map(64_MiB, {.fixed = there});
    REQUIRE(all);
    CHECK(second->map(2_MiB, {.fixed = there}).code() == errc::no_memory);  // in use
    REQUIRE(first->unmap(*all));
    CHECK(first->usage(there)->free_frames == 64_MiB);
    auto some = second->map(2_MiB, {.fixed = there});
    REQUIRE(some);
    CHECK(first->usage(there)->free_frames < 64_MiB);
    // Nor does a lower budget send pages away while others keep free frames.
    CHECK(second->set_budget(there, 2_MiB));
    CHECK(first->usage(there)->free_frames == 0);
    CHECK(second->residency_of(*some).value() == there);
    CHECK(second->unmap(*some));
    CHECK(second->set_budget(there, no_budget));
}

TEST_CASE("space: in a forked child handles wait for nobody and take no lock") {
    soft::device_options slow = device_of(32_MiB);
    slow.link_in_bytes_per_second = 16_MiB;
    rig r{{slow}};
    auto* data = r.map(8_MiB);
    fill<std::uint64_t>(data, 8_MiB, 1);
    auto* held = r.map(2_MiB);
    auto early = r.of().advise_async(r.device(), data, 8_MiB, advice::will_need);
    REQUIRE(early);
    auto access = r.of().access_on_host(held, 2_MiB);
    REQUIRE(access);
    ending child;
    // As if another thread had held the page's lock.
    CHECK(r.inspect(held, [&](granule&) {
        child = in_child([&] {
            std::puts(early->is_done() ? "done" : "under way");
            early->wait();
            { host_access gone{std::move(*access)}; }
            std::puts("all gone");
        });
        return true;
    }));
    CAPTURE(child.text);
    CHECK(!child.is_crash());
    CHECK(child.text == "done\nall gone\n");
    early->wait();
    CHECK(r.home(data) == r.device());
}
