// SPDX-License-Identifier: Apache-2.0
// rig.hpp - a soft driver with two devices and a host, and shorthands for tests.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <vector>

#include <xmm/concepts/backend_table.hpp>
#include "../../backends/soft/launcher.hpp"
#include "../support/sanitizer.hpp"

namespace xmm::test {

using namespace xmm::literals;

inline constexpr bool is_slowed = has_sanitizer;

struct rig {
    static constexpr node_id host{0};
    static constexpr node_id near{1};
    static constexpr node_id far{2};

    explicit rig(soft::device_options each = {}, soft::driver_options options = {})
        : driver{std::vector{each, each}, std::vector{near, far}, std::vector{host}, options} {}
    ~rig() {
        for (queue_id one : queues) {
            driver.queue_destroy(one);
        }
        for (const auto& [node, range] : entered) {
            (void)driver.pmap_clear(node, {&range, 1});
        }
        for (va_range one : ranges) {
            driver.va_release(one);
        }
        for (const frame& one : frames) {
            driver.frame_drop(one);
        }
    }

    va_range reserve(std::size_t bytes) {
        auto range = driver.va_examine({0, bytes}, page_bytes);
        REQUIRE(range);
        return ranges.emplace_back(*range);
    }
    frame create(node_id node, std::size_t bytes = page_bytes) {
        auto made = driver.frame_create(node, bytes);
        REQUIRE(made);
        return frames.emplace_back(*made);
    }
    void enter(node_id node, address at, const frame& backing, access who = access::read_write) {
        const run one{{at, backing.bytes}, backing, who};
        REQUIRE(driver.pmap_enter(node, {&one, 1}).outcome);
        entered.emplace_back(node, one.va);
    }
    void clear(node_id node, va_range range) {
        const progress cleared = driver.pmap_clear(node, {&range, 1});
        REQUIRE(cleared.outcome);
        REQUIRE(cleared.done == 1);
    }
    queue_id queue(node_id node = near, queue_priority priority = queue_priority::normal) {
        auto made = driver.queue_create(node, priority);
        REQUIRE(made);
        return queues.emplace_back(*made);
    }
    soft::stream stream(node_id node = near) { return {driver, queue(node)}; }
    ticket copy(queue_id on, address to, address from, std::size_t bytes) {
        const piece one{{to, bytes}, {from, bytes}};
        auto point = driver.memcpy(on, {&one, 1});
        REQUIRE(point);
        return *point;
    }

    soft::driver driver;
    std::vector<queue_id> queues;
    std::vector<std::pair<node_id, va_range>> entered;
    std::vector<va_range> ranges;
    std::vector<frame> frames;
};

template <class T>
T* pointer(address where) {
    return static_cast<T*>(to_pointer(where));
}
template <class T>
T& at(address where) {
    return *pointer<T>(where);
}

class stopwatch {
public:
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }

private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline void nap(int milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds{milliseconds});
}

// A sink that answers with a callable.
template <class Fn>
device_fault_sink sink_of(Fn& fn) {
    return {&fn, [](void* context, node_id accessor, address where, access wanted) noexcept {
                return (*static_cast<Fn*>(context))(accessor, where, wanted);
            }};
}

}  // namespace xmm::test
