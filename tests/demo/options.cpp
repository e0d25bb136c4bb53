// SPDX-License-Identifier: Apache-2.0
#include "../../tools/demo/options.hpp"

#include <doctest/doctest.h>

#include "support.hpp"

using namespace xmm::demo;
using namespace xmm::demo::testing;

namespace {

options parse(std::vector<std::string> words) {
    words.insert(words.begin(), "xmm-demo");
    std::vector<char*> pointers;
    for (std::string& word : words) {
        pointers.push_back(word.data());
    }
    options out;
    const auto code = parse_options(static_cast<int>(pointers.size()), pointers.data(), out);
    CHECK_FALSE(code.has_value());
    return out;
}
std::string error_of(const std::vector<std::string>& words) {
    return bad_input_of([&] { (void)parse(words); });
}

}  // namespace

TEST_CASE("options have defaults and take what they say") {
    const options none = parse({});
    CHECK(none.out_folder == "xmm-demo-out");
    CHECK(none.policies.empty());
    CHECK(none.iterations == 12);
    CHECK(parse({"--quick"}).iterations == 4);
    CHECK(parse({"--quick", "--iterations", "9"}).iterations == 9);
    const options some =
        parse({"--trace", "t", "--picture", "p", "--out", "o", "--policy", "mapped", "--clusters",
               "5", "--json", "j", "--device-bytes", "64MiB", "--link", "2.5"});
    CHECK(some.trace_path == "t");
    CHECK(some.picture_path == "p");
    CHECK(some.out_folder == "o");
    CHECK(some.json_path == "j");
    CHECK(some.policies == std::vector<std::string>{"mapped"});
    CHECK(some.clusters == 5);
    CHECK(some.device_bytes == std::uint64_t{64} << 20);
    CHECK(some.link_gb_per_second == 2.5);
    CHECK(parse({"--policy", "b,a"}).policies == std::vector<std::string>{"b", "a"});
}

TEST_CASE("options that make no sense are refused") {
    CHECK(error_of({"--clusters", "0"}) != "");
    CHECK(error_of({"--clusters", "65"}) != "");
    CHECK(error_of({"--clusters", "many"}) != "");
    CHECK(error_of({"--iterations", "0"}) != "");
    CHECK(error_of({"--link", "-1"}) != "");
    CHECK(error_of({"--link", "nan"}) != "");
    CHECK(error_of({"--device-bytes", "-8MiB"}) != "");
    CHECK(error_of({"--device-bytes", "99999999999TiB"}) != "");
    CHECK(error_of({"--device-bytes", "7MiB"}).find("a multiple of 2 MiB, at least 8 MiB") !=
          std::string::npos);
    CHECK(error_of({"--device-bytes", "6MiB"}).find("a multiple of 2 MiB, at least 8 MiB") !=
          std::string::npos);
    CHECK(error_of({"--device-bytes", "lots"}) != "");
    CHECK(error_of({"--policy", "mapped,"}).find("not a list of different names") !=
          std::string::npos);
    CHECK(error_of({"--policy", "mapped,mapped"}).find("not a list of different names") !=
          std::string::npos);
    CHECK(error_of({"--policy", ""}).find("not a list of different names") != std::string::npos);
    CHECK(error_of({"--no-such"}).find("xmm-demo --help") != std::string::npos);
    CHECK(error_of({"stray"}) != "");
}

TEST_CASE("a trace is found by its path or by its short name") {
    temporary_folder folder;
    write_file(folder.file("own.csv"), "a,0,1,0,0\n");
    CHECK(find_trace(folder.file("own.csv")) == folder.file("own.csv"));
    CHECK(bad_input_of([&] { (void)find_trace(folder.file("none.csv")); }).find("no such trace") !=
          std::string::npos);
    CHECK(bad_input_of([&] { (void)find_trace(folder.file(".")); }).find("is a folder") !=
          std::string::npos);
    CHECK(bad_input_of([] { (void)find_trace("no_such_trace"); }).find("no such trace") !=
          std::string::npos);
}
