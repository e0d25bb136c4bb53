// SPDX-License-Identifier: Apache-2.0
// The mode `managed`: the backend beside the contract, and spaces over it, by whatever driver is found. What was on a
// device, and whether the driver had to make room, only the software driver tells.
#include <xmm/xmm.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory_resource>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "../support/cuda_managed.hpp"

namespace {

using namespace xmm;
using namespace xmm::literals;

bool has_no_managed() {
    const status state = test::managed_state();
    if (!state) {
        MESSAGE("skipped, no managed memory: ", std::string{state.why}, " (", state.driver_code,
                ")");
    }
    return !state;
}

// A space of its own, so that budgets and counts are the test's.
struct managed_rig {
    std::unique_ptr<cuda::managed> driver;
    space of;
    node_id device = of.devices()[0];
    node_id host = of.hosts()[0];
    test::cuda_word_mover mover;
    queue_id own;
    std::uint64_t* word;
    test::soft_cuda_controls soft = test::find_soft_cuda();
    test::soft_managed_controls pages = test::find_soft_managed();

    explicit managed_rig(std::size_t budget = 32_MiB, const char* policy = "first_touch",
                         std::size_t devices = 1, std::uint64_t link = 0)
        : driver{std::move(test::open_managed(devices, 78, link).value())},
          of{space::create_on(*driver, {.policy = policy}).value()} {
        CHECK(of.set_budget(device, budget));
        own = driver->queue_create(device, queue_priority::normal).value();
        word = test::cuda_word_mover::make_word(*native().device_of(own));
        // The kernel is loaded now: to load one may wait for all work of the context, also for a host call that
        // waits for the test.
        const cuda::stream line{native(), own};
        CHECK(mover.move(line, to_address(word), to_address(word)));
        CHECK(line.synchronize());
        if (soft) {
            soft.reset();
        }
    }
    ~managed_rig() {
        test::cuda_word_mover::drop_word(*native().device_of(own), word);
        driver->queue_destroy(own);
        CHECK(of.set_budget(device, no_budget));
    }
    cuda::vmm& native() { return *driver->native(); }
    queue make_queue() { return make_queue(device); }
    queue make_queue(node_id on) { return std::move(of.make_queue(on).value()); }
    std::uint64_t* map(std::size_t bytes, const map_options& wanted = {}) {
        return static_cast<std::uint64_t*>(of.map(bytes, wanted).value());
    }
    node_id home(const void* at) { return of.residency_of(at).value(); }
    status load(queue& line, const std::uint64_t* at, std::uint64_t& value) {
        auto point = launch(line, {reads(at, 8)}, [&](cuda_stream& s) {
            return mover.move(s, to_address(word), to_address(at));
        });
        const status done = point ? line.wait(*point) : point.error();
        value = *word;
        return done;
    }
    status store(queue& line, std::uint64_t* at, std::uint64_t value) {
        *word = value;
        auto point = launch(line, {writes(at, 8)}, [&](cuda_stream& s) {
            return mover.move(s, to_address(at), to_address(word));
        });
        return point ? line.wait(*point) : point.error();
    }
    // A launch that names the range, and is under way until told otherwise.
    result<ticket> name_until(queue& line, std::uint64_t* at, std::size_t bytes,
                              std::atomic<bool>& may_go) {
        return launch(line, {reads_writes(at, bytes)}, [&](cuda_stream& s) {
            return s.owner().call(
                s.queue(),
                [](void* go) noexcept {
                    while (!static_cast<std::atomic<bool>*>(go)->load()) {
                        std::this_thread::yield();
                    }
                },
                &may_go);
        });
    }
    // As the CPU's touch does on a device that is no software: the pages come to the host, and xmm is not told.
    void take_unseen(std::uint64_t* at, std::size_t bytes) {
        const va_range range{to_address(at), bytes};
        auto point = driver->place(own, {&range, 1}, host);
        REQUIRE(point);
        REQUIRE(driver->wait(*point));
    }
    // By the software driver: 0 the first device, -1 the host, -2 nowhere. On a real one it answers `otherwise`.
    int really(const void* at, int otherwise) {
        return pages ? pages.residency(to_address(at)) : otherwise;
    }
    unsigned long long count(const char* name) { return pages ? pages.count(name) : 0; }
    std::size_t held() { return soft ? soft.held(0) : 0; }
    template <class T>
    T told(cuda::CUmem_range_attribute which, const void* at, std::size_t bytes) {
        const cuda::device& on = *native().device_of(own);
        const cuda::current_context here{on.calls(), on.context()};
        T value{};
        CHECK(on.calls().call(&cuda::driver_api::mem_range_get_attribute,
                              static_cast<void*>(&value), sizeof value, which,
                              cuda::CUdeviceptr{to_address(at)}, bytes));
        return value;
    }
};

}  // namespace

TEST_CASE("managed: ranges are the driver's choice, aligned as asked") {
    if (has_no_managed()) {
        return;
    }
    auto opened = test::open_managed(1);
    cuda::managed& b = **opened;
    std::vector<va_range> all;
    for (const std::size_t alignment : {page_bytes, 32_MiB, 512_MiB}) {
        auto range = b.va_examine({0, 6_MiB}, alignment);
        REQUIRE(range);
        CHECK(range->begin % alignment == 0);
        std::memset(to_pointer(range->begin), 1, range->bytes);
        for (const va_range& other : all) {
            CHECK_FALSE(other.overlaps(*range));
        }
        all.push_back(*range);
    }
    CHECK(b.va_examine({all[0].end() + 512_MiB, 2_MiB}, page_bytes).code() == errc::unsupported);
    CHECK(b.va_examine({0, page_bytes}, std::size_t{1} << 50).code() == errc::no_memory);
    for (const va_range& one : all) {
        b.va_release(one);
    }
    const node_description about = b.describe(b.nodes()[0]).value();
    CHECK(about.able.has(ability::cpu_coherent));
    CHECK(about.able.has(ability::concurrent_access));
    CHECK(about.able.has(ability::moves_under_access));
    CHECK_FALSE(about.able.has(ability::device_faults));  // nobody tells us of them
    CHECK_FALSE(about.able.has(ability::host_frames));
    CHECK(b.describe(no_node).code() == errc::unknown_node);
    CHECK(b.free_bytes(b.nodes()[0]).value() <= about.bytes);
}

TEST_CASE("managed: what lies in a row is one call, and a refused one leaves all as it was") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r;
    if (!r.soft) {
        MESSAGE("skipped: a driver that counts and fails is needed");
        return;
    }
    const va_range range = r.driver->va_examine({0, 8_MiB}, page_bytes).value();
    queue line = r.make_queue();
    const va_range parts[] = {
        {range.begin, 2_MiB}, {range.begin + 2_MiB, 2_MiB}, {range.begin + 6_MiB, 2_MiB}};
    REQUIRE(line.wait(r.driver->place(line.id(), parts, r.device).value()));
    CHECK(r.soft.calls("cuMemPrefetchAsync") == 2);
    CHECK(r.really(to_pointer(range.begin + 6_MiB), 0) == 0);
    CHECK(r.really(to_pointer(range.begin + 4_MiB), -2) == -2);
    r.soft.fail("cuMemPrefetchAsync", 1, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(r.driver->place(line.id(), parts, r.host).code() == errc::no_memory);
    r.soft.fail("cuMemAdvise", 0, 1, cuda::CUDA_ERROR_INVALID_VALUE);
    CHECK(r.driver->advise(parts, driver_advice::read_mostly, r.host).code ==
          errc::invalid_argument);
    r.soft.fail("cuMemRangeGetAttributes", 0, 1, cuda::CUDA_ERROR_INVALID_VALUE);
    node_id where = no_node;
    CHECK(r.driver->residency({&range, 1}, {&where, 1}).code == errc::invalid_argument);
    r.soft.fail("cuMemAllocManaged", 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(r.driver->va_examine({0, 2_MiB}, page_bytes).code() == errc::no_memory);
    CHECK(line.wait(line.record().value()));
    r.driver->va_release(range);
    CHECK(r.held() == 0);
    r.soft.attribute(0, cuda::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0);
    CHECK(test::open_managed(1, 5).code() == errc::unsupported);
    r.soft.attribute(0, cuda::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1);
    CHECK(test::open_managed(1, 5));
}

TEST_CASE("managed: one pointer; the CPU writes, a kernel reads and writes, the CPU reads") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r;
    queue line = r.make_queue();
    std::uint64_t* data = r.map(8_MiB);
    CHECK(r.home(data) == no_node);  // unknown: nobody has placed it
    CHECK(data[1000] == 0);
    for (std::size_t i = 0; i < 8_MiB / 8; ++i) {
        data[i] = i;
    }
    std::uint64_t seen = 0;
    REQUIRE(r.load(line, data + 12345, seen));
    CHECK(seen == 12345);
    CHECK(r.home(data) == r.device);
    CHECK(r.really(data, 0) == 0);
    REQUIRE(r.store(line, data + 77, 1000));
    REQUIRE(r.store(line, data + 8_MiB / 8 - 1, 2000));
    CHECK(data[77] == 1000);
    CHECK(data[8_MiB / 8 - 1] == 2000);
    CHECK(data[78] == 78);
    CHECK(r.of.usage(r.device)->used == 4_MiB);  // of the two pages that were named
    // No kernel had to fetch anything: what it named was there.
    CHECK(r.count("managed faults") == 0);
    CHECK(r.count("managed remote accesses") == 0);
    CHECK(r.of.is_valid());
    REQUIRE(r.of.unmap(data));
    CHECK(r.of.usage(r.device)->used == 0);
    CHECK(r.of.usage(r.host)->used == 0);
    CHECK(r.held() == 0);
}

TEST_CASE("managed: what the CPU took back unseen is placed again by the launch that names it") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r;
    queue line = r.make_queue();
    std::uint64_t* data = r.map(8_MiB, {.granule_bytes = 2_MiB});
    std::iota(data, data + 8_MiB / 8, std::uint64_t{1});
    REQUIRE(launch(line, {reads(data, 8_MiB)}, [](cuda_stream&) {}));
    REQUIRE(line.synchronize());
    CHECK(r.really(data, 0) == 0);
    r.take_unseen(data, 4_MiB);
    CHECK(r.really(data, -1) == -1);
    CHECK(r.home(data) == r.device);  // where it was placed last
    std::uint64_t seen = 0;
    REQUIRE(r.load(line, data + 9, seen));
    CHECK(seen == 10);
    CHECK(r.really(data, 0) == 0);
    CHECK(r.really(data + 2_MiB / 8, -1) == -1);  // not named
    for (const bool is_hint : {true, false}) {
        r.take_unseen(data, 8_MiB);
        const status placed = is_hint ? r.of.advise(r.device, data, 8_MiB, advice::will_need)
                                      : r.of.make_resident(data, 8_MiB, r.device);
        CHECK(placed);
        CHECK(r.really(data + 4_MiB / 8, 0) == 0);
    }
    CHECK(r.of.usage(r.device)->used == 8_MiB);
    CHECK(r.count("managed faults") == 0);
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("managed: launches place what they name once in the time that a copy of it takes") {
    if (has_no_managed()) {
        return;
    }
    constexpr std::uint64_t link = 4 * page_bytes;  // 8 pages take 2 s, one page 0.25 s
    managed_rig r{32_MiB, "first_touch", 1, link};
    CHECK(r.driver->describe(r.device)->link_in_bytes_per_second == link);
    queue line = r.make_queue();
    std::uint64_t* data = r.map(16_MiB, {.granule_bytes = 2_MiB});
    std::iota(data, data + 16_MiB / 8, std::uint64_t{1});
    const auto name = [&](std::size_t bytes) {
        REQUIRE(launch(line, {reads(data, bytes)}, [](cuda_stream&) {}));
        REQUIRE(line.synchronize());
    };
    name(16_MiB);
    CHECK(r.really(data, 0) == 0);
    r.take_unseen(data, 8_MiB);
    name(16_MiB);
    CHECK(r.really(data, -1) == -1);
    std::this_thread::sleep_for(std::chrono::milliseconds{300});
    name(8);
    CHECK(r.really(data, 0) == 0);
    CHECK(r.really(data + 2_MiB / 8, -1) == -1);
    // A hint is followed at once.
    REQUIRE(r.of.advise(r.device, data, 16_MiB, advice::will_need));
    CHECK(r.really(data + 2_MiB / 8, 0) == 0);
    for (std::size_t i = 0; i < 16_MiB / 8; i += 1000) {
        REQUIRE(data[i] == i + 1);
    }
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("managed: hints, to the device and back, contents kept") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r;
    std::uint64_t* data = r.map(16_MiB);
    std::iota(data, data + 16_MiB / 8, std::uint64_t{3});
    CHECK(r.of.advise(r.device, data, 16_MiB, advice::will_need));
    CHECK(r.home(data) == r.device);
    CHECK(r.really(data + 16_MiB / 8 - 1, 0) == 0);
    CHECK(data[5] == 8);
    CHECK(r.of.advise(r.host, data, 16_MiB, advice::will_need));
    CHECK(r.home(data) == r.host);
    CHECK(r.really(data, -1) == -1);
    CHECK(r.held() == 0);
    CHECK(r.of.make_resident(data, 16_MiB, r.device));
    CHECK(r.of.usage(r.device)->used == 16_MiB);
    CHECK(r.of.make_resident(data, 16_MiB, any_host));
    CHECK(r.of.usage(r.device)->used == 0);
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < 16_MiB / 8; ++i) {
        wrong += data[i] != i + 3 ? 1 : 0;
    }
    CHECK(wrong == 0);
    {
        CHECK(r.of.make_resident(data, 16_MiB, r.device));
        auto held = r.of.access_on_host(data, 16_MiB);
        REQUIRE(held);
        CHECK(r.really(data, -1) == -1);
        queue line = r.make_queue();
        std::uint64_t seen = 0;  // a kernel works on it all the same, where it is
        REQUIRE(r.load(line, data + 4, seen));
        CHECK(seen == 7);
        CHECK(r.held() == 0);
    }
    // More than the budget: the leading part, and no more.
    std::uint64_t* large = r.map(48_MiB, {.granule_bytes = 2_MiB});
    CHECK(r.of.advise(r.device, large, 48_MiB, advice::will_need));
    CHECK(r.of.usage(r.device)->used <= 32_MiB);
    CHECK(r.held() <= 32_MiB);
    CHECK(r.home(large) == r.device);
    CHECK(r.of.advise(r.device, large, 48_MiB, advice::dont_need));
    CHECK(r.of.usage(r.device)->used == 0);
    CHECK(r.held() == 0);
    large[7] = 7;
    CHECK(large[7] == 7);
    CHECK(r.of.is_valid());
    CHECK(r.count("managed evictions") == 0);
    REQUIRE(r.of.unmap(large));
    REQUIRE(r.of.unmap(data));
}

TEST_CASE(
    "managed: one and a half times the budget; every word is right, the driver never evicts") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r{64_MiB};
    queue line = r.make_queue();
    constexpr std::size_t bytes = 96_MiB;
    constexpr std::size_t stride = page_bytes / 8;
    std::uint64_t* data = r.map(bytes, {.granule_bytes = 2_MiB});
    std::uint64_t wrong = 0;
    std::size_t most = 0;
    for (std::size_t at = 0; at < bytes / 8; at += stride) {
        data[at + 5] = at;
    }
    for (std::uint64_t round = 0; round < 3; ++round) {
        for (std::size_t at = 0; at < bytes / 8; at += stride) {
            REQUIRE(r.store(line, data + at + 10 + round, at + round));
            most = std::max({most, r.held(), r.of.usage(r.device)->used});
        }
    }
    for (std::size_t at = 0; at < bytes / 8; at += stride) {
        std::uint64_t seen = 0;
        REQUIRE(r.load(line, data + at + 11, seen));
        wrong += seen != at + 1 ? 1 : 0;
        wrong += data[at + 10] != at || data[at + 12] != at + 2 || data[at + 5] != at ? 1 : 0;
        most = std::max({most, r.held(), r.of.usage(r.device)->used});
    }
    CHECK(wrong == 0);
    CHECK(most <= 64_MiB);
    CHECK(most > 32_MiB);
    CHECK(r.count("managed evictions") == 0);
    CHECK(r.count("managed faults") == 0);
    CHECK(r.count("managed remote accesses") == 0);
    CHECK(r.of.is_valid());
    CHECK(r.of.set_budget(r.device, 16_MiB));  // at once
    CHECK(r.held() <= 16_MiB);
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("managed: what others take of the device is given up before the driver has to evict") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r{no_budget};
    auto* take = test::find_in_libcuda<cuda::CUresult(int, std::size_t)>("xmmSoftCudaTake");
    const std::size_t bytes = r.of.describe(r.device)->bytes;
    if (take == nullptr || bytes > 1_GiB) {
        MESSAGE("skipped: a device that another process uses on request is needed");
        return;
    }
    const std::size_t headroom = r.of.describe(r.device)->headroom_bytes;
    const std::size_t much = align_down(bytes / 2, page_bytes);
    std::uint64_t* data = r.map(much, {.granule_bytes = 2_MiB});
    CHECK(r.of.make_resident(data, much, r.device));
    CHECK(r.held() == much);
    const std::size_t theirs = bytes - much - 4_MiB;
    REQUIRE(take(0, theirs) == cuda::CUDA_SUCCESS);
    for (int tries = 0; tries < 200 && r.held() > bytes - theirs - headroom; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds{20});
    }
    CHECK(r.held() <= bytes - theirs - headroom);
    CHECK(r.held() > 0);
    CHECK(r.count("managed evictions") == 0);
    CHECK(take(0, 0) == cuda::CUDA_SUCCESS);
    REQUIRE(r.of.unmap(data));
    // The next look finds all of it free.
    for (int tries = 0; tries < 200 && r.of.usage(r.device)->limit < much; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds{20});
    }
    CHECK(r.of.usage(r.device)->limit >= much);
}

TEST_CASE("managed: a launch that names more than the budget works on the rest over the link") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r{16_MiB};
    queue line = r.make_queue();
    constexpr std::size_t stride = page_bytes / 8;
    std::uint64_t* data = r.map(24_MiB, {.granule_bytes = 2_MiB});
    std::iota(data, data + 24_MiB / 8, std::uint64_t{0});
    std::atomic<int> failures{0};
    auto point = launch(line, {reads_writes(data, 24_MiB)}, [&](cuda_stream& s) {
        for (std::size_t i = 0; i < 11; ++i) {
            failures +=
                r.mover.move(s, to_address(data + i * stride), to_address(data + (i + 1) * stride))
                    ? 0
                    : 1;
        }
        return s.synchronize();
    });
    REQUIRE(point);
    REQUIRE(line.wait(*point));
    CHECK(failures == 0);
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < 11; ++i) {
        wrong += data[i * stride] != (i + 1) * stride ? 1 : 0;
    }
    CHECK(wrong == 0);
    CHECK(r.of.usage(r.device)->used <= 16_MiB);
    CHECK(r.held() <= 16_MiB);
    CHECK(r.count("managed evictions") == 0);
    CHECK(r.count("managed faults") == 0);
    CHECK((!r.pages || r.count("managed remote accesses") > 0));
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("managed: pages that a launch named stay until its work is done") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r{16_MiB};
    queue line = r.make_queue();
    queue other = r.make_queue();
    std::uint64_t* data = r.map(16_MiB, {.granule_bytes = 2_MiB});
    std::uint64_t* more = r.map(8_MiB, {.granule_bytes = 2_MiB});
    more[3] = 33;
    std::atomic<bool> may_go{false};
    auto point = r.name_until(line, data, 16_MiB, may_go);
    REQUIRE(point);
    std::uint64_t seen = 0;
    REQUIRE(r.load(other, more + 3, seen));
    CHECK(seen == 33);
    CHECK(r.home(more) == r.host);  // no room: over the link
    CHECK(r.home(data) == r.device);
    CHECK(r.of.set_budget(r.device, 8_MiB).code == errc::busy);
    CHECK(r.of.advise(r.host, data, 16_MiB, advice::will_need));  // a hint: not now
    CHECK(r.home(data) == r.device);
    may_go = true;
    REQUIRE(line.wait(*point));
    REQUIRE(line.synchronize());
    CHECK(r.of.set_budget(r.device, 8_MiB));
    CHECK(r.held() <= 8_MiB);
    REQUIRE(r.of.unmap(data));
    REQUIRE(r.of.unmap(more));
}

TEST_CASE(
    "managed: what no launch names is reached over the link, and takes nothing of the device") {
    if (has_no_managed()) {
        return;
    }
    for (const char* policy : {"mapped", "first_touch"}) {
        managed_rig r{32_MiB, policy};
        queue line = r.make_queue();
        std::uint64_t* data = r.map(4_MiB);
        const bool is_mapped = std::string{policy} == "mapped";
        for (std::uint64_t i = 1; i < 5; ++i) {
            data[i + 100] = i;
            std::uint64_t seen = 0;
            if (is_mapped) {
                REQUIRE(r.load(line, data + i + 100, seen));
                CHECK(r.home(data) == r.host);
            } else {
                auto point = launch(line, {}, [&](cuda_stream& s) {
                    return r.mover.move(s, to_address(r.word), to_address(data + i + 100));
                });
                REQUIRE(point);
                REQUIRE(line.wait(*point));
                seen = *r.word;
            }
            CHECK(seen == i);
            CHECK(r.really(data, -1) == -1);
        }
        CHECK(r.held() == 0);
        CHECK(r.of.usage(r.device)->used == 0);
        REQUIRE(r.of.unmap(data));
    }
}

TEST_CASE("managed: gmemcpy between unified pointers, plain memory, and in a queue's order") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r;
    queue line = r.make_queue();
    std::vector<std::uint64_t> plain(4_MiB / 8);
    std::iota(plain.begin(), plain.end(), std::uint64_t{9});
    std::uint64_t* a = r.map(4_MiB);
    std::uint64_t* b = r.map(4_MiB);
    std::uint64_t* c = r.map(4_MiB);
    REQUIRE(r.of.make_resident(a, 4_MiB, r.device));
    REQUIRE(r.of.copy(a, plain.data(), 4_MiB));
    REQUIRE(r.of.copy(b + 1, a, 4_MiB - 8));
    CHECK(b[1] == 9);
    CHECK(b[4_MiB / 8 - 1] == 4_MiB / 8 + 7);
    CHECK(r.really(a, 0) == 0);
    CHECK(r.really(b, -1) != 0);
    // What the CPU wrote without a word is no page of zeroes.
    c[17] = 170;
    c[18] = 180;
    REQUIRE(r.of.copy(a + 2, c + 17, 16));
    CHECK(a[3] == 180);
    CHECK(a[4] == 13);
    REQUIRE(r.of.copy(b + 5, c + 17, 8));
    CHECK(b[5] == 170);
    std::vector<std::uint64_t> back(2);
    REQUIRE(r.of.copy(back.data(), a + 2, 16));
    CHECK(back[0] == 170);
    auto point = r.of.copy(line, plain.data() + 3, b + 6, 800);
    REQUIRE(point);
    CHECK(line.wait(*point));
    CHECK(plain[3] == 14);
    CHECK(r.of.copy_failures() == 0);
    CHECK(r.of.copy(a, a + 1, 4096).code == errc::invalid_argument);
    CHECK(r.of.is_valid());
    for (std::uint64_t* one : {a, b, c}) {
        REQUIRE(r.of.unmap(one));
    }
}

TEST_CASE(
    "managed: advice is passed on: where pages stay, who reaches them, copies while there are "
    "some") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r{32_MiB, "mapped"};
    queue line = r.make_queue();
    std::uint64_t* data = r.map(4_MiB, {.granule_bytes = 2_MiB});
    using cuda::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
    using cuda::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE;
    using cuda::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
    const auto prefers_host = [&] {
        const int type = r.told<int>(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, data, 4_MiB);
        const int by = r.told<int>(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, data, 4_MiB);
        return type == cuda::CU_MEM_LOCATION_TYPE_HOST && by >= 0;
    };
    CHECK(prefers_host());
    // A device that is preferred gets the page although the policy leaves pages on the host.
    CHECK(r.of.advise(r.device, data, 2_MiB, advice::preferred));
    CHECK(prefers_host());  // its kernels shall fetch nothing that was not named
    data[1] = 5;
    std::uint64_t seen = 0;
    REQUIRE(r.load(line, data + 1, seen));
    CHECK(seen == 5);
    CHECK(r.home(data) == r.device);
    CHECK(r.of.advise(r.device, data, 2_MiB, advice::unset_preferred));

    CHECK(r.of.advise(r.host, data, 4_MiB, advice::read_mostly));
    CHECK(r.of.make_resident(data, 4_MiB, r.host));
    CHECK(r.told<int>(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, data, 4_MiB) == 0);
    data[1] = 6;
    REQUIRE(r.load(line, data + 1, seen));
    CHECK(seen == 6);
    CHECK(r.told<int>(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, data, 2_MiB) == 1);
    unsigned copies = 0;
    r.of.for_each_granule([&](const granule_view& one) { copies = std::max(copies, one.copies); });
    CHECK(copies == 2);
    CHECK(r.held() == (r.soft ? 2_MiB : 0));
    if (r.pages) {
        CHECK(r.count("managed duplicated") == 1);
    }
    // The copy is dropped, not carried home.
    const auto carried = r.count("bytes to host");
    CHECK(r.of.set_budget(r.device, 0));
    CHECK(r.held() == 0);
    CHECK(r.count("bytes to host") == carried);
    CHECK(r.told<int>(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, data, 4_MiB) == 0);
    CHECK(data[1] == 6);
    // A reader without room makes none either.
    REQUIRE(r.load(line, data + 1, seen));
    CHECK(seen == 6);
    CHECK(prefers_host());  // the launch needed it so
    CHECK(r.held() == 0);
    // A writer ends them and has the page alone.
    CHECK(r.of.set_budget(r.device, 32_MiB));
    CHECK(r.of.make_resident(data, 2_MiB,
                             r.device));  // so that kernels no longer reach it on the host
    CHECK(r.of.make_resident(data, 2_MiB, r.host));
    REQUIRE(r.load(line, data + 1, seen));
    CHECK(r.home(data) == r.host);
    REQUIRE(r.store(line, data + 1, 7));
    CHECK(data[1] == 7);
    CHECK(r.home(data) == r.device);
    CHECK(r.told<int>(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, data, 2_MiB) == 0);
    CHECK(r.of.usage(r.device)->used == r.held() + (r.soft ? 0 : 2_MiB));
    CHECK(r.of.is_valid());
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("managed: what lost its copies is mapped in place again, by a launch or in time") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r;
    using cuda::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
    constexpr std::size_t bytes = 8_MiB;
    std::uint64_t* data = r.map(bytes, {.granule_bytes = 2_MiB, .is_read_mostly = true});
    std::uint64_t* other = r.map(bytes, {.granule_bytes = 2_MiB});
    std::iota(data, data + bytes / 8, std::uint64_t{7});
    const int card = r.told<int>(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, other, bytes);
    CHECK(card >= 0);
    const auto lose_copies = [&] {
        REQUIRE(r.of.advise(r.device, data, bytes, advice::will_need));
        CHECK(r.told<int>(cuda::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, data, bytes) == 1);
        CHECK(r.told<int>(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, data, bytes) != card);
        REQUIRE(r.of.set_budget(r.device, 0));
        CHECK(r.told<int>(cuda::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, data, bytes) == 0);
        REQUIRE(r.of.set_budget(r.device, 32_MiB));
    };
    queue line = r.make_queue();
    SUBCASE("a launch that names it") {
        lose_copies();
        REQUIRE(r.of.set_budget(r.device, 0));  // it works on them over the link
        auto point = launch(line, {reads(data, bytes)}, [&](cuda_stream&) {
            CHECK(r.told<int>(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, data, bytes) == card);
        });
        REQUIRE(point);
        CHECK(line.wait(*point));
    }
    SUBCASE("nobody asks for it") {
        lose_copies();
        const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds{10};
        while (r.told<int>(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, data, bytes) != card &&
               std::chrono::steady_clock::now() < latest) {
            std::this_thread::sleep_for(std::chrono::milliseconds{5});
        }
        CHECK(r.told<int>(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, data, bytes) == card);
    }
    SUBCASE("copies come again") {
        std::uint64_t* next = r.map(bytes, {.granule_bytes = 2_MiB, .is_read_mostly = true});
        next[0] = 1;
        REQUIRE(r.of.advise(r.device, next, bytes, advice::will_need));
        lose_copies();
        REQUIRE(r.of.advise(r.device, data, bytes, advice::will_need));
        const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds{10};
        while (r.told<int>(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, next, bytes) != card &&
               std::chrono::steady_clock::now() < latest) {
            std::this_thread::sleep_for(std::chrono::milliseconds{5});
        }
        CHECK(r.told<int>(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, next, bytes) == card);
        std::this_thread::sleep_for(std::chrono::milliseconds{100});  // if its turn came after
        CHECK(r.told<int>(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, data, bytes) != card);
    }
    SUBCASE("its region goes") {
        std::uint64_t* gone = r.map(bytes, {.granule_bytes = 2_MiB, .is_read_mostly = true});
        gone[0] = 1;
        REQUIRE(r.of.advise(r.device, gone, bytes, advice::will_need));
        lose_copies();
        REQUIRE(r.of.unmap(gone));
        // What comes next to these addresses has nothing of it; the one beside it is mapped all the same.
        REQUIRE(r.of.set_budget(r.device, 0));
        auto point = launch(line, {reads(data, bytes)}, [](cuda_stream&) {});
        REQUIRE(point);
        CHECK(line.wait(*point));
        CHECK(r.told<int>(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, data, bytes) == card);
    }
    for (std::size_t i = 0; i < bytes / 8; i += 1000) {
        REQUIRE(data[i] == i + 7);
    }
    CHECK(r.of.unmap(data));
}

TEST_CASE("managed: two devices, copies on both, a page that goes from one to the other") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r{32_MiB, "first_touch", 2};
    if (r.of.devices().size() < 2) {
        MESSAGE("skipped: one device only");
        return;
    }
    const node_id second = r.of.devices()[1];
    queue lines[] = {r.make_queue(), r.make_queue(second)};
    std::uint64_t* data = r.map(2_MiB);
    std::uint64_t* weights = r.map(2_MiB, {.is_read_mostly = true});
    weights[1] = 11;
    std::uint64_t seen = 0;
    for (std::uint64_t round = 0; round < 4; ++round) {
        queue& line = lines[round % 2];
        REQUIRE(r.store(line, data + round, round));
        CHECK(r.home(data) == line.node());
        REQUIRE(r.load(line, weights + 1, seen));
        CHECK(seen == 11);
        CHECK(data[round] == round);
    }
    CHECK(r.home(weights) == r.host);  // which has them, too
    CHECK(r.of.usage(second)->used == 4_MiB);
    CHECK(r.of.usage(r.device)->used == 2_MiB);
    CHECK(r.held() == (r.soft ? 2_MiB : 0));
    REQUIRE(r.store(lines[0], weights + 1, 12));
    CHECK(r.of.usage(second)->used == 2_MiB);
    REQUIRE(r.load(lines[1], weights + 1, seen));
    CHECK(seen == 12);
    CHECK(r.count("managed evictions") == 0);
    CHECK(r.of.is_valid());
    REQUIRE(r.of.unmap(weights));
    REQUIRE(r.of.unmap(data));
    CHECK(r.of.usage(second)->used == 0);
}

TEST_CASE(
    "managed: copies of read-mostly pages are counted, whoever reads them and whatever was there") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r{32_MiB, "first_touch", 2};
    queue line = r.make_queue();
    std::uint64_t* data = r.map(2_MiB, {.is_read_mostly = true});
    std::uint64_t seen = 1;
    // Nobody had touched it: the device's copy is not the only one.
    REQUIRE(r.load(line, data + 1, seen));
    CHECK(seen == 0);
    CHECK(r.of.usage(r.device)->used == 2_MiB);
    CHECK(r.of.set_budget(r.device, 0));
    CHECK(r.held() == 0);
    CHECK(r.really(data, -1) == -1);
    if (r.of.devices().size() > 1) {
        const node_id second = r.of.devices()[1];
        queue other = r.make_queue(second);
        data[1] = 5;
        // One device has a copy, the other no room for one: before it, after it.
        for (int round = 0; round < 2; ++round) {
            REQUIRE(r.load(line, data + 1, seen));
            CHECK(seen == 5);
            CHECK(r.held() == 0);
            REQUIRE(r.load(other, data + 1, seen));
            CHECK(seen == 5);
            CHECK(r.held() == 0);
            CHECK(r.of.usage(second)->used == 2_MiB);
        }
    }
    CHECK(r.count("managed faults") == 0);
    CHECK(r.of.is_valid());
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("managed: a user's stream as a queue, and a container whose memory prefers the device") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r;
    const cuda::device& on = *r.native().device_of(r.own);
    const cuda::current_context here{on.calls(), on.context()};
    cuda::CUstream users = nullptr;
    REQUIRE(on.calls().call(&cuda::driver_api::stream_create_with_priority, &users, 1u, 0));
    unified_resource memory{port_of(r.of), r.device};
    {
        std::pmr::vector<std::uint64_t> numbers(1000, 7, &memory);
        auto line = r.of.adopt_stream(users);
        REQUIRE(line);
        CHECK(line->node() == r.device);
        std::uint64_t seen = 0;
        REQUIRE(r.load(*line, &numbers[500], seen));
        CHECK(seen == 7);
        CHECK(r.really(&numbers[500], 0) == 0);
        REQUIRE(r.store(*line, &numbers[500], 8));
        numbers.push_back(9);
        CHECK(numbers[500] == 8);
    }
    CHECK(on.calls().call(&cuda::driver_api::stream_synchronize, users));
    CHECK(on.calls().call(&cuda::driver_api::stream_destroy, users));
    CHECK(r.of.usage(r.device)->used == 0);
}

TEST_CASE("managed: pins keep a page from being demoted") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r{8_MiB};
    queue line = r.make_queue();
    std::uint64_t* data = r.map(16_MiB, {.granule_bytes = 2_MiB});
    REQUIRE(r.of.advise(r.device, data, 2_MiB, advice::pin));
    CHECK(r.really(data, 0) == 0);
    for (std::size_t at = 0; at < 16_MiB / 8; at += 2_MiB / 8) {
        REQUIRE(r.store(line, data + at, at));
    }
    CHECK(r.home(data) == r.device);
    CHECK(r.really(data, 0) == 0);
    CHECK(r.held() <= 8_MiB);
    CHECK(r.of.make_resident(data, 2_MiB, r.host).code == errc::busy);
    CHECK(r.of.advise(r.device, data, 2_MiB, advice::unpin));
    CHECK(r.of.make_resident(data, 2_MiB, r.host));
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("managed: what cannot be had is refused, and nothing changes") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r;
    CHECK(r.of.map(2_MiB, {.fixed = r.device}).code() == errc::unsupported);
    CHECK(r.of.map(2_MiB, {.fixed = r.host}).code() == errc::unsupported);
    CHECK(r.of.map(0).code() == errc::invalid_argument);
    CHECK(r.of.map(std::size_t{1} << 60).code() == errc::no_memory);
    CHECK(r.of.heap(r.device).code() == errc::unsupported);
    CHECK(r.of.heap(r.host).code() == errc::unsupported);
    std::uint64_t* data = r.map(4_MiB);
    CHECK(r.of.make_resident(data, 8_MiB, r.device).code == errc::not_mapped);
    CHECK(r.of.make_resident(data, 4_MiB, node_id{99}).code == errc::unknown_node);
    CHECK(r.of.advise(r.device, data, SIZE_MAX, advice::will_need).code == errc::invalid_argument);
    CHECK(r.of.unmap(data + 1).code == errc::not_mapped);
    CHECK(r.of.make_resident(data, 4_MiB, r.device));
    CHECK(r.of.attach(*r.driver).code == errc::busy);

    // Neither a driver of frames in this space, nor this one in a space of frames.
    soft::device_options one{.bytes = 64_MiB};
    soft::driver frames{{&one, 1}, std::array{node_id{40}}, std::array{r.host}};
    CHECK(r.of.attach(frames).code == errc::unsupported);
    auto software = space::create_soft({{.bytes = 64_MiB}});
    REQUIRE(software);
    CHECK(software->attach(*r.driver).code == errc::unsupported);
    CHECK(software->devices().size() == 1);

    // Between the two, the CPU copies.
    auto* theirs = static_cast<std::uint64_t*>(software->map(2_MiB).value());
    data[2] = 22;
    CHECK(software->copy(theirs + 1, data + 2, 8));
    CHECK(theirs[1] == 22);
    theirs[4] = 44;
    CHECK(r.of.copy(data + 3, theirs + 4, 8));
    CHECK(data[3] == 44);
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("managed: refused driver calls leave pages and ledgers as they were") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r;
    if (!r.soft) {
        MESSAGE("skipped: a driver that fails on request is needed");
        return;
    }
    queue line = r.make_queue();
    std::uint64_t* data = r.map(4_MiB, {.granule_bytes = 2_MiB});
    data[1] = 1;
    const auto refuse = [&](const char* name, unsigned skip = 0, unsigned times = 1) {
        r.soft.fail(name, skip, times, cuda::CUDA_ERROR_NOT_PERMITTED);
    };
    refuse("cuMemPrefetchAsync");
    CHECK_FALSE(r.of.make_resident(data, 4_MiB, r.device));
    CHECK(r.of.usage(r.device)->used == 0);
    CHECK(r.home(data) == r.host);
    // The one that places again what was named: nothing was launched.
    bool was_called = false;
    refuse("cuMemPrefetchAsync", 1);
    CHECK_FALSE(launch(line, {writes(data, 8)}, [&](cuda_stream&) { was_called = true; }));
    CHECK_FALSE(was_called);
    CHECK(r.of.usage(r.device)->used == 2_MiB);
    CHECK(r.of.make_resident(data, 4_MiB, r.host));  // no mark of a launch keeps it
    // A kernel's page that cannot be placed is used where it is.
    refuse("cuMemPrefetchAsync");
    REQUIRE(r.store(line, data + 1, 3));
    CHECK(r.home(data) == r.host);
    CHECK(data[1] == 3);
    // Back, and it is not to be had.
    CHECK(r.of.make_resident(data, 4_MiB, r.device));
    refuse("cuMemPrefetchAsync");
    CHECK_FALSE(r.of.make_resident(data, 4_MiB, r.host));
    CHECK(r.of.usage(r.device)->used == 4_MiB);
    CHECK(r.home(data) == r.device);
    refuse("cuMemPrefetchAsync", 0, 2);  // no room won: the budget stays exceeded, and says so
    CHECK(r.of.set_budget(r.device, 2_MiB).code == errc::busy);
    r.soft.reset();
    CHECK(r.of.set_budget(r.device, 2_MiB));
    CHECK(r.of.usage(r.device)->used <= 2_MiB);
    CHECK(r.of.set_budget(r.device, 32_MiB));
    // Copies that cannot be begun or ended.
    CHECK(r.of.make_resident(data, 4_MiB, r.host));
    CHECK(r.of.advise(r.host, data, 2_MiB, advice::read_mostly));
    refuse("cuMemAdvise");
    std::uint64_t seen = 0;
    REQUIRE(r.load(line, data + 1, seen));
    CHECK(seen == 3);
    CHECK(r.of.usage(r.device)->used == 0);
    REQUIRE(r.load(line, data + 1, seen));
    CHECK(r.of.usage(r.device)->used == 0);  // mapped in place by then
    CHECK(r.of.make_resident(data, 2_MiB, r.host));
    for (const unsigned skipped : {0u, 1u}) {  // the host's page first, then the copy
        CHECK(r.of.make_resident(data, 2_MiB, r.device));
        CHECK(r.of.make_resident(data, 2_MiB, r.host));
        refuse("cuMemPrefetchAsync", skipped);
        REQUIRE(r.load(line, data + 1, seen));
        CHECK(r.told<int>(cuda::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, data, 2_MiB) == 0);
        CHECK(r.of.usage(r.device)->used == 0);
        CHECK(r.held() == 0);
    }
    // A region of which the driver takes no advice is not there.
    refuse("cuMemAdvise");
    CHECK_FALSE(r.of.map(2_MiB));
    CHECK(r.of.is_valid());
    REQUIRE(r.of.unmap(data));
    CHECK(r.held() == 0);
}

TEST_CASE("managed: under capture a launch is refused and the capture goes on") {
    if (has_no_managed()) {
        return;
    }
    using begin_capture = cuda::CUresult(cuda::CUstream, cuda::CUstreamCaptureMode);
    using end_capture = cuda::CUresult(cuda::CUstream, void** graph);
    auto* begin = test::find_in_libcuda<begin_capture>("cuStreamBeginCapture_v2");
    auto* end = test::find_in_libcuda<end_capture>("cuStreamEndCapture");
    if (begin == nullptr || end == nullptr) {
        MESSAGE("skipped: no captures here");
        return;
    }
    managed_rig r;
    queue line = r.make_queue();
    std::uint64_t* data = r.map(2_MiB);
    const va_range range{to_address(data), 2_MiB};
    const cuda::device& on = *r.native().device_of(line.id());
    const cuda::current_context here{on.calls(), on.context()};
    REQUIRE(begin(r.native().stream_of(line.id()), cuda::CU_STREAM_CAPTURE_MODE_GLOBAL) ==
            cuda::CUDA_SUCCESS);
    CHECK(r.driver->place(line.id(), {&range, 1}, r.device).code() == errc::busy);
    CHECK(launch(line, {writes(data, 8)}, [](cuda_stream&) {}).code() == errc::busy);
    void* graph = nullptr;
    CHECK(end(r.native().stream_of(line.id()), &graph) == cuda::CUDA_SUCCESS);
    std::uint64_t seen = 1;
    REQUIRE(r.load(line, data, seen));
    CHECK(seen == 0);
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("managed: CPU threads and launches on the same pages at once") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r{8_MiB};
    constexpr std::size_t pages = 8;
    constexpr std::size_t stride = page_bytes / 8;
    std::uint64_t* data = r.map(pages * page_bytes, {.granule_bytes = 2_MiB});
    std::atomic<int> failures{0};
    std::atomic<bool> is_over{false};
    std::uint64_t cpu_rounds = 0;
    std::thread cpu{[&] {  // words of its own
        for (std::uint64_t i = 0; !is_over; ++i) {
            data[i % pages * stride + 1000] += 1;
            ++cpu_rounds;
            std::this_thread::yield();
        }
    }};
    std::thread hints{[&] {
        for (std::uint64_t i = 0; !is_over; ++i) {
            static_cast<void>(r.of.advise(i % 2 == 0 ? r.device : r.host, data + i % pages * stride,
                                          4096, advice::will_need));
        }
    }};
    {
        queue line = r.make_queue();
        for (std::uint64_t i = 0; i < 200; ++i) {
            std::uint64_t* at = data + i % pages * stride + i;
            failures += r.store(line, at, i) ? 0 : 1;
            std::uint64_t seen = 0;
            failures += r.load(line, at, seen) && seen == i ? 0 : 1;
            failures += r.held() > 8_MiB ? 1 : 0;
        }
    }
    is_over = true;
    cpu.join();
    hints.join();
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < pages; ++i) {
        sum += data[i * stride + 1000];
    }
    CHECK(sum == cpu_rounds);
    CHECK(failures == 0);
    CHECK(r.count("managed evictions") == 0);
    CHECK(r.of.is_valid());
    REQUIRE(r.of.unmap(data));
}

TEST_CASE(
    "managed: threads launch, advise, copy and write; words are right, no device holds too much") {
    if (has_no_managed()) {
        return;
    }
    constexpr std::size_t budget = 8_MiB;
    managed_rig r{budget, "first_touch", 2};
    const std::vector<node_id> devices = r.of.devices();
    for (const node_id one : devices) {
        CHECK(r.of.set_budget(one, budget));
    }
    constexpr std::size_t pages = 12;
    constexpr std::size_t stride = page_bytes / 8;
    std::uint64_t* regions[] = {
        r.map(pages * page_bytes, {.granule_bytes = 2_MiB}),
        r.map(pages * page_bytes, {.granule_bytes = 4_MiB}),
        r.map(pages * page_bytes, {.granule_bytes = 2_MiB, .is_read_mostly = true})};
    std::atomic<int> failures{0};
    std::atomic<int> left{4};
    std::size_t most = 0;
    const auto work = [&](std::uint64_t number) {
        // Its own words of every page, and what they should hold.
        std::array<std::array<std::uint64_t, pages>, 3> want{};
        std::uint64_t random = number * 0x9e3779b97f4a7c15u + 1;
        const auto next = [&](std::uint64_t below) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            return (random >> 33) % below;
        };
        const auto fail_if = [&](bool is_wrong) { failures += is_wrong ? 1 : 0; };
        queue line = r.make_queue(devices[number % devices.size()]);
        for (unsigned step = 0; step < 250; ++step) {
            const std::size_t i = next(3);
            const std::size_t from = next(pages);
            const std::size_t to = next(pages);
            const auto at = [&](std::size_t page) {
                return regions[i] + page * stride + number * 64;
            };
            const node_id node = next(2) == 0 ? r.host : devices[next(devices.size())];
            switch (next(8)) {
                case 0:
                case 1: *at(to) = want[i][to] = step + 1; break;
                case 2:
                case 3: {
                    if (from == to) {
                        break;
                    }
                    auto point =
                        launch(line, {reads(at(from), 8), writes(at(to), 8)}, [&](cuda_stream& s) {
                            return r.mover.move(s, to_address(at(to)), to_address(at(from)));
                        });
                    fail_if(!point || !line.wait(*point));
                    want[i][to] = want[i][from];
                    break;
                }
                case 4:
                    if (from != to) {
                        fail_if(!r.of.copy(at(to), at(from), 8));
                        want[i][to] = want[i][from];
                    }
                    break;
                case 5:
                    fail_if(!r.of.advise(node, regions[i] + to * stride, page_bytes,
                                         advice::will_need));
                    break;
                case 6:
                    fail_if(!r.of.advise(node, regions[i] + to * stride, page_bytes,
                                         next(2) == 0 ? advice::cold : advice::preferred));
                    break;
                case 7: {
                    auto point = launch(line, {reads(regions[i], pages * page_bytes / 2)},
                                        [](cuda_stream&) {});
                    fail_if(!point);
                    break;
                }
            }
            fail_if(*at(to) != want[i][to]);
        }
        fail_if(!line.synchronize());
        --left;
    };
    std::vector<std::thread> threads;
    for (std::uint64_t number = 0; number < 4; ++number) {
        threads.emplace_back(work, number);
    }
    while (left > 0) {
        for (std::size_t i = 0; i < devices.size() && r.soft; ++i) {
            most = std::max(most, r.soft.held(static_cast<int>(i)));
        }
        std::this_thread::yield();
    }
    for (std::thread& one : threads) {
        one.join();
    }
    CHECK(failures == 0);
    CHECK(most <= budget);
    CHECK(r.count("managed evictions") == 0);
    CHECK(r.of.is_valid());
    for (std::uint64_t* one : regions) {
        REQUIRE(r.of.unmap(one));
    }
    for (const node_id one : devices) {
        CHECK(r.of.usage(one)->used == 0);
        CHECK(r.of.set_budget(one, no_budget));
    }
}

TEST_CASE("managed: the loss of the device") {
    if (has_no_managed()) {
        return;
    }
    managed_rig r;
    if (!r.soft) {
        MESSAGE("skipped: a device that can be lost is needed");
        return;
    }
    queue line = r.make_queue();
    std::uint64_t* data = r.map(4_MiB, {.granule_bytes = 2_MiB});
    data[1] = 1;
    data[2_MiB / 8] = 2;
    CHECK(r.of.make_resident(data, 2_MiB, r.device));
    REQUIRE(r.soft.break_device(0, cuda::CUDA_ERROR_ILLEGAL_ADDRESS) == cuda::CUDA_SUCCESS);
    CHECK(launch(line, {reads(data, 8)}, [](cuda_stream&) {}).code() == errc::device_lost);
    CHECK(r.of.make_resident(data, 4_MiB, r.device).code == errc::device_lost);
    CHECK(r.of.make_resident(data, 2_MiB, r.host).code == errc::device_lost);
    CHECK(r.of.make_resident(data + 2_MiB / 8, 2_MiB, r.host));  // it never left
    CHECK(data[2_MiB / 8] == 2);
    CHECK(r.of.advise(r.device, data, 4_MiB, advice::will_need));  // hints are dropped
    CHECK(r.of.advise(r.device, data, 4_MiB, advice::dont_need));
    CHECK(r.of.is_valid());
    CHECK(r.of.unmap(data));
    CHECK(r.of.usage(r.device)->used == 0);
}
