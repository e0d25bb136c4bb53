// SPDX-License-Identifier: Apache-2.0
// backends.hpp - whose memory is replayed on, by name, and what its calls really cost.
//
// Model    `simulated` has no memory at all. `soft` is opened as a device that holds any trace, since only what is
//          touched costs memory, and a replay touches nothing. `cuda` is a device of this machine: it holds what it
//          has free, and whoever measures on it is alone there.
// Failure  bad_input where a backend cannot be opened or its calls fail.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <xmm/concepts/backend_table.hpp>
#include "backends/soft/soft.hpp"

#include "../demo/bad_input.hpp"
#include "../demo/format.hpp"
#include "cuda_device.hpp"
#include "prices.hpp"
#include "simulated_frames.hpp"
#include "trace.hpp"

namespace xmm::trace_replay {

[[nodiscard]] inline std::vector<std::string> backend_names() {
#if XMM_HAS_CUDA
    return {"simulated", "soft", "cuda"};
#else
    return {"simulated", "soft"};
#endif
}

class replay_backend {
public:
    // 0 bytes: as many as any trace needs.
    replay_backend(const std::string& name, std::uint64_t device_bytes) {
#if XMM_HAS_CUDA
        if (name == "cuda") {
            cuda_ = std::make_unique<cuda_device>();
            ref_ = cuda_->ref();
            return;
        }
#endif
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
    [[nodiscard]] bool is_real() const noexcept {
#if XMM_HAS_CUDA
        return cuda_ != nullptr;
#else
        return false;
#endif
    }
    // What a trace may have alive on it.
    [[nodiscard]] std::uint64_t most_live_bytes() const {
#if XMM_HAS_CUDA
        if (cuda_ != nullptr) {
            return cuda_->free_bytes();
        }
#endif
        return UINT64_MAX;
    }
    // Of the device; empty where it is none of this machine's.
    [[nodiscard]] std::string device_name() const {
#if XMM_HAS_CUDA
        if (cuda_ != nullptr) {
            return cuda_->name();
        }
#endif
        return {};
    }
    // What a port in front of it bills, and how.
    [[nodiscard]] simulation_options simulation() const noexcept {
        simulation_options out;
        out.backing = ref();
        out.node = node();
#if XMM_HAS_CUDA
        if (cuda_ != nullptr) {
            out.calls_to_create = cuda_device::calls_to_create;
            out.calls_to_drop = cuda_device::calls_to_drop;
        }
#endif
        return out;
    }
    [[nodiscard]] prices measure() const;

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
#if XMM_HAS_CUDA
    std::unique_ptr<cuda_device> cuda_;
#endif
    backend_ref ref_;
};

// Why a trace cannot be replayed where so many bytes are free; empty if nothing is known against it.
[[nodiscard]] inline std::string why_too_large(const trace& one, std::uint64_t free_bytes,
                                               double scale) {
    if (one.peak_live_bytes <= free_bytes) {
        return {};
    }
    const double least = static_cast<double>(one.peak_live_bytes) * scale * 1.1 /
                         static_cast<double>(std::max<std::uint64_t>(free_bytes, 1));
    return fmt::format(
        "{}: {:.3f} GB are alive at its peak, and the device has {:.3f} GB free; --scale {:.1f} "
        "would make it fit",
        one.name, static_cast<double>(one.peak_live_bytes) / 1e9,
        static_cast<double>(free_bytes) / 1e9, std::ceil(least * 10) / 10);
}

// The median of a few calls of each kind at 2, 32 and 512 MiB. Of a real device: of the driver's own calls, one by one.
[[nodiscard]] inline prices replay_backend::measure() const {
#if XMM_HAS_CUDA
    if (cuda_ != nullptr) {
        return cuda_->measure();
    }
#endif
    const backend_ref on = ref();
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
                auto got = on.frame_create(node(), bytes);
                check(got ? status{} : got.error());
                made = *got;
            }));
            const run one{*range, made, access::read_write};
            all[1].push_back(timed([&] { check(on.pmap_enter(node(), {&one, 1}).outcome); }));
            const va_range where = *range;
            all[2].push_back(timed([&] { check(on.pmap_clear(node(), {&where, 1}).outcome); }));
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

[[nodiscard]] inline prices measure_prices(const std::string& name) {
    const replay_backend opened{name, 0};
    if (!opened.ref()) {
        throw bad_input(fmt::format("--prices measured: backend {} has no calls to measure", name));
    }
    return opened.measure();
}

}  // namespace xmm::trace_replay
