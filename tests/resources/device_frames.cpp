// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/device_frames.hpp>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "../support/fake_frames.hpp"
#include "watched_new.hpp"

using namespace xmm;
using namespace xmm::literals;
using test::fake_frames;

namespace {

constexpr std::size_t slot = 2_MiB;

// Two spans of 16 slots on two queues, and frames without slack.
struct rig {
    explicit rig(bool can_alias = false, std::size_t device_bytes = 1_GiB)
        : port{device_bytes, can_alias}, frames{port, {.slack = 0}} {
        a = frames.reserve(16 * slot, slot, queue_id{1}).value();
        b = frames.reserve(16 * slot, slot, queue_id{2}).value();
    }
    ~rig() {
        CHECK(frames.is_valid());
        port.finish({1});
        port.finish({2});
        frames.release(a);
        frames.release(b);
        CHECK(port.frame_count() == 0);
        CHECK(port.mapping_count() == 0);
        CHECK(port.reservation_count() == 0);
        CHECK(port.faults() == "");
    }
    [[nodiscard]] static va_range part(const slot_span* span, std::size_t first,
                                       std::size_t count) {
        return {span->slot_begin(first), count * slot};
    }
    // Live bytes as a heap would tell them.
    status acquire(slot_span* span, std::size_t first, std::size_t count) {
        const status given = frames.acquire(*span, part(span, first, count));
        if (given) {
            frames.add_live(static_cast<std::ptrdiff_t>(count * slot));
        }
        return given;
    }
    void release(slot_span* span, std::size_t first, std::size_t count) {
        frames.add_live(-static_cast<std::ptrdiff_t>(count * slot));
        frames.release(*span, part(span, first, count));
    }

    fake_frames port;
    device_frames frames;
    slot_span* a = nullptr;
    slot_span* b = nullptr;
};

// The first `left` waits fail.
class failing_waits final : public frame_port {
public:
    explicit failing_waits(fake_frames& real) : real_{real} {}
    unsigned left = 0;
    errc code = errc::busy;

    result<address> reserve(std::size_t bytes, std::size_t slot_bytes) noexcept override {
        return real_.reserve(bytes, slot_bytes);
    }
    void release(va_range range) noexcept override { real_.release(range); }
    result<port_frame> create(std::size_t bytes) noexcept override { return real_.create(bytes); }
    void drop(port_frame one, std::size_t bytes) noexcept override { real_.drop(one, bytes); }
    status map(address at, port_frame one, std::size_t bytes) noexcept override {
        return real_.map(at, one, bytes);
    }
    void unmap(address at, port_frame one, std::size_t bytes) noexcept override {
        real_.unmap(at, one, bytes);
    }
    result<ticket> record(queue_id queue) noexcept override { return real_.record(queue); }
    bool is_done(ticket point) noexcept override { return real_.is_done(point); }
    status wait(ticket point) noexcept override {
        if (left != 0) {
            --left;
            return fail(code, "told to fail");
        }
        return real_.wait(point);
    }

private:
    fake_frames& real_;
};

}  // namespace

TEST_CASE("device_frames: a range has frames from acquire on, and keeps them idle after release") {
    rig r;
    REQUIRE(r.acquire(r.a, 2, 3));
    CHECK(r.port.is_backed(rig::part(r.a, 2, 3)));
    CHECK(r.port.frame_count() == 3);
    r.release(r.a, 2, 3);
    CHECK(r.port.mapping_count() == 3);
    const auto before = r.port.calls();
    REQUIRE(r.acquire(r.a, 2, 3));
    CHECK(r.port.calls().map == before.map);
    CHECK(r.port.calls().create == before.create);
    CHECK(r.frames.counts().moved == 0);
    r.release(r.a, 2, 3);
}

TEST_CASE("device_frames: a slot that two ranges share goes idle with the second") {
    rig r;
    const va_range low{r.a->slot_begin(0), 1_MiB};
    const va_range high{r.a->slot_begin(0) + 1_MiB, 2_MiB};
    REQUIRE(r.frames.acquire(*r.a, low));
    REQUIRE(r.frames.acquire(*r.a, high));
    CHECK(r.port.frame_count() == 2);
    r.frames.release(*r.a, low);
    r.frames.trim(0);
    CHECK(r.port.is_backed(high));
    r.frames.release(*r.a, high);
    CHECK(r.frames.trim(0) == 2 * slot);
    CHECK(r.port.frame_count() == 0);
}

TEST_CASE("device_frames: beyond the peak of live bytes, the longest idle frame is taken") {
    rig r;
    REQUIRE(r.acquire(r.a, 0, 4));
    r.release(r.a, 1, 1);
    r.release(r.a, 3, 1);
    r.release(r.a, 0, 1);
    REQUIRE(r.acquire(r.b, 5, 1));
    CHECK(r.port.frame_count() == 4);
    CHECK_FALSE(r.port.is_backed(rig::part(r.a, 1, 1)));
    CHECK(r.port.is_backed(rig::part(r.a, 3, 1)));
    REQUIRE(r.acquire(r.b, 6, 1));
    CHECK_FALSE(r.port.is_backed(rig::part(r.a, 3, 1)));
    CHECK(r.frames.counts().moved == 2);
    CHECK(r.frames.counts().reserved_peak == 4 * slot);
    // Nothing idle but one: the third makes the peak grow, and so is created.
    REQUIRE(r.acquire(r.b, 7, 2));
    CHECK(r.port.frame_count() == 5);
    r.release(r.b, 5, 4);
    r.release(r.a, 2, 1);
}

TEST_CASE("device_frames: slack lets frames be created before any is taken") {
    fake_frames port;
    device_frames frames{port, {.slack = 256}};
    slot_span* span = frames.reserve(64 * slot, slot, queue_id{0}).value();
    const va_range low{span->slot_begin(0), 16 * slot};
    REQUIRE(frames.acquire(*span, low));
    frames.add_live(16 * slot);
    frames.add_live(-16 * std::ptrdiff_t{slot});
    frames.release(*span, low);
    const va_range high{span->slot_begin(32), 16 * slot};
    REQUIRE(frames.acquire(*span, high));
    CHECK(port.frame_count() == 20);
    CHECK(frames.counts().moved == 12);
    frames.release(*span, high);
    frames.release(span);
    CHECK(port.faults() == "");
}

TEST_CASE("device_frames: a frame of a busy queue is waited for, one of a quiet queue goes first") {
    rig r;
    REQUIRE(r.acquire(r.a, 0, 1));
    REQUIRE(r.acquire(r.b, 0, 1));
    r.port.use(rig::part(r.a, 0, 1), {1});
    r.port.use(rig::part(r.b, 0, 1), {2});
    r.release(r.a, 0, 1);
    r.release(r.b, 0, 1);
    r.port.finish({2});
    REQUIRE(r.acquire(r.a, 8, 1));  // a's own frame is older, but its work is not done
    CHECK(r.port.calls().wait == 0);
    CHECK(r.frames.counts().waits == 0);
    CHECK(r.port.is_backed(rig::part(r.a, 0, 1)));
    REQUIRE(r.acquire(r.b, 8, 1));
    CHECK(r.port.calls().wait == 1);
    CHECK(r.frames.counts().waits == 1);
    CHECK(r.frames.counts().moved == 2);
    r.release(r.a, 8, 1);
    r.release(r.b, 8, 1);
}

TEST_CASE(
    "device_frames: with alias a queue takes its own frame at once, unmapped when the work is "
    "done") {
    rig r{true};
    REQUIRE(r.acquire(r.a, 0, 1));
    r.port.use(rig::part(r.a, 0, 1), {1});
    r.release(r.a, 0, 1);
    REQUIRE(r.acquire(r.a, 8, 1));
    CHECK(r.port.calls().wait == 0);
    CHECK(r.port.mapping_count() == 2);
    CHECK(r.port.frame_count() == 1);
    r.port.use(rig::part(r.a, 8, 1), {1});
    // The old slot is wanted again: its old mapping has to go first, and so the work has to end.
    REQUIRE(r.acquire(r.a, 0, 1));
    CHECK(r.port.calls().wait == 1);
    CHECK(r.port.frame_count() == 2);
    CHECK(r.port.mapping_count() == 2);
    r.release(r.a, 0, 1);
    r.release(r.a, 8, 1);
}

TEST_CASE(
    "device_frames: with alias, a frame goes to another queue or to the device only when unused") {
    rig r{true};
    REQUIRE(r.acquire(r.a, 0, 1));
    r.port.use(rig::part(r.a, 0, 1), {1});
    r.release(r.a, 0, 1);
    REQUIRE(r.acquire(r.a, 8, 1));
    r.port.use(rig::part(r.a, 8, 1), {1});
    r.release(r.a, 8, 1);
    SUBCASE("another queue") {
        REQUIRE(r.acquire(r.b, 3, 1));
        r.port.use(rig::part(r.b, 3, 1), {2});
        CHECK(r.port.calls().wait == 1);
        r.release(r.b, 3, 1);
    }
    SUBCASE("the device") {
        CHECK(r.frames.trim(0) == slot);
        CHECK(r.port.mapping_count() == 0);
    }
}

TEST_CASE("device_frames: frames of another size make room when none of this size is idle") {
    fake_frames port;
    device_frames frames{port, {.slack = 0}};
    slot_span* small = frames.reserve(16 * slot, slot, queue_id{0}).value();
    slot_span* large = frames.reserve(64_MiB, 8_MiB, queue_id{0}).value();
    const va_range eight{small->slot_begin(0), 8 * slot};
    REQUIRE(frames.acquire(*small, eight));
    frames.add_live(8 * slot);
    frames.add_live(-8 * std::ptrdiff_t{slot});
    frames.release(*small, eight);
    const va_range one{large->slot_begin(1), 8_MiB};
    REQUIRE(frames.acquire(*large, one));
    CHECK(frames.counts().reserved_bytes <= 16_MiB);
    CHECK(frames.counts().dropped == 4);
    CHECK(port.is_backed(one));
    frames.release(*large, one);
    frames.release(small);
    frames.release(large);
    CHECK(port.faults() == "");
}

TEST_CASE("device_frames: a full device gives what is idle, then fails and leaves all as it was") {
    rig r{false, 8 * slot};
    REQUIRE(r.acquire(r.a, 0, 6));
    r.release(r.a, 0, 2);
    REQUIRE(r.acquire(r.b, 0, 4));  // two are created, two are taken
    CHECK(r.port.frame_count() == 8);
    const auto held = r.port.held_bytes();
    const std::size_t peak = r.frames.live_peak();
    const status failed = r.frames.acquire(*r.b, rig::part(r.b, 8, 4));
    CHECK(failed.code == errc::no_memory);
    CHECK(r.port.held_bytes() == held);
    CHECK(r.frames.live_peak() == peak);
    CHECK(r.frames.is_valid());
    CHECK(r.port.is_backed(rig::part(r.a, 2, 4)));
    CHECK(r.port.is_backed(rig::part(r.b, 0, 4)));
    CHECK_FALSE(r.port.is_backed(rig::part(r.b, 8, 1)));
    r.release(r.a, 2, 4);
    r.release(r.b, 0, 4);
    REQUIRE(r.acquire(r.b, 8, 4));
    r.release(r.b, 8, 4);
}

TEST_CASE("device_frames: who has no frame left is passed over, keeps its peak, and comes back") {
    rig r{false, 8 * slot};
    REQUIRE(r.acquire(r.a, 0, 4));
    r.release(r.a, 0, 4);
    r.port.finish({1});
    REQUIRE(r.acquire(r.b, 0, 4));  // all of them are taken: a has none
    CHECK(r.frames.counts().created == 4);
    CHECK(r.frames.idle_bytes() == 0);
    CHECK(r.frames.counts().live_peak == 4 * slot);
    CHECK(r.frames.is_valid());
    REQUIRE(r.acquire(r.a, 8, 2));
    r.release(r.a, 8, 2);
    CHECK(r.frames.idle_bytes() == 2 * slot);
    CHECK(r.frames.is_valid());
    r.port.finish({1});
    r.release(r.b, 0, 4);
    r.port.finish({2});
    CHECK(r.frames.trim(0) == 6 * slot);
    CHECK(r.frames.counts().live_peak == 6 * slot);
}

TEST_CASE(
    "device_frames: the peak of a heap that is gone stays, also if its frames went before it") {
    fake_frames port{1_GiB, false};
    device_frames frames{port, {.slack = 0}};
    frame_user one{queue_id{1}};
    slot_span* span =
        with(one.lock(), [&] { return frames.reserve_locked(one, 8 * slot, slot); }).value();
    const va_range all = span->range();
    REQUIRE(frames.acquire(*span, all));
    with(one.lock(), [&] { one.set_live(all.bytes); });
    with(one.lock(), [&] { one.set_live(0); });
    frames.release(*span, all);
    port.finish({1});
    SUBCASE("they went") {
        CHECK(frames.trim(0) == all.bytes);
        CHECK(frames.idle_bytes() == 0);
    }
    SUBCASE("they go with it") {}
    with(one.lock(), [&] { frames.release_locked(span); });
    CHECK(frames.counts().live_peak == all.bytes);
    CHECK(frames.is_valid());
    CHECK(port.faults() == "");
}

TEST_CASE("device_frames: frames that were created for a failed request are dropped") {
    rig r;
    r.port.fail_map_after(3);
    CHECK_FALSE(r.acquire(r.a, 0, 4));
    CHECK(r.port.frame_count() == 0);
    CHECK(r.port.mapping_count() == 0);
    CHECK(r.frames.is_valid());
    REQUIRE(r.acquire(r.a, 0, 4));
    r.release(r.a, 0, 4);
}

TEST_CASE(
    "device_frames: a frame that could not be mapped elsewhere stays where it was, if it still "
    "can") {
    rig r{true};
    REQUIRE(r.acquire(r.a, 0, 1));
    r.port.use(rig::part(r.a, 0, 1), {1});
    r.release(r.a, 0, 1);
    r.port.fail_map_after(1);
    CHECK_FALSE(r.frames.acquire(*r.a, rig::part(r.a, 8, 1)));
    CHECK(r.port.is_backed(rig::part(r.a, 0, 1)));
    CHECK(r.frames.is_valid());
    REQUIRE(r.acquire(r.a, 0, 1));
    CHECK(r.port.calls().create == 1);
    r.release(r.a, 0, 1);
}

TEST_CASE("device_frames: a frame that cannot be mapped goes back to its slot, or to the device") {
    for (const bool is_locked : {false, true}) {
        CAPTURE(is_locked);
        rig r{true};
        REQUIRE(r.acquire(r.a, 0, 1));
        r.release(r.a, 0, 1);
        std::atomic<bool> is_held{false};
        std::atomic<bool> is_over{false};
        std::thread owner;
        r.port.during_map = [&] {
            // Whoever has the lock of the slot's heap may be reading what slots it has.
            owner = std::thread{[&] {
                std::lock_guard guard{r.a->user().lock()};
                is_held = true;
                while (!is_over) {
                    std::this_thread::yield();
                }
            }};
            while (!is_held) {
                std::this_thread::yield();
            }
            is_over = !is_locked;
            if (!is_locked) {
                owner.join();
            }
        };
        r.port.fail_map_after(1);
        CHECK_FALSE(r.acquire(r.b, 0, 1));
        CHECK(r.port.frame_count() == (is_locked ? 0 : 1));
        CHECK(r.frames.counts().reserved_bytes == (is_locked ? 0 : slot));
        is_over = true;
        if (is_locked) {
            owner.join();
        }
        CHECK(r.port.is_backed(rig::part(r.a, 0, 1)) == !is_locked);
        CHECK(r.frames.is_valid());
        REQUIRE(r.acquire(r.b, 0, 1));
        r.release(r.b, 0, 1);
    }
}

TEST_CASE("device_frames: trim drops the idle of one tag, and not more than asked") {
    fake_frames port;
    device_frames frames{port};
    slot_span* weights = frames.reserve(8 * slot, slot, queue_id{1}, 7).value();
    slot_span* rest = frames.reserve(8 * slot, slot, queue_id{1}, 8).value();
    for (slot_span* span : {weights, rest}) {
        REQUIRE(frames.acquire(*span, span->range()));
        frames.add_live(8 * slot);
    }
    frames.release(*weights, weights->range());
    frames.release(*rest, rest->range());
    CHECK(frames.trim(0, 7) == 8 * slot);
    CHECK_FALSE(port.is_backed({weights->range().begin, slot}));
    CHECK(port.is_backed(rest->range()));
    CHECK(frames.trim(5 * slot) == 3 * slot);
    CHECK(frames.counts().reserved_bytes == 5 * slot);
    frames.release(weights);
    frames.release(rest);
    CHECK(port.faults() == "");
}

TEST_CASE("device_frames: a span goes though its queue cannot be asked any more") {
    fake_frames port;
    device_frames frames{port, {.slack = 0, .patience = 70}};
    slot_span* span = frames.reserve(8 * slot, slot, queue_id{1}).value();
    REQUIRE(frames.acquire(*span, span->range()));
    frames.release(*span, span->range());
    port.fail_with_chance(0, 0, 0, 1000);
    frames.release(span);
    CHECK(port.calls().record >= 70);
    CHECK(port.frame_count() == 0);
    CHECK(port.reservation_count() == 0);
    CHECK(port.faults() == "");
}

TEST_CASE(
    "device_frames: a wait that fails is no sign that the work is done, unless the queue is over") {
    fake_frames real;
    failing_waits port{real};
    device_frames frames{port, {.slack = 0}};
    slot_span* span = frames.reserve(8 * slot, slot, queue_id{1}).value();
    REQUIRE(frames.acquire(*span, span->range()));
    real.use(span->range(), {1});
    frames.release(*span, span->range());
    SUBCASE("busy a few times") {
        port.left = 5;
        frames.release(span);
        CHECK(port.left == 0);
        CHECK(real.calls().wait > 0);
        CHECK(real.faults() == "");
    }
    SUBCASE("the device is lost") {
        port.left = 1000;
        port.code = errc::device_lost;
        frames.release(span);
        CHECK(port.left == 999);
        CHECK(real.calls().wait == 0);
    }
    CHECK(real.frame_count() == 0);
    CHECK(real.reservation_count() == 0);
}

TEST_CASE("device_frames: a mapping that a queue cannot tell about is no reason to ask for ever") {
    rig r{true};
    REQUIRE(r.acquire(r.a, 0, 1));
    r.port.use(rig::part(r.a, 0, 1), {1});
    r.release(r.a, 0, 1);
    r.port.fail_with_chance(0, 0, 0, 1000);
    REQUIRE(r.acquire(r.a, 5, 1));  // the same frame: the queue's own work comes in order
    CHECK(r.port.frame_count() == 1);
    CHECK(r.acquire(r.a, 0, 1).code == errc::busy);
    CHECK(r.frames.is_valid());
    CHECK(r.port.is_backed(rig::part(r.a, 5, 1)));
    r.port.fail_with_chance(0, 0, 0, 0);
    REQUIRE(r.acquire(r.a, 0, 1));
    r.release(r.a, 0, 1);
    r.release(r.a, 5, 1);
}

TEST_CASE("device_frames: a trim does not wait long for a queue that cannot be asked") {
    rig r;
    REQUIRE(r.acquire(r.a, 0, 2));
    r.port.use(rig::part(r.a, 0, 2), {1});
    r.release(r.a, 0, 2);
    r.port.fail_with_chance(0, 0, 0, 1000);
    const auto began = std::chrono::steady_clock::now();
    CHECK(r.frames.trim(0) == 0);
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds{2});
    CHECK(r.port.frame_count() == 2);
    r.port.fail_with_chance(0, 0, 0, 0);
    CHECK(r.frames.trim(0) == 2 * slot);
}

TEST_CASE("device_frames: no address space is a failure, and nothing is left of it") {
    fake_frames port;
    device_frames frames{port};
    port.fail_with_chance(1000, 0, 0, 0);
    CHECK(frames.reserve(slot, slot, queue_id{0}).code() == errc::no_memory);
    CHECK(frames.is_valid());
    CHECK(port.reservation_count() == 0);
}

TEST_CASE("device_frames: threads on spans of their own, with too few frames for all") {
    fake_frames port{24 * slot};
    device_frames frames{port, {.slack = 0}};
    constexpr unsigned thread_count = 3;
    std::vector<slot_span*> spans;
    for (std::uint32_t i = 0; i < thread_count; ++i) {
        spans.push_back(frames.reserve(32 * slot, slot, queue_id{i + 1}).value());
    }
    std::vector<std::thread> threads;
    std::atomic<unsigned> given{0};
    for (unsigned i = 0; i < thread_count; ++i) {
        threads.emplace_back([&, i] {
            std::uint64_t random = i + 1;
            slot_span& span = *spans[i];
            for (int round = 0; round < 300; ++round) {
                random = random * 6364136223846793005U + 1442695040888963407U;
                const std::size_t first = (random >> 33) % 28;
                const std::size_t count = 1 + (random >> 50) % 4;
                const va_range range{span.slot_begin(first), count * slot};
                if (frames.acquire(span, range)) {
                    port.use(range, {i + 1});
                    frames.release(span, range);
                    ++given;
                }
                if (round % 16 == 0) {
                    port.finish({i + 1});
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    CHECK(given == thread_count * 300);
    CHECK(frames.is_valid());
    CHECK(port.held_bytes() <= 24 * slot);
    for (std::uint32_t i = 0; i < thread_count; ++i) {
        frames.release(spans[i]);
    }
    CHECK(port.frame_count() == 0);
    CHECK(port.faults() == "");
}

TEST_CASE("device_frames: of a queue's own slots one that a copy to come names is not lent") {
    rig r{true};
    REQUIRE(r.acquire(r.a, 0, 2));
    r.port.use(rig::part(r.a, 0, 2), r.a->user().queue());
    r.release(r.a, 0, 2);
    r.port.set_loud(r.a->slot_begin(0));
    REQUIRE(r.acquire(r.a, 5, 1));
    CHECK(r.port.calls().wait == 0);
    CHECK(r.port.is_backed(rig::part(r.a, 0, 1)));
    CHECK_FALSE(r.port.is_backed(rig::part(r.a, 1, 1)));
    REQUIRE(r.acquire(r.a, 6, 1));  // has to wait
    CHECK(r.port.calls().wait == 1);
    CHECK_FALSE(r.port.is_backed(rig::part(r.a, 0, 1)));
    r.release(r.a, 5, 2);
}

TEST_CASE("device_frames: nothing is allocated under the lock that faults take") {
    for (const bool can_alias : {false, true}) {
        CAPTURE(can_alias);
        rig r{can_alias};
        const std::size_t before = test::watched_new.count_under(lock_rank::device_frames);
        std::vector<slot_span*> more;
        for (std::size_t slots = 1; slots <= 4096; slots *= 2) {
            more.push_back(r.frames.reserve(slots * slot, slot, queue_id{1}).value());
            CHECK(r.frames.idle_bytes() == 0);
        }
        for (slot_span* one : more) {
            r.frames.release(one);
        }
        CHECK(test::watched_new.count_under(lock_rank::device_frames) == before);
    }
    if (!ranked_mutex<lock_rank::device_frames>::is_checked) {
        MESSAGE("skipped: locks are not checked, so nobody knows which are held");
    }
}
