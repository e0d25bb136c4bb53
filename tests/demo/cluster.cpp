// SPDX-License-Identifier: Apache-2.0
#include "../../tools/demo/cluster.hpp"

#include <doctest/doctest.h>

using namespace xmm::demo;

TEST_CASE("what was clustered is told in the colours that have pixels") {
    const std::vector<std::uint8_t> three{0, 2, 2, 11, 0};
    CHECK(describe_clustering(three, 2) == "5 pixels, 3 colours, 2 steps");
    CHECK(describe_clustering(std::vector<std::uint8_t>{7}, 1) == "1 pixel, 1 colour, 1 step");

    image dot;
    dot.width = dot.height = 1;
    dot.pixels = {rgba{200, 10, 10, 255}};
    const cluster_input input = prepare_clustering(dot, 12, 10);
    xmm::space memory = xmm::space::create({.devices = xmm::device_kind::soft}).value();
    cluster_run run{memory, memory.devices()[0], input};
    heat_map places;
    const run_report told = run.run("k-means", {}, places);
    CHECK(told.is_correct);
    CHECK(told.check.find("1 pixel, 1 colour, ") == 0);
}
