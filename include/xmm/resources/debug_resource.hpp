// SPDX-License-Identifier: Apache-2.0
// debug_resource.hpp - finds writes beside a block, use after free, double and mistaken returns.
//
// Model    Each block lies between two guards of a known pattern; fresh memory is filled with 0xCD, memory
//          given back with 0xDD and kept for a while, so that a late write shows. Records lie in host
//          memory, out of a stray write's way. The upstream's memory must be reached by the CPU.
//          A call with a stream waits for it: the CPU looks at the memory.
// Threads  Any. One lock guards the records; faults are reported without it.
// Failure  What is found goes to a handler; the stock one prints a line and aborts. If the handler
//          returns, a block that is known goes back all the same and an unknown pointer is left alone.
//          A child of fork has none of the memory that devices reach: there nothing is looked at, nor given back.
#pragma once

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <xmm/core/lock.hpp>
#include <xmm/os/registry.hpp>
#include <xmm/resources/adaptors/adaptor.hpp>

namespace xmm {

enum class debug_fault : std::uint8_t {
    underrun,         // written before the block
    overrun,          // written behind it
    use_after_free,   // written after it was given back
    double_free,      // given back twice
    unknown_pointer,  // given back, but never handed out, or too long ago to tell
    wrong_bytes,      // given back with a size it was not asked for with
    wrong_alignment,  // the same for its alignment
    leak,             // not given back while the resource lived
};

[[nodiscard]] constexpr const char* name_of(debug_fault fault) noexcept {
    constexpr const char* names[] = {"written before the block",
                                     "written behind the block",
                                     "written after it was given back",
                                     "given back twice",
                                     "given back but never handed out",
                                     "given back with the wrong size",
                                     "given back with the wrong alignment",
                                     "never given back"};
    return names[static_cast<unsigned>(fault)];
}

struct debug_report {
    debug_fault fault;
    void* pointer;
    std::size_t bytes;      // that were asked for
    std::ptrdiff_t offset;  // of the first damaged byte from the pointer
    std::size_t told;       // the size or alignment that the caller gave when giving back
    std::uint64_t number;   // 1 is the first block of this resource
};

struct debug_options {
    std::size_t guard_bytes = 64;                          // on each side, at least
    std::size_t quarantine_bytes = std::size_t{16} << 20;  // kept poisoned, oldest out first
    bool report_leaks = true;                              // when the resource goes
    void (*handler)(const debug_report&, void* context) = nullptr;  // nullptr: print and abort
    void* context = nullptr;
};

template <host_reachable Upstream>
class debug_resource final : public adaptor<Upstream> {
public:
    explicit debug_resource(Upstream& upstream, debug_options options = {})
        : adaptor<Upstream>{"debug", upstream},
          options_{options},
          guard_bytes_{align_up(std::max(options.guard_bytes, host_alignment), host_alignment)} {}

    ~debug_resource() override {
        if (is_elsewhere()) {
            return;
        }
        check();
        if (options_.report_leaks) {
            for (const auto& [at, live] : live_) {
                raise({debug_fault::leak, to_pointer(at), live.bytes, 0, 0, live.number});
            }
        }
        options_.quarantine_bytes = 0;
        evict();
    }

    // Looks at the guards of all live blocks and at all that is kept poisoned; every fault found is
    // reported once. Returns how many. No other thread writes guards or gives back meanwhile.
    std::size_t check() {
        if (is_elsewhere()) {
            return 0;
        }
        std::vector<debug_report> found;
        with(lock_, [&] {
            for (auto& [at, live] : live_) {
                examine_guards(at, live, found);
            }
            for (auto& [at, old] : kept_) {
                examine_poison(at, old, found);
            }
        });
        raise_all(found);
        return found.size();
    }
    [[nodiscard]] std::size_t live_count() const noexcept {
        return with(lock_, [&] { return live_.size(); });
    }

private:
    static constexpr unsigned char guard_byte = 0xFD;
    static constexpr unsigned char fresh_byte = 0xCD;
    static constexpr unsigned char freed_byte = 0xDD;

    struct record {
        std::size_t bytes = 0;
        std::size_t alignment = 0;
        std::size_t before = 0;  // from the upstream's block to the pointer
        std::uint64_t number = 0;
        address next_kept = 0;  // given back after this one
    };
    using records = std::map<address, record>;

    // What one return can find, without allocating.
    struct few_reports {
        std::array<debug_report, 4> reports;
        std::size_t count = 0;

        void push_back(const debug_report& one) noexcept { reports[count++] = one; }
        [[nodiscard]] const debug_report* begin() const noexcept { return reports.data(); }
        [[nodiscard]] const debug_report* end() const noexcept { return reports.data() + count; }
    };

    // In a child of fork, which has none of what devices reach.
    [[nodiscard]] bool is_elsewhere() const noexcept {
        return includes(this->reachable_by(), reach::device) && registry::is_forked_child();
    }
    void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
        record fresh{bytes, alignment, align_up(guard_bytes_, std::max(alignment, host_alignment)),
                     0, 0};
        auto* raw = static_cast<unsigned char*>(
            this->upstream().allocate(stream, total_bytes(fresh), raw_alignment(fresh)));
        const address at = to_address(raw) + fresh.before;
        try {
            with(lock_, [&] {
                fresh.number = last_number_ + 1;
                live_.insert_or_assign(at, fresh);
                ++last_number_;
            });
        } catch (...) {
            this->upstream().deallocate(stream, raw, total_bytes(fresh), raw_alignment(fresh));
            this->refuse(bytes, "no host memory to note the block");
        }
        if (!this->try_await(stream)) {  // earlier work on the stream may use the block still
            with(lock_, [&] { live_.erase(at); });
            this->upstream().deallocate(stream, raw, total_bytes(fresh), raw_alignment(fresh));
            this->refuse(bytes, "the stream cannot say whether work uses the block");
        }
        std::memset(raw, guard_byte, fresh.before);
        std::memset(raw + fresh.before, fresh_byte, bytes);
        std::memset(raw + fresh.before + bytes, guard_byte, guard_bytes_);
        return to_pointer(at);
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept override {
        if (is_elsewhere()) {
            return;
        }
        const bool is_quiet = this->try_await(stream);
        const address at = to_address(pointer);
        few_reports found;
        typename records::node_type live = with(lock_, [&] {
            const auto entry = live_.find(at);
            if (entry == live_.end()) {
                const auto old = kept_.find(at);
                const record known = old != kept_.end() ? old->second : record{};
                const auto fault =
                    old != kept_.end() ? debug_fault::double_free : debug_fault::unknown_pointer;
                found.push_back({fault, pointer, known.bytes, 0, bytes, known.number});
                return typename records::node_type{};
            }
            const record& known = entry->second;
            if (known.bytes != bytes) {
                found.push_back(
                    {debug_fault::wrong_bytes, pointer, known.bytes, 0, bytes, known.number});
            }
            if (known.alignment != alignment) {
                found.push_back({debug_fault::wrong_alignment, pointer, known.bytes, 0, alignment,
                                 known.number});
            }
            examine_guards(at, known, found);
            return live_.extract(entry);
        });
        if (!live.empty() && !is_quiet) {
            // Work may write into it: no poison, and the upstream knows how to keep it.
            const record& left = live.mapped();
            this->upstream().deallocate(stream, to_pointer(at - left.before), total_bytes(left),
                                        raw_alignment(left));
        } else if (!live.empty()) {
            std::memset(pointer, freed_byte, live.mapped().bytes);
            with(lock_, [&] { keep_locked(std::move(live)); });
        }
        raise_all(found);
        evict();
    }
    void keep_locked(typename records::node_type block) noexcept {
        const address at = block.key();
        kept_bytes_ += block.mapped().bytes;
        kept_.insert(std::move(block));  // moves the node: no allocation
        (kept_first_ == 0 ? kept_first_ : kept_.find(kept_last_)->second.next_kept) = at;
        kept_last_ = at;
    }
    // Gives the oldest poisoned blocks back to the upstream until the rest fits.
    void evict() noexcept {
        for (;;) {
            few_reports found;
            const typename records::node_type oldest = with(lock_, [&] {
                if (kept_first_ == 0 || kept_bytes_ <= options_.quarantine_bytes) {
                    return typename records::node_type{};
                }
                auto block = kept_.extract(kept_first_);
                kept_first_ = block.mapped().next_kept;
                kept_bytes_ -= block.mapped().bytes;
                examine_poison(block.key(), block.mapped(), found);
                return block;
            });
            raise_all(found);
            if (oldest.empty()) {
                return;
            }
            const record& old = oldest.mapped();
            this->upstream().deallocate_sync(to_pointer(oldest.key() - old.before),
                                             total_bytes(old), raw_alignment(old));
        }
    }
    // Guards and poison that were found damaged are made whole, so that each fault is told once.
    template <class Reports>
    void examine_guards(address at, const record& live, Reports& found) const {
        auto* begin = static_cast<unsigned char*>(to_pointer(at));
        if (const auto damage = find_other(begin - live.before, live.before, guard_byte)) {
            const auto offset =
                static_cast<std::ptrdiff_t>(*damage) - static_cast<std::ptrdiff_t>(live.before);
            found.push_back({debug_fault::underrun, begin, live.bytes, offset, 0, live.number});
            std::memset(begin - live.before, guard_byte, live.before);
        }
        if (const auto damage = find_other(begin + live.bytes, guard_bytes_, guard_byte)) {
            const auto offset = static_cast<std::ptrdiff_t>(live.bytes + *damage);
            found.push_back({debug_fault::overrun, begin, live.bytes, offset, 0, live.number});
            std::memset(begin + live.bytes, guard_byte, guard_bytes_);
        }
    }
    template <class Reports>
    static void examine_poison(address at, const record& old, Reports& found) {
        auto* begin = static_cast<unsigned char*>(to_pointer(at));
        if (const auto damage = find_other(begin, old.bytes, freed_byte)) {
            found.push_back({debug_fault::use_after_free, begin, old.bytes,
                             static_cast<std::ptrdiff_t>(*damage), 0, old.number});
            std::memset(begin, freed_byte, old.bytes);
        }
    }
    // Where the first byte lies that is not the expected one.
    [[nodiscard]] static std::optional<std::size_t> find_other(const unsigned char* begin,
                                                               std::size_t bytes,
                                                               unsigned char expected) noexcept {
        // All bytes equal their neighbour and the first one is right: memcmp is many times faster.
        if (bytes == 0 || (*begin == expected && std::memcmp(begin, begin + 1, bytes - 1) == 0)) {
            return std::nullopt;
        }
        const auto* other =
            std::find_if(begin, begin + bytes, [&](unsigned char b) { return b != expected; });
        return static_cast<std::size_t>(other - begin);
    }
    [[nodiscard]] std::size_t total_bytes(const record& block) const noexcept {
        return block.before + block.bytes + guard_bytes_;
    }
    [[nodiscard]] std::size_t raw_alignment(const record& block) const noexcept {
        return std::max(block.alignment, host_alignment);
    }
    template <class Reports>
    void raise_all(const Reports& found) const {
        for (const debug_report& one : found) {
            raise(one);
        }
    }
    void raise(const debug_report& report) const {
        if (options_.handler != nullptr) {
            options_.handler(report, options_.context);
            return;
        }
        std::fprintf(stderr,
                     "xmm: debug resource: block %" PRIu64
                     " at %p of %zu bytes: %s (offset %td, told %zu)\n",
                     report.number, report.pointer, report.bytes, name_of(report.fault),
                     report.offset, report.told);
        std::abort();
    }

    debug_options options_;
    std::size_t guard_bytes_;
    mutable ranked_mutex<lock_rank::leaf> lock_;
    records live_;            // under lock_, as all below
    records kept_;            // given back, poisoned, not yet the upstream's again
    address kept_first_ = 0;  // the oldest of them
    address kept_last_ = 0;
    std::size_t kept_bytes_ = 0;
    std::uint64_t last_number_ = 0;
};

}  // namespace xmm
