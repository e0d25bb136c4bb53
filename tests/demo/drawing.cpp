// SPDX-License-Identifier: Apache-2.0
#include "../../tools/demo/heat_map.hpp"

#include <doctest/doctest.h>

#include <map>

#include "../../tools/demo/landscape.hpp"
#include "../../tools/demo/table.hpp"
#include "../../tools/demo/tree.hpp"

using namespace xmm::demo;

TEST_CASE("drawing outside the picture is clipped") {
    image picture{10, 10, {1, 2, 3, 255}};
    canvas draw{picture};
    draw.fill(-5, -5, 7, 7, {9, 9, 9, 255});
    draw.fill(8, 8, 100, 100, {8, 8, 8, 255});
    draw.text(-3, 6, "Wg~", {7, 7, 7, 255}, 3);
    CHECK(picture.at(1, 1) == rgba{9, 9, 9, 255});
    CHECK(picture.at(2, 2) == rgba{1, 2, 3, 255});
    CHECK(picture.at(9, 9).r != 1);
}

TEST_CASE("a heat map shows pages where they are and when") {
    heat_map map;
    map.title = "test";
    map.device_bytes = 2 << 21;
    map.seconds = 10;
    // Page 0 is on the host throughout; page 3 comes to the device half way.
    for (int i = 0; i < 10; ++i) {
        map.samples.push_back({static_cast<double>(i),
                               0,
                               {page_place::host, page_place::nowhere, page_place::both,
                                i >= 5 ? page_place::device : page_place::nowhere}});
    }
    const image picture = draw_heat_map(map);
    const auto place = [](page_place p) { return detail::place_colours[static_cast<unsigned>(p)]; };
    const std::uint32_t left = 116, top = 84;  // of the plot: 1024 x 512
    CHECK(picture.at(left + 100, top + 500) == place(page_place::host));
    CHECK(picture.at(left + 1000, top + 500) == place(page_place::host));
    CHECK(picture.at(left + 300, top + 300) == place(page_place::nowhere));
    CHECK(picture.at(left + 300, top + 200) == place(page_place::both));
    CHECK(picture.at(left + 500, top + 60) == place(page_place::nowhere));
    CHECK(picture.at(left + 530, top + 60) == place(page_place::device));

    // No page came to the second map's device: its strip shows the link, which carried 30 MiB in
    // the first half and nothing afterwards.
    heat_map mapped;
    mapped.device_bytes = 2 << 21;
    mapped.seconds = 10;
    mapped.samples = {{0, 0, {page_place::host}},
                      {5, std::uint64_t{30} << 20, {page_place::host}},
                      {10, std::uint64_t{30} << 20, {page_place::host}}};
    const image reached = draw_heat_map(mapped);
    const std::uint32_t strip_bottom = top + 512 + 22 + 96 - 2;
    CHECK(reached.at(left + 300, strip_bottom) == detail::link_colour);
    CHECK(reached.at(left + 700, strip_bottom) == place(page_place::nowhere));
    CHECK(picture.at(left + 700, strip_bottom) == place(page_place::device));
    CHECK(detail::link_rates(mapped, 1000)[200] == doctest::Approx(6));
    CHECK(detail::places_of(mapped) == std::array<bool, 4>{false, true, false, false});

    heat_map empty;
    CHECK(draw_heat_map(empty).width == picture.width);  // nothing sampled is still a picture
}

TEST_CASE("axes have round steps") {
    CHECK(detail::axis_step(10, 10) == doctest::Approx(1));
    CHECK(detail::axis_step(7.3, 10) == doctest::Approx(1));
    CHECK(detail::axis_step(0.034, 10) == doctest::Approx(0.005));
    CHECK(detail::axis_step(1234, 10) == doctest::Approx(200));
    CHECK(detail::byte_step(std::size_t{512} << 20, 8) == std::size_t{64} << 20);
}

TEST_CASE("the landscape is the same each time and has many colours") {
    const image one = draw_landscape(90, 60);
    CHECK(one == draw_landscape(90, 60));
    CHECK_FALSE(one == draw_landscape(90, 60, 2));
    std::map<std::uint32_t, int> colours;
    for (const rgba& p : one.pixels) {
        REQUIRE(p.a == 255);
        ++colours[p.r * 65536u + p.g * 256u + p.b];
    }
    CHECK(colours.size() > 1000);
}

TEST_CASE("tables are aligned") {
    table one{{"name", "count"}};
    one.add({"a", "1"});
    one.add({"long name", "12345"});
    CHECK(one.text() == "name       count\n---------  -----\na              1\nlong name  12345\n");
}

TEST_CASE("figures are shown as people read them") {
    CHECK(show_bytes(0) == "0 B");
    CHECK(show_bytes(4096) == "4 KiB");
    CHECK(show_bytes(std::uint64_t{3} << 20) == "3 MiB");
    CHECK(show_bytes((std::uint64_t{3} << 20) + (1 << 19)) == "3.5 MiB");
    CHECK(show_bytes(std::uint64_t{5} << 29) == "2.50 GiB");
    CHECK(show_count(7) == "7");
    CHECK(show_count(1234567) == "1 234 567");
    CHECK(show_rate(0) == "unlimited");
    CHECK(show_rate(4'000'000'000) == "4 GB/s");
}

TEST_CASE("trees have branches") {
    tree root{"machine", {}};
    tree& host = root.add("host 0");
    host.add("core 0");
    host.add("core 1");
    root.add("xpu 1");
    CHECK(draw_tree(root, false) == "machine\n|- host 0\n|  |- core 0\n|  `- core 1\n`- xpu 1\n");
    CHECK(draw_tree(root, true) == "machine\n├─ host 0\n│  ├─ core 0\n│  └─ core 1\n└─ xpu 1\n");
}
