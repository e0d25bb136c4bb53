// SPDX-License-Identifier: Apache-2.0
// device.hpp - one device: its page table, the ports of its compute threads, its link.
//
// Model    A port translates for one compute thread through a small TLB. It holds its lock during each
//          access, and a shootdown takes that lock once: then the access is over and the next one looks
//          again. A miss lets go of the lock, calls the fault sinks, and retries. Stretches that are wanted
//          together and push each other out are, after some rounds, asked for in place: over the link.
// Threads  acquire and release: the port's own thread. All else: any thread.
// Failure  Where the device takes no faults a miss loses the device; an access that nobody can
//          resolve ends the kernel. Both print one line.
#pragma once

#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <vector>

#include <xmm/core/device_view.hpp>
#include <xmm/os/crash_message.hpp>
#include <xmm/os/futex.hpp>

#include "faults.hpp"
#include "link.hpp"
#include "memory.hpp"
#include "page_table.hpp"

namespace xmm::soft {

struct device_options {
    std::size_t bytes = std::size_t{256} << 20;   // at most node_memory::largest_bytes
    std::uint64_t link_in_bytes_per_second = 0;   // host to device; 0 is unlimited
    std::uint64_t link_out_bytes_per_second = 0;  // device to host
    std::uint64_t link_latency_ns = 0;            // once per copy; below 2^62
    unsigned units = 0;                           // compute threads; 0 is min(2, cores)
    bool faults = true;                           // false: as a device that dies of a missing page
    bool split_views =
        true;  // false: all accessors of an address see one frame, as on real devices
    std::size_t granule_bytes =
        0;  // rounded to a power of two below; 0 is min(32 MiB, 1/16 of bytes)
    node_id nearest_host = any_host;
    std::size_t headroom_bytes =
        0;  // kept free for others (driver::take_bytes); 0: others are not watched

    // Sizes and numbers of devices have errors of their own.
    [[nodiscard]] status check() const noexcept {
        return link_latency_ns >> 62 == 0
                   ? status{}
                   : fail(errc::invalid_argument,
                          "the latency of a soft device's link is below 2^62 ns");
    }
};

struct device_statistics {
    std::uint64_t faults = 0;        // misses that went to a sink, or would have
    std::uint64_t table_walks = 0;   // TLB misses
    std::uint64_t shootdowns = 0;    // ports that were told to forget something
    std::uint64_t mapped_bytes = 0;  // in the device's page table now
    std::uint64_t frame_bytes = 0;   // created on the device and not dropped
    std::uint64_t link_in_bytes = 0;
    std::uint64_t link_out_bytes = 0;
};

class device;

class port final : public device_port {
public:
    port(device& owner, std::size_t node_count) : device_{owner}, debts_(node_count) {}

    bool acquire(std::span<device_pin> pins) noexcept override;
    void release(std::span<const device_pin> pins) noexcept override;

    // Pays for what the thread read and wrote over the link since the last time.
    void settle() noexcept;

    // Forgets what it knows about the ranges; after return no access through it is going on. Says so, once, if that
    // takes seconds: the kernel may be waiting for this very call.
    void forget(std::span<const va_range> ranges) noexcept;

private:
    struct tlb_entry {
        address page = ~address{0};
        page_entry entry;
    };
    static constexpr std::size_t tlb_count = 64;
    static constexpr std::uint64_t patience_ns = 2'000'000'000;
    static constexpr std::size_t settle_bytes = std::size_t{64} << 10;

    enum : std::uint32_t { is_free, is_held, is_held_and_awaited };

    void lock() noexcept {
        std::uint32_t seen = is_free;
        // acquire: pairs with the release in `unlock`.
        if (!state_.compare_exchange_strong(seen, is_held, std::memory_order_acquire,
                                            std::memory_order_relaxed)) {
            while (state_.exchange(is_held_and_awaited, std::memory_order_acquire) != is_free) {
                detail::futex_wait(state_, is_held_and_awaited);
            }
        }
    }
    void unlock() noexcept {
        if (state_.exchange(is_free, std::memory_order_release) == is_held_and_awaited) {
            detail::futex_wake(state_, 1);
        }
    }
    void lock_as_visitor() noexcept;
    // The kernel's thread comes back within nanoseconds and would win every time: visitors go first.
    void lock_as_owner() noexcept {
        // relaxed: only a courtesy, the lock is what orders.
        for (std::uint32_t count; (count = visitors_.load(std::memory_order_relaxed)) != 0;) {
            detail::futex_wait(visitors_, count);
        }
        lock();
    }
    [[nodiscard]] bool translate(device_pin& pin) noexcept;

    device& device_;
    detail::futex_word state_{is_free};
    detail::futex_word visitors_{0};
    std::atomic<bool> has_complained_{false};
    std::array<tlb_entry, tlb_count> tlb_;  // under the lock
    bool is_pinned_ = false;                // the owner's thread alone
    // The owner's thread only, as are the next two. The last acquire that missed pages needed more than were to be
    // had at once: the next one asks sooner for what is to be had.
    bool is_crowded_ = false;
    // Bytes over the link not paid for, by node index.
    std::size_t owed_bytes_ = 0;
    struct debt {
        std::size_t read = 0;
        std::size_t written = 0;
    };
    std::vector<debt> debts_;  // its size is constant: a kernel's thread allocates nothing
};

class device {
public:
    // index: the device's place among the driver's nodes, hosts first, of which there will be node_count.
    // all: by index, nullptr for hosts.
    device(const device_options& options, node_memory& memory, unsigned index, unsigned units,
           fault_sinks& sinks, const std::vector<std::unique_ptr<device>>& all,
           std::size_t node_count)
        : options_{options},
          memory_{memory},
          index_{index},
          sinks_{sinks},
          all_{all},
          in_{options.link_in_bytes_per_second},
          out_{options.link_out_bytes_per_second} {
        for (unsigned i = 0; i < units; ++i) {
            ports_.push_back(std::make_unique<port>(*this, node_count));
        }
    }

    [[nodiscard]] node_id node() const noexcept { return memory_.node(); }
    [[nodiscard]] unsigned index() const noexcept { return index_; }
    [[nodiscard]] const device_options& options() const noexcept { return options_; }
    [[nodiscard]] node_memory& memory() noexcept { return memory_; }
    [[nodiscard]] lane& in() noexcept { return in_; }
    [[nodiscard]] lane& out() noexcept { return out_; }
    [[nodiscard]] const page_table& table() const noexcept { return table_; }
    [[nodiscard]] std::span<const std::unique_ptr<port>> ports() const noexcept { return ports_; }
    [[nodiscard]] device* peer(unsigned index) const noexcept { return all_[index].get(); }

    // relaxed: nothing but the fact itself is read.
    [[nodiscard]] bool is_lost() const noexcept { return is_lost_.load(std::memory_order_relaxed); }

    // The backing lies in the node of that index.
    [[nodiscard]] status enter(const run& one, unsigned node_index, bool& must_shoot) noexcept {
        if (!table_.reserve(one.va)) {
            return fail(errc::no_memory, "no room for the device's page table");
        }
        for (std::size_t done = 0; done < one.va.bytes; done += page_bytes) {
            const page_entry fresh{one.backing.standing + done, node_index, one.who};
            const page_entry before = table_.exchange(one.va.begin + done, fresh);
            must_shoot = must_shoot || (before && (before.standing() != fresh.standing() ||
                                                   !covers(fresh.who(), before.who())));
            count_mapped(before ? 0 : page_bytes, 0);
        }
        return {};
    }
    void clear(va_range range, bool& must_shoot) noexcept {
        for (std::size_t done = 0; done < range.bytes; done += page_bytes) {
            if (table_.exchange(range.begin + done, page_entry{})) {
                must_shoot = true;
                count_mapped(0, page_bytes);
            }
        }
    }
    void shoot(std::span<const va_range> ranges) noexcept {
        for (const auto& one : ports_) {
            one->forget(ranges);
        }
        shootdowns_.fetch_add(ports_.size(), std::memory_order_relaxed);  // relaxed: statistics
    }

    // True: look again. False: the kernel must end.
    [[nodiscard]] bool fault(address at, access wanted) noexcept {
        faults_.fetch_add(1, std::memory_order_relaxed);  // relaxed: statistics
        if (is_lost()) {
            return false;
        }
        const char* why = "the device takes no faults: device lost";
        if (options_.faults) {
            const fault_outcome outcome = sinks_.call(node(), at, wanted);
            if (outcome == fault_outcome::resolved) {
                return true;
            }
            why = outcome == fault_outcome::no_memory ? "nothing could be made resident: queue lost"
                                                      : "no region there: queue lost";
        } else {
            // relaxed: nothing but the fact is read; tickets say what work it cost.
            is_lost_.store(true, std::memory_order_relaxed);
        }
        std::fprintf(stderr, "xmm soft: device %d: kernel %s at %p misses a page; %s\n",
                     node().value, has_write(wanted) ? "write" : "read", to_pointer(at), why);
        return false;
    }

    void count_walk() noexcept { walks_.fetch_add(1, std::memory_order_relaxed); }
    [[nodiscard]] device_statistics statistics() noexcept {
        const auto get = [](const auto& counter) {
            return counter.load(std::memory_order_relaxed);
        };
        return {get(faults_),          get(walks_), get(shootdowns_), get(mapped_bytes_),
                memory_.frame_bytes(), in_.bytes(), out_.bytes()};
    }

private:
    void count_mapped(std::size_t more, std::size_t less) noexcept {
        mapped_bytes_.fetch_add(more - less, std::memory_order_relaxed);
    }

    const device_options options_;
    node_memory& memory_;
    const unsigned index_;
    fault_sinks& sinks_;
    const std::vector<std::unique_ptr<device>>& all_;
    page_table table_;
    std::vector<std::unique_ptr<port>> ports_;  // (C)
    lane in_;
    lane out_;
    std::atomic<bool> is_lost_{false};
    std::atomic<std::uint64_t> faults_{0};  // statistics, relaxed all of them
    std::atomic<std::uint64_t> walks_{0};
    std::atomic<std::uint64_t> shootdowns_{0};
    std::atomic<std::uint64_t> mapped_bytes_{0};
};

inline bool port::translate(device_pin& pin) noexcept {
    const address page = align_down(pin.at, page_bytes);
    tlb_entry& cached = tlb_[(page >> page_shift) % tlb_count];
    if (cached.page != page || !covers(cached.entry.who(), pin.wanted)) {
        device_.count_walk();
        cached = {page, pin.at >> address_bits == 0 ? device_.table().find(page) : page_entry{}};
        if (!covers(cached.entry.who(), pin.wanted)) {
            return false;
        }
    }
    pin.bytes = std::min(pin.bytes, page + page_bytes - pin.at);
    pin.data = static_cast<std::byte*>(to_pointer(cached.entry.standing() + (pin.at - page)));
    pin.tag = cached.entry.node_index();
    return true;
}

inline bool port::acquire(std::span<device_pin> pins) noexcept {
    for (std::size_t faults = 0;; ++faults) {
        // Each may miss once, and be taken away again now and then.
        const bool is_crowded = faults >= pins.size() * (is_crowded_ ? 1 : 4);
        // Before the lock, which the first spans keep: only the owner's thread writes it.
        XMM_ASSERT(!is_pinned_, "a kernel touches another view while spans are in place");
        lock_as_owner();
        device_pin* missing = nullptr;
        for (device_pin& pin : pins) {
            if (!translate(pin)) {
                missing = &pin;
                break;
            }
        }
        if (missing == nullptr) {
            is_pinned_ = true;
            is_crowded_ = faults == 0 ? is_crowded_ : faults > pins.size();
            return true;
        }
        unlock();
        const access wanted = is_crowded ? missing->wanted | access::in_place : missing->wanted;
        if (!device_.fault(missing->at, wanted)) {
            return false;
        }
    }
}

inline void port::release(std::span<const device_pin> pins) noexcept {
    is_pinned_ = false;
    unlock();
    for (const device_pin& pin : pins) {
        if (pin.tag == device_.index()) {
            continue;
        }
        debts_[pin.tag].read += covers(pin.wanted, access::read) ? pin.bytes : 0;
        debts_[pin.tag].written += covers(pin.wanted, access::write) ? pin.bytes : 0;
        owed_bytes_ += pin.bytes;
    }
    if (owed_bytes_ >= settle_bytes) {
        settle();
    }
}

inline void port::settle() noexcept {
    if (owed_bytes_ == 0) {
        return;
    }
    owed_bytes_ = 0;
    for (unsigned i = 0; i < debts_.size(); ++i) {
        const debt due = std::exchange(debts_[i], {});
        device* peer = device_.peer(i);
        device_.in().charge(queue_priority::normal, due.read);
        device_.out().charge(queue_priority::normal, due.written);
        if (peer != nullptr) {
            peer->out().charge(queue_priority::normal, due.read);
            peer->in().charge(queue_priority::normal, due.written);
        }
    }
}

inline void port::lock_as_visitor() noexcept {
    const std::uint64_t deadline = now_ns() + patience_ns;
    // acquire: pairs with the release in `unlock`.
    while (state_.exchange(is_held_and_awaited, std::memory_order_acquire) != is_free) {
        detail::futex_wait_until(state_, is_held_and_awaited, deadline);
        // relaxed: a message more or less.
        if (now_ns() >= deadline && !has_complained_.exchange(true, std::memory_order_relaxed)) {
            detail::crash_message{}
                .add(
                    "xmm soft: a kernel has kept spans in place for seconds, and their device is "
                    "to let go ")
                .add(
                    "of a page; does what for_each_span, zip_spans or update call touch unified "
                    "memory ")
                .add("through a plain pointer?")
                .write();
        }
        if (has_complained_.load(std::memory_order_relaxed)) {
            lock();
            return;
        }
    }
}

inline void port::forget(std::span<const va_range> ranges) noexcept {
    visitors_.fetch_add(1, std::memory_order_relaxed);  // relaxed: see lock_as_owner
    lock_as_visitor();
    for (tlb_entry& cached : tlb_) {
        // With many ranges it costs less to walk the table again than to compare.
        bool hit = ranges.size() > 16;
        for (std::size_t i = 0; !hit && i < ranges.size(); ++i) {
            hit = ranges[i].contains(cached.page);
        }
        if (hit) {
            cached = {};
        }
    }
    unlock();
    if (visitors_.fetch_sub(1, std::memory_order_relaxed) == 1) {
        detail::futex_wake_all(visitors_);
    }
}

}  // namespace xmm::soft
