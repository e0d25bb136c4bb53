// SPDX-License-Identifier: Apache-2.0
// space.hpp - one memory over the host and its devices, as users hold it.
//
// Model    A space is addresses that host and devices share: one pointer, valid on every node. Pages of
//          2 MiB move between nodes; granules of one or more pages move as one. The handle is moved, not
//          copied; queues and resources made from it must go before it.
// Threads  Any, except where a destructor runs.
// Failure  Every call validates what it is given and answers a status or result; only those that return a
//          std::vector throw, std::bad_alloc. On failure nothing has changed, unless the call says so.
//          In a forked child calls answer `forked`, or nothing where they cannot.
//          A moved-from space may only be destroyed.
// See      api.hpp: the same on the default space, under the names of GMEM.
#pragma once

#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include <xmm/facade/handles.hpp>
#include <xmm/facade/launch_preparation.hpp>
#include <xmm/facade/queue.hpp>
#include <xmm/facade/queued_copy.hpp>
#include <xmm/facade/space_state.hpp>
#include <xmm/facade/statistics.hpp>

namespace xmm {

struct space_options {
    const char* policy = "first_touch";       // or "mapped"
    const topology* machine = nullptr;        // whose hosts to attach; null: this machine's
    device_kind devices = device_kind::best;  // for create(): whose devices
};

class space {
public:
    // This machine's hosts, and the devices of the kind that the options name: of the best by default.
    [[nodiscard]] static result<space> create(space_options options = {}) noexcept {
        result<backend_ref> driver = detail::default_driver(options.devices);
        return driver ? create_from(*driver, options, nullptr) : result<space>{driver.error()};
    }

    // The hosts, and software devices of this space's own.
    [[nodiscard]] static result<space> create_soft(const std::vector<soft::device_options>& devices,
                                                   space_options options = {}) noexcept {
        auto driver = detail::make_soft_driver(
            devices, options.machine != nullptr ? *options.machine : machine_topology());
        if (!driver) {
            return driver.error();
        }
        soft::driver& kept = **driver;
        return create_from(backend_ref{kept}, options, std::move(*driver));
    }

    // The hosts, and the devices of a driver that outlives the space.
    template <backend B>
    [[nodiscard]] static result<space> create_on(B& driver, space_options options = {}) noexcept {
        return create_from(backend_ref{driver}, options, nullptr);
    }

    // More devices for this space, of a driver that outlives it. All or nothing.
    template <backend B>
    status attach(B& driver) noexcept {
        if (status alive = state_->check_alive(); !alive) {
            return alive;
        }
        // The driver's functions are this object's own. Before the lock: see there.
        detail::keep_this_object();
        std::lock_guard guard{state_->attach_order};
        return state_->engine.attach_devices(backend_ref{driver});
    }

    // ---- one malloc for each node

    // The heap of a node, shared by all who ask: blocks in queue order, of device-only memory on a device and
    // of page-locked memory on a host. It goes with the space. unsupported: a node whose driver owns its pages (CUDA's
    // mode `managed`).
    [[nodiscard]] result<xpu_malloc*> heap(node_id node) noexcept { return state_->heap_of(node); }

    // ---- memory

    // Zero-filled memory for all nodes: whole pages, aligned to at least a page (2 MiB). No frame is taken
    // before the first touch, except for `fixed` memory.
    [[nodiscard]] result<void*> map(std::size_t bytes, const map_options& wanted = {}) noexcept {
        return state_->map(bytes, wanted);
    }

    // Takes what map returned. Waits for launches that name the range, and for moves and holds.
    // no_memory: the OS refused to take mappings back; the region is still there, partly emptied.
    status unmap(void* pointer) noexcept { return state_->unmap(pointer); }

    // Whether the address belongs to this space. Lock-free.
    [[nodiscard]] bool contains(const void* pointer) const noexcept {
        return state_->core.find(to_address(pointer)) != nullptr;
    }
    // The node that has the data of that address; no_node if it was never touched. Where a driver owns the
    // pages (CUDA's mode `managed`), the node where it was placed last.
    [[nodiscard]] result<node_id> residency_of(const void* pointer) const noexcept {
        if (status alive = state_->check_alive(); !alive) {
            return alive;
        }
        node_id home = no_node;
        const bool is_there = state_->core.with_granule(to_address(pointer), [&](granule& page) {
            if (page.home != no_slot) {
                home = state_->core.at_slot(page.home).id;
            }
        });
        if (!is_there) {
            return fail(errc::not_mapped, "the address belongs to no region of this space");
        }
        return home;
    }

    // ---- hints and copies

    // gmadvise: see placement/advise.hpp for what each hint does. will_need returns when the pages are there, as
    // far as they fit and may move: a hint is no promise; make_resident is. A hint of zero bytes is nothing, and looks
    // at no pointer. On a failure pages that had moved by then stay where they came. unsupported: a pin on memory of a
    // heap.
    status advise(node_id node, void* pointer, std::size_t bytes, advice what) noexcept {
        result<place> to = state_->check_place(node);
        if (to && bytes == 0) {
            return check_name(what);
        }
        result<va_range> range = check_advice(pointer, bytes, what);
        if (!to || !range) {
            return to ? range.error() : to.error();
        }
        return state_->engine.hints.advise(*to, *range, what);
    }
    // will_need on the prefetch threads, while kernels run; other hints are done at once.
    [[nodiscard]] result<completion> advise_async(node_id node, void* pointer, std::size_t bytes,
                                                  advice what) noexcept {
        if (what != advice::will_need || bytes == 0) {
            const status outcome = advise(node, pointer, bytes, what);
            return outcome ? result<completion>{completion{}} : result<completion>{outcome};
        }
        auto job = state_->start_prefetch(node, pointer, bytes);
        return job ? result<completion>{completion{std::move(*job)}}
                   : result<completion>{job.error()};
    }

    // gmemcpy: between any two pointers, unified, device-only, page-locked or plain, at any alignment. Ranges
    // that overlap are refused. Zero bytes copy nothing and look at no pointer. Plain memory can be read, or written,
    // as the copy needs: only that it is mapped is checked. Begins at once: what queues still do with the memory, it
    // does not wait for (wait yourself, or copy in the queue's order, below). On a failure in the middle the
    // destination's contents are undefined. unsupported: memory that another space has fixed or pinned to a device.
    status copy(void* to, const void* from, std::size_t bytes) noexcept {
        if (bytes == 0) {
            return {};
        }
        const result<copy_sides> sides = check_copy(to, from, bytes);
        return sides ? state_->copy(sides->to, sides->from, bytes) : sides.error();
    }
    // The same in the order of a queue; the ticket is reached when the bytes are there. What fails then
    // shows in copy_failures(): the queue goes on. unsupported: memory of another space.
    [[nodiscard]] result<ticket> copy(queue& line, void* to, const void* from,
                                      std::size_t bytes) noexcept;

    // After no_memory: which node had no room, for how much, what is used, the limit and the cause.
    [[nodiscard]] shortage last_shortage() const noexcept {
        return state_->check_alive() ? state_->engine.frames.last_shortage() : shortage{};
    }

    // How many copies in queue order have failed.
    [[nodiscard]] std::uint64_t copy_failures() const noexcept {
        return state_->copy_failures.load(std::memory_order_relaxed);  // relaxed: a counter
    }

    // Every page of the range on that node when it returns; nothing keeps it there. Contents are kept in any case.
    // On a failure, to a device or to a host, pages that had moved by then stay where they came. no_memory: the range
    // does not fit there, beside what cannot leave, or not before queues are done with what was given back on them;
    // one larger than what the node may hold is refused before any page moves. busy: pages that are pinned elsewhere,
    // or that others took away as often as they came.
    status make_resident(void* pointer, std::size_t bytes, node_id node) noexcept {
        result<place> to = state_->check_place(node);
        result<va_range> range = state_->check_range(pointer, bytes);
        if (!to || !range) {
            return to ? range.error() : to.error();
        }
        return state_->engine.hints.make_resident(*to, *range);
    }
    // Brings the range to some host and holds it there while what it returns lives. On a failure nothing is held, and
    // pages that had moved by then stay where they came.
    [[nodiscard]] result<host_access> access_on_host(void* pointer, std::size_t bytes) noexcept {
        result<va_range> range = state_->check_range(pointer, bytes);
        if (!range) {
            return range.error();
        }
        if (status held = state_->engine.hints.hold(state_->core.find_place(any_host), *range);
            !held) {
            return held;
        }
        return host_access{*state_, *range};
    }

    // ---- nodes

    // These three throw std::bad_alloc. Hosts come first, then devices in the order of attaching.
    [[nodiscard]] std::vector<node_id> nodes() const {
        return list_nodes(0, state_->core.node_count());
    }
    [[nodiscard]] std::vector<node_id> hosts() const {
        return list_nodes(0, state_->core.host_count());
    }
    [[nodiscard]] std::vector<node_id> devices() const {
        return list_nodes(state_->core.host_count(), state_->core.node_count());
    }
    // What the driver says of a node: name, sizes, link, abilities.
    [[nodiscard]] result<node_description> describe(node_id id) const noexcept {
        result<xmm::node*> found = state_->check_node(id);
        return found ? result<node_description>{(*found)->about}
                     : result<node_description>{found.error()};
    }
    // What xmm may hold on a node, in this process: bytes, or no_budget for all there is. Lowering it drops free
    // frames of all spaces and demotes pages of this one at once; busy: pinned or used pages, or those of other spaces,
    // keep the node above it for now.
    status set_budget(node_id id, std::size_t bytes) noexcept {
        result<xmm::node*> found = state_->check_node(id);
        if (!found) {
            return found.error();
        }
        ledger& book = *(*found)->book;
        book.set_budget(bytes);
        while (book.used() > book.limit() && book.drop_free_frame()) {
        }
        return state_->engine.frames.shrink_to_limit(**found)
                   ? status{}
                   : fail(errc::busy, "pages that cannot move keep the node above its budget");
    }
    // In bytes, now; the figures are read one after another.
    [[nodiscard]] result<node_usage> usage(node_id id) const noexcept {
        result<xmm::node*> found = state_->check_node(id);
        return found ? result<node_usage>{space_state::usage_of(**found)}
                     : result<node_usage>{found.error()};
    }
    [[nodiscard]] space_statistics statistics() const noexcept {
        space_statistics all;
        for (; state_->check_alive() && all.count < state_->core.node_count(); ++all.count) {
            xmm::node& one = state_->core.at_slot(all.count);
            all.nodes[all.count] = {space_state::usage_of(one), one.counters()};
        }
        return all;
    }
    // A queue of a device: invalid_argument on a host. The space outlives it. Of a lost device (one without faults is
    // lost as a whole when a kernel misses a page) either the call answers device_lost or, as a software device has it,
    // all that the queue is given.
    [[nodiscard]] result<queue> make_queue(
        node_id id, queue_priority priority = queue_priority::normal) noexcept {
        result<xmm::node*> found = state_->check_node(id);
        if (!found) {
            return found.error();
        }
        if ((*found)->is_host) {
            return fail(errc::invalid_argument, "queues belong to devices");
        }
        if (priority > queue_priority::urgent) {
            return fail(errc::invalid_argument, "no such priority");
        }
        result<queue_id> made = (*found)->driver.queue_create((*found)->id, priority);
        if (!made) {
            return made.error();
        }
        return queue{*state_, state_->core.uses(), (*found)->driver, (*found)->id, *made, &end_of};
    }

#if XMM_HAS_CUDA
    // A CUDA stream of the user's (a cudaStream_t, 0 for the legacy one) as a queue of its device: launches go into
    // that very stream. The stream outlives the queue; the queue's destructor waits for what was launched.
    // unsupported: not a stream of the primary context of one of this space's devices.
    [[nodiscard]] result<queue> adopt_stream(void* native) noexcept {
        if (status alive = state_->check_alive(); !alive) {
            return alive;
        }
        status last = fail(errc::unsupported, "this space has no CUDA device");
        for (unsigned slot = state_->core.host_count(); slot < state_->core.node_count(); ++slot) {
            xmm::node& at = state_->core.at_slot(slot);
            auto* driver = static_cast<cuda::vmm*>(at.driver.native(cuda::vmm::native_kind));
            if (driver == nullptr) {
                continue;
            }
            result<queue_id> made = driver->adopt(static_cast<cuda::CUstream>(native));
            if (made) {
                return queue{*state_,   state_->core.uses(),
                             at.driver, driver->device_of(*made)->node(),
                             *made,     &end_of};
            }
            last = made.error();
        }
        return last;
    }
#endif

    // ---- policy, and a look inside

    status set_policy(const char* name) noexcept {
        policy_ref found;
        if (name == nullptr || !find_stock_policy(name, found)) {
            return fail(errc::invalid_argument,
                        "no stock policy of that name: known are first_touch and mapped");
        }
        return set_policy(found);
    }
    // The policy outlives the space, or the next set_policy.
    status set_policy(policy_ref next) noexcept {
        if (status alive = state_->check_alive(); !alive) {
            return alive;
        }
        if (!next) {
            return fail(errc::invalid_argument, "a reference to no policy");
        }
        state_->engine.faults.set_policy(next);
        return {};
    }
    [[nodiscard]] const char* policy_name() const noexcept {
        return state_->check_alive() ? state_->engine.faults.current_policy().name() : "";
    }
    // fn(const granule_view&) for every granule, in the order of addresses; each is exact, all together are
    // not. No lock is held: fn may call the space or throw, and regions that it maps may be missed.
    template <class Fn>
    void for_each_granule(Fn&& fn) const;
    // All records are consistent. Slow: for tests and debugging. False in a forked child.
    [[nodiscard]] bool is_valid() const noexcept {
        return state_->check_alive() && state_->core.is_valid();
    }

    [[nodiscard]] space_state& state() noexcept { return *state_; }

private:
    static void end_of(space_state& owner, queue_id queue) noexcept { owner.forget(queue); }
    explicit space(std::unique_ptr<space_state> state) noexcept : state_{state.release()} {}

    static result<space> create_from(backend_ref driver, const space_options& options,
                                     std::unique_ptr<soft::driver> own) noexcept {
        policy_ref first;
        if (options.policy == nullptr || !find_stock_policy(options.policy, first)) {
            return fail(errc::invalid_argument,
                        "no stock policy of that name: known are first_touch and mapped");
        }
        if (registry::is_forked_child()) {
            return fail(errc::forked, "a forked child cannot use its parent's devices");
        }
        std::unique_ptr<space_state> made{new (std::nothrow) space_state{first}};
        if (made == nullptr) {
            return fail(errc::no_memory, "the host has no memory for a space");
        }
        made->own_driver = std::move(own);
        const topology& machine =
            options.machine != nullptr ? *options.machine : machine_topology();
        for (const host_node& host : machine.hosts()) {
            if (status attached = made->core.attach_host(driver, host.id); !attached) {
                return attached;
            }
        }
        if (status attached = made->engine.attach_devices(driver); !attached) {
            return attached;
        }
        if (status trapping = made->engine.trap_cpu_faults(); !trapping) {
            return trapping;
        }
        return space{std::move(made)};
    }

    static status check_name(advice what) noexcept {
        return static_cast<unsigned>(what) <= static_cast<unsigned>(advice::unpin)
                   ? status{}
                   : fail(errc::invalid_argument, "no such advice");
    }
    result<va_range> check_advice(const void* pointer, std::size_t bytes, advice what) noexcept {
        if (status known = check_name(what); !known) {
            return known;
        }
        result<va_range> range = state_->check_range(pointer, bytes);
        // The frames of a heap never move, and what is there is another block's after a free: no pin would end.
        if (range && (what == advice::pin || what == advice::unpin) && state_->is_of_heap(*range)) {
            return fail(errc::unsupported, "memory of a heap stays on its node: it takes no pins");
        }
        return range;
    }
    struct copy_sides {
        copy_side to, from;
    };
    result<copy_sides> check_copy(const void* to, const void* from, std::size_t bytes) noexcept {
        if (status alive = state_->check_alive(); !alive) {
            return alive;
        }
        const va_range target{to_address(to), bytes};
        const va_range source{to_address(from), bytes};
        const result<copy_side> to_side = state_->check_side(target);
        if (!to_side) {
            return to_side.error();
        }
        const result<copy_side> from_side = state_->check_side(source);
        if (!from_side) {
            return from_side.error();
        }
        if (target.overlaps(source)) {
            return fail(errc::invalid_argument, "the ranges overlap");
        }
        return copy_sides{*to_side, *from_side};
    }
    std::vector<node_id> list_nodes(unsigned first, unsigned last) const {
        std::vector<node_id> found;
        for (unsigned slot = first; slot < last; ++slot) {
            found.push_back(state_->core.at_slot(slot).id);
        }
        return found;
    }
    // A forked child has its parent's records but neither its threads nor its memory: it leaves all as it is.
    struct destroyer {
        void operator()(space_state* state) const noexcept {
            if (registry::is_forked_child()) {
                return;
            }
            if (state->end()) {
                delete state;
            } else {
                std::fputs(
                    "xmm: a space is left as it is, with its memory: the OS refuses to clear a "
                    "mapping (see vm.max_map_count)\n",
                    stderr);
            }
        }
    };
    using owned_state = std::unique_ptr<space_state, destroyer>;

    owned_state state_;
};

template <class Fn>
void space::for_each_granule(Fn&& fn) const {
    address_space& core = state_->core;
    for (address from = 0; state_->check_alive();) {
        const region_glance one = core.next_region(from);
        if (one.va.is_empty()) {
            return;
        }
        from = one.va.end();
        for (address at = one.va.begin; at < one.va.end();) {
            granule_view view{.va = one.granule_at(at), .region = one.name};
            core.with_granule(at, [&](granule& page) {
                view.state = page.current();
                view.home = page.home == no_slot ? no_node : core.at_slot(page.home).id;
                for (frame_record* frame : page.frames) {
                    view.copies += frame != nullptr ? 1 : 0;
                }
                view.is_pinned = page.pins > 0 || page.is_fixed;
                view.is_used = page.is_used();
                view.is_moving = page.is_moving();
            });
            fn(static_cast<const granule_view&>(view));
            at = view.va.end();
        }
    }
}

inline result<ticket> space::copy(queue& line, void* to, const void* from,
                                  std::size_t bytes) noexcept {
    if (bytes == 0 || line.id().value == 0) {
        return line.record();
    }
    const result<copy_sides> sides = check_copy(to, from, bytes);
    if (!sides) {
        return sides.error();
    }
    for (const void* side : {static_cast<const void*>(to), from}) {
        if (status checked = state_->check_queued_side({to_address(side), bytes}); !checked) {
            return checked;
        }
    }
    xmm::node* at = state_->core.find_node(line.node());
    if (at == nullptr || &line.owner() != state_.get()) {
        return fail(errc::unknown_node, "the queue belongs to another space");
    }
    if (!at->driver.has_host_calls()) {
        return fail(errc::unsupported, "this device's queues make no host calls");
    }
    // Its pages count as used, so that an unmap waits for it.
    std::array<use, 2> uses;
    std::size_t use_count = 0;
    if (sides->to.is_unified) {
        uses[use_count++] = {{to_address(to), bytes}, access::write};
    }
    if (sides->from.is_unified) {
        uses[use_count++] = {{to_address(from), bytes}, access::read};
    }
    detail::launch_preparation marks{
        *state_, *at, {uses.data(), use_count}, use_grip::loose, false};
    if (status prepared = marks.prepare(); !prepared) {
        return prepared;
    }
    auto* one =
        new (std::nothrow) detail::queued_copy{*state_, to_address(to), to_address(from), bytes};
    if (one == nullptr) {
        return fail(errc::no_memory, "the host has no memory for a copy's record");
    }
    result<ticket> point = at->driver.call(line.id(), &detail::queued_copy::run, one);
    if (!point) {
        delete one;
        return point.error();
    }
    const ticket done = *point;
    marks.hand_over(line.id(), done);
    return done;
}

}  // namespace xmm
