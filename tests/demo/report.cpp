// SPDX-License-Identifier: Apache-2.0
#include "../../tools/demo/report.hpp"

#include <doctest/doctest.h>

#include "../../tools/demo/try_write.hpp"
#include "support.hpp"

using namespace xmm::demo;
using namespace xmm::demo::testing;

TEST_CASE("a sentence says what each policy cost, against the run in core") {
    std::vector<run_report> runs(4);
    for (run_report& one : runs) {
        one.part = "replay";
    }
    runs[0].policy = in_core;
    runs[0].seconds = 2;
    runs[1].policy = "first_touch";
    runs[1].seconds = 5;
    runs[1].bytes_to_device = std::uint64_t{3} << 20;
    runs[1].bytes_to_host = std::uint64_t{2} << 20;
    runs[2].policy = "mapped";
    runs[2].seconds = 2;
    runs[2].mapped_bytes = std::uint64_t{9} << 20;
    runs[3].part = "k-means";
    runs[3].policy = "mapped";
    runs[3].seconds = 1;
    CHECK(report_sentence("replay", runs) ==
          "replay: in core it takes 2.0 s; first_touch moved 3 MiB to the device and 2 MiB back: "
          "5.0 s, 2.5 times as long; mapped reached 9 MiB over the link: 2.0 s, no longer than in "
          "core.");
    CHECK(report_sentence("k-means", runs) == "k-means: mapped moved nothing: 1.0 s.");
    CHECK(slowdown_of(runs[1], runs) == doctest::Approx(2.5));
    CHECK(slowdown_of(runs[3], runs) == 0);
}

TEST_CASE("a folder is tried and left as it was") {
    temporary_folder folder;
    try_write(folder.file("a/b/c"));
    CHECK(folder.files() == 0);
    make_folder(folder.file("a/b"));
    try_write(folder.file("a/b"));
    try_write(folder.file("a/b/c/../d"));
    CHECK(std::filesystem::is_empty(folder.file("a/b")));
    write_file(folder.file("file"), "x");
    CHECK(bad_input_of([&] { try_write(folder.file("file")); }).find("is a file, not a folder") !=
          std::string::npos);
    CHECK(bad_input_of([&] { try_write(folder.file("file/in")); }).find("cannot be made: ") !=
          std::string::npos);
    CHECK(bad_input_of([] { try_write("/proc"); }).find("no files can be made there: ") !=
          std::string::npos);
    CHECK(folder.files() == 2);
}
