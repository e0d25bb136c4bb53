// SPDX-License-Identifier: Apache-2.0
// trace_folders.hpp - where the project's traces are: in the sources that hold the build folder, or installed.
#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

namespace xmm::demo {

[[nodiscard]] inline std::vector<std::filesystem::path> trace_folders() {
    std::vector<std::filesystem::path> out = {"traces"};
    std::error_code error;
    auto above = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
    for (int levels = 0; levels < 4 && above.has_relative_path(); ++levels) {
        out.push_back(above / "traces");
        out.push_back(above / "share" / "xmm" / "traces");
        above = above.parent_path();
    }
    return out;
}

}  // namespace xmm::demo
