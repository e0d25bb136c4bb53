// SPDX-License-Identifier: Apache-2.0
// radix_tree.hpp - address -> page record, for addresses below 2^48.
//
// Model    Two levels, one slot per 2 MiB page. Leaves are made on demand and stay until the tree goes.
// Threads  find() takes no lock and may run in a signal handler. insert() and erase() hold the tree lock.
// Failure  insert() is all or nothing.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <new>

#include <xmm/core/lock.hpp>
#include <xmm/core/status.hpp>
#include <xmm/core/types.hpp>

namespace xmm {

template <class Record>
class radix_tree {
public:
    static constexpr unsigned address_bits = 48;
    static constexpr unsigned leaf_bits = 13;  // 16 GiB of address a leaf, 64 KiB of table
    static constexpr unsigned root_bits = address_bits - page_shift - leaf_bits;
    static constexpr std::size_t leaf_slots = std::size_t{1} << leaf_bits;
    static constexpr std::size_t root_slots = std::size_t{1} << root_bits;

    radix_tree() = default;
    radix_tree(const radix_tree&) = delete;
    radix_tree& operator=(const radix_tree&) = delete;
    ~radix_tree() {
        for (auto& slot : root_) {
            // relaxed: nobody else may use a tree that is being destroyed.
            if (leaf* one = slot.load(std::memory_order_relaxed)) {
                ::munmap(one, sizeof(leaf));
            }
        }
    }

    [[nodiscard]] static constexpr bool covers(va_range range) noexcept {
        return range.end() <= address{1} << address_bits && range.end() >= range.begin;
    }

    [[nodiscard]] Record* find(address at) const noexcept {
        if (at >> address_bits != 0) {
            return nullptr;
        }
        // acquire: pairs with the release in leaf_of_locked; a leaf is complete before it is found.
        const leaf* one = root_[at >> (page_shift + leaf_bits)].load(std::memory_order_acquire);
        if (one == nullptr) {
            return nullptr;
        }
        // acquire: pairs with the release in insert; a record is complete before it is found.
        return one->slots[(at >> page_shift) & (leaf_slots - 1)].load(std::memory_order_acquire);
    }

    // Every page of the range leads to the record. The pages must be free, the ends page-aligned.
    [[nodiscard]] status insert(va_range range, Record& record) noexcept {
        XMM_ASSERT(covers(range), "address beyond the tree");
        std::lock_guard guard{lock_};
        for (address at = range.begin; at < range.end(); at += page_bytes) {
            if (leaf_of_locked(at) == nullptr) {
                return fail(errc::no_memory, "the host has no memory for the map's tables");
            }
        }
        for (address at = range.begin; at < range.end(); at += page_bytes) {
            auto& slot = leaf_of_locked(at)->slots[(at >> page_shift) & (leaf_slots - 1)];
            XMM_ASSERT(slot.load(std::memory_order_relaxed) == nullptr, "page mapped twice");
            // release: pairs with the acquire in find; a record is complete before it is found.
            slot.store(&record, std::memory_order_release);
        }
        return {};
    }

    void erase(va_range range) noexcept {
        std::lock_guard guard{lock_};
        for (address at = range.begin; at < range.end(); at += page_bytes) {
            if (leaf* one = root_[at >> (page_shift + leaf_bits)].load(std::memory_order_relaxed)) {
                // relaxed: whoever still finds the record checks it under its lock.
                one->slots[(at >> page_shift) & (leaf_slots - 1)].store(nullptr,
                                                                        std::memory_order_relaxed);
            }
        }
    }

private:
    struct leaf {
        std::atomic<Record*> slots[leaf_slots];
    };

    leaf* leaf_of_locked(address at) noexcept {
        auto& slot = root_[at >> (page_shift + leaf_bits)];
        leaf* one = slot.load(std::memory_order_relaxed);  // relaxed: written under this lock only
        if (one == nullptr) {
            void* memory = ::mmap(nullptr, sizeof(leaf), PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (memory == MAP_FAILED) {
                return nullptr;
            }
            one = ::new (memory) leaf();  // all null
            // release: pairs with the acquire in find.
            slot.store(one, std::memory_order_release);
        }
        return one;
    }

    ranked_mutex<lock_rank::tree> lock_;        // guards growth and all stores
    std::atomic<leaf*> root_[root_slots] = {};  // 2^14 pointers: 128 KiB
};

}  // namespace xmm
