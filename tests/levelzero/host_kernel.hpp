// SPDX-License-Identifier: Apache-2.0
// host_kernel.hpp - a host function as a kernel of the software Level Zero driver, in its module format.
//
// Model    The function gets what was set as arguments. It reaches device memory through the call's accessor only; a
//          pointer to the program's own memory it uses as it is. No other driver takes such a module.
// Failure  What the driver says.
#pragma once

#include "../../backends/levelzero/launcher.hpp"

#include <array>
#include <cstring>

#include "kernel_api.hpp"
#include "libze_soft/soft_ze.hpp"

namespace xmm::test {

// The controls of the software driver; null on any other one.
[[nodiscard]] inline const soft_ze::controls* find_soft_ze(levelzero::ze_driver_handle_t driver) {
    void* found = nullptr;
    const auto& on = levelzero::kernel_functions::instance();
    return on.call(&levelzero::kernel_api::driver_get_extension_function_address, driver,
                   "softZeControls", &found)
               ? reinterpret_cast<soft_ze::find_controls*>(found)()
               : nullptr;
}

class host_kernel {
public:
    explicit host_kernel(soft_ze::host_function function) noexcept : function_{function} {}
    ~host_kernel() {
        if (kernel_ != nullptr) {
            (void)on().call(&levelzero::kernel_api::kernel_destroy, kernel_);
        }
        if (module_ != nullptr) {
            (void)on().call(&levelzero::kernel_api::module_destroy, module_);
        }
    }
    host_kernel(const host_kernel&) = delete;
    host_kernel& operator=(const host_kernel&) = delete;

    // For one device, the first that it is launched on. Arguments are set as they are.
    template <class... Args>
    status launch(const levelzero::stream& in, std::uint32_t groups, Args... args) noexcept {
        if (kernel_ == nullptr) {
            if (const status made = make(in); !made) {
                return made;
            }
        }
        std::uint32_t index = 0;
        status outcome;
        const auto set = [&](const auto& value) {
            if (outcome) {
                outcome = on().call(&levelzero::kernel_api::kernel_set_argument_value, kernel_,
                                    index++, sizeof value, static_cast<const void*>(&value));
            }
        };
        (set(args), ...);
        if (!outcome) {
            return outcome;
        }
        const levelzero::ze_group_count_t count{groups, 1, 1};
        auto point = in.append([&](levelzero::ze_command_list_handle_t list) {
            outcome =
                on().call(&levelzero::kernel_api::command_list_append_launch_kernel, list, kernel_,
                          &count, static_cast<levelzero::ze_event_handle_t>(nullptr),
                          std::uint32_t{0}, static_cast<levelzero::ze_event_handle_t*>(nullptr));
            return outcome ? levelzero::ZE_RESULT_SUCCESS
                           : static_cast<levelzero::ze_result_t>(outcome.driver_code);
        });
        return point.error();
    }

private:
    static const levelzero::kernel_functions& on() {
        return levelzero::kernel_functions::instance();
    }

    status make(const levelzero::stream& in) noexcept {
        struct image {
            char magic[sizeof soft_ze::module_magic];
            soft_ze::module_entry entry;
        } bytes{};
        std::memcpy(bytes.magic, soft_ze::module_magic, sizeof bytes.magic);
        bytes.entry = {"host function", function_};
        levelzero::ze_module_desc_t about;
        about.format = levelzero::ZE_MODULE_FORMAT_NATIVE;
        about.inputSize = sizeof bytes;
        about.pInputModule = reinterpret_cast<const std::uint8_t*>(&bytes);
        status outcome =
            on().call(&levelzero::kernel_api::module_create, in.context(), in.device(),
                      static_cast<const levelzero::ze_module_desc_t*>(&about), &module_,
                      static_cast<levelzero::ze_module_build_log_handle_t*>(nullptr));
        levelzero::ze_kernel_desc_t name;
        name.pKernelName = "host function";
        if (outcome) {
            outcome = on().call(&levelzero::kernel_api::kernel_create, module_,
                                static_cast<const levelzero::ze_kernel_desc_t*>(&name), &kernel_);
        }
        return outcome;
    }

    soft_ze::host_function function_;
    levelzero::ze_module_handle_t module_ = nullptr;
    levelzero::ze_kernel_handle_t kernel_ = nullptr;
};

// Words of device memory, moved by kernels.
class levelzero_words {
public:
    // What a kernel finds there.
    status load(const levelzero::stream& in, address at, std::uint64_t& value) noexcept {
        const status launched =
            load_.launch(in, 1, reinterpret_cast<const std::uint64_t*>(at), &value);
        return launched ? in.synchronize() : launched;
    }
    status store(const levelzero::stream& in, address at, std::uint64_t value) noexcept {
        const status launched = store_.launch(in, 1, reinterpret_cast<std::uint64_t*>(at), value);
        return launched ? in.synchronize() : launched;
    }

private:
    host_kernel load_{[](soft_ze::kernel_call& call) {
        std::uint64_t seen = 0;
        if (call.load(call.argument<const std::uint64_t*>(0), seen)) {
            *call.argument<std::uint64_t*>(1) = seen;
        }
    }};
    host_kernel store_{[](soft_ze::kernel_call& call) {
        (void)call.store(call.argument<std::uint64_t*>(0), call.argument<std::uint64_t>(1));
    }};
};

}  // namespace xmm::test
