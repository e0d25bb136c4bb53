// SPDX-License-Identifier: Apache-2.0
#include "../../tools/demo/output_file.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include "../../tools/demo/same_file.hpp"
#include "../../tools/demo/try_write.hpp"
#include "../support/file_size_limit.hpp"
#include "support.hpp"

using namespace xmm::demo;
using namespace xmm::demo::testing;

namespace {

// What the call throws while no file may be larger than this.
template <class Fn>
std::string error_on_full_disk(rlim_t bytes, Fn&& fn) {
    const xmm::test::file_size_limit full{bytes};
    return bad_input_of(fn);
}

}  // namespace

TEST_CASE("a tool's file leaves alone what has its name with an ending") {
    namespace fs = std::filesystem;
    temporary_folder folder;
    const std::string path = folder.file("q.json");
    write_file(folder.file("victim"), "mine");
    SUBCASE("a link") { fs::create_symlink("victim", path + ".part"); }
    SUBCASE("a file") { write_file(path + ".part", "somebody's"); }
    const std::string before = read_file(path + ".part");
    write_text(path, "new");
    CHECK(fs::symlink_status(path).type() == fs::file_type::regular);
    CHECK(read_file(path) == "new");
    CHECK(read_file(folder.file("victim")) == "mine");
    CHECK(read_file(path + ".part") == before);
    CHECK(folder.files() == 3);
}

TEST_CASE("of two tools that write the same file the last one's stays, whole") {
    temporary_folder folder;
    const std::string path = folder.file("q.json");
    output_file a{path};
    output_file b{path};
    std::fputs("aaaaaaaa", a.get());
    std::fputs("bbbb", b.get());
    a.finish();
    CHECK(read_file(path) == "aaaaaaaa");
    b.finish();
    CHECK(read_file(path) == "bbbb");
    CHECK(folder.files() == 1);
}

TEST_CASE("a tool's file is as it was where the disk is full") {
    temporary_folder folder;
    const std::string path = folder.file("q.json");
    write_file(path, "old");
    const std::string reason = path + ": cannot be written: File too large";
    // The first is noticed as it is written, the second when it is closed.
    for (const std::size_t bytes : {100'000, 100}) {
        CHECK(error_on_full_disk(16, [&] { write_text(path, std::string(bytes, 'x')); }) == reason);
        CHECK(read_file(path) == "old");
        CHECK(folder.files() == 1);
    }
    CHECK(bad_input_of([] { write_text("/dev/full", "x"); }) ==
          "/dev/full: cannot be written: No space left on device");
}

TEST_CASE("whether a file can be written is found out before, and nothing stays") {
    namespace fs = std::filesystem;
    temporary_folder folder;
    write_file(folder.file("file"), "old");
    fs::create_symlink("file", folder.file("link"));
    fs::create_symlink("later", folder.file("loose"));
    fs::create_symlink("nowhere/file", folder.file("lost"));
    for (const char* name : {"file", "new", "link", "loose"}) {
        CHECK(bad_input_of([&] { try_output(folder.file(name)); }) == "");
    }
    CHECK(bad_input_of([] { try_output("/dev/full"); }) == "");
    const auto error_of = [&](const char* name) {
        return bad_input_of([&] { try_output(folder.file(name)); });
    };
    CHECK(error_of(".").find("is a folder, not a name for a file") != std::string::npos);
    CHECK(error_of("new/").find("is not a name for a file") != std::string::npos);
    CHECK(error_of("no/such").find("there is no folder " + folder.file("no")) != std::string::npos);
    CHECK(error_of("lost").find("there is no folder " + folder.file("nowhere")) !=
          std::string::npos);
    CHECK(error_of("file/x").find("cannot be written: Not a directory") != std::string::npos);
    CHECK(read_file(folder.file("file")) == "old");
    CHECK(folder.files() == 4);
}

TEST_CASE("a tool does not write into a file that it has open by a number") {
    temporary_folder folder;
    std::FILE* open = std::fopen(folder.file("file").c_str(), "w");
    const std::string name = "/dev/fd/" + std::to_string(::fileno(open));
    const std::string reason =
        name + ": cannot be written: it is a file that this program has open";
    CHECK(bad_input_of([&] { try_output(name); }) == reason);
    CHECK(bad_input_of([&] { write_text(name, "x"); }) == reason);
    std::fclose(open);
    CHECK(folder.files() == 1);
}

TEST_CASE("no file of a tool comes to lie where another one does") {
    namespace fs = std::filesystem;
    temporary_folder folder;
    write_file(folder.file("there"), "old");
    fs::create_directory(folder.file("down"));
    fs::create_symlink("there", folder.file("link"));
    fs::create_symlink("down/later", folder.file("loose"));
    fs::create_directory_symlink("down", folder.file("same"));
    const auto is_refused = [&](const char* a, const char* b) {
        const std::string error = bad_input_of([&] {
            refuse_to_overwrite({}, {folder.file(a), folder.file(b)});
        });
        CHECK((error.empty() || error == folder.file(b) + ": would be written over " +
                                             folder.file(a) + ", which is written too"));
        return !error.empty();
    };
    CHECK(is_refused("new", "new"));
    CHECK(is_refused("there", "./there"));
    CHECK(is_refused("there", "link"));
    CHECK(is_refused("loose", "same/later"));
    CHECK(is_refused("down/x", "same/x"));
    CHECK(is_refused("none/x", "none/../none/x"));  // a folder that is yet to be made
    CHECK_FALSE(is_refused("new", "other"));
    CHECK_FALSE(is_refused("new", "down/new"));
    // Each becomes a file of its own.
    fs::create_hard_link(folder.file("there"), folder.file("hard"));
    CHECK_FALSE(is_refused("there", "hard"));
    CHECK(bad_input_of([] { refuse_to_overwrite({}, {"/dev/null", "/dev/null"}); }) == "");
}
