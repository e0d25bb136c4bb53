// SPDX-License-Identifier: Apache-2.0
// tree.hpp - a tree of text lines, drawn with branches.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace xmm::demo {

struct tree {
    std::string text;
    std::vector<tree> children;

    tree& add(std::string line) { return children.emplace_back(tree{std::move(line), {}}); }
};

// What the locale says about the terminal; plain ASCII unless it says UTF-8.
[[nodiscard]] inline bool is_utf8_locale() noexcept {
    for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
        const char* value = std::getenv(name);
        if (value != nullptr && *value != '\0') {
            const std::string_view text{value};
            return text.find("UTF-8") != text.npos || text.find("utf8") != text.npos;
        }
    }
    return false;
}

namespace detail {

inline void draw_branches(const tree& at, const std::string& indent, bool utf8, std::string& out) {
    for (std::size_t i = 0; i < at.children.size(); ++i) {
        const bool is_last = i + 1 == at.children.size();
        out += indent;
        out += is_last ? (utf8 ? "└─ " : "`- ") : (utf8 ? "├─ " : "|- ");
        out += at.children[i].text + '\n';
        draw_branches(at.children[i], indent + (is_last ? "   " : utf8 ? "│  " : "|  "), utf8, out);
    }
}

}  // namespace detail

[[nodiscard]] inline std::string draw_tree(const tree& root, bool utf8) {
    std::string out = root.text + '\n';
    detail::draw_branches(root, "", utf8, out);
    return out;
}

}  // namespace xmm::demo
