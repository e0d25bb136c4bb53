// SPDX-License-Identifier: Apache-2.0
// A vendor of one's own, as small as it gets: one device made of a memory file, which finishes all work before
// a call returns and takes no page faults. It works with everything above it: moves, hints, budgets, launches.
#include <xmm/xmm.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <span>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace xmm::literals;

namespace tiny {

using xmm::errc;
using xmm::fail;

class driver {
public:
    explicit driver(std::size_t bytes)
        : bytes_{bytes}, ids_{xmm::register_device_node("tiny device")} {
        file_ = ::memfd_create("tiny", MFD_CLOEXEC);
        if (file_ < 0 || ::ftruncate(file_, static_cast<off_t>(file_bytes)) != 0) {
            std::abort();
        }
        void* all = ::mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                           file_, 0);
        if (all == MAP_FAILED) {
            std::abort();
        }
        standing_ = static_cast<std::byte*>(all);
    }
    driver(const driver&) = delete;
    driver& operator=(const driver&) = delete;
    ~driver() {
        ::munmap(standing_, file_bytes);
        ::close(file_);
    }

    // What launch() looks for: a name of the kind, and the object that a launcher is made from.
    static constexpr const char* native_kind = "tiny/1";
    driver* native() noexcept { return this; }

    // Only devices are listed; hosts are described, and get frames and mappings, all the same.
    std::span<const xmm::node_id> nodes() noexcept { return ids_; }
    xmm::result<xmm::node_description> describe(xmm::node_id node) noexcept {
        if (!is_device(node) && node != xmm::any_host && !xmm::machine_topology().is_host(node)) {
            return fail(errc::unknown_node, "not a node of this driver");
        }
        xmm::node_description about;
        std::strcpy(about.name.data(), is_device(node) ? "tiny device" : "host");
        about.bytes = is_device(node) ? bytes_ : file_bytes / 2;
        about.granule_bytes = xmm::page_bytes;
        about.able.add(xmm::ability::host_frames);
        return about;
    }

    // Addresses: propose some, or agree to those of another driver; each only once. What needs memory of the program's
    // own says so where there is none, and changes nothing then.
    xmm::result<xmm::va_range> va_examine(xmm::va_range wanted, std::size_t alignment) noexcept {
        if (wanted.begin != 0) {
            if (wanted.begin % alignment != 0) {
                return fail(errc::unsupported, "these addresses are not aligned as asked");
            }
            std::lock_guard guard{lock_};
            for (const claim& other : claims_) {
                if (other.range.overlaps(wanted)) {
                    return fail(errc::busy, "these addresses are claimed");
                }
            }
            const auto kept = or_no_memory([&] { claims_.push_back({wanted, false}); });
            return kept ? xmm::result<xmm::va_range>{wanted} : kept;
        }
        void* at = ::mmap(nullptr, wanted.bytes + alignment, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) {
            return fail(errc::no_memory, "no addresses", errno);
        }
        const xmm::va_range all{xmm::to_address(at), wanted.bytes + alignment};
        const xmm::va_range range{xmm::align_up(all.begin, alignment), wanted.bytes};
        if (range.begin > all.begin) {
            ::munmap(at, range.begin - all.begin);
        }
        if (all.end() > range.end()) {
            ::munmap(xmm::to_pointer(range.end()), all.end() - range.end());
        }
        std::lock_guard guard{lock_};
        if (auto kept = or_no_memory([&] { claims_.push_back({range, true}); }); !kept) {
            ::munmap(xmm::to_pointer(range.begin), range.bytes);
            return kept;
        }
        return range;
    }
    void va_release(xmm::va_range range) noexcept {
        std::lock_guard guard{lock_};
        const auto gone = std::find_if(claims_.begin(), claims_.end(),
                                       [&](const claim& one) { return one.range == range; });
        if (gone == claims_.end()) {
            return;  // a caller's mistake: nothing of ours is there
        }
        if (gone->is_ours) {
            ::munmap(xmm::to_pointer(range.begin), range.bytes);
        }
        claims_.erase(gone);
    }

    // Queues: work is over when a call returns, so every ticket is reached. Tickets of a queue only grow. Queues of
    // other drivers, and those that are gone, are refused.
    xmm::result<xmm::queue_id> queue_create(xmm::node_id node, xmm::queue_priority) noexcept {
        if (!is_device(node)) {
            return fail(errc::unknown_node, "a queue belongs to a device");
        }
        const xmm::queue_id id{xmm::registry::next_number(xmm::number_kind::queue)};
        std::lock_guard guard{lock_};
        const auto kept = or_no_memory([&] { queues_[id.value] = true; });
        return kept ? xmm::result<xmm::queue_id>{id} : kept;
    }
    void queue_destroy(xmm::queue_id queue) noexcept {
        std::lock_guard guard{lock_};
        if (const auto found = queues_.find(queue.value); found != queues_.end()) {
            found->second = false;
        }
    }
    xmm::result<xmm::ticket> memcpy(xmm::queue_id queue,
                                    std::span<const xmm::piece> pieces) noexcept {
        auto done = record(queue);
        for (const xmm::piece& one : done ? pieces : std::span<const xmm::piece>{}) {
            std::memcpy(xmm::to_pointer(one.to.begin), xmm::to_pointer(one.from.begin),
                        one.to.bytes);
        }
        return done;
    }
    xmm::result<xmm::ticket> zero(xmm::queue_id queue,
                                  std::span<const xmm::va_range> ranges) noexcept {
        auto done = record(queue);
        for (const xmm::va_range& one : done ? ranges : std::span<const xmm::va_range>{}) {
            std::memset(xmm::to_pointer(one.begin), 0, one.bytes);
        }
        return done;
    }
    bool is_done(xmm::ticket) noexcept { return true; }
    xmm::status wait(xmm::ticket) noexcept { return {}; }
    xmm::result<xmm::ticket> record(xmm::queue_id queue) noexcept {
        std::lock_guard guard{lock_};
        const auto found = queues_.find(queue.value);
        if (found == queues_.end() || !found->second) {
            return fail(errc::invalid_argument, "no queue of this driver");
        }
        return xmm::ticket{queue, ++last_ticket_};
    }
    xmm::status make_wait(xmm::queue_id, xmm::ticket point) noexcept {
        std::lock_guard guard{lock_};
        return point.value == 0 || queues_.count(point.queue.value) != 0
                   ? xmm::status{}
                   : fail(errc::invalid_argument, "a ticket of another driver");
    }

    // Frames: stretches of the file; a hole reads as zero again.
    xmm::result<xmm::frame> frame_create(xmm::node_id node, std::size_t bytes) noexcept {
        std::lock_guard guard{lock_};
        if (is_device(node) && used_ + bytes > bytes_) {
            return fail(errc::no_memory, "the device is full");
        }
        if (next_ + bytes > file_bytes) {
            return fail(errc::no_memory, "the file is full");
        }
        used_ += is_device(node) ? bytes : 0;
        const std::size_t offset = next_;
        next_ += bytes;  // never used again: this is an example
        return xmm::frame{offset + 1, xmm::to_address(standing_ + offset), bytes, node, true};
    }
    void frame_drop(xmm::frame dropped) noexcept {
        std::lock_guard guard{lock_};
        ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(dropped.handle - 1), static_cast<off_t>(dropped.bytes));
        used_ -= is_device(dropped.node) ? dropped.bytes : 0;
    }

    // Mappings: the CPU's are the OS's, the device's stand in a table.
    xmm::progress pmap_enter(xmm::node_id node, std::span<const xmm::run> runs) noexcept {
        std::lock_guard guard{lock_};
        for (std::size_t done = 0; done < runs.size(); ++done) {
            const xmm::run& one = runs[done];
            if (is_device(node)) {
                if (auto kept = or_no_memory([&] { table_[one.va.begin] = one; }); !kept) {
                    return {done, kept};
                }
            } else if (::mmap(xmm::to_pointer(one.va.begin), one.va.bytes,
                              xmm::has_write(one.who) ? PROT_READ | PROT_WRITE : PROT_READ,
                              MAP_SHARED | MAP_FIXED, file_,
                              static_cast<off_t>(one.backing.handle - 1)) == MAP_FAILED) {
                return {done, fail(errc::no_memory, "mmap refused", errno)};
            }
        }
        return {runs.size(), {}};
    }
    xmm::progress pmap_clear(xmm::node_id node, std::span<const xmm::va_range> ranges) noexcept {
        std::lock_guard guard{lock_};
        for (std::size_t done = 0; done < ranges.size(); ++done) {
            const xmm::va_range& one = ranges[done];
            if (is_device(node)) {
                // Whole runs, and maybe several.
                table_.erase(table_.lower_bound(one.begin), table_.lower_bound(one.end()));
            } else if (::mmap(xmm::to_pointer(one.begin), one.bytes, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                              0) == MAP_FAILED) {
                return {done, fail(errc::no_memory, "mmap refused", errno)};
            }
        }
        return {ranges.size(), {}};
    }

    // What a kernel of this device sees at an address: the run that covers it, or nothing.
    std::byte* translate(const void* at) noexcept {
        std::lock_guard guard{lock_};
        auto after = table_.upper_bound(xmm::to_address(at));
        if (after == table_.begin()) {
            return nullptr;
        }
        const xmm::run& one = std::prev(after)->second;
        return one.va.contains(xmm::to_address(at))
                   ? static_cast<std::byte*>(xmm::to_pointer(one.backing.standing)) +
                         (xmm::to_address(at) - one.va.begin)
                   : nullptr;
    }

private:
    static constexpr std::size_t file_bytes = 16_GiB;  // sparse

    bool is_device(xmm::node_id node) const noexcept { return node == ids_[0]; }

    // Nothing throws out of a backend.
    template <class Fn>
    static xmm::status or_no_memory(Fn&& grow) noexcept {
        try {
            grow();
            return {};
        } catch (const std::bad_alloc&) {
            return fail(errc::no_memory, "the host has no memory for a record");
        }
    }

    struct claim {
        xmm::va_range range;
        bool is_ours;  // to unmap
    };

    const std::size_t bytes_;
    const std::array<xmm::node_id, 1> ids_;
    int file_ = -1;
    std::byte* standing_ = nullptr;
    std::mutex lock_;
    std::map<xmm::address, xmm::run> table_;  // guarded by lock_, as all below
    std::size_t used_ = 0;
    std::size_t next_ = 0;
    std::vector<claim> claims_;
    std::map<std::uint32_t, bool> queues_;  // all that were ever made: whether they are there still
    std::uint64_t last_ticket_ = 0;
};

static_assert(xmm::backend<driver>);

// Beside the backend: how work reaches its queues.
class stream {
public:
    using driver_type = driver;
    stream(driver& owner, xmm::queue_id) noexcept : driver_{owner} {}

    template <class T, class Fn>
    xmm::status for_each(T* first, std::size_t count, Fn fn) {
        for (std::size_t i = 0; i < count; ++i) {
            auto* seen = reinterpret_cast<T*>(driver_.translate(first + i));
            if (seen == nullptr) {
                return fail(errc::device_lost, "the kernel missed a page");
            }
            fn(*seen);
        }
        return {};
    }

private:
    driver& driver_;
};

}  // namespace tiny

int main() {
    tiny::driver device{16_MiB};
    auto space = xmm::space::create_on(device).value();
    constexpr std::size_t count = 24_MiB / sizeof(int);  // half as much again as the device holds
    auto* numbers = static_cast<int*>(space.map(count * sizeof(int)).value());
    for (std::size_t i = 0; i < count; ++i) {
        numbers[i] = static_cast<int>(i);
    }

    auto queue = space.make_queue(space.devices().at(0)).value();
    for (std::size_t part = 0; part < 3; ++part) {
        constexpr std::size_t length = count / 3;
        int* const first = numbers + part * length;
        auto done = xmm::launch<tiny::stream>(
            queue, {xmm::reads_writes(first, length * sizeof(int))},
            [&](tiny::stream& s) { return s.for_each(first, length, [](int& one) { ++one; }); });
        if (!done) {
            std::fprintf(stderr, "part %zu: %s\n", part, done.error().why);
            return 1;
        }
    }

    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
        wrong += numbers[i] != static_cast<int>(i) + 1 ? 1 : 0;
    }
    std::printf("%zu numbers through a device of %zu MiB, %zu wrong\n", count, std::size_t{16},
                wrong);
    return wrong == 0 && space.unmap(numbers) ? 0 : 1;
}
