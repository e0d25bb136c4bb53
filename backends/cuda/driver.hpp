// SPDX-License-Identifier: Apache-2.0
// driver.hpp - every driver call passes here once and leaves as a status.
//
// Model    libcuda.so.1 is loaded and started once a process, at the first question, and stays. Each
//          function is asked for by name and version. Without a library, a device, or a driver that is
//          new enough, state() says which of them is missing, and nothing may be called.
// Threads  Any. Streams, events and plain memory need the context of their device on the thread: context_scope.
// Failure  A status with the driver's own code. What a device does not survive is device_lost.
#pragma once

#include <xmm/core/status.hpp>
#include <xmm/os/dynamic_library.hpp>
#include <xmm/os/registry.hpp>

#include "../shared/driver_functions.hpp"

#include "abi.hpp"

namespace xmm::cuda {

// Whether no later call on the device's context can succeed.
[[nodiscard]] constexpr bool is_sticky(CUresult code) noexcept {
    switch (code) {
        case CUDA_ERROR_DEINITIALIZED:
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_NVLINK_UNCORRECTABLE:
        case CUDA_ERROR_CONTAINED:
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CUDA_ERROR_TENSOR_MEMORY_LEAK:
        case CUDA_ERROR_EXTERNAL_DEVICE: return true;
        default: return false;
    }
}

[[nodiscard]] constexpr bool is_about_capture(CUresult code) noexcept {
    return code >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
           code <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

[[nodiscard]] constexpr status status_of(CUresult code) noexcept {
    const auto own = static_cast<std::int32_t>(code);
    if (is_sticky(code)) {
        return fail(errc::device_lost, "the CUDA device failed and is lost to this process", own);
    }
    if (is_about_capture(code)) {
        return fail(errc::busy, "a CUDA stream is being captured", own);
    }
    switch (code) {
        case CUDA_SUCCESS: return {};
        case CUDA_ERROR_NOT_READY: return fail(errc::busy, "CUDA: not ready yet", own);
        case CUDA_ERROR_OUT_OF_MEMORY:
            return fail(errc::no_memory, "the CUDA driver is out of memory", own);
        case CUDA_ERROR_MAP_FAILED: return fail(errc::no_memory, "the CUDA driver cannot map", own);
        case CUDA_ERROR_NO_DEVICE: return fail(errc::unsupported, "CUDA sees no device", own);
        case CUDA_ERROR_STUB_LIBRARY:
            return fail(errc::unsupported, "this libcuda.so.1 is the toolkit's stub", own);
        case CUDA_ERROR_DEVICE_UNAVAILABLE:
            return fail(errc::unsupported, "the CUDA device is in use by another process", own);
        case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
            return fail(errc::unsupported, "libcuda and the kernel's driver do not match", own);
        case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
            return fail(errc::unsupported, "this device takes no forward compatible libcuda", own);
        case CUDA_ERROR_SYSTEM_NOT_READY:
            return fail(errc::unsupported, "CUDA's system services are not started yet", own);
        case CUDA_ERROR_OPERATING_SYSTEM:
            return fail(errc::unsupported, "the system refused the CUDA driver a call", own);
        case CUDA_ERROR_NOT_SUPPORTED:
        case CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER:
        case CUDA_ERROR_NOT_FOUND:
            return fail(errc::unsupported, "this device or CUDA driver cannot do it", own);
        case CUDA_ERROR_INVALID_VALUE:
        case CUDA_ERROR_INVALID_HANDLE:
        case CUDA_ERROR_INVALID_DEVICE:
            return fail(errc::invalid_argument, "the CUDA driver refused an argument", own);
        default: return fail(errc::unsupported, "a CUDA driver call failed", own);
    }
}

class driver : public shared::driver_functions<driver_api> {
public:
    static constexpr const char* registry_key = "cuda_driver/1";

    // The process's driver; ask for its state before anything else.
    static driver& instance() {
        prepare();
        return registry::object<driver>();
    }

    // Starts it, once, for instance(). The dynamic linker's lock is taken for that: a thread that has it, in the
    // constructor of a library, may be waiting for a lock of ours or for an object of the registry. So who holds one
    // of those while it asks for the instance calls this before.
    static void prepare() noexcept { static_cast<void>(started_.find()); }

    driver() noexcept {
        const driver* from = started_.find();
        if (registry::is_forked_child()) {
            state_ = fail(errc::forked, "a forked child cannot start the CUDA driver");
        } else if (from == nullptr) {
            state_ = fail(errc::no_memory, "the host has no memory for a driver");
        } else {
            api_ = from->api_;
            version_ = from->version_;
            state_ = from->state_;
        }
    }
    driver(const driver&) = delete;
    driver& operator=(const driver&) = delete;

    // ok: it is started, sees a device and has all that is required.
    [[nodiscard]] status state() const noexcept { return state_; }
    // As CUDA counts: 13000 is 13.0; 0 without a driver.
    [[nodiscard]] int version() const noexcept { return version_; }

private:
    friend shared::started<driver>;
    explicit driver(shared::is_starting) noexcept : state_{start()} {}
    status start() noexcept {
        if (registry::is_forked_child()) {
            return fail(errc::forked, "a forked child cannot start the CUDA driver");
        }
        auto library = dynamic_library::open("libcuda.so.1");
        if (!library) {
            return fail(errc::unsupported, "no CUDA driver here: libcuda.so.1 cannot be loaded");
        }
        using find_signature = decltype(driver_api::get_proc_address)::signature;
        auto find = library->find<find_signature>("cuGetProcAddress_v2");
        if (!find) {
            return fail(errc::unsupported, "the CUDA driver is older than 12.2");
        }
        bool has_all = true;
        for_each_function(api_, [&](auto& one) { has_all &= resolve(*find, one); });
        if (api_.driver_get_version) {
            (void)api_.driver_get_version(&version_);
        }
        if (!has_all || version_ < required_version) {
            return fail(errc::unsupported, "the CUDA driver is older than 12.2", version_);
        }
        if (const status started = call(&driver_api::init, 0u); !started) {
            return {errc::unsupported, started.driver_code, started.why};
        }
        int count = 0;
        const status counted = call(&driver_api::device_get_count, &count);
        return counted && count == 0 ? status_of(CUDA_ERROR_NO_DEVICE) : counted;
    }

    template <class Find, class Function>
    static bool resolve(Find* find, Function& one) noexcept {
        void* found = nullptr;
        auto how = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        // Stream 0 is the legacy one, whatever the program was compiled for: who means another says so.
        const CUresult asked =
            find(one.name, &found, one.version, get_proc_address_legacy_stream, &how);
        if (asked == CUDA_SUCCESS && how == CU_GET_PROC_ADDRESS_SUCCESS && found != nullptr) {
            one.at = reinterpret_cast<decltype(one.at)>(found);
        }
        return one.at != nullptr || one.is_optional;
    }

    int version_ = 0;  // (C) once built, as is the next
    status state_;

    [[gnu::visibility("hidden")]] static inline shared::started<driver> started_;
};

// While it lives, a device's context is the thread's; null: the thread's stays, if it has one.
class current_context {
public:
    current_context(const driver& on, CUcontext context) noexcept
        : driver_{on},
          is_pushed_{context != nullptr &&
                     on.call(&driver_api::ctx_push_current, context).is_ok()} {}
    ~current_context() {
        if (is_pushed_) {
            CUcontext was = nullptr;
            (void)driver_.call(&driver_api::ctx_pop_current, &was);
        }
    }
    current_context(const current_context&) = delete;
    current_context& operator=(const current_context&) = delete;

private:
    const driver& driver_;
    const bool is_pushed_;
};

// While it lives, no call of the thread can break a capture that has begun, here or on another thread: in the
// other modes calls that look harmless would end it.
class relaxed_capture {
public:
    explicit relaxed_capture(const driver& on) noexcept
        : driver_{on},
          is_relaxed_{on.call(&driver_api::thread_exchange_stream_capture_mode, &mode_).is_ok()} {}
    ~relaxed_capture() {
        if (is_relaxed_) {
            (void)driver_.call(&driver_api::thread_exchange_stream_capture_mode, &mode_);
        }
    }
    relaxed_capture(const relaxed_capture&) = delete;
    relaxed_capture& operator=(const relaxed_capture&) = delete;

private:
    const driver& driver_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // what to put back, once exchanged
    const bool is_relaxed_;
};

// Both: what every call of ours runs in. Frames, mappings and addresses belong to no context: there it is null,
// so that no failed one that happens to be the thread's speaks for them.
struct context_scope {
    context_scope(const driver& on, CUcontext context) noexcept
        : current{on, context}, relaxed{on} {}

    current_context current;
    relaxed_capture relaxed;
};

}  // namespace xmm::cuda
