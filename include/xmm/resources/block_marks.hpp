// SPDX-License-Identifier: Apache-2.0
// block_marks.hpp - what stands beside a range of small blocks in host memory: one byte for each 256 bytes.
//
// Model    The byte where a block begins says its class and whether it is in the program's hands; all others
//          are 0. So a pointer is checked without touching the device: a block given back twice, or a
//          pointer into the middle of one, is seen.
// Threads  A byte is written by whoever holds its block. Two threads that give back one block at the same
//          moment may both be believed.
// Failure  open() is false without memory. Pages of marks that were never written cost nothing.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include <sys/mman.h>

#include <xmm/core/config.hpp>
#include <xmm/core/types.hpp>
#include <xmm/resources/block_classes.hpp>

namespace xmm {

// The marks of a range, which someone else holds; empty: of none.
class mark_view {
public:
    mark_view() = default;

    [[nodiscard]] va_range range() const noexcept { return range_; }
    [[nodiscard]] bool contains(address at) const noexcept { return range_.contains(at); }

    // A block begins there, not yet in the program's hands.
    void enter(address at, unsigned block_class) const noexcept {
        set(at, static_cast<std::uint8_t>(block_class + 1));
    }
    // No block begins there any more.
    void clear(address at) const noexcept { set(at, 0); }
    void give(address at, unsigned block_class) const noexcept {
        set(at, static_cast<std::uint8_t>(is_given | (block_class + 1)));
    }
    // The class of the block in the program's hands that begins there; -1 if there is none.
    [[nodiscard]] int peek(address at) const noexcept {
        const std::uint8_t now = at % block_classes::unit == 0 ? get(at) : std::uint8_t{0};
        return (now & is_given) == 0 ? -1 : (now & ~is_given) - 1;
    }
    // The same, and the program has it no more.
    [[nodiscard]] int take(address at) const noexcept {
        const int block_class = peek(at);
        if (block_class >= 0) {
            enter(at, static_cast<unsigned>(block_class));
        }
        return block_class;
    }
    // The block in the program's hands around an address; empty if there is none.
    [[nodiscard]] va_range find(address at) const noexcept {
        if (!contains(at)) {
            return {};
        }
        const address last = align_down(at, block_classes::unit);
        for (std::size_t back = 0; back < block_classes::largest_bytes;
             back += block_classes::unit) {
            if (last - range_.begin < back) {
                break;
            }
            const std::uint8_t here = get(last - back);
            if ((here & is_given) != 0) {
                const std::size_t bytes = block_classes::bytes_of((here & ~is_given) - 1u);
                return at - (last - back) < bytes ? va_range{last - back, bytes} : va_range{};
            }
        }
        return {};
    }
    // The first block in the program's hands that begins there or later; empty: there is none.
    [[nodiscard]] va_range find_next(address from) const noexcept {
        for (address at = std::max(align_up(from, block_classes::unit), range_.begin);
             at < range_.end(); at += block_classes::unit) {
            if (const std::uint8_t here = get(at); (here & is_given) != 0) {
                return {at, block_classes::bytes_of((here & ~is_given) - 1u)};
            }
        }
        return {};
    }
    // fn(va_range) for each block in the program's hands; others may come and go meanwhile.
    template <class Fn>
    void for_each(va_range part, Fn&& fn) const {
        for (address at = part.begin; at < part.end(); at += block_classes::unit) {
            if (const std::uint8_t here = get(at); (here & is_given) != 0) {
                fn(va_range{at, block_classes::bytes_of((here & ~is_given) - 1u)});
            }
        }
    }

private:
    friend class block_marks;
    using mark = std::atomic<std::uint8_t>;
    static constexpr std::uint8_t is_given = 0x80;

    mark_view(va_range range, mark* marks) noexcept : range_{range}, marks_{marks} {}

    // relaxed: whoever has the block wrote its mark; blocks change hands through locks or the program's own
    // order. Others only report.
    [[nodiscard]] std::uint8_t get(address at) const noexcept {
        return marks_[(at - range_.begin) / block_classes::unit].load(std::memory_order_relaxed);
    }
    void set(address at, std::uint8_t to) const noexcept {
        marks_[(at - range_.begin) / block_classes::unit].store(to, std::memory_order_relaxed);
    }

    va_range range_;
    mark* marks_ = nullptr;
};

// The marks of a range of whole units, and the memory that they lie in.
class block_marks : public mark_view {
public:
    block_marks() = default;
    block_marks(const block_marks&) = delete;
    block_marks& operator=(const block_marks&) = delete;
    ~block_marks() { close(); }

    // Until close(). False: no memory.
    [[nodiscard]] bool open(va_range range) noexcept {
        XMM_ASSERT(range.bytes % block_classes::unit == 0, "marks stand for whole units");
        void* at = ::mmap(nullptr, range.bytes / block_classes::unit, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) {
            return false;
        }
        static_cast<mark_view&>(*this) = {range, static_cast<mark*>(at)};
        return true;
    }
    void close() noexcept {
        if (marks_ != nullptr) {
            ::munmap(marks_, range_.bytes / block_classes::unit);
            static_cast<mark_view&>(*this) = {};
        }
    }
};

}  // namespace xmm
