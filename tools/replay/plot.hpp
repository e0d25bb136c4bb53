// SPDX-License-Identifier: Apache-2.0
// plot.hpp - live and reserved bytes over time, a panel for each trace.
//
// Model    A column is a stretch of time and shows the most within it. Live is filled, each allocator's
//          reserved is a line.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../demo/canvas.hpp"
#include "../demo/format.hpp"
#include "../demo/image.hpp"
#include "report.hpp"
#include "run_trace.hpp"

namespace xmm::trace_replay {

namespace detail {

struct plot_layout {
    static constexpr int left = 86, right = 20, top = 34, bottom = 44, legend = 34;
    static constexpr int width = static_cast<int>(timeline::columns);
    static constexpr int height = 240;
    static constexpr int panel_width = left + width + right;
    static constexpr int panel_height = top + height + bottom;
};

// A step of 1, 2 or 5 times a power of ten: about `parts` of them make up `whole`.
[[nodiscard]] inline double round_step(double whole, double parts) {
    const double rough = whole / parts;
    const double power = std::pow(10.0, std::floor(std::log10(rough)));
    for (const double factor : {1.0, 2.0, 5.0}) {
        if (factor * power >= rough) {
            return factor * power;
        }
    }
    return 10 * power;
}

inline constexpr demo::rgba plot_ink{40, 40, 44, 255};
inline constexpr demo::rgba plot_grid{228, 228, 232, 255};
inline constexpr demo::rgba plot_live{196, 208, 220, 255};

[[nodiscard]] inline demo::rgba line_colour(std::size_t number) {
    constexpr std::array<demo::rgba, 6> colours = {{{0, 98, 142, 255},
                                                    {0, 150, 110, 255},
                                                    {200, 60, 40, 255},
                                                    {230, 140, 20, 255},
                                                    {120, 70, 150, 255},
                                                    {90, 90, 90, 255}}};
    return colours[number % colours.size()];
}

class panel {
public:
    panel(demo::canvas& on, int x, int y, const std::vector<const run_result*>& runs)
        : on_{on}, x_{x + plot_layout::left}, y_{y + plot_layout::top}, runs_{runs} {
        std::uint64_t most = 1;
        for (const run_result* run : runs_) {
            for (const auto* line : {&run->live, &run->reserved}) {
                for (const std::uint64_t bytes : line->most()) {
                    most = std::max(most, bytes);
                }
            }
        }
        top_ = static_cast<double>(most) * 1.05;
    }
    void draw(const std::vector<std::string>& names) {
        const run_result& first = *runs_.front();
        on_.text(x_, y_ - 22, short_name(first.trace), plot_ink);
        draw_grid(static_cast<double>(first.duration_us) / 1e6);
        const auto& live = first.live.most();
        for (std::size_t i = 0; i < live.size(); ++i) {
            const int level = level_of(live[i]);
            on_.fill(x_ + static_cast<int>(i), level, 1, y_ + plot_layout::height - level,
                     plot_live);
        }
        for (const run_result* run : runs_) {
            const auto number = static_cast<std::size_t>(
                std::find(names.begin(), names.end(), run->allocator) - names.begin());
            draw_line(run->reserved.most(), line_colour(number));
        }
        on_.fill(x_ - 1, y_, 1, plot_layout::height + 1, plot_ink);
        on_.fill(x_ - 1, y_ + plot_layout::height, plot_layout::width + 1, 1, plot_ink);
    }

private:
    [[nodiscard]] int level_of(std::uint64_t bytes) const {
        return y_ + plot_layout::height -
               static_cast<int>(
                   std::lround(static_cast<double>(bytes) / top_ * plot_layout::height));
    }
    void draw_grid(double seconds) {
        const bool is_small = top_ < 2e9;
        const double unit = is_small ? 1e6 : 1e9;
        const double step = round_step(top_ / unit, 5);
        for (double at = 0; at * unit <= top_; at += step) {
            const int level = level_of(static_cast<std::uint64_t>(at * unit));
            on_.fill(x_, level, plot_layout::width, 1, plot_grid);
            on_.text_right(x_ - 6, level - 6, fmt::format("{:.4g}", at), plot_ink);
        }
        on_.text(x_ - plot_layout::left + 4, y_ - 22, is_small ? "MB" : "GB", plot_ink);
        if (seconds > 0) {
            const double step_x = round_step(seconds, 8);
            for (double at = 0; at <= seconds; at += step_x) {
                const int column =
                    x_ + static_cast<int>(std::lround(at / seconds * (plot_layout::width - 1)));
                on_.fill(column, y_, 1, plot_layout::height + 4, plot_grid);
                on_.text_centred(column, y_ + plot_layout::height + 8, fmt::format("{:.4g}", at),
                                 plot_ink);
            }
            on_.text_right(x_ + plot_layout::width, y_ + plot_layout::height + 26, "seconds",
                           plot_ink);
        }
    }
    void draw_line(const std::vector<std::uint64_t>& values, demo::rgba colour) {
        int before = level_of(values.front());
        for (std::size_t i = 0; i < values.size(); ++i) {
            const int level = level_of(values[i]);
            on_.fill(x_ + static_cast<int>(i), std::min(level, before) - 1, 1,
                     std::abs(level - before) + 2, colour);
            before = level;
        }
    }

    demo::canvas& on_;
    int x_;
    int y_;
    const std::vector<const run_result*>& runs_;
    double top_ = 1;
};

}  // namespace detail

// Results of one trace follow each other.
[[nodiscard]] inline demo::image draw_plot(const std::vector<run_result>& results) {
    using layout = detail::plot_layout;
    std::vector<std::vector<const run_result*>> panels;
    std::vector<std::string> names;
    for (const run_result& one : results) {
        if (panels.empty() || panels.back().front()->source != one.source) {
            panels.emplace_back();
        }
        panels.back().push_back(&one);
        if (std::find(names.begin(), names.end(), one.allocator) == names.end()) {
            names.push_back(one.allocator);
        }
    }
    const int columns = panels.size() > 2 ? 2 : 1;
    const int rows = (static_cast<int>(panels.size()) + columns - 1) / columns;
    demo::image out{static_cast<std::uint32_t>(columns * layout::panel_width),
                    static_cast<std::uint32_t>(layout::legend + rows * layout::panel_height)};
    demo::canvas on{out};
    int x = layout::left;
    on.fill(x, 12, 14, 14, detail::plot_live);
    on.text(x + 20, 12, "live", detail::plot_ink);
    x += 20 + demo::canvas::text_width("live") + 30;
    for (std::size_t i = 0; i < names.size(); ++i) {
        on.fill(x, 17, 14, 3, detail::line_colour(i));
        on.text(x + 20, 12, names[i], detail::plot_ink);
        x += 20 + demo::canvas::text_width(names[i]) + 30;
    }
    for (std::size_t i = 0; i < panels.size(); ++i) {
        const int at = static_cast<int>(i);
        detail::panel{on, at % columns * layout::panel_width,
                      layout::legend + at / columns * layout::panel_height, panels[i]}
            .draw(names);
    }
    return out;
}

}  // namespace xmm::trace_replay
