// SPDX-License-Identifier: Apache-2.0
#include <xmm/placement/fault.hpp>

#include "../core/child.hpp"
#include "../facade/rig.hpp"

using namespace xmm;
using namespace xmm::test;

TEST_CASE("fault: a CPU's first touch makes a zero page on the host") {
    rig r;
    auto* data = r.map(4_MiB);
    CHECK(r.state(data) == residency::untouched);
    CHECK(r.home(data) == no_node);
    CHECK(data[100] == 0);
    CHECK(r.state(data) == residency::on_host);
    CHECK(r.home(data) == r.host());
    CHECK(r.state(page_of(data, 1)) == residency::untouched);
    CHECK(count_nonzero(data, 4_MiB) == 0);
    CHECK(r.counters(r.host()).first_touches == 2);
    CHECK(r.mapped(data, r.device()) == access::none);
}

TEST_CASE("fault: a device's first touch makes a zero page on the device") {
    rig r;
    auto* data = r.map(4_MiB);
    CHECK(r.read_on_device(data) == 0);
    CHECK(r.state(data) == residency::on_device);
    CHECK(r.home(data) == r.device());
    CHECK(r.mapped(data, r.device()) != access::none);
    CHECK(r.mapped(data, r.host()) == access::none);
    CHECK(r.state(page_of(data, 1)) == residency::untouched);
    CHECK(r.counters(r.device()).bytes_in == 0);
    CHECK(r.counters(r.device()).first_touches == 1);
}

TEST_CASE("fault: recycled frames read as zero, on host and device") {
    rig r;
    for (int round = 0; round < 2; ++round) {
        auto* data = r.map(8_MiB);
        CHECK(count_nonzero(data, 4_MiB) == 0);
        std::size_t wrong = 0;
        REQUIRE(r.run(
            page_of(data, 2), 4_MiB, access::read_write, [&](device_view<std::uint64_t> view) {
                view.for_each_span(0, view.size(), [&](std::span<std::uint64_t> some, std::size_t) {
                    for (auto& one : some) {
                        wrong += one != 0 ? 1 : 0;
                        one = 0xdead;
                    }
                });
            }));
        CHECK(wrong == 0);
        std::memset(data, 0xff, 4_MiB);
        REQUIRE(r.of().unmap(data));
    }
    CHECK(r.counters(r.device()).bytes_zeroed == 4_MiB);
    CHECK(r.counters(r.host()).bytes_zeroed == 4_MiB);
}

TEST_CASE("fault: pages follow whoever touches them, with their contents") {
    rig r;
    for (std::size_t granule : {2_MiB, 4_MiB, 16_MiB}) {
        CAPTURE(granule);
        const std::size_t bytes = granule + 6_MiB;  // a tail
        auto* data = r.map(bytes, {.granule_bytes = granule});
        fill<std::uint64_t>(data, bytes, 5);
        CHECK(r.count_wrong_on_device<std::uint64_t>(data, bytes, 5) == 0);
        CHECK(r.state(data) == residency::on_device);
        CHECK(r.state(data + bytes / 8 - 1) == residency::on_device);
        r.fill_on_device<std::uint64_t>(data, bytes, 77);
        CHECK(count_wrong<std::uint64_t>(data, bytes, 77) == 0);
        CHECK(r.state(data) == residency::on_host);
        CHECK(r.state(data + bytes / 8 - 1) == residency::on_host);
        CHECK(r.mapped(data, r.device()) == access::none);
        CHECK(r.of().is_valid());
        REQUIRE(r.of().unmap(data));
    }
}

TEST_CASE("fault: bytes moved are counted at both ends") {
    rig r;
    auto* data = r.map(4_MiB, {.granule_bytes = 4_MiB});
    data[0] = 1;
    r.write_on_device<std::uint64_t>(data, 2);
    CHECK(data[0] == 2);
    CHECK(r.counters(r.device()).bytes_in == 4_MiB);
    CHECK(r.counters(r.device()).bytes_out == 4_MiB);
    CHECK(r.counters(r.host()).bytes_in == 4_MiB);
    CHECK(r.counters(r.host()).bytes_out == 4_MiB);
}

TEST_CASE("fault: sixteen CPU threads on one page are one migration") {
    rig r;
    auto* data = r.map(2_MiB);
    r.write_on_device<std::uint64_t>(data, 42);
    std::vector<std::thread> threads;
    std::atomic<bool> go{false};
    std::atomic<int> wrong{0};
    for (int i = 0; i < 16; ++i) {
        threads.emplace_back([&] {
            while (!go.load()) {
                std::this_thread::yield();
            }
            wrong += static_cast<volatile std::uint64_t*>(data)[0] != 42 ? 1 : 0;
        });
    }
    go = true;
    for (auto& one : threads) {
        one.join();
    }
    CHECK(wrong == 0);
    CHECK(r.counters(r.host()).bytes_in == 2_MiB);
}

TEST_CASE("fault: sixteen kernels on one page are one migration") {
    rig r{{[] {
        auto one = device_of(32_MiB);
        one.units = 8;
        return one;
    }()}};
    auto* data = r.map(2_MiB);
    data[0] = 42;
    std::vector<std::unique_ptr<queue>> lines;
    std::atomic<int> wrong{0};
    const device_view<std::uint64_t> view{data, 1};
    for (int i = 0; i < 16; ++i) {
        auto line = r.of().make_queue(r.device());
        REQUIRE(line);
        lines.push_back(std::make_unique<queue>(std::move(*line)));
        REQUIRE(launch(*lines.back(), {reads(data, 8)}, [&](soft::stream& s) {
            return s.run([&wrong, view] { wrong += view.load(0) != 42 ? 1 : 0; });
        }));
    }
    for (auto& one : lines) {
        CHECK(one->synchronize());
    }
    CHECK(wrong == 0);
    CHECK(r.counters(r.device()).bytes_in == 2_MiB);
}

TEST_CASE("fault: oversubscription keeps all data") {
    rig r{{device_of(16_MiB)}};
    constexpr std::size_t bytes = 48_MiB;
    auto* data = r.map(bytes);
    r.fill_on_device<std::uint64_t>(data, bytes, 1000);
    CHECK(r.usage(r.device()).used <= 16_MiB);
    CHECK(r.counters(r.device()).reclaimed_bytes >= 32_MiB);
    CHECK(r.count_wrong_on_device<std::uint64_t>(data, bytes, 1000) == 0);
    CHECK(count_wrong<std::uint64_t>(data, bytes, 1000) == 0);
}

TEST_CASE("fault: a granule larger than the device is reached over the link") {
    rig r{{device_of(8_MiB)}};
    auto* data = r.map(16_MiB, {.granule_bytes = 16_MiB});
    r.fill_on_device<std::uint64_t>(data, 16_MiB, 3);
    CHECK(r.state(data) == residency::on_host);
    CHECK(r.counters(r.device()).mapped_in_place > 0);
    CHECK(count_wrong<std::uint64_t>(data, 16_MiB, 3) == 0);
}

TEST_CASE("fault: the mapped policy moves no bytes") {
    rig r{{device_of(16_MiB)}, {.policy = "mapped"}};
    auto* data = r.map(8_MiB);
    fill<std::uint64_t>(data, 4_MiB, 1);
    CHECK(r.count_wrong_on_device<std::uint64_t>(data, 4_MiB, 1) == 0);
    r.fill_on_device<std::uint64_t>(data, 8_MiB, 9);  // half of it first touched by the device
    CHECK(count_wrong<std::uint64_t>(data, 8_MiB, 9) == 0);
    CHECK(r.state(data) == residency::on_host);
    CHECK(r.mapped(data, r.device()) == access::read_write);
    CHECK(r.mapped(data, r.host()) == access::read_write);  // both at once
    CHECK(r.counters(r.device()).bytes_in == 0);
    CHECK(r.counters(r.device()).bytes_out == 0);
    CHECK(r.usage(r.device()).used == 0);
    REQUIRE(r.of().set_policy("first_touch"));
    // A page that is mapped in place stays so until something takes the mapping.
    CHECK(r.count_wrong_on_device<std::uint64_t>(data, 8_MiB, 9) == 0);
    CHECK(r.counters(r.device()).bytes_in == 0);
}

namespace {

// Says when it is being asked, and takes its time.
struct slow_policy {
    static const char* name() noexcept { return "slow"; }
    placement_choice choose(const device_touch&) noexcept {
        begun.set();
        nap(100);
        ended.set();
        return placement_choice::in_place;
    }
    signal_flag begun;
    signal_flag ended;
};

}  // namespace

TEST_CASE("fault: a policy that was replaced is asked by nobody any more") {
    rig r;
    auto* data = r.map(2_MiB);
    slow_policy slow;
    REQUIRE(r.of().set_policy(policy_ref{slow}));
    std::thread kernel{[&] { r.write_on_device<std::uint64_t>(data, 1); }};
    REQUIRE(slow.begun.await());
    REQUIRE(r.of().set_policy("first_touch"));
    CHECK(slow.ended.is_set());
    kernel.join();
    CHECK(r.home(data) == r.host());
}

TEST_CASE("fault: read-mostly pages are duplicated for readers, a write collapses them") {
    rig r;
    auto* data = r.map(2_MiB, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    data[0] = 11;
    CHECK(r.read_on_device(data) == 11);
    CHECK(r.state(data) == residency::duplicated);
    CHECK(r.has_frame(data, r.host()));
    CHECK(r.has_frame(data, r.device()));
    CHECK(data[0] == 11);  // the CPU reads its own copy
    CHECK(r.state(data) == residency::duplicated);
    CHECK(!has_write(r.mapped(data, r.host())));
    CHECK(!has_write(r.mapped(data, r.device())));

    data[0] = 12;
    CHECK(r.state(data) == residency::on_host);
    CHECK(!r.has_frame(data, r.device()));
    CHECK(r.mapped(data, r.device()) == access::none);
    CHECK(r.read_on_device(data) == 12);
    CHECK(r.state(data) == residency::duplicated);

    r.write_on_device<std::uint64_t>(data, 13);
    CHECK(r.state(data) == residency::on_device);
    CHECK(!r.has_frame(data, r.host()));
    CHECK(data[0] == 13);
    CHECK(r.state(data) == residency::duplicated);
    CHECK(r.home(data) == r.device());
}

TEST_CASE("fault: clean copies are dropped, not copied, when the device runs low") {
    rig r{{device_of(16_MiB)}};
    auto* data = r.map(32_MiB, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    fill<std::uint64_t>(data, 32_MiB, 4);
    CHECK(r.count_wrong_on_device<std::uint64_t>(data, 32_MiB, 4) == 0);
    CHECK(r.counters(r.device()).copies_dropped >= 8);
    CHECK(r.counters(r.device()).bytes_out == 0);
    CHECK(count_wrong<std::uint64_t>(data, 32_MiB, 4) == 0);
}

TEST_CASE("fault: preferred decides where first touch and faults place a page") {
    rig r;
    auto* on_host = r.map(2_MiB, {.granule_bytes = 2_MiB, .preferred = r.host()});
    r.write_on_device<std::uint64_t>(on_host, 1);
    CHECK(r.home(on_host) == r.host());
    CHECK(r.counters(r.device()).mapped_in_place >= 1);
    REQUIRE(r.of().advise(r.host(), on_host, 8, advice::unset_preferred));
    CHECK(on_host[0] == 1);

    REQUIRE(r.of().set_policy("mapped"));
    auto* on_device = r.map(2_MiB, {.granule_bytes = 2_MiB, .preferred = r.device()});
    on_device[0] = 5;
    CHECK(r.home(on_device) == r.host());  // the CPU reaches no device memory
    CHECK(r.read_on_device(on_device) == 5);
    CHECK(r.home(on_device) == r.device());
}

TEST_CASE("fault: fixed host memory is reached in place by all") {
    rig r;
    auto* data = r.map(4_MiB, {.granule_bytes = 2_MiB, .fixed = r.host()});
    CHECK(r.state(data) == residency::on_host);  // populated by map
    r.fill_on_device<std::uint64_t>(data, 4_MiB, 21);
    CHECK(r.state(data) == residency::on_host);
    CHECK(count_wrong<std::uint64_t>(data, 4_MiB, 21) == 0);
    CHECK(r.counters(r.device()).bytes_in == 0);
    REQUIRE(r.of().advise(r.device(), data, 4_MiB, advice::will_need));
    CHECK(r.state(data) == residency::on_host);
    CHECK(r.of().make_resident(data, 4_MiB, r.device()).code == errc::busy);
}

TEST_CASE("fault: fixed device memory stays under pressure") {
    rig r{{device_of(16_MiB)}};
    auto* fixed = r.map(6_MiB, {.granule_bytes = 2_MiB, .fixed = r.device()});
    CHECK(r.state(fixed) == residency::on_device);
    r.fill_on_device<std::uint64_t>(fixed, 6_MiB, 50);
    auto* other = r.map(32_MiB);
    r.fill_on_device<std::uint64_t>(other, 32_MiB, 60);
    CHECK(r.state(fixed) == residency::on_device);
    CHECK(r.state(page_of(fixed, 2)) == residency::on_device);
    CHECK(r.count_wrong_on_device<std::uint64_t>(fixed, 6_MiB, 50) == 0);
    CHECK(count_wrong<std::uint64_t>(other, 32_MiB, 60) == 0);
    std::vector<std::uint64_t> plain(6_MiB / 8);
    REQUIRE(r.of().copy(plain.data(), fixed, 6_MiB));
    CHECK(count_wrong<std::uint64_t>(plain.data(), 6_MiB, 50) == 0);
}

TEST_CASE("fault: a CPU touch of device-only memory ends the program with the reason") {
    if (!is_fresh_process()) {
        const ending how = in_fresh_process();
        CHECK(how.is_crash());
        CHECK(how.says("before the touch"));
        CHECK(how.says("device-only memory"));
        CHECK(!how.says("survived"));
        return;
    }
    rig r;
    auto* data = r.map(2_MiB, {.granule_bytes = 2_MiB, .fixed = r.device()});
    std::puts("before the touch");
    std::fflush(stdout);
    std::printf("survived %d\n", static_cast<int>(*static_cast<volatile std::uint64_t*>(data)));
}

TEST_CASE("fault: a CPU touch of a page pinned on a device ends the program with the reason") {
    if (!is_fresh_process()) {
        const ending how = in_fresh_process();
        CHECK(how.is_crash());
        CHECK(how.says("pinned on a device"));
        CHECK(!how.says("survived"));
        return;
    }
    rig r;
    auto* data = r.map(2_MiB);
    REQUIRE(r.of().advise(r.device(), data, 2_MiB, advice::pin));
    *static_cast<volatile std::uint64_t*>(data) = 1;
    std::puts("survived");
}

TEST_CASE("fault: a touch after unmap is the program's own crash") {
    if (!is_fresh_process()) {
        const ending how = in_fresh_process();
        CHECK(how.is_crash());
        CHECK(!how.says("survived"));
        return;
    }
    rig r;
    auto* data = r.map(2_MiB);
    data[0] = 1;
    REQUIRE(r.of().unmap(data));
    *static_cast<volatile std::uint64_t*>(data) = 1;
    std::puts("survived");
}

TEST_CASE("fault: a host without room ends the touch with a message") {
    if (!is_fresh_process()) {
        const ending how = in_fresh_process();
        CHECK(how.is_crash());
        CHECK(how.says("no memory"));
        CHECK(!how.says("survived"));
        return;
    }
    rig r;
    auto* data = r.map(8_MiB);
    REQUIRE(r.of().set_budget(r.host(), 4_MiB));
    page_of(data, 0)[0] = 1;
    page_of(data, 1)[0] = 1;
    *static_cast<volatile std::uint64_t*>(page_of(data, 2)) = 1;
    std::puts("survived");
}

TEST_CASE("fault: demoted pages have no CPU mapping until the CPU touches them") {
    rig r;
    auto* data = r.map(4_MiB);
    data[0] = 7;  // the CPU has had it mapped
    r.write_on_device<std::uint64_t>(data, 8);
    REQUIRE(r.of().set_budget(r.device(), 0));
    CHECK(r.state(data) == residency::on_host);
    CHECK(r.mapped(data, r.host()) == access::none);
    CHECK(r.mapped(data, r.device()) == access::none);
    CHECK(data[0] == 8);
    CHECK(r.mapped(data, r.host()) != access::none);
}

TEST_CASE("fault: a kernel that leaves all regions is lost, its neighbours are not") {
    rig r;
    auto* data = r.map(2_MiB);
    auto other = r.of().make_queue(r.device());
    REQUIRE(other);
    const device_view<std::uint64_t> wild{reinterpret_cast<std::uint64_t*>(0x12345000), 1};
    auto point =
        launch(*other, {}, [&](soft::stream& s) { return s.run([=] { wild.store(0, 1); }); });
    // Lost by then or a moment later.
    CHECK((point ? other->wait(*point) : point.error()).code == errc::device_lost);
    CHECK(other->record().code() == errc::device_lost);
    r.write_on_device<std::uint64_t>(data, 3);
    CHECK(data[0] == 3);
}

TEST_CASE("fault: CPU and kernel take turns on one page while it moves to and fro") {
    rig r;
    auto* data = r.map(2_MiB);
    constexpr int rounds = 200;
    const device_view<std::uint64_t> view{data, 2};
    auto point = launch(r.line(), {reads_writes(data, 16)}, [&](soft::stream& s) {
        return s.run([view] {
            for (int i = 0; i < rounds; ++i) {
                view.fetch_add(0, 1);
            }
        });
    });
    REQUIRE(point);
    for (int i = 0; i < rounds; ++i) {
        std::atomic_ref{data[0]}.fetch_add(1);
    }
    REQUIRE(r.line().wait(*point));
    CHECK(data[0] == 2 * rounds);
}

TEST_CASE("fault: a repeated fault of a page that is there is only counted") {
    rig r;
    auto* data = r.map(2_MiB);
    data[0] = 1;
    auto& faults = r.of().state().engine.faults;
    xmm::node& host = r.of().state().core.at_slot(0);
    const auto before = r.counters(r.host());
    CHECK(faults.handle(host, to_address(data), access::read));
    CHECK(r.counters(r.host()).faults == before.faults + 1);
    CHECK(r.counters(r.host()).faults_coalesced == before.faults_coalesced + 1);
    CHECK(faults.handle(host, 0x1000, access::read).code == errc::not_mapped);
}

namespace {

// a[i] += the sum of the others' i-th elements, by spans of all of them at once.
template <std::size_t... I>
status add_all(rig& r, std::uint64_t* data, std::size_t bytes_each, std::index_sequence<I...>) {
    const std::size_t count = bytes_each / sizeof(std::uint64_t);
    const use all{{to_address(data), bytes_each * sizeof...(I)}, access::read_write};
    auto point = launch(r.line(), {all}, [&](soft::stream& s) {
        return s.run([=] {
            zip_spans(
                [](std::size_t, auto sum, auto... some) {
                    for (std::size_t i = 0; i < sum.size(); ++i) {
                        sum[i] += (some[i] + ...);
                    }
                },
                device_view<std::uint64_t>{data, count},
                device_view<const std::uint64_t>{data + (I + 1) * count, count}...);
        });
    });
    return point ? r.line().wait(*point) : point.error();
}

template <std::size_t Others>
void check_crowd(std::size_t budget, std::size_t bytes_each) {
    rig r;
    REQUIRE(r.of().set_budget(r.device(), budget));
    auto* data = r.map(bytes_each * (Others + 1));
    const std::size_t count = bytes_each / sizeof(std::uint64_t);
    for (std::size_t i = 0; i < count; ++i) {
        for (std::size_t other = 0; other <= Others; ++other) {
            data[other * count + i] = i * (other + 1);
        }
    }
    REQUIRE(add_all(r, data, bytes_each, std::make_index_sequence<Others>{}));
    CHECK(r.counters(r.device()).mapped_in_place > 0);
    CHECK(r.usage(r.device()).used <= budget);
    constexpr std::size_t factor = (Others + 1) * (Others + 2) / 2;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
        wrong += data[i] != i * factor ? 1 : 0;
    }
    CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("fault: a kernel goes on that needs more pages at once than its device holds") {
    if (!is_fresh_process()) {
        CHECK_FALSE(in_fresh_process().is_crash());  // a hang ends it
        return;
    }
    check_crowd<1>(2_MiB, 8_MiB);
    check_crowd<2>(4_MiB, 8_MiB);
    check_crowd<7>(6_MiB, 4_MiB);
}

TEST_CASE("fault: what fits is not mapped in place however often it is pushed out") {
    rig r{{device_of(16_MiB)}};
    auto* data = r.map(48_MiB);
    for (int pass = 0; pass < 4; ++pass) {
        r.fill_on_device<std::uint64_t>(data, 48_MiB, 1000);
    }
    CHECK(r.counters(r.device()).mapped_in_place == 0);
}
