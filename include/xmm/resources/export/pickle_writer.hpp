// SPDX-License-Identifier: Apache-2.0
// pickle_writer.hpp - plain values as Python's pickle, protocol 2.
//
// Model    Dictionaries, lists, pairs, numbers, strings; nothing that a reader would have to look up or run.
// Threads  One.
// Failure  As the stream reports it; std::bad_alloc.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include <xmm/resources/export/text.hpp>

namespace xmm::detail {

class pickle_writer {
public:
    explicit pickle_writer(std::ostream& out) : out_{out} { out_ << "\x80\x02"; }

    void finish() { put('.'); }
    void none() { put('N'); }
    void boolean(bool value) { put(value ? '\x88' : '\x89'); }
    void real(double value) {
        put('G');
        const auto bits = std::bit_cast<std::uint64_t>(value);
        for (int shift = 56; shift >= 0; shift -= 8) {
            put(static_cast<char>(bits >> shift & 0xff));
        }
    }
    // Whatever is written as a signed or unsigned number of 64 bits.
    template <std::integral T>
    void number(T value) {
        const auto bits = static_cast<std::uint64_t>(value);
        const bool is_negative = std::is_signed_v<T> && value < T{};
        if (!is_negative && bits < 0x100) {
            put('K');
            little_endian(bits, 1);
        } else if (!is_negative && bits < 0x10000) {
            put('M');
            little_endian(bits, 2);
        } else {
            // As many bytes as it takes for the highest bit to say the sign.
            int bytes = 8;
            while (bytes > 1 && is_sign_only(bits, bytes - 1, is_negative)) {
                --bytes;
            }
            const bool needs_sign = !is_negative && bytes == 8 && bits >> 63 != 0;
            put('\x8a');
            put(static_cast<char>(bytes + (needs_sign ? 1 : 0)));
            little_endian(bits, bytes);
            if (needs_sign) {
                put('\0');
            }
        }
    }
    // The same text again is a reference to the first.
    void string(std::string_view text) {
        const auto [entry, is_new] =
            memo_.emplace(std::string{text}, static_cast<std::uint32_t>(memo_.size()));
        if (!is_new) {
            reference('h', 'j', entry->second);
            return;
        }
        const std::string clean = clean_utf8(text);
        put('X');
        little_endian(clean.size(), 4);
        out_ << clean;
        reference('q', 'r', entry->second);
    }
    // fn() writes keys and values in turn; value(key, ...) does both.
    template <class Fn>
    void dictionary(Fn&& fn) {
        out_ << "}(";
        fn();
        put('u');
    }
    // each(item) for each of them.
    template <class Items, class Fn>
    void list(const Items& items, Fn&& each) {
        constexpr std::size_t most = 1000;  // at once: readers hold them on a stack
        put(']');
        std::size_t open = 0;
        for (const auto& item : items) {
            if (open == 0) {
                put('(');
            }
            each(item);
            if (++open == most) {
                put('e');
                open = 0;
            }
        }
        if (open != 0) {
            put('e');
        }
    }
    void empty_list() { put(']'); }
    template <std::integral A, std::integral B>
    void pair(A a, B b) {
        number(a);
        number(b);
        put('\x86');
    }
    void entry(std::string_view key, std::string_view value) {
        string(key);
        string(value);
    }
    void entry(std::string_view key, const char* value) { entry(key, std::string_view{value}); }
    void entry(std::string_view key, bool value) {
        string(key);
        boolean(value);
    }
    template <std::integral T>
    void entry(std::string_view key, T value) {
        string(key);
        number(value);
    }

private:
    void put(char c) { out_.put(c); }
    void little_endian(std::uint64_t value, int bytes) {
        for (int i = 0; i < bytes; ++i) {
            put(static_cast<char>(value >> (8 * i) & 0xff));
        }
    }
    void reference(char with_one_byte, char with_four, std::uint32_t place) {
        put(place < 0x100 ? with_one_byte : with_four);
        little_endian(place, place < 0x100 ? 1 : 4);
    }
    // Whether what is above the lowest bytes repeats their highest bit.
    [[nodiscard]] static bool is_sign_only(std::uint64_t bits, int bytes,
                                           bool is_negative) noexcept {
        return bits >> (8 * bytes - 1) == (is_negative ? ~std::uint64_t{} >> (8 * bytes - 1) : 0);
    }

    std::ostream& out_;
    std::unordered_map<std::string, std::uint32_t> memo_;
};

}  // namespace xmm::detail
