// SPDX-License-Identifier: Apache-2.0
#include <xmm/facade/device_heap.hpp>

#include <algorithm>
#include <random>

#include "../support/faulty_backend.hpp"
#include "rig.hpp"

#include <xmm/facade/resource_port.hpp>
#include <xmm/resources/heap_resource.hpp>

#include "../core/child.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

struct heap_rig : rig {
    explicit heap_rig(std::vector<soft::device_options> devices = {device_of(64_MiB)})
        : rig{std::move(devices)} {}
    xpu_malloc& heap(unsigned i = 0) { return *of().heap(device(i)).value(); }
    template <class T>
    T* make(std::size_t bytes, unsigned i = 0) {
        return static_cast<T*>(heap(i).allocate({.bytes = bytes, .queue = line(i).id()}).value());
    }
    std::size_t heap_bytes(unsigned i = 0) { return heap(i).frames().counts().reserved_bytes; }
};

}  // namespace

TEST_CASE(
    "heap: kernels and copies reach its blocks, small and large, and no two disturb each other") {
    heap_rig r;
    std::vector<std::pair<std::uint64_t*, std::size_t>> blocks;
    for (const std::size_t bytes : {256_KiB, 8_KiB, 3_MiB, 512_KiB, std::size_t{4096}, 9_MiB}) {
        blocks.emplace_back(r.make<std::uint64_t>(bytes), bytes);
    }
    for (const auto& [at, bytes] : blocks) {
        r.fill_on_device<std::uint64_t>(at, bytes, to_address(at));
    }
    for (const auto& [at, bytes] : blocks) {
        CHECK(r.count_wrong_on_device<std::uint64_t>(at, bytes, to_address(at)) == 0);
        std::vector<std::uint64_t> back(bytes / 8);
        REQUIRE(r.of().copy(back.data(), at, bytes));
        CHECK(count_wrong<std::uint64_t>(back.data(), bytes, to_address(at)) == 0);
    }
    for (const auto& [at, bytes] : blocks) {
        CHECK(r.heap().deallocate(at, r.line().id()));
    }
    CHECK(r.heap().trim() > 0);
    CHECK(r.heap_bytes() == 0);
    std::uint64_t some = 0;
    CHECK(r.of().copy(&some, blocks[0].first, 8).code == errc::not_mapped);
}

TEST_CASE(
    "heap: a block that a running kernel of another queue uses is not handed out before its end") {
    heap_rig r;
    queue other = r.of().make_queue(r.device()).value();
    for (const std::size_t bytes : {8_KiB, 1_MiB}) {
        CAPTURE(bytes);
        auto* one = r.make<std::uint64_t>(bytes);
        signal_flag may_end;
        auto running = launch(other, {writes(one, bytes)}, [&](soft::stream& s) {
            return s.run([&may_end] { may_end.await(); });
        });
        REQUIRE(running);
        REQUIRE(r.heap().deallocate(one, other.id()));
        auto* second = r.make<std::uint64_t>(bytes);
        CHECK(second != one);
        may_end.set();
        REQUIRE(other.synchronize());
        auto* third = r.make<std::uint64_t>(bytes);
        CHECK((bytes < 32_KiB || third == one));  // a magazine may have others at hand
        CHECK(r.heap().deallocate(second));
        CHECK(r.heap().deallocate(third));
    }
}

TEST_CASE("heap: frames are not taken from a range before the work on it is over") {
    heap_rig r{{device_of(16_MiB)}};
    queue other = r.of().make_queue(r.device()).value();
    auto* one = r.make<std::uint64_t>(12_MiB);
    signal_flag has_begun;
    std::atomic<int> wrong{0};
    auto running = launch(r.line(), {reads_writes(one, 12_MiB)}, [&](soft::stream& s) {
        return s.run([&, view = device_view<std::uint64_t>{one, 12_MiB / 8}] {
            has_begun.set();
            for (std::size_t i = 0; i < view.size(); i += 512) {
                view[i] = i;
            }
            nap(50);
            for (std::size_t i = 0; i < view.size(); i += 512) {
                wrong += static_cast<std::uint64_t>(view[i]) != i ? 1 : 0;
            }
        });
    });
    REQUIRE(running);
    REQUIRE(has_begun.await());
    REQUIRE(r.heap().deallocate(one, r.line().id()));
    // Another queue needs the frames: it waits for the kernel.
    result<void*> taken = r.heap().allocate({.bytes = 12_MiB, .queue = other.id()});
    REQUIRE(taken);
    CHECK(r.of().state().core.is_valid());
    REQUIRE(r.line().synchronize());
    CHECK(wrong == 0);
    CHECK(r.heap().deallocate(*taken));
}

TEST_CASE("heap: in need unified memory makes room, and idle frames of the heap make room for it") {
    heap_rig r;
    auto* unified = r.map(60_MiB);
    fill<std::uint64_t>(unified, 60_MiB, 1);
    CHECK(r.count_wrong_on_device<std::uint64_t>(unified, 60_MiB, 1) == 0);
    auto* block = r.make<std::uint64_t>(40_MiB);  // demotes unified pages
    r.fill_on_device<std::uint64_t>(block, 40_MiB, 2);
    CHECK(r.count_wrong_on_device<std::uint64_t>(unified, 60_MiB, 1) == 0);  // through what is left
    CHECK(r.count_wrong_on_device<std::uint64_t>(block, 40_MiB, 2) == 0);
    CHECK(r.heap().deallocate(block, r.line().id()));
    REQUIRE(r.line().synchronize());
    CHECK(r.heap_bytes() >= 40_MiB);
    REQUIRE(r.of().make_resident(unified, 60_MiB, r.device()));  // takes the idle frames
    CHECK(r.heap_bytes() < 10_MiB);
    CHECK(count_wrong<std::uint64_t>(unified, 60_MiB, 1) == 0);
}

TEST_CASE("heap: what can never fit is refused before anything is given up for it") {
    heap_rig r;
    auto* unified = r.map(30_MiB);
    REQUIRE(r.of().make_resident(unified, 30_MiB, r.device()));
    const std::uint64_t moved_out = r.counters(r.device()).bytes_out;
    auto* idle = r.make<std::uint64_t>(20_MiB);
    CHECK(r.heap().deallocate(idle));
    const std::size_t held = r.heap_bytes();
    int asked = 0;
    r.heap().set_shortage_callback(
        [](std::size_t, void* count) {
            ++*static_cast<int*>(count);
            return false;
        },
        &asked);
    const auto refused = [&](std::size_t bytes) {
        const auto before = r.heap().figures().of(heap_count::ooms);
        CHECK(r.heap().allocate({.bytes = bytes}).code() == errc::no_memory);
        CHECK(r.heap().figures().of(heap_count::ooms) == before + 1);
    };
    for (const std::size_t bytes : {64_MiB + 1, 1_GiB, std::size_t{1} << 45}) {
        CAPTURE(bytes);
        refused(bytes);
        CHECK(r.heap_bytes() == held);
    }
    REQUIRE(r.of().set_budget(r.device(), 60_MiB));
    CHECK(r.heap_bytes() == held);
    refused(62_MiB);
    CHECK(r.home(unified) == r.device());
    CHECK(r.home(page_of(unified, 14)) == r.device());
    CHECK(r.counters(r.device()).bytes_out == moved_out);
    CHECK(r.heap_bytes() == held);
    CHECK(asked == 0);
    // What would fit if all others went is tried for as ever.
    REQUIRE(r.of().set_budget(r.device(), SIZE_MAX));
    void* large = r.heap().allocate({.bytes = 62_MiB}).value();
    CHECK(asked == 1);
    CHECK(r.home(unified) == r.host());
    CHECK(r.heap().deallocate(large));
}

TEST_CASE("heap: what has no room beside the blocks there are evicts no unified memory") {
    heap_rig r;
    auto* unified = r.map(24_MiB);
    REQUIRE(r.of().make_resident(unified, 24_MiB, r.device()));
    const std::uint64_t moved_out = r.counters(r.device()).bytes_out;
    auto* live = r.make<std::uint64_t>(32_MiB);
    auto* lent = r.make<std::uint64_t>(2_MiB);
    REQUIRE(r.line().synchronize());
    int asked = 0;
    r.heap().set_shortage_callback(
        [](std::size_t, void* count) {
            ++*static_cast<int*>(count);
            return false;
        },
        &asked);
    CHECK(r.heap().allocate({.bytes = 38_MiB}).code() == errc::no_memory);
    CHECK(asked == 1);  // it might have given blocks back
    CHECK(r.counters(r.device()).bytes_out == moved_out);
    CHECK(r.home(unified) == r.device());
    CHECK(r.of().last_shortage().bytes == 38_MiB);
    // A block that waits for a queue is nobody's: it leaves room.
    queue other = r.of().make_queue(r.device()).value();
    signal_flag may_end;
    REQUIRE(launch(other, {}, [&](soft::stream& s) { return s.run([&] { may_end.await(); }); }));
    CHECK(r.heap().deallocate(lent, other.id()));
    std::thread later{[&] {
        nap(20);
        may_end.set();
    }};
    result<void*> fits = r.heap().allocate({.bytes = 32_MiB});
    later.join();
    REQUIRE(fits);
    CHECK(r.counters(r.device()).bytes_out > moved_out);
    CHECK(r.heap().deallocate(*fits));
    CHECK(r.heap().deallocate(live));
}

TEST_CASE("heap: a budget that was lowered under blocks is kept to as these are given back") {
    heap_rig r;
    const auto used = [&] { return r.usage(r.device()).used; };
    const auto lower = [&] { CHECK(r.of().set_budget(r.device(), 16_MiB).code == errc::busy); };
    for (const bool is_own_queue : {true, false}) {
        CAPTURE(is_own_queue);
        const queue_id line = is_own_queue ? r.line().id() : queue_id{};
        REQUIRE(r.of().set_budget(r.device(), no_budget));
        void* block = r.heap().allocate({.bytes = 40_MiB, .queue = line}).value();
        lower();
        CHECK(used() >= 40_MiB);
        CHECK(r.heap().deallocate(block));
        CHECK(used() <= 16_MiB);  // nothing was submitted, so nobody has to ask again
        CHECK(r.heap().allocate({.bytes = 40_MiB, .queue = line}).code() == errc::no_memory);
        void* fits = r.heap().allocate({.bytes = 10_MiB, .queue = line}).value();
        CHECK(r.heap().deallocate(fits));
        CHECK(used() <= 16_MiB);
    }
    // A kernel keeps the frames of what was given back. Nobody waits for it: its queue has them again, others nothing.
    REQUIRE(r.of().set_budget(r.device(), no_budget));
    auto* block = r.make<std::uint64_t>(40_MiB);
    lower();
    const auto kernel = r.start_kernel<std::uint64_t>(block, 1);
    CHECK(r.heap().deallocate(block, r.line().id()));
    CHECK(used() >= 40_MiB);
    const auto again = r.heap().allocate({.bytes = 30_MiB, .queue = r.line().id()});
    REQUIRE(again);
    REQUIRE(r.finish(kernel));
    CHECK(r.heap().deallocate(*again));
    CHECK(used() <= 16_MiB);
    void* fits = r.make<std::uint64_t>(8_MiB);
    CHECK(used() <= 16_MiB);
    CHECK(r.heap().deallocate(fits));
}

TEST_CASE("heap: over a lowered budget a block that needs no frame waits for no other queue") {
    heap_rig r;
    queue other = r.of().make_queue(r.device()).value();
    std::vector<void*> own;
    for (int i = 0; i < 32; ++i) {
        own.push_back(r.make<std::uint64_t>(512_KiB));
    }
    void* theirs = r.heap().allocate({.bytes = 8_MiB, .queue = other.id()}).value();
    std::atomic<bool> may_end{false};
    REQUIRE(launch(other, {}, [&](soft::stream& s) {
        return s.run([&] {
            while (!may_end) {
                nap(1);
            }
        });
    }));
    REQUIRE(r.heap().deallocate(theirs, other.id()));
    for (std::size_t i = 0; i < own.size(); i += 2) {
        REQUIRE(r.heap().deallocate(own[i]));
    }
    CHECK(r.of().set_budget(r.device(), 4_MiB).code == errc::busy);
    for (std::size_t i = 0; i < own.size(); i += 2) {
        own[i] = r.make<std::uint64_t>(256_KiB);
    }
    CHECK(!may_end.exchange(true));  // so far nobody has waited for that kernel
    REQUIRE(other.synchronize());
    for (void* one : own) {
        CHECK(r.heap().deallocate(one));
    }
    CHECK(r.of().usage(r.device())->used <= 4_MiB);
}

TEST_CASE("heap: what no address space holds is a shortage like any other") {
    heap_rig r;
    REQUIRE(r.heap().recorder().start());
    for (const std::size_t bytes : {(std::size_t{1} << 46) + 1, SIZE_MAX / 2, SIZE_MAX}) {
        CAPTURE(bytes);
        const auto before = r.heap().figures().of(heap_count::ooms);
        CHECK(r.heap().allocate({.bytes = bytes}).code() == errc::no_memory);
        CHECK(r.heap().figures().of(heap_count::ooms) == before + 1);
        CHECK(r.of().last_shortage().node == r.device());
        CHECK(r.of().last_shortage().bytes == bytes);
    }
    const heap_snapshot taken = r.heap().snapshot();
    const node_usage device = r.usage(r.device());
    CHECK(std::count_if(taken.trace.events.begin(), taken.trace.events.end(), [&](const auto& one) {
              return one.action == trace_action::out_of_memory &&
                     one.at == device.limit - device.used && one.at != 0;
          }) == 3);
    // Of a map as well; it is noted of the node that was named.
    for (const std::size_t bytes : {std::size_t{1} << 47, SIZE_MAX / 2, SIZE_MAX}) {
        CAPTURE(bytes);
        CHECK(r.of().map(bytes).code() == errc::no_memory);
        CHECK(r.of().last_shortage().node == r.host());
        CHECK(r.of().last_shortage().bytes == bytes);
        CHECK(r.of().map(bytes, {.preferred = r.device()}).code() == errc::no_memory);
        CHECK(r.of().last_shortage().node == r.device());
        CHECK(r.of().map(bytes, {.granule_bytes = 3}).code() == errc::invalid_argument);
    }
}

TEST_CASE("heap: what is trimmed is the device's again, not just the node's") {
    heap_rig r;
    const std::size_t before = r.usage(r.device()).used;
    auto* block = r.make<std::uint64_t>(20_MiB);
    void* tagged = r.heap().allocate({.bytes = 10_MiB, .tag = pool_tag{7}}).value();
    CHECK(r.usage(r.device()).used >= before + 30_MiB);
    CHECK(r.heap().deallocate(tagged));
    CHECK(r.heap().trim(pool_tag{7}) >= 10_MiB);
    CHECK(r.usage(r.device()).used == before + r.heap_bytes());
    CHECK(r.heap_bytes() >= 20_MiB);
    CHECK(r.heap().deallocate(block));
    CHECK(r.heap().trim() >= 20_MiB);
    CHECK(r.usage(r.device()).used == before);
}

TEST_CASE("heap: a fault that looks for frames does not wait for the kernel that it is of") {
    heap_rig r{{device_of(16_MiB)}};
    auto* unified = r.map(8_MiB);
    fill<std::uint64_t>(unified, 8_MiB, 1);
    auto* block = r.make<std::uint64_t>(10_MiB);
    signal_flag may_go_on;
    std::atomic<std::uint64_t> sum{0};
    auto running = launch(r.line(), {reads(unified, 8_MiB)}, [&](soft::stream& s) {
        return s.run([&, view = device_view<const std::uint64_t>{unified, 8_MiB / 8}] {
            may_go_on.await();
            for (std::size_t i = 0; i < view.size(); i += 512) {
                sum += view[i];
            }
        });
    });
    REQUIRE(running);
    // Idle at once, but the queue's kernel has not passed that point.
    REQUIRE(r.heap().deallocate(block, r.line().id()));
    may_go_on.set();
    REQUIRE(r.line().synchronize());
    CHECK(sum > 0);
}

TEST_CASE("heap: its part of the address space is not for users") {
    heap_rig r;
    CHECK(r.of().map(2_MiB, {.fixed = r.device(), .is_arena = true}).code() ==
          errc::invalid_argument);
    auto* block = r.make<std::uint64_t>(1_MiB);
    CHECK(r.of().unmap(block).code != errc::ok);
    CHECK(r.heap().deallocate(block));
}

TEST_CASE("heap: pools take a tag each and give it back") {
    heap_rig r;
    device_resource upstream{port_of(r.of()), r.device()};
    pool_tag first{};
    {
        pool_resource pool{upstream};
        void* left_over = pool.allocate_sync(100'000);
        first = r.heap().find(left_over).value().tag;
        CHECK(pool.reserved_bytes() > 0);
        pool_resource other{upstream};
        void* one = other.allocate_sync(1000);
        CHECK(!(r.heap().find(one).value().tag == first));
        pool.release();
        CHECK(r.heap().find(left_over).code() == errc::not_mapped);
        CHECK(r.heap().find(one).has_value());
    }
    CHECK(r.heap_bytes() == 0);
    pool_resource again{upstream};
    void* one = again.allocate_sync(1000);
    CHECK(r.heap().find(one).value().tag.value >= xpu_malloc::first_made_tag);
    again.deallocate_sync(one, 1000);
}

TEST_CASE("heap: a forked child is refused, and gives nothing back") {
    heap_rig r;
    xpu_malloc& heap = r.heap();
    device_resource upstream{port_of(r.of()), r.device()};
    unified_resource unified{port_of(r.of())};
    heap_resource memory{heap, port_of(r.of()).queues()};
    pool_resource device_pool{upstream};
    pool_resource unified_pool{unified};
    host_resource host;
    pool_resource host_pool{host};
    debug_resource checked_host{host};
    auto checked = std::make_unique<debug_resource<unified_resource>>(unified);
    auto* block = r.make<std::uint64_t>(1_MiB);
    std::vector<std::pair<resource_base*, void*>> cached;
    for (resource_base* one : std::initializer_list<resource_base*>{
             &upstream, &unified, &memory, &device_pool, &unified_pool, checked.get()}) {
        one->deallocate_sync(one->allocate_sync(100'000), 100'000);  // it has one now
        cached.emplace_back(one, one->allocate_sync(200'000));
    }
    const ending calls = in_child([&] {
        const errc codes[] = {
            heap.allocate({.bytes = 1_MiB, .queue = r.line().id()}).code(),
            heap.deallocate(block).code,
            heap.find(block).code(),
            heap.record_use(block, r.line().id()).code,
            heap.make_tag().code(),
        };
        for (const errc one : codes) {
            std::puts(name_of(one));
        }
        heap.release({});
        heap.set_shortage_callback(nullptr, nullptr);
        if (heap.trim() != 0 || heap.trim(pool_tag{}) != 0 ||
            heap.figures().of(heap_metric::allocation).current != 0 ||
            !heap.snapshot().segments.empty()) {
            std::puts("it sees its parent's heap");
        }
        for (const auto& [one, kept] : cached) {
            one->deallocate_sync(kept, 200'000);
            try {
                static_cast<void>(one->allocate_sync(100'000));
                std::puts(one->name());
            } catch (const out_of_memory&) {
            }
        }
        unified_pool.release();
        device_pool.release();
        // Plain memory is its own.
        host_pool.deallocate_sync(host_pool.allocate_sync(100), 100);
        host_pool.release();
        checked_host.deallocate_sync(checked_host.allocate_sync(100), 100);
        if (checked->check() != 0 || checked_host.check() != 0) {
            std::puts("it finds faults");
        }
        checked.reset();  // as at the child's exit
        std::puts("done");
    });
    CHECK(calls.text ==
          "forked child\nforked child\nforked child\nforked child\nforked child\ndone\n");
    CHECK(!calls.is_crash());
    for (const auto& [one, kept] : cached) {
        one->deallocate_sync(kept, 200'000);
    }
    CHECK(heap.deallocate(block, r.line().id()));
}

TEST_CASE("heap: addresses go only after the marks of launches that named them") {
    heap_rig r;
    auto* block = r.make<std::uint64_t>(8_MiB);
    auto running = launch(r.line(), {writes(block, 8_MiB)},
                          [&](soft::stream& s) { return s.run([] { nap(50); }); });
    REQUIRE(running);
    REQUIRE(r.heap().deallocate(block, r.line().id()));
    r.heap().trim(pool_tag{});  // waits for the kernel; nobody has looked at its launch since
    CHECK(r.of().state().core.uses().in_flight() == 0);
    REQUIRE(r.line().synchronize());
}

TEST_CASE("heap: a request waits for frames of a heap whose lock is held for a queue") {
    heap_rig r;
    queue other = r.of().make_queue(r.device()).value();
    auto* block = r.make<std::uint64_t>(48_MiB);
    const auto kernel = r.start_kernel<std::uint64_t>(block, 1);
    REQUIRE(r.heap().deallocate(block, r.line().id()));
    std::thread holder{[&] { r.heap().trim(pool_tag{}); }};
    nap(30);
    std::thread ender{[&] {
        nap(50);
        kernel.end->set();
    }};
    result<void*> taken = r.heap().allocate({.bytes = 40_MiB, .queue = other.id()});
    ender.join();
    holder.join();
    REQUIRE(taken);
    CHECK(r.heap().deallocate(*taken));
    CHECK(r.finish(kernel));
}

TEST_CASE("heap: a host's is page-locked memory that all reach") {
    heap_rig r;
    xpu_malloc& heap = *r.of().heap(r.host()).value();
    auto* block = static_cast<std::uint64_t*>(heap.allocate({.bytes = 3_MiB}).value());
    fill<std::uint64_t>(block, 3_MiB, 5);
    CHECK(r.count_wrong_on_device<std::uint64_t>(block, 3_MiB, 5) == 0);
    r.fill_on_device<std::uint64_t>(block, 3_MiB, 6);
    CHECK(count_wrong<std::uint64_t>(block, 3_MiB, 6) == 0);
    CHECK(r.of().residency_of(block).value() == r.host());
    CHECK(heap.deallocate(block));
}

TEST_CASE("heap: a host's block that a queue of another driver uses waits for that queue") {
    std::unique_ptr<soft::driver> late;  // outlives the space
    heap_rig r;
    const node_id id = register_device_node("another driver's");
    const node_id host = r.host();
    const soft::device_options card = device_of(16_MiB);
    soft::driver_options options;
    late = std::make_unique<soft::driver>(std::span{&card, 1}, std::span{&id, 1},
                                          std::span{&host, 1}, options);
    REQUIRE(r.of().attach(*late));
    xpu_malloc& heap = *r.of().heap(r.host()).value();
    queue other = r.of().make_queue(id).value();
    for (const bool is_noted : {false, true}) {
        CAPTURE(is_noted);
        void* block = heap.allocate({.bytes = 3_MiB}).value();
        signal_flag may_end;
        REQUIRE(launch(other, {},
                       [&](soft::stream& s) { return s.run([&may_end] { may_end.await(); }); }));
        if (is_noted) {
            REQUIRE(heap.record_use(block, other.id()));
        }
        REQUIRE(heap.deallocate(block, is_noted ? queue_id{} : other.id()));
        void* next = heap.allocate({.bytes = 3_MiB}).value();
        CHECK(next != block);
        may_end.set();
        REQUIRE(other.synchronize());
        void* third = heap.allocate({.bytes = 3_MiB}).value();
        CHECK(third == block);
        CHECK(heap.deallocate(next));
        CHECK(heap.deallocate(third));
        static_cast<void>(heap.trim());
    }
}

TEST_CASE("heap: a queue's end waits until it can say that its work is done") {
    const soft::device_options card = device_of(64_MiB);
    auto inner = xmm::detail::make_soft_driver({card}, machine_topology());
    REQUIRE(inner);
    faulty_backend<soft::driver> driver{**inner};
    auto made = space::create_on(driver);
    REQUIRE(made);
    const node_id device = made->devices()[0];
    xpu_malloc& heap = *made->heap(device).value();
    address before = 0;
    for (int i = 0; i < 2; ++i) {
        queue line = made->make_queue(device).value();
        void* block = heap.allocate({.bytes = 3_MiB, .queue = line.id()}).value();
        CHECK(heap.deallocate(block, line.id()));
        CHECK((i == 0 || to_address(block) == before));
        before = to_address(block);
        driver.plan(op::record, {.fail_at = 1, .fail_count = 5, .code = errc::no_memory});
    }
}

TEST_CASE("heap: one for each node, whoever asks; unknown nodes are refused") {
    heap_rig r{{device_of(16_MiB), device_of(16_MiB)}};
    CHECK(&r.heap(0) == &r.heap(0));
    CHECK(&r.heap(0) != &r.heap(1));
    CHECK(r.of().heap(node_id{4711}).code() == errc::unknown_node);
    CHECK(r.heap(0).allocate({.bytes = 1, .queue = {4711}}).code() == errc::invalid_argument);
    CHECK(r.heap(0).node() == r.device(0));
}

TEST_CASE("heap: a device without faults as well") {
    heap_rig r{{device_of(32_MiB, false)}};
    auto* block = r.make<std::uint64_t>(5_MiB);
    r.fill_on_device<std::uint64_t>(block, 5_MiB, 9);
    CHECK(r.count_wrong_on_device<std::uint64_t>(block, 5_MiB, 9) == 0);
    CHECK(r.heap().deallocate(block, r.line().id()));
}

TEST_CASE("heap: as a memory resource, in queue order") {
    heap_rig r;
    heap_resource memory{r.heap(), port_of(r.of()).queues(), pool_tag{3}};
    const stream_ref on{r.line()};
    void* one = memory.allocate(on, 1_MiB);
    CHECK(r.heap().find(one).value().tag == pool_tag{3});
    CHECK(r.heap().find(one).value().queue == r.line().id());
    memory.deallocate(on, one, 1_MiB);
    CHECK(memory.allocate(on, 1_MiB) == one);
    memory.deallocate(on, one, 1_MiB);
    CHECK(memory.trim() > 0);
    CHECK(memory.is_equal(heap_resource{r.heap(), {}, pool_tag{3}}));
    CHECK(!memory.is_equal(heap_resource{r.heap()}));
    static_assert(!std::is_base_of_v<std::pmr::memory_resource, heap_resource>);
}

TEST_CASE("heap: a resource waits for a queue of another space before the block is free") {
    heap_rig r;
    heap_rig other;
    heap_resource memory{r.heap(), port_of(r.of()).queues()};
    const stream_ref own{r.line()};
    for (const std::size_t bytes : {8_KiB, 1_MiB}) {
        CAPTURE(bytes);
        memory.deallocate(own, memory.allocate(own, bytes), bytes);
        void* block = memory.allocate(own, bytes);
        std::atomic<bool> is_over{false};
        REQUIRE(launch(other.line(), {}, [&](soft::stream& s) {
            return s.run([&] {
                nap(50);
                is_over = true;
            });
        }));
        memory.deallocate(stream_ref{other.line()}, block, bytes);
        CHECK(is_over);
        REQUIRE(other.line().synchronize());
        CHECK(r.heap().find(block).code() == errc::not_mapped);
    }
}

TEST_CASE("heap: a block given back on a queue of another space stays the program's") {
    heap_rig r;
    heap_rig other;
    for (const std::size_t bytes : {8_KiB, 1_MiB}) {
        CAPTURE(bytes);
        auto* block = r.make<std::uint64_t>(bytes);
        signal_flag may_end;
        REQUIRE(launch(other.line(), {},
                       [&](soft::stream& s) { return s.run([&] { may_end.await(); }); }));
        CHECK(r.heap().deallocate(block, other.line().id()).code == errc::invalid_argument);
        CHECK(r.heap().deallocate_when_known(block, other.line().id()).code ==
              errc::invalid_argument);
        CHECK(r.heap().find(block).has_value());
        auto* second = r.make<std::uint64_t>(bytes);
        CHECK(second != block);
        may_end.set();
        REQUIRE(other.line().synchronize());
        // Nor is what it runs known once it is idle, or gone.
        CHECK(r.heap().deallocate(block, other.line().id()).code == errc::invalid_argument);
        queue_id gone = other.of().make_queue(other.device()).value().id();
        CHECK(r.heap().deallocate(block, gone).code == errc::invalid_argument);
        // One of this space that is over has done all, whoever has its place now.
        gone = r.of().make_queue(r.device()).value().id();
        CHECK(r.heap().deallocate(block, gone));
        {
            queue ended = r.of().make_queue(r.device()).value();
            REQUIRE(launch(ended, {}, [](soft::stream& s) { return s.run([] {}); }));
            gone = ended.id();
        }
        queue next = r.of().make_queue(r.device()).value();
        CHECK(r.heap().deallocate(second, gone));
        CHECK(r.heap().find(second).code() == errc::not_mapped);
    }
}

TEST_CASE("heap: a refusal says node, bytes, what is used, and the limit") {
    heap_rig r;
    heap_resource memory{r.heap(), port_of(r.of()).queues()};
    void* unified = r.map(10_MiB);  // the node's figures, not the heap's alone
    REQUIRE(r.of().make_resident(unified, 10_MiB, r.device()));
    void* kept = memory.allocate_sync(8_MiB);
    REQUIRE(r.of().set_budget(r.device(), 48_MiB));
    const node_usage now = r.usage(r.device());
    CHECK(memory.usage().used == now.used);
    CHECK(memory.usage().limit == 48_MiB);
    bool is_refused = false;
    try {
        static_cast<void>(memory.allocate_sync(1_GiB));
    } catch (const out_of_memory& why) {
        is_refused = true;
        CHECK(why.node() == r.device());
        CHECK(why.bytes() == 1_GiB);
        CHECK(why.used() == now.used);
        CHECK(why.limit() == 48_MiB);
        CHECK(why.cause() != std::string{});
    }
    CHECK(is_refused);
    const shortage told = r.of().last_shortage();
    CHECK(told.node == r.device());
    CHECK(told.bytes == 1_GiB);
    CHECK(told.used == now.used);
    CHECK(told.limit == 48_MiB);
    CHECK(r.of().map(2_GiB, {.fixed = r.device()}).code() == errc::no_memory);
    CHECK(r.of().last_shortage().bytes == 2_GiB);
    memory.deallocate_sync(kept, 8_MiB);
}

TEST_CASE("heap: a queue's end leaves its blocks to the program and its room to the next queue") {
    heap_rig r;
    std::uint64_t* kept = nullptr;
    address before = 0;
    for (int i = 0; i < 300; ++i) {
        queue one = r.of().make_queue(r.device()).value();
        void* large = r.heap().allocate({.bytes = 6_MiB, .queue = one.id()}).value();
        if (i == 0) {
            kept = static_cast<std::uint64_t*>(
                r.heap().allocate({.bytes = 1_MiB, .queue = one.id()}).value());
            before = to_address(large);
        }
        auto work = launch(one, {writes(large, 6_MiB)},
                           [](soft::stream& s) { return s.run([] { nap(1); }); });
        REQUIRE(work);
        REQUIRE(r.heap().deallocate(large, one.id()));
        CHECK(to_address(large) == before);
        queue moved = std::move(one);  // ends at the bracket, and waits for its work
    }
    CHECK(r.heap_bytes() <= 10_MiB);
    r.fill_on_device<std::uint64_t>(kept, 1_MiB, 5);
    CHECK(r.count_wrong_on_device<std::uint64_t>(kept, 1_MiB, 5) == 0);
    CHECK(r.heap().deallocate(kept, r.line().id()));
}

namespace {

// Asked for frames it takes its time, and sees whether addresses of the space are released meanwhile.
struct slow_lender final : frame_lender {
    explicit slow_lender(faulty_backend<soft::driver>& on) : driver{on} {}
    std::size_t give_back(std::size_t) noexcept override {
        const std::uint64_t before = driver.calls(op::va_release);
        was_asked.set();
        nap(100);
        released = released || driver.calls(op::va_release) != before;
        return 0;
    }
    faulty_backend<soft::driver>& driver;
    signal_flag was_asked;
    std::atomic<bool> released{false};
};

}  // namespace

TEST_CASE("heap: a space that goes waits for its prefetches before its heaps go") {
    auto soft =
        xmm::detail::make_soft_driver({device_of(16_MiB), device_of(16_MiB)}, machine_topology());
    REQUIRE(soft);
    faulty_backend<soft::driver> driver{**soft};
    slow_lender lender{driver};
    {
        auto made = space::create_on(driver);
        REQUIRE(made);
        const node_id device = made->devices()[0];
        auto* data = static_cast<char*>(*made->map(8_MiB, {.granule_bytes = page_bytes}));
        std::memset(data, 1, 8_MiB);
        REQUIRE(made->advise(device, data, 1, advice::pin));
        REQUIRE(made->set_budget(device, page_bytes));  // full
        made->state().core.find_node(device)->lender = &lender;
        xpu_malloc& heap = **made->heap(made->devices()[1]);
        REQUIRE(heap.deallocate(heap.allocate({.bytes = 4_MiB}).value()));
        REQUIRE(made->advise_async(device, page_of(data, 1), 6_MiB, advice::will_need));
        REQUIRE(lender.was_asked.await());
    }
    CHECK(!lender.released);
}

TEST_CASE("heap: hints leave the frames of its blocks alone") {
    heap_rig r;
    auto* block = r.make<std::uint64_t>(4_MiB);
    const page_list& active = r.of().state().core.find_node(r.device())->active;
    for (const advice one : {advice::cold, advice::will_need, advice::preferred}) {
        CAPTURE(name_of(one));
        CHECK(r.of().advise(r.device(), block, 4_MiB, one));
        CHECK(active.count() == 0);
    }
    CHECK(r.of().make_resident(block, 4_MiB, r.device()));
    CHECK(active.count() == 0);
    CHECK(r.heap().deallocate(block, r.line().id()));
}

TEST_CASE("heap: frames move within a queue while its work runs, and nobody waits") {
    heap_rig r;
    auto* first = r.make<std::uint64_t>(6_MiB);
    auto* between = r.make<std::uint64_t>(2_MiB);
    signal_flag may_end;
    // Names no range: the heap's own order has to do.
    REQUIRE(launch(r.line(), {}, [&](soft::stream& s) {
        return s.run([&may_end, first] {
            may_end.await();
            const device_view<std::uint64_t> words{first, 6_MiB / 8};
            for (std::size_t i = 0; i < words.size(); ++i) {
                words[i] = 1;
            }
        });
    }));
    REQUIRE(r.heap().deallocate(first, r.line().id()));
    auto* second = r.make<std::uint64_t>(8_MiB);
    CHECK(second != first);
    CHECK(r.heap().frames().counts().moved >= 3);
    CHECK(r.heap().frames().counts().waits == 0);
    REQUIRE(launch(r.line(), {writes(second, 8_MiB)}, [second](soft::stream& s) {
        return s.run([second] {
            const device_view<std::uint64_t> words{second, 8_MiB / 8};
            for (std::size_t i = 0; i < words.size(); ++i) {
                words[i] = 2;
            }
        });
    }));
    may_end.set();
    REQUIRE(r.line().synchronize());
    std::vector<std::uint64_t> got(1_MiB);
    REQUIRE(r.of().copy(got.data(), second, 8_MiB));
    CHECK(std::count(got.begin(), got.end(), 2) == static_cast<std::ptrdiff_t>(got.size()));
    CHECK(r.of().is_valid());
    CHECK(r.heap().deallocate(second));
    CHECK(r.heap().deallocate(between));
    CHECK(r.heap().trim() > 0);
    CHECK(r.heap_bytes() == 0);
}

TEST_CASE("heap: its memory takes no pins - they would outlive the block") {
    heap_rig r;
    auto* block = r.make<std::uint64_t>(2_MiB);
    for (const node_id where : {r.device(), any_host}) {
        CHECK(r.of().advise(where, block, 8, advice::pin).code == errc::unsupported);
        CHECK(r.of().advise(where, block, 8, advice::unpin).code == errc::unsupported);
        CHECK(r.of().advise_async(where, block, 8, advice::pin).code() == errc::unsupported);
    }
    CHECK(r.pins(block) == 0);
    CHECK(r.of().advise(r.device(), block, 8, advice::will_need));
    CHECK(r.heap().deallocate(block, r.line().id()));
    auto* in_its_place = r.make<std::uint64_t>(2_MiB);
    CHECK(r.pins(in_its_place) == 0);
    CHECK(r.heap().deallocate(in_its_place, r.line().id()));
    auto* plain = r.map(2_MiB);
    CHECK(r.of().advise(r.device(), plain, 8, advice::pin));
    CHECK(r.of().advise(r.device(), plain, 8, advice::unpin));
}
