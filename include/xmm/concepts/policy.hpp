// SPDX-License-Identifier: Apache-2.0
// policy.hpp - the questions that a placement policy answers.
//
// Model    A policy decides where a device's access is served: from a frame on the device, to which the
//          page moves, or in place, by mapping host memory over the link. Users' hints come first: a
//          policy is asked only where they say nothing.
// Threads  Asked from any thread, by one of a space at a time, with a page lock and a leaf lock of the space's held: it
//          must not block, allocate or touch unified memory, takes no lock of xmm's and calls nothing of xmm's, of this
//          space or another. Once the space has another policy it is asked no more.
#pragma once

#include <concepts>
#include <cstddef>

#include <xmm/core/types.hpp>

namespace xmm {

enum class placement_choice : std::uint8_t {
    on_device,  // bring the page to the accessor
    in_place,   // leave or create it on the host and map it
};

// A device's access to a page that it has no mapping for; of a device without faults, what a launch names.
struct device_touch {
    node_id accessor;
    access wanted = access::read;
    std::size_t granule_bytes = 0;
    bool is_first = false;  // the page has no contents yet
};

template <class P>
concept policy = requires(P& p, const device_touch& touch) {
    { p.name() } noexcept -> std::convertible_to<const char*>;
    { p.choose(touch) } noexcept -> std::same_as<placement_choice>;
};

// A policy behind two function pointers; refers to one that outlives it.
class policy_ref {
public:
    policy_ref() = default;
    template <policy P>
    explicit policy_ref(P& one) noexcept
        : self_{&one},
          name_{one.name()},
          choose_{[](void* self, const device_touch& touch) noexcept {
              return static_cast<P*>(self)->choose(touch);
          }} {}

    // Whether it refers to a policy at all.
    [[nodiscard]] explicit operator bool() const noexcept { return choose_ != nullptr; }
    [[nodiscard]] const char* name() const noexcept { return name_; }
    [[nodiscard]] placement_choice choose(const device_touch& touch) const noexcept {
        return choose_(self_, touch);
    }

private:
    void* self_ = nullptr;
    const char* name_ = "";
    placement_choice (*choose_)(void*, const device_touch&) noexcept = nullptr;
};

}  // namespace xmm
