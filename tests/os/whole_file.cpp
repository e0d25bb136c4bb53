// SPDX-License-Identifier: Apache-2.0
#include <xmm/os/whole_file.hpp>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include "../support/file_size_limit.hpp"
#include "../support/temporary_folder.hpp"

namespace fs = std::filesystem;
using xmm::file_place;
using xmm::whole_file;
using xmm::test::file_size_limit;
using xmm::test::temporary_folder;

namespace {

void put(const std::string& path, const std::string& text) { std::ofstream{path} << text; }
std::string text_of(const std::string& path) {
    std::ifstream file{path};
    return {std::istreambuf_iterator<char>{file}, {}};
}
// errno's number, or 0.
int add(whole_file& file, const std::string& text) {
    return ::write(file.descriptor(), text.data(), text.size()) == static_cast<ssize_t>(text.size())
               ? 0
               : errno;
}
int write_all(const std::string& path, const std::string& text) {
    whole_file file{path};
    const int failed = file.error() != 0 ? file.error() : add(file, text);
    return failed != 0 ? failed : file.finish();
}
// Of the file that is not yet in its place, the only one of that ending.
fs::path draft_in(const temporary_folder& folder) {
    for (const auto& one : fs::directory_iterator{folder.path()}) {
        if (one.path().extension() == ".part") {
            return one.path();
        }
    }
    return {};
}

}  // namespace

TEST_CASE("a file is there as a whole or as it was") {
    temporary_folder folder;
    const std::string path = folder.file("file");
    {
        whole_file file{path};
        REQUIRE(file.error() == 0);
        CHECK(add(file, "first") == 0);
        CHECK_FALSE(fs::exists(path));
        CHECK(file.finish() == 0);
        CHECK(text_of(path) == "first");
    }
    {
        whole_file given_up{path};
        CHECK(add(given_up, "half of the sec") == 0);
        CHECK(text_of(path) == "first");
    }
    CHECK(text_of(path) == "first");
    CHECK(write_all(path, "second") == 0);
    CHECK(text_of(path) == "second");
    CHECK(folder.files() == 1);
}

TEST_CASE("a file keeps its mode, a new one has what the process gives") {
    temporary_folder folder;
    const mode_t mask = ::umask(022);
    CHECK(write_all(folder.file("new"), "x") == 0);
    ::umask(mask);
    CHECK(fs::status(folder.file("new")).permissions() == fs::perms{0644});
    for (const auto mode : {fs::perms{0600}, fs::perms{0640}, fs::perms{0444}}) {
        fs::permissions(folder.file("new"), mode);
        whole_file file{folder.file("new")};
        REQUIRE(file.error() == 0);
        // Nobody reads meanwhile who may not read the file.
        CHECK(fs::status(draft_in(folder)).permissions() == fs::perms{0600});
        CHECK(file.finish() == 0);
        CHECK(fs::status(folder.file("new")).permissions() == mode);
    }
    CHECK(folder.files() == 1);
}

TEST_CASE("what others have put beside a file is neither followed nor taken") {
    temporary_folder folder;
    const std::string path = folder.file("file");
    unsigned next = 0;
    {
        const whole_file probe{path};
        const std::string name = draft_in(folder).stem().string();
        next = static_cast<unsigned>(std::stoul(name.substr(name.rfind('-') + 1))) + 1;
    }
    put(folder.file("victim"), "mine");
    put(folder.file("file.part"), "somebody's");
    const auto planted = [&](unsigned i) {
        return folder.file("xmm-" + std::to_string(::getpid()) + "-" + std::to_string(next + i) +
                           ".part");
    };
    fs::create_symlink("victim", planted(0));
    fs::create_symlink("nothing", planted(1));
    put(planted(2), "somebody's");
    CHECK(write_all(path, "new") == 0);
    CHECK(fs::symlink_status(path).type() == fs::file_type::regular);
    CHECK(text_of(path) == "new");
    CHECK(text_of(folder.file("victim")) == "mine");
    CHECK_FALSE(fs::exists(folder.file("nothing")));
    CHECK(fs::is_symlink(planted(0)));
    CHECK(fs::is_symlink(planted(1)));
    CHECK(text_of(planted(2)) == "somebody's");
    CHECK(text_of(folder.file("file.part")) == "somebody's");
    CHECK(folder.files() == 6);
}

TEST_CASE("of two that write the same file the last one stays, whole") {
    temporary_folder folder;
    const std::string path = folder.file("file");
    whole_file a{path};
    whole_file b{path};
    CHECK(add(a, "aaaaaaaa") == 0);
    CHECK(add(b, "bbbb") == 0);
    CHECK(add(a, "aaaaaaaa") == 0);
    CHECK(a.finish() == 0);
    CHECK(text_of(path) == "aaaaaaaaaaaaaaaa");
    CHECK(b.finish() == 0);
    CHECK(text_of(path) == "bbbb");
    CHECK(folder.files() == 1);
}

TEST_CASE("a name may be as long as names can be, and lie nowhere but here") {
    temporary_folder folder;
    const std::string longest(255, 'x');
    CHECK(write_all(folder.file(longest), "long") == 0);
    CHECK(text_of(folder.file(longest)) == "long");
    const fs::path before = fs::current_path();
    fs::current_path(folder.path());
    CHECK(write_all("bare", "here") == 0);
    fs::current_path(before);
    CHECK(text_of(folder.file("bare")) == "here");
    CHECK(folder.files() == 2);
}

TEST_CASE("a disk that is full leaves what was there") {
    temporary_folder folder;
    const std::string path = folder.file("file");
    put(path, "old");
    int outcome = 0;
    {
        const file_size_limit full{8};
        whole_file file{path};
        outcome = add(file, "12345678");
        outcome = outcome == 0 ? add(file, "9") : -1;
    }
    CHECK(outcome == EFBIG);
    CHECK(text_of(path) == "old");
    CHECK(write_all("/dev/full", "x") == ENOSPC);
    // Some file systems say so no earlier than at close(), as it does of a file that is closed.
    for (const char* name : {"file", "new"}) {
        whole_file file{folder.file(name)};
        CHECK(add(file, "new") == 0);
        REQUIRE(::close(file.descriptor()) == 0);
        CHECK(file.finish() == EBADF);
    }
    CHECK(text_of(path) == "old");
    CHECK(folder.files() == 1);
}

TEST_CASE("links are followed, also to what is not there yet") {
    temporary_folder folder;
    fs::create_directory(folder.file("deep"));
    put(folder.file("deep/file"), "old");
    fs::create_symlink("deep/file", folder.file("link"));
    fs::create_symlink("link", folder.file("link to link"));
    fs::create_symlink(folder.file("deep/later"), folder.file("loose"));
    fs::create_symlink("round", folder.file("round"));
    CHECK(file_place::of(folder.file("link to link")).path == folder.file("deep/file"));
    CHECK(write_all(folder.file("link to link"), "new") == 0);
    CHECK(text_of(folder.file("deep/file")) == "new");
    CHECK(write_all(folder.file("loose"), "later") == 0);
    CHECK(text_of(folder.file("deep/later")) == "later");
    for (const char* name : {"link", "link to link", "loose"}) {
        CHECK(fs::is_symlink(folder.file(name)));
    }
    CHECK(write_all(folder.file("round"), "x") == ELOOP);
    CHECK(fs::is_symlink(folder.file("round")));
    CHECK(folder.files() == 5);
}

TEST_CASE("what is no file is written straight, and what is nowhere not at all") {
    temporary_folder folder;
    const std::string pipe = folder.file("pipe");
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    std::string got;
    std::thread reader{[&] { got = text_of(pipe); }};
    CHECK(write_all(pipe, "through") == 0);
    reader.join();
    CHECK(got == "through");
    CHECK(fs::is_fifo(pipe));
    CHECK(folder.files() == 1);
    CHECK(file_place::of(pipe).is_straight);
    CHECK(write_all(folder.file("no/such"), "x") == ENOENT);
    CHECK(write_all(folder.file("pipe/x"), "x") == ENOTDIR);
    CHECK(write_all(folder.path(), "x") == EISDIR);
    CHECK(write_all("", "x") == ENOENT);
    CHECK(folder.files() == 1);
}

TEST_CASE("a file that is open here by a number is not replaced") {
    temporary_folder folder;
    put(folder.file("file"), "old");
    const int open = ::open(folder.file("file").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    const std::string name = "/dev/fd/" + std::to_string(open);
    CHECK(file_place::of(name).is_open_here);
    CHECK(write_all(name, "new") == EINVAL);
    CHECK(::write(open, "er", 2) == 2);
    ::close(open);
    CHECK(text_of(folder.file("file")) == "older");
    CHECK(folder.files() == 1);
}
