// SPDX-License-Identifier: Apache-2.0
// table.hpp - text tables, and figures as people read them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "format.hpp"

namespace xmm::demo {

// MiB below 1 GiB, GiB above, KiB and bytes for small things.
[[nodiscard]] inline std::string show_bytes(std::uint64_t bytes) {
    const auto in = [bytes](unsigned shift) {
        return static_cast<double>(bytes) / static_cast<double>(std::uint64_t{1} << shift);
    };
    if (bytes >= std::uint64_t{1} << 40) {
        return fmt::format("{:.2f} TiB", in(40));
    }
    if (bytes >= std::uint64_t{1} << 30) {
        return fmt::format("{:.2f} GiB", in(30));
    }
    if (bytes >= std::uint64_t{1} << 20) {
        const double mib = in(20);
        return fmt::format("{:.{}f} MiB", mib,
                           mib < 100 && mib != static_cast<double>(bytes >> 20) ? 1 : 0);
    }
    if (bytes >= std::uint64_t{1} << 10) {
        return fmt::format("{:.0f} KiB", in(10));
    }
    return fmt::format("{} B", bytes);
}

[[nodiscard]] inline std::string show_rate(std::uint64_t bytes_per_second) {
    return bytes_per_second == 0
               ? "unlimited"
               : fmt::format("{:.3g} GB/s", static_cast<double>(bytes_per_second) / 1e9);
}

[[nodiscard]] inline std::string show_count(std::uint64_t count) {
    std::string digits = std::to_string(count);
    for (std::size_t at = digits.size(); at > 3;) {
        at -= 3;
        digits.insert(at, 1, ' ');
    }
    return digits;
}

class table {
public:
    // The first `left_columns` columns are aligned to the left, the others to the right.
    explicit table(std::vector<std::string> heads, std::size_t left_columns = 1)
        : left_columns_{left_columns} {
        rows_.push_back(std::move(heads));
    }
    // As many cells as heads; missing ones stay empty.
    void add(std::vector<std::string> cells) {
        cells.resize(rows_.front().size());
        rows_.push_back(std::move(cells));
    }
    [[nodiscard]] std::string text() const {
        std::vector<std::size_t> widths(rows_.front().size());
        for (const auto& row : rows_) {
            for (std::size_t i = 0; i < row.size(); ++i) {
                widths[i] = std::max(widths[i], row[i].size());
            }
        }
        std::string out;
        for (std::size_t r = 0; r < rows_.size(); ++r) {
            std::string line;
            for (std::size_t i = 0; i < widths.size(); ++i) {
                line += i == 0 ? "" : "  ";
                line += i < left_columns_ ? fmt::format("{:<{}}", rows_[r][i], widths[i])
                                          : fmt::format("{:>{}}", rows_[r][i], widths[i]);
            }
            line.erase(line.find_last_not_of(' ') + 1);
            out += line + '\n';
            if (r == 0) {
                for (std::size_t i = 0; i < widths.size(); ++i) {
                    out += (i == 0 ? "" : "  ") + std::string(widths[i], '-');
                }
                out += '\n';
            }
        }
        return out;
    }

private:
    std::vector<std::vector<std::string>> rows_;
    std::size_t left_columns_;
};

}  // namespace xmm::demo
