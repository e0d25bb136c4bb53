// SPDX-License-Identifier: Apache-2.0
// cuda_device.hpp - the first CUDA device of this machine for a replay, and what its driver's calls take.
//
// Model    The library's own backend: a frame is a handle of the driver, mapped at a standing address of its own and
//          where the heap wants it. Other memory than its frames and the context is not taken.
// Failure  bad_input says why there is nothing to replay on. Empty where the backend is not in this tree.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <xmm/concepts/backend_table.hpp>
#include <xmm/cuda.hpp>

#include "../demo/bad_input.hpp"
#include "../demo/format.hpp"
#include "prices.hpp"

#if XMM_HAS_CUDA
namespace xmm::trace_replay {

class cuda_device {
public:
    cuda_device() {
        auto found = cuda::find_devices();
        check(found.error(), "--backend cuda");
        ordinal_ = found->front();
        static constexpr std::array device{device_node};
        static constexpr std::array host{node_id{0}};
        static constexpr std::array host_bytes{std::size_t{1} << 30};
        cuda::vmm_options options;
        options.host_bytes = host_bytes;
        auto opened = cuda::vmm::open({&ordinal_, 1}, device, host, options);
        check(opened.error(), "--backend cuda");
        driver_ = std::move(*opened);
    }

    static constexpr node_id device_node{1};
    // Beside the call that makes or drops a handle: those for its standing address.
    static constexpr unsigned calls_to_create = 3;
    static constexpr unsigned calls_to_drop = 2;

    [[nodiscard]] backend_ref ref() const noexcept { return backend_ref{*driver_}; }
    [[nodiscard]] std::string name() const {
        const auto about = driver_->describe(device_node);
        check(about.error(), "--backend cuda");
        return about->name.data();
    }
    [[nodiscard]] std::uint64_t free_bytes() const {
        const auto left = driver_->free_bytes(device_node);
        check(left.error(), "--backend cuda");
        return *left;
    }

    // The median of a few calls of each kind at 2, 32 and 512 MiB; of the sizes that the device has room for.
    [[nodiscard]] prices measure() const {
        prices out = prices::idle();
        out.name = "measured";
        std::array<std::vector<std::pair<double, double>>, driver_call_count> points;
        for (const std::size_t bytes :
             {std::size_t{2} << 20, std::size_t{32} << 20, std::size_t{512} << 20}) {
            std::array<std::vector<double>, driver_call_count> all;
            if (!measure_calls(bytes, all)) {
                break;
            }
            for (std::size_t call = 0; call < all.size(); ++call) {
                const auto middle = all[call].begin() + rounds / 2;
                std::nth_element(all[call].begin(), middle, all[call].end());
                points[call].emplace_back(static_cast<double>(bytes), *middle);
            }
        }
        for (std::size_t call = 0; call < points.size(); ++call) {
            if (points[call].empty()) {
                throw demo::bad_input("--prices measured: the CUDA device has no room for a frame");
            }
            out.calls[call].points = std::move(points[call]);
        }
        return out;
    }

private:
    static constexpr int rounds = 15;

    static void check(const status& outcome, const char* option) {
        if (outcome) {
            return;
        }
        throw demo::bad_input(outcome.driver_code == 0
                                  ? fmt::format("{}: {}", option, outcome.why)
                                  : fmt::format("{}: {} (the driver's code {})", option,
                                                outcome.why, outcome.driver_code));
    }

    // Fills in the time of each round; false where there is no memory for it.
    [[nodiscard]] bool measure_calls(
        std::size_t bytes, std::array<std::vector<double>, driver_call_count>& all) const {
        const cuda::driver& on = cuda::driver::instance();
        const cuda::context_scope here{on, context()};
        const auto timed = [&](driver_call what, auto which, auto... with) {
            const auto begin = std::chrono::steady_clock::now();
            const status outcome = on.call(which, with...);
            all[static_cast<std::size_t>(what)].push_back(
                std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                    .count());
            return outcome;
        };
        using api = cuda::driver_api;
        cuda::CUmemAllocationProp about{};
        about.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
        about.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, ordinal_};
        const cuda::CUmemAccessDesc access{about.location,
                                           cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        cuda::CUdeviceptr at = 0;
        check(
            on.call(&api::mem_address_reserve, &at, bytes, page_bytes, cuda::CUdeviceptr{0}, 0ull),
            "--prices measured");
        status outcome;
        for (int i = 0; i < rounds && outcome; ++i) {
            cuda::CUmemGenericAllocationHandle handle = 0;
            outcome = timed(driver_call::create, &api::mem_create, &handle, bytes,
                            static_cast<const cuda::CUmemAllocationProp*>(&about), 0ull);
            if (!outcome) {
                break;
            }
            outcome =
                timed(driver_call::map, &api::mem_map, at, bytes, std::size_t{0}, handle, 0ull);
            if (outcome) {
                outcome = timed(driver_call::set_access, &api::mem_set_access, at, bytes, &access,
                                std::size_t{1});
                const status cleared = timed(driver_call::unmap, &api::mem_unmap, at, bytes);
                outcome = outcome ? cleared : outcome;
            }
            const status dropped = timed(driver_call::drop, &api::mem_release, handle);
            cuda::CUdeviceptr plain = 0;
            outcome = outcome ? dropped : outcome;
            outcome =
                outcome ? timed(driver_call::malloc, &api::mem_alloc, &plain, bytes) : outcome;
            outcome = outcome ? timed(driver_call::free, &api::mem_free, plain) : outcome;
        }
        (void)on.call(&api::mem_address_free, at, bytes);
        if (outcome.code != errc::no_memory) {
            check(outcome, "--prices measured");
        }
        return outcome.is_ok();
    }
    // The backend keeps it alive: asked for once more, and given back.
    [[nodiscard]] cuda::CUcontext context() const {
        const cuda::driver& on = cuda::driver::instance();
        cuda::CUcontext primary = nullptr;
        check(on.call(&cuda::driver_api::device_primary_ctx_retain, &primary, ordinal_),
              "--prices measured");
        (void)on.call(&cuda::driver_api::device_primary_ctx_release, ordinal_);
        return primary;
    }

    cuda::CUdevice ordinal_ = 0;
    std::unique_ptr<cuda::vmm> driver_;
};

}  // namespace xmm::trace_replay
#endif
