// SPDX-License-Identifier: Apache-2.0
// api.hpp - the gm* functions: the names of the published GMEM, on the default space.
//
// Model    gmmap/gmunmap stand for mmap with MAP_PEER_SHARED, gmadvise for hmadvise, gmemcpy for hmemcpy
//          (arXiv 2310.12554, section 4; openEuler libgmem). any_host is their host node, -1.
// Threads  Any.
// Failure  As the members of space that they call, or why there is no default space.
#pragma once

#include <utility>

#include <xmm/facade/default_space.hpp>

namespace xmm {

namespace detail {

// fn(space&), or the reason why there is none.
template <class Fn>
auto on_default_space(Fn&& fn) -> decltype(fn(std::declval<space&>())) {
    result<space*> all = try_default_space();
    if (!all) {
        return all.error();
    }
    return fn(**all);
}

}  // namespace detail

// Zero-filled unified memory; whole pages, 2 MiB aligned.
[[nodiscard]] inline result<void*> gmmap(std::size_t bytes, const map_options& wanted = {}) {
    return detail::on_default_space([&](space& all) { return all.map(bytes, wanted); });
}
inline status gmunmap(void* pointer) {
    return detail::on_default_space([&](space& all) { return all.unmap(pointer); });
}

inline status gmadvise(node_id node, void* pointer, std::size_t bytes, advice what) {
    return detail::on_default_space(
        [&](space& all) { return all.advise(node, pointer, bytes, what); });
}
inline status gmemcpy(void* to, const void* from, std::size_t bytes) {
    return detail::on_default_space([&](space& all) { return all.copy(to, from, bytes); });
}
[[nodiscard]] inline result<ticket> gmemcpy(queue& line, void* to, const void* from,
                                            std::size_t bytes) {
    return detail::on_default_space([&](space& all) { return all.copy(line, to, from, bytes); });
}

}  // namespace xmm
