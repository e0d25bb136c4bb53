// SPDX-License-Identifier: Apache-2.0
// heat_map.hpp - where every page was, over time, as a picture.
//
// Model    One column a sample, one row a page; time runs to the right, addresses upwards. Below
//          it a strip shows how much lay on the device, against its size; where the device never
//          held a page, how much crossed the link a second. Columns are drawn at their times.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "canvas.hpp"
#include "format.hpp"
#include "image.hpp"

namespace xmm::demo {

enum class page_place : std::uint8_t { nowhere, host, device, both };

struct heat_sample {
    double seconds = 0;
    std::uint64_t link_bytes = 0;   // that crossed the link until now, both ways
    std::vector<page_place> pages;  // by address
};

// Pages that belong together, from `first` on.
struct heat_stretch {
    std::string name;
    std::size_t first = 0;
};

struct heat_map {
    std::string title;
    std::vector<heat_stretch> stretches;  // by address; shown if there are several
    std::size_t page_bytes = std::size_t{1} << 21;
    std::size_t device_bytes = 0;  // the device's size: a line in the strip
    double seconds = 0;            // when the run ended
    std::vector<heat_sample> samples;
};

namespace detail {

inline constexpr rgba paper{251, 250, 247, 255};
inline constexpr rgba ink{48, 50, 54, 255};
inline constexpr rgba faint_ink{128, 130, 134, 255};
inline constexpr rgba link_colour{74, 125, 92, 255};
inline constexpr rgba place_colours[] = {
    {232, 229, 222, 255}, {230, 159, 60, 255}, {0, 98, 142, 255}, {122, 81, 149, 255}};

// The round step (1, 2 or 5 times a power of ten) that yields at most `most` marks.
[[nodiscard]] inline double axis_step(double span, int most) noexcept {
    const double raw = std::max(span, 1e-9) / most;
    const double power = std::pow(10.0, std::floor(std::log10(raw)));
    for (const double factor : {1.0, 2.0, 5.0}) {
        if (factor * power >= raw * 0.999) {
            return factor * power;
        }
    }
    return 10 * power;
}

// The same in powers of two, for bytes.
[[nodiscard]] inline std::size_t byte_step(std::size_t span, std::size_t most) noexcept {
    std::size_t step = std::size_t{1} << 20;
    while (span / step > most) {
        step *= 2;
    }
    return step;
}

// Which places occur in the map, by number.
[[nodiscard]] inline std::array<bool, 4> places_of(const heat_map& map) noexcept {
    std::array<bool, 4> out{};
    for (const heat_sample& sample : map.samples) {
        for (const page_place place : sample.pages) {
            out[static_cast<unsigned>(place)] = true;
        }
    }
    return out;
}

// What had crossed the link at a time, on a straight line between samples.
[[nodiscard]] inline double link_bytes_at(const heat_map& map, double seconds) noexcept {
    const auto after = std::find_if(map.samples.begin(), map.samples.end(),
                                    [&](const heat_sample& one) { return one.seconds > seconds; });
    if (after == map.samples.begin() || after == map.samples.end()) {
        return map.samples.empty() || after == map.samples.begin()
                   ? 0
                   : static_cast<double>(map.samples.back().link_bytes);
    }
    const heat_sample &from = *std::prev(after), &to = *after;
    const double share = (seconds - from.seconds) / (to.seconds - from.seconds);
    return static_cast<double>(from.link_bytes) +
           share * static_cast<double>(to.link_bytes - from.link_bytes);
}

// MiB that crossed the link a second, for each of `columns` columns: the mean over a few of them.
[[nodiscard]] inline std::vector<double> link_rates(const heat_map& map, int columns) {
    std::vector<double> out(static_cast<std::size_t>(columns));
    constexpr int around = 4;
    for (int column = 0; column < columns; ++column) {
        const double from = map.seconds * std::max(column - around, 0) / columns;
        const double to = map.seconds * std::min(column + around + 1, columns) / columns;
        const double bytes = link_bytes_at(map, to) - link_bytes_at(map, from);
        out[static_cast<std::size_t>(column)] = bytes / std::max(to - from, 1e-9) / (1 << 20);
    }
    return out;
}

// Words on a ground of their own, for what lies over all colours.
inline void draw_on_ground(canvas& draw, int x, int y, std::string_view words, rgba colour) {
    draw.fill(x - 6, y - 4, canvas::text_width(words) + 12, 22, paper);
    draw.text(x, y, words, colour, 2);
}

}  // namespace detail

inline image draw_heat_map(const heat_map& map) {
    using namespace detail;
    constexpr int left = 116, right = 32, top = 84, plot_width = 1024, plot_height = 512;
    constexpr int gap = 22, strip_height = 96, bottom = 64;
    constexpr int strip_top = top + plot_height + gap;
    image picture{left + plot_width + right, strip_top + strip_height + bottom, paper};
    canvas draw{picture};
    draw.text(left, 18, map.title, ink, 2);

    // Legend, in one line under the title.
    int x = left;
    const char* const names[] = {"no data", "on the host", "on the device", "on both"};
    const std::array<bool, 4> occurs = places_of(map);
    for (unsigned place = 0; place < occurs.size(); ++place) {
        if (!occurs[place]) {
            continue;
        }
        draw.fill(x, 50, 14, 14, place_colours[place]);
        draw.text(x + 22, 50, names[place], ink, 2);
        x += 22 + canvas::text_width(names[place]) + 36;
    }

    const std::size_t pages = map.samples.empty() ? 0 : map.samples.back().pages.size();
    const double span = std::max(map.seconds, 1e-6);
    draw.fill(left, top, plot_width, plot_height, place_colours[0]);
    const std::size_t bytes = pages * map.page_bytes;
    const bool shows_device = occurs[static_cast<unsigned>(page_place::device)] ||
                              occurs[static_cast<unsigned>(page_place::both)];
    const std::vector<double> rates = link_rates(map, plot_width);
    const double peak_rate = *std::max_element(rates.begin(), rates.end());
    const double rate_step = axis_step(std::max(peak_rate, 1.0), 2);
    // What the strip's full height stands for: bytes, or MiB a second.
    const double strip_top_value =
        shows_device ? static_cast<double>(std::max<std::size_t>(
                           map.device_bytes + map.device_bytes / 2, map.page_bytes))
                     : std::max(peak_rate, rate_step) * 1.5;
    const auto strip_pixels = [&](double value) {
        return static_cast<int>(std::clamp(value / strip_top_value, 0.0, 1.0) * strip_height);
    };
    draw.fill(left, strip_top, plot_width, strip_height, place_colours[0]);
    std::size_t at = 0;
    for (int column = 0; column < plot_width && pages != 0; ++column) {
        const double now = span * (column + 0.5) / plot_width;
        while (at + 1 < map.samples.size() && map.samples[at + 1].seconds <= now) {
            ++at;
        }
        const heat_sample& sample = map.samples[at];
        for (int row = 0; row < plot_height; ++row) {
            const std::size_t page =
                static_cast<std::size_t>(plot_height - 1 - row) * pages / plot_height;
            if (page < sample.pages.size() && sample.pages[page] != page_place::nowhere) {
                draw.fill(left + column, top + row, 1, 1,
                          place_colours[static_cast<unsigned>(sample.pages[page])]);
            }
        }
        std::size_t on_device = 0;
        for (const page_place place : sample.pages) {
            on_device +=
                place == page_place::device || place == page_place::both ? map.page_bytes : 0;
        }
        const int height = strip_pixels(shows_device ? static_cast<double>(on_device)
                                                     : rates[static_cast<std::size_t>(column)]);
        draw.fill(left + column, strip_top + strip_height - height, 1, height,
                  shows_device ? place_colours[2] : link_colour);
    }

    // Marks: bytes upwards, seconds to the right, the device's size across the strip.
    const auto mark = [&](int y, const std::string& words) {
        draw.fill(left - 7, y, 7, 1, faint_ink);
        draw.text_right(left - 12, y - 6, words, ink, 2);
    };
    const std::size_t step = byte_step(bytes, 8);
    for (std::size_t offset = 0; offset <= bytes && pages != 0; offset += step) {
        const int y = top + plot_height - 1 -
                      static_cast<int>(static_cast<double>(offset) / static_cast<double>(bytes) *
                                       (plot_height - 1));
        mark(y, offset == 0 ? "0" : fmt::format("{} MiB", offset >> 20));
    }
    for (std::size_t i = 0; i < map.stretches.size() && map.stretches.size() > 1; ++i) {
        const heat_stretch& one = map.stretches[i];
        const int y = top + plot_height -
                      static_cast<int>(one.first * plot_height / std::max<std::size_t>(pages, 1));
        draw.fill(left, y, i == 0 ? 0 : plot_width, 1, paper);
        draw_on_ground(draw, left + 10, y - 22, one.name, ink);
    }
    mark(strip_top + strip_height - 1, "0");
    if (shows_device) {
        const int line =
            strip_top + strip_height - strip_pixels(static_cast<double>(map.device_bytes));
        for (int dash = 0; dash < plot_width; dash += 10) {
            draw.fill(left + dash, line, 5, 1, ink);
        }
        mark(line, fmt::format("{} MiB", map.device_bytes >> 20));
    } else {
        mark(strip_top + strip_height - strip_pixels(rate_step), fmt::format("{:.0f}", rate_step));
    }
    draw_on_ground(draw, left + 10, strip_top + 9,
                   shows_device ? "held by the device" : "crossed the link, MiB/s", ink);
    draw.frame(left - 1, top - 1, plot_width + 2, plot_height + 2, faint_ink);
    draw.frame(left - 1, strip_top - 1, plot_width + 2, strip_height + 2, faint_ink);
    const double seconds_step = axis_step(span, 10);
    for (int i = 0; i * seconds_step <= span; ++i) {
        const int at_x = left + static_cast<int>(i * seconds_step / span * (plot_width - 1));
        draw.fill(at_x, strip_top + strip_height, 1, 7, faint_ink);
        const int decimals =
            std::clamp(static_cast<int>(std::ceil(-std::log10(seconds_step) - 1e-9)), 0, 6);
        const std::string words =
            i == 0 ? "0 s" : fmt::format("{:.{}f}", i * seconds_step, decimals);
        // Within the plot's width, so that the first stays clear of the other axis.
        const int half = canvas::text_width(words) / 2;
        draw.text_centred(std::clamp(at_x, left + half, left + plot_width - half),
                          strip_top + strip_height + 13, words, ink, 2);
    }
    return picture;
}

}  // namespace xmm::demo
