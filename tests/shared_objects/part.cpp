// SPDX-License-Identifier: Apache-2.0
// part.cpp - a shared object that embeds xmm, and what the program asks of it.
#include "part.hpp"

#define XMM_PART_EXPORT extern "C" __attribute__((visibility("default")))

XMM_PART_EXPORT void part_look(part::view* to) { *to = part::look(); }

// By code that is this shared object's own, whatever it shows.
XMM_PART_EXPORT int part_ask() {
    return xmm::registry::object<part::shared_object>().built.load(std::memory_order_relaxed);
}

// With this shared object's own code.
XMM_PART_EXPORT int part_serve_a_page() {
    part::page_of_sevens page;
    const int got = page.start() ? page.touch() : -1;
    page.stop();
    return got;
}

XMM_PART_EXPORT int part_rearm() { return xmm::fault_trap::instance().rearm().is_ok() ? 1 : 0; }

XMM_PART_EXPORT int part_is_service_thread() {
    return xmm::fault_trap::is_service_thread() ? 1 : 0;
}

// With nothing of the registry's in between.
XMM_PART_EXPORT int part_policy() {
    xmm::policy_ref found;
    return xmm::find_stock_policy("mapped", found) ? 1 : 0;
}

XMM_PART_EXPORT void part_lock(xmm::detail::turn* one) { one->lock(); }
XMM_PART_EXPORT void part_unlock(xmm::detail::turn* one) { one->unlock(); }
XMM_PART_EXPORT int part_has_turn(const xmm::detail::turn* one) { return one->is_mine() ? 1 : 0; }

// Used when the process ends, or the shared object is unloaded: the registry must still be there.
namespace {
struct at_exit {
    ~at_exit() { xmm::registry::object<part::shared_object>().used.fetch_add(1); }
} uses_at_exit;
}  // namespace
