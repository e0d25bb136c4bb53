// SPDX-License-Identifier: Apache-2.0
#include "../../tools/demo/png.hpp"

#include <sys/stat.h>

#include <thread>

#include <doctest/doctest.h>

#include "support.hpp"

using namespace xmm::demo;
using namespace xmm::demo::testing;

TEST_CASE("a picture comes back as it was written, with and without transparency") {
    temporary_folder folder;
    image picture{37, 19};
    for (std::uint32_t y = 0; y < picture.height; ++y) {
        for (std::uint32_t x = 0; x < picture.width; ++x) {
            picture.at(x, y) = {static_cast<std::uint8_t>(x * 7), static_cast<std::uint8_t>(y * 13),
                                static_cast<std::uint8_t>(x * y), 255};
        }
    }
    write_png(folder.file("opaque.png"), picture);
    CHECK(read_png(folder.file("opaque.png")) == picture);
    picture.at(3, 4).a = 128;
    write_png(folder.file("clear.png"), picture);
    CHECK(read_png(folder.file("clear.png")) == picture);
    CHECK(folder.files() == 2);  // no partial file stays
}

TEST_CASE("every kind of PNG is read") {
    temporary_folder folder;
    const std::string path = folder.file("p.png");
    SUBCASE("grey, 8 bits") {
        for (const bool is_interlaced : {false, true}) {
            CAPTURE(is_interlaced);
            raw_png in{2, 2, PNG_COLOR_TYPE_GRAY, 8, is_interlaced, {{0, 85}, {170, 255}}, {}, {}};
            write_raw_png(path, in);
            const image out = read_png(path);
            CHECK(out.at(1, 0) == rgba{85, 85, 85, 255});
            CHECK(out.at(0, 1) == rgba{170, 170, 170, 255});
        }
    }
    SUBCASE("grey, 1 bit") {
        for (const bool is_interlaced : {false, true}) {
            CAPTURE(is_interlaced);
            raw_png in{8, 1, PNG_COLOR_TYPE_GRAY, 1, is_interlaced, {{0b10100001}}, {}, {}};
            write_raw_png(path, in);
            const image out = read_png(path);
            CHECK(out.at(0, 0) == rgba{255, 255, 255, 255});
            CHECK(out.at(1, 0) == rgba{0, 0, 0, 255});
            CHECK(out.at(7, 0) == rgba{255, 255, 255, 255});
        }
    }
    SUBCASE("grey, 16 bits, taken as sRGB") {
        for (const bool is_interlaced : {false, true}) {
            CAPTURE(is_interlaced);
            raw_png in{2,  1, PNG_COLOR_TYPE_GRAY, 16, is_interlaced, {{0x80, 0x80, 0xff, 0xff}},
                       {}, {}};
            write_raw_png(path, in);
            const image out = read_png(path);
            CHECK(out.at(0, 0) == rgba{128, 128, 128, 255});
            CHECK(out.at(1, 0) == rgba{255, 255, 255, 255});
        }
    }
    SUBCASE("colour, 16 bits") {
        for (const bool is_interlaced : {false, true}) {
            CAPTURE(is_interlaced);
            raw_png in{1,
                       1,
                       PNG_COLOR_TYPE_RGB,
                       16,
                       is_interlaced,
                       {{0xff, 0xff, 0x40, 0x40, 0x00, 0x00}},
                       {},
                       {}};
            write_raw_png(path, in);
            CHECK(read_png(path).at(0, 0) == rgba{255, 64, 0, 255});
        }
    }
    SUBCASE("palette with transparency, 4 bits") {
        for (const bool is_interlaced : {false, true}) {
            CAPTURE(is_interlaced);
            raw_png in{3,
                       1,
                       PNG_COLOR_TYPE_PALETTE,
                       4,
                       is_interlaced,
                       {{0x01, 0x20}},
                       {{10, 20, 30}, {40, 50, 60}, {70, 80, 90}},
                       {255, 128}};
            write_raw_png(path, in);
            const image out = read_png(path);
            CHECK(out.at(0, 0) == rgba{10, 20, 30, 255});
            CHECK(out.at(1, 0) == rgba{40, 50, 60, 128});
            CHECK(out.at(2, 0) == rgba{70, 80, 90, 255});
        }
    }
    SUBCASE("grey with alpha") {
        for (const bool is_interlaced : {false, true}) {
            CAPTURE(is_interlaced);
            raw_png in{1, 1, PNG_COLOR_TYPE_GRAY_ALPHA, 8, is_interlaced, {{77, 200}}, {}, {}};
            write_raw_png(path, in);
            CHECK(read_png(path).at(0, 0) == rgba{77, 77, 77, 200});
        }
    }
    SUBCASE("colour with alpha, large enough for all passes") {
        for (const bool is_interlaced : {false, true}) {
            CAPTURE(is_interlaced);
            raw_png in{19, 17, PNG_COLOR_TYPE_RGB_ALPHA, 8, is_interlaced, {}, {}, {}};
            for (std::uint32_t y = 0; y < in.height; ++y) {
                auto& row = in.rows.emplace_back();
                for (std::uint32_t x = 0; x < in.width; ++x) {
                    row.insert(row.end(),
                               {static_cast<png_byte>(x * 9), static_cast<png_byte>(y * 11),
                                static_cast<png_byte>(x + y), static_cast<png_byte>(255 - x)});
                }
            }
            write_raw_png(path, in);
            const image out = read_png(path);
            for (std::uint32_t y = 0; y < in.height; ++y) {
                for (std::uint32_t x = 0; x < in.width; ++x) {
                    REQUIRE(out.at(x, y) == rgba{static_cast<std::uint8_t>(x * 9),
                                                 static_cast<std::uint8_t>(y * 11),
                                                 static_cast<std::uint8_t>(x + y),
                                                 static_cast<std::uint8_t>(255 - x)});
                }
            }
        }
    }
}

TEST_CASE("transparency is laid onto white") {
    image picture{3, 1};
    picture.pixels = {{10, 20, 30, 255}, {10, 20, 30, 0}, {0, 100, 255, 128}};
    CHECK(flatten_onto_white(picture));
    CHECK(picture.at(0, 0) == rgba{10, 20, 30, 255});
    CHECK(picture.at(1, 0) == rgba{255, 255, 255, 255});
    CHECK(picture.at(2, 0) == rgba{127, 177, 255, 255});
    CHECK_FALSE(flatten_onto_white(picture));
}

TEST_CASE("what is no whole PNG is refused with a reason") {
    temporary_folder folder;
    const auto error_of = [&](const std::string& bytes) {
        write_file(folder.file("x.png"), bytes);
        return bad_input_of([&] { (void)read_png(folder.file("x.png")); });
    };
    CHECK(bad_input_of([&] {
              (void)read_png(folder.file("none.png"));
          }).find("none.png: cannot be opened: No such file") != std::string::npos);
    CHECK(bad_input_of([&] {
              (void)read_png(folder.file("."));
          }).find("cannot be read: Is a directory") != std::string::npos);
    CHECK(error_of("").find("x.png: not a PNG file") != std::string::npos);
    CHECK(error_of("GIF89a..........").find("x.png: not a PNG file") != std::string::npos);

    write_png(folder.file("whole.png"), image{64, 64, {9, 8, 7, 255}});
    const std::string whole = read_file(folder.file("whole.png"));
    CHECK(error_of(whole.substr(0, 20)).find("x.png: the picture is cut short") !=
          std::string::npos);
    CHECK(error_of(whole.substr(0, whole.size() - 20)).find("x.png: the picture is cut short") !=
          std::string::npos);
    std::string damaged = whole;
    damaged[damaged.find("IDAT") + 10] ^= 0x11;
    CHECK(error_of(damaged).find("x.png: ") != std::string::npos);

    // A header that promises 100000 x 100000 pixels must not be given memory for them.
    std::string huge = whole;
    const std::string size{"\0\1\206\240\0\1\206\240", 8};
    huge.replace(16, 8, size);
    const auto sum =
        static_cast<std::uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(huge.data()) + 12, 17));
    for (unsigned i = 0; i < 4; ++i) {
        huge[29 + i] = static_cast<char>(sum >> (24 - 8 * i));
    }
    CHECK(error_of(huge).find("100000 x 100000 pixels are more than") != std::string::npos);
}

TEST_CASE("a link is followed, a file keeps its mode, and a pipe is written to") {
    namespace fs = std::filesystem;
    temporary_folder folder;
    const image picture{8, 8, {1, 2, 3, 255}};
    write_file(folder.file("file.png"), "old");
    fs::permissions(folder.file("file.png"), fs::perms{0640});
    fs::create_symlink("file.png", folder.file("link.png"));
    write_png(folder.file("link.png"), picture);
    CHECK(fs::is_symlink(folder.file("link.png")));
    CHECK(read_png(folder.file("file.png")) == picture);
    CHECK(fs::status(folder.file("file.png")).permissions() == fs::perms{0640});
    fs::create_symlink("later.png", folder.file("loose.png"));
    write_png(folder.file("loose.png"), picture);
    CHECK(fs::is_symlink(folder.file("loose.png")));
    CHECK(read_png(folder.file("later.png")) == picture);
    REQUIRE(::mkfifo(folder.file("pipe").c_str(), 0600) == 0);
    std::string got;
    std::thread reader{[&] { got = read_file(folder.file("pipe")); }};
    write_png(folder.file("pipe"), picture);
    reader.join();
    CHECK(fs::is_fifo(folder.file("pipe")));
    CHECK(got == read_file(folder.file("file.png")));
    CHECK(folder.files() == 5);
    fs::create_symlink("round", folder.file("round"));
    CHECK(bad_input_of([&] { write_png(folder.file("round"), picture); }) != "");
    CHECK(fs::is_symlink(folder.file("round")));
}

TEST_CASE("a file that cannot be written is refused and leaves nothing") {
    temporary_folder folder;
    CHECK(bad_input_of([&] {
              write_png(folder.file("no/such.png"), image{2, 2});
          }).find("such.png: cannot be written: No such file") != std::string::npos);
    CHECK(folder.files() == 0);
}
