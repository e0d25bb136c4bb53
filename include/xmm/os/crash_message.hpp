// SPDX-License-Identifier: Apache-2.0
// crash_message.hpp - a line on stderr from a signal handler.
//
// Model    Put together in place, without malloc or stdio, and written by one system call.
// Threads  Async-signal-safe. errno may change.
// Failure  What does not fit is left out.
#pragma once

#include <string_view>

#include <unistd.h>

#include <xmm/core/types.hpp>

namespace xmm::detail {

class crash_message {
public:
    crash_message& add(std::string_view text) noexcept {
        for (const char c : text) {
            if (length_ < sizeof text_) {
                text_[length_++] = c;
            }
        }
        return *this;
    }
    crash_message& add(address at) noexcept {
        add("0x");
        int shift = 60;
        while (shift > 0 && (at >> shift) == 0) {
            shift -= 4;
        }
        for (; shift >= 0; shift -= 4) {
            add({&"0123456789abcdef"[(at >> shift) & 15], 1});
        }
        return *this;
    }
    void write() noexcept {
        add("\n");
        [[maybe_unused]] const ssize_t done = ::write(STDERR_FILENO, text_, length_);
    }

private:
    char text_[512];
    std::size_t length_ = 0;
};

}  // namespace xmm::detail
