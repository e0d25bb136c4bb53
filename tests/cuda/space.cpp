// SPDX-License-Identifier: Apache-2.0
// Spaces on CUDA devices, by whatever driver is found: the floors above on this backend, launches, users' streams.
#include <xmm/xmm.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "../support/cuda_device.hpp"

namespace {

using namespace xmm;
using namespace xmm::literals;

bool has_no_cuda() {
    const status state = test::cuda_state();
    if (!state) {
        MESSAGE("skipped, no CUDA: ", std::string{state.why}, " (", state.driver_code, ")");
    }
    return !state;
}

// A space of its own over one device, so that budgets and counts are the test's.
struct rig {
    std::unique_ptr<cuda::vmm> driver;
    space of;
    node_id device = of.devices()[0];
    node_id host = of.hosts()[0];
    test::cuda_word_mover mover;
    std::uint64_t* word;

    explicit rig(std::size_t budget = 32_MiB, const char* policy = "first_touch",
                 std::size_t devices = 1, bool has_host_handles = false)
        : driver{std::move(test::open_cuda(devices, 77, has_host_handles).value())},
          of{space::create_on(*driver, {.policy = policy}).value()} {
        CHECK(of.set_budget(device, budget));
        queue line = make_queue();
        word = test::cuda_word_mover::make_word(*driver->device_of(line.id()));
    }
    ~rig() {
        queue line = make_queue();
        test::cuda_word_mover::drop_word(*driver->device_of(line.id()), word);
        CHECK(of.set_budget(device, no_budget));
    }
    queue make_queue() { return std::move(of.make_queue(device).value()); }
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
    // A load that is enqueued at once and runs when it may.
    result<ticket> load_after(queue& line, const std::uint64_t* at, std::atomic<bool>& may_go) {
        return launch(line, {reads(at, 8)}, [&](cuda_stream& s) {
            auto blocked = s.owner().call(
                s.queue(),
                [](void* go) noexcept {
                    while (!static_cast<std::atomic<bool>*>(go)->load()) {
                        std::this_thread::yield();
                    }
                },
                &may_go);
            return blocked ? mover.move(s, to_address(word), to_address(at)) : blocked.error();
        });
    }
    status store(queue& line, std::uint64_t* at, std::uint64_t value) {
        *word = value;
        auto point = launch(line, {writes(at, 8)}, [&](cuda_stream& s) {
            return mover.move(s, to_address(at), to_address(word));
        });
        return point ? line.wait(*point) : point.error();
    }
};

}  // namespace

TEST_CASE("a space on CUDA devices, or the reason why there is none") {
    auto made = space::create({.devices = device_kind::cuda});
    if (!made) {
        CHECK(made.code() == errc::unsupported);
        CHECK(std::string{made.error().why} != "");
        auto other = space::create();  // the best there is: software devices
        CHECK(other);
        CHECK(other->devices().size() == 1);
        return;
    }
    CHECK_FALSE(made->devices().empty());
    for (const node_id one : made->devices()) {
        MESSAGE(std::string{made->describe(one)->name.data()});
    }
    auto soft = space::create({.devices = device_kind::soft});
    REQUIRE(soft);
    CHECK(soft->devices()[0] != made->devices()[0]);
}

TEST_CASE("one pointer: the CPU writes, a kernel reads and writes, the CPU reads") {
    if (has_no_cuda()) {
        return;
    }
    rig r;
    queue line = r.make_queue();
    std::uint64_t* data = r.map(8_MiB);
    for (std::size_t i = 0; i < 8_MiB / 8; ++i) {
        data[i] = i;
    }
    CHECK(r.home(data) == r.host);
    std::uint64_t seen = 0;
    REQUIRE(r.load(line, data + 12345, seen));
    CHECK(seen == 12345);
    REQUIRE(r.store(line, data + 77, 1000));
    REQUIRE(r.store(line, data + 8_MiB / 8 - 1, 2000));
    CHECK(data[77] == 1000);
    CHECK(data[8_MiB / 8 - 1] == 2000);
    CHECK(data[78] == 78);
    CHECK(r.of.is_valid());
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("a function that takes no CUDA stream is refused; overloads take the right one") {
    if (has_no_cuda()) {
        return;
    }
    rig r;
    queue line = r.make_queue();
    CHECK(launch(line, {}, [](soft::stream&) {}).code() == errc::unsupported);
    bool was_cuda = false;
    CHECK(launch(line, {},
                 overloads{[&](soft::stream&) { was_cuda = false; },
                           [&](cuda_stream& s) {
                               was_cuda = true;
                               CHECK(s.native() != nullptr);
                               CHECK(s.ordinal() >= 0);
                               cuda::CUdevice current = -1;  // the runtime would find it
                               CHECK(cuda::driver::instance().call(
                                   &cuda::driver_api::ctx_get_device, &current));
                               CHECK(current == s.ordinal());
                           }}));
    CHECK(was_cuda);
}

TEST_CASE("hints: to the device and back, by a pair of copies, contents kept") {
    if (has_no_cuda()) {
        return;
    }
    rig r;
    std::uint64_t* data = r.map(16_MiB);
    std::iota(data, data + 16_MiB / 8, std::uint64_t{3});
    CHECK(r.of.advise(r.device, data, 16_MiB, advice::will_need));
    CHECK(r.home(data) == r.device);
    CHECK(r.home(data + 16_MiB / 8 - 1) == r.device);
    CHECK(r.of.make_resident(data, 16_MiB, r.host));
    CHECK(r.home(data) == r.host);
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < 16_MiB / 8; ++i) {
        wrong += data[i] != i + 3 ? 1 : 0;
    }
    CHECK(wrong == 0);
    CHECK(r.of.make_resident(data, 16_MiB, r.device));
    CHECK(data[5] == 8);  // a CPU touch brings it back
    CHECK(r.home(data) == r.host);
    {
        CHECK(r.of.make_resident(data, 16_MiB, r.device));
        auto held = r.of.access_on_host(data, 16_MiB);
        REQUIRE(held);
        CHECK(data[16_MiB / 8 - 1] == 16_MiB / 8 + 2);
    }
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("three times the budget: every word is right, the device never holds more") {
    if (has_no_cuda()) {
        return;
    }
    rig r{32_MiB};
    queue line = r.make_queue();
    constexpr std::size_t bytes = 96_MiB;
    constexpr std::size_t stride = page_bytes / 8;
    std::uint64_t* data = r.map(bytes, {.granule_bytes = 2_MiB});
    std::uint64_t wrong = 0;
    for (std::uint64_t round = 0; round < 2; ++round) {
        for (std::size_t at = 0; at < bytes / 8; at += stride) {
            REQUIRE(r.store(line, data + at + round, at + round));
            CHECK(r.of.usage(r.device)->used <= 32_MiB);
        }
    }
    for (std::size_t at = 0; at < bytes / 8; at += stride) {
        std::uint64_t seen = 0;
        REQUIRE(r.load(line, data + at + 1, seen));
        wrong += seen != at + 1 ? 1 : 0;
        wrong += data[at] != at ? 1 : 0;
    }
    CHECK(wrong == 0);
    CHECK(r.of.is_valid());
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("the policy `mapped`: a kernel works on host pages where they are, beside the CPU") {
    if (has_no_cuda()) {
        return;
    }
    rig r{32_MiB, "mapped"};
    queue line = r.make_queue();
    std::uint64_t* data = r.map(4_MiB);
    data[0] = 1;
    for (std::uint64_t i = 1; i < 20; ++i) {
        REQUIRE(r.store(line, data + i, i));
        CHECK(r.home(data) == r.host);
        CHECK(data[i] == i);
        data[i + 100] = i;
        std::uint64_t seen = 0;
        REQUIRE(r.load(line, data + i + 100, seen));
        CHECK(seen == i);
    }
    REQUIRE(r.of.unmap(data));
}

TEST_CASE(
    "a page that a device has in place moves while work waits for a function that needs the page") {
    if (has_no_cuda()) {
        return;
    }
    rig r{32_MiB, "mapped"};
    queue line = r.make_queue();
    std::uint64_t* data = r.map(2_MiB);
    std::uint64_t* other = r.map(2_MiB);
    data[0] = 1;
    other[0] = 2;
    REQUIRE(r.store(line, data + 1, 5));  // now it is mapped there
    REQUIRE(r.store(line, other + 1, 6));
    CHECK(r.home(data) == r.host);
    struct touch {
        std::atomic<bool> may_go{false};
        std::uint64_t* data;
    } later{{}, data};
    auto held = r.driver->call(
        line.id(),
        [](void* self) noexcept {
            auto& mine = *static_cast<touch*>(self);
            while (!mine.may_go.load()) {
                std::this_thread::yield();
            }
            mine.data[2] = 7;  // brings the page back, or waits until that can be
        },
        &later);
    REQUIRE(held);
    std::thread mover{[&] {
        CHECK(r.of.advise(r.device, data, 2_MiB, advice::preferred));
        CHECK(r.of.advise(r.device, data, 2_MiB, advice::will_need));
        CHECK(r.of.unmap(other));
    }};
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    later.may_go = true;
    mover.join();
    CHECK(line.wait(*held));
    std::uint64_t seen = 0;
    REQUIRE(r.load(line, data + 2, seen));
    CHECK(seen == 7);
    CHECK(data[0] == 1);
    CHECK(data[1] == 5);
    CHECK(r.of.is_valid());
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("gmemcpy between unified pointers, plain memory, and in a queue's order") {
    if (has_no_cuda()) {
        return;
    }
    rig r;
    queue line = r.make_queue();
    std::vector<std::uint64_t> plain(4_MiB / 8);
    std::iota(plain.begin(), plain.end(), std::uint64_t{9});
    std::uint64_t* a = r.map(4_MiB);
    std::uint64_t* b = r.map(4_MiB);
    REQUIRE(r.of.make_resident(a, 4_MiB, r.device));
    REQUIRE(r.of.copy(a, plain.data(), 4_MiB));
    REQUIRE(r.of.copy(b + 1, a, 4_MiB - 8));
    CHECK(b[1] == 9);
    CHECK(b[4_MiB / 8 - 1] == 4_MiB / 8 + 7);
    auto point = r.of.copy(line, plain.data() + 3, b + 5, 800);
    REQUIRE(point);
    CHECK(line.wait(*point));
    CHECK(plain[3] == 13);
    CHECK(r.of.copy_failures() == 0);
    REQUIRE(r.of.unmap(a));
    REQUIRE(r.of.unmap(b));
}

TEST_CASE("a user's stream as a queue of the space") {
    if (has_no_cuda()) {
        return;
    }
    rig r;
    queue own = r.make_queue();
    const cuda::device& on = *r.driver->device_of(own.id());
    const cuda::current_context here{on.calls(), on.context()};
    cuda::CUstream users = nullptr;
    REQUIRE(on.calls().call(&cuda::driver_api::stream_create_with_priority, &users, 1u, 0));
    std::uint64_t* data = r.map(2_MiB);
    data[3] = 33;
    {
        auto line = r.of.adopt_stream(users);
        REQUIRE(line);
        CHECK(line->node() == r.device);
        std::uint64_t seen = 0;
        REQUIRE(r.load(*line, data + 3, seen));
        CHECK(seen == 33);
        REQUIRE(r.store(*line, data + 4, 44));
        REQUIRE(
            launch(*line, {reads(data, 8)}, [&](cuda_stream& s) { CHECK(s.native() == users); }));
    }
    CHECK(on.calls().call(&cuda::driver_api::stream_synchronize, users));
    CHECK(on.calls().call(&cuda::driver_api::stream_destroy, users));
    CHECK(data[4] == 44);
    REQUIRE(r.of.unmap(data));
    auto software = space::create_soft({{.bytes = 64_MiB}});
    REQUIRE(software);
    CHECK(software->adopt_stream(nullptr).code() == errc::unsupported);
}

TEST_CASE(
    "a queue that ends while its stream is being captured leaves its heap's frames to nobody") {
    if (has_no_cuda()) {
        return;
    }
    rig r;
    using cuda::CUresult;
    auto* begin = test::find_in_libcuda<CUresult(cuda::CUstream, cuda::CUstreamCaptureMode)>(
        "cuStreamBeginCapture_v2");
    auto* end = test::find_in_libcuda<CUresult(cuda::CUstream, void**)>("cuStreamEndCapture");
    auto* drop = test::find_in_libcuda<CUresult(void*)>("cuGraphDestroy");
    if (begin == nullptr || end == nullptr || drop == nullptr) {
        MESSAGE("skipped: no captures here");
        return;
    }
    queue own = r.make_queue();
    const cuda::device& on = *r.driver->device_of(own.id());
    const cuda::current_context here{on.calls(), on.context()};
    cuda::CUstream users = nullptr;
    REQUIRE(on.calls().call(&cuda::driver_api::stream_create_with_priority, &users, 1u, 0));
    xpu_malloc& heap = *r.of.heap(r.device).value();
    {
        auto line = r.of.adopt_stream(users);
        REQUIRE(line);
        void* block = heap.allocate({.bytes = 20_MiB, .queue = line->id()}).value();
        REQUIRE(heap.deallocate(block, line->id()));
        REQUIRE(begin(users, cuda::CU_STREAM_CAPTURE_MODE_RELAXED) == cuda::CUDA_SUCCESS);
    }
    // What was enqueued before the capture may use them still.
    CHECK(heap.allocate({.bytes = 20_MiB, .queue = own.id()}).code() == errc::no_memory);
    CHECK(heap.trim() == 0);
    result<void*> small = heap.allocate({.bytes = 4_MiB, .queue = own.id()});
    REQUIRE(small);
    CHECK(heap.deallocate(*small, own.id()));
    void* graph = nullptr;
    CHECK(end(users, &graph) == cuda::CUDA_SUCCESS);
    CHECK(drop(graph) == cuda::CUDA_SUCCESS);
    CHECK(on.calls().call(&cuda::driver_api::stream_destroy, users));
}

TEST_CASE("a graph is replayed on what was touched, until the safe point") {
    if (has_no_cuda()) {
        return;
    }
    rig r;
    using cuda::CUresult;
    auto* begin = test::find_in_libcuda<CUresult(cuda::CUstream, cuda::CUstreamCaptureMode)>(
        "cuStreamBeginCapture_v2");
    auto* end = test::find_in_libcuda<CUresult(cuda::CUstream, void**)>("cuStreamEndCapture");
    auto* instantiate = test::find_in_libcuda<CUresult(void**, void*, unsigned long long)>(
        "cuGraphInstantiateWithFlags");
    auto* replay = test::find_in_libcuda<CUresult(void*, cuda::CUstream)>("cuGraphLaunch");
    auto* drop_replay = test::find_in_libcuda<CUresult(void*)>("cuGraphExecDestroy");
    auto* drop = test::find_in_libcuda<CUresult(void*)>("cuGraphDestroy");
    if (begin == nullptr || instantiate == nullptr) {
        MESSAGE("skipped: no captures here");
        return;
    }
    queue line = r.make_queue();
    const cuda::device& here = *r.driver->device_of(line.id());
    const cuda::current_context scope{here.calls(), here.context()};
    const cuda::CUstream stream = r.driver->stream_of(line.id());
    std::uint64_t* data = r.map(2_MiB);
    std::uint64_t* much = r.map(32_MiB, {.granule_bytes = 2_MiB});
    std::uint64_t seen = 0;
    REQUIRE(r.load(line, data + 3, seen));  // no capture bears the loading of a kernel
    data[3] = 1;
    void* graph = nullptr;
    void* exec = nullptr;
    REQUIRE(begin(stream, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL) == cuda::CUDA_SUCCESS);
    CHECK(touch(line, {reads(data, 8)}).code == errc::busy);
    // A kernel: a copy would be bound to what kind of memory its pointers are now.
    REQUIRE(
        r.mover.move(cuda_stream{*r.driver, line.id()}, to_address(r.word), to_address(data + 3)));
    REQUIRE(end(stream, &graph) == cuda::CUDA_SUCCESS);
    REQUIRE(instantiate(&exec, graph, 0) == cuda::CUDA_SUCCESS);
    for (std::uint64_t round = 1; round < 4; ++round) {
        data[3] = round;
        REQUIRE(touch(line, {reads_writes(data, 2_MiB)}));
        for (int again = 0; again < 2; ++again) {
            *r.word = 0;
            REQUIRE(replay(exec, stream) == cuda::CUDA_SUCCESS);
            REQUIRE(line.synchronize());
            CHECK(*r.word == round);
            // Others fill the device meanwhile.
            queue second = r.make_queue();
            for (std::size_t page = 0; page < 16; ++page) {
                REQUIRE(r.load(second, much + page * 2_MiB / 8, seen));
            }
            CHECK(r.home(data) == r.device);
        }
        REQUIRE(safe_point(line));
    }
    CHECK(drop_replay(exec) == cuda::CUDA_SUCCESS);
    CHECK(drop(graph) == cuda::CUDA_SUCCESS);
    REQUIRE(r.of.unmap(data));
    REQUIRE(r.of.unmap(much));
}

TEST_CASE("read-mostly pages: the CPU keeps its copy beside a kernel that reads the device's") {
    if (has_no_cuda()) {
        return;
    }
    rig r;
    if (!r.of.describe(r.device)->able.has(ability::split_cpu_view)) {
        MESSAGE("skipped: one view for all");
        return;
    }
    queue line = r.make_queue();
    std::uint64_t* data = r.map(2_MiB, {.is_read_mostly = true});
    data[1] = 5;
    std::uint64_t seen = 0;
    const auto faults = [&] { return r.of.statistics().nodes[0].counters.faults; };
    REQUIRE(r.load(line, data + 1, seen));
    CHECK(seen == 5);
    CHECK(data[1] == 5);
    const std::uint64_t before = faults();
    for (int round = 0; round < 3; ++round) {
        REQUIRE(r.load(line, data + 1, seen));
        CHECK(seen == 5);
        CHECK(data[1] == 5);
    }
    // A kernel that has yet to run has the device's copy, and the CPU its own.
    std::atomic<bool> may_go{false};
    auto point = r.load_after(line, data + 1, may_go);
    REQUIRE(point);
    CHECK(*static_cast<volatile std::uint64_t*>(data + 1) == 5);
    CHECK(faults() == before);  // it lost nothing all the time
    may_go = true;
    CHECK(line.wait(*point));
    CHECK(*r.word == 5);
    CHECK(r.of.statistics().nodes[1].counters.bytes_in == 2_MiB);  // copied once

    data[1] = 6;  // a write ends the copies
    REQUIRE(r.load(line, data + 1, seen));
    CHECK(seen == 6);
    REQUIRE(r.store(line, data + 1, 7));
    CHECK(data[1] == 7);
    CHECK(r.of.is_valid());
    REQUIRE(r.of.unmap(data));
}

TEST_CASE(
    "read-mostly pages: of handles one copy at a time is seen, and no kernel loses the one that it "
    "reads") {
    if (has_no_cuda()) {
        return;
    }
    rig r{32_MiB, "first_touch", 1, true};
    queue line = r.make_queue();
    std::uint64_t* data = r.map(2_MiB, {.is_read_mostly = true});
    data[1] = 5;
    std::uint64_t seen = 0;
    for (int round = 0; round < 3; ++round) {
        REQUIRE(r.load(line, data + 1, seen));
        CHECK(seen == 5);
        CHECK(data[1] == 5);
    }
    unsigned copies = 0;
    r.of.for_each_granule([&](const granule_view& one) { copies += one.copies; });
    CHECK(copies == 2);
    CHECK(r.of.statistics().nodes[1].counters.bytes_in == 2_MiB);  // copied once

    // A kernel that has yet to run depends on the device's copy: the CPU waits for it.
    std::atomic<bool> may_go{false};
    std::atomic<bool> has_read{false};
    auto point = r.load_after(line, data + 1, may_go);
    REQUIRE(point);
    std::thread cpu{[&] { has_read = *static_cast<volatile std::uint64_t*>(data + 1) == 5; }};
    std::this_thread::sleep_for(std::chrono::milliseconds{30});
    CHECK_FALSE(has_read);
    may_go = true;
    CHECK(line.wait(*point));
    cpu.join();
    CHECK(has_read);
    CHECK(*r.word == 5);

    data[1] = 6;  // a write ends the copies
    REQUIRE(r.load(line, data + 1, seen));
    CHECK(seen == 6);
    REQUIRE(r.store(line, data + 1, 7));
    CHECK(data[1] == 7);
    CHECK(r.of.is_valid());
    REQUIRE(r.of.unmap(data));
}

TEST_CASE(
    "read-mostly pages on two devices: a launch waits for the other's, and each gets the data") {
    if (has_no_cuda()) {
        return;
    }
    rig r{32_MiB, "first_touch", 2};
    if (r.of.devices().size() < 2) {
        MESSAGE("skipped: one device only");
        return;
    }
    queue first = r.make_queue();
    queue second = std::move(r.of.make_queue(r.of.devices()[1]).value());
    std::uint64_t* data = r.map(2_MiB, {.is_read_mostly = true});
    data[1] = 5;
    std::uint64_t seen = 0;
    for (int round = 0; round < 2; ++round) {
        REQUIRE(r.load(first, data + 1, seen));
        CHECK(seen == 5);
        REQUIRE(r.load(second, data + 1, seen));
        CHECK(seen == 5);
        CHECK(data[1] == 5);
    }
    std::atomic<bool> may_go{false};
    std::atomic<bool> has_launched{false};
    auto point = r.load_after(first, data + 1, may_go);
    REQUIRE(point);
    std::thread other{[&] {
        auto later = launch(second, {reads(data, 16)}, [](cuda_stream&) {});
        has_launched = true;
        CHECK(later);
    }};
    std::this_thread::sleep_for(std::chrono::milliseconds{30});
    CHECK_FALSE(has_launched);
    may_go = true;
    CHECK(first.wait(*point));
    other.join();
    CHECK(*r.word == 5);
    CHECK(r.of.is_valid());
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("CPU threads and launches on the same pages at once") {
    if (has_no_cuda()) {
        return;
    }
    rig r;
    constexpr std::size_t pages = 8;
    constexpr std::size_t stride = page_bytes / 8;
    std::uint64_t* data = r.map(pages * page_bytes, {.granule_bytes = 2_MiB});
    std::atomic<int> failures{0};
    std::atomic<bool> is_over{false};
    std::thread cpu{[&] {  // words of its own
        for (std::uint64_t i = 0; !is_over; ++i) {
            std::uint64_t* mine = data + i % pages * stride + 1000;
            *mine += 1;
            std::this_thread::yield();
        }
    }};
    {
        queue line = r.make_queue();
        for (std::uint64_t i = 0; i < 60; ++i) {
            std::uint64_t* at = data + i % pages * stride + i;
            failures += r.store(line, at, i) ? 0 : 1;
            std::uint64_t seen = 0;
            failures += r.load(line, at, seen) && seen == i ? 0 : 1;
        }
    }
    is_over = true;
    cpu.join();
    CHECK(failures == 0);
    CHECK(r.of.is_valid());
    REQUIRE(r.of.unmap(data));
}

TEST_CASE("device-only memory: the heap of a device gives blocks that kernels reach") {
    if (has_no_cuda()) {
        return;
    }
    rig r{64_MiB};
    auto heap = r.of.heap(r.device);
    REQUIRE(heap);
    queue line = r.make_queue();
    std::vector<void*> blocks;
    for (std::size_t bytes : {1000ul, 70'000ul, 3'000'000ul, 9'000'000ul}) {
        auto block = (*heap)->allocate({.bytes = bytes, .queue = line.id()});
        REQUIRE(block);
        blocks.push_back(*block);
    }
    for (void* one : blocks) {
        *r.word = to_address(one);
        CHECK(launch(line, {}, [&](cuda_stream& s) {
            return r.mover.move(s, to_address(one), to_address(r.word));
        }));
        CHECK(line.synchronize());
    }
    for (void* one : blocks) {
        CHECK(launch(line, {}, [&](cuda_stream& s) {
            return r.mover.move(s, to_address(r.word), to_address(one));
        }));
        CHECK(line.synchronize());
        CHECK(*r.word == to_address(one));
    }
    for (void* one : blocks) {
        CHECK((*heap)->deallocate(one, line.id()));
    }
}
