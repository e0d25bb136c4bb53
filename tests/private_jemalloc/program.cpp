// SPDX-License-Identifier: Apache-2.0
// program.cpp - loads libraries that embed the private jemalloc, as a script language would.
//
//   load_jemalloc_parts both|unload|threads_before FIRST.so SECOND.so
#include <xmm/resources/jemalloc_table.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>

#include "part.hpp"

namespace {

#define MUST(condition)                                                           \
    do {                                                                          \
        if (!(condition)) {                                                       \
            std::fprintf(stderr, "failed: %s (line %d)\n", #condition, __LINE__); \
            std::exit(1);                                                         \
        }                                                                         \
    } while (false)

struct library {
    void* handle = nullptr;
    const part_functions* part = nullptr;

    library(const char* path, const char* name) {
        handle = ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) {
            std::fprintf(stderr, "%s\n", ::dlerror());
            std::exit(1);
        }
        auto get = reinterpret_cast<const part_functions* (*)()>(::dlsym(handle, name));
        MUST(get != nullptr);
        part = get();
    }
};

std::string home_of(const char* symbol) {
    Dl_info info{};
    void* at = ::dlsym(RTLD_DEFAULT, symbol);
    return at != nullptr && ::dladdr(at, &info) != 0 ? info.dli_fname : "";
}

void work(const part_functions* part, void* blocks) {
    std::vector<void*> all;
    for (int i = 0; i < 2000; ++i) {
        all.push_back(part->allocate(blocks, 1 + static_cast<std::size_t>(i) * 16));
        MUST(all.back() != nullptr);
    }
    for (void* block : all) {
        part->deallocate(blocks, block);
    }
}

}  // namespace

int main(int, char** arguments) {
    const std::string scenario = arguments[1];
    const std::string malloc_before = home_of("malloc");
    MUST(xmm::jemalloc_table::find() == nullptr);

    // Threads that are there before the library, and so before its thread-local storage.
    std::atomic<const part_functions*> late{nullptr};
    std::atomic<void*> late_blocks{nullptr};
    std::vector<std::thread> early;
    if (scenario == "threads_before") {
        for (int i = 0; i < 3; ++i) {
            early.emplace_back([&] {
                while (late.load(std::memory_order_acquire) == nullptr) {
                    std::this_thread::yield();
                }
                work(late.load(), late_blocks.load());
            });
        }
    }

    library first{arguments[2], "part_first"};
    const void* table = first.part->table();
    MUST(table != nullptr);
    MUST(table == xmm::jemalloc_table::find());
    std::fprintf(stderr, "%s", first.part->refusal());
    MUST(first.part->refusal()[0] == '\0');
    MUST(first.part->active_fit() == 16);

    // The program's malloc is what it was, and nothing of jemalloc is to be seen.
    MUST(home_of("malloc") == malloc_before);
    for (const char* name : {"mallocx", "xmm_je_mallocx", "xmm_je_malloc", "mallctl", "sdallocx"}) {
        MUST(home_of(name).empty());
    }

    library second{arguments[3], "part_second"};
    MUST(second.part->table() == table);

    void* blocks = first.part->make();
    MUST(blocks != nullptr);
    if (scenario == "threads_before") {
        late_blocks.store(blocks);
        late.store(first.part, std::memory_order_release);
    }
    // A block of one, freed through the other.
    for (int i = 0; i < 100; ++i) {
        second.part->deallocate(blocks, first.part->allocate(blocks, 5000));
    }
    std::thread{[&] {
        work(first.part, blocks);
        work(second.part, blocks);
    }}.join();
    for (auto& thread : early) {
        thread.join();
    }
    if (scenario == "unload") {
        // Both go, as far as the program is concerned; what serves the process stays.
        second.part->destroy(blocks);
        ::dlclose(first.handle);
        void* more = second.part->make();
        work(second.part, more);
        second.part->destroy(more);
        ::dlclose(second.handle);
        MUST(xmm::jemalloc_table::find() == table);
        MUST(xmm::jemalloc_table::find()->check().is_ok());
        std::puts("ok");
        return 0;
    }
    first.part->destroy(blocks);
    std::puts("ok");
}
