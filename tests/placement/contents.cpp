// SPDX-License-Identifier: Apache-2.0
#include <xmm/placement/contents.hpp>

#include "../facade/rig.hpp"

using namespace xmm;
using namespace xmm::test;

TEST_CASE("contents: fresh frames are left, stale ones zeroed, what was resident copied") {
    rig r;
    auto& state = r.of().state();
    auto* data = r.map(6_MiB);
    fill<std::uint64_t>(data, 2_MiB, 1);
    xmm::node& device = *state.core.find_node(r.device());
    std::vector<page_move> batch;
    for (std::size_t page = 0; page < 3; ++page) {
        page_move one;
        one.moved = state.core.find(to_address(page_of(data, page)));
        with(one.moved->lock, [&] { one.moved->begin_transit_locked(false); });
        one.to = state.engine.frames.obtain(device, 2_MiB).value();
        one.bytes = 2_MiB;
        batch.push_back(one);
    }
    for (const page_move& one : batch) {
        std::memset(to_pointer(one.to->backing.standing), 7, 2_MiB);
    }
    batch[1].to->backing.zeroed = true;  // as the driver would say of a fresh one
    batch[2].to->backing.zeroed = false;
    const auto before = r.counters(r.device());
    contents of{state.core};
    of.bring(batch, false);
    const auto holds = [](const page_move& one, std::size_t i) {
        return static_cast<const unsigned char*>(to_pointer(one.to->backing.standing))[i];
    };
    CHECK(count_wrong(static_cast<std::uint64_t*>(to_pointer(batch[0].to->backing.standing)), 2_MiB,
                      std::uint64_t{1}) == 0);
    CHECK(holds(batch[1], 12345) == 7);
    CHECK(holds(batch[2], 12345) == 0);
    CHECK(holds(batch[2], 2_MiB - 1) == 0);
    CHECK(r.counters(r.device()).bytes_in == before.bytes_in + 2_MiB);
    CHECK(r.counters(r.device()).bytes_zeroed == before.bytes_zeroed + 2_MiB);
    for (page_move& one : batch) {
        CHECK(one.outcome);
        with(one.moved->lock, [&] { one.moved->end_transit_locked(); });
        state.engine.moves.stock().give_back(device, *one.to);
    }
}
