// SPDX-License-Identifier: Apache-2.0
// rig.hpp - a space with small software devices, and shorthands for tests of what moves its pages.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <xmm/xmm.hpp>

namespace xmm::test {

using namespace xmm::literals;

inline soft::device_options device_of(std::size_t bytes, bool faults = true) {
    soft::device_options one;
    one.bytes = bytes;
    one.faults = faults;
    return one;
}

inline void nap(int milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds{milliseconds});
}

// Set by the test, awaited in a kernel: kernels that run until they are told to end.
class signal_flag {
public:
    void set() noexcept { is_set_.store(true, std::memory_order_release); }
    [[nodiscard]] bool is_set() const noexcept { return is_set_.load(std::memory_order_acquire); }
    // False if it takes longer than any test should.
    bool await() const noexcept {
        for (int i = 0; i < 10000 && !is_set(); ++i) {
            nap(1);
        }
        return is_set();
    }

private:
    std::atomic<bool> is_set_{false};
};

struct rig {
    explicit rig(std::vector<soft::device_options> devices = {device_of(32_MiB)},
                 space_options options = {})
        : made{space::create_soft(devices, options)} {
        REQUIRE(made);
        for (node_id one : of().devices()) {
            auto line = of().make_queue(one);
            REQUIRE(line);
            queues.push_back(std::make_unique<queue>(std::move(*line)));
        }
    }
    ~rig() {
        CHECK(of().is_valid());
        // Budgets of hosts belong to the process.
        for (node_id one : of().hosts()) {
            CHECK(of().set_budget(one, SIZE_MAX));
        }
    }
    rig(const rig&) = delete;
    rig& operator=(const rig&) = delete;

    [[nodiscard]] space& of() { return *made; }
    [[nodiscard]] node_id host() { return of().hosts()[0]; }
    [[nodiscard]] node_id device(unsigned i = 0) { return of().devices()[i]; }
    [[nodiscard]] queue& line(unsigned i = 0) { return *queues[i]; }

    template <class T = std::uint64_t>
    T* map(std::size_t bytes, map_options wanted = {.granule_bytes = page_bytes}) {
        auto where = of().map(bytes, wanted);
        REQUIRE(where);
        return static_cast<T*>(*where);
    }

    // Runs fn(view) on the device, for all elements at once, and waits.
    template <class T, class Fn>
    status run(T* data, std::size_t bytes, access who, Fn fn, unsigned device = 0) {
        const device_view<T> view{data, bytes / sizeof(T)};
        const use one{{to_address(data), bytes}, who};
        auto point =
            launch(line(device), {one}, [&](soft::stream& s) { return s.run([=] { fn(view); }); });
        return point ? line(device).wait(*point) : point.error();
    }
    // data[i] = seed + i, from the device.
    template <class T>
    void fill_on_device(T* data, std::size_t bytes, T seed, unsigned device = 0) {
        REQUIRE(run(
            data, bytes, access::write,
            [seed](device_view<T> view) {
                view.for_each_span(0, view.size(), [&](std::span<T> some, std::size_t first) {
                    for (std::size_t i = 0; i < some.size(); ++i) {
                        some[i] = static_cast<T>(seed + static_cast<T>(first + i));
                    }
                });
            },
            device));
    }
    // How many elements differ from seed + i, seen by the device.
    template <class T>
    std::size_t count_wrong_on_device(T* data, std::size_t bytes, T seed, unsigned device = 0) {
        std::size_t wrong = 0;
        const status outcome = run(
            data, bytes, access::read,
            [seed, &wrong](device_view<T> all) {
                const device_view<const T> view = all;
                view.for_each_span(0, view.size(), [&](std::span<const T> some, std::size_t first) {
                    for (std::size_t i = 0; i < some.size(); ++i) {
                        wrong +=
                            some[i] != static_cast<T>(seed + static_cast<T>(first + i)) ? 1 : 0;
                    }
                });
            },
            device);
        REQUIRE(outcome);
        return wrong;
    }
    // One element from the device.
    template <class T>
    T read_on_device(const T* at, unsigned device = 0) {
        T value{};
        REQUIRE(run(
            const_cast<T*>(at), sizeof(T), access::read,
            [&](device_view<T> view) { value = view.load(0); }, device));
        return value;
    }
    template <class T>
    void write_on_device(T* at, T value, unsigned device = 0) {
        REQUIRE(run(
            at, sizeof(T), access::write, [=](device_view<T> view) { view.store(0, value); },
            device));
    }

    // A kernel that writes `value` to the element, says so, and stays until it is told to end.
    struct long_kernel {
        std::shared_ptr<signal_flag> started = std::make_shared<signal_flag>();
        std::shared_ptr<signal_flag> end = std::make_shared<signal_flag>();
        ticket done;
    };
    template <class T>
    long_kernel start_kernel(T* at, T value, unsigned device = 0, access who = access::read_write) {
        long_kernel one;
        const device_view<T> view{at, 1};
        const use range{{to_address(at), sizeof(T)}, who};
        auto point = launch(line(device), {range}, [&](soft::stream& s) {
            return s.run([=, started = one.started, end = one.end] {
                if (has_write(who)) {
                    view.store(0, value);
                } else {
                    static_cast<void>(view.load(0));
                }
                started->set();
                end->await();
                // Touches it again: the page must still be reachable.
                if (has_write(who)) {
                    view.store(0, value + 1);
                } else {
                    static_cast<void>(view.load(0));
                }
            });
        });
        REQUIRE(point);
        one.done = *point;
        REQUIRE(one.started->await());
        return one;
    }
    status finish(const long_kernel& one, unsigned device = 0) {
        one.end->set();
        return line(device).wait(one.done);
    }

    // ---- a look inside

    template <class Fn>
    auto inspect(const void* at, Fn&& fn) {
        decltype(fn(std::declval<granule&>())) found{};
        REQUIRE(of().state().core.with_granule(to_address(at),
                                               [&](granule& page) { found = fn(page); }));
        return found;
    }
    residency state(const void* at) {
        return inspect(at, [](granule& page) { return page.current(); });
    }
    node_id home(const void* at) {
        auto found = of().residency_of(at);
        REQUIRE(found);
        return *found;
    }
    access mapped(const void* at, node_id accessor) {
        xmm::node* one = of().state().core.find_node(accessor);
        REQUIRE(one != nullptr);
        return inspect(at, [&](granule& page) { return page.mapped[one->accessor()]; });
    }
    bool has_frame(const void* at, node_id on) {
        xmm::node* one = of().state().core.find_node(on);
        REQUIRE(one != nullptr);
        return inspect(at, [&](granule& page) { return page.frames[one->slot] != nullptr; });
    }
    unsigned pins(const void* at) {
        return inspect(at, [](granule& page) { return page.pins; });
    }
    node_counters counters(node_id of_node) {
        for (const node_statistics& one : of().statistics()) {
            if (one.usage.node == of_node) {
                return one.counters;
            }
        }
        return {};
    }
    node_usage usage(node_id of_node) {
        auto found = of().usage(of_node);
        REQUIRE(found);
        return *found;
    }

    result<space> made;
    std::vector<std::unique_ptr<queue>> queues;  // go before the space
};

// element i of a page-sized step
template <class T>
T* page_of(T* data, std::size_t page) {
    return data + page * (page_bytes / sizeof(T));
}

template <class T>
void fill(T* data, std::size_t bytes, T seed) {
    for (std::size_t i = 0; i < bytes / sizeof(T); ++i) {
        data[i] = static_cast<T>(seed + static_cast<T>(i));
    }
}
template <class T>
std::size_t count_wrong(const T* data, std::size_t bytes, T seed) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < bytes / sizeof(T); ++i) {
        wrong += data[i] != static_cast<T>(seed + static_cast<T>(i)) ? 1 : 0;
    }
    return wrong;
}
inline std::size_t count_nonzero(const void* data, std::size_t bytes) {
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < bytes / 8; ++i) {
        wrong += static_cast<const std::uint64_t*>(data)[i] != 0 ? 1 : 0;
    }
    return wrong;
}

}  // namespace xmm::test
