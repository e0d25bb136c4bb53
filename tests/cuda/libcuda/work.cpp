// SPDX-License-Identifier: Apache-2.0
// work.cpp - copies, fills, kernels and host functions: what streams execute, and how it reaches memory.
#include <algorithm>
#include <cstring>

#include "memory.hpp"
#include "streams.hpp"

namespace soft_cuda {

namespace {

// As work, not as calls: a failure here comes later, and ends the context.
entry_point copy_work{"copy"};
entry_point fill_work{"memset"};
entry_point kernel_work{"kernel"};

entry_point memcpy_async_point{"cuMemcpyAsync"};
entry_point memcpy_point{"cuMemcpy"};
entry_point to_device_point{"cuMemcpyHtoDAsync"};
entry_point to_host_point{"cuMemcpyDtoHAsync"};
entry_point between_point{"cuMemcpyDtoDAsync"};
entry_point fill8_point{"cuMemsetD8Async"};
entry_point fill32_point{"cuMemsetD32Async"};
entry_point host_function_point{"cuLaunchHostFunc"};
entry_point launch_point{"xmmSoftCudaLaunch"};

constexpr std::size_t slice_bytes = std::size_t{256} << 10;

// One end of a copy, a slice at a time.
struct end_of_copy {
    int device;
    CUdeviceptr at;
    bool writes;
    sight seen{};
    std::byte* place = nullptr;

    // How much of `bytes` can be had in one piece from here; 0: not mapped, or not for this device.
    std::size_t find(std::size_t bytes) {
        seen = look(device, at, bytes, writes, access_by::copy);
        switch (seen.found) {
            case sight::answer::memory: place = seen.window; return seen.bytes;
            case sight::answer::unknown:  // the program's own memory
                place = reinterpret_cast<std::byte*>(at);
                return bytes;
            case sight::answer::fault: break;
        }
        return 0;
    }
    // Is it all as it was found? What was unmapped meanwhile has been used too late.
    [[nodiscard]] bool holds(std::size_t bytes) const {
        const sight now = look(device, at, bytes, writes, access_by::copy);
        return now.found == seen.found && now.mapping == seen.mapping;
    }
};

void pass_the_link(int from, int to, std::size_t bytes) {
    driver& all = the_driver();
    if (from < 0 && to < 0) {
        return;
    }
    if (from >= 0 && to >= 0) {
        if (from != to) {
            all.counted.between.fetch_add(bytes, std::memory_order_relaxed);
        }
        return;  // a device's own memory and its peers': as fast as it goes
    }
    device& over = *all.devices[static_cast<std::size_t>(std::max(from, to))];
    auto& figure = to >= 0 ? all.counted.to_device : all.counted.to_host;
    figure.fetch_add(bytes, std::memory_order_relaxed);
    over.lanes[to >= 0 ? 0 : 1].pass(bytes, over.bytes_per_second.load(std::memory_order_relaxed));
}

CUresult copy(int device, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    if (const CUresult failed = copy_work.call(); failed != CUDA_SUCCESS) {
        return failed;
    }
    end_of_copy source{device, from, false}, target{device, to, true};
    while (bytes != 0) {
        std::size_t piece = std::min(source.find(std::min(bytes, slice_bytes)),
                                     target.find(std::min(bytes, slice_bytes)));
        if (piece == 0) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        pass_the_link(source.seen.place, target.seen.place, piece);
        std::memmove(target.place, source.place, piece);
        if (!source.holds(piece) || !target.holds(piece)) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        source.at += piece, target.at += piece, bytes -= piece;
    }
    return CUDA_SUCCESS;
}

CUresult fill(int device, CUdeviceptr to, unsigned value, std::size_t width, std::size_t bytes) {
    if (const CUresult failed = fill_work.call(); failed != CUDA_SUCCESS) {
        return failed;
    }
    end_of_copy target{device, to, true};
    while (bytes != 0) {
        const std::size_t piece = target.find(std::min(bytes, slice_bytes));
        if (piece == 0 || target.seen.found != sight::answer::memory) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        if (width == 1) {
            std::memset(target.place, static_cast<int>(value), piece);
        } else {
            auto* const words = reinterpret_cast<std::uint32_t*>(target.place);
            std::fill_n(words, piece / sizeof *words, value);
        }
        if (!target.holds(piece)) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        target.at += piece, bytes -= piece;
    }
    return CUDA_SUCCESS;
}

// Of page-locked memory of the program's: one call stays within one piece of it.
bool leaves_its_piece(CUdeviceptr at, std::size_t bytes) {
    const std::scoped_lock hold{memory_lock};
    const auto over = table().over(at);
    return over != table().mappings.end() && over->second.kind == kind::registered &&
           bytes > over->second.end() - at;
}

CUresult start_copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream in) {
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    if (to == 0 || from == 0 || leaves_its_piece(to, bytes) || leaves_its_piece(from, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    constexpr std::size_t staged_at_once = std::size_t{64} << 10;
    const bool reads_pageable = !is_known(from), writes_pageable = !is_known(to);
    const int device = this_thread().current()->device;
    std::shared_ptr<std::vector<std::byte>> staged;
    if (reads_pageable && bytes <= staged_at_once) {
        const auto* const first = reinterpret_cast<const std::byte*>(from);
        staged = std::make_shared<std::vector<std::byte>>(first, first + bytes);
        from = reinterpret_cast<CUdeviceptr>(staged->data());
    }
    position done;
    const CUresult refused = submit(
        in, {{}, [=, hold = staged] { return copy(device, to, from, bytes); }, false}, &done);
    if (refused == CUDA_SUCCESS && (writes_pageable || (reads_pageable && staged == nullptr))) {
        done.wait();  // pageable memory is the caller's again when the call is over; of nothing in a capture
        return this_thread().current()->state();
    }
    return refused;
}

CUresult start_fill(CUdeviceptr to, unsigned value, std::size_t width, std::size_t count,
                    CUstream in) {
    if (count == 0) {
        return CUDA_SUCCESS;
    }
    if (to == 0 || to % width != 0 || count > SIZE_MAX / width || !is_known(to) ||
        leaves_its_piece(to, count * width)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const int device = this_thread().current()->device;
    return submit(in, {{}, [=] { return fill(device, to, value, width, count * width); }, false});
}

// The accessor of one kernel: the stretches it saw last are good until somebody changes a mapping.
struct kernel_accessor : accessor {
    struct seen_before {
        sight seen{};
        CUdeviceptr first = 0;
        std::size_t bytes = 0;
        bool writable = false;
    };
    std::array<seen_before, 8> known{};
    std::size_t next = 0;
    std::uint64_t epoch = 0;
    bool has_missed = false;

    explicit kernel_accessor(int of) {
        resolve = &find;
        device = of;
    }

    static void* find(accessor* self, CUdeviceptr at, std::size_t* bytes, int write) {
        auto& mine = *static_cast<kernel_accessor*>(self);
        const seen_before* const found =
            mine.has_missed || *bytes == 0 ? nullptr : mine.look_up(at, write != 0);
        if (found == nullptr) {
            *bytes = 0;
            return nullptr;
        }
        const std::size_t offset = at - found->first;
        *bytes = std::min(*bytes, found->bytes - offset);
        return found->seen.window - found->seen.before + offset;
    }

    const seen_before* look_up(CUdeviceptr at, bool write) {
        // acquire: pairs with bump_epoch. Before looking: what changes meanwhile is looked for again.
        const std::uint64_t now = memory_epoch.load(std::memory_order_acquire);
        if (epoch != now) {
            known = {};
            epoch = now;
        }
        for (const seen_before& one : known) {
            if (at - one.first < one.bytes && (one.writable || !write)) {
                return &one;
            }
        }
        seen_before& fresh = known[next++ % known.size()];
        fresh.seen = look(device, at, SIZE_MAX, write, access_by::kernel);
        if (fresh.seen.found != sight::answer::memory) {
            fresh = {};
            has_missed = true;
            return nullptr;
        }
        fresh.first = at - fresh.seen.before;
        fresh.bytes = fresh.seen.before + fresh.seen.bytes;
        fresh.writable = write;
        return &fresh;
    }
};

}  // namespace

SOFT_CUDA_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                                        CUstream in) {
    return enter(memcpy_async_point, a_context, [&] { return start_copy(to, from, bytes, in); });
}

SOFT_CUDA_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes,
                                               CUstream in) {
    return enter(to_device_point, a_context,
                 [&] { return start_copy(to, reinterpret_cast<CUdeviceptr>(from), bytes, in); });
}

SOFT_CUDA_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes,
                                               CUstream in) {
    return enter(to_host_point, a_context,
                 [&] { return start_copy(reinterpret_cast<CUdeviceptr>(to), from, bytes, in); });
}

SOFT_CUDA_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                                               CUstream in) {
    return enter(between_point, a_context, [&] { return start_copy(to, from, bytes, in); });
}

SOFT_CUDA_EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    return enter(memcpy_point, a_context | no_capture, [&] {
        if (bytes == 0) {
            return CUDA_SUCCESS;
        }
        if (to == 0 || from == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        context& current = *this_thread().current();
        position done;
        const CUresult refused = submit(
            nullptr, {{}, [=, at = current.device] { return copy(at, to, from, bytes); }, false},
            &done);
        if (refused != CUDA_SUCCESS) {
            return refused;
        }
        done.wait();
        return current.state();
    });
}

SOFT_CUDA_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count,
                                          CUstream in) {
    return enter(fill8_point, a_context, [&] { return start_fill(to, value, 1, count, in); });
}

SOFT_CUDA_EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count,
                                           CUstream in) {
    return enter(fill32_point, a_context, [&] { return start_fill(to, value, 4, count, in); });
}

SOFT_CUDA_EXPORT CUresult cuLaunchHostFunc(CUstream in, CUhostFn fn, void* of) {
    return enter(host_function_point, a_context, [&] {
        if (fn == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        return submit(in, {{},
                           [=] {
                               this_thread().is_in_host_function = true;
                               fn(of);
                               this_thread().is_in_host_function = false;
                               return CUDA_SUCCESS;
                           },
                           false});
    });
}

SOFT_CUDA_EXPORT CUresult xmmSoftCudaLaunch(CUstream in, kernel fn, void* of) {
    return enter(launch_point, a_context, [&] {
        if (fn == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        context* const current = this_thread().current();
        const std::scoped_lock hold{work_lock};
        const auto to = stream_of(in);
        if (to == nullptr || &to->owner != current) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        return submit_locked(
            to,
            {{},
             [=, device = current->device] {
                 if (const CUresult failed = kernel_work.call(); failed != CUDA_SUCCESS) {
                     return failed;
                 }
                 kernel_accessor memory{device};
                 fn(of, &memory);
                 return memory.has_missed ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
             },
             false},
            nullptr);
    });
}

static_assert(is_as_declared<&driver_api::memcpy_async>(cuMemcpyAsync));
static_assert(is_as_declared<&driver_api::memset_d8_async>(cuMemsetD8Async));
static_assert(is_as_declared<&driver_api::memset_d32_async>(cuMemsetD32Async));
static_assert(is_as_declared<&driver_api::launch_host_func>(cuLaunchHostFunc));

}  // namespace soft_cuda
