// SPDX-License-Identifier: Apache-2.0
// text.hpp - names as other formats may hold them: UTF-8 without a flaw, and JSON strings.
//
// Threads  Any.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

namespace xmm::detail {

// How many bytes of well-formed UTF-8 begin here, one character; 0: none.
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) noexcept {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(0);
    const std::size_t length = first < 0x80                    ? 1
                               : first >= 0xc2 && first < 0xe0 ? 2
                               : first >= 0xe0 && first < 0xf0 ? 3
                               : first >= 0xf0 && first < 0xf5 ? 4
                                                               : 0;
    if (length == 0 || length > text.size()) {
        return 0;
    }
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) {
            return 0;
        }
    }
    // Neither longer than need be, nor half of a UTF-16 pair, nor beyond the last character.
    const bool is_bad = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) >= 0xa0) ||
                        (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) >= 0x90);
    return is_bad ? 0 : length;
}

// The text, each byte that is no UTF-8 replaced by U+FFFD.
[[nodiscard]] inline std::string clean_utf8(std::string_view text) {
    std::string clean;
    clean.reserve(text.size());
    while (!text.empty()) {
        const std::size_t length = utf8_length(text);
        clean += length != 0 ? text.substr(0, length) : std::string_view{"\xef\xbf\xbd"};
        text.remove_prefix(length != 0 ? length : 1);
    }
    return clean;
}

// With its quotes.
[[nodiscard]] inline std::string json_string(std::string_view text) {
    std::string quoted = "\"";
    for (const char c : clean_utf8(text)) {
        if (c == '"' || c == '\\') {
            quoted += '\\';
            quoted += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned char>(c));
            quoted += escape;
        } else {
            quoted += c;
        }
    }
    return quoted + '"';
}

}  // namespace xmm::detail
