// SPDX-License-Identifier: Apache-2.0
// soft_ze.hpp - what the software Level Zero driver offers to tests beside the interface itself.
//
// Model    zeDriverGetExtensionFunctionAddress("softZeControls") gives a function that returns `controls`. A module
//          in the driver's native format is module_magic and then entries: names and host functions. It is not
//          SPIR-V, and nothing else understands it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace soft_ze {

// A launch as its function sees it: called once, for all groups.
struct kernel_call {
    std::uint32_t groups[3];
    std::uint32_t group_size[3];
    const void* const* arguments;  // as they were set, by index
    std::size_t argument_count;
    void* owner;
    // Where the host reaches what the device sees at an address, and for how many bytes in a row; null: a miss. The
    // device is lost then, and the function should return.
    void* (*reach)(kernel_call& self, std::uintptr_t at, std::size_t& bytes, bool does_write);

    template <class T>
    [[nodiscard]] T argument(std::size_t index) const {
        T value;
        std::memcpy(&value, arguments[index], sizeof value);
        return value;
    }
    // False after a miss.
    template <class T>
    [[nodiscard]] bool load(const T* from, T& value) {
        return move(reinterpret_cast<std::uintptr_t>(from), &value, sizeof value, false);
    }
    template <class T>
    [[nodiscard]] bool store(T* to, T value) {
        return move(reinterpret_cast<std::uintptr_t>(to), &value, sizeof value, true);
    }
    // fn(T&) for each element; false after a miss.
    template <class T, class Fn>
    [[nodiscard]] bool for_each(T* begin, std::size_t count, Fn&& fn) {
        auto at = reinterpret_cast<std::uintptr_t>(begin);
        for (std::size_t left = count * sizeof(T); left > 0;) {
            std::size_t bytes = left;
            void* some = reach(*this, at, bytes, true);
            if (some == nullptr || bytes < sizeof(T)) {
                return false;
            }
            const std::size_t whole = bytes / sizeof(T);
            for (std::size_t i = 0; i < whole; ++i) {
                fn(static_cast<T*>(some)[i]);
            }
            at += whole * sizeof(T);
            left -= whole * sizeof(T);
        }
        return true;
    }

private:
    bool move(std::uintptr_t at, void* value, std::size_t bytes, bool does_write) {
        for (std::size_t done = 0; done < bytes;) {
            std::size_t some = bytes - done;
            void* there = reach(*this, at + done, some, does_write);
            if (there == nullptr) {
                return false;
            }
            char* mine = static_cast<char*>(value) + done;
            does_write ? std::memcpy(there, mine, some) : std::memcpy(mine, there, some);
            done += some;
        }
        return true;
    }
};

using host_function = void (*)(kernel_call&);

inline constexpr char module_magic[16] = "xmm host module";
struct module_entry {
    char name[56];
    host_function function;
};

struct controls {
    // From the `skip`-th call on, that entry point answers `code`, `times` times.
    void (*fail)(const char* name, unsigned skip, unsigned times, std::uint32_t code);
    std::uint64_t (*calls)(const char* name);  // how often it was called
    void (*reset)();                           // no faults, no counts, no delay
    void (*delay)(unsigned microseconds);      // before each command of a queue
    void (*break_device)(unsigned device);     // it is lost from now on
    std::size_t (*held)(unsigned device);      // bytes of its memory that are handed out
    std::size_t (*alive)();      // handles, allocations, reservations, lists and events that exist
    std::uint64_t (*misuses)();  // calls that a real driver would not have survived
    // Entry points by number; null behind the last one.
    const char* (*name_of)(std::size_t index);
};
using find_controls = const controls*();

}  // namespace soft_ze
