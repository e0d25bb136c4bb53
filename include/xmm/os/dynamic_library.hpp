// SPDX-License-Identifier: Apache-2.0
// dynamic_library.hpp - symbols found at run time.
//
// Model    A driver's library is loaded once and stays: drivers keep threads and exit handlers, so the
//          destructor does not unload. close() does, for those who know better.
// Threads  Any for find(); open and close as dlopen and dlclose.
// Failure  unsupported, with the loader's own words on stderr only when asked for by XMM_CHECKS=2.
#pragma once

#include <initializer_list>
#include <type_traits>
#include <utility>

#include <dlfcn.h>

#include <xmm/core/status.hpp>

namespace xmm {

class dynamic_library {
public:
    // The first of the names that can be loaded; names as dlopen takes them ("libcuda.so.1").
    static result<dynamic_library> open(std::initializer_list<const char*> names) noexcept {
        for (const char* name : names) {
            if (void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL); handle != nullptr) {
                return dynamic_library{handle};
            }
            if constexpr (checks_full) {
                std::fprintf(stderr, "xmm: %s\n", ::dlerror());
            }
        }
        return fail(errc::unsupported, "no such shared library on this machine");
    }
    static result<dynamic_library> open(const char* name) noexcept { return open({name}); }

    dynamic_library(dynamic_library&& other) noexcept
        : handle_{std::exchange(other.handle_, nullptr)} {}
    dynamic_library& operator=(dynamic_library&& other) noexcept {
        handle_ = std::exchange(other.handle_, nullptr);
        return *this;
    }

    // The symbol as a Fn*: `library.find<int(int)>("cuInit")`. A symbol whose value is null is not found.
    template <class Fn>
    [[nodiscard]] result<Fn*> find(const char* name) const noexcept {
        static_assert(std::is_function_v<Fn> || std::is_object_v<Fn>);
        void* symbol = handle_ != nullptr ? ::dlsym(handle_, name) : nullptr;
        if (symbol == nullptr) {
            return fail(errc::unsupported, "the shared library lacks a symbol");
        }
        return reinterpret_cast<Fn*>(symbol);
    }

    [[nodiscard]] bool is_open() const noexcept { return handle_ != nullptr; }

    // Unloads it, unless others hold it. What find() returned is invalid from here on.
    void close() noexcept {
        if (void* handle = std::exchange(handle_, nullptr); handle != nullptr) {
            ::dlclose(handle);
        }
    }

private:
    explicit dynamic_library(void* handle) noexcept : handle_{handle} {}

    void* handle_;
};

}  // namespace xmm
