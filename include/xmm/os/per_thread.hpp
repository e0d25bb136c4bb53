// SPDX-License-Identifier: Apache-2.0
// per_thread.hpp - what an object keeps for each thread that uses it, handed back when the thread ends.
//
// Model    An owner (thread_items) has at most one item, a pointer, for each thread. Threads find theirs in a
//          table of their own; one pthread key of the process, held by the registry, sees them end.
//          Owners are known by a number that is never used twice, so a stale item is never found.
// Threads  find() and set() are for the calling thread and take no lock, but that set() may take the directory's
//          when the table grows: call it with no lock of ours held. `leave` runs on the thread that ends,
//          under the directory's lock (before all ranked locks): it must not make or destroy an owner.
// Failure  set() is false without memory, and in a process that has no pthread key left, or had no memory for the
//          directory when the owner was made. A thread in its last destructors may find nothing any more. In a
//          child of fork no end is told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

#include <pthread.h>
#include <sys/mman.h>

#include <xmm/core/list.hpp>
#include <xmm/os/registry.hpp>

namespace xmm {

class per_thread;

class thread_items {
public:
    // self is handed to leave; it outlives this object.
    using leave_function = void (*)(void* self, void* item) noexcept;

    thread_items(leave_function leave, void* self) noexcept;
    thread_items(const thread_items&) = delete;
    thread_items& operator=(const thread_items&) = delete;
    // `leave` is not called any more, not for living threads either: what they were given is the owner's.
    ~thread_items();

    // What the calling thread was given, or null.
    [[nodiscard]] void* find() const noexcept;
    // The item must not be null.
    [[nodiscard]] bool set(void* item) noexcept;

private:
    friend class per_thread;

    const std::uint64_t number_;
    const leave_function leave_;
    void* const self_;
    list_link link_;         // under the directory's lock
    per_thread* const all_;  // null: there was no memory for it
};

// The process's directory of owners, and each thread's table.
class per_thread {
public:
    static constexpr const char* registry_key = "per_thread/2";

    per_thread() noexcept : has_key_{::pthread_key_create(&key_, &thread_ends) == 0} {}

private:
    friend class thread_items;

    struct entry {
        std::uint64_t owner = 0;
        void* item = nullptr;
    };
    // Open addressing by the owner's number; at most half full.
    struct table {
        std::size_t capacity = 0;  // a power of two
        std::size_t used = 0;
        entry* entries = nullptr;
    };
    static constexpr std::size_t first_capacity = 256;

    static entry* find_in(const table& all, std::uint64_t owner) noexcept {
        for (std::size_t at = owner & (all.capacity - 1);; at = (at + 1) & (all.capacity - 1)) {
            entry& one = all.entries[at];
            if (one.owner == owner || one.owner == 0) {
                return &one;
            }
        }
    }
    // Not kept in a thread_local: every shared object would have its own, and none but one learn of the end.
    table* table_of_thread() const noexcept {
        return has_key_ ? static_cast<table*>(::pthread_getspecific(key_)) : nullptr;
    }
    table* make_table() noexcept {
        if (!has_key_) {
            return nullptr;
        }
        void* memory = ::mmap(nullptr, table_bytes(first_capacity), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            return nullptr;
        }
        auto* made = ::new (memory) table;
        made->capacity = first_capacity;
        made->entries = reinterpret_cast<entry*>(made + 1);
        if (::pthread_setspecific(key_, made) != 0) {
            ::munmap(memory, table_bytes(first_capacity));
            return nullptr;
        }
        return made;
    }
    // The first entries lie behind the table, later ones in a mapping of their own.
    static constexpr std::size_t table_bytes(std::size_t capacity) noexcept {
        return sizeof(table) + capacity * sizeof(entry);
    }
    static entry* inner_entries(table& all) noexcept { return reinterpret_cast<entry*>(&all + 1); }
    static void drop_entries(table& all) noexcept {
        if (all.entries != inner_entries(all)) {
            ::munmap(all.entries, all.capacity * sizeof(entry));
        }
    }

    // Leaves out what belongs to owners that are gone, and grows only where too many are left.
    bool grow(table& all) noexcept {
        std::size_t left = 0;
        {
            std::lock_guard guard{lock_};
            owners_.for_each([&](const thread_items& owner) {
                left += find_in(all, owner.number_)->owner != 0 ? 1 : 0;
            });
        }
        // Others may come meanwhile, but no items of this thread.
        const std::size_t capacity =
            4 * (left + 1) > all.capacity ? all.capacity * 2 : all.capacity;
        void* memory = ::mmap(nullptr, capacity * sizeof(entry), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            return false;
        }
        table next{capacity, 0, static_cast<entry*>(memory)};
        {
            std::lock_guard guard{lock_};
            owners_.for_each([&](const thread_items& owner) {
                if (const entry* one = find_in(all, owner.number_); one->owner != 0) {
                    *find_in(next, owner.number_) = *one;
                    ++next.used;
                }
            });
        }
        drop_entries(all);
        all = next;
        return true;
    }

    static void thread_ends(void* data) noexcept {
        if (registry::is_forked_child()) {
            return;  // whoever had the lock is not here, and what the owners have is the parent's
        }
        auto& all = *static_cast<table*>(data);
        per_thread& directory = registry::object<per_thread>();  // it is there
        if (all.used != 0) {
            std::lock_guard guard{directory.lock_};
            directory.owners_.for_each([&](const thread_items& owner) {
                entry* one = find_in(all, owner.number_);
                if (one->owner != 0) {
                    void* item = one->item;
                    one->item = nullptr;  // whoever still asks finds nothing
                    if (item != nullptr) {
                        owner.leave_(owner.self_, item);
                    }
                }
            });
        }
        drop_entries(all);
        ::munmap(&all, table_bytes(first_capacity));
    }

    pthread_key_t key_{};
    const bool has_key_;
    std::mutex lock_;
    list<thread_items, &thread_items::link_> owners_;  // under lock_
};

inline thread_items::thread_items(leave_function leave, void* self) noexcept
    : number_{registry::next_number(number_kind::other)},
      leave_{leave},
      self_{self},
      all_{registry::try_object<per_thread>()} {
    if (all_ != nullptr) {
        std::lock_guard guard{all_->lock_};
        all_->owners_.push_back(*this);
    }
}
inline thread_items::~thread_items() {
    if (all_ != nullptr) {
        std::lock_guard guard{all_->lock_};
        all_->owners_.remove(*this);
    }
}
inline void* thread_items::find() const noexcept {
    const per_thread::table* mine = all_ != nullptr ? all_->table_of_thread() : nullptr;
    return mine == nullptr ? nullptr : per_thread::find_in(*mine, number_)->item;
}
inline bool thread_items::set(void* item) noexcept {
    per_thread::table* mine = all_ != nullptr ? all_->table_of_thread() : nullptr;
    if (mine == nullptr && (all_ == nullptr || (mine = all_->make_table()) == nullptr)) {
        return false;
    }
    if (2 * (mine->used + 1) > mine->capacity && !all_->grow(*mine)) {
        return false;
    }
    per_thread::entry* one = per_thread::find_in(*mine, number_);
    mine->used += one->owner == 0 ? 1 : 0;
    *one = {number_, item};
    return true;
}

}  // namespace xmm
