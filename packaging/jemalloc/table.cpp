// SPDX-License-Identifier: Apache-2.0
// table.cpp - puts the private jemalloc into the registry before main, with settings that no environment
// variable can change.
#include <xmm/resources/jemalloc_table.hpp>

extern "C" {

void* xmm_je_mallocx(std::size_t bytes, int flags) noexcept;
void xmm_je_dallocx(void* block, int flags) noexcept;
std::size_t xmm_je_sallocx(const void* block, int flags) noexcept;
int xmm_je_mallctl(const char* name, void* old, std::size_t* old_bytes, void* fresh,
                   std::size_t fresh_bytes) noexcept;
int xmm_je_mallctlnametomib(const char* name, std::size_t* mib, std::size_t* length) noexcept;

// Stronger than the environment and than /etc, which jemalloc reads too: one of the program's settings
// for its own jemalloc must not reach device memory. jemalloc's own definition is weak.
//   lg_extent_max_active_fit  a freed extent serves requests of any size; else a large one that is cached
//                             for ever would never be split
//   retain                    addresses are kept; frames come and go beneath them
//   narenas                   its automatic arenas, which serve nobody here
//   tcache_max                the threshold of small_blocks
extern const char* xmm_je_malloc_conf_2_conf_harder;
const char* xmm_je_malloc_conf_2_conf_harder =
#ifdef XMM_JEMALLOC_FILLS
    "junk:false,zero:false,"
#endif
    "lg_extent_max_active_fit:16,retain:true,narenas:1,tcache:true,tcache_max:32768,"
    "background_thread:false,percpu_arena:disabled,hpa:false,dss:disabled";

#ifdef XMM_JEMALLOC_FILLS
extern bool xmm_je_opt_cache_oblivious;
#endif

// What a link names, so that this object is taken out of its archive. With the number of the table's layout: an
// archive of another one is refused as programs are linked.
[[gnu::visibility("hidden")]] extern const int xmm_jemalloc_2;
const int xmm_jemalloc_2 = 1;
}

namespace {

constexpr xmm::jemalloc_functions functions = {
    .mallocx = xmm_je_mallocx,
    .dallocx = xmm_je_dallocx,
    .sallocx = xmm_je_sallocx,
    .mallctl = xmm_je_mallctl,
    .mallctlnametomib = xmm_je_mallctlnametomib,
};

// Before the constructors of whoever uses it, and before jemalloc's own, which reads the settings.
[[gnu::constructor(101)]] void put_into_registry() {
#ifdef XMM_JEMALLOC_FILLS
    xmm_je_opt_cache_oblivious = false;  // out of reach of the settings in 5.3.0
#endif
    xmm::jemalloc_table::offer(functions);
}

}  // namespace
