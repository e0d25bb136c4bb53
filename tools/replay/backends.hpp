// SPDX-License-Identifier: Apache-2.0
// backends.hpp - whose memory is replayed on, by name, and what its calls really cost.
//
// Model    `simulated` has no memory at all. The others are opened as a device that holds any trace, since
//          only what is touched costs memory, and a replay touches nothing.
// Failure  bad_input where a backend cannot be opened or its calls fail.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <xmm/concepts/backend_table.hpp>
#include "backends/soft/soft.hpp"

#include "../demo/bad_input.hpp"
#include "../demo/format.hpp"
#include "prices.hpp"

namespace xmm::trace_replay {

[[nodiscard]] inline std::vector<std::string> backend_names() { return {"simulated", "soft"}; }

class replay_backend {
public:
    // 0 bytes: as many as any trace needs.
    replay_backend(const std::string& name, std::uint64_t device_bytes) {
        if (name != "soft") {
            return;
        }
        soft::device_options device;
        device.bytes = device_bytes != 0 ? align_up(device_bytes, page_bytes) : largest_device;
        device.units = 1;
        status opened = open(device);
        // Where addresses are few, under a sanitizer, less will do for most traces.
        while (!opened && device_bytes == 0 && device.bytes > smallest_device) {
            device.bytes /= 2;
            opened = open(device);
        }
        if (!opened) {
            throw bad_input(fmt::format("--backend {}: {}", name, opened.why));
        }
    }

    // Null for the simulated one.
    [[nodiscard]] backend_ref ref() const noexcept { return ref_; }
    [[nodiscard]] node_id node() const noexcept { return node_id{1}; }

private:
    static constexpr std::uint64_t largest_device = std::uint64_t{1} << 39;
    static constexpr std::uint64_t smallest_device = std::uint64_t{1} << 36;

    status open(const soft::device_options& device) {
        soft_ = std::make_unique<soft::driver>(std::vector{device}, std::vector{node_id{1}},
                                               std::vector{node_id{0}}, soft::driver_options{});
        ref_ = backend_ref{*soft_};
        const auto about = ref_.describe(node());
        return about ? status{} : about.error();
    }

    std::unique_ptr<soft::driver> soft_;
    backend_ref ref_;
};

// The median of a few calls of each kind at 2, 32 and 512 MiB.
[[nodiscard]] inline prices measure_prices(const std::string& name) {
    const replay_backend opened{name, 0};
    const backend_ref on = opened.ref();
    if (!on) {
        throw bad_input(fmt::format("--prices measured: backend {} has no calls to measure", name));
    }
    const auto check = [](const status& outcome) {
        if (!outcome) {
            throw bad_input(fmt::format("--prices measured: {}", outcome.why));
        }
    };
    const auto timed = [](auto&& call) {
        const auto begin = std::chrono::steady_clock::now();
        call();
        return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count();
    };
    constexpr int rounds = 15;
    std::array<std::array<double, 3>, 4> median{};
    for (std::size_t size = 0; size < 3; ++size) {
        const std::size_t bytes = std::array<std::size_t, 3>{2, 32, 512}[size] << 20;
        auto range = on.va_examine({0, bytes}, page_bytes);
        check(range ? status{} : range.error());
        std::array<std::vector<double>, 4> all;
        for (int i = 0; i < rounds; ++i) {
            frame made;
            all[0].push_back(timed([&] {
                auto got = on.frame_create(opened.node(), bytes);
                check(got ? status{} : got.error());
                made = *got;
            }));
            const run one{*range, made, access::read_write};
            all[1].push_back(timed([&] {
                check(on.pmap_enter(opened.node(), {&one, 1}).outcome);
            }));
            const va_range where = *range;
            all[2].push_back(timed([&] {
                check(on.pmap_clear(opened.node(), {&where, 1}).outcome);
            }));
            all[3].push_back(timed([&] { on.frame_drop(made); }));
        }
        on.va_release(*range);
        for (std::size_t call = 0; call < all.size(); ++call) {
            std::nth_element(all[call].begin(), all[call].begin() + rounds / 2, all[call].end());
            median[call][size] = all[call][rounds / 2];
        }
    }
    const auto sum = [&](std::size_t a, std::size_t b) {
        return std::array{median[a][0] + median[b][0], median[a][1] + median[b][1],
                          median[a][2] + median[b][2]};
    };
    prices out = prices::idle();
    out.name = "measured";
    out.set(driver_call::create, median[0]);
    out.set(driver_call::map, {0, 0, 0});
    out.set(driver_call::set_access, median[1]);  // entering a mapping does both
    out.set(driver_call::unmap, median[2]);
    out.set(driver_call::drop, median[3]);
    out.set(driver_call::malloc, sum(0, 1));
    out.set(driver_call::free, sum(2, 3));
    return out;
}

}  // namespace xmm::trace_replay
