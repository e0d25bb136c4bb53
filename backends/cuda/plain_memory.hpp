// SPDX-License-Identifier: Apache-2.0
// plain_memory.hpp - memory of a device as the driver itself allocates it, and its legacy handles for other processes.
//
// Model    cuMemAlloc and cuMemFree in the device's primary context, beside the frames of the backend. A handle of
//          CUDA's legacy IPC stands for one such allocation as a whole; frames have none.
// Threads  Any. The device outlives it.
// Failure  A status; nothing has changed then. A device that is lost takes and gives nothing.
#pragma once

#include "device.hpp"

namespace xmm::cuda {

class plain_memory {
public:
    explicit plain_memory(const device& on) noexcept : on_{on} {}

    [[nodiscard]] result<address> allocate(std::size_t bytes) const noexcept {
        CUdeviceptr got = 0;
        const status made = call(&driver_api::mem_alloc, &got, bytes);
        return made ? result<address>{address{got}} : result<address>{made};
    }
    // Waits for the work of the device, as the driver does.
    [[nodiscard]] status free(address begin) const noexcept {
        return call(&driver_api::mem_free, CUdeviceptr{begin});
    }

    // For other processes of this machine that see the device; it ends with the allocation.
    [[nodiscard]] result<CUipcMemHandle> handle_of(address begin) const noexcept {
        CUipcMemHandle handle{};
        const status made = call(&driver_api::ipc_get_mem_handle, &handle, CUdeviceptr{begin});
        return made ? result<CUipcMemHandle>{handle} : result<CUipcMemHandle>{made};
    }
    // Where another process's allocation is seen here, and how large it is.
    [[nodiscard]] result<va_range> open(const CUipcMemHandle& handle) const noexcept {
        CUdeviceptr got = 0;
        const status opened = call(&driver_api::ipc_open_mem_handle, &got, handle,
                                   unsigned{CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS});
        if (!opened) {
            return opened.driver_code == static_cast<int>(CUDA_ERROR_INVALID_CONTEXT)
                       ? fail(errc::invalid_argument,
                              "a process cannot open the handle of its own memory",
                              opened.driver_code)
                       : opened;
        }
        CUdeviceptr begin = 0;
        std::size_t bytes = 0;
        if (const status sized = call(&driver_api::mem_get_address_range, &begin, &bytes, got);
            !sized) {
            (void)close(address{got});
            return sized;
        }
        return va_range{address{got}, bytes - (got - begin)};
    }
    // No work that uses it is unfinished.
    [[nodiscard]] status close(address opened) const noexcept {
        return call(&driver_api::ipc_close_mem_handle, CUdeviceptr{opened});
    }

private:
    template <class Function, class... Args>
    [[nodiscard]] status call(Function driver_api::*which, Args... args) const noexcept {
        if (on_.is_lost()) {
            return fail(errc::device_lost, "the CUDA device is lost");
        }
        const context_scope here{on_.calls(), on_.context()};
        return on_.calls().call(which, args...);
    }

    const device& on_;
};

}  // namespace xmm::cuda
