// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/space_frames.hpp>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <xmm/xmm.hpp>

using namespace xmm;
using namespace xmm::literals;

namespace {

struct frames_rig {
    space one = std::move(space::create_soft({{.bytes = 32_MiB, .granule_bytes = 2_MiB}}).value());
    node_id device = one.devices()[0];
    node& there = *one.state().core.find_node(device);
    space_frames port{one.state().core, one.state().engine.moves, one.state().engine.releases,
                      there};
    va_range slots = {port.reserve(8 * page_bytes, page_bytes).value(), 8 * page_bytes};

    [[nodiscard]] address at(std::size_t slot) const { return slots.begin + slot * page_bytes; }
    port_frame create() { return port.create(page_bytes).value(); }
    void* pointer(std::size_t slot) const { return to_pointer(at(slot)); }
    status read(std::size_t slot) {
        std::vector<char> some(4096);
        return one.copy(some.data(), pointer(slot), some.size());
    }
};

}  // namespace

TEST_CASE("space_frames: a slot is memory while it has a frame, and only then") {
    frames_rig r;
    CHECK(r.slots.begin % page_bytes == 0);
    CHECK(r.read(0).code == errc::not_mapped);
    const port_frame frame = r.create();
    REQUIRE(r.port.map(r.at(0), frame, page_bytes));
    std::vector<char> sent(page_bytes, 'x');
    std::vector<char> got(page_bytes);
    REQUIRE(r.one.copy(r.pointer(0), sent.data(), sent.size()));
    REQUIRE(r.one.copy(got.data(), r.pointer(0), got.size()));
    CHECK(sent == got);
    CHECK(r.one.copy(r.pointer(0), sent.data(), sent.size() + 1).code == errc::not_mapped);
    r.port.unmap(r.at(0), frame, page_bytes);
    CHECK(r.read(0).code == errc::not_mapped);
    CHECK(r.there.book->used() == page_bytes);  // the frame is there still
    REQUIRE(r.port.map(r.at(5), frame, page_bytes));
    REQUIRE(r.one.copy(got.data(), r.pointer(5), got.size()));
    CHECK(sent == got);  // its contents travel with it
    CHECK(r.one.is_valid());
    r.port.unmap(r.at(5), frame, page_bytes);
    r.port.drop(frame, page_bytes);
    r.port.release(r.slots);
    CHECK(r.one.copy(got.data(), r.pointer(0), 1).code == errc::not_mapped);
}

TEST_CASE(
    "space_frames: kernels reach what has a frame, and a launch on what has none is refused") {
    frames_rig r;
    const port_frame frame = r.create();
    REQUIRE(r.port.map(r.at(1), frame, page_bytes));
    queue line = r.one.make_queue(r.device).value();
    const auto launched = [&](std::size_t slot) {
        auto* words = static_cast<std::uint32_t*>(r.pointer(slot));
        auto done = launch(line, {writes(words, page_bytes)}, [words](soft::stream& stream) {
            return stream.parallel_for(1024, [words](std::size_t first, std::size_t last) {
                for (std::size_t i = first; i < last; ++i) {
                    device_view<std::uint32_t>{words, 1024}[i] = static_cast<std::uint32_t>(i);
                }
            });
        });
        return done ? line.synchronize() : done.error();
    };
    CHECK(launched(0).code == errc::not_mapped);
    REQUIRE(launched(1));
    std::vector<std::uint32_t> got(1024);
    REQUIRE(r.one.copy(got.data(), r.pointer(1), 4096));
    CHECK(got[1023] == 1023);
    CHECK(r.one.is_valid());
    r.port.unmap(r.at(1), frame, page_bytes);
    r.port.drop(frame, page_bytes);
    r.port.release(r.slots);
}

TEST_CASE("space_frames: hints, unmap and pressure leave a heap's memory alone") {
    frames_rig r;
    std::vector<port_frame> frames;
    for (std::size_t slot = 0; slot < 4; ++slot) {
        frames.push_back(r.create());
        REQUIRE(r.port.map(r.at(slot), frames.back(), page_bytes));
        std::vector<char> sent(page_bytes, static_cast<char>('a' + slot));
        REQUIRE(r.one.copy(r.pointer(slot), sent.data(), sent.size()));
    }
    CHECK(r.one.unmap(r.pointer(0)).code == errc::invalid_argument);
    CHECK_FALSE(r.one.make_resident(r.pointer(0), page_bytes, r.one.hosts()[0]));
    static_cast<void>(r.one.advise(any_host, r.pointer(0), 8 * page_bytes, advice::dont_need));
    static_cast<void>(r.one.advise(any_host, r.pointer(0), 4 * page_bytes, advice::will_need));
    // More than the rest of the device: the heap's pages are no victims.
    auto* other = static_cast<char*>(r.one.map(64_MiB).value());
    std::memset(other, 1, 64_MiB);
    static_cast<void>(r.one.advise(r.device, other, 64_MiB, advice::will_need));
    static_cast<void>(r.one.make_resident(other, 16_MiB, r.device));
    for (std::size_t slot = 0; slot < 4; ++slot) {
        std::vector<char> got(page_bytes);
        REQUIRE(r.one.copy(got.data(), r.pointer(slot), got.size()));
        CHECK(got.front() == static_cast<char>('a' + slot));
        CHECK(got.back() == static_cast<char>('a' + slot));
    }
    CHECK(r.one.is_valid());
    REQUIRE(r.one.unmap(other));
    for (std::size_t slot = 0; slot < 4; ++slot) {
        r.port.unmap(r.at(slot), frames[slot], page_bytes);
        r.port.drop(frames[slot], page_bytes);
    }
    r.port.release(r.slots);
}

TEST_CASE("space_frames: the budget bounds frames, and what is given back can be had again") {
    frames_rig r;
    std::vector<port_frame> frames;
    for (;;) {
        result<port_frame> one = r.port.create(page_bytes);
        if (!one) {
            break;
        }
        frames.push_back(*one);
    }
    CHECK(frames.size() == r.there.book->limit() / page_bytes);
    CHECK(r.port.create(page_bytes).code() == errc::no_memory);
    for (const port_frame one : frames) {
        r.port.drop(one, page_bytes);
    }
    result<port_frame> again =
        r.port.create(4 * page_bytes);  // of another size: smaller ones are dropped
    REQUIRE(again);
    r.port.drop(*again, 4 * page_bytes);
    r.port.release(r.slots);
}

TEST_CASE(
    "space_frames: a frame that is lent is another slot's memory, and stays mapped where it was") {
    frames_rig r;
    REQUIRE(r.port.can_alias());
    const port_frame frame = r.create();
    REQUIRE(r.port.map(r.at(0), frame, page_bytes));
    std::vector<char> sent(page_bytes, 'x');
    REQUIRE(r.one.copy(r.pointer(0), sent.data(), sent.size()));
    r.port.lend(r.at(0), frame, page_bytes);
    CHECK(r.read(0).code == errc::not_mapped);
    REQUIRE(r.port.map(r.at(3), frame, page_bytes));
    std::vector<char> got(page_bytes);
    REQUIRE(r.one.copy(got.data(), r.pointer(3), got.size()));
    CHECK(sent == got);
    CHECK(r.one.is_valid());
    // A launch may not name it.
    queue line = r.one.make_queue(r.device).value();
    CHECK(launch(line, {reads(r.pointer(0), 64)}, [](soft::stream&) { return status{}; }).code() ==
          errc::not_mapped);
    // What was submitted while slot 0 had it runs on.
    auto* old = static_cast<char*>(r.pointer(0));
    REQUIRE(launch(line, {}, [old](soft::stream& s) {
        return s.run([old] { device_view<char>{old, page_bytes}[7] = 'y'; });
    }));
    REQUIRE(line.synchronize());
    REQUIRE(r.one.copy(got.data(), r.pointer(3), got.size()));
    CHECK(got[7] == 'y');
    r.port.lend(r.at(3), frame, page_bytes);
    r.port.come_back(r.at(0), frame, page_bytes);
    CHECK(r.read(3).code == errc::not_mapped);
    REQUIRE(r.one.copy(got.data(), r.pointer(0), got.size()));
    CHECK(got[7] == 'y');
    CHECK(r.one.is_valid());
    // The mapping at slot 3 ends, and another frame comes there.
    r.port.end_loan(r.at(3), frame, page_bytes);
    const port_frame other = r.create();
    REQUIRE(r.port.map(r.at(3), other, page_bytes));
    REQUIRE(r.one.copy(r.pointer(3), sent.data(), sent.size()));
    REQUIRE(r.one.copy(got.data(), r.pointer(0), got.size()));
    CHECK(got[7] == 'y');
    r.port.unmap(r.at(0), frame, page_bytes);
    r.port.unmap(r.at(3), other, page_bytes);
    CHECK(r.one.is_valid());
    r.port.drop(frame, page_bytes);
    r.port.drop(other, page_bytes);
    r.port.release(r.slots);
}

TEST_CASE("space_frames: a slot that a copy to come names is not quiet") {
    frames_rig r;
    const port_frame frame = r.create();
    REQUIRE(r.port.map(r.at(0), frame, page_bytes));
    CHECK(r.port.is_quiet(r.at(0)));
    queue line = r.one.make_queue(r.device).value();
    std::atomic<bool> may_end{false};
    REQUIRE(launch(line, {}, [&may_end](soft::stream& s) {
        return s.run([&may_end] {
            while (!may_end.load()) {
                std::this_thread::yield();
            }
        });
    }));
    std::vector<char> sent(page_bytes, 'x');
    REQUIRE(r.one.copy(line, r.pointer(0), sent.data(), sent.size()));
    CHECK_FALSE(r.port.is_quiet(r.at(0)));
    may_end = true;
    REQUIRE(line.synchronize());
    CHECK(r.port.is_quiet(r.at(0)));
    r.port.unmap(r.at(0), frame, page_bytes);
    r.port.drop(frame, page_bytes);
    r.port.release(r.slots);
}

TEST_CASE("space_frames: who unmaps a heap's addresses by mistake is no hindrance to the heap") {
    frames_rig r;
    std::atomic<address> last{r.slots.begin};
    std::atomic<bool> is_over{false};
    std::atomic<int> successes{0};
    std::thread wrong{[&] {
        while (!is_over.load(std::memory_order_relaxed)) {
            void* there = to_pointer(last.load(std::memory_order_relaxed));
            successes += r.one.unmap(there) ? 1 : 0;
        }
    }};
    r.port.release(r.slots);
    for (int round = 0; round < 3000; ++round) {
        const address at = r.port.reserve(8 * page_bytes, page_bytes).value();
        last.store(at, std::memory_order_relaxed);
        std::this_thread::yield();
        r.port.release({at, 8 * page_bytes});
    }
    is_over.store(true, std::memory_order_relaxed);
    wrong.join();
    CHECK(successes == 0);
    CHECK(r.one.is_valid());
}
