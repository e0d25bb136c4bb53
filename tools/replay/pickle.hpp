// SPDX-License-Identifier: Apache-2.0
// pickle.hpp - plain data out of a Python pickle, protocols 2 to 5. Nothing in the file is ever executed.
//
// Model    Containers, numbers, text, None, True and False; what would load a class, call or persist is
//          refused by its name. One opcode makes at most one value and shared parts stay shared, so memory
//          is in proportion to the file. Values refer to each other by index: a cycle is harmless to whoever
//          walks a fixed number of levels.
// Failure  bad_input with file, offset and reason.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../demo/bad_input.hpp"
#include "../demo/format.hpp"

namespace xmm::trace_replay {

using demo::bad_input;

class pickle {
public:
    enum class kind : std::uint8_t {
        none,
        boolean,
        integer,
        large_integer,  // outside of 64 bits; its value is not kept
        real,
        text,
        bytes,
        list,  // and tuples and sets
        dictionary,
    };
    struct value {
        kind what = kind::none;
        std::uint64_t bits = 0;  // the number itself, or where to find the rest
    };

    // The text must outlive the pickle: strings stay in it.
    static pickle parse(const std::string& name, std::string_view text);

    [[nodiscard]] value root() const noexcept { return root_; }
    [[nodiscard]] const std::vector<value>& items(value list) const {
        static const std::vector<value> none;
        return list.what == kind::list ? lists_[list.bits] : none;
    }
    [[nodiscard]] std::optional<std::string_view> text(value one) const {
        return one.what == kind::text ? std::optional{strings_[one.bits]} : std::nullopt;
    }
    [[nodiscard]] static std::optional<std::int64_t> integer(value one) noexcept {
        return one.what == kind::integer ? std::optional{static_cast<std::int64_t>(one.bits)}
                                         : std::nullopt;
    }
    // What the key had last, as in Python. Made for records: one with thousands of keys has none that is
    // sought, else a small file could keep the reader busy for days.
    [[nodiscard]] std::optional<value> find(value dictionary, std::string_view key) const {
        if (dictionary.what != kind::dictionary ||
            dictionaries_[dictionary.bits].size() > most_keys) {
            return std::nullopt;
        }
        const auto& pairs = dictionaries_[dictionary.bits];
        for (auto at = pairs.rbegin(); at != pairs.rend(); ++at) {
            if (at->first.what == kind::text && strings_[at->first.bits] == key) {
                return at->second;
            }
        }
        return std::nullopt;
    }

private:
    class parser;
    static constexpr std::size_t most_keys = 1000;
    pickle() = default;

    std::vector<std::string_view> strings_;
    std::vector<std::vector<value>> lists_;
    std::vector<std::vector<std::pair<value, value>>> dictionaries_;
    value root_;
};

class pickle::parser {
public:
    parser(std::string_view name, std::string_view text, pickle& out)
        : name_{name}, text_{text}, out_{out} {}

    void run() {
        if (text_.size() < 2 || text_[0] != '\x80') {
            fail("not a pickle of protocol 2 or newer");
        }
        while (step()) {
        }
        out_.root_ = pop();
        if (!stack_.empty()) {
            fail("values are left over at the end");
        }
    }

private:
    // Python's own pickler nests marks as deep as the data; real snapshots have fewer than ten levels.
    static constexpr std::size_t most_marks = 1000;

    [[noreturn]] void fail(std::string_view why) const {
        throw bad_input(fmt::format("{}: byte {}: {}", name_, opcode_at_, why));
    }
    [[noreturn]] void refuse(const char* opcode) const {
        fail(
            fmt::format("opcode {} loads or calls something of the program that wrote it; only "
                        "plain data is read",
                        opcode));
    }

    [[nodiscard]] std::string_view take(std::uint64_t count) {
        if (count > text_.size() - at_) {
            fail("the pickle is cut short");
        }
        const std::string_view out = text_.substr(at_, static_cast<std::size_t>(count));
        at_ += static_cast<std::size_t>(count);
        return out;
    }
    [[nodiscard]] std::uint64_t little_endian(unsigned count) {
        std::uint64_t out = 0;
        const std::string_view bytes = take(count);
        for (unsigned i = 0; i < count; ++i) {
            out |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
        }
        return out;
    }

    void push(kind what, std::uint64_t bits) { stack_.push_back({what, bits}); }
    void push_string(kind what, std::uint64_t bytes) {
        out_.strings_.push_back(take(bytes));
        push(what, out_.strings_.size() - 1);
    }
    void push_list(std::vector<value> items) {
        out_.lists_.push_back(std::move(items));
        push(kind::list, out_.lists_.size() - 1);
    }
    // An integer of any length, two's complement.
    void push_long(std::uint64_t count) {
        const std::string_view bytes = take(count);
        std::uint64_t bits = 0;
        const bool is_negative =
            !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
        const auto fill = static_cast<char>(is_negative ? 0xff : 0);
        bool fits = true;
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            if (i < 8) {
                bits |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
            } else {
                fits = fits && bytes[i] == fill;
            }
        }
        if (bytes.size() < 8 && is_negative) {
            bits |= ~std::uint64_t{0} << (8 * bytes.size());
        }
        fits = fits && (bits >> 63 != 0) == is_negative;
        push(fits ? kind::integer : kind::large_integer, fits ? bits : 0);
    }

    [[nodiscard]] value pop() {
        if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
            fail("a value is missing");
        }
        const value out = stack_.back();
        stack_.pop_back();
        return out;
    }
    [[nodiscard]] value& top() {
        if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
            fail("a value is missing");
        }
        return stack_.back();
    }
    // Everything above the last mark.
    [[nodiscard]] std::vector<value> pop_marked() {
        if (marks_.empty()) {
            fail("a mark is missing");
        }
        const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
        std::vector<value> out{begin, stack_.end()};
        stack_.erase(begin, stack_.end());
        marks_.pop_back();
        return out;
    }

    [[nodiscard]] std::vector<value>& list_on_top() {
        if (top().what != kind::list) {
            fail("an item for what is no list");
        }
        return out_.lists_[top().bits];
    }
    [[nodiscard]] std::vector<std::pair<value, value>>& dictionary_on_top() {
        if (top().what != kind::dictionary) {
            fail("a key for what is no dictionary");
        }
        return out_.dictionaries_[top().bits];
    }
    void add_pairs(const std::vector<value>& items) {
        if (items.size() % 2 != 0) {
            fail("a key without a value");
        }
        auto& pairs = dictionary_on_top();
        for (std::size_t i = 0; i < items.size(); i += 2) {
            pairs.emplace_back(items[i], items[i + 1]);
        }
    }
    void push_tuple(std::size_t count) {
        std::vector<value> items(count);
        for (std::size_t i = count; i-- > 0;) {
            items[i] = pop();
        }
        push_list(std::move(items));
    }
    void remember(std::uint64_t name) { memo_[name] = top(); }
    void recall(std::uint64_t name) {
        const auto found = memo_.find(name);
        if (found == memo_.end()) {
            fail("recalls what was never remembered");
        }
        stack_.push_back(found->second);
    }

    // False at the end.
    [[nodiscard]] bool step() {
        opcode_at_ = at_;
        const auto opcode = static_cast<unsigned char>(take(1)[0]);
        switch (opcode) {
            case 0x80: {
                const std::uint64_t protocol = little_endian(1);
                if (protocol < 2 || protocol > 5) {
                    fail(fmt::format("protocol {} is not one of 2 to 5", protocol));
                }
                return true;
            }
            case 0x95:  // FRAME: how much the writer wrote at once
                if (little_endian(8) > text_.size() - at_) {
                    fail("the pickle is cut short");
                }
                return true;
            case '.': return false;
            case '(':
                if (marks_.size() == most_marks) {
                    fail("nested too deeply");
                }
                marks_.push_back(stack_.size());
                return true;
            case '0': (void)pop(); return true;
            case '1': (void)pop_marked(); return true;
            case '2': {
                const value again = top();
                stack_.push_back(again);
                return true;
            }
            case 'N': push(kind::none, 0); return true;
            case 0x88: push(kind::boolean, 1); return true;
            case 0x89: push(kind::boolean, 0); return true;
            case 'K': push(kind::integer, little_endian(1)); return true;
            case 'M': push(kind::integer, little_endian(2)); return true;
            case 'J':
                push(kind::integer,
                     static_cast<std::uint64_t>(std::int64_t{
                         static_cast<std::int32_t>(static_cast<std::uint32_t>(little_endian(4)))}));
                return true;
            case 0x8a: push_long(little_endian(1)); return true;
            case 0x8b: {
                const std::uint64_t count = little_endian(4);
                if (count > INT32_MAX) {
                    fail("an integer of negative length");
                }
                push_long(count);
                return true;
            }
            case 'G': {
                std::uint64_t bits = 0;
                for (const char one : take(8)) {
                    bits = bits << 8 | static_cast<unsigned char>(one);
                }
                push(kind::real, bits);
                return true;
            }
            case 'X': push_string(kind::text, little_endian(4)); return true;
            case 0x8c: push_string(kind::text, little_endian(1)); return true;
            case 0x8d: push_string(kind::text, little_endian(8)); return true;
            case 'T':  // a string of Python 2
            case 'B':
                push_string(opcode == 'T' ? kind::text : kind::bytes, little_endian(4));
                return true;
            case 'U':
            case 'C':
                push_string(opcode == 'U' ? kind::text : kind::bytes, little_endian(1));
                return true;
            case 0x8e:
            case 0x96: push_string(kind::bytes, little_endian(8)); return true;
            case ']':
            case ')':
            case 0x8f: push_list({}); return true;
            case '}':
                out_.dictionaries_.emplace_back();
                push(kind::dictionary, out_.dictionaries_.size() - 1);
                return true;
            case 'a': {
                const value item = pop();
                list_on_top().push_back(item);
                return true;
            }
            case 'e':
            case 0x90: {
                const std::vector<value> items = pop_marked();
                auto& list = list_on_top();
                list.insert(list.end(), items.begin(), items.end());
                return true;
            }
            case 's': {
                const value item = pop();
                const value key = pop();
                dictionary_on_top().emplace_back(key, item);
                return true;
            }
            case 'u': add_pairs(pop_marked()); return true;
            case 't':
            case 'l':
            case 0x91: push_list(pop_marked()); return true;
            case 'd': {
                const std::vector<value> items = pop_marked();
                out_.dictionaries_.emplace_back();
                push(kind::dictionary, out_.dictionaries_.size() - 1);
                add_pairs(items);
                return true;
            }
            case 0x85:
            case 0x86:
            case 0x87: push_tuple(opcode - 0x84u); return true;
            case 'q': remember(little_endian(1)); return true;
            case 'r': remember(little_endian(4)); return true;
            case 0x94: remember(memo_.size()); return true;
            case 'h': recall(little_endian(1)); return true;
            case 'j': recall(little_endian(4)); return true;
            case 'c': refuse("GLOBAL");
            case 0x93: refuse("STACK_GLOBAL");
            case 'R': refuse("REDUCE");
            case 'b': refuse("BUILD");
            case 'i': refuse("INST");
            case 'o': refuse("OBJ");
            case 0x81: refuse("NEWOBJ");
            case 0x92: refuse("NEWOBJ_EX");
            case 0x82:
            case 0x83:
            case 0x84: refuse("EXT");
            case 'P': refuse("PERSID");
            case 'Q': refuse("BINPERSID");
            case 0x97: refuse("NEXT_BUFFER");
            case 0x98: refuse("READONLY_BUFFER");
            default: fail(fmt::format("unknown opcode 0x{:02x}", opcode));
        }
    }

    std::string_view name_;
    std::string_view text_;
    pickle& out_;
    std::size_t at_ = 0;
    std::size_t opcode_at_ = 0;
    std::vector<value> stack_;
    std::vector<std::size_t> marks_;  // heights of the stack
    std::unordered_map<std::uint64_t, value> memo_;
};

inline pickle pickle::parse(const std::string& name, std::string_view text) {
    pickle out;
    parser{name, text, out}.run();
    return out;
}

}  // namespace xmm::trace_replay
