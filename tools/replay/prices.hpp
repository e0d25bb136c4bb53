// SPDX-License-Identifier: Apache-2.0
// prices.hpp - what a driver's calls cost, by the size of the handle.
//
// Model    A call has a price at a few sizes; between them it follows the logarithm of the size, beyond them
//          it is that of the nearest. `idle` and `loaded` were measured on an H200 (PCIe 5, driver 580,
//          CUDA 13.0); under load a call waits for the driver whatever the size.
// Failure  from_json: bad_input with the reason.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "../demo/bad_input.hpp"
#include "../demo/format.hpp"

namespace xmm::trace_replay {

using demo::bad_input;

enum class driver_call : std::uint8_t {
    create,  // a handle of physical memory
    drop,
    map,
    set_access,
    unmap,
    malloc,  // an ordinary device allocation: memory and addresses at once
    free,
};
inline constexpr std::size_t driver_call_count = 7;
inline constexpr std::array<const char*, driver_call_count> driver_call_names = {
    "create", "drop", "map", "set_access", "unmap", "malloc", "free"};

// Microseconds by size; at least one point, sizes ascending.
struct price_curve {
    std::vector<std::pair<double, double>> points;  // bytes, us

    [[nodiscard]] double at(std::uint64_t bytes) const {
        const auto size = static_cast<double>(std::max<std::uint64_t>(bytes, 1));
        const auto above = std::find_if(points.begin(), points.end(),
                                        [size](const auto& one) { return one.first >= size; });
        if (above == points.begin()) {
            return points.front().second;
        }
        if (above == points.end()) {
            return points.back().second;
        }
        const auto below = above - 1;
        const double part = std::log(size / below->first) / std::log(above->first / below->first);
        return below->second + part * (above->second - below->second);
    }
};

struct prices {
    std::string name;
    std::array<price_curve, driver_call_count> calls;

    [[nodiscard]] double of(driver_call call, std::uint64_t bytes) const {
        return calls[static_cast<std::size_t>(call)].at(bytes);
    }

    [[nodiscard]] static prices idle() {
        prices out;
        out.name = "idle";
        out.set(driver_call::create, {8, 9.6, 12.8});
        out.set(driver_call::drop, {10, 17.6, 154});
        out.set(driver_call::map, {1, 1, 1});
        out.set(driver_call::set_access, {23, 24, 51});
        out.set(driver_call::unmap, {16, 14.4, 25.6});
        // The pair was measured, 125 us for 20 MiB; half is counted for each.
        out.set(driver_call::malloc, {62.5, 62.5, 62.5});
        out.set(driver_call::free, {62.5, 62.5, 62.5});
        return out;
    }
    // While a kernel runs.
    [[nodiscard]] static prices loaded() {
        prices out = idle();
        out.name = "loaded";
        out.set(driver_call::map, {6, 6, 6});
        out.set(driver_call::set_access, {72, 72, 72});
        out.set(driver_call::unmap, {100, 100, 100});
        return out;
    }
    // {"create": 8, "unmap": {"2": 16, "32": 14.4}, ...}: microseconds, or microseconds by MiB; what is not
    // named costs what it does on an idle device.
    [[nodiscard]] static prices from_json(const std::string& file, std::string_view text) {
        const auto refuse = [&file](const std::string& why) -> void {
            throw bad_input(fmt::format("{}: {}", file, why));
        };
        const auto parsed = nlohmann::json::parse(text, nullptr, false);
        if (!parsed.is_object()) {
            refuse("not a JSON object of prices");
        }
        prices out = idle();
        out.name = file;
        for (const auto& [key, value] : parsed.items()) {
            const auto found = std::find(driver_call_names.begin(), driver_call_names.end(), key);
            if (found == driver_call_names.end()) {
                refuse(fmt::format("no driver call '{}'; known are {}", key,
                                   fmt::join(driver_call_names, ", ")));
            }
            price_curve curve;
            if (value.is_number()) {
                curve.points.emplace_back(1.0, checked(file, key, value));
            } else if (value.is_object() && !value.empty()) {
                for (const auto& [size, us] : value.items()) {
                    char* end = nullptr;
                    const double mib = std::strtod(size.c_str(), &end);
                    if (*end != '\0' || !(mib > 0 && mib < 1e9)) {
                        refuse(fmt::format("{}: '{}' is not a size in MiB", key, size));
                    }
                    curve.points.emplace_back(mib * 1048576, checked(file, key, us));
                }
                std::sort(curve.points.begin(), curve.points.end());
            } else {
                refuse(key + ": give microseconds, or an object of them by MiB");
            }
            out.calls[static_cast<std::size_t>(found - driver_call_names.begin())] =
                std::move(curve);
        }
        return out;
    }

    // Prices at 2, 32 and 512 MiB.
    void set(driver_call call, std::array<double, 3> us) {
        constexpr double mib = 1048576;
        calls[static_cast<std::size_t>(call)].points = {
            {2 * mib, us[0]}, {32 * mib, us[1]}, {512 * mib, us[2]}};
    }

private:
    [[nodiscard]] static double checked(const std::string& file, const std::string& key,
                                        const nlohmann::json& value) {
        if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() < 1e9)) {
            throw bad_input(fmt::format("{}: {}: not a price in microseconds", file, key));
        }
        return value.get<double>();
    }
};

}  // namespace xmm::trace_replay
