// SPDX-License-Identifier: Apache-2.0
// space.hpp - one memory over the host and its devices, as users hold it.
//
// Model    A space is addresses that host and devices share: one pointer, valid on every node. Pages of
//          2 MiB move between nodes; granules of one or more pages move as one. The handle is moved, not
//          copied; queues and resources made from it must go before it.
// Threads  Any, except where a destructor runs.
// Failure  Every call validates what it is given and answers a status or result; only those that return a
//          std::vector throw, std::bad_alloc. On failure nothing has changed, unless the call says so.
//          A moved-from space may only be destroyed.
// See      api.hpp: the same on the default space, under the names of GMEM.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include <xmm/facade/launch_preparation.hpp>
#include <xmm/facade/queue.hpp>
#include <xmm/facade/space_state.hpp>

namespace xmm {

struct space_options {
    const char* policy = "first_touch";  // or "mapped"
    const topology* machine = nullptr;   // whose hosts to attach; null: this machine's
};

// What one node of a space holds now. Bytes.
struct node_usage {
    node_id node = no_node;
    std::size_t limit = 0;  // what xmm may hold there: the lesser of budget and capacity
    std::size_t budget = 0;
    std::size_t used = 0;         // frames of all spaces of this process, free ones included
    std::size_t free_frames = 0;  // this space's, kept for the next request
    std::size_t peak = 0;         // highest `used` so far
};

struct node_statistics {
    node_usage usage;
    node_counters counters;
};

struct space_statistics {
    std::array<node_statistics, max_slots> nodes{};
    unsigned count = 0;

    [[nodiscard]] const node_statistics* begin() const noexcept { return nodes.data(); }
    [[nodiscard]] const node_statistics* end() const noexcept { return nodes.data() + count; }
};

// One granule at a glance.
struct granule_view {
    va_range va;
    residency state = residency::untouched;
    node_id home = no_node;  // where the data is; no_node: nowhere yet
    unsigned copies = 0;     // frames with the data, the home's included
    bool is_pinned = false;
    bool is_used = false;  // named by launches that are not known to be finished
    bool is_moving = false;
    std::array<char, 32> region{};  // its region's name, NUL-terminated
};

// Work of xmm's own that goes on after a call returned.
class completion {
public:
    completion() = default;
    explicit completion(std::shared_ptr<prefetch_job> job) noexcept : job_{std::move(job)} {}
    [[nodiscard]] bool is_done() const noexcept { return job_ == nullptr || job_->is_done(); }
    void wait() const noexcept {
        if (job_ != nullptr) {
            job_->wait();
        }
    }

private:
    std::shared_ptr<prefetch_job> job_;
};

// While it lives, the range is resident on the host and stays there: for system calls and other code
// that no fault can help. Devices that touch it meanwhile map it over the link.
class host_access {
public:
    host_access(host_access&& other) noexcept
        : state_{std::exchange(other.state_, nullptr)}, range_{other.range_} {}
    host_access(const host_access&) = delete;
    host_access& operator=(const host_access&) = delete;
    host_access& operator=(host_access&&) = delete;
    ~host_access() {
        if (state_ != nullptr) {
            state_->engine.hints.release_hold(range_);
        }
    }

private:
    friend class space;
    host_access(space_state& state, va_range range) noexcept : state_{&state}, range_{range} {}
    space_state* state_;
    va_range range_;
};

class space {
public:
    // This machine's hosts and the best vendor's devices.
    [[nodiscard]] static result<space> create(space_options options = {}) noexcept {
        result<soft::driver*> driver = registry::object<detail::default_soft_devices>().driver();
        if (!driver) {
            return driver.error();
        }
        return create_on(**driver, options);
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
        std::lock_guard guard{state_->attach_order};
        return state_->engine.attach_devices(backend_ref{driver});
    }

    // ---- memory

    // Zero-filled memory for all nodes: whole pages, aligned to at least a page (2 MiB). No frame is taken
    // before the first touch, except for `fixed` memory.
    [[nodiscard]] result<void*> map(std::size_t bytes, const map_options& wanted = {}) noexcept {
        if (status checked = check_map(bytes, wanted); !checked) {
            return checked;
        }
        result<region*> made = state_->core.map(bytes, wanted);
        if (!made) {
            return made.error();
        }
        region& one = **made;
        if (wanted.fixed != no_node) {
            const status filled =
                state_->engine.hints.make_resident(state_->core.find_place(wanted.fixed), one.va);
            if (!filled) {
                static_cast<void>(unmap(to_pointer(one.va.begin)));
                return filled;
            }
        }
        return to_pointer(one.va.begin);
    }

    // Takes what map returned. Waits for launches that name the range, and for moves and holds.
    // no_memory: the OS refused to take mappings back; the region is still there, partly emptied.
    status unmap(void* pointer) noexcept {
        if (status alive = state_->check_alive(); !alive) {
            return alive;
        }
        region* leaving = state_->core.claim_for_unmap(to_address(pointer));
        if (leaving == nullptr) {
            return fail(errc::not_mapped, "no region of this space starts there");
        }
        return state_->engine.releases.release(*leaving);
    }

    // Whether the address belongs to this space. Lock-free.
    [[nodiscard]] bool contains(const void* pointer) const noexcept {
        return state_->core.find(to_address(pointer)) != nullptr;
    }
    // The node that has the data of that address; no_node if it was never touched.
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

    // gmadvise: see placement/advise.hpp for what each hint does. will_need returns when the pages are there.
    status advise(node_id node, void* pointer, std::size_t bytes, advice what) noexcept {
        result<place> to = state_->check_place(node);
        result<va_range> range = check_advice(pointer, bytes, what);
        if (!to || !range) {
            return to ? range.error() : to.error();
        }
        return state_->engine.hints.advise(*to, *range, what);
    }
    // will_need on the prefetch threads, while kernels run; other hints are done at once.
    [[nodiscard]] result<completion> advise_async(node_id node, void* pointer, std::size_t bytes,
                                                  advice what) noexcept {
        if (what != advice::will_need) {
            const status outcome = advise(node, pointer, bytes, what);
            return outcome ? result<completion>{completion{}} : result<completion>{outcome};
        }
        result<place> to = state_->check_place(node);
        result<va_range> range = state_->check_range(pointer, bytes);
        if (!to || !range) {
            return to ? range.error() : to.error();
        }
        auto job = state_->engine.early.start(*range, *to);
        if (job == nullptr) {
            return fail(errc::no_memory, "the host has no memory for a prefetch");
        }
        return completion{std::move(job)};
    }

    // gmemcpy: between any two pointers, unified, device-only, page-locked or plain, at any alignment. Ranges
    // that overlap are refused. Zero bytes copy nothing and look at no pointer. On a failure in the middle
    // the destination's contents are undefined.
    status copy(void* to, const void* from, std::size_t bytes) noexcept {
        if (bytes == 0) {
            return {};
        }
        if (status checked = check_copy(to, from, bytes); !checked) {
            return checked;
        }
        return state_->engine.copies.copy(to_address(to), to_address(from), bytes);
    }
    // The same in the order of a queue; the ticket is reached when the bytes are there. What fails then
    // shows in copy_failures(): the queue goes on.
    [[nodiscard]] result<ticket> copy(queue& line, void* to, const void* from,
                                      std::size_t bytes) noexcept;

    // After no_memory: which node had no room, for how much, what is used, the limit and the cause.
    [[nodiscard]] shortage last_shortage() const noexcept {
        return state_->engine.frames.last_shortage();
    }

    // How many copies in queue order have failed.
    [[nodiscard]] std::uint64_t copy_failures() const noexcept {
        return state_->copy_failures.load(std::memory_order_relaxed);  // relaxed: a counter
    }

    // Every page of the range on that node when it returns; nothing keeps it there.
    status make_resident(void* pointer, std::size_t bytes, node_id node) noexcept {
        result<place> to = state_->check_place(node);
        result<va_range> range = state_->check_range(pointer, bytes);
        if (!to || !range) {
            return to ? range.error() : to.error();
        }
        return state_->engine.hints.make_resident(*to, *range);
    }
    // Brings the range to some host and holds it there while what it returns lives.
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
    // What xmm may hold on a node, in this process. Lowering it demotes pages at once; busy: pinned or
    // used pages keep the node above it for now.
    status set_budget(node_id id, std::size_t bytes) noexcept {
        result<xmm::node*> found = state_->check_node(id);
        if (!found) {
            return found.error();
        }
        (*found)->book->set_budget(bytes);
        return state_->engine.frames.shrink_to_limit(**found)
                   ? status{}
                   : fail(errc::busy, "pages that cannot move keep the node above its budget");
    }
    // In bytes, now; the figures are read one after another.
    [[nodiscard]] result<node_usage> usage(node_id id) const noexcept {
        result<xmm::node*> found = state_->check_node(id);
        return found ? result<node_usage>{usage_of(**found)} : result<node_usage>{found.error()};
    }
    [[nodiscard]] space_statistics statistics() const noexcept {
        space_statistics all;
        for (; all.count < state_->core.node_count(); ++all.count) {
            xmm::node& one = state_->core.at_slot(all.count);
            all.nodes[all.count] = {usage_of(one), one.counters()};
        }
        return all;
    }
    // A queue of a device: invalid_argument on a host. The space outlives it.
    [[nodiscard]] result<queue> make_queue(
        node_id id, queue_priority priority = queue_priority::normal) noexcept {
        result<xmm::node*> found = state_->check_node(id);
        if (!found) {
            return found.error();
        }
        if ((*found)->is_host) {
            return fail(errc::invalid_argument, "queues belong to devices");
        }
        result<queue_id> made = (*found)->driver.queue_create((*found)->id, priority);
        if (!made) {
            return made.error();
        }
        return queue{*state_, state_->core.uses(), (*found)->driver, (*found)->id, *made};
    }

    // ---- policy, and a look inside

    status set_policy(const char* name) noexcept {
        policy_ref found;
        if (name == nullptr || !find_stock_policy(name, found)) {
            return fail(errc::invalid_argument, "no stock policy of that name");
        }
        return set_policy(found);
    }
    // The policy outlives the space, or the next set_policy.
    status set_policy(policy_ref next) noexcept {
        if (status alive = state_->check_alive(); !alive) {
            return alive;
        }
        state_->engine.faults.set_policy(next);
        return {};
    }
    [[nodiscard]] const char* policy_name() const noexcept {
        return state_->engine.faults.current_policy().name();
    }
    // fn(const granule_view&) for every granule, in the order of addresses; each is exact, all together are
    // not. No lock is held: fn may call the space, and regions that it maps may be missed.
    template <class Fn>
    void for_each_granule(Fn&& fn) const noexcept;
    // All records are consistent. Slow: for tests and debugging.
    [[nodiscard]] bool is_valid() const noexcept { return state_->core.is_valid(); }

    [[nodiscard]] space_state& state() noexcept { return *state_; }

private:
    explicit space(std::unique_ptr<space_state> state) noexcept : state_{state.release()} {}

    static result<space> create_from(backend_ref driver, const space_options& options,
                                     std::unique_ptr<soft::driver> own) noexcept {
        policy_ref first;
        if (options.policy == nullptr || !find_stock_policy(options.policy, first)) {
            return fail(errc::invalid_argument, "no stock policy of that name");
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

    status check_map(std::size_t bytes, const map_options& wanted) noexcept {
        if (status alive = state_->check_alive(); !alive) {
            return alive;
        }
        if (bytes == 0) {
            return fail(errc::invalid_argument, "nothing to map: zero bytes");
        }
        if (bytes > SIZE_MAX / 2) {
            return fail(errc::no_memory, "more bytes than there are addresses");
        }
        if (wanted.granule_bytes != 0 &&
            (!std::has_single_bit(wanted.granule_bytes) || wanted.granule_bytes < page_bytes ||
             wanted.granule_bytes > largest_frame_bytes)) {
            return fail(errc::invalid_argument, "a granule is a power of two from 2 to 512 MiB");
        }
        if (!std::has_single_bit(wanted.alignment)) {
            return fail(errc::invalid_argument, "an alignment is a power of two");
        }
        for (node_id named : {wanted.preferred, wanted.fixed}) {
            if (named != no_node && state_->core.find_node(named) == nullptr) {
                return fail(errc::unknown_node, "no such node is attached to this space");
            }
        }
        return wanted.name == nullptr ? fail(errc::invalid_argument, "a name is not null")
                                      : status{};
    }
    result<va_range> check_advice(const void* pointer, std::size_t bytes, advice what) noexcept {
        if (static_cast<unsigned>(what) > static_cast<unsigned>(advice::unpin)) {
            return fail(errc::invalid_argument, "no such advice");
        }
        return state_->check_range(pointer, bytes);
    }
    status check_copy(const void* to, const void* from, std::size_t bytes) noexcept {
        if (status alive = state_->check_alive(); !alive) {
            return alive;
        }
        const va_range target{to_address(to), bytes};
        const va_range source{to_address(from), bytes};
        for (va_range side : {target, source}) {
            if (status checked = state_->check_side(side); !checked) {
                return checked;
            }
        }
        return target.overlaps(source) ? fail(errc::invalid_argument, "the ranges overlap")
                                       : status{};
    }
    std::vector<node_id> list_nodes(unsigned first, unsigned last) const {
        std::vector<node_id> found;
        for (unsigned slot = first; slot < last; ++slot) {
            found.push_back(state_->core.at_slot(slot).id);
        }
        return found;
    }
    static node_usage usage_of(xmm::node& one) noexcept {
        return {one.id,           one.book->limit(),     one.book->budget(),
                one.book->used(), one.pool.free_bytes(), one.book->peak()};
    }

    // A forked child has its parent's records but neither its threads nor its memory: it leaves all as it is.
    struct destroyer {
        void operator()(space_state* state) const noexcept {
            if (!registry::is_forked_child()) {
                delete state;
            }
        }
    };
    using owned_state = std::unique_ptr<space_state, destroyer>;

    owned_state state_;
};

template <class Fn>
void space::for_each_granule(Fn&& fn) const noexcept {
    address_space& core = state_->core;
    for (address from = 0;;) {
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

namespace detail {

// A copy that waits for its turn in a queue.
struct queued_copy {
    space_state& state;
    address to;
    address from;
    std::size_t bytes;

    static void run(void* self) noexcept {
        std::unique_ptr<queued_copy> one{static_cast<queued_copy*>(self)};
        // Checked once more: plain memory may have gone since.
        status outcome = one->state.check_side({one->to, one->bytes});
        outcome = outcome ? one->state.check_side({one->from, one->bytes}) : outcome;
        if (!outcome || !one->state.engine.copies.copy(one->to, one->from, one->bytes)) {
            // relaxed: a counter.
            one->state.copy_failures.fetch_add(1, std::memory_order_relaxed);
        }
    }
};

}  // namespace detail

inline result<ticket> space::copy(queue& line, void* to, const void* from,
                                  std::size_t bytes) noexcept {
    if (bytes == 0 || line.id().value == 0) {
        return line.record();
    }
    if (status checked = check_copy(to, from, bytes); !checked) {
        return checked;
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
    for (const use& side : {use{{to_address(to), bytes}, access::write},
                            use{{to_address(from), bytes}, access::read}}) {
        if (state_->core.find(side.range.begin) != nullptr) {
            uses[use_count++] = side;
        }
    }
    detail::launch_preparation marks{*state_, *at, {uses.data(), use_count}, use_grip::loose};
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
    marks.hand_over(done);
    return done;
}

namespace detail {

class default_space_holder {
public:
    static constexpr const char* registry_key = "default_space/1";
    default_space_holder() : made_{space::create()} {}
    [[nodiscard]] result<space>& get() noexcept { return made_; }

private:
    result<space> made_;
};

}  // namespace detail

// The process-wide space, shared by all shared objects, made at the first call and never destroyed.
// Ends the program with the reason if it cannot be made.
[[nodiscard]] inline space& default_space() {
    return registry::object<detail::default_space_holder>().get().value();
}

}  // namespace xmm
