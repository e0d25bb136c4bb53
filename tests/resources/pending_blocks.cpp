// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/pending_blocks.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <utility>

#include <doctest/doctest.h>

using namespace xmm;

namespace {

using pending = pending_blocks<int>;

// Queues whose work is done as far as a test says.
class told_queues final : public frame_port {
public:
    std::array<std::uint64_t, 10> done{};
    bool cannot_wait = false;
    std::function<void()> meanwhile;  // once, within the next question

    result<address> reserve(std::size_t, std::size_t) noexcept override { return none(); }
    void release(va_range) noexcept override {}
    result<port_frame> create(std::size_t) noexcept override { return none(); }
    void drop(port_frame, std::size_t) noexcept override {}
    status map(address, port_frame, std::size_t) noexcept override { return none(); }
    void unmap(address, port_frame, std::size_t) noexcept override {}
    result<ticket> record(queue_id queue) noexcept override { return ticket{queue, 1}; }
    bool is_done(ticket point) noexcept override {
        if (const auto now = std::exchange(meanwhile, nullptr)) {
            now();
        }
        return done[point.queue.value] >= point.value;
    }
    status wait(ticket point) noexcept override {
        if (cannot_wait) {
            return fail(errc::busy, "told to fail");
        }
        done[point.queue.value] = std::max(done[point.queue.value], point.value);
        return {};
    }

private:
    static status none() noexcept { return fail(errc::unsupported, "only queues"); }
};

pending::entry after(int block, std::initializer_list<ticket> points) {
    pending::entry made;
    made.block = block;
    std::copy(points.begin(), points.end(), made.points.begin());
    made.count = static_cast<unsigned>(points.size());
    return made;
}
// How many there were; they are left to whoever made them.
int count(pending::entry_list& all) {
    int found = 0;
    while (all.pop_front() != nullptr) {
        ++found;
    }
    return found;
}

}  // namespace

TEST_CASE("pending_blocks: a block is out when each of its queues has passed its point") {
    told_queues queues;
    pending all;
    pending::entry one = after(1, {{{1}, 5}, {{2}, 7}});
    pending::entry next = after(2, {{{2}, 8}});
    REQUIRE(all.add(one));
    REQUIRE(all.add(next));
    pending::entry_list out;
    all.take_finished(queues, out);
    CHECK(out.is_empty());
    queues.done[2] = 8;
    all.take_finished(queues, out);
    CHECK(count(out) == 1);
    CHECK(all.has_any());
    queues.done[1] = 5;
    all.take_finished(queues, out);
    CHECK(count(out) == 1);
    CHECK(!all.has_any());
}

TEST_CASE("pending_blocks: a queue that comes while another one is asked gets a line of its own") {
    told_queues queues;
    pending all;
    pending::entry slow = after(1, {{{1}, 1}});
    pending::entry quick = after(2, {{{2}, 1}});
    REQUIRE(all.add(slow));
    queues.meanwhile = [&] { REQUIRE(all.add(quick)); };
    pending::entry_list out;
    all.take_finished(queues, out);
    queues.done[2] = 1;
    all.take_finished(queues, out);
    REQUIRE(!out.is_empty());
    CHECK(out.front()->block == 2);
    CHECK(count(out) == 1);
    CHECK(all.await_all(queues, out));
    CHECK(count(out) == 1);
}

TEST_CASE("pending_blocks: who waits for all finds also what another thread asks about") {
    told_queues queues;
    pending all;
    pending::entry one = after(1, {{{1}, 1}});
    REQUIRE(all.add(one));
    pending::entry_list waited;
    queues.meanwhile = [&] { CHECK(all.await_all(queues, waited)); };
    pending::entry_list out;
    all.take_finished(queues, out);
    CHECK(count(waited) == 1);
    CHECK(count(out) == 0);
}

TEST_CASE("pending_blocks: a wait that fails is no sign that the work is done") {
    told_queues queues;
    pending all;
    pending::entry one = after(1, {{{1}, 1}});
    REQUIRE(all.add(one));
    queues.cannot_wait = true;
    pending::entry_list out;
    CHECK(all.await_all(queues, out));
    CHECK(count(out) == 0);
    CHECK(all.has_any());
    queues.cannot_wait = false;
    CHECK(all.await_all(queues, out));
    CHECK(count(out) == 1);
}
