// SPDX-License-Identifier: Apache-2.0
// slab.hpp - records of one type, drawn from the slab's own memory.
//
// Model    Records come from chunks of OS memory and go back to a free list; a chunk returns to the OS
//          only with the slab. So a stale pointer still points to a record of that type: lock it, then
//          ask whether it is still the one that was meant.
// Threads  Any. One leaf lock guards the free list.
// Failure  make() answers nullptr when the OS has no memory; nothing here calls malloc, so the fault
//          path may use it.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <utility>

#include <xmm/core/lock.hpp>

namespace xmm {

template <class T>
class slab {
public:
    slab() = default;
    slab(const slab&) = delete;
    slab& operator=(const slab&) = delete;
    ~slab() {
        for (chunk* at = chunks_; at != nullptr;) {
            chunk* next = at->next;
            for (std::size_t i = 0; i < at->made; ++i) {
                at->cells()[i].record()->~T();
            }
            ::munmap(at, chunk_bytes);
            at = next;
        }
    }

    // A record that was given back keeps its old contents: the caller resets it.
    [[nodiscard]] T* make() noexcept {
        std::lock_guard guard{lock_};
        if (free_ != nullptr) {
            cell* taken = free_;
            free_ = taken->next;
            ++live_;
            return taken->record();
        }
        if (chunks_ == nullptr || chunks_->made == cells_per_chunk) {
            if (!grow_locked()) {
                return nullptr;
            }
        }
        cell* fresh = chunks_->cells() + chunks_->made++;
        ++live_;
        return ::new (static_cast<void*>(fresh->storage)) T();
    }

    void give_back(T* record) noexcept {
        std::lock_guard guard{lock_};
        cell* freed =
            reinterpret_cast<cell*>(reinterpret_cast<char*>(record) - offsetof(cell, storage));
        freed->next = free_;
        free_ = freed;
        --live_;
    }

    [[nodiscard]] std::size_t live() const noexcept {
        std::lock_guard guard{lock_};
        return live_;
    }

private:
    // The link stands outside the record, so that a freed record stays a record.
    struct cell {
        cell* next;
        alignas(T) unsigned char storage[sizeof(T)];
        T* record() noexcept { return std::launder(reinterpret_cast<T*>(storage)); }
    };
    struct chunk {
        chunk* next;
        std::size_t made;
        cell* cells() noexcept {
            return reinterpret_cast<cell*>(reinterpret_cast<char*>(this) + header_bytes);
        }
    };
    static constexpr std::size_t header_bytes =
        (sizeof(chunk) + alignof(cell) - 1) / alignof(cell) * alignof(cell);
    static constexpr std::size_t chunk_bytes = std::size_t{256} << 10;
    static constexpr std::size_t cells_per_chunk = (chunk_bytes - header_bytes) / sizeof(cell);
    static_assert(cells_per_chunk > 0);

    bool grow_locked() noexcept {
        void* memory = ::mmap(nullptr, chunk_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            return false;
        }
        chunks_ = ::new (memory) chunk{chunks_, 0};
        return true;
    }

    mutable ranked_mutex<lock_rank::leaf> lock_;
    chunk* chunks_ = nullptr;  // guarded by lock_, as all below
    cell* free_ = nullptr;
    std::size_t live_ = 0;
};

}  // namespace xmm
