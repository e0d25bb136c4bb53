// SPDX-License-Identifier: Apache-2.0
// page_table.hpp - address -> frame memory, one entry per 2 MiB page.
//
// Model    A radix tree of three levels with 9 bits each: 48-bit addresses. An entry holds a standing
//          address, the index of the node that owns it, and an access. Tables are never freed before
//          the whole tree is, so a reader needs no lock.
// Threads  Any. Entries are atomic; growth takes a leaf lock. Two writers of one page: the caller's.
// Failure  Growth draws on a reserve of addresses: `reserve` says when it is used up.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <new>

#include <sys/mman.h>

#include <xmm/core/lock.hpp>
#include <xmm/core/types.hpp>

namespace xmm::soft {

inline constexpr unsigned address_bits = 48;

// What a page table says about one page; empty is "not mapped".
struct page_entry {
    static constexpr std::size_t most_nodes = 255;

    std::uint64_t bits = 0;  // standing address | node index << 2 | access

    page_entry() = default;
    explicit page_entry(std::uint64_t raw) noexcept : bits{raw} {}
    page_entry(address standing, unsigned node_index, access who) noexcept
        : bits{standing | (std::uint64_t{node_index} << 2) | static_cast<std::uint64_t>(who)} {}

    [[nodiscard]] explicit operator bool() const noexcept { return bits != 0; }
    [[nodiscard]] address standing() const noexcept {
        return bits & ~std::uint64_t{page_bytes - 1};
    }
    [[nodiscard]] unsigned node_index() const noexcept { return (bits >> 2) & 0xff; }
    [[nodiscard]] access who() const noexcept { return static_cast<access>(bits & 3); }
    friend bool operator==(page_entry, page_entry) = default;
};

class page_table {
public:
    page_table() noexcept {
        void* at = ::mmap(nullptr, reserve_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        tables_ = at == MAP_FAILED ? nullptr : static_cast<table*>(at);
    }
    ~page_table() {
        if (tables_ != nullptr) {
            ::munmap(static_cast<void*>(tables_), reserve_bytes);
        }
    }
    page_table(const page_table&) = delete;
    page_table& operator=(const page_table&) = delete;

    [[nodiscard]] page_entry find(address at) const noexcept {
        const slot* entry = leaf_slot(at);
        // acquire: pairs with the release in `exchange`; who sees a mapping sees the frame's content.
        return entry == nullptr ? page_entry{} : page_entry{entry->load(std::memory_order_acquire)};
    }

    // Makes room for entries of the range, so that `exchange` cannot fail there.
    [[nodiscard]] bool reserve(va_range range) noexcept {
        const address last = align_down(range.end() - 1, page_bytes);
        for (address at = align_down(range.begin, leaf_bytes); at <= last; at += leaf_bytes) {
            if (leaf_slot(at) == nullptr && !grow(at)) {
                return false;
            }
        }
        return true;
    }

    // Sets the entry of the page and returns the one before. Without room only an empty entry fits.
    page_entry exchange(address at, page_entry entry) noexcept {
        slot* place = leaf_slot(at);
        XMM_ASSERT(place != nullptr || !entry, "an entry without reserve()");
        // acq_rel: release as said in `find`; acquire so that the old mapping's users are seen.
        return place == nullptr
                   ? page_entry{}
                   : page_entry{place->exchange(entry.bits, std::memory_order_acq_rel)};
    }

    [[nodiscard]] bool has_any(va_range range) const noexcept {
        for (address at = range.begin; at < range.end();) {
            if (leaf_slot(at) == nullptr) {
                at = align_down(at, leaf_bytes) + leaf_bytes;
            } else if (find(at)) {
                return true;
            } else {
                at += page_bytes;
            }
        }
        return false;
    }

private:
    using slot = std::atomic<std::uint64_t>;
    struct table {
        std::array<slot, 512> slots{};
    };
    static constexpr std::size_t leaf_bytes = page_bytes << 9;
    static constexpr std::size_t table_count = 16384;  // 4 KiB each, 1 GiB of addresses per leaf
    static constexpr std::size_t reserve_bytes = table_count * sizeof(table);

    [[nodiscard]] static std::size_t index(address at, unsigned level) noexcept {
        return (at >> (page_shift + 9 * level)) & 511;
    }
    [[nodiscard]] static table* child(const slot& one) noexcept {
        // acquire: pairs with the release in `grow`; a table is zeroed before it is found.
        return static_cast<table*>(to_pointer(one.load(std::memory_order_acquire)));
    }
    [[nodiscard]] slot* leaf_slot(address at) const noexcept {
        table* middle = child(root_.slots[index(at, 2)]);
        table* leaf = middle == nullptr ? nullptr : child(middle->slots[index(at, 1)]);
        return leaf == nullptr ? nullptr : &leaf->slots[index(at, 0)];
    }
    [[nodiscard]] table* grow_slot(slot& one) noexcept {
        if (table* there = child(one); there != nullptr) {
            return there;
        }
        if (tables_ == nullptr || used_ == table_count) {
            return nullptr;
        }
        table* fresh = ::new (static_cast<void*>(tables_ + used_++)) table;
        one.store(to_address(fresh), std::memory_order_release);  // pairs with `child`
        return fresh;
    }
    [[nodiscard]] bool grow(address at) noexcept {
        return with(growth_, [&] {
            table* middle = grow_slot(root_.slots[index(at, 2)]);
            return middle != nullptr && grow_slot(middle->slots[index(at, 1)]) != nullptr;
        });
    }

    table root_;
    ranked_mutex<lock_rank::leaf> growth_;
    table* tables_ = nullptr;  // (C)
    std::size_t used_ = 0;     // under growth_
};

}  // namespace xmm::soft
