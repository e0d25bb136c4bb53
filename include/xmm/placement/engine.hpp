// SPDX-License-Identifier: Apache-2.0
// engine.hpp - the parts of placement, made for one address space and joined to its faults.
//
// Model    Owns mover, reclaimer, fault handler, prefetcher, adviser, copier and releaser of one space;
//          answers the CPU's faults (through the fault trap) and those of every attached device.
// Threads  As the parts. attach and the destructor: one thread, with no fault under way that the
//          program still needs.
// Failure  attach is all or nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>

#include <xmm/os/fault_trap.hpp>
#include <xmm/os/host_memory.hpp>
#include <xmm/placement/advise.hpp>
#include <xmm/placement/budget_watch.hpp>
#include <xmm/placement/policies.hpp>
#include <xmm/placement/release.hpp>
#include <xmm/placement/transfer.hpp>

namespace xmm {

class placement_engine {
public:
    placement_engine(address_space& space, policy_ref first) noexcept
        : moves{space},
          frames{space, moves},
          faults{space, moves, frames, first},
          early{space, moves, frames},
          hints{space, moves, frames, early},
          copies{space, moves, frames},
          releases{space, moves},
          budgets{space, moves, frames},
          space_{space} {}
    placement_engine(const placement_engine&) = delete;
    placement_engine& operator=(const placement_engine&) = delete;
    ~placement_engine() {
        stop_threads();
        for (unsigned i = 0; i < faulting_count_; ++i) {
            faulting_[i].off_device_fault(this);
        }
        if (is_trapping_) {
            fault_trap::instance().remove(this);
        }
    }

    // Ends the threads that move pages on their own; what the caller waits for is over then.
    void stop_threads() noexcept {
        budgets.stop();
        early.stop();
    }

    // From now on CPU touches of the space's pages come here; of pages that a driver owns, they go to the driver.
    [[nodiscard]] status trap_cpu_faults() noexcept {
        if (moves.is_steering()) {
            return {};
        }
        const status added = fault_trap::instance().add({this, &owns, &on_cpu_fault});
        is_trapping_ = added.is_ok();
        return added;
    }
    // The devices of one driver, and their faults if they have any.
    [[nodiscard]] status attach_devices(backend_ref driver) noexcept {
        if (space_.is_attached(driver)) {
            return fail(errc::busy, "this driver is attached already");
        }
        if (moves.is_steering() ? driver != space_.at_slot(cpu_accessor).driver
                                : !driver.has_frames()) {
            return fail(errc::unsupported,
                        "a driver that owns the pages shares a space with no other driver");
        }
        // Faults first, since that can be taken back. Devices without them are served before each launch.
        status on = fail(errc::unsupported, "no faults");
        if (driver.has_device_faults()) {
            on = driver.on_device_fault({this, &on_device_fault});
            if (!on && on.code != errc::unsupported) {
                return on;
            }
        }
        const status attached = space_.attach_devices(driver);
        if (on && attached) {
            faulting_[faulting_count_++] = driver;
        } else if (on) {
            driver.off_device_fault(this);
        }
        if (attached) {
            budgets.start();
        }
        return attached;
    }

    mover moves;
    reclaimer frames;
    fault_handler faults;
    prefetcher early;
    adviser hints;
    copier copies;
    releaser releases;
    budget_watch budgets;

private:
    static bool owns(void* self, address at) noexcept {
        return static_cast<placement_engine*>(self)->space_.find(at) != nullptr;
    }
    static cpu_fault_outcome on_cpu_fault(void* self, address at, access wanted,
                                          const char** why) noexcept {
        auto& engine = *static_cast<placement_engine*>(self);
        bool is_deferred = false;
        const status outcome =
            engine.faults.handle(engine.space_.at_slot(0), at, wanted, &is_deferred);
        *why = outcome.why;
        if (is_deferred) {
            return cpu_fault_outcome::deferred;
        }
        switch (outcome.code) {
            case errc::ok: return cpu_fault_outcome::resolved;
            case errc::not_mapped: return cpu_fault_outcome::not_mapped;
            case errc::busy: return cpu_fault_outcome::refused;
            case errc::device_lost: return cpu_fault_outcome::lost;
            default:
                *why = engine.describe(outcome, engine.frames.last_shortage());
                return cpu_fault_outcome::no_memory;
        }
    }
    // For the trap's message: what was short, or what else failed. The text lasts for as many more. No thread_local:
    // in a library that was loaded later its first use allocates, and the thread that faulted may hold a lock of
    // malloc's.
    const char* describe(const status& failed, const shortage& last) noexcept {
        // relaxed: whose text it is, no more.
        char* text = texts_[next_text_.fetch_add(1, std::memory_order_relaxed) % texts_.size()];
        // A shortage of frames has its cause as the failure's text; what else failed speaks for itself.
        const char* why = failed.why != nullptr ? failed.why : "";
        if (last.node == no_node || std::strcmp(why, last.cause) != 0) {
            if (std::strstr(why, "max_map_count") == nullptr) {
                return why;
            }
            std::snprintf(text, sizeof texts_[0], "%s: %zu of %zu mappings in use", why,
                          map_count(), map_limit());
            return text;
        }
        std::snprintf(text, sizeof texts_[0],
                      "node %d has no room for %zu bytes: %zu of %zu in use; %s", last.node.value,
                      last.bytes, last.used, last.limit, last.cause);
        return text;
    }
    static fault_outcome on_device_fault(void* self, node_id accessor, address at,
                                         access wanted) noexcept {
        auto& engine = *static_cast<placement_engine*>(self);
        node* from = engine.space_.find_node(accessor);
        if (from == nullptr || engine.space_.find(at) == nullptr) {
            return fault_outcome::not_mapped;
        }
        switch (engine.faults.handle(*from, at, wanted).code) {
            case errc::ok: return fault_outcome::resolved;
            case errc::not_mapped: return fault_outcome::not_mapped;
            default: return fault_outcome::no_memory;
        }
    }

    address_space& space_;
    backend_ref faulting_[address_space::max_backends];
    unsigned faulting_count_ = 0;
    bool is_trapping_ = false;
    std::atomic<unsigned> next_text_{0};
    std::array<char[200], 16> texts_{};
};

}  // namespace xmm
