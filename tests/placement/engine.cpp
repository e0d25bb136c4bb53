// SPDX-License-Identifier: Apache-2.0
#include <xmm/placement/engine.hpp>

#include <mutex>

#include "../facade/rig.hpp"
#include "../support/faulty_backend.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

std::unique_ptr<soft::driver> driver_of(std::vector<soft::device_options> devices) {
    auto made = xmm::detail::make_soft_driver(devices, machine_topology());
    REQUIRE(made);
    return std::move(*made);
}

// Devices that do not reach each other: a copy from one to another fails, and is counted.
struct islands : faulty_backend<soft::driver> {
    explicit islands(soft::driver& inner) : faulty_backend{inner} { strip(ability::peer); }
    static constexpr const char* native_kind = soft::driver::native_kind;
    soft::driver* native() noexcept { return &inner(); }

    result<frame> frame_create(node_id node, std::size_t bytes) noexcept {
        auto made = faulty_backend::frame_create(node, bytes);
        if (made && std::ranges::count(nodes(), node) != 0) {
            std::lock_guard guard{lock};
            frames.push_back(*made);
        }
        return made;
    }
    result<ticket> memcpy(queue_id line, std::span<const piece> pieces) noexcept {
        for (const piece& one : pieces) {
            const node_id to = device_at(one.to.begin);
            const node_id from = device_at(one.from.begin);
            if (to != no_node && from != no_node && to != from) {
                ++crossings;
                return fail(errc::unsupported, "no way there");
            }
        }
        return faulty_backend::memcpy(line, pieces);
    }
    node_id device_at(address at) {
        std::lock_guard guard{lock};
        for (const frame& one : frames) {
            if (va_range{one.standing, one.bytes}.contains(at)) {
                return one.node;
            }
        }
        return no_node;
    }

    std::mutex lock;
    std::vector<frame>
        frames;  // of devices, dropped ones as well: standing addresses stay a device's
    std::atomic<int> crossings{0};
};

}  // namespace

TEST_CASE("engine: two spaces over one driver keep to themselves, and share the budget") {
    auto driver = driver_of({device_of(16_MiB)});
    auto a = space::create_on(*driver);
    auto b = space::create_on(*driver);
    REQUIRE(a);
    REQUIRE(b);
    const node_id device = a->devices()[0];
    CHECK(b->devices()[0] == device);
    auto* in_a = static_cast<std::uint64_t*>(*a->map(16_MiB, {.granule_bytes = 2_MiB}));
    auto* in_b = static_cast<std::uint64_t*>(*b->map(16_MiB, {.granule_bytes = 2_MiB}));
    CHECK(!a->contains(in_b));
    CHECK(b->advise(device, in_a, 8, advice::cold).code == errc::not_mapped);
    CHECK(b->unmap(in_a).code == errc::not_mapped);
    fill<std::uint64_t>(in_a, 16_MiB, 1);
    fill<std::uint64_t>(in_b, 16_MiB, 2);
    REQUIRE(a->make_resident(in_a, 16_MiB, device));
    CHECK(a->usage(device)->used == 16_MiB);
    CHECK(b->usage(device)->used == 16_MiB);
    // Nothing of b's own is there to reclaim: it works over the link.
    auto line = b->make_queue(device);
    REQUIRE(line);
    std::size_t wrong = 1;
    const device_view<const std::uint64_t> view{in_b, 16_MiB / 8};
    auto point = launch(*line, {reads(in_b, 16_MiB)}, [&](soft::stream& s) {
        return s.run([&wrong, view] {
            wrong = 0;
            view.for_each_span(0, view.size(),
                               [&](std::span<const std::uint64_t> some, std::size_t first) {
                                   for (std::size_t i = 0; i < some.size(); ++i) {
                                       wrong += some[i] != 2 + first + i ? 1 : 0;
                                   }
                               });
        });
    });
    REQUIRE(point);
    CHECK(line->wait(*point));
    CHECK(wrong == 0);
    // Between spaces: each is plain memory to the other.
    REQUIRE(a->copy(in_a, in_b, 4_MiB));
    CHECK(count_wrong<std::uint64_t>(in_a, 4_MiB, 2) == 0);
    CHECK(count_wrong<std::uint64_t>(in_a + 4_MiB / 8, 12_MiB, 1 + 4_MiB / 8) == 0);
    CHECK(a->is_valid());
    CHECK(b->is_valid());
}

TEST_CASE("engine: a second driver in one space") {
    auto first = driver_of({device_of(16_MiB)});
    auto second = driver_of({device_of(16_MiB)});
    auto made = space::create_on(*first);
    REQUIRE(made);
    auto* early = static_cast<std::uint64_t*>(*made->map(8_MiB, {.granule_bytes = 2_MiB}));
    fill<std::uint64_t>(early, 8_MiB, 1);
    REQUIRE(made->attach(*second));
    CHECK(made->attach(*second).code == errc::busy);
    CHECK(made->attach(*first).code == errc::busy);
    REQUIRE(made->devices().size() == 2);
    auto* late = static_cast<std::uint64_t*>(*made->map(8_MiB, {.granule_bytes = 2_MiB}));
    fill<std::uint64_t>(late, 8_MiB, 2);
    for (node_id to : {made->devices()[1], made->devices()[0], made->devices()[1]}) {
        for (auto* data : {early, late}) {
            REQUIRE(made->make_resident(data, 8_MiB, to));
            CHECK(made->residency_of(data).value() == to);
        }
    }
    auto line = made->make_queue(made->devices()[1]);
    REQUIRE(line);
    const device_view<std::uint64_t> view{early, 1};
    auto point = launch(*line, {reads_writes(early, 8)}, [&](soft::stream& s) {
        return s.run([view] { view.store(0, view.load(0) + 10); });
    });
    REQUIRE(point);
    CHECK(line->wait(*point));
    CHECK(early[0] == 11);
    CHECK(count_wrong<std::uint64_t>(late, 8_MiB, 2) == 0);
    REQUIRE(made->copy(late, early, 8_MiB));
    CHECK(late[0] == 11);
    CHECK(made->unmap(early));
    CHECK(made->is_valid());
}

TEST_CASE("engine: three devices pass a page around") {
    rig r{{device_of(16_MiB), device_of(16_MiB), device_of(16_MiB)}};
    auto* data = r.map(6_MiB);
    for (unsigned round = 0; round < 9; ++round) {
        const unsigned device = round % 3;
        r.fill_on_device<std::uint64_t>(data, 6_MiB, round, device);
        CHECK(r.home(data) == r.device(device));
        CHECK(r.count_wrong_on_device<std::uint64_t>(data, 6_MiB, round, (device + 1) % 3) == 0);
        CHECK(r.mapped(data, r.device(device)) == access::none);
    }
    CHECK(count_wrong<std::uint64_t>(data, 6_MiB, 8) == 0);
    CHECK(r.home(data) == r.host());
}

TEST_CASE("engine: read-mostly copies on three devices, and one writer") {
    rig r{{device_of(16_MiB), device_of(16_MiB), device_of(16_MiB)}};
    auto* data = r.map(2_MiB, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    data[0] = 1;
    for (unsigned device = 0; device < 3; ++device) {
        CHECK(r.read_on_device(data, device) == 1);
    }
    for (unsigned device = 0; device < 3; ++device) {
        CHECK(r.has_frame(data, r.device(device)));
    }
    r.write_on_device<std::uint64_t>(data, 2, 1);
    CHECK(r.state(data) == residency::on_device);
    CHECK(r.home(data) == r.device(1));
    CHECK(r.read_on_device(data, 0) == 2);
    CHECK(r.read_on_device(data, 2) == 2);
    CHECK(data[0] == 2);
}

TEST_CASE("engine: destroyed while its prefetches run") {
    auto slow = device_of(32_MiB);
    slow.link_in_bytes_per_second = 200'000'000;
    auto made = space::create_soft({slow});
    REQUIRE(made);
    auto* data = static_cast<char*>(*made->map(24_MiB, {.granule_bytes = 2_MiB}));
    std::memset(data, 1, 24_MiB);
    CHECK(made->advise_async(made->devices()[0], data, 24_MiB, advice::will_need));
}

TEST_CASE(
    "engine: a device that has no frame and cannot map the host's copy gives up, and leaks none") {
    auto first = driver_of({device_of(64_MiB)});
    auto second = driver_of({device_of(16_MiB)});
    auto made = space::create_on(*first);
    REQUIRE(made);
    REQUIRE(made->attach(*second));
    const std::vector<node_id> devices = made->devices();
    auto* data = static_cast<std::uint64_t*>(
        *made->map(2_MiB, {.granule_bytes = page_bytes, .is_read_mostly = true}));
    data[0] = 3;
    REQUIRE(made->advise(devices[0], data, 2_MiB, advice::will_need));
    const std::size_t used = made->usage(any_host)->used;
    REQUIRE(made->set_budget(devices[1], 0));
    auto line = made->make_queue(devices[1]);
    REQUIRE(line);
    const device_view<const std::uint64_t> view{data, 1};
    auto point = launch(*line, {reads(data, 8)}, [&](soft::stream& s) {
        return s.run([view] { static_cast<void>(view.load(0)); });
    });
    // Lost by then or a moment later.
    CHECK((point ? line->wait(*point) : point.error()).code == errc::device_lost);
    CHECK(made->is_valid());
    CHECK(made->usage(any_host)->used == used);
    REQUIRE(made->set_budget(devices[1], SIZE_MAX));
    CHECK(data[0] == 3);
}

TEST_CASE("engine: between devices that do not reach each other pages and copies go by the host") {
    auto driver = driver_of({device_of(32_MiB), device_of(32_MiB)});
    islands apart{*driver};
    auto made = space::create_on(apart);
    REQUIRE(made);
    const std::vector<node_id> devices = made->devices();
    const auto map = [&](map_options wanted) {
        wanted.granule_bytes = 8_MiB;  // more than goes at once
        auto* data = static_cast<std::uint64_t*>(*made->map(10_MiB, wanted));
        fill<std::uint64_t>(data, 10_MiB, 3);
        REQUIRE(made->make_resident(data, 10_MiB, devices[0]));
        return data;
    };
    auto* data = map({});
    REQUIRE(made->make_resident(data, 10_MiB, devices[1]));
    CHECK(made->residency_of(data).value() == devices[1]);
    REQUIRE(made->advise(devices[0], data, 10_MiB, advice::will_need));
    CHECK(made->residency_of(data).value() == devices[0]);
    auto* other = static_cast<std::uint64_t*>(*made->map(10_MiB, {.preferred = devices[1]}));
    REQUIRE(made->copy(other, data, 10_MiB));
    CHECK(made->residency_of(other).value() == devices[1]);

    // A fault of the other device, of a page that moves and of one that is duplicated.
    auto* shared = map({.is_read_mostly = true});
    auto line = made->make_queue(devices[1]);
    REQUIRE(line);
    const device_view<const std::uint64_t> views[] = {{data, 10_MiB / 8}, {shared, 10_MiB / 8}};
    std::size_t wrong = 1;
    auto point = launch(*line, {reads(data, 10_MiB), reads(shared, 10_MiB)}, [&](soft::stream& s) {
        return s.run([&wrong, views] {
            wrong = 0;
            for (const auto& view : views) {
                for (std::size_t i = 0; i < view.size(); i += 1000) {
                    wrong += view.load(i) != 3 + i ? 1 : 0;
                }
            }
        });
    });
    REQUIRE(point);
    CHECK(line->wait(*point));
    CHECK(wrong == 0);
    CHECK(made->residency_of(data).value() == devices[1]);
    CHECK(made->residency_of(shared).value() == devices[0]);
    CHECK(apart.crossings == 0);
    for (std::uint64_t* one : {data, other, shared}) {
        CHECK(count_wrong<std::uint64_t>(one, 10_MiB, 3) == 0);
    }
    CHECK(made->is_valid());
}
