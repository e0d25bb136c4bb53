// SPDX-License-Identifier: Apache-2.0
// default_space.hpp - the space that is there without being made.
//
// Model    Made by the first call that succeeds: what stood in the way of one need not stand in the next one's.
// Threads  Any; one makes it at a time.
// Failure  try_default_space answers why there is none; default_space ends the program.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include <xmm/facade/space.hpp>

namespace xmm {

namespace detail {

class default_space_holder {
public:
    static constexpr const char* registry_key = "default_space/2";

    [[nodiscard]] result<space*> find_or_make() noexcept {
        // acquire: pairs with the release in make_locked.
        if (space* made = made_.load(std::memory_order_acquire)) {
            return made;
        }
        // Before the lock, which a thread of the parent's may have held.
        if (registry::is_forked_child()) {
            return fail(errc::forked, "this is a forked child: the devices are its parent's");
        }
        prepare_drivers(device_kind::best);
        std::lock_guard guard{order_};
        space* made = made_.load(std::memory_order_relaxed);  // relaxed: written under the lock
        return made != nullptr ? result<space*>{made} : make_locked();
    }

private:
    result<space*> make_locked() noexcept {
        result<space> made = space::create();
        if (!made) {
            return made.error();
        }
        space* one = &*kept_.emplace(std::move(made));
        // release: the space is complete before it is found.
        made_.store(one, std::memory_order_release);
        return one;
    }

    std::mutex order_;                   // one maker; taken before all ranked locks
    std::atomic<space*> made_{nullptr};  // the one in kept_
    std::optional<result<space>> kept_;  // constant once made
};

// The process-wide space, or why it cannot be made now.
[[nodiscard]] inline result<space*> try_default_space() noexcept {
    auto* holder = registry::try_object<default_space_holder>();
    return holder != nullptr ? holder->find_or_make()
                             : fail(errc::no_memory, "the host has no memory for a space");
}

}  // namespace detail

// The process-wide space, shared by all shared objects, made at the first call and never destroyed.
// Ends the program with the reason if it cannot be made.
[[nodiscard]] inline space& default_space() { return *detail::try_default_space().value(); }

}  // namespace xmm
