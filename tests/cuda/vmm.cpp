// SPDX-License-Identifier: Apache-2.0
// What the CUDA backend does beside the contract: accessors merged in one mapping, streams of users, captures,
// losses, failures of single driver calls. The last two need a driver that fails on request.
#include "../../backends/cuda/launcher.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "rig.hpp"

namespace xmm {

using test::can_read;
using test::can_write;
using test::cuda_rig;
using test::is_skipped;
using test::page_of;

namespace {

using begin_capture = cuda::CUresult(cuda::CUstream, cuda::CUstreamCaptureMode);
using end_capture = cuda::CUresult(cuda::CUstream, void** graph);

}  // namespace

TEST_CASE("without a driver the state says why, and opening answers the same") {
    const cuda::driver& on = cuda::driver::instance();
    if (on.state()) {
        CHECK(on.version() >= cuda::required_version);
        return;
    }
    CHECK(on.state().code == errc::unsupported);
    CHECK(std::string{on.state().why} != "");
    CHECK(test::open_cuda(1).error().code == errc::unsupported);
    CHECK(cuda::find_devices().code() == errc::unsupported);
}

TEST_CASE(
    "errors: what a device does not survive, what a capture refuses, what is only not there") {
    CHECK(cuda::status_of(cuda::CUDA_SUCCESS));
    CHECK(cuda::status_of(cuda::CUDA_ERROR_OUT_OF_MEMORY).code == errc::no_memory);
    CHECK(cuda::status_of(cuda::CUDA_ERROR_ILLEGAL_ADDRESS).code == errc::device_lost);
    CHECK(cuda::status_of(cuda::CUDA_ERROR_ECC_UNCORRECTABLE).code == errc::device_lost);
    CHECK(cuda::status_of(cuda::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT).code == errc::busy);
    CHECK(cuda::status_of(cuda::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT).driver_code == 906);
    CHECK(cuda::status_of(cuda::CUDA_ERROR_NO_DEVICE).code == errc::unsupported);
    CHECK(cuda::status_of(static_cast<cuda::CUresult>(12345)).driver_code == 12345);
}

TEST_CASE("CPU and device share one mapping of a host frame; each comes and goes alone") {
    if (is_skipped()) {
        return;
    }
    bool has_host_handles = false;
    SUBCASE("memory of our own") {}
    SUBCASE("the driver's handles") { has_host_handles = true; }
    cuda_rig r{1, has_host_handles};
    if (!r.b.describe(r.device)->able.has(ability::host_frames)) {
        MESSAGE("skipped: no host frames");
        return;
    }
    const va_range va = r.reserve(1);
    const frame f = r.create(r.host);
    auto* words = static_cast<std::uint64_t*>(to_pointer(va.begin));
    r.fill(f.standing, 5, page_bytes);
    CHECK_FALSE(can_read(va.begin));

    REQUIRE(r.enter(r.device, va, f, access::read_write));
    CHECK_FALSE(can_read(va.begin));  // a device's mapping is none for the CPU
    CHECK(r.load(va.begin) == 5);
    REQUIRE(r.enter(r.host, va, f, access::read));
    CHECK(words[1] == 5);
    CHECK_FALSE(can_write(va.begin));
    REQUIRE(r.enter(r.host, va, f, access::read_write));
    words[0] = 6;
    CHECK(r.load(va.begin) == 6);
    CHECK(r.store(va.begin + 8, 7));
    CHECK(words[1] == 7);

    REQUIRE(r.enter(r.host, va, f, access::read));  // down again
    CHECK(can_read(va.begin));
    CHECK_FALSE(can_write(va.begin));
    REQUIRE(r.clear(r.host, va));
    CHECK_FALSE(can_read(va.begin));
    CHECK(r.load(va.begin) == 6);  // the device still has it
    // The device's access changes while the CPU's is taken away: it stays so.
    REQUIRE(r.enter(r.device, va, f, access::read));
    CHECK_FALSE(can_read(va.begin));
    CHECK(r.load(va.begin) == 6);
    REQUIRE(r.enter(r.host, va, f, access::read_write));
    CHECK(words[0] == 6);
    REQUIRE(r.clear(r.device, va));
    CHECK(can_write(va.begin));  // and the other way round
    REQUIRE(r.clear(r.host, va));
    CHECK_FALSE(can_read(va.begin));
    r.b.va_release(va);
    r.b.frame_drop(f);
}

TEST_CASE(
    "handles: two accessors cannot see two frames at one address; the second is refused, nothing "
    "changes") {
    if (is_skipped()) {
        return;
    }
    cuda_rig r{1, true};
    const va_range va = r.reserve(1);
    const frame ours = r.create(r.host);
    const frame other = r.create(r.device);
    r.fill(ours.standing, 1, page_bytes);
    r.fill(other.standing, 2, page_bytes);
    REQUIRE(r.enter(r.host, va, ours, access::read));
    CHECK(r.enter(r.device, va, other, access::read).code == errc::busy);
    CHECK(*static_cast<std::uint64_t*>(to_pointer(va.begin)) == 1);
    REQUIRE(r.clear(r.host, va));
    REQUIRE(r.enter(r.device, va, other, access::read));
    CHECK(r.load(va.begin) == 2);
    CHECK(r.enter(r.host, va, other, access::read).code == errc::unsupported);
    CHECK(r.enter(r.host, va, ours, access::read).code == errc::busy);
    // Alone there, an accessor may change to another frame at once.
    REQUIRE(r.enter(r.device, va, ours, access::read_write));
    CHECK(r.load(va.begin) == 1);
    REQUIRE(r.clear(r.device, va));
    r.b.va_release(va);
    r.b.frame_drop(ours);
    r.b.frame_drop(other);
}

TEST_CASE("batches: handles that lie in a row are one call of the driver, whatever is mixed in") {
    if (is_skipped()) {
        return;
    }
    cuda_rig r{1, true};
    const va_range va = r.reserve(16);
    std::vector<frame> frames;
    std::vector<run> runs;
    for (std::size_t i = 0; i < 16; ++i) {
        // Host and device frames side by side.
        frames.push_back(r.create(i % 4 == 3 ? r.host : r.device));
        r.fill(frames[i].standing, 100 + i, page_bytes);
        runs.push_back({page_of(va, i), frames[i], access::read_write});
    }
    const auto calls = [&](const char* name) { return r.soft ? r.soft.calls(name) : 0; };
    const auto access_before = calls("cuMemSetAccess");
    const progress entered = r.b.pmap_enter(r.device, runs);
    CHECK(entered.done == 16);
    REQUIRE(entered);
    if (r.soft) {
        CHECK(calls("cuMemSetAccess") - access_before == 1);
    }
    for (std::size_t i = 0; i < 16; ++i) {
        CHECK(r.load(page_of(va, i).begin) == 100 + i);
    }
    // The CPU has one page of them, so that its neighbours go without it.
    REQUIRE(r.enter(r.host, page_of(va, 7), frames[7], access::read_write));
    const auto unmap_before = calls("cuMemUnmap");
    const va_range halves[] = {{va.begin, 4 * page_bytes}, {page_of(va, 4).begin, 12 * page_bytes}};
    const progress cleared = r.b.pmap_clear(r.device, halves);
    CHECK(cleared.done == 2);
    if (r.soft) {
        CHECK(calls("cuMemUnmap") - unmap_before == 2);  // before and behind page 7
    }
    CHECK(can_write(page_of(va, 7).begin));
    REQUIRE(r.clear(any_host, va));
    r.b.va_release(va);
    for (const frame& one : frames) {
        r.b.frame_drop(one);
    }
}

TEST_CASE("a batch that the CPU cannot have stops at the first device frame") {
    if (is_skipped()) {
        return;
    }
    cuda_rig r;
    const va_range va = r.reserve(3);
    const frame a = r.create(r.host);
    const frame b = r.create(r.device);
    const run runs[] = {{page_of(va, 0), a, access::read},
                        {page_of(va, 1), b, access::read},
                        {page_of(va, 2), a, access::read}};
    const progress entered = r.b.pmap_enter(r.host, runs);
    CHECK(entered.done == 1);
    CHECK(entered.outcome.code == errc::unsupported);
    CHECK(can_read(va.begin));
    CHECK_FALSE(can_read(page_of(va, 1).begin));
    CHECK_FALSE(can_read(page_of(va, 2).begin));
    REQUIRE(r.clear(r.host, va));
    r.b.va_release(va);
    r.b.frame_drop(a);
    r.b.frame_drop(b);
}

TEST_CASE("large frames: one handle, one mapping, several addresses") {
    if (is_skipped()) {
        return;
    }
    cuda_rig r;
    const va_range va = r.reserve(32);
    const va_range first{va.begin, 16 * page_bytes};
    const va_range second{first.end(), 16 * page_bytes};
    const frame f = r.create(r.device, 16);
    CHECK(f.bytes == 16 * page_bytes);
    const va_range all{f.standing, f.bytes};
    CHECK(r.b.wait(r.b.zero(r.queue, {&all, 1}).value()));
    REQUIRE(r.enter(r.device, first, f, access::read_write));
    REQUIRE(r.enter(r.device, second, f, access::read_write));
    CHECK(r.store(first.end() - 8, 77));
    CHECK(r.load(second.end() - 8) == 77);
    CHECK(r.load(second.end() - 16) == 0);
    REQUIRE(r.clear(r.device, first));
    CHECK(r.load(second.end() - 8) == 77);
    REQUIRE(r.clear(r.device, second));
    r.b.va_release(va);
    r.b.frame_drop(f);
}

TEST_CASE(
    "peers: each device reaches the other's frames, at standing addresses and at mapped ones") {
    if (is_skipped()) {
        return;
    }
    cuda_rig r{2};
    if (r.b.nodes().size() < 2 || !r.b.describe(r.device)->able.has(ability::peer)) {
        MESSAGE("skipped: no two devices that are peers");
        return;
    }
    const node_id other{2};
    const queue_id line = *r.b.queue_create(other, queue_priority::normal);
    const va_range va = r.reserve(1);
    const frame f = r.create(r.device);
    r.fill(f.standing, 9, page_bytes);
    CHECK(r.load(f.standing, line) == 9);
    REQUIRE(r.enter(r.device, va, f, access::read_write));
    REQUIRE(r.enter(other, va, f, access::read));
    CHECK(r.load(va.begin, line) == 9);
    REQUIRE(r.clear(r.device, va));
    CHECK(r.load(va.begin, line) == 9);
    REQUIRE(r.clear(other, va));
    r.b.queue_destroy(line);
    r.b.va_release(va);
    r.b.frame_drop(f);
}

TEST_CASE("tickets: thousands of them, few events, any order of asking") {
    if (is_skipped()) {
        return;
    }
    cuda_rig r;
    const frame f = r.create(r.device);
    const va_range some{f.standing, 4096};
    const auto before = r.soft ? r.soft.calls("cuEventCreate") : 0;
    std::vector<ticket> points;
    for (int i = 0; i < 3000; ++i) {
        points.push_back(r.b.zero(r.queue, {&some, 1}).value());
        CHECK(points.back().value == points.front().value + static_cast<std::uint64_t>(i));
        if (i % 100 == 99) {
            CHECK(r.b.wait(points[points.size() - 50]));
            CHECK(r.b.is_done(points[points.size() - 99]));
        }
    }
    CHECK(r.b.wait(points.back()));
    for (const ticket& one : points) {
        CHECK(r.b.is_done(one));
    }
    if (r.soft) {
        CHECK(r.soft.calls("cuEventCreate") - before < 1000);
    }
    CHECK(r.b.wait({r.queue, points.back().value + 1}).code == errc::invalid_argument);
    CHECK(r.b.make_wait(r.queue, {r.queue, points.back().value + 1}).code ==
          errc::invalid_argument);
    CHECK(r.b.wait({queue_id{0xfff00001}, 1}).code == errc::invalid_argument);
    r.b.frame_drop(f);
}

TEST_CASE("tickets: many threads ask while others submit") {
    if (is_skipped()) {
        return;
    }
    cuda_rig r;
    const frame f = r.create(r.device);
    const va_range some{f.standing, 4096};
    std::atomic<std::uint64_t> newest{0};
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 300; ++i) {
                auto point = r.b.zero(r.queue, {&some, 1});
                failures += point ? 0 : 1;
                newest.store(point.value().value);
            }
        });
        threads.emplace_back([&, t] {
            for (int i = 0; i < 300; ++i) {
                const ticket point{r.queue, newest.load()};
                failures += t == 0 || r.b.wait(point) ? 0 : 1;
                failures += t == 1 && !r.b.is_done(point) ? 1 : 0;
                (void)r.b.is_done(point);
            }
        });
    }
    for (std::thread& one : threads) {
        one.join();
    }
    CHECK(failures == 0);
    CHECK(r.b.wait(r.b.record(r.queue).value()));  // a frame goes after the work on it
    r.b.frame_drop(f);
}

TEST_CASE("host calls come in queue order and may use the driver") {
    if (is_skipped()) {
        return;
    }
    cuda_rig r;
    struct asked {
        cuda_rig& r;
        frame f;
        std::vector<int> order;
        bool copied = false;
    } one{r, r.create(r.device), {}};
    const queue_id other = *r.b.queue_create(r.device, queue_priority::urgent);
    r.fill(one.f.standing, 3, page_bytes);
    CHECK(r.b.call(
        other,
        [](void* self) noexcept {
            auto& a = *static_cast<asked*>(self);
            a.order.push_back(1);
            a.r.fill(a.f.standing, 4, page_bytes);  // on another queue, and waited for
            a.copied = true;
        },
        &one));
    auto last = r.b.call(
        other, [](void* self) noexcept { static_cast<asked*>(self)->order.push_back(2); }, &one);
    REQUIRE(last);
    CHECK(r.b.wait(*last));
    CHECK(one.copied);
    CHECK(one.order == std::vector<int>{1, 2});
    CHECK(r.load(one.f.standing) == 4);
    r.b.queue_destroy(other);
    r.b.frame_drop(one.f);
}

TEST_CASE("a user's stream is a queue: tickets, waits, and it stays the user's") {
    if (is_skipped()) {
        return;
    }
    cuda_rig r;
    const cuda::device& on = *r.b.device_of(r.queue);
    const cuda::current_context here{on.calls(), on.context()};
    cuda::CUstream users = nullptr;
    REQUIRE(on.calls().call(&cuda::driver_api::stream_create_with_priority, &users, 1u, 0));
    auto adopted = r.b.adopt(users);
    REQUIRE(adopted);
    CHECK(r.b.stream_of(*adopted) == users);
    CHECK(r.b.device_of(*adopted) == &on);
    const frame f = r.create(r.device);
    r.fill(f.standing, 8, page_bytes);
    CHECK(r.load(f.standing, *adopted) == 8);
    auto point = r.b.record(*adopted);
    REQUIRE(point);
    CHECK(r.b.make_wait(r.queue, *point));
    CHECK(r.b.wait(*point));
    r.b.forget(*adopted);
    CHECK(r.b.is_done(*point));
    CHECK(r.b.record(*adopted).code() == errc::invalid_argument);
    CHECK(on.calls().call(&cuda::driver_api::stream_synchronize, users));
    CHECK(on.calls().call(&cuda::driver_api::stream_destroy, users));

    // The legacy stream, and the one that is another on each thread.
    auto legacy = r.b.adopt(nullptr);
    REQUIRE(legacy);
    CHECK(r.b.wait(r.b.record(*legacy).value()));
    r.b.forget(*legacy);
    CHECK(r.b.adopt(reinterpret_cast<cuda::CUstream>(cuda::stream_per_thread)).code() ==
          errc::unsupported);
    r.b.frame_drop(f);
}

TEST_CASE("a capture is not broken by anything that the backend does") {
    if (is_skipped()) {
        return;
    }
    auto* begin = test::find_in_libcuda<begin_capture>("cuStreamBeginCapture_v2");
    auto* end = test::find_in_libcuda<end_capture>("cuStreamEndCapture");
    auto* drop = test::find_in_libcuda<cuda::CUresult(void*)>("cuGraphDestroy");
    if (begin == nullptr || end == nullptr || drop == nullptr) {
        MESSAGE("skipped: this driver captures nothing");
        return;
    }
    cuda_rig r;
    const cuda::device& on = *r.b.device_of(r.queue);
    const cuda::current_context here{on.calls(), on.context()};
    cuda::CUstream users = nullptr;
    REQUIRE(on.calls().call(&cuda::driver_api::stream_create_with_priority, &users, 1u, 0));
    const queue_id adopted = *r.b.adopt(users);
    auto before = r.b.record(adopted);
    REQUIRE(before);
    const frame f = r.create(r.device);
    const va_range some{f.standing, 4096};
    auto elsewhere = r.b.zero(r.queue, {&some, 1});

    // Global: whatever any thread does may be refused, and end the capture.
    REQUIRE(cuda::status_of(begin(users, cuda::CU_STREAM_CAPTURE_MODE_GLOBAL)));
    CHECK(r.b.record(adopted).code() == errc::busy);
    CHECK(r.b.zero(adopted, {&some, 1}).code() == errc::busy);
    CHECK(r.b.make_wait(adopted, *elsewhere).code == errc::busy);
    CHECK(r.b.is_done(*before));
    CHECK(r.b.wait(*before));
    std::thread other{[&] {
        const va_range va = r.reserve(1);
        const frame more = r.create(r.device);
        CHECK(r.enter(r.device, va, more, access::read_write));
        CHECK(r.b.wait(r.b.zero(r.queue, {&some, 1}).value()));
        CHECK(r.b.record(adopted).code() == errc::busy);
        CHECK(r.clear(r.device, va));
        if (r.b.describe(r.device)->able.has(ability::host_frames)) {
            const frame host = r.create(r.host);
            CHECK(r.enter(r.host, va, host, access::read_write));
            CHECK(r.enter(r.device, va, host, access::read_write));
            CHECK(r.clear(r.device, va));
            CHECK(r.clear(r.host, va));
            r.b.frame_drop(host);
        }
        r.b.va_release(va);
        r.b.frame_drop(more);
        const queue_id line = *r.b.queue_create(r.device, queue_priority::background);
        r.b.queue_destroy(line);
    }};
    other.join();
    CHECK(r.b.wait(*elsewhere));
    void* graph = nullptr;
    CHECK(cuda::status_of(end(users, &graph)));
    CHECK(graph != nullptr);
    (void)drop(graph);
    CHECK(r.b.wait(r.b.record(adopted).value()));  // and work goes on
    r.b.forget(adopted);
    CHECK(on.calls().call(&cuda::driver_api::stream_destroy, users));
    r.b.frame_drop(f);
}

TEST_CASE("frames can be exported as file descriptors") {
    if (is_skipped()) {
        return;
    }
    cuda_rig r;
    if (!r.b.describe(r.device)->able.has(ability::exportable)) {
        MESSAGE("skipped: no exportable frames");
        return;
    }
    cuda_rig handles{1, true};
    for (const node_id node : {r.device, r.host}) {
        if (node == r.host && r.b.has_own_host_frames()) {
            const frame f = r.create(node);
            CHECK(r.b.export_frame(f).code() == errc::unsupported);
            r.b.frame_drop(f);
        }
        cuda_rig& of = node == r.host ? handles : r;
        const frame f = of.create(node);
        auto file = of.b.export_frame(f);
        REQUIRE(file);
        CHECK(*file >= 0);
        const cuda::driver& on = cuda::driver::instance();
        cuda::CUmemGenericAllocationHandle again = 0;
        CHECK(on.call(&cuda::driver_api::mem_import_from_shareable_handle, &again,
                      reinterpret_cast<void*>(static_cast<std::intptr_t>(*file)),
                      cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        CHECK(on.call(&cuda::driver_api::mem_release, again));
        ::close(*file);
        of.b.frame_drop(f);
    }
}

TEST_CASE("frames can be exported to a fabric where the driver really does it") {
    if (is_skipped()) {
        return;
    }
    cuda_rig r;
    const frame f = r.create(r.device);
    const auto name = r.b.export_to_fabric(f);
    if (!r.b.is_on_fabric(r.device)) {
        CHECK(name.code() == errc::unsupported);
        CHECK(r.b.export_frame(f).value() >= 0);  // as before
        r.b.frame_drop(f);
        MESSAGE("skipped: no channel into a fabric");
        return;
    }
    REQUIRE(name);
    cuda::CUmemFabricHandle sent = *name;
    const cuda::driver& on = cuda::driver::instance();
    cuda::CUmemGenericAllocationHandle again = 0;
    CHECK(on.call(&cuda::driver_api::mem_import_from_shareable_handle, &again,
                  static_cast<void*>(&sent), cuda::CU_MEM_HANDLE_TYPE_FABRIC));
    CHECK(on.call(&cuda::driver_api::mem_release, again));
    r.b.frame_drop(f);
    frame none = f;
    none.node = node_id{77};
    CHECK(r.b.export_to_fabric(none).code() == errc::unsupported);
}

TEST_CASE("sizes: what the device has left goes down by what is made") {
    if (is_skipped()) {
        return;
    }
    cuda_rig r;
    auto before = r.b.free_bytes(r.device);
    REQUIRE(before);
    CHECK(*before <= r.b.describe(r.device)->bytes);
    const frame f = r.create(r.device, 16);
    if (r.soft) {
        CHECK(*before - *r.b.free_bytes(r.device) == 16 * page_bytes);
    }
    r.b.frame_drop(f);
    CHECK(r.b.free_bytes(r.host).code() == errc::unknown_node);
}

TEST_CASE("each single failure of the driver leaves all as it was") {
    if (is_skipped()) {
        return;
    }
    cuda_rig r;
    if (!r.soft) {
        MESSAGE("skipped: this driver does not fail on request");
        return;
    }
    const va_range va = r.reserve(4);
    const std::size_t held = r.soft.held(0);
    SUBCASE("frames") {
        for (const char* name : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
            CAPTURE(name);
            REQUIRE(r.soft.fail(name, 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY) == cuda::CUDA_SUCCESS);
            CHECK(r.b.frame_create(r.device, page_bytes).code() == errc::no_memory);
            CHECK(r.soft.held(0) == held);
            const frame f = r.create(r.device);
            r.b.frame_drop(f);
            CHECK(r.soft.held(0) == held);
        }
    }
    SUBCASE("mappings") {
        std::vector<frame> frames;
        std::vector<run> runs;
        for (std::size_t i = 0; i < 4; ++i) {
            frames.push_back(r.create(r.device));
            runs.push_back({page_of(va, i), frames[i], access::read_write});
        }
        for (unsigned skip = 0; skip < 4; ++skip) {
            CAPTURE(skip);
            r.soft.fail("cuMemMap", skip, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
            const progress entered = r.b.pmap_enter(r.device, runs);
            CHECK(entered.done == skip);
            CHECK(entered.outcome.code == errc::no_memory);
            CHECK(r.clear(r.device, {va.begin, skip * page_bytes}));
            // What was not done is free to be entered.
            CHECK(r.b.pmap_enter(r.device, runs).done == 4);
            CHECK(r.clear(r.device, va));
        }
        r.soft.fail("cuMemSetAccess", 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
        CHECK(r.b.pmap_enter(r.device, runs).done == 0);
        CHECK(r.b.pmap_enter(r.device, runs).done == 4);
        r.soft.fail("cuMemUnmap", 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
        CHECK(r.b.pmap_clear(r.device, {&va, 1}).done == 0);
        r.fill(frames[0].standing, 6, page_bytes);
        CHECK(r.load(va.begin) == 6);  // still mapped
        CHECK(r.clear(r.device, va));
        for (const frame& one : frames) {
            r.b.frame_drop(one);
        }
    }
    SUBCASE("queues") {
        for (const char* name : {"cuStreamCreateWithPriority"}) {
            r.soft.fail(name, 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
            CHECK(r.b.queue_create(r.device, queue_priority::normal).code() == errc::no_memory);
        }
        const frame f = r.create(r.device);
        const va_range some{f.standing, 4096};
        // Events first: the queues of a device lend them to each other, and later there is one.
        for (const char* name :
             {"cuEventCreate", "cuMemsetD32Async", "cuEventRecord", "cuStreamIsCapturing"}) {
            CAPTURE(name);
            const queue_id line = *r.b.queue_create(r.device, queue_priority::normal);
            r.soft.fail(name, 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
            CHECK(r.b.zero(line, {&some, 1}).code() == errc::no_memory);
            CHECK(r.b.wait(r.b.zero(line, {&some, 1}).value()));
            r.b.queue_destroy(line);
        }
        static std::atomic<int> calls;
        calls = 0;
        const auto count = [](void*) noexcept { ++calls; };
        r.soft.fail("cuLaunchHostFunc", 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
        CHECK(r.b.call(r.queue, count, nullptr).code() == errc::no_memory);
        CHECK(r.b.wait(r.b.call(r.queue, count, nullptr).value()));
        CHECK(calls == 1);
        // Once it is in the stream it is made, and only once.
        r.soft.fail("cuEventRecord", 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
        auto made = r.b.call(r.queue, count, nullptr);
        REQUIRE(made);
        CHECK(r.b.wait(*made));
        CHECK(calls == 2);
        // Its ticket says that it is over, so it is: also where the stream could not be awaited.
        const auto slowly = [](void*) noexcept {
            std::this_thread::sleep_for(std::chrono::milliseconds{50});
            ++calls;
        };
        r.soft.fail("cuEventRecord", 0, 1, cuda::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        auto unseen = r.b.call(r.queue, slowly, nullptr);
        REQUIRE(unseen);
        CHECK(r.b.is_done(*unseen));
        CHECK(calls == 3);
        r.soft.fail("cuEventRecord", 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
        r.soft.fail("cuStreamSynchronize", 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
        auto unawaited = r.b.call(r.queue, slowly, nullptr);
        REQUIRE(unawaited);
        CHECK(r.b.is_done(*unawaited));
        CHECK(calls == 4);
        r.b.frame_drop(f);
    }
    SUBCASE("addresses") {
        r.soft.fail("cuMemAddressReserve", 0, 1, cuda::CUDA_ERROR_OUT_OF_MEMORY);
        CHECK(r.b.va_examine({0, page_bytes}, page_bytes).code() == errc::no_memory);
    }
    CHECK(r.soft.held(0) == held);
    r.soft.reset();
    r.b.va_release(va);
}

TEST_CASE("a device that cannot be held to reading is entered for writing, and it is said") {
    if (is_skipped()) {
        return;
    }
    cuda_rig r;
    if (!r.soft) {
        MESSAGE("skipped: this driver does not fail on request");
        return;
    }
    const va_range va = r.reserve(1);
    const frame f = r.create(r.device);
    CHECK(r.b.has_read_only_devices());
    r.soft.fail("cuMemSetAccess", 0, 1, cuda::CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(r.enter(r.device, va, f, access::read));
    CHECK_FALSE(r.b.has_read_only_devices());
    CHECK(r.store(va.begin, 1));
    CHECK(r.clear(r.device, va));
    r.b.va_release(va);
    r.b.frame_drop(f);
    r.soft.reset();
}

}  // namespace xmm
