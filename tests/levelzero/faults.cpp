// SPDX-License-Identifier: Apache-2.0
// Each entry point of the driver refuses, once, at each of its calls: what fails says so, what does not is right,
// nothing is left behind, and the next time all goes well.
#include "rig.hpp"

#include <array>
#include <atomic>
#include <set>
#include <string_view>

using namespace xmm;
using namespace xmm::test;

namespace {

// A little of everything. True if all went well.
class round_trip {
public:
    bool run(const levelzero::found_driver& from) {
        auto made = open_levelzero(from, 1);
        if (!note(made.error())) {
            return false;
        }
        levelzero::vmm& b = **made;
        auto first = b.queue_create(device, queue_priority::normal);
        auto second = b.queue_create(device, queue_priority::urgent);
        if (note(first.error()) && note(second.error())) {
            use(b, *first, *second);
        }
        for (auto* one : {&first, &second}) {
            if (*one) {
                b.queue_destroy(**one);
            }
        }
        return is_good_;
    }

private:
    bool note(status outcome) {
        if (!outcome) {
            CHECK(outcome.driver_code != 0);
            CHECK(outcome.why[0] != 0);
            is_good_ = false;
        }
        return outcome.is_ok();
    }
    bool finish(levelzero::vmm& b, result<ticket>&& point) {
        return note(point.error()) && note(b.wait(*point));
    }
    void use(levelzero::vmm& b, queue_id line, queue_id other) {
        auto a = b.frame_create(device, page_bytes);
        auto h = b.frame_create(host, page_bytes);
        auto range = b.has_virtual_memory() ? b.va_examine({0, page_bytes}, page_bytes)
                                            : result<va_range>{va_range{}};
        if (note(a.error()) && note(h.error()) && note(range.error())) {
            move(b, line, other, *a, *h, *range);
        }
        for (auto* one : {&a, &h}) {
            if (*one) {
                b.frame_drop(**one);
            }
        }
        if (range && range->bytes != 0) {
            b.va_release(*range);
        }
    }
    void move(levelzero::vmm& b, queue_id line, queue_id other, frame a, frame h, va_range range) {
        std::vector<std::uint64_t> out(page_bytes / 8, 0x77);
        std::vector<std::uint64_t> back(out.size(), 1);
        const va_range head{a.standing, 4096};
        const piece in{{a.standing, page_bytes}, {to_address(out.data()), page_bytes}};
        const piece aside{{h.standing, page_bytes}, {a.standing, page_bytes}};
        const piece home{{to_address(back.data()), page_bytes}, {h.standing, page_bytes}};
        bool is_right = finish(b, b.memcpy(line, {&in, 1}));
        is_right = finish(b, b.zero(line, {&head, 1})) && is_right;
        enter_and_clear(b, device, a, range);
        if (b.describe(device)->able.has(ability::host_frames)) {
            enter_and_clear(b, host, h, range);
            enter_and_clear(b, device, h, range);
        }
        auto moved = b.memcpy(line, {&aside, 1});
        is_right = note(moved.error()) && is_right;
        if (moved && !note(b.make_wait(other, *moved))) {
            is_right = note(b.wait(*moved)) && is_right;
        }
        bool is_called = false;
        auto called = b.call(
            other, [](void* flag) noexcept { *static_cast<bool*>(flag) = true; }, &is_called);
        if (finish(b, std::move(called))) {
            CHECK(is_called);
        }
        is_right = finish(b, b.memcpy(other, {&home, 1})) && is_right;
        (void)finish(b, levelzero::stream{b, other}.append([](auto) { return 0u; }));
        if (is_right) {
            CHECK(back[0] == 0);
            CHECK(back[511] == 0);
            CHECK(back[512] == 0x77);
            CHECK(back.back() == 0x77);
        }
    }
    void enter_and_clear(levelzero::vmm& b, node_id who, frame f, va_range range) {
        if (range.bytes == 0) {
            return;
        }
        const xmm::run one{range, f, access::read_write};
        const progress entered = b.pmap_enter(who, {&one, 1});
        CHECK(entered.done == (entered ? 1 : 0));
        (void)note(entered.outcome);
        // What failed has changed nothing, so it can be asked for again.
        for (int tries = 0; tries < 3; ++tries) {
            const progress cleared = b.pmap_clear(who, {&range, 1});
            if (cleared) {
                return;
            }
            (void)note(cleared.outcome);
        }
        FAIL("a mapping cannot be cleared");
    }

    const node_id device{1};
    const node_id host{0};
    bool is_good_ = true;
};

// What the driver refuses to take back stays: nobody could do anything about it.
bool gives_back(std::string_view name) {
    static const std::set<std::string_view> all{
        "zePhysicalMemDestroy", "zeVirtualMemFree", "zeVirtualMemUnmap",  "zeMemFree",
        "zeContextDestroy",     "zeEventDestroy",   "zeEventPoolDestroy", "zeCommandListDestroy"};
    return all.contains(name);
}

}  // namespace

// In a process of its own: what the driver keeps is missing afterwards.
TEST_CASE("every entry point refuses once, at each of its calls" * doctest::skip()) {
    if (is_skipped()) {
        return;
    }
    const auto from = soft_drivers().at(0);
    const soft_ze::controls& soft = *find_soft_ze(from.handle);
    REQUIRE(round_trip{}.run(from));
    unsigned refused = 0;
    for (std::size_t i = 0; soft.name_of(i) != nullptr; ++i) {
        const char* name = soft.name_of(i);
        soft.reset();
        REQUIRE(round_trip{}.run(from));
        const auto calls = static_cast<unsigned>(soft.calls(name));
        // Events are made by the hundred; a few of them stand for all.
        const unsigned step = calls > 40 ? calls / 10 : 1;
        for (unsigned skip = 0; skip < calls; skip += step) {
            INFO(std::string{name}, ", call ", skip);
            const std::size_t alive = soft.alive();
            const std::size_t held = soft.held(0);
            const std::uint64_t misuses = soft.misuses();
            soft.reset();
            soft.fail(name, skip, 1, levelzero::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
            const bool went_well = round_trip{}.run(from);
            refused += went_well ? 0 : 1;
            soft.reset();
            if (!gives_back(name)) {
                CHECK(soft.alive() == alive);
                CHECK(soft.held(0) == held);
            }
            CHECK(soft.misuses() == misuses);
        }
    }
    CHECK(refused > 20);
    soft.reset();
    REQUIRE(round_trip{}.run(from));
}

TEST_CASE("a device that is full: the frame is refused, and there is room after the next drop") {
    if (is_skipped()) {
        return;
    }
    levelzero_rig r;
    const std::size_t held = r.soft.held(0);
    const frame a = r.create(r.device);
    const char* makes = r.b.has_virtual_memory() ? "zePhysicalMemCreate" : "zeMemAllocDevice";
    r.soft.fail(makes, 0, 1, levelzero::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
    const status refused = r.b.frame_create(r.device, page_bytes).error();
    CHECK(refused.code == errc::no_memory);
    CHECK(refused.driver_code == static_cast<int>(levelzero::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY));
    CHECK(r.b.bytes_in_use(r.device) == page_bytes);
    if (r.b.has_virtual_memory()) {  // some drivers notice it only now
        r.soft.fail("zeVirtualMemMap", 0, 1, levelzero::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
        CHECK(r.b.frame_create(r.device, page_bytes).code() == errc::no_memory);
        CHECK(r.soft.held(0) == held + page_bytes);
    }
    r.b.frame_drop(a);
    const frame b = r.create(r.device);
    r.b.frame_drop(b);
}

// In a process of its own: the device does not come back.
TEST_CASE("a lost device: tickets say so, calls are made, all can be given back" *
          doctest::skip()) {
    if (is_skipped_without_maps()) {
        return;
    }
    levelzero_rig r{2};
    REQUIRE(r.b.nodes().size() == 2);
    const node_id second = r.b.nodes()[1];
    const va_range range = r.reserve(1);
    const frame a = r.create(r.device);
    const frame b = r.create(second);
    const queue_id there = *r.b.queue_create(second, queue_priority::normal);
    REQUIRE(r.enter(r.device, range, a));
    r.fill(a.standing, 4);
    auto before = r.b.record(r.queue);
    REQUIRE(before);
    REQUIRE(r.b.wait(*before));
    // A kernel that misses a page; behind it a call, and another device that waits.
    bool is_called = false;
    CHECK(r.store(range.begin + (address{1} << 30), 1).code == errc::device_lost);
    auto behind = r.b.record(r.queue);
    CHECK(behind.code() == errc::device_lost);
    CHECK(r.b.is_lost(r.device));
    CHECK_FALSE(r.b.is_lost(second));
    CHECK(r.b.wait(*before));
    auto called = r.b.call(
        r.queue, [](void* flag) noexcept { *static_cast<bool*>(flag) = true; }, &is_called);
    CHECK(called.code() == errc::device_lost);
    CHECK_FALSE(is_called);
    CHECK(r.b.frame_create(r.device, page_bytes).code() == errc::device_lost);
    CHECK(r.copy(r.queue, a.standing, b.standing, 8).code() == errc::device_lost);
    // The other device goes on.
    std::uint64_t word = 6;
    REQUIRE(r.b.wait(*r.copy(there, b.standing, to_address(&word), 8)));
    CHECK(r.b.make_wait(there, *before));
    REQUIRE(r.clear(r.device, range));
    REQUIRE(r.enter(second, range, b));
    REQUIRE(r.clear(second, range));
    r.b.queue_destroy(there);
    r.b.va_release(range);
    r.b.frame_drop(a);
    r.b.frame_drop(b);
}

TEST_CASE("a device is lost under work that others wait for" * doctest::skip()) {
    if (is_skipped()) {
        return;
    }
    levelzero_rig r{2};
    const node_id second = r.b.nodes()[1];
    const frame a = r.create(r.device);
    const queue_id there = *r.b.queue_create(second, queue_priority::normal);
    struct gate {
        std::atomic<bool> may_end{false};
        std::atomic<bool> is_called{false};
    } held;
    auto call = r.b.call(
        r.queue,
        [](void* self) noexcept {
            auto& mine = *static_cast<gate*>(self);
            while (!mine.may_end.load()) {
                ::usleep(100);
            }
            mine.is_called = true;
        },
        &held);
    REQUIRE(call);
    std::uint64_t word = 6;
    auto behind = r.copy(r.queue, a.standing, to_address(&word), 8);
    REQUIRE(behind);
    REQUIRE(r.b.make_wait(there, *behind));
    auto other = r.b.record(there);
    REQUIRE(other);
    CHECK_FALSE(r.b.is_done(*other));
    r.soft.break_device(0);
    held.may_end = true;
    CHECK(r.b.wait(*behind).code == errc::device_lost);
    CHECK(r.b.is_done(*call));
    CHECK(r.b.wait(*other));  // it goes on, though what it waited for is lost
    r.b.queue_destroy(there);
    r.b.frame_drop(a);
    CHECK(held.may_end);
}
