// SPDX-License-Identifier: Apache-2.0
// space_port.hpp - a space as the resources see it: whole pages in, whole pages out, and its queues.
//
// Model    A pointer to the space and to a constant table of functions: resources lie below the facade
//          and cannot name the type that users hold. The space outlives every port to it.
// Threads  Every function may be called from any thread, with no lock of ours held.
// Failure  Nothing throws: a status or a result says what went wrong.
#pragma once

#include <xmm/concepts/resource.hpp>
#include <xmm/resources/out_of_memory.hpp>

namespace xmm {

struct page_request {
    std::size_t bytes = 0;               // rounded up to pages
    std::size_t alignment = page_bytes;  // a power of two; above page_bytes it may be unsupported
    std::size_t granule_bytes = 0;       // 0: the default of the space
    node_id preferred = no_node;         // where the pages rather live
    node_id fixed = no_node;             // lives there and never moves: device-only or page-locked
    const char* name = "";               // static text for reports
};

// The queues of a space, for those who order reuse by streams.
struct queue_table {
    result<ticket> (*record)(void* self, queue_id queue) noexcept;  // all work submitted so far
    bool (*is_done)(void* self, ticket point) noexcept;
    status (*wait)(void* self, ticket point) noexcept;
};

class xpu_malloc;

struct space_table {
    result<void*> (*map)(void* self, const page_request& request) noexcept;  // zero-filled
    status (*unmap)(void* self, void* pointer) noexcept;                     // the start of a map
    // A hint; the pages may come after the call has returned.
    status (*prefetch)(void* self, node_id node, void* pointer, std::size_t bytes) noexcept;
    resource_usage (*usage)(void* self, node_id node) noexcept;
    reach (*reach_of)(void* self, node_id node) noexcept;  // host, device; none: no such node
    queue_table queues;
    // The malloc of a node; null where there is none behind this port.
    result<xpu_malloc*> (*heap)(void* self, node_id node) noexcept = nullptr;
};

class queue_port {
public:
    queue_port() = default;
    queue_port(void* self, const queue_table& table) noexcept : self_{self}, table_{&table} {}

    [[nodiscard]] explicit operator bool() const noexcept { return table_ != nullptr; }
    [[nodiscard]] result<ticket> record(queue_id queue) const noexcept {
        return table_->record(self_, queue);
    }
    [[nodiscard]] bool is_done(ticket point) const noexcept {
        return table_->is_done(self_, point);
    }
    status wait(ticket point) const noexcept { return table_->wait(self_, point); }

private:
    void* self_ = nullptr;
    const queue_table* table_ = nullptr;
};

class space_port {
public:
    space_port() = default;
    space_port(void* self, const space_table& table) noexcept : self_{self}, table_{&table} {}

    [[nodiscard]] explicit operator bool() const noexcept { return self_ != nullptr; }
    friend bool operator==(space_port a, space_port b) noexcept { return a.self_ == b.self_; }

    result<void*> map(const page_request& request) const noexcept {
        return table_->map(self_, request);
    }
    status unmap(void* pointer) const noexcept { return table_->unmap(self_, pointer); }
    status prefetch(node_id node, void* pointer, std::size_t bytes) const noexcept {
        return table_->prefetch(self_, node, pointer, bytes);
    }
    [[nodiscard]] resource_usage usage(node_id node) const noexcept {
        return table_->usage(self_, node);
    }
    [[nodiscard]] reach reach_of(node_id node) const noexcept {
        return table_->reach_of(self_, node);
    }
    [[nodiscard]] queue_port queues() const noexcept { return {self_, table_->queues}; }
    // unsupported where there is none.
    [[nodiscard]] result<xpu_malloc*> heap(node_id node) const noexcept {
        return table_->heap != nullptr
                   ? table_->heap(self_, node)
                   : result<xpu_malloc*>{fail(errc::unsupported, "no heap behind this port")};
    }

private:
    void* self_ = nullptr;
    const space_table* table_ = nullptr;
};

}  // namespace xmm
