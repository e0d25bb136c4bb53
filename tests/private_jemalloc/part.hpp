// SPDX-License-Identifier: Apache-2.0
// part.hpp - what the program calls in each library.
#pragma once

#include <cstddef>

// All extern "C", named part_<name of the function>.
struct part_functions {
    const void* (*table)();    // the process's jemalloc, or null
    const char* (*refusal)();  // why it is refused; empty if it is not
    void* (*make)();           // small blocks over memory that traps
    void (*destroy)(void* blocks);
    void* (*allocate)(void* blocks, std::size_t bytes);
    void (*deallocate)(void* blocks, void* block);
    std::size_t (*allocated)(void* blocks);
    std::size_t (*active_fit)();  // opt.lg_extent_max_active_fit
};
