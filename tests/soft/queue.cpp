// SPDX-License-Identifier: Apache-2.0
#include "../../backends/soft/queue.hpp"

#include <numeric>
#include <set>

#include "rig.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

// Holds a queue until it is opened.
struct barrier {
    std::atomic<bool> is_open{false};

    void hold(rig& r, queue_id queue) {
        auto point = r.driver.call(
            queue,
            [](void* context) noexcept {
                while (!static_cast<barrier*>(context)->is_open.load()) {
                    nap(1);
                }
            },
            this);
        REQUIRE(point);
    }
};

}  // namespace

TEST_CASE("work of one queue is done in order") {
    rig r;
    const queue_id queue = r.queue();
    std::vector<int> order;
    struct entry {
        std::vector<int>* order;
        int name;
    };
    std::vector<entry> entries;
    for (int i = 0; i < 1000; ++i) {
        entries.push_back({&order, i});
    }
    std::uint64_t before = 0;
    ticket last;
    for (entry& one : entries) {
        auto point = r.driver.call(
            queue,
            [](void* context) noexcept {
                auto& self = *static_cast<entry*>(context);
                self.order->push_back(self.name);
            },
            &one);
        REQUIRE(point);
        CHECK(point->value > before);
        before = point->value;
        last = *point;
    }
    CHECK(r.driver.wait(last));
    std::vector<int> expected(1000);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(order == expected);
}

TEST_CASE("copies, zeroing and kernels see each other's results in order") {
    rig r;
    const va_range range = r.reserve(page_bytes);
    const frame device = r.create(rig::near);
    r.enter(rig::near, range.begin, device);
    const soft::stream stream = r.stream();
    std::vector<int> host(page_bytes / sizeof(int), 3);
    std::vector<int> back(host.size());
    const device_view<int> view{pointer<int>(range.begin), host.size()};
    const address plain = to_address(host.data());
    (void)r.copy(stream.queue(), device.standing, plain, page_bytes);
    REQUIRE(
        stream.parallel_for(host.size(), [=](std::size_t i) { view[i] += static_cast<int>(i); }));
    const va_range tail{device.standing + page_bytes / 2, page_bytes / 2};
    REQUIRE(r.driver.zero(stream.queue(), {&tail, 1}));
    CHECK(r.driver.wait(
        r.copy(stream.queue(), to_address(back.data()), device.standing, page_bytes)));
    CHECK(back[0] == 3);
    CHECK(back[1000] == 1003);
    CHECK(back[back.size() / 2] == 0);
    CHECK(back.back() == 0);
}

TEST_CASE("calls return before their work is done") {
    rig r;
    const queue_id queue = r.queue();
    const frame device = r.create(rig::near);
    barrier gate;
    gate.hold(r, queue);
    const ticket point = r.copy(queue, device.standing, device.standing + 4096, 4096);
    auto recorded = r.driver.record(queue);
    REQUIRE(recorded);
    CHECK(recorded->value == point.value);
    CHECK_FALSE(r.driver.is_done(point));
    nap(5);
    CHECK_FALSE(r.driver.is_done(point));
    gate.is_open = true;
    CHECK(r.driver.wait(point));
    CHECK(r.driver.is_done(point));
    CHECK(r.driver.is_done(*recorded));
}

TEST_CASE("pieces are read before the call returns") {
    rig r;
    const queue_id queue = r.queue();
    const frame device = r.create(rig::near);
    at<int>(device.standing) = 5;
    barrier gate;
    gate.hold(r, queue);
    std::vector<piece> pieces(100, piece{{device.standing + 8192, 4}, {device.standing, 4}});
    auto point = r.driver.memcpy(queue, pieces);
    pieces.assign(100, piece{});
    gate.is_open = true;
    REQUIRE(point);
    CHECK(r.driver.wait(*point));
    CHECK(at<int>(device.standing + 8192) == 5);
}

TEST_CASE("a queue waits for a point of another, on another device") {
    rig r;
    const queue_id first = r.queue(rig::near);
    const queue_id second = r.queue(rig::far);
    barrier gate;
    gate.hold(r, first);
    auto point = r.driver.record(first);
    REQUIRE(point);
    CHECK(r.driver.make_wait(second, *point));
    auto behind = r.driver.call(
        second, [](void*) noexcept {}, nullptr);
    REQUIRE(behind);
    nap(10);
    CHECK_FALSE(r.driver.is_done(*behind));
    gate.is_open = true;
    CHECK(r.driver.wait(*behind));
    CHECK(r.driver.is_done(*point));
}

TEST_CASE("ids are unique, and tickets outlive their queue") {
    rig r;
    std::set<std::uint32_t> seen;
    ticket old;
    for (int i = 0; i < 40; ++i) {
        auto queue = r.driver.queue_create(rig::near, queue_priority::normal);
        REQUIRE(queue);
        CHECK(queue->value != 0);
        CHECK(seen.insert(queue->value).second);
        auto point = r.driver.call(
            *queue, [](void*) noexcept {}, nullptr);
        REQUIRE(point);
        r.driver.queue_destroy(*queue);  // lets the work finish
        CHECK(r.driver.is_done(*point));
        CHECK(r.driver.wait(*point));
        CHECK(r.driver.record(*queue).code() == errc::invalid_argument);
        if (i == 0) {
            old = *point;
        }
    }
    CHECK(r.driver.wait(old));
    CHECK(r.driver.is_done(ticket{}));
    CHECK(r.driver.wait(ticket{}));
}

TEST_CASE("queues run out with a refusal") {
    rig r;
    std::vector<queue_id> all;
    while (all.size() < 300) {
        auto queue = r.driver.queue_create(rig::near, queue_priority::normal);
        if (!queue) {
            CHECK(queue.code() == errc::no_memory);
            break;
        }
        all.push_back(*queue);
    }
    CHECK(all.size() == 256);
    for (queue_id one : all) {
        r.driver.queue_destroy(one);
    }
    CHECK(r.driver.queue_create(node_id{77}, queue_priority::normal).code() == errc::unknown_node);
    CHECK(r.driver.queue_create(rig::host, queue_priority::normal).code() == errc::unknown_node);
}

TEST_CASE("two drivers with their own salts have distinct queue ids") {
    soft::driver_options second;
    second.queue_salt = 2;
    rig a;
    rig b{{}, second};
    CHECK(a.queue().value != b.queue().value);
}

TEST_CASE("long kernels on all units do not stop copies on another queue") {
    rig r;
    const soft::stream stream = r.stream();
    const queue_id copies = r.queue();
    const frame device = r.create(rig::near);
    std::atomic<bool> stop{false};
    std::atomic<int> running{0};
    auto point = stream.parallel_for(64, [&](std::size_t) {
        ++running;
        while (!stop.load()) {
            nap(1);
        }
    });
    REQUIRE(point);
    while (running == 0) {
        nap(1);
    }
    CHECK(r.driver.wait(r.copy(copies, device.standing, device.standing + 4096, 4096)));
    CHECK_FALSE(r.driver.is_done(*point));
    stop = true;
    CHECK(r.driver.wait(*point));
    CHECK(running == 64);
}

TEST_CASE("kernels of two queues share the units") {
    soft::device_options options;
    options.units = 2;
    rig r{options};
    const soft::stream one = r.stream();
    const soft::stream other = r.stream();
    std::atomic<bool> seen{false};
    auto first = one.run([&] {
        while (!seen.load()) {
            nap(1);
        }
    });
    auto second = other.run([&] { seen = true; });
    REQUIRE(first);
    REQUIRE(second);
    CHECK(r.driver.wait(*first));
    CHECK(r.driver.wait(*second));
}

TEST_CASE("parallel_for covers each index once") {
    rig r;
    const soft::stream stream = r.stream();
    for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{10007}}) {
        std::vector<std::atomic<int>> hits(count);
        auto point = stream.parallel_for(count, [&](std::size_t first, std::size_t last) {
            for (std::size_t i = first; i < last; ++i) {
                ++hits[i];
            }
        });
        REQUIRE(point);
        CHECK(r.driver.wait(*point));
        CHECK(std::all_of(hits.begin(), hits.end(), [](const auto& one) { return one == 1; }));
    }
}

TEST_CASE("a kernel is destroyed once, launched or not") {
    rig r;
    const auto token = std::make_shared<int>(0);
    const soft::stream stream = r.stream();
    auto point = stream.run([token] {});
    REQUIRE(point);
    CHECK(r.driver.wait(*point));
    CHECK(token.use_count() == 1);
    const soft::stream nowhere{r.driver, queue_id{(1u << 20) | 255}};
    CHECK(nowhere.run([token] {}).code() == errc::invalid_argument);
    CHECK(token.use_count() == 1);
}

TEST_CASE("threads submit to one queue at once") {
    rig r;
    const queue_id queue = r.queue();
    int sum = 0;  // touched by the queue's thread only
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            for (int j = 0; j < 500; ++j) {
                auto point = r.driver.call(
                    queue, [](void* context) noexcept { ++*static_cast<int*>(context); }, &sum);
                if (!point || (j % 50 == 0 && !r.driver.wait(*point))) {
                    std::abort();
                }
            }
        });
    }
    for (std::thread& one : threads) {
        one.join();
    }
    auto last = r.driver.record(queue);
    REQUIRE(last);
    CHECK(r.driver.wait(*last));
    CHECK(sum == 2000);
}
