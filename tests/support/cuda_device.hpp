// SPDX-License-Identifier: Apache-2.0
// cuda_device.hpp - for tests on whatever libcuda.so.1 is found: a backend, and words moved by its kernels.
//
// Model    On a real device the kernel is a few lines of PTX. The software driver of the tests runs no device
//          code: it exports a launcher of host functions instead.
// Failure  A test asks is_available() first; why_not() says what is missing.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include <dlfcn.h>

#include "../../backends/cuda/launcher.hpp"

namespace xmm::test {

[[nodiscard]] inline status cuda_state() {
    auto found = cuda::find_devices();
    return found.error();
}

// The devices that are there, at most `most`, and one host node, whose frames are the driver's handles on request.
[[nodiscard]] inline result<std::unique_ptr<cuda::vmm>> open_cuda(std::size_t most,
                                                                  std::uint32_t salt = 1,
                                                                  bool has_host_handles = false) {
    auto found = cuda::find_devices();
    if (!found) {
        return found.error();
    }
    const std::size_t count = std::min(most, found->size());
    static constexpr std::array ids{node_id{1}, node_id{2}, node_id{3}, node_id{4}};
    const std::array host{node_id{0}};
    const std::array bytes{std::size_t{1} << 30};
    cuda::vmm_options options;
    options.host_bytes = bytes;
    options.queue_salt = salt;
    options.has_host_handles = has_host_handles;
    return cuda::vmm::open({found->data(), count}, {ids.data(), count}, host, options);
}

// What the software driver of the tests does on request; all null on a real one.
struct soft_cuda_controls {
    cuda::CUresult (*fail)(const char* name, unsigned skip, unsigned times,
                           cuda::CUresult code) = nullptr;
    unsigned long long (*calls)(const char* name) = nullptr;
    void (*reset)() = nullptr;
    std::size_t (*held)(int device) = nullptr;
    cuda::CUresult (*break_device)(int device, cuda::CUresult code) = nullptr;
    cuda::CUresult (*attribute)(int device, unsigned attribute, int value) = nullptr;

    [[nodiscard]] explicit operator bool() const noexcept { return break_device != nullptr; }
};

// A function that libcuda exports under that very name; null if there is none.
template <class Fn>
[[nodiscard]] Fn* find_in_libcuda(const char* name) noexcept {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) {
        return nullptr;
    }
    void* found = ::dlsym(library, name);
    ::dlclose(library);  // the driver keeps it
    return reinterpret_cast<Fn*>(found);
}
[[nodiscard]] inline soft_cuda_controls find_soft_cuda() noexcept {
    soft_cuda_controls all;
    const auto find = [](auto& where, const char* name) {
        using function = std::remove_pointer_t<std::remove_reference_t<decltype(where)>>;
        where = find_in_libcuda<function>(name);
    };
    find(all.fail, "xmmSoftCudaFail");
    find(all.calls, "xmmSoftCudaCalls");
    find(all.reset, "xmmSoftCudaReset");
    find(all.held, "xmmSoftCudaHeld");
    find(all.attribute, "xmmSoftCudaAttribute");
    find(all.break_device, "xmmSoftCudaBreak");
    return all;
}

// Copies one 64-bit word in a stream's order, through the device's own view of memory.
class cuda_word_mover {
public:
    // Page-locked words that every device reaches at their own address.
    [[nodiscard]] static std::uint64_t* make_word(const cuda::device& on) noexcept {
        const cuda::current_context here{on.calls(), on.context()};
        void* at = nullptr;
        const status made = on.calls().call(&cuda::driver_api::mem_host_alloc, &at,
                                            sizeof(std::uint64_t), cuda::host_alloc_portable);
        return made ? static_cast<std::uint64_t*>(at) : nullptr;
    }
    static void drop_word(const cuda::device& on, std::uint64_t* word) noexcept {
        const cuda::current_context here{on.calls(), on.context()};
        (void)on.calls().call(&cuda::driver_api::mem_free_host, static_cast<void*>(word));
    }

    // Enqueues *to = *from.
    status move(const cuda::stream& line, address to, address from) noexcept {
        const auto scope = line.make_current();
        if (soft_launch_ != nullptr) {
            const std::scoped_lock hold{jobs_order_};
            job& one = jobs_.emplace_back(job{to, from});
            return cuda::status_of(soft_launch_(line.native(), &run_soft, &one));
        }
        return move_on_device(line, to, from);
    }

private:
    // As the software driver declares it.
    struct soft_accessor {
        void* (*resolve)(soft_accessor* self, cuda::CUdeviceptr at, std::size_t* bytes, int write);
        int device;
    };
    using soft_launch = cuda::CUresult(cuda::CUstream, void (*)(void*, soft_accessor*), void*);
    struct job {
        address to;
        address from;
    };

    static void run_soft(void* context, soft_accessor* memory) {
        const auto* one = static_cast<const job*>(context);
        std::size_t bytes = sizeof(std::uint64_t);
        const void* from = memory->resolve(memory, one->from, &bytes, 0);
        void* to = from == nullptr ? nullptr : memory->resolve(memory, one->to, &bytes, 1);
        if (to != nullptr) {
            std::memcpy(to, from, sizeof(std::uint64_t));
        }
    }

    status move_on_device(const cuda::stream& line, address to, address from) noexcept {
        const cuda::driver& on = cuda::driver::instance();
        cuda::CUfunction& kernel = kernels_[static_cast<std::size_t>(line.ordinal())];
        if (kernel == nullptr) {
            if (const status loaded = load(on, kernel); !loaded) {
                return loaded;
            }
        }
        std::array<void*, 2> arguments{&to, &from};
        return on.call(&cuda::driver_api::launch_kernel, kernel, 1u, 1u, 1u, 1u, 1u, 1u, 0u,
                       line.native(), arguments.data(), static_cast<void**>(nullptr));
    }
    // It goes with the context.
    static status load(const cuda::driver& on, cuda::CUfunction& kernel) noexcept {
        static constexpr const char* text = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry move_word(.param .u64 to, .param .u64 from) {
    .reg .u64 %a, %b, %v;
    ld.param.u64 %a, [to];
    ld.param.u64 %b, [from];
    ld.global.u64 %v, [%b];
    st.global.u64 [%a], %v;
    ret;
})";
        cuda::CUmodule code = nullptr;
        if (!on.has(&cuda::driver_api::launch_kernel)) {
            return fail(errc::unsupported, "this driver launches no kernels");
        }
        const status loaded =
            on.call(&cuda::driver_api::module_load_data, &code, static_cast<const void*>(text));
        return loaded ? on.call(&cuda::driver_api::module_get_function, &kernel, code, "move_word")
                      : loaded;
    }

    std::array<cuda::CUfunction, cuda::device::max_devices> kernels_{};  // by ordinal
    std::mutex jobs_order_;
    std::deque<job> jobs_;  // under jobs_order_; they stay, since a graph may run one again
    soft_launch* const soft_launch_ = find_in_libcuda<soft_launch>("xmmSoftCudaLaunch");
};

}  // namespace xmm::test
