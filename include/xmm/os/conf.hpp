// SPDX-License-Identifier: Apache-2.0
// conf.hpp - the XMM_CONF environment: a list of key:value.
//
// Model    XMM_CONF="userfaultfd:off,service_threads:8"; entries end at a comma or semicolon, blanks
//          around them do not count, a later entry wins. A key is known once it stands in known_keys.
// Threads  Read once per process, constant after.
// Failure  Never fatal: an unknown key and a malformed value each cost one warning on stderr, and the
//          default holds.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

#include <xmm/core/config.hpp>
#include <xmm/os/registry.hpp>

namespace xmm {

struct conf_key {
    std::string_view name;
    std::string_view meaning;
};

class conf {
public:
    static constexpr const char* registry_key = "conf/1";

    // A new key comes here, with what it means.
    static constexpr std::array known_keys = {
        conf_key{"userfaultfd",
                 "on|off: serve CPU faults by userfaultfd where the kernel grants it (on)"},
        conf_key{"service_threads", "threads that serve CPU faults, 1 to 64 (4)"},
        conf_key{"cuda",
                 "off|vmm|managed: CUDA devices, and their mode, for spaces that name none (vmm)"},
        conf_key{"levelzero",
                 "on|off: Level Zero devices for spaces that name none, where CUDA has none (on)"},
        conf_key{"check_launches",
                 "on|off: report work that no launch named while pages leave its device (off)"},
        conf_key{"soft_devices", "software XPUs where there is no device, 1 to 8 (1)"},
        conf_key{"soft_bytes",
                 "memory of each, from 16M to 128T (a quarter of the host's, at most 1 GiB)"},
        conf_key{"soft_link", "bytes a second of each one's link, each way; 0 is unlimited (0)"},
    };

    // The conf of this process.
    static const conf& of_process() noexcept { return registry::object<conf>(); }

    conf() noexcept : conf{::secure_getenv("XMM_CONF")} {}
    explicit conf(const char* text) noexcept;

    [[nodiscard]] std::string_view text(std::string_view key,
                                        std::string_view otherwise) const noexcept {
        const entry* found = find(key);
        return found != nullptr ? found->value : otherwise;
    }
    // on, true, yes, 1; off, false, no, 0.
    [[nodiscard]] bool flag(std::string_view key, bool otherwise) const noexcept;
    // Decimal, within [least, most].
    [[nodiscard]] std::uint64_t number(std::string_view key, std::uint64_t otherwise,
                                       std::uint64_t least = 0,
                                       std::uint64_t most = UINT64_MAX) const noexcept;
    // Decimal with an optional K, M, G or T (powers of 1024; "KiB" and "KB" mean the same). What is below `least`,
    // whole MiB or none, is said and raised to it.
    [[nodiscard]] std::size_t bytes(std::string_view key, std::size_t otherwise,
                                    std::size_t least = 0) const noexcept;

private:
    static constexpr std::size_t text_bytes = 4096;
    static constexpr std::size_t entry_count = 64;

    struct entry {
        std::string_view key;
        std::string_view value;
        mutable std::atomic<bool> has_warned{false};
    };

    [[nodiscard]] const entry* find(std::string_view key) const noexcept {
        XMM_ASSERT(is_known(key), "asked for a key that is not among conf::known_keys");
        for (std::size_t i = count_; i-- > 0;) {
            if (entries_[i].key == key) {
                return &entries_[i];
            }
        }
        return nullptr;
    }
    [[nodiscard]] static bool is_known(std::string_view key) noexcept {
        for (const conf_key& known : known_keys) {
            if (known.name == key) {
                return true;
            }
        }
        return false;
    }
    void add(std::string_view one) noexcept;
    static void warn_malformed(const entry& bad, const char* expected,
                               const char* outcome = "the default is kept") noexcept {
        // relaxed: the flag only says who prints.
        if (bad.has_warned.exchange(true, std::memory_order_relaxed)) {
            return;
        }
        std::fprintf(stderr, "xmm: XMM_CONF: %.*s:%.*s: expected %s; %s\n",
                     static_cast<int>(bad.key.size()), bad.key.data(),
                     static_cast<int>(bad.value.size()), bad.value.data(), expected, outcome);
    }

    char text_[text_bytes];  // the views of the entries point into it, so conf stays where it is
    entry entries_[entry_count];
    std::size_t count_ = 0;

public:
    conf(const conf&) = delete;
    conf& operator=(const conf&) = delete;
};

namespace detail {

[[nodiscard]] constexpr std::string_view trim(std::string_view text) noexcept {
    constexpr std::string_view blanks = " \t\r\n";
    const std::size_t begin = text.find_first_not_of(blanks);
    return begin == std::string_view::npos
               ? std::string_view{}
               : text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

// Takes the digits off the front of text; false if there are none or too many.
[[nodiscard]] constexpr bool take_number(std::string_view& text, std::uint64_t& value) noexcept {
    std::size_t digits = 0;
    value = 0;
    for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
        const auto digit = static_cast<std::uint64_t>(text[digits] - '0');
        if (value > (UINT64_MAX - digit) / 10) {
            return false;
        }
        value = value * 10 + digit;
    }
    text.remove_prefix(digits);
    return digits > 0;
}

[[nodiscard]] constexpr bool is_one_of(std::string_view text,
                                       std::initializer_list<std::string_view> words) noexcept {
    for (const std::string_view word : words) {
        if (text == word) {
            return true;
        }
    }
    return false;
}

// How far a size's suffix shifts; -1 if it is none.
[[nodiscard]] constexpr int shift_of(std::string_view suffix) noexcept {
    if (is_one_of(suffix, {"", "B", "b"})) {
        return 0;
    }
    const std::string_view rest = suffix.substr(1);
    if (!is_one_of(rest, {"", "B", "b", "iB", "ib"})) {
        return -1;
    }
    switch (suffix[0]) {
        case 'k':
        case 'K': return 10;
        case 'm':
        case 'M': return 20;
        case 'g':
        case 'G': return 30;
        case 't':
        case 'T': return 40;
        default: return -1;
    }
}

}  // namespace detail

inline conf::conf(const char* text) noexcept {
    if (text == nullptr) {
        return;
    }
    std::size_t length = 0;
    for (; text[length] != '\0' && length < text_bytes; ++length) {
        text_[length] = text[length];
    }
    if (text[length] != '\0') {
        std::fprintf(stderr, "xmm: XMM_CONF: only the first %zu characters are read\n", text_bytes);
    }
    std::string_view rest{text_, length};
    while (!rest.empty()) {
        const std::size_t end = rest.find_first_of(",;");
        add(detail::trim(rest.substr(0, end)));
        rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    }
}

inline void conf::add(std::string_view one) noexcept {
    if (one.empty()) {
        return;
    }
    const std::size_t colon = one.find(':');
    const std::string_view key = detail::trim(one.substr(0, colon));
    if (colon == std::string_view::npos) {
        std::fprintf(stderr, "xmm: XMM_CONF: \"%.*s\" is passed over: an entry is key:value\n",
                     static_cast<int>(one.size()), one.data());
        return;
    }
    const std::string_view value = detail::trim(one.substr(colon + 1));
    if (!is_known(key)) {
        std::fprintf(stderr, "xmm: XMM_CONF: unknown key \"%.*s\"; known are",
                     static_cast<int>(key.size()), key.data());
        for (const conf_key& known : known_keys) {
            std::fprintf(stderr, " %s", known.name.data());
        }
        std::fprintf(stderr, "\n");
        return;
    }
    if (count_ == entry_count) {
        std::fprintf(stderr, "xmm: XMM_CONF: only the first %zu entries are read\n", entry_count);
        return;
    }
    entries_[count_].key = key;
    entries_[count_].value = value;
    ++count_;
}

inline bool conf::flag(std::string_view key, bool otherwise) const noexcept {
    const entry* found = find(key);
    if (found == nullptr) {
        return otherwise;
    }
    if (detail::is_one_of(found->value, {"on", "true", "yes", "1"})) {
        return true;
    }
    if (detail::is_one_of(found->value, {"off", "false", "no", "0"})) {
        return false;
    }
    warn_malformed(*found, "on or off");
    return otherwise;
}

inline std::uint64_t conf::number(std::string_view key, std::uint64_t otherwise,
                                  std::uint64_t least, std::uint64_t most) const noexcept {
    const entry* found = find(key);
    if (found == nullptr) {
        return otherwise;
    }
    std::string_view rest = found->value;
    std::uint64_t value = 0;
    if (detail::take_number(rest, value) && rest.empty() && value >= least && value <= most) {
        return value;
    }
    char expected[64];
    std::snprintf(expected, sizeof expected, "a number from %llu to %llu",
                  static_cast<unsigned long long>(least), static_cast<unsigned long long>(most));
    warn_malformed(*found, expected);
    return otherwise;
}

inline std::size_t conf::bytes(std::string_view key, std::size_t otherwise,
                               std::size_t least) const noexcept {
    const entry* found = find(key);
    if (found == nullptr) {
        return otherwise;
    }
    char expected[64] = "bytes, as 65536, 64K, 2M or 1G";
    if (least > 0) {
        std::snprintf(expected, sizeof expected, "bytes from %zuM, as %zuM or 2G", least >> 20,
                      least >> 19);
    }
    std::string_view rest = found->value;
    std::uint64_t value = 0;
    if (detail::take_number(rest, value)) {
        const int shift = detail::shift_of(detail::trim(rest));
        if (shift >= 0 && value <= (SIZE_MAX >> shift)) {
            const std::size_t wanted = static_cast<std::size_t>(value) << shift;
            if (wanted < least) {
                warn_malformed(*found, expected, "the least is taken");
            }
            return std::max(wanted, least);
        }
    }
    warn_malformed(*found, expected);
    return otherwise;
}

}  // namespace xmm
