// SPDX-License-Identifier: Apache-2.0
// backend_table.hpp - a backend behind function pointers, as the floors above hold it.
//
// Model    One constant table per backend type; backend_ref is a pointer to the backend and to its
//          table. Called per run or per batch, never per lookup.
// Threads  As the backend's operators.
#pragma once

#include <cstring>

#include <xmm/concepts/backend.hpp>

namespace xmm {

struct backend_table {
    // What kernels are launched through, for those who know the kind; "" without a launcher of ours.
    const char* native_kind = "";
    void* (*native)(void*) noexcept = nullptr;
    std::span<const node_id> (*nodes)(void*) noexcept;
    result<node_description> (*describe)(void*, node_id) noexcept;
    result<va_range> (*va_examine)(void*, va_range, std::size_t) noexcept;
    void (*va_release)(void*, va_range) noexcept;
    result<queue_id> (*queue_create)(void*, node_id, queue_priority) noexcept;
    void (*queue_destroy)(void*, queue_id) noexcept;
    result<ticket> (*memcpy)(void*, queue_id, std::span<const piece>) noexcept;
    result<ticket> (*zero)(void*, queue_id, std::span<const va_range>) noexcept;
    bool (*is_done)(void*, ticket) noexcept;
    status (*wait)(void*, ticket) noexcept;
    result<ticket> (*record)(void*, queue_id) noexcept;
    status (*make_wait)(void*, queue_id, ticket) noexcept;
    // Null where the backend steers a driver.
    result<frame> (*frame_create)(void*, node_id, std::size_t) noexcept;
    void (*frame_drop)(void*, frame) noexcept;
    progress (*pmap_enter)(void*, node_id, std::span<const run>) noexcept;
    progress (*pmap_clear)(void*, node_id, std::span<const va_range>) noexcept;
    // Null where the backend owns frames.
    result<ticket> (*place)(void*, queue_id, std::span<const va_range>, node_id) noexcept;
    status (*advise)(void*, std::span<const va_range>, driver_advice, node_id) noexcept;
    status (*residency)(void*, std::span<const va_range>, std::span<node_id>) noexcept;
    result<ticket> (*discard)(void*, queue_id, std::span<const va_range>) noexcept;
    // Null without the ability.
    status (*on_device_fault)(void*, device_fault_sink) noexcept;
    void (*off_device_fault)(void*, void*) noexcept;
    result<ticket> (*call)(void*, queue_id, void (*)(void*) noexcept, void*) noexcept;
    result<std::size_t> (*free_bytes)(void*, node_id) noexcept;
};

namespace detail {

template <backend B>
constexpr backend_table make_backend_table() noexcept {
    backend_table t{};
    t.nodes = [](void* b) noexcept { return static_cast<B*>(b)->nodes(); };
    t.describe = [](void* b, node_id n) noexcept { return static_cast<B*>(b)->describe(n); };
    t.va_examine = [](void* b, va_range r, std::size_t a) noexcept {
        return static_cast<B*>(b)->va_examine(r, a);
    };
    t.va_release = [](void* b, va_range r) noexcept { static_cast<B*>(b)->va_release(r); };
    t.queue_create = [](void* b, node_id n, queue_priority p) noexcept {
        return static_cast<B*>(b)->queue_create(n, p);
    };
    t.queue_destroy = [](void* b, queue_id q) noexcept { static_cast<B*>(b)->queue_destroy(q); };
    t.memcpy = [](void* b, queue_id q, std::span<const piece> p) noexcept {
        return static_cast<B*>(b)->memcpy(q, p);
    };
    t.zero = [](void* b, queue_id q, std::span<const va_range> r) noexcept {
        return static_cast<B*>(b)->zero(q, r);
    };
    t.is_done = [](void* b, ticket p) noexcept { return static_cast<B*>(b)->is_done(p); };
    t.wait = [](void* b, ticket p) noexcept { return static_cast<B*>(b)->wait(p); };
    t.record = [](void* b, queue_id q) noexcept { return static_cast<B*>(b)->record(q); };
    t.make_wait = [](void* b, queue_id q, ticket p) noexcept {
        return static_cast<B*>(b)->make_wait(q, p);
    };
    if constexpr (owns_frames<B>) {
        t.frame_create = [](void* b, node_id n, std::size_t bytes) noexcept {
            return static_cast<B*>(b)->frame_create(n, bytes);
        };
        t.frame_drop = [](void* b, frame f) noexcept { static_cast<B*>(b)->frame_drop(f); };
        t.pmap_enter = [](void* b, node_id n, std::span<const run> r) noexcept {
            return static_cast<B*>(b)->pmap_enter(n, r);
        };
        t.pmap_clear = [](void* b, node_id n, std::span<const va_range> r) noexcept {
            return static_cast<B*>(b)->pmap_clear(n, r);
        };
    } else {
        t.place = [](void* b, queue_id q, std::span<const va_range> r, node_id n) noexcept {
            return static_cast<B*>(b)->place(q, r, n);
        };
        t.advise = [](void* b, std::span<const va_range> r, driver_advice a, node_id n) noexcept {
            return static_cast<B*>(b)->advise(r, a, n);
        };
        t.residency = [](void* b, std::span<const va_range> r, std::span<node_id> w) noexcept {
            return static_cast<B*>(b)->residency(r, w);
        };
        t.discard = [](void* b, queue_id q, std::span<const va_range> r) noexcept {
            return static_cast<B*>(b)->discard(q, r);
        };
    }
    if constexpr (requires(B& b) {
                      { b.native() } noexcept -> std::convertible_to<void*>;
                      B::native_kind;
                  }) {
        t.native_kind = B::native_kind;
        t.native = [](void* b) noexcept -> void* { return static_cast<B*>(b)->native(); };
    }
    if constexpr (takes_device_faults<B>) {
        t.on_device_fault = [](void* b, device_fault_sink s) noexcept {
            return static_cast<B*>(b)->on_device_fault(s);
        };
        t.off_device_fault = [](void* b, void* c) noexcept {
            static_cast<B*>(b)->off_device_fault(c);
        };
    }
    if constexpr (makes_host_calls<B>) {
        t.call = [](void* b, queue_id q, void (*fn)(void*) noexcept, void* c) noexcept {
            return static_cast<B*>(b)->call(q, fn, c);
        };
    }
    if constexpr (measures_free_memory<B>) {
        t.free_bytes = [](void* b, node_id n) noexcept {
            return static_cast<B*>(b)->free_bytes(n);
        };
    }
    return t;
}

template <backend B>
inline constexpr backend_table table_of = make_backend_table<B>();

}  // namespace detail

// Refers to a backend that outlives it.
class backend_ref {
public:
    backend_ref() = default;
    template <backend B>
    explicit backend_ref(B& one) noexcept : self_{&one}, table_{&detail::table_of<B>} {}

    [[nodiscard]] explicit operator bool() const noexcept { return self_ != nullptr; }
    friend bool operator==(backend_ref a, backend_ref b) noexcept { return a.self_ == b.self_; }

    [[nodiscard]] bool has_frames() const noexcept { return table_->frame_create != nullptr; }
    [[nodiscard]] bool has_device_faults() const noexcept {
        return table_->on_device_fault != nullptr;
    }
    [[nodiscard]] bool has_host_calls() const noexcept { return table_->call != nullptr; }
    [[nodiscard]] bool has_free_bytes() const noexcept { return table_->free_bytes != nullptr; }

    // The object of that kind beside which kernels are launched; null if this backend has none. Kinds are
    // compared as text, since each shared object has tables of its own.
    [[nodiscard]] void* native(const char* kind) const noexcept {
        return std::strcmp(table_->native_kind, kind) == 0 ? table_->native(self_) : nullptr;
    }
    std::span<const node_id> nodes() const noexcept { return table_->nodes(self_); }
    result<node_description> describe(node_id node) const noexcept {
        return table_->describe(self_, node);
    }
    result<va_range> va_examine(va_range range, std::size_t alignment) const noexcept {
        return table_->va_examine(self_, range, alignment);
    }
    void va_release(va_range range) const noexcept { table_->va_release(self_, range); }
    result<queue_id> queue_create(node_id node, queue_priority priority) const noexcept {
        return table_->queue_create(self_, node, priority);
    }
    void queue_destroy(queue_id queue) const noexcept { table_->queue_destroy(self_, queue); }
    result<ticket> memcpy(queue_id queue, std::span<const piece> pieces) const noexcept {
        return table_->memcpy(self_, queue, pieces);
    }
    result<ticket> zero(queue_id queue, std::span<const va_range> ranges) const noexcept {
        return table_->zero(self_, queue, ranges);
    }
    bool is_done(ticket point) const noexcept { return table_->is_done(self_, point); }
    status wait(ticket point) const noexcept { return table_->wait(self_, point); }
    result<ticket> record(queue_id queue) const noexcept { return table_->record(self_, queue); }
    status make_wait(queue_id queue, ticket point) const noexcept {
        return table_->make_wait(self_, queue, point);
    }
    result<frame> frame_create(node_id node, std::size_t bytes) const noexcept {
        return table_->frame_create(self_, node, bytes);
    }
    void frame_drop(frame f) const noexcept { table_->frame_drop(self_, f); }
    progress pmap_enter(node_id node, std::span<const run> runs) const noexcept {
        return table_->pmap_enter(self_, node, runs);
    }
    progress pmap_clear(node_id node, std::span<const va_range> ranges) const noexcept {
        return table_->pmap_clear(self_, node, ranges);
    }
    result<ticket> place(queue_id queue, std::span<const va_range> ranges,
                         node_id node) const noexcept {
        return table_->place(self_, queue, ranges, node);
    }
    status advise(std::span<const va_range> ranges, driver_advice what,
                  node_id node) const noexcept {
        return table_->advise(self_, ranges, what, node);
    }
    status residency(std::span<const va_range> ranges, std::span<node_id> where) const noexcept {
        return table_->residency(self_, ranges, where);
    }
    result<ticket> discard(queue_id queue, std::span<const va_range> ranges) const noexcept {
        return table_->discard(self_, queue, ranges);
    }
    status on_device_fault(device_fault_sink sink) const noexcept {
        return table_->on_device_fault(self_, sink);
    }
    void off_device_fault(void* context) const noexcept {
        table_->off_device_fault(self_, context);
    }
    result<ticket> call(queue_id queue, void (*fn)(void*) noexcept, void* context) const noexcept {
        return table_->call(self_, queue, fn, context);
    }
    result<std::size_t> free_bytes(node_id node) const noexcept {
        return table_->free_bytes(self_, node);
    }

private:
    void* self_ = nullptr;
    const backend_table* table_ = nullptr;
};

}  // namespace xmm
