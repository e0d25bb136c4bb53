// SPDX-License-Identifier: Apache-2.0
// jemalloc_table.hpp - the functions of the private jemalloc, where the process has one.
//
// Model    A header cannot bring jemalloc, so a small static library, xmm-jemalloc, does: linked into any
//          shared object or program, it puts its functions into the registry before main. The first one
//          serves the whole process and stays loaded; without one the table is empty.
// Threads  Any.
// Failure  A jemalloc that would itself touch the memory that it hands out is refused, with the reason.
// See      packaging/jemalloc/ builds it; small_blocks.hpp uses it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>

#include <sys/types.h>

#include <xmm/core/status.hpp>
#include <xmm/os/registry.hpp>

namespace xmm {

// jemalloc's own functions, with jemalloc's own meanings. They never throw.
struct jemalloc_functions {
    void* (*mallocx)(std::size_t bytes, int flags) noexcept;
    void (*dallocx)(void* block, int flags) noexcept;
    std::size_t (*sallocx)(const void* block, int flags) noexcept;
    int (*mallctl)(const char* name, void* old, std::size_t* old_bytes, void* fresh,
                   std::size_t fresh_bytes) noexcept;
    int (*mallctlnametomib)(const char* name, std::size_t* mib, std::size_t* length) noexcept;

    // Whether blocks of memory that the CPU cannot touch may be carved by it; if not, why.
    [[nodiscard]] status check() const noexcept;

    // The value of that name; `missing` where this jemalloc has no such name.
    template <class T>
    [[nodiscard]] T value_of(const char* name, T missing) const noexcept {
        T value{};
        std::size_t bytes = sizeof value;
        return mallctl(name, &value, &bytes, nullptr, 0) == 0 ? value : missing;
    }
};

struct jemalloc_table {
    // The number stands in the name of packaging/jemalloc/table.cpp, too.
    static constexpr const char* registry_key = "jemalloc/2";

    // The functions live in a shared object that is never unloaded.
    std::atomic<const jemalloc_functions*> functions{nullptr};  // (A)

    // Keeps the first one offered. True if it was this one. The caller's shared object stays loaded.
    static bool offer(const jemalloc_functions& mine) noexcept {
        detail::pin_this_object();
        const jemalloc_functions* none = nullptr;
        // release: pairs with the acquire in find.
        return registry::object<jemalloc_table>().functions.compare_exchange_strong(
            none, &mine, std::memory_order_release, std::memory_order_relaxed);
    }

    // The process's functions, or null.
    [[nodiscard]] static const jemalloc_functions* find() noexcept {
        // acquire: pairs with the release in offer.
        return registry::object<jemalloc_table>().functions.load(std::memory_order_acquire);
    }
};

// What arena creation is told; jemalloc's installed header does not have it. A wrong size is answered by
// an error, so a jemalloc that lays it out differently cannot go unnoticed.
struct jemalloc_arena_config {
    void* hooks;
    bool metadata_use_hooks;
};

namespace detail {

// "5.3.0-0-g..." as 50300; 0 if it is no version.
[[nodiscard]] constexpr unsigned jemalloc_version_number(const char* text) noexcept {
    unsigned parts[3] = {};
    unsigned count = 0;
    for (bool was_digit = false; text != nullptr && *text != '\0' && count < 3; ++text) {
        const bool is_digit = *text >= '0' && *text <= '9';
        if (is_digit) {
            parts[count] = parts[count] * 10 + static_cast<unsigned>(*text - '0');
        }
        count += was_digit && !is_digit ? 1U : 0U;
        if (!is_digit && *text != '.') {
            break;
        }
        was_digit = is_digit;
    }
    return parts[0] * 10000 + parts[1] * 100 + parts[2];
}

}  // namespace detail

inline status jemalloc_functions::check() const noexcept {
    const char* version = value_of<const char*>("version", "");
    if (detail::jemalloc_version_number(version) < 50300) {
        return fail(errc::unsupported,
                    "jemalloc before 5.3 keeps its own records in device memory");
    }
    if (value_of("config.debug", false)) {
        return fail(errc::unsupported, "a debugging jemalloc reads the memory that it hands out");
    }
    if (std::strcmp(value_of<const char*>("opt.junk", "false"), "false") != 0) {
        return fail(errc::unsupported, "jemalloc is set to fill memory with junk (opt.junk)");
    }
    if (value_of("opt.zero", false)) {
        return fail(errc::unsupported, "jemalloc is set to fill memory with zeros (opt.zero)");
    }
    if (value_of<ssize_t>("opt.lg_san_uaf_align", -1) >= 0) {
        return fail(errc::unsupported,
                    "jemalloc is set to mark freed memory (opt.lg_san_uaf_align)");
    }
    if (!value_of("opt.retain", false)) {
        return fail(errc::unsupported,
                    "jemalloc is set to give addresses back (opt.retain is off), so that each "
                    "extent would take frames of its own");
    }
    std::size_t mib[8];
    std::size_t length = 8;
    if (mallctlnametomib("experimental.arenas_create_ext", mib, &length) != 0) {
        return fail(errc::unsupported,
                    "this jemalloc cannot keep an arena's records out of its memory");
    }
    return {};
}

}  // namespace xmm
