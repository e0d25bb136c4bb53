// SPDX-License-Identifier: Apache-2.0
// fault_sinks.hpp - who serves the CPU faults of which addresses.
//
// Model    A table of sinks. A thread that asks a sink, or waits for it, holds its slot; removing a sink
//          means no new holders and waiting for those there are.
// Threads  add and remove: any, serialised by the owner's lock where said. find_owner and release: any,
//          lock-free, async-signal-safe.
// Failure  A full table.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include <xmm/core/types.hpp>
#include <xmm/os/futex.hpp>

namespace xmm {

enum class cpu_fault_outcome : std::uint8_t {
    resolved,    // mapped now: retry the access
    not_mapped,  // nothing belongs there: the access is a program's error
    no_memory,   // nothing could be made resident
    refused,     // the sink's rules forbid the access
    lost,        // the contents were on a device that is lost
    deferred,    // in use by work that may take long: ask again (see fault_trap::long_wait)
};

// Who serves faults of some addresses. Its code and context stay valid until remove().
struct cpu_fault_sink {
    void* context = nullptr;
    // Runs in a signal handler: a lock-free lookup and nothing else.
    bool (*owns)(void* context, address at) noexcept = nullptr;
    // Runs on a service thread, or where fault_trap::ask is called. `why`: static text for the message, if the
    // outcome is not resolved.
    cpu_fault_outcome (*handle)(void* context, address at, access wanted,
                                const char** why) noexcept = nullptr;
};

namespace detail {

[[nodiscard]] constexpr std::string_view name_of(cpu_fault_outcome outcome) noexcept {
    switch (outcome) {
        case cpu_fault_outcome::resolved: return "resolved";
        case cpu_fault_outcome::not_mapped: return "not mapped";
        case cpu_fault_outcome::no_memory: return "no memory";
        case cpu_fault_outcome::refused: return "refused";
        case cpu_fault_outcome::lost: return "lost";
        case cpu_fault_outcome::deferred: return "deferred";
    }
    return "?";
}

class sink_table {
public:
    static constexpr unsigned capacity = 64;

    // (S) constant while live  (A) atomic
    struct slot {
        std::atomic<std::uint32_t> state{0};    // (A)
        std::atomic<std::uint32_t> holders{0};  // (A)
        cpu_fault_sink sink;                    // (S)
    };

    // False if the table is full. Owner's lock held.
    [[nodiscard]] bool add_locked(cpu_fault_sink sink) noexcept {
        for (slot& one : slots_) {
            // acquire: pairs with the release in wait_until_free; its holders are gone.
            if (one.state.load(std::memory_order_acquire) == unused) {
                one.sink = sink;
                // seq_cst here and wherever state meets holders: see find_owner.
                one.state.store(live, std::memory_order_seq_cst);
                return true;
            }
        }
        return false;
    }

    // Takes a sink of this context out of sight, or returns nullptr. Owner's lock held.
    [[nodiscard]] slot* hide_locked(const void* context) noexcept {
        for (slot& one : slots_) {
            if (one.state.load(std::memory_order_acquire) == live && one.sink.context == context) {
                one.state.store(leaving, std::memory_order_seq_cst);
                return &one;
            }
        }
        return nullptr;
    }
    static void wait_until_free(slot& hidden) noexcept {
        for (std::uint32_t holders = 0;
             (holders = hidden.holders.load(std::memory_order_seq_cst)) != 0;) {
            futex_wait(hidden.holders, holders);
        }
        hidden.state.store(unused, std::memory_order_release);
    }

    // The slot of the sink that owns the address, held until release(); nullptr if there is none.
    [[nodiscard]] slot* find_owner(address at) noexcept {
        for (slot& one : slots_) {
            if (one.state.load(std::memory_order_relaxed) != live) {  // a hint; checked again below
                continue;
            }
            // We enter and then look at the state; a remover sets the state and then looks for holders.
            // In one total order, not both can miss the other.
            one.holders.fetch_add(1, std::memory_order_seq_cst);
            if (one.state.load(std::memory_order_seq_cst) == live &&
                one.sink.owns(one.sink.context, at)) {
                return &one;
            }
            release(one);
        }
        return nullptr;
    }
    static void release(slot& held) noexcept {
        if (held.holders.fetch_sub(1, std::memory_order_seq_cst) == 1 &&
            held.state.load(std::memory_order_seq_cst) == leaving) {
            futex_wake_all(held.holders);
        }
    }

private:
    enum state : std::uint32_t { unused, live, leaving };

    slot slots_[capacity];
};

}  // namespace detail
}  // namespace xmm
