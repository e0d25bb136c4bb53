// SPDX-License-Identifier: Apache-2.0
// vmm.hpp - the devices of one Level Zero driver, behind the operators of a backend.
//
// Model    One object for the devices of one driver, which share a context, and the host nodes beside them. Frames are
//          handles of the driver; addresses are reservations of its. Kernels are launched beside the backend:
//          launcher.hpp. Without virtual memory frames are plain allocations, and nothing can be mapped.
// Threads  Any thread may call any operator, with ranks above backend_queue held. The last call has returned
//          before the destructor starts; it lets the submitted work finish.
// Failure  As concepts/backend.hpp says. open() says why there is nothing to drive. A child of fork must not
//          call anything here.
// See      README.md for abilities and limits.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include <unistd.h>

#include <xmm/concepts/backend.hpp>

#include "../shared/claims.hpp"
#include "../shared/device_driver.hpp"
#include "../shared/runs.hpp"

#include "device.hpp"
#include "events.hpp"
#include "frames.hpp"
#include "queue.hpp"
#include "views.hpp"

namespace xmm::levelzero {

struct vmm_options {
    // The OS's number of each host node, in the order of host_ids; what is missing or -1 counts as 0.
    std::span<const int> host_numa;
    // Of each host node, in the same order: what xmm may think it has.
    std::span<const std::size_t> host_bytes;
    // Goes into the queue ids, below 4096: drivers that live at the same time need different ones. 0: one that no other
    // driver has that got it so.
    std::uint32_t queue_salt = 0;
};

class vmm : public shared::device_driver<device, node_memory, queue> {
public:
    // At most as many ids as the driver has devices (see find_drivers), which are taken in that order, and at least
    // one host id; ids are process-wide and given from outside.
    [[nodiscard]] static result<std::unique_ptr<vmm>> open(
        const found_driver& from, std::span<const node_id> device_ids,
        std::span<const node_id> host_ids, const vmm_options& options = {}) noexcept {
        const driver& on = driver::instance();
        if (!on.state()) {
            return on.state();
        }
        if (device_ids.empty() || device_ids.size() > from.devices.size()) {
            return fail(errc::unsupported, "the Level Zero driver has no such number of devices");
        }
        try {
            std::unique_ptr<vmm> made{new vmm{on, from, device_ids, options.queue_salt}};
            const status outcome = made->build(from, host_ids, options);
            return outcome ? result<std::unique_ptr<vmm>>{std::move(made)}
                           : result<std::unique_ptr<vmm>>{outcome};
        } catch (const std::bad_alloc&) {
            return fail(errc::no_memory, "the host has no memory for a driver");
        }
    }
    ~vmm() {
        queues_.end_all();
        memories_.clear();  // before the context
    }

    // ---- vendor

    // Host nodes are described too.
    [[nodiscard]] result<node_description> describe(node_id node) const noexcept {
        const node_memory* memory = find_memory(node);
        if (memory == nullptr) {
            return fail(errc::unknown_node, "not a node of this driver");
        }
        node_description about = describe_memory(*memory);
        const char* lacking = has_virtual_memory_ ? "" : ", no virtual memory";
        const device* one = find_device(node);
        if (one == nullptr) {
            std::snprintf(about.name.data(), about.name.size(), "host memory %d%s", node.value,
                          lacking);
            return about;
        }
        // What it lacks is said in any case, however long the name.
        std::snprintf(about.name.data(), about.name.size(), "%.*s%s", has_virtual_memory_ ? 63 : 40,
                      one->name(), lacking);
        about.is_lowering_dear = true;  // it cannot be: a device can always write
        describe_device(*one, about);
        return about;
    }

    // A proposal may lie anywhere; a given range is claimed if the driver still has those very addresses.
    [[nodiscard]] result<va_range> va_examine(va_range range, std::size_t alignment) noexcept {
        if (!has_virtual_memory_) {
            return fail(errc::unsupported, "this Level Zero driver has no virtual memory");
        }
        if (const status able = check_proposal(range, alignment); !able) {
            return able;
        }
        va_range reserved;
        if (const status got = maps_.reserve(range.begin, range.bytes, reserved); !got) {
            return got;
        }
        if (range.begin == 0 && reserved.begin % alignment != 0) {
            // A longer one has such an address in it. It is kept whole, since it is freed as it was made.
            maps_.release(reserved);
            if (const status again = maps_.reserve(0, range.bytes + alignment, reserved); !again) {
                return again;
            }
        }
        const va_range given{align_up(reserved.begin, alignment), range.bytes};
        status outcome;
        if ((range.begin != 0 && given.begin != range.begin) || !reserved.contains(given) ||
            (given.end() - 1) >> shared::address_bits != 0) {
            outcome = fail(errc::busy, "the Level Zero driver does not get these addresses");
        } else {
            outcome = claims_.add(given, reserved);
        }
        if (!outcome) {
            maps_.release(reserved);
            return outcome;
        }
        return given;
    }
    // Nothing is mapped there any more.
    void va_release(va_range range) noexcept {
        XMM_ASSERT(!views_.has_any(range), "released a range that is still mapped");
        maps_.release(claims_.remove(range));
    }

    [[nodiscard]] result<queue_id> queue_create(node_id node, queue_priority priority) noexcept {
        device* on = find_device(node);
        if (on == nullptr) {
            return fail(errc::unknown_node, "a queue belongs to a device of this driver");
        }
        return queues_.take([&](queue& work, queue_id id) {
            return work.open(id, *on, maps_.context(), events_, version_, priority);
        });
    }

    [[nodiscard]] result<ticket> memcpy(queue_id id, std::span<const piece> pieces) noexcept {
        return submit(id, [&](ze_command_list_handle_t list, ticket by) {
            return shared::for_each_copy(pieces, shared::no_seams, [&](const piece& all) {
                return append_copy(list, all, by);
            });
        });
    }
    [[nodiscard]] result<ticket> zero(queue_id id, std::span<const va_range> ranges) noexcept {
        return submit(id, [&](ze_command_list_handle_t list, ticket by) {
            return shared::for_each_run(ranges, shared::no_seams,
                                        [&](va_range all) { return append_zeros(list, all, by); });
        });
    }

    // ---- owns_frames

    // bytes is a whole number of pages, at most largest_frame_bytes. A handle's contents are undefined.
    [[nodiscard]] result<frame> frame_create(node_id node, std::size_t bytes) noexcept {
        check_frame(bytes);
        node_memory* memory = find_memory(node);
        return memory == nullptr
                   ? result<frame>{fail(errc::unknown_node, "not a node of this driver")}
                   : memory->create(bytes);
    }
    void frame_drop(frame f) noexcept {
        node_memory* memory = find_memory(f.node);
        XMM_ASSERT(memory != nullptr, "dropped a frame of another driver");
        memory->drop(f);
    }
    [[nodiscard]] progress pmap_enter(node_id node, std::span<const run> runs) noexcept {
        check_runs(runs);
        return views_.enter(accessor_of(node), runs, [&](const frame& backing) -> node_memory& {
            node_memory* memory = find_memory(backing.node);
            XMM_ASSERT(memory != nullptr, "a frame of another driver");
            return *memory;
        });
    }
    // Ranges without a mapping are passed over.
    [[nodiscard]] progress pmap_clear(node_id node, std::span<const va_range> ranges) noexcept {
        check_ranges(ranges);
        return views_.clear(accessor_of(node), ranges);
    }

    // ---- beside the backend

    static constexpr const char* native_kind = "levelzero/1";
    [[nodiscard]] vmm* native() noexcept { return this; }

    [[nodiscard]] ze_context_handle_t context() const noexcept { return maps_.context(); }
    [[nodiscard]] const driver& calls() const noexcept { return driver_; }
    // As the interface counts: see make_version.
    [[nodiscard]] std::uint32_t version() const noexcept { return version_; }
    [[nodiscard]] bool has_virtual_memory() const noexcept { return has_virtual_memory_; }
    // Why devices and the CPU can map no host frames; ok if they can.
    [[nodiscard]] status why_no_host_frames() const noexcept { return host_state_; }
    // The queue's work, for the launcher; null if there is no such queue.
    [[nodiscard]] queue* work_of(queue_id id) const noexcept { return queues_.find(id); }
    // What its frames take of a node's memory, by our own count.
    [[nodiscard]] std::size_t bytes_in_use(node_id node) const noexcept {
        const node_memory* memory = find_memory(node);
        return memory == nullptr ? 0 : memory->bytes_in_use();
    }

private:
    // Before what was made in it, so that it goes last.
    struct context_owner {
        const driver& on;
        ze_context_handle_t handle = nullptr;

        explicit context_owner(const driver& calls) noexcept : on{calls} {}
        ~context_owner() {
            if (handle != nullptr) {
                (void)on.call(&driver_api::context_destroy, handle);
            }
        }
        context_owner(const context_owner&) = delete;
        context_owner& operator=(const context_owner&) = delete;
        [[nodiscard]] status open(ze_driver_handle_t driver) noexcept {
            const ze_context_desc_t about;
            return on.call(&driver_api::context_create, driver, &about, &handle);
        }
    };

    vmm(const driver& on, const found_driver& from, std::span<const node_id> device_ids,
        std::uint32_t queue_salt)
        : device_driver{device_ids, queue_salt},
          driver_{on},
          version_{from.version},
          context_{on},
          context_state_{context_.open(from.handle)},
          maps_{on, context_.handle},
          events_{event_source{&on, context_.handle}},
          views_{maps_} {}

    status build(const found_driver& from, std::span<const node_id> host_ids,
                 const vmm_options& options) {
        XMM_ASSERT(!host_ids.empty(), "a driver needs a host node");
        if (!context_state_) {
            return context_state_;
        }
        for (std::size_t i = 0; i < device_ids_.size(); ++i) {
            devices_.push_back(std::make_unique<device>(driver_, from.devices[i], device_ids_[i]));
            if (const status opened = devices_[i]->open(); !opened) {
                return opened;
            }
        }
        set_hosts(host_ids.size(), options.host_numa);
        if (const status found = find_virtual_memory(); !found) {
            return found;
        }
        host_state_ = build_hosts(host_ids, options, node_memory::kind::host);
        if (!host_state_) {
            memories_.clear();
            if (const status plain = build_hosts(host_ids, options, node_memory::kind::plain_host);
                !plain) {
                return plain;
            }
        } else {
            abilities_.add(ability::host_frames);
        }
        for (const auto& one : devices_) {
            const auto what =
                has_virtual_memory_ ? node_memory::kind::device : node_memory::kind::plain_device;
            memories_.push_back(
                std::make_unique<node_memory>(maps_, *one, one->node(), what, one->bytes()));
            if (const status opened = memories_.back()->open(watch()); !opened) {
                return opened;
            }
        }
        abilities_.add(ability::host_calls);
        return {};
    }
    // Older drivers refuse the very question.
    [[nodiscard]] status find_virtual_memory() noexcept {
        va_range found;
        const status reserved = maps_.reserve(0, page_bytes, found);
        if (reserved) {
            maps_.release(found);
        }
        has_virtual_memory_ = reserved.is_ok();
        return reserved.code == errc::unsupported ? status{} : reserved;
    }
    [[nodiscard]] status build_hosts(std::span<const node_id> ids, const vmm_options& options,
                                     node_memory::kind what) {
        const bool is_mapped = what == node_memory::kind::host;
        if (is_mapped && (!has_virtual_memory_ || version_ < version_with_host_memory)) {
            return fail(errc::unsupported, "this Level Zero driver makes no physical host memory");
        }
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const std::size_t bytes = bytes_of_host(i, options.host_bytes);
            memories_.push_back(
                std::make_unique<node_memory>(maps_, *devices_[0], ids[i], what, bytes));
            if (const status opened = memories_.back()->open(watch()); !opened) {
                return opened;
            }
        }
        return is_mapped ? try_host_frames(*memories_[0]) : status{};
    }
    // Whether a frame of the host can be reached by the CPU where it stands and at another address at once.
    [[nodiscard]] status try_host_frames(node_memory& memory) noexcept {
        auto made = memory.create(memory.smallest_frame_bytes());
        if (!made) {
            return made.error();
        }
        auto elsewhere = va_examine({0, made->bytes}, page_bytes);
        status outcome = elsewhere.error();
        if (elsewhere) {
            const run one{*elsewhere, *made, access::read_write};
            outcome =
                views_.enter({}, {&one, 1}, [&](const frame&) -> node_memory& { return memory; })
                    .outcome;
            if (outcome && !is_shared(made->standing, elsewhere->begin)) {
                outcome = fail(errc::unsupported, "the CPU does not reach physical host memory");
            }
            if (!views_.clear({}, {&*elsewhere, 1})) {
                memory.abandon();
                return fail(errc::unsupported, "the Level Zero driver does not unmap host memory");
            }
            va_release(*elsewhere);
        }
        memory.drop(*made);
        return outcome;
    }
    // Tried through a pipe, which answers where a touch would kill.
    [[nodiscard]] static bool is_shared(address one, address other) noexcept {
        int ends[2];
        if (::pipe2(ends, O_CLOEXEC) != 0) {
            return false;
        }
        const std::uint64_t sent = 0x786d6d20'6c65766cu;
        std::uint64_t got = 0;
        const auto pass = [&](const void* from, void* to) {
            return ::write(ends[1], from, sizeof sent) == sizeof sent &&
                   ::read(ends[0], to, sizeof sent) == sizeof sent;
        };
        const bool is_same =
            pass(&sent, to_pointer(one)) && pass(to_pointer(other), &got) && got == sent;
        ::close(ends[0]);
        ::close(ends[1]);
        return is_same;
    }

    [[nodiscard]] ticket_watch watch() noexcept {
        return {this, [](void* self, ticket point, std::uint64_t ns) noexcept {
                    auto& me = *static_cast<vmm*>(self);
                    const errc found = me.queues_.of(point.queue).wait(point.value, ns).code;
                    // Lost with its device, or never given: nothing of it is under way. All else is not known.
                    return found == errc::ok || found == errc::device_lost ||
                           found == errc::invalid_argument;
                }};
    }
    // Where a copy reaches an address, and how far in a row: a frame by its name, or the program's own memory.
    [[nodiscard]] result<node_memory::reached> reach(va_range wanted, ticket by) noexcept {
        for (const auto& one : memories_) {
            if (!one->is_plain() && one->stands().contains(wanted.begin)) {
                return one->reach(wanted.begin, wanted.bytes, by);
            }
        }
        return node_memory::reached{wanted.begin, wanted.bytes};
    }
    [[nodiscard]] status append_copy(ze_command_list_handle_t list, piece all, ticket by) noexcept {
        for (std::size_t done = 0; done < all.to.bytes;) {
            const std::size_t left = all.to.bytes - done;
            auto to = reach({all.to.begin + done, left}, by);
            auto from = to ? reach({all.from.begin + done, left}, by) : std::move(to);
            if (!from || !to) {
                return from ? to.error() : from.error();
            }
            const std::size_t some = std::min(to->bytes, from->bytes);
            if (const status outcome = driver_.call(&driver_api::command_list_append_memory_copy,
                                                    list, to_pointer(to->at), to_pointer(from->at),
                                                    some, nullptr, 0, nullptr);
                !outcome) {
                return outcome;
            }
            done += some;
        }
        return {};
    }
    [[nodiscard]] status append_zeros(ze_command_list_handle_t list, va_range all,
                                      ticket by) noexcept {
        static constexpr unsigned char nothing = 0;
        for (std::size_t done = 0; done < all.bytes;) {
            auto to = reach({all.begin + done, all.bytes - done}, by);
            if (!to) {
                return to.error();
            }
            if (const status outcome =
                    driver_.call(&driver_api::command_list_append_memory_fill, list,
                                 to_pointer(to->at), &nothing, 1, to->bytes, nullptr, 0, nullptr);
                !outcome) {
                return outcome;
            }
            done += to->bytes;
        }
        return {};
    }

    [[nodiscard]] views::accessor accessor_of(node_id node) const noexcept {
        const std::size_t i = device_index(node);
        XMM_ASSERT(i != devices_.size() || find_memory(node) != nullptr,
                   "not a node of this driver");
        return i == devices_.size() ? views::accessor{}
                                    : views::accessor{devices_[i].get(), static_cast<unsigned>(i),
                                                      memories_[host_numa_.size() + i].get()};
    }

    const driver& driver_;
    const std::uint32_t version_;
    context_owner context_;
    status context_state_;
    mapper maps_;
    bool has_virtual_memory_ = false;
    status host_state_;
    event_stock events_;
    views views_;
    shared::claims claims_;
};

static_assert(backend<vmm> && owns_frames<vmm>);
static_assert(makes_host_calls<vmm> && !takes_device_faults<vmm> && !measures_free_memory<vmm>);

}  // namespace xmm::levelzero
