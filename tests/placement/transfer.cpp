// SPDX-License-Identifier: Apache-2.0
#include <xmm/placement/transfer.hpp>

#include <functional>

#include "../facade/faulty_soft.hpp"
#include "../facade/rig.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

// Bytes that tell where they come from.
unsigned char byte_at(std::size_t i, unsigned seed) {
    return static_cast<unsigned char>(i * 7 + i / 251 + i / page_bytes * 13 + seed);
}

constexpr std::size_t area_bytes = 6_MiB;  // 4 MiB granules and more than one of them

// One kind of memory, 6 MiB of it, filled with a pattern through whoever reaches it.
struct area {
    std::string kind;
    std::function<unsigned char*(rig&)> make;
    bool is_plain = false;
};

unsigned char* map_area(rig& r, map_options wanted = {}) {
    wanted.granule_bytes = 4_MiB;
    return r.map<unsigned char>(area_bytes, wanted);
}

const std::vector<area>& areas() {
    static const std::vector<area> all{
        {"plain", [](rig&) { return static_cast<unsigned char*>(std::calloc(1, area_bytes)); },
         true},
        {"on host",
         [](rig& r) {
             auto* data = map_area(r);
             std::memset(data, 1, area_bytes);
             return data;
         }},
        {"on device",
         [](rig& r) {
             auto* data = map_area(r);
             REQUIRE(r.of().make_resident(data, area_bytes, r.device()));
             return data;
         }},
        {"duplicated",
         [](rig& r) {
             auto* data = map_area(r, {.is_read_mostly = true});
             std::memset(data, 1, area_bytes);
             REQUIRE(r.of().advise(r.device(), data, area_bytes, advice::will_need));
             REQUIRE(r.state(data) == residency::duplicated);
             return data;
         }},
        {"untouched", [](rig& r) { return map_area(r); }},
        {"fixed on device", [](rig& r) { return map_area(r, {.fixed = r.device()}); }},
        {"fixed on host", [](rig& r) { return map_area(r, {.fixed = r.host()}); }},
        {"pinned on host",
         [](rig& r) {
             auto* data = map_area(r);
             REQUIRE(r.of().advise(r.host(), data, area_bytes, advice::pin));
             return data;
         }},
        {"mixed",
         [](rig& r) {
             auto* data = map_area(r);
             data[0] = 1;
             REQUIRE(r.of().make_resident(data + 4_MiB, 1, r.device()));
             return data;
         }},
    };
    return all;
}

struct stretch {
    std::size_t to, from, bytes;
};
constexpr stretch stretches[] = {
    {0, 0, 1},
    {1, 2, 2},
    {3, 4095, 4095},
    {2_MiB - 1, 5, 2},
    {4_MiB - 3, 7, 1_MiB + 1},
    {17, 9, 5_MiB - 1},
    {0, 0, area_bytes},
};

}  // namespace

TEST_CASE("transfer: every pair of kinds of memory, at odd offsets and sizes") {
    rig r{{device_of(64_MiB)}};
    std::vector<unsigned char> pattern(area_bytes), expected(area_bytes), got(area_bytes);
    for (std::size_t i = 0; i < area_bytes; ++i) {
        pattern[i] = byte_at(i, 3);
    }
    for (const area& source : areas()) {
        for (const area& target : areas()) {
            CAPTURE(source.kind);
            CAPTURE(target.kind);
            unsigned char* from = source.make(r);
            unsigned char* to = target.make(r);
            // An untouched source stays so: it reads as zero.
            const bool is_zero = source.kind == "untouched";
            if (!is_zero) {
                REQUIRE(r.of().copy(from, pattern.data(), area_bytes));
            }
            REQUIRE(r.of().copy(got.data(), to, area_bytes));
            expected = got;
            for (const stretch& one : stretches) {
                REQUIRE(r.of().copy(to + one.to, from + one.from, one.bytes));
                if (is_zero) {
                    std::memset(expected.data() + one.to, 0, one.bytes);
                } else {
                    std::memcpy(expected.data() + one.to, pattern.data() + one.from, one.bytes);
                }
                if (one.bytes != area_bytes) {
                    // All around it as well; the large ones are looked at once.
                    const std::size_t some = std::min(area_bytes, one.to + one.bytes + 8);
                    const std::size_t first = one.to < 8 ? 0 : one.to - 8;
                    REQUIRE(r.of().copy(got.data() + first, to + first, some - first));
                    CHECK(std::memcmp(got.data() + first, expected.data() + first, some - first) ==
                          0);
                }
            }
            REQUIRE(r.of().copy(got.data(), to, area_bytes));
            CHECK(std::memcmp(got.data(), expected.data(), area_bytes) == 0);
            if (is_zero) {
                CHECK(r.state(from) == residency::untouched);
            }
            const auto release = [&](const area& kind, unsigned char* data) {
                if (kind.is_plain) {
                    std::free(data);
                } else {
                    REQUIRE(r.of().unmap(data));
                }
            };
            release(source, from);
            release(target, to);
        }
    }
    CHECK(r.usage(r.device()).used == r.usage(r.device()).free_frames);
}

TEST_CASE("transfer: a copy moves no page") {
    rig r;
    auto* on_device = r.map(4_MiB);
    auto* on_host = r.map(4_MiB);
    r.fill_on_device<std::uint64_t>(on_device, 4_MiB, 1);
    fill<std::uint64_t>(on_host, 4_MiB, 2);
    REQUIRE(r.of().copy(on_host, on_device, 3_MiB));
    CHECK(r.state(on_device) == residency::on_device);
    CHECK(r.state(on_host) == residency::on_host);
    CHECK(count_wrong<std::uint64_t>(on_host, 3_MiB, 1) == 0);
    CHECK(on_host[3_MiB / 8] == 2 + 3_MiB / 8);
    CHECK(r.state(on_device) == residency::on_device);
}

TEST_CASE(
    "transfer: an untouched destination goes where it is preferred, and is zero around the copy") {
    rig r;
    auto* device_page = r.map(2_MiB, {.granule_bytes = 2_MiB, .preferred = r.device()});
    auto* host_page = r.map(2_MiB);
    const std::uint64_t plain[2] = {7, 8};
    REQUIRE(r.of().copy(device_page + 100, plain, 16));
    REQUIRE(r.of().copy(host_page + 100, plain, 16));
    CHECK(r.home(device_page) == r.device());
    CHECK(r.home(host_page) == r.host());
    // Before anybody maps them: nothing takes them for untouched.
    for (const void* page : {device_page, host_page}) {
        CHECK(!r.inspect(page, [](granule& one) { return one.home_frame()->backing.zeroed; }));
    }
    CHECK(r.read_on_device(device_page + 101) == 8);
    CHECK(host_page[100] == 7);
    CHECK(device_page[99] == 0);
    CHECK(host_page[102] == 0);
}

TEST_CASE("transfer: to a device that is full") {
    rig r{{device_of(8_MiB)}};
    auto* data = r.map(32_MiB, {.granule_bytes = 2_MiB, .preferred = r.device()});
    std::vector<std::uint64_t> plain(32_MiB / 8);
    fill<std::uint64_t>(plain.data(), 32_MiB, 5);
    REQUIRE(r.of().copy(data, plain.data(), 32_MiB));
    CHECK(count_wrong<std::uint64_t>(data, 32_MiB, 5) == 0);
    CHECK(r.usage(r.device()).used <= 8_MiB);
}

TEST_CASE("transfer: within one granule, both ways") {
    rig r;
    auto* data = r.map(4_MiB, {.granule_bytes = 4_MiB, .is_read_mostly = true});
    fill<std::uint64_t>(data, 1_MiB, 1);
    CHECK(r.read_on_device(data) == 1);
    REQUIRE(r.state(data) == residency::duplicated);
    REQUIRE(r.of().copy(data + 2_MiB / 8, data, 1_MiB));
    CHECK(count_wrong<std::uint64_t>(data + 2_MiB / 8, 1_MiB, 1) == 0);
    CHECK(r.read_on_device(data + 2_MiB / 8) == 1);
    REQUIRE(r.of().copy(data, data + 2_MiB / 8, 8));
}

TEST_CASE("transfer: between duplicated pages that take turns as source and destination") {
    rig r;
    auto* data = r.map(48_MiB, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    fill<std::uint64_t>(data, 24_MiB, 1);
    REQUIRE(r.of().advise(r.device(), data, 24_MiB, advice::will_need));
    // Shifted by a granule: each page is read as a source before it is written.
    REQUIRE(r.of().copy(page_of(data, 12), data, 24_MiB));
    CHECK(count_wrong<std::uint64_t>(page_of(data, 12), 24_MiB, 1) == 0);
}

TEST_CASE("transfer: copies in both directions between the same pages at once") {
    rig r;
    auto* a = r.map(16_MiB);
    auto* b = r.map(16_MiB);
    std::memset(a, 1, 16_MiB);
    std::memset(b, 1, 16_MiB);
    REQUIRE(r.of().advise(r.device(), b, 16_MiB, advice::will_need));
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&, i] {
            for (int round = 0; round < 6; ++round) {
                // Disjoint bytes of the same pages.
                const std::size_t first = static_cast<std::size_t>(i) * 8;
                for (std::size_t page = 0; page < 8; ++page) {
                    auto* to = reinterpret_cast<char*>(page_of(i == 1 ? a : b, page)) + first;
                    auto* from = reinterpret_cast<char*>(page_of(i == 1 ? b : a, 7 - page)) + first;
                    failures += r.of().copy(to, from, 8) ? 0 : 1;
                }
            }
        });
    }
    for (int round = 0; round < 4; ++round) {
        failures += r.of().make_resident(a, 16_MiB, round % 2 == 0 ? r.device() : r.host()) ? 0 : 1;
    }
    for (auto& one : threads) {
        one.join();
    }
    CHECK(failures == 0);
    for (std::size_t page = 0; page < 8; ++page) {
        CHECK(page_of(a, page)[0] == 0x0101010101010101);
        CHECK(page_of(b, page)[2] == 0x0101010101010101);
    }
}

TEST_CASE("transfer: waits for a page that moves") {
    auto slow = device_of(32_MiB);
    slow.link_in_bytes_per_second = 100'000'000;
    rig r{{slow}};
    auto* data = r.map(8_MiB);
    fill<std::uint64_t>(data, 8_MiB, 6);
    auto job = r.of().advise_async(r.device(), data, 8_MiB, advice::will_need);
    REQUIRE(job);
    std::vector<std::uint64_t> plain(8_MiB / 8);
    REQUIRE(r.of().copy(plain.data(), data, 8_MiB));
    CHECK(count_wrong<std::uint64_t>(plain.data(), 8_MiB, 6) == 0);
    std::uint64_t more = 1;
    REQUIRE(r.of().copy(page_of(data, 3), &more, 8));
    job->wait();
    CHECK(page_of(data, 3)[0] == 1);
}

TEST_CASE("transfer: a destination beside what a kernel of a device without faults reads") {
    rig r{{device_of(32_MiB, false)}};
    auto* data = r.map(2_MiB, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    data[0] = 1;
    auto kernel = r.start_kernel<std::uint64_t>(data, 0, 0, access::read);
    REQUIRE(r.state(data) == residency::duplicated);
    const std::uint64_t value = 5;
    REQUIRE(r.of().copy(data + 1000, &value,
                        8));  // does not wait for the kernel: its queue may wait for us
    CHECK(r.state(data) == residency::duplicated);
    CHECK(r.finish(kernel));                    // its page was not taken away
    CHECK(r.read_on_device(data + 1000) == 5);  // all copies got it
    CHECK(r.state(data) == residency::duplicated);
    CHECK(data[1000] == 5);
    CHECK(data[0] == 1);
}

TEST_CASE("transfer: copies that overlap in time do not keep a fault away for ever") {
    rig r;
    auto* data = r.map(2_MiB);
    std::atomic<bool> is_over{false};
    std::vector<std::thread> copiers;
    REQUIRE(r.of().make_resident(data, 2_MiB, r.device()));
    for (unsigned i = 0; i < 4; ++i) {
        copiers.emplace_back([&] {
            std::vector<char> plain(2_MiB);
            while (!is_over) {
                static_cast<void>(r.of().copy(plain.data(), data, 2_MiB));
            }
        });
    }
    nap(20);
    const auto before = std::chrono::steady_clock::now();
    data[0] = 1;
    CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds{5});
    // A hold of this thread's own is no reason to wait for who waits for it.
    REQUIRE(r.of().make_resident(data, 2_MiB, any_host));
    is_over = true;
    for (std::thread& one : copiers) {
        one.join();
    }
    auto held = r.of().access_on_host(data, 8);
    REQUIRE(held);
    std::thread mover{[&] { CHECK(r.of().make_resident(data, 2_MiB, r.device())); }};
    nap(20);
    std::uint64_t plain = 0;
    CHECK(r.of().copy(&plain, data, 8));
    CHECK(plain == 1);
    { const host_access gone = std::move(*held); }
    mover.join();
}

TEST_CASE("transfer: what the driver refuses in the middle is not taken for a page that is busy") {
    for (const errc refusal : {errc::busy, errc::no_memory}) {
        CAPTURE(name_of(refusal));
        auto inner = xmm::detail::make_soft_driver({device_of(64_MiB)}, machine_topology());
        REQUIRE(inner);
        faulty_soft driver{**inner};
        space made = space::create_on(driver).value();
        // Two groups of pieces and more.
        constexpr std::size_t bytes = 40_MiB;
        auto* data = static_cast<std::uint64_t*>(made.map(bytes, {.granule_bytes = 2_MiB}).value());
        fill<std::uint64_t>(data, bytes, 1);
        REQUIRE(made.make_resident(data, bytes, made.devices()[0]));
        std::vector<std::uint64_t> plain(bytes / 8);
        driver.fail_next(op::memcpy, refusal);
        CHECK(made.copy(plain.data(), data, bytes).code == refusal);
        driver.plan(op::memcpy, {.fail_at = 2, .code = refusal});
        CHECK(made.copy(plain.data(), data, bytes).code == refusal);
        CHECK(made.copy(plain.data(), data, bytes));
        CHECK(count_wrong<std::uint64_t>(plain.data(), bytes, 1) == 0);
        // Nothing is held any more.
        CHECK(made.make_resident(data, bytes, any_host));
        CHECK(made.is_valid());
    }
}

namespace {

// Software devices whose regions lie where the test wants them.
struct placed_soft : faulty_soft {
    using faulty_soft::faulty_soft;
    result<va_range> va_examine(va_range range, std::size_t alignment) noexcept {
        return inner().va_examine({next != 0 ? next : range.begin, range.bytes}, alignment);
    }
    address next = 0;
};
static_assert(backend<placed_soft>);

}  // namespace

TEST_CASE("transfer: a copy into a region that is mapped anew meanwhile, with smaller granules") {
    soft::device_options slow = device_of(128_MiB);
    slow.link_in_bytes_per_second = 50'000'000;
    auto inner = xmm::detail::make_soft_driver({slow}, machine_topology());
    REQUIRE(inner);
    placed_soft driver{**inner};
    // Of a copy 16 pieces are under preparation while 16 are under way: it waits with the 33rd in hand.
    constexpr std::size_t begin_bytes = 64_MiB;
    constexpr std::size_t end_bytes = 4_MiB;
    void* addresses = ::mmap(nullptr, begin_bytes + 2 * end_bytes, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(addresses != MAP_FAILED);
    {
        space made = space::create_on(driver).value();
        const node_id device = made.devices()[0];
        driver.next = align_up(to_address(addresses), end_bytes);
        auto first = made.map(begin_bytes, {.granule_bytes = 2_MiB, .preferred = device});
        REQUIRE(first);
        driver.next += begin_bytes;
        auto last = made.map(end_bytes, {.granule_bytes = end_bytes, .preferred = device});
        REQUIRE(last);
        std::vector<unsigned char> plain(begin_bytes + end_bytes, 1);
        status outcome;
        std::thread copying{[&] {
            outcome = made.state().engine.copies.copy(
                {to_address(*first), true}, {to_address(plain.data()), false}, plain.size());
        }};
        nap(200);  // of 670 ms and more
        CHECK(made.unmap(*last));
        CHECK(made.map(end_bytes, {.granule_bytes = 2_MiB, .preferred = device}));
        copying.join();
        CHECK(outcome.code == errc::not_mapped);
    }
    ::munmap(addresses, begin_bytes + 2 * end_bytes);
}
