// SPDX-License-Identifier: Apache-2.0
// backend.hpp - what every backend must do, operator by operator, as one suite for any of them.
//
// Model    A class joins with a fixture:
//              static bool is_available();       // false: the suite is skipped for it, visibly
//              auto& get();                      // the backend; fresh with each fixture
//              node_id device(), host();         // a node of each kind
//          and, where it can run code on the device, for what only a kernel can show:
//              std::uint64_t device_load(address);
//              bool device_store(address, std::uint64_t);   // false: the access was refused
//              may_lose_device                              // a member: a miss may be tried on it
//          then TEST_CASE_TEMPLATE(..., F, fixtures...) { contract::check_backend<F>(); }
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include <xmm/concepts/backend_table.hpp>

namespace xmm::contract {

template <class F>
concept runs_kernels = requires(F& f, address at, std::uint64_t value) {
    f.device_load(at);
    f.device_store(at, value);
};

// The backend through the table that the floors above use, with shorthands.
template <class F>
struct bench {
    F fixture;
    backend_ref b{fixture.get()};
    node_id device = fixture.device();
    node_id host = fixture.host();
    node_description about = *b.describe(device);
    queue_id queue = *b.queue_create(device, queue_priority::normal);

    ~bench() { b.queue_destroy(queue); }

    void finish(result<ticket> point) {
        REQUIRE(point);
        REQUIRE(b.wait(*point));
        CHECK(b.is_done(*point));
    }
    void write(address to, std::uint64_t value, std::size_t bytes) {
        const std::vector<std::uint64_t> plain(bytes / sizeof value, value);
        const piece one{{to, bytes}, {to_address(plain.data()), bytes}};
        finish(b.memcpy(queue, {&one, 1}));
    }
    // Whether all of the memory holds the value.
    bool holds(address from, std::uint64_t value, std::size_t bytes) {
        std::vector<std::uint64_t> plain(bytes / sizeof value, ~value);
        const piece one{{to_address(plain.data()), bytes}, {from, bytes}};
        finish(b.memcpy(queue, {&one, 1}));
        return std::all_of(plain.begin(), plain.end(),
                           [&](std::uint64_t word) { return word == value; });
    }
    frame create(node_id node, std::size_t bytes = page_bytes) {
        auto made = b.frame_create(node, bytes);
        REQUIRE(made);
        return *made;
    }
    va_range reserve(std::size_t bytes) {
        auto range = b.va_examine({0, bytes}, page_bytes);
        REQUIRE(range);
        return *range;
    }
    void enter(node_id accessor, va_range va, frame backing, access who) {
        const run one{va, backing, who};
        const progress entered = b.pmap_enter(accessor, {&one, 1});
        REQUIRE(entered);
        CHECK(entered.done == 1);
    }
    void clear(node_id accessor, va_range va) {
        const progress cleared = b.pmap_clear(accessor, {&va, 1});
        REQUIRE(cleared);
        CHECK(cleared.done == 1);
    }
};

template <class F>
void check_description() {
    bench<F> t;
    CHECK(std::find(t.b.nodes().begin(), t.b.nodes().end(), t.device) != t.b.nodes().end());
    CHECK(std::memchr(t.about.name.data(), 0, t.about.name.size()) != nullptr);
    CHECK(t.about.name[0] != 0);
    CHECK(t.about.bytes >= page_bytes);
    CHECK(t.about.smallest_frame_bytes % page_bytes == 0);
    CHECK(t.about.smallest_frame_bytes <= t.about.largest_frame_bytes);
    CHECK(t.about.largest_frame_bytes <= largest_frame_bytes);
    CHECK(t.about.granule_bytes >= page_bytes);
    CHECK(std::has_single_bit(t.about.granule_bytes));
    CHECK(t.b.describe(no_node).code() == errc::unknown_node);
    CHECK(t.b.describe(node_id{INT32_MAX}).code() == errc::unknown_node);
    CHECK((!t.about.able.has(ability::device_faults) || t.b.has_device_faults()));
    CHECK((!t.about.able.has(ability::host_calls) || t.b.has_host_calls()));
    CHECK((!t.about.able.has(ability::cpu_coherent) || !t.b.has_frames()));
}

template <class F>
void check_va_examine() {
    bench<F> t;
    const std::size_t alignment = 32 * page_bytes;
    auto range = t.b.va_examine({0, 3 * page_bytes}, alignment);
    REQUIRE(range);
    CHECK(range->begin != 0);
    CHECK(range->begin % alignment == 0);
    CHECK(range->bytes == 3 * page_bytes);
    // Claimed already, in whole or in part: declined, and nothing changes.
    CHECK_FALSE(t.b.va_examine(*range, page_bytes));
    CHECK_FALSE(t.b.va_examine({range->begin + page_bytes, page_bytes}, page_bytes));
    // No address space is that large.
    CHECK_FALSE(t.b.va_examine({0, std::size_t{1} << 60}, page_bytes));
    auto other = t.b.va_examine({0, page_bytes}, page_bytes);
    REQUIRE(other);
    CHECK_FALSE(other->overlaps(*range));
    t.b.va_release(*other);
    t.b.va_release(*range);
    // Addresses of another backend's, aligned to less than the region needs.
    CHECK_FALSE(t.b.va_examine({range->begin + page_bytes, page_bytes}, alignment));
}

template <class F>
void check_frames() {
    bench<F> t;
    const std::size_t smallest = t.about.smallest_frame_bytes;
    frame a = t.create(t.device, smallest);
    frame b = t.create(t.device, smallest);
    CHECK(a);
    CHECK(a.handle != b.handle);
    CHECK(a.node == t.device);
    CHECK(a.bytes == smallest);
    CHECK(a.standing != 0);
    CHECK_FALSE(va_range{a.standing, a.bytes}.overlaps({b.standing, b.bytes}));
    if (a.zeroed) {
        CHECK(t.holds(a.standing, 0, a.bytes));
    }
    t.write(a.standing, 0x5a5a, a.bytes);
    CHECK(t.holds(a.standing, 0x5a5a, a.bytes));
    t.b.frame_drop(a);
    frame again = t.create(t.device, smallest);
    if (again.zeroed) {
        CHECK(t.holds(again.standing, 0, again.bytes));
    }
    t.b.frame_drop(again);
    t.b.frame_drop(b);
}

// Only where a device is small enough to be filled by a test.
template <class F>
void check_frames_run_out() {
    bench<F> t;
    if (t.about.bytes > (std::size_t{1} << 30)) {
        return;
    }
    const std::size_t each =
        std::max(t.about.smallest_frame_bytes, align_down(t.about.bytes / 16, page_bytes));
    std::vector<frame> all;
    while (all.size() < 1000) {
        auto made = t.b.frame_create(t.device, each);
        if (!made) {
            CHECK(made.code() == errc::no_memory);
            break;
        }
        all.push_back(*made);
    }
    CHECK(all.size() * each <= t.about.bytes);
    CHECK(all.size() * each * 2 >= t.about.bytes);
    const frame last = all.back();
    t.b.frame_drop(last);
    all.back() = t.create(t.device, each);
    for (const frame& one : all) {
        t.b.frame_drop(one);
    }
}

template <class F>
void check_memcpy_and_zero() {
    bench<F> t;
    const frame device = t.create(t.device, t.about.smallest_frame_bytes);
    const std::size_t half = device.bytes / 2;
    // In order within a queue, over many pieces of odd sizes.
    std::vector<unsigned char> out(100'000);
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<unsigned char>(i * 31 + 7);
    }
    std::vector<unsigned char> back(out.size());
    std::vector<piece> pieces;
    for (std::size_t at = 0; at < out.size();) {
        const std::size_t some = std::min<std::size_t>(at % 613 + 1, out.size() - at);
        pieces.push_back({{device.standing + at, some}, {to_address(out.data()) + at, some}});
        at += some;
    }
    auto there = t.b.memcpy(t.queue, pieces);
    const piece within{{device.standing + half, out.size()}, {device.standing, out.size()}};
    auto moved = t.b.memcpy(t.queue, {&within, 1});
    const va_range gone{device.standing, out.size()};
    auto zeroed = t.b.zero(t.queue, {&gone, 1});
    const piece home{{to_address(back.data()), back.size()}, {device.standing + half, back.size()}};
    auto last = t.b.memcpy(t.queue, {&home, 1});
    REQUIRE((there && moved && zeroed && last));
    CHECK(there->value < moved->value);
    CHECK(moved->value < zeroed->value);
    CHECK(zeroed->value < last->value);
    t.finish(ticket{*last});
    CHECK(t.b.is_done(*there));
    CHECK(back == out);
    CHECK(t.holds(device.standing, 0, align_down(out.size(), 8)));
    t.write(device.standing, 1, device.bytes);
    const va_range stripes[] = {{device.standing, 4096}, {device.standing + half, 4096}};
    t.finish(t.b.zero(t.queue, stripes));
    CHECK(t.holds(device.standing, 0, 4096));
    CHECK(t.holds(device.standing + 4096, 1, half - 4096));
    CHECK(t.holds(device.standing + half, 0, 4096));
    t.b.frame_drop(device);
}

template <class F>
void check_queues() {
    bench<F> t;
    const queue_id other = *t.b.queue_create(t.device, queue_priority::background);
    CHECK(other.value != 0);
    CHECK(other.value != t.queue.value);
    CHECK(t.b.is_done({}));
    CHECK(t.b.wait({}));
    auto nothing = t.b.record(other);
    REQUIRE(nothing);
    CHECK(t.b.wait(*nothing));
    std::vector<unsigned char> plain(page_bytes, 1);
    std::vector<unsigned char> copy(page_bytes, 2);
    std::vector<unsigned char> second(page_bytes, 3);
    const piece first{{to_address(copy.data()), page_bytes},
                      {to_address(plain.data()), page_bytes}};
    const piece then{{to_address(second.data()), page_bytes},
                     {to_address(copy.data()), page_bytes}};
    REQUIRE(t.b.memcpy(t.queue, {&first, 1}));
    auto point = t.b.record(t.queue);
    REQUIRE(point);
    CHECK(t.b.make_wait(other, *point));
    t.finish(t.b.memcpy(other, {&then, 1}));
    CHECK(t.b.is_done(*point));
    CHECK(second == plain);
    if (t.b.has_host_calls() && t.about.able.has(ability::host_calls)) {
        int calls = 0;
        t.finish(t.b.call(
            other, [](void* context) noexcept { ++*static_cast<int*>(context); }, &calls));
        CHECK(calls == 1);
    }
    CHECK(t.b.record(other));
    t.b.queue_destroy(other);
    CHECK(t.b.is_done(*nothing));
    // Whose queue it is must be found out by asking.
    const queue_id strangers{0xffffff01};
    CHECK(t.b.record(other).code() == errc::invalid_argument);
    CHECK(t.b.record(strangers).code() == errc::invalid_argument);
    CHECK(t.b.record({}).code() == errc::invalid_argument);
    CHECK(t.b.is_done({strangers, 1}));
    CHECK(t.b.make_wait(t.queue, {strangers, 1}).code == errc::invalid_argument);
    CHECK(t.b.queue_create(no_node, queue_priority::normal).code() == errc::unknown_node);
}

template <class F>
void check_cpu_pmap() {
    bench<F> t;
    if (!t.about.able.has(ability::host_frames)) {
        return;
    }
    const va_range range = t.reserve(2 * page_bytes);
    const va_range first{range.begin, page_bytes};
    const va_range second{range.begin + page_bytes, page_bytes};
    const frame a = t.create(t.host);
    const frame b = t.create(t.host);
    t.write(a.standing, 11, page_bytes);
    t.write(b.standing, 22, page_bytes);
    const run both[] = {{first, a, access::read_write}, {second, b, access::read_write}};
    CHECK(t.b.pmap_enter(t.host, both).done == 2);
    auto* words = static_cast<std::uint64_t*>(to_pointer(range.begin));
    constexpr std::size_t page_words = page_bytes / sizeof(std::uint64_t);
    CHECK(words[0] == 11);
    CHECK(words[page_words] == 22);
    words[page_words - 1] = 33;
    CHECK(t.holds(a.standing + page_bytes - 8, 33, 8));
    t.enter(t.host, first, a, access::read);  // again, with less
    CHECK(words[page_words - 1] == 33);
    t.enter(t.host, first, a, access::read_write);
    words[0] = 44;
    CHECK(t.holds(a.standing, 44, 8));
    t.enter(any_host, first, b, access::read_write);  // any host node stands for the CPU
    CHECK(words[0] == 22);
    t.clear(t.host, range);
    t.enter(t.host, second, a, access::read);
    CHECK(words[page_words] == 44);
    t.clear(t.host, range);
    t.clear(t.host, range);  // nothing there: nothing happens
    t.b.va_release(range);
    t.b.frame_drop(a);
    t.b.frame_drop(b);
}

template <class F>
void check_device_pmap() {
    bench<F> t;
    const va_range range = t.reserve(3 * page_bytes);
    const auto page = [&](std::size_t i) {
        return va_range{range.begin + i * page_bytes, page_bytes};
    };
    const frame a = t.create(t.device);
    const frame b = t.create(t.device);
    t.write(a.standing, 1, page_bytes);
    t.write(b.standing, 2, page_bytes);
    t.enter(t.device, page(0), a, access::read_write);
    t.enter(t.device, page(1), b, access::read_write);
    if constexpr (runs_kernels<F>) {
        F& device = t.fixture;
        CHECK(device.device_load(range.begin) == 1);
        CHECK(device.device_load(range.begin + page_bytes) == 2);
        CHECK(device.device_store(range.begin + 8, 5));
        CHECK(t.holds(a.standing + 8, 5, 8));
        t.clear(t.device, page(0));
        if (!t.about.able.has(ability::alias)) {
            t.clear(t.device, page(1));  // where b is still
        }
        t.enter(t.device, page(0), b, access::read);
        CHECK(device.device_load(range.begin) == 2);
        if (t.about.able.has(ability::alias)) {
            t.enter(t.device, page(2), a, access::read_write);
            CHECK(device.device_load(range.begin + 2 * page_bytes + 8) == 5);
        }
        if (t.about.able.has(ability::host_frames)) {
            const frame h = t.create(t.host);
            t.write(h.standing, 6, page_bytes);
            t.clear(t.device, page(1));
            t.enter(t.device, page(1), h, access::read_write);
            CHECK(device.device_load(range.begin + page_bytes) == 6);
            t.clear(t.device, page(1));
            t.b.frame_drop(h);
        }
        if (t.about.able.has(ability::device_faults)) {
            CHECK_FALSE(device.device_store(range.begin, 7));
            CHECK(t.holds(b.standing, 2, 8));
        } else if constexpr (requires { F::may_lose_device; }) {
            // The device does not survive it; what is mapped there can be cleared and dropped still.
            CHECK_FALSE(device.device_store(range.begin, 7));
            CHECK(t.b.record(t.queue).code() == errc::device_lost);
        }
    }
    t.clear(t.device, range);
    t.b.va_release(range);
    t.b.frame_drop(a);
    t.b.frame_drop(b);
}

template <class F>
void check_faults() {
    bench<F> t;
    if (!t.about.able.has(ability::device_faults)) {
        if (t.b.has_device_faults()) {
            CHECK(t.b.on_device_fault({}).code == errc::unsupported);
        }
        return;
    }
    if constexpr (runs_kernels<F>) {
        struct sink {
            bench<F>& t;
            va_range range;
            frame backing;
            access wanted = access::none;
            int calls = 0;
        } mine{t, t.reserve(page_bytes), t.create(t.device)};
        REQUIRE(t.b.on_device_fault(
            {&mine, [](void* context, node_id who, address at, access wanted) noexcept {
                 auto& self = *static_cast<sink*>(context);
                 ++self.calls;
                 self.wanted = wanted;
                 if (who != self.t.device || !self.range.contains(at)) {
                     return fault_outcome::not_mapped;
                 }
                 self.t.enter(who, self.range, self.backing, access::read_write);
                 return fault_outcome::resolved;
             }}));
        CHECK(t.fixture.device_store(mine.range.begin + 64, 9));
        CHECK(mine.calls == 1);
        CHECK(has_write(mine.wanted));
        CHECK(t.holds(mine.backing.standing + 64, 9, 8));
        CHECK(t.fixture.device_load(mine.range.begin + 64) == 9);
        CHECK(mine.calls == 1);
        t.b.off_device_fault(&mine);
        t.clear(t.device, mine.range);
        CHECK_FALSE(t.fixture.device_store(mine.range.begin, 1));
        CHECK(mine.calls == 1);
        t.b.va_release(mine.range);
        t.b.frame_drop(mine.backing);
    }
}

template <class F>
void check_backend() {
    if (!F::is_available()) {
        MESSAGE("skipped: no such device here");
        return;
    }
    SUBCASE("description") { check_description<F>(); }
    SUBCASE("va_examine, va_release") { check_va_examine<F>(); }
    SUBCASE("queues, tickets") { check_queues<F>(); }
    if constexpr (owns_frames<std::remove_cvref_t<decltype(std::declval<F&>().get())>>) {
        SUBCASE("frame_create, frame_drop") { check_frames<F>(); }
        SUBCASE("frames run out") { check_frames_run_out<F>(); }
        SUBCASE("memcpy, zero") { check_memcpy_and_zero<F>(); }
        SUBCASE("pmap_enter, pmap_clear for the CPU") { check_cpu_pmap<F>(); }
        SUBCASE("pmap_enter, pmap_clear for a device") { check_device_pmap<F>(); }
        SUBCASE("device faults") { check_faults<F>(); }
    }
}

}  // namespace xmm::contract
