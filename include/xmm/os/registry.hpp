// SPDX-License-Identifier: Apache-2.0
// registry.hpp - the one process-wide holder, shared by all shared objects.
//
// Model    An inline variable is one per shared object under hidden visibility or RTLD_LOCAL. So the
//          registry is a block of memory at one of a few well-known addresses: the first shared object
//          that needs it claims one with MAP_FIXED_NOREPLACE, later ones find it there by its magic.
//          It holds objects by name, each in memory of its own that is never freed, and counters.
// Threads  Any. One claim at a time: the dynamic linker's own lock, which all shared objects share,
//          is held for it. object() and next_number() take no lock once the object is known here.
// Failure  What cannot be shared safely (no address free, another layout under one name) aborts with a
//          message: two "process-wide" states would be silent corruption. So does object() without memory, where
//          try_object() says so, and may be asked again.
// See      A child of fork has a copy of all this, but not the threads and devices behind it:
//          is_forked_child().
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <type_traits>

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <xmm/core/config.hpp>
#include <xmm/core/types.hpp>
#include <xmm/os/futex.hpp>

// Per shared object, from the compiler's start files: an address inside the object whose code runs.
// Under a name of ours, since headers of others declare it differently.
extern "C" __attribute__((visibility("hidden"))) void* xmm_this_object __asm__("__dso_handle");

// Only where a leak checker is linked in: it must learn of memory that it does not scan by itself.
extern "C" __attribute__((weak)) void __lsan_register_root_region(const void*, std::size_t);

namespace xmm {

// What next_number counts. Append only: the numbers are shared between versions.
enum class number_kind : std::uint32_t { queue, space, region, backend, resource, launch, other };

namespace detail {

[[noreturn]] inline void registry_failed(const char* key, const char* reason) noexcept {
    std::fprintf(stderr, "xmm: process-wide \"%s\": %s\n", key, reason);
    std::abort();
}

// What is here for each shared object by itself is hidden, whatever else the object shows: where two of one lookup
// scope show their functions, the second one's calls would run the first one's code, on the first one's data.

// Keeps the shared object whose code this is from ever being unloaded. The main program and static
// programs, which have no name to the linker, need no pin.
[[gnu::visibility("hidden")]] inline void pin_this_object() noexcept {
    Dl_info info{};
    link_map* map = nullptr;
    if (::dladdr1(&xmm_this_object, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0 ||
        map == nullptr || map->l_name == nullptr || map->l_name[0] == '\0') {
        return;
    }
    if (::dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) == nullptr) {
        std::fprintf(stderr, "xmm: %s cannot be kept loaded (%s); do not unload it\n", map->l_name,
                     ::dlerror());
    }
}

[[gnu::visibility("hidden")]] inline std::atomic<bool> is_this_object_kept{false};

// For who leaves code of this shared object, or pointers into it, with an object that others made. Takes the dynamic
// linker's lock, the first time: call it with no lock held that a constructor of a library might want.
[[gnu::visibility("hidden")]] inline void keep_this_object() noexcept {
    // relaxed: to pin it twice does no harm.
    if (!is_this_object_kept.load(std::memory_order_relaxed)) {
        pin_this_object();
        is_this_object_kept.store(true, std::memory_order_relaxed);
    }
}

// Standard libraries lay out their types differently, and so do versions: objects are shared by those of one of each.
inline constexpr std::uint32_t registry_object_abi = (XMM_VERSION_MAJOR << 16) |
                                                     (XMM_VERSION_MINOR << 8) |
#if defined(_LIBCPP_VERSION)
                                                     2u;
#else
                                                     1u;
#endif

// Memory is never freed, so there is no counterpart.
[[nodiscard]] inline void* map_forever(std::size_t bytes) noexcept {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        return nullptr;
    }
    if (&__lsan_register_root_region != nullptr) {
        __lsan_register_root_region(at, bytes);
    }
    return at;
}

// The candidates, most preferred first. Each must be legal in the shadow layouts of the address, thread
// and memory sanitizers, and lie where mmap and the program itself end up late:
#if defined(__x86_64__)
//   0x7e9..: TSan's and MSan's last application range, 400 GiB below the lowest place where the kernel's
//            top-down search starts (2^28 random pages below 2^47).
//   0x551..: between the kernel's bottom-up base and the lowest address of a position-independent
//            program (2/3 of 2^47); TSan's and MSan's middle application range.
inline constexpr address registry_places[] = {
    0x7e9000000000, 0x551000000000, 0x7ea200000000, 0x552100000000,
    0x7e8800000000, 0x550800000000, 0x7eb400000000, 0x553200000000,
};
#elif defined(__aarch64__)
//   0xffff.. 48-bit: TSan's last application range, tens of GiB below the top-down start.
//   0x7e..   39-bit: TSan's last range there, at most 64 GiB of random pages below 2^39.
//   0x1_..   below 8 GiB: low application memory in every layout, above programs at fixed addresses.
inline constexpr address registry_places[] = {
    0xffff10000000, 0xffff20000000, 0xffff08000000, 0x7e10000000,
    0x7e20000000,   0x140000000,    0x150000000,    0xc0000000,
};
#else
#error "xmm runs on x86-64 and aarch64"
#endif

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

// "xmrgtry" and, in the highest byte, the number of the block's layout.
inline constexpr std::uint64_t registry_magic = 0x3179727467726d78;
inline constexpr std::uint64_t registry_name_bits = 0x00ffffffffffffff;

// Reads through the kernel, which answers EFAULT where a load would kill. Aborts if a registry of another
// layout is there: two in a process would be silent corruption.
[[nodiscard]] inline bool is_registry_at(address at) noexcept {
    const int errno_before = errno;
    std::uint64_t head = 0;
    iovec to{&head, sizeof head};
    iovec from{to_pointer(at), sizeof head};
    long got = ::syscall(SYS_process_vm_readv, ::getpid(), &to, 1UL, &from, 1UL, 0UL);
    if (got < 0 && errno != EFAULT) {  // sandboxes refuse it
        got = -1;
        int ends[2];
        if (::pipe2(ends, O_CLOEXEC) == 0) {
            if (::write(ends[1], to_pointer(at), sizeof head) ==
                static_cast<ssize_t>(sizeof head)) {
                got = ::read(ends[0], &head, sizeof head);
            }
            ::close(ends[0]);
            ::close(ends[1]);
        }
    }
    errno = errno_before;
    if (got != static_cast<long>(sizeof head) ||
        ((head ^ registry_magic) & registry_name_bits) != 0) {
        return false;
    }
    if (head != registry_magic) {
        registry_failed("registry",
                        "another shared object of this process has another version of xmm");
    }
    return true;
}

}  // namespace detail

class registry {
public:
    // The process's registry; aborts if none of the addresses can be had.
    static registry& instance() noexcept {
        // acquire: pairs with the release below; the block was checked before it was published here.
        registry* known = known_.load(std::memory_order_acquire);
        return known != nullptr ? *known : find_or_claim();
    }

    // The T of this process, built by its default constructor on first use and never destroyed.
    // T names itself: `static constexpr const char* registry_key = "fault_trap/1"` (at most 39
    // characters; a new number for a new layout of T itself). What other shared objects reach from it by pointers with
    // inline code of theirs (nodes, ledgers, a driver's queues) has no key of its own: when the layout of that changes,
    // XMM_VERSION_MINOR is raised, which is part of every key. Every shared object that asks for T stays loaded: it may
    // leave code of its own in there. Concurrent first calls build once. Aborts if this name has another size, or is of
    // another version or standard library: who asks says so by the code that it runs. Of shared objects that show their
    // inline functions to one lookup scope, all run the first one's, and no difference is seen; hidden visibility, of
    // inline functions at least, prevents that.
    template <class T>
    [[gnu::visibility("hidden")]] static T& object() {
        static_assert(std::is_default_constructible_v<T>);
        // acquire: pairs with the release below; the object was built before.
        T* known = known_object<T>.load(std::memory_order_acquire);
        return known != nullptr ? *known : *find_or_build<T>(false);
    }
    // The same; null, and nothing has changed but that the caller stays loaded, if there is no memory to build it in.
    template <class T>
    [[gnu::visibility("hidden")]] static T* try_object() {
        static_assert(std::is_default_constructible_v<T>);
        T* known = known_object<T>.load(std::memory_order_acquire);  // acquire: as above
        return known != nullptr ? known : find_or_build<T>(true);
    }

    // 1, 2, 3, ...: no number of a kind is given twice in a process. Lock-free.
    static std::uint32_t next_number(number_kind kind) noexcept {
        // relaxed: the number is all that is handed over.
        return 1 + instance().numbers_[static_cast<unsigned>(kind)].fetch_add(
                       1, std::memory_order_relaxed);
    }

    // Whether this process was forked from the one that claimed the registry. One load,
    // async-signal-safe: the kernel hands a child the marker page wiped.
    static bool is_forked_child() noexcept {
        const registry& r = instance();
        // relaxed: the kernel wipes it while the child has one thread.
        return r.has_wiped_marker_ ? r.marker()->load(std::memory_order_relaxed) == 0
                                   : r.pid_ != ::getpid();
    }

    // The process that claimed it.
    [[nodiscard]] ::pid_t pid() const noexcept { return pid_; }

    registry(const registry&) = delete;
    registry& operator=(const registry&) = delete;

private:
    static constexpr std::size_t block_bytes = 64 << 10;  // one OS page, whatever its size
    static constexpr unsigned slot_count = 64;
    static constexpr unsigned key_bytes = 40;
    static constexpr unsigned number_count = 16;

    enum slot_state : std::uint32_t { unused, building, ready };

    struct slot {
        std::atomic<std::uint32_t> state{unused};  // (A)
        std::uint32_t abi = 0;                // (T) constant once state left unused, like the key
        char key[key_bytes] = {};             // (T)
        std::uint64_t bytes = 0;              // (T)
        void* object = nullptr;               // (C) once ready
        std::atomic<::pid_t> builder{0};      // (A) the thread that builds, to catch a cycle
        std::atomic<::pid_t> builder_pid{0};  // (A) and its process
    };

    registry() = default;

    template <class T>
    [[gnu::visibility("hidden")]] static inline std::atomic<T*> known_object{
        nullptr};  // one per shared object: a cache, and who asked through it is kept loaded
    static inline std::atomic<registry*> known_{nullptr};  // a cache

    [[nodiscard]] std::atomic<std::uint32_t>* marker() const noexcept {
        return reinterpret_cast<std::atomic<std::uint32_t>*>(to_address(this) + block_bytes);
    }

    // The dynamic linker runs the callback with its lock held; shared objects that race to be first in
    // a process meet there, whatever they were compiled with.
    static registry& find_or_claim() noexcept {
        registry* found = nullptr;
        ::dl_iterate_phdr(
            [](dl_phdr_info*, std::size_t, void* out) {
                *static_cast<registry**>(out) = find_or_claim_locked();
                return 1;  // once is enough
            },
            &found);
        if (found == nullptr) {
            detail::registry_failed("registry", "no well-known address can be mapped");
        }
        // release: pairs with the acquire in instance.
        known_.store(found, std::memory_order_release);
        return *found;
    }

    static registry* find_or_claim_locked() noexcept {
        // Every address is looked at before one is claimed: the first owner may have had to skip some.
        for (const address at : detail::registry_places) {
            if (detail::is_registry_at(at)) {
                return found_at(at);
            }
        }
        for (const address at : detail::registry_places) {
            if (registry* mine = claim(at); mine != nullptr) {
                return mine;
            }
            if (detail::is_registry_at(
                    at)) {  // lost a race after all: this C library does not lock
                return found_at(at);
            }
        }
        return nullptr;
    }

    static registry* found_at(address at) noexcept {
        auto* found = static_cast<registry*>(to_pointer(at));
        // acquire: pairs with the release in claim; the kernel's look at the magic ordered nothing.
        static_cast<void>(std::atomic_ref{found->magic_}.load(std::memory_order_acquire));
        return found;
    }

    static registry* claim(address at) noexcept {
        const std::size_t bytes = 2 * block_bytes;  // the block, then the marker's page
        void* got = ::mmap(to_pointer(at), bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (got == MAP_FAILED) {
            return nullptr;
        }
        if (got != to_pointer(at)) {  // kernels before 4.17 take the address for a hint
            ::munmap(got, bytes);
            return nullptr;
        }
        auto* made = ::new (got) registry;
        made->pid_ = ::getpid();
        made->has_wiped_marker_ = ::madvise(made->marker(), block_bytes, MADV_WIPEONFORK) == 0;
        // relaxed: the release below publishes it.
        made->marker()->store(1, std::memory_order_relaxed);
        if (&__lsan_register_root_region != nullptr) {
            __lsan_register_root_region(got, bytes);
        }
        // release: the magic comes last; a block is complete before it is found.
        std::atomic_ref{made->magic_}.store(detail::registry_magic, std::memory_order_release);
        return made;
    }

    template <class T>
    [[gnu::visibility("hidden")]] [[gnu::noinline]] static T* find_or_build(bool may_fail) {
        static_assert(sizeof(T) <= 64 << 20);
        // First: the dynamic linker's lock is taken for it, and who holds that, a constructor of a library that is
        // being loaded, may ask for the same T.
        detail::keep_this_object();
        T* at = static_cast<T*>(instance().object_of(
            T::registry_key, sizeof(T), [](void* memory) { ::new (memory) T; }, may_fail));
        if (at != nullptr) {
            // release: pairs with the acquire in object and try_object.
            known_object<T>.store(at, std::memory_order_release);
        }
        return at;
    }

    void* object_of(const char* key, std::size_t bytes, void (*build)(void*), bool may_fail) {
        slot& mine = slot_of(key, bytes);
        for (;;) {
            std::uint32_t seen = unused;
            // acquire: pairs with the releases in build_into. Of `ready`: the object was built before; of `unused`: who
            // had no memory is out of the slot.
            if (mine.state.compare_exchange_strong(seen, building, std::memory_order_acquire)) {
                return build_into(mine, build, may_fail) ? mine.object : nullptr;
            }
            if (seen == ready) {
                return mine.object;
            }
            wait_while_built(mine);
        }
    }

    static void wait_while_built(slot& mine) noexcept {
        // relaxed: the caller looks at it again.
        while (mine.state.load(std::memory_order_relaxed) == building) {
            // relaxed: what a thread compares with itself, it wrote itself.
            if (mine.builder.load(std::memory_order_relaxed) == this_thread()) {
                detail::registry_failed(mine.key, "its constructor asks for itself");
            }
            const ::pid_t process = mine.builder_pid.load(std::memory_order_relaxed);
            if (process != 0 && process != ::getpid()) {
                detail::registry_failed(mine.key, "was being built when this process was forked");
            }
            detail::futex_wait(mine.state, building);
        }
    }

    static ::pid_t this_thread() noexcept { return static_cast<::pid_t>(::syscall(SYS_gettid)); }

    // False: no memory, and the next one may try.
    static bool build_into(slot& mine, void (*build)(void*), bool may_fail) {
        // relaxed, all stores to the two: only compared, by the thread itself and by children of this process.
        mine.builder.store(this_thread(), std::memory_order_relaxed);
        mine.builder_pid.store(::getpid(), std::memory_order_relaxed);
        const std::size_t os_page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
        void* memory = detail::map_forever(align_up(mine.bytes, os_page));
        if (memory == nullptr) {
            if (!may_fail) {
                detail::registry_failed(mine.key, "no memory");
            }
            mine.builder.store(0, std::memory_order_relaxed);
            mine.state.store(unused, std::memory_order_release);  // release: pairs with object_of
            detail::futex_wake_all(mine.state);
            return false;
        }
        try {
            build(memory);
        } catch (...) {
            detail::registry_failed(mine.key, "its constructor threw");
        }
        mine.object = memory;
        mine.builder.store(0, std::memory_order_relaxed);
        mine.state.store(ready, std::memory_order_release);  // release: pairs with object_of
        detail::futex_wake_all(mine.state);
        return true;
    }

    // Slots are only ever added, so the table lock is short and never held while something is built.
    slot& slot_of(const char* key, std::size_t bytes) noexcept {
        if (std::strlen(key) >= key_bytes) {
            detail::registry_failed(key, "a key has at most 39 characters");
        }
        lock_table();
        for (slot& one : slots_) {
            if (one.key[0] == '\0') {
                std::strcpy(one.key, key);
                one.bytes = bytes;
                one.abi = detail::registry_object_abi;
            } else if (std::strcmp(one.key, key) != 0) {
                continue;
            }
            unlock_table();
            if (one.bytes != bytes || one.abi != detail::registry_object_abi) {
                detail::registry_failed(key,
                                        "shared objects of this process were built from different "
                                        "xmm versions or standard libraries");
            }
            return one;
        }
        detail::registry_failed(key, "too many process-wide objects");
    }

    // The lock word is the holder's process: a child forked meanwhile takes over what nobody will release.
    void lock_table() noexcept {
        const auto me = static_cast<std::uint32_t>(::getpid());
        // acquire: pairs with the release in unlock_table.
        for (std::uint32_t holder = 0;
             !table_lock_.compare_exchange_strong(holder, me, std::memory_order_acquire);) {
            if (holder == me) {
                detail::futex_wait(table_lock_, me);
                holder = 0;
            }
        }
    }
    void unlock_table() noexcept {
        table_lock_.store(0, std::memory_order_release);  // release: pairs with lock_table
        detail::futex_wake(table_lock_, 1);
    }

    // (C) constant once claimed  (A) atomic  (T) table lock
    // (A) not even zeroed by the constructor, since others may look at it: fresh memory is zero.
    std::uint64_t magic_;
    ::pid_t pid_ = 0;                                     // (C)
    bool has_wiped_marker_ = false;                       // (C)
    std::atomic<std::uint32_t> table_lock_{0};            // (A)
    std::atomic<std::uint32_t> numbers_[number_count]{};  // (A)
    slot slots_[slot_count];                              // per field
};

}  // namespace xmm
