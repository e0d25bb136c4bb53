// SPDX-License-Identifier: Apache-2.0
// progress.hpp - how far long work has come, on the error stream.
//
// Model    On a terminal one line that is redrawn at most ten times a second and cleared at the
//          end; else one plain line when the work is done, so that a log stays short. Silent if
//          told so.
// Threads  One.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "format.hpp"

namespace xmm::demo {

enum class progress_style : std::uint8_t { silent, lines, bar };

[[nodiscard]] inline progress_style default_progress_style() noexcept {
    return isatty(STDERR_FILENO) != 0 ? progress_style::bar : progress_style::lines;
}

class progress_bar {
public:
    progress_bar(std::string title, std::uint64_t total, progress_style style,
                 std::FILE* out = stderr)
        : title_{std::move(title)},
          total_{std::max<std::uint64_t>(total, 1)},
          style_{style},
          out_{out} {
        show(0);
    }
    progress_bar(const progress_bar&) = delete;
    progress_bar& operator=(const progress_bar&) = delete;
    ~progress_bar() {
        if (style_ == progress_style::bar) {
            std::fputs("\r\033[K", out_);
            std::fflush(out_);
        }
    }

    // Cheap enough to be called for every step.
    void show(std::uint64_t done) {
        const std::uint64_t percent = std::min(done, total_) * 100 / total_;
        if (style_ == progress_style::lines) {
            if (done >= total_ && !std::exchange(is_over_, true)) {
                fmt::print(out_, "{}: {:.1f} s\n", title_, seconds());
            }
        } else if (style_ == progress_style::bar) {
            const auto now = clock::now();
            if (done >= total_ || now - drawn_ >= std::chrono::milliseconds{100}) {
                drawn_ = now;
                draw(percent);
            }
        }
    }

private:
    using clock = std::chrono::steady_clock;

    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(clock::now() - begin_).count();
    }
    void draw(std::uint64_t percent) {
        constexpr std::size_t width = 32;
        const std::size_t full = static_cast<std::size_t>(percent) * width / 100;
        fmt::print(out_, "\r{:<28} [{}{}] {:3} %  {:.0f} s\033[K", title_, std::string(full, '#'),
                   std::string(width - full, '.'), percent, seconds());
        std::fflush(out_);
    }

    std::string title_;
    std::uint64_t total_;
    progress_style style_;
    std::FILE* out_;
    bool is_over_ = false;
    clock::time_point begin_ = clock::now();
    clock::time_point drawn_{};
};

}  // namespace xmm::demo
