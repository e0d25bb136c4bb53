// SPDX-License-Identifier: Apache-2.0
// cuda_ipc_resource.hpp - device memory that CUDA's legacy IPC can hand to another process.
//
// Model    Blocks are allocations of the driver's own (what cudaMalloc gives), whole multiples of 2 MiB so that
//          nobody else's memory shares one; pool_resource serves small blocks. They are charged to the budget of
//          the node, for which free frames are dropped and unified pages demoted; they are no memory of the space,
//          so launches need not name them. Contents are undefined. What was not given back goes with the resource.
//          Stream order is that of the other resources: a block given back on a queue is freed once that has
//          passed this point.
//          A handle is 64 bytes of the driver's and an offset. A mapping of another process's block ends with the
//          object that open() returns; it is charged to the process that owns the block.
// Threads  Any, but for a mapping: one at a time.
// Failure  allocate as space_resource says. handle_of, open and close answer a status, and nothing has changed then. A
//          block that the driver does not take back stays allocated and charged, unless its device is lost.
// See      docs/cuda.md: when to use it, and what frames offer instead.
#pragma once

#include <array>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include <xmm/cuda.hpp>
#include <xmm/facade/resource_port.hpp>
#include <xmm/resources/space_resource.hpp>

#if XMM_HAS_CUDA
namespace xmm {

// Of some memory of another process, to be sent to whoever opens it: plain bytes.
struct cuda_ipc_handle {
    std::array<unsigned char, 64> of_driver{};  // what cudaIpcGetMemHandle gives
    std::uint64_t offset = 0;  // of the memory that is meant, from where that begins
};

// Another process's memory, as long as this lives. All work that uses it is done before; the device's space lives.
class cuda_ipc_mapping {
public:
    cuda_ipc_mapping() noexcept = default;
    ~cuda_ipc_mapping() { (void)close(); }
    cuda_ipc_mapping(cuda_ipc_mapping&& from) noexcept
        : device_{std::exchange(from.device_, nullptr)},
          base_{std::exchange(from.base_, 0)},
          seen_{std::exchange(from.seen_, {})} {}
    cuda_ipc_mapping& operator=(cuda_ipc_mapping&& from) noexcept {
        if (this != &from) {
            (void)close();
            device_ = std::exchange(from.device_, nullptr);
            base_ = std::exchange(from.base_, 0);
            seen_ = std::exchange(from.seen_, {});
        }
        return *this;
    }

    // Null once it is closed. For the device alone.
    [[nodiscard]] void* data() const noexcept { return to_pointer(seen_.begin); }
    // From there to the end of the other process's block.
    [[nodiscard]] std::size_t bytes() const noexcept { return seen_.bytes; }
    [[nodiscard]] explicit operator bool() const noexcept { return device_ != nullptr; }

    // Before its time; invalid_argument: it is closed. What the driver refuses to close stays open.
    status close() noexcept {
        if (device_ == nullptr) {
            return fail(errc::invalid_argument, "the mapping is closed");
        }
        if (registry::is_forked_child()) {
            return fail(errc::forked, "this is a forked child: the mapping is its parent's");
        }
        const status closed = cuda::plain_memory{*device_}.close(base_);
        if (closed || closed.code == errc::device_lost) {
            device_ = nullptr;
            seen_ = {};
        }
        return closed;
    }

private:
    friend class cuda_ipc_resource;
    cuda_ipc_mapping(const cuda::device& on, address base, va_range seen) noexcept
        : device_{&on}, base_{base}, seen_{seen} {}

    const cuda::device* device_ = nullptr;
    address base_ = 0;
    va_range seen_{};
};

namespace detail {

// Plain memory of one device, charged to its ledger, behind the port that resources have of a space.
class plain_blocks {
public:
    plain_blocks(xmm::space& of, node_id at)
        : state_{of.state()}, node_{checked(state_, at)}, device_{device_at(node_)} {}

    plain_blocks(const plain_blocks&) = delete;
    plain_blocks& operator=(const plain_blocks&) = delete;
    // With what was never given back.
    ~plain_blocks() {
        if (registry::is_forked_child()) {
            return;
        }
        for (const auto& [begin, left] : blocks_) {
            (void)give(left.base, left.bytes);
        }
    }

    struct block {
        address base;       // of the driver's allocation, at most where the block begins
        std::size_t bytes;  // of it, from there
    };

    [[nodiscard]] space_port port() noexcept { return {this, table}; }
    [[nodiscard]] space_state& state() const noexcept { return state_; }
    [[nodiscard]] const cuda::device& device() const noexcept { return device_; }

    // invalid_argument: of none of the blocks.
    [[nodiscard]] result<block> find(address at) const noexcept {
        std::lock_guard guard{lock_};
        auto found = blocks_.upper_bound(at);
        if (found == blocks_.begin() ||
            at - (--found)->first >= found->second.bytes - (found->first - found->second.base)) {
            return fail(errc::invalid_argument, "the pointer is in no block of this resource");
        }
        return found->second;
    }

private:
    static node& checked(space_state& state, node_id at) {
        result<node*> found = state.check_node(at);
        if (!found || (*found)->is_host) {
            throw std::invalid_argument{"xmm::cuda_ipc_resource: the space has no such device"};
        }
        return **found;
    }
    static const cuda::device& device_at(const node& at) {
        auto* driver = static_cast<cuda::vmm*>(at.driver.native(cuda::vmm::native_kind));
        const cuda::device* found = driver != nullptr ? driver->device_at(at.id) : nullptr;
        if (found == nullptr) {
            throw std::invalid_argument{"xmm::cuda_ipc_resource: not a CUDA device"};
        }
        return *found;
    }
    static plain_blocks& of(void* self) noexcept { return *static_cast<plain_blocks*>(self); }

    // The driver aligns what is so large to 2 MiB; for more, or where it does not, more is taken.
    static result<void*> map(void* self, const page_request& wanted) noexcept {
        plain_blocks& me = of(self);
        if (const status alive = me.state_.check_alive(); !alive) {
            return alive;
        }
        const std::size_t bytes = align_up(wanted.bytes, page_bytes);
        const result<address> usual = me.take(bytes);
        if (!usual || *usual % wanted.alignment == 0) {
            return usual ? me.note(*usual, {*usual, bytes}) : result<void*>{usual.error()};
        }
        (void)me.give(*usual, bytes);
        const std::size_t more = bytes + wanted.alignment;
        const result<address> base = me.take(more);
        return base ? me.note(align_up(*base, wanted.alignment), {*base, more})
                    : result<void*>{base.error()};
    }
    static status unmap(void* self, void* pointer) noexcept {
        plain_blocks& me = of(self);
        // Out of the list first: once it is free, its address may be another block's.
        auto gone = with(me.lock_, [&] { return me.blocks_.extract(xmm::to_address(pointer)); });
        if (gone.empty()) {
            return fail(errc::invalid_argument, "no block of this resource begins there");
        }
        const status freed = me.give(gone.mapped().base, gone.mapped().bytes);
        if (!freed) {
            with(me.lock_, [&] { me.blocks_.insert(std::move(gone)); });
        }
        return freed;
    }
    static status prefetch(void*, node_id, void*, std::size_t) noexcept {
        return fail(errc::unsupported, "plain device memory stays where it is");
    }
    static resource_usage usage(void* self, node_id at) noexcept {
        return port_functions::usage(&of(self).state_, at);
    }
    static reach reach_of(void* self, node_id at) noexcept {
        return at == of(self).node_.id ? reach::device : reach::none;
    }
    static result<ticket> record(void* self, queue_id queue) noexcept {
        return port_functions::record(&of(self).state_, queue);
    }
    static bool is_done(void* self, ticket point) noexcept {
        return port_functions::is_done(&of(self).state_, point);
    }
    static status wait(void* self, ticket point) noexcept {
        return port_functions::wait(&of(self).state_, point);
    }
    static constexpr space_table table{&map,   &unmap,    &prefetch,
                                       &usage, &reach_of, {&record, &is_done, &wait}};

    // Charged before the driver is asked, which may have less than the ledger believes.
    [[nodiscard]] result<address> take(std::size_t bytes) noexcept {
        reclaimer& frames = state_.engine.frames;
        const result<ledger::change> charged = frames.reserve(node_, bytes);
        if (!charged) {
            return charged.error();
        }
        for (unsigned attempt = 0;; ++attempt) {
            result<address> made = cuda::plain_memory{device_}.allocate(bytes);
            if (made) {
                return made;
            }
            // A bound, since what pages give up somebody else may take.
            const bool is_full = made.code() == errc::no_memory && attempt < 64;
            if (!is_full || (!node_.book->drop_free_frame() && frames.reclaim(node_, bytes) == 0)) {
                node_.book->release(bytes);
                return made;
            }
            while (node_.book->drop_free_frame()) {
            }
        }
    }
    // What a lost device had is nobody's any more.
    status give(address base, std::size_t bytes) noexcept {
        const ledger::change under_way{*node_.book};
        const status freed = cuda::plain_memory{device_}.free(base);
        if (!freed && freed.code != errc::device_lost) {
            return freed;
        }
        node_.book->release(bytes);
        return {};
    }
    [[nodiscard]] result<void*> note(address begin, block what) noexcept {
        try {
            with(lock_, [&] { blocks_.emplace(begin, what); });
            return to_pointer(begin);
        } catch (const std::bad_alloc&) {
            (void)give(what.base, what.bytes);
            return fail(errc::no_memory, "the host has no memory for a record of the block");
        }
    }

    space_state& state_;
    node& node_;
    const cuda::device& device_;
    mutable ranked_mutex<lock_rank::leaf> lock_;
    std::map<address, block> blocks_;  // under lock_, by where they begin
};

// Before the resource, which gives blocks back when it ends.
struct has_plain_blocks {
    plain_blocks blocks;
    has_plain_blocks(xmm::space& of, node_id at) : blocks{of, at} {}
};

}  // namespace detail

class cuda_ipc_resource final : private detail::has_plain_blocks,
                                public space_resource<reach::device> {
public:
    static constexpr reach static_reach = reach::device;

    // A CUDA device of the space, in either mode. Throws std::invalid_argument where it is none.
    cuda_ipc_resource(xmm::space& of, node_id device)
        : has_plain_blocks{of, device},
          space_resource{"cuda ipc", device, blocks.port(), {.fixed = device}} {}

    // For another process of this machine. Of a pointer into a block that has not been given back: the handle is
    // good until then. cudaIpcOpenMemHandle takes its 64 bytes; what is meant lies `offset` behind what that gives.
    [[nodiscard]] result<cuda_ipc_handle> handle_of(const void* pointer) const noexcept {
        if (const status alive = blocks.state().check_alive(); !alive) {
            return alive;
        }
        const address at = xmm::to_address(pointer);
        const result<detail::plain_blocks::block> found = blocks.find(at);
        if (!found) {
            return found.error();
        }
        const auto made = cuda::plain_memory{blocks.device()}.handle_of(found->base);
        if (!made) {
            return made.error();
        }
        cuda_ipc_handle out;
        static_assert(sizeof out.of_driver == sizeof made->reserved);
        std::memcpy(out.of_driver.data(), made->reserved, sizeof made->reserved);
        out.offset = at - found->base;
        return out;
    }
    // Another process's memory on this device, or reached from it. invalid_argument: not such a handle, or of this
    // very process; no_memory: the other process has freed it, or ended.
    [[nodiscard]] result<cuda_ipc_mapping> open(const cuda_ipc_handle& handle) const noexcept {
        if (const status alive = blocks.state().check_alive(); !alive) {
            return alive;
        }
        cuda::CUipcMemHandle of_driver{};
        std::memcpy(of_driver.reserved, handle.of_driver.data(), sizeof of_driver.reserved);
        const cuda::plain_memory memory{blocks.device()};
        const result<va_range> opened = memory.open(of_driver);
        if (!opened) {
            return opened.error();
        }
        if (handle.offset >= opened->bytes) {
            (void)memory.close(opened->begin);
            return fail(errc::invalid_argument, "the handle's offset is outside of its memory");
        }
        return cuda_ipc_mapping{blocks.device(),
                                opened->begin,
                                {opened->begin + handle.offset, opened->bytes - handle.offset}};
    }
};

}  // namespace xmm
#endif
