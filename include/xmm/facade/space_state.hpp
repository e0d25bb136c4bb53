// SPDX-License-Identifier: Apache-2.0
// space_state.hpp - what a space is made of, and the checks of what users pass.
//
// Model    Owns the address space and its engine, and the driver where it was made for this space.
//          Destroying it unmaps every region that is left.
// Threads  As its parts.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>

#include <xmm/facade/default_devices.hpp>
#include <xmm/facade/device_heap.hpp>
#include <xmm/facade/statistics.hpp>
#include <xmm/os/turn.hpp>
#include <xmm/placement/engine.hpp>

namespace xmm {

class space_state {
public:
    explicit space_state(policy_ref first) noexcept : engine{core, first} {}
    space_state(const space_state&) = delete;
    space_state& operator=(const space_state&) = delete;

    // Nobody uses the space any more. False: the OS refuses to clear a mapping (vm.max_map_count), and the state has
    // to stay, since faults may come from what is left.
    [[nodiscard]] bool end() noexcept {
        engine.stop_threads();  // they ask the heaps for frames
        for (auto& one : heaps_) {
            one.reset();
        }
        for (va_range left = core.next_region(0).va; !left.is_empty();
             left = core.next_region(0).va) {
            result<region*> leaving = core.claim_for_unmap(left.begin);
            if (!leaving || !engine.releases.release(**leaving)) {
                return false;
            }
        }
        return true;
    }

    // ---- what users pass

    [[nodiscard]] status check_alive() const noexcept {
        return registry::is_forked_child()
                   ? fail(errc::forked,
                          "this is a forked child: the memory and devices are its parent's")
                   : status{};
    }
    [[nodiscard]] result<node*> check_node(node_id id) noexcept {
        if (status alive = check_alive(); !alive) {
            return alive;
        }
        node* found = core.find_node(id);
        if (found == nullptr) {
            return fail(errc::unknown_node, "no such node is attached to this space");
        }
        return found;
    }
    [[nodiscard]] result<place> check_place(node_id id) noexcept {
        result<node*> found = check_node(id);
        return found ? result<place>{core.find_place(id)} : result<place>{found.error()};
    }
    // A range of this space: not empty, not overflowing, mapped as a whole.
    [[nodiscard]] result<va_range> check_range(const void* pointer, std::size_t bytes) noexcept {
        if (status alive = check_alive(); !alive) {
            return alive;
        }
        const va_range range{to_address(pointer), bytes};
        if (bytes == 0) {
            return fail(errc::invalid_argument, "the range is empty");
        }
        if (is_overflowing(range)) {
            return fail(errc::invalid_argument, "address + bytes overflows");
        }
        if (!core.is_mapped(range)) {
            return fail(errc::not_mapped,
                        "the range, or part of it, belongs to no region of this space");
        }
        return range;
    }
    // Whether some of a range belongs to a heap.
    [[nodiscard]] bool is_of_heap(va_range range) noexcept {
        for (address at = range.begin; at < range.end();) {
            granule* page = core.find(at);
            address after = at + page_bytes;
            if (page != nullptr) {
                std::lock_guard guard{page->lock};
                if (page->is_arena) {
                    return true;
                }
                after = std::max(after, page->va.end());
            }
            at = after;
        }
        return false;
    }
    // One side of a copy: unified as a whole, or plain as a whole and mapped in this process.
    [[nodiscard]] result<copy_side> check_side(va_range range) noexcept {
        if (range.begin == 0) {
            return fail(errc::invalid_argument, "a null pointer");
        }
        if (is_overflowing(range)) {
            return fail(errc::invalid_argument, "address + bytes overflows");
        }
        if (core.find(range.begin) != nullptr) {
            return core.is_mapped(range) ? result<copy_side>{copy_side{range.begin, true}}
                                         : fail(errc::not_mapped, "the range leaves its region");
        }
        // Asked first: what is mapped is short enough to be looked at page by page.
        if (!core.is_plain_memory(range)) {
            return fail(errc::not_mapped, "no memory of this process is there");
        }
        for (address at = align_down(range.begin, page_bytes) + page_bytes; at < range.end();
             at += page_bytes) {
            if (core.find(at) != nullptr) {
                return fail(errc::not_mapped,
                            "the range starts in plain memory and runs into a region");
            }
        }
        return copy_side{range.begin, false};
    }
    // A checked side of a copy that a queue makes, on a thread of its own: see copy.
    [[nodiscard]] status check_queued_side(va_range range) noexcept {
        return is_of_another_space(range)
                   ? fail(errc::unsupported, "a queue does not copy memory of another space")
                   : status{};
    }
    static bool is_overflowing(va_range range) noexcept { return range.end() < range.begin; }

    // The malloc of a node, made at the first call.
    [[nodiscard]] result<xpu_malloc*> heap_of(node_id id) noexcept {
        result<node*> at = check_node(id);
        if (!at) {
            return at.error();
        }
        if (is_steered(**at)) {
            return fail(errc::unsupported,
                        "a heap needs frames: this driver owns its pages (CUDA's mode `managed`)");
        }
        detail::keep_this_object();  // the heap's functions are its own; before the lock: see there
        std::lock_guard guard{heaps_order_};
        std::unique_ptr<device_heap>& one = heaps_[(*at)->slot];
        if (one == nullptr) {
            one.reset(new (std::nothrow) device_heap{core, engine, **at});
        }
        return one != nullptr ? result<xpu_malloc*>{&one->heap()}
                              : fail(errc::no_memory, "the host has no memory for a heap");
    }

    // All work of the queue is done, and the id not another one's yet.
    void forget(queue_id queue) noexcept {
        std::lock_guard guard{heaps_order_};
        for (auto& one : heaps_) {
            if (one != nullptr) {
                one->heap().forget(queue);
            }
        }
    }

    // ---- what resources ask of a space as well: see space

    [[nodiscard]] result<void*> map(std::size_t bytes, const map_options& wanted = {}) noexcept {
        if (status checked = check_map(bytes, wanted); !checked) {
            return checked;
        }
        result<region*> made = core.map(bytes, wanted);
        if (!made) {
            return note_refusal(made.error(), bytes, wanted);
        }
        region& one = **made;
        if (status told = engine.hints.settle_in(one); !told) {
            static_cast<void>(unmap(to_pointer(one.va.begin)));
            return told;
        }
        if (wanted.fixed != no_node) {
            const status filled = engine.hints.make_resident(core.find_place(wanted.fixed), one.va);
            if (!filled) {
                static_cast<void>(unmap(to_pointer(one.va.begin)));
                return filled;
            }
        }
        return to_pointer(one.va.begin);
    }
    status unmap(void* pointer) noexcept {
        if (status alive = check_alive(); !alive) {
            return alive;
        }
        result<region*> leaving = core.claim_for_unmap(to_address(pointer), region_kind::plain);
        return leaving ? engine.releases.release(**leaving) : leaving.error();
    }
    // Both sides were checked. Memory of another space is reached by the CPU, on the calling thread: a queue of
    // this space that waited for the other's fault might, in the end, wait for itself. So no queue comes here.
    status copy(copy_side target, copy_side source, std::size_t bytes) noexcept {
        const address to = target.at;
        const address from = source.at;
        const bool is_foreign_target = !target.is_unified && is_of_another_space({to, bytes});
        const bool is_foreign_source = !source.is_unified && is_of_another_space({from, bytes});
        if (!is_foreign_target && !is_foreign_source) {
            return engine.copies.copy(target, source, bytes);
        }
        status reached = is_foreign_source ? reach({from, bytes}, access::read) : status{};
        if (reached && is_foreign_target) {
            reached = reach({to, bytes}, access::write);
        }
        if (!reached) {
            return reached;
        }
        std::byte bounce[std::size_t{64} << 10];
        for (std::size_t done = 0; done < bytes; done += sizeof bounce) {
            const std::size_t part = std::min(sizeof bounce, bytes - done);
            status outcome;
            if (is_foreign_source) {
                std::memcpy(bounce, to_pointer(from + done), part);
            } else {
                outcome = engine.copies.copy({xmm::to_address(bounce), false},
                                             {from + done, source.is_unified}, part);
            }
            if (outcome && is_foreign_target) {
                std::memcpy(to_pointer(to + done), bounce, part);
            } else if (outcome) {
                outcome = engine.copies.copy({to + done, target.is_unified},
                                             {xmm::to_address(bounce), false}, part);
            }
            if (!outcome) {
                return outcome;
            }
        }
        return {};
    }
    [[nodiscard]] result<std::shared_ptr<prefetch_job>> start_prefetch(node_id id, void* pointer,
                                                                       std::size_t bytes) noexcept {
        result<place> to = check_place(id);
        result<va_range> range = check_range(pointer, bytes);
        if (!to || !range) {
            return to ? range.error() : to.error();
        }
        auto job = engine.early.start(*range, *to);
        if (job == nullptr) {
            return fail(errc::no_memory, "the host has no memory for a prefetch");
        }
        return job;
    }
    static node_usage usage_of(xmm::node& one) noexcept {
        return {one.id,           one.book->limit(),     one.book->budget(),
                one.book->used(), one.pool.free_bytes(), one.book->peak()};
    }

    std::unique_ptr<soft::driver> own_driver;  // outlives what is below
    address_space core;
    placement_engine engine;
    std::atomic<std::uint64_t> copy_failures{0};  // of copies in queue order
    // Taken by launches on devices without faults, before all ranked locks. Knows its holder, since a
    // launch runs the user's function, which might launch.
    using launch_turn = detail::turn;
    launch_turn launch_order;
    std::mutex attach_order;  // taken by attach, before all ranked locks

private:
    std::mutex heaps_order_;                                     // taken before all ranked locks
    std::array<std::unique_ptr<device_heap>, max_slots> heaps_;  // by slot; under heaps_order_

    bool is_of_another_space(va_range range) noexcept {
        if (core.find(range.begin) != nullptr) {
            return false;
        }
        fault_trap& trap = fault_trap::instance();
        for (address at = range.begin; at < range.end();
             at = align_down(at, page_bytes) + page_bytes) {
            if (trap.is_owned(at)) {
                return true;
            }
        }
        return false;
    }
    // Asks for pages of another space as the CPU's faults do, which end the program where this fails.
    static status reach(va_range range, access wanted) noexcept {
        fault_trap& trap = fault_trap::instance();
        for (address at = range.begin; at < range.end();
             at = align_down(at, page_bytes) + page_bytes) {
            switch (trap.ask(at, wanted)) {
                case cpu_fault_outcome::resolved:
                case cpu_fault_outcome::deferred:  // only on service threads
                    break;
                case cpu_fault_outcome::refused:
                    return fail(errc::unsupported,
                                "memory of another space that is fixed or pinned to a device");
                case cpu_fault_outcome::not_mapped:
                    return fail(errc::not_mapped, "no memory of the other space is there");
                case cpu_fault_outcome::no_memory:
                    return fail(errc::no_memory, "no host memory for a page of another space");
                case cpu_fault_outcome::lost:
                    return fail(errc::device_lost, "a page of another space went with its device");
            }
        }
        return {};
    }
    status check_map(std::size_t bytes, const map_options& wanted) noexcept {
        if (status alive = check_alive(); !alive) {
            return alive;
        }
        if (bytes == 0) {
            return fail(errc::invalid_argument, "nothing to map: zero bytes");
        }
        if (wanted.granule_bytes != 0 &&
            (!std::has_single_bit(wanted.granule_bytes) || wanted.granule_bytes < page_bytes ||
             wanted.granule_bytes > largest_frame_bytes)) {
            return fail(errc::invalid_argument, "a granule is a power of two from 2 to 512 MiB");
        }
        if (wanted.is_arena) {
            return fail(errc::invalid_argument, "is_arena is for heaps: use space::heap");
        }
        if (!std::has_single_bit(wanted.alignment)) {
            return fail(errc::invalid_argument, "an alignment is a power of two");
        }
        for (node_id named : {wanted.preferred, wanted.fixed}) {
            if (named != no_node && core.find_node(named) == nullptr) {
                return fail(errc::unknown_node, "no such node is attached to this space");
            }
        }
        if (wanted.fixed != no_node && is_steered(*core.find_node(wanted.fixed))) {
            return fail(errc::unsupported,
                        "this driver moves its pages itself: none can be fixed to a node");
        }
        if (wanted.name == nullptr) {
            return fail(errc::invalid_argument, "a name is not null");
        }
        if (bytes > SIZE_MAX / 2) {
            return note_refusal(fail(errc::no_memory, "more bytes than there are addresses"), bytes,
                                wanted);
        }
        if (wanted.fixed != no_node && bytes > core.limit_of(core.find_place(wanted.fixed))) {
            return note_refusal(
                fail(errc::no_memory, "fixed memory larger than what its node may hold"), bytes,
                wanted);
        }
        return {};
    }
    // As the last shortage, if it is one. Addresses are no node's: where none is named, it is noted of the first.
    status note_refusal(status refused, std::size_t bytes, const map_options& wanted) noexcept {
        if (refused.code == errc::no_memory) {
            const node* at =
                core.find_node(wanted.fixed != no_node ? wanted.fixed : wanted.preferred);
            engine.frames.note_shortage(at != nullptr ? *at : core.at_slot(0), bytes, refused.why);
        }
        return refused;
    }
};

}  // namespace xmm
