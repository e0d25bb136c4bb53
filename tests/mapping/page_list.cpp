// SPDX-License-Identifier: Apache-2.0
#include <xmm/mapping/page_list.hpp>

#include <array>
#include <vector>

#include <doctest/doctest.h>
#include <xmm/mapping/granule.hpp>

using namespace xmm;

namespace {

struct list_rig {
    static constexpr unsigned count = 5;
    std::array<frame_record, count> frames;
    std::array<granule, count> pages;
    page_list active;

    list_rig() {
        for (unsigned i = 0; i < count; ++i) {
            frames[i].owner = &pages[i];
            active.move_to_recent(frames[i]);
        }
    }
    ~list_rig() {
        while (active.pop_victim([](frame_record&) { return true; }) != nullptr) {
        }
    }
    // All victims in order, as indices.
    std::vector<long> drain() {
        std::vector<long> order;
        while (granule* one = active.pop_victim([](frame_record&) { return true; })) {
            order.push_back(one - pages.data());
        }
        return order;
    }
};

}  // namespace

TEST_CASE("page_list: the oldest mapping event goes first") {
    list_rig r;
    CHECK(r.active.count() == 5);
    CHECK(r.drain() == std::vector<long>{0, 1, 2, 3, 4});
    CHECK(r.active.count() == 0);
    CHECK(r.active.pop_victim([](frame_record&) { return true; }) == nullptr);
}

TEST_CASE("page_list: an event moves to the recent end, cold to the old end") {
    list_rig r;
    r.active.move_to_recent(r.frames[1]);
    r.active.move_to_old(r.frames[3]);
    CHECK(r.active.count() == 5);
    CHECK(r.drain() == std::vector<long>{3, 0, 2, 4, 1});
}

TEST_CASE("page_list: removing twice, and what is in somebody's hands, does nothing") {
    list_rig r;
    r.active.remove(r.frames[2]);
    r.active.remove(r.frames[2]);
    CHECK(r.active.count() == 4);
    CHECK(r.drain() == std::vector<long>{0, 1, 3, 4});
}

TEST_CASE("page_list: declined victims go to the recent end, each is asked once") {
    list_rig r;
    unsigned asked = 0;
    CHECK(r.active.pop_victim([&](frame_record&) { return ++asked > 99; }) == nullptr);
    CHECK(asked == 5);
    CHECK(r.active.count() == 5);
    granule* got = r.active.pop_victim([&](frame_record& one) { return &one == &r.frames[2]; });
    CHECK(got == &r.pages[2]);
    CHECK(!frame_list::is_linked(r.frames[2]));
    CHECK(r.drain() == std::vector<long>{3, 4, 0, 1});
}
