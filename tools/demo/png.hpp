// SPDX-License-Identifier: Apache-2.0
// png.hpp - pictures from and to PNG files, by libpng.
//
// Model    Every kind of PNG is read as 8-bit RGBA: grey, palette, 16 bits, interlaced. A file is written as
//          output_file.hpp does, so it is whole or not there.
// Failure  bad_input with file and reason; also for pictures of more than largest_pixels.
#pragma once

#include <png.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "bad_input.hpp"
#include "format.hpp"
#include "image.hpp"
#include "output_file.hpp"

namespace xmm::demo {

inline constexpr std::uint64_t largest_pixels = 200'000'000;

namespace detail {

struct file_closer {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};
using file_handle = std::unique_ptr<std::FILE, file_closer>;

// libpng's own working memory, given back on every path.
struct png_work {
    png_image image{};
    png_work() noexcept { image.version = PNG_IMAGE_VERSION; }
    png_work(const png_work&) = delete;
    png_work& operator=(const png_work&) = delete;
    ~png_work() { png_image_free(&image); }
};

// libpng calls the end of a file within the picture a read error.
[[noreturn]] inline void refuse_png(const std::string& path, std::FILE* file, const char* message) {
    throw bad_input(
        fmt::format("{}: {}", path, std::feof(file) != 0 ? "the picture is cut short" : message));
}

}  // namespace detail

inline image read_png(const std::string& path) {
    detail::file_handle file{std::fopen(path.c_str(), "rb")};
    if (!file) {
        throw bad_input(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
    }
    std::array<png_byte, 8> signature{};
    const std::size_t got = std::fread(signature.data(), 1, signature.size(), file.get());
    if (std::ferror(file.get()) != 0) {
        throw bad_input(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
    }
    if (got != signature.size() || png_sig_cmp(signature.data(), 0, signature.size()) != 0) {
        throw bad_input(fmt::format("{}: not a PNG file", path));
    }
    std::rewind(file.get());
    detail::png_work work;
    if (png_image_begin_read_from_stdio(&work.image, file.get()) == 0) {
        detail::refuse_png(path, file.get(), work.image.message);
    }
    const std::uint64_t pixels = std::uint64_t{work.image.width} * work.image.height;
    if (pixels > largest_pixels) {
        throw bad_input(
            fmt::format("{}: {} x {} pixels are more than the {} million that the demo takes", path,
                        work.image.width, work.image.height, largest_pixels / 1'000'000));
    }
    // Without the flag, libpng takes 16-bit pictures that name no gamma for linear light.
    work.image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
    work.image.format = PNG_FORMAT_RGBA;
    image out{work.image.width, work.image.height};
    if (png_image_finish_read(&work.image, nullptr, out.pixels.data(), 0, nullptr) == 0) {
        detail::refuse_png(path, file.get(), work.image.message);
    }
    return out;
}

// Pictures without transparency are stored as RGB.
inline void write_png(const std::string& path, const image& picture) {
    bool is_opaque = true;
    for (const rgba& pixel : picture.pixels) {
        is_opaque = is_opaque && pixel.a == 255;
    }
    std::vector<png_byte> packed;
    const void* data = picture.pixels.data();
    if (is_opaque) {
        packed.reserve(picture.pixels.size() * 3);
        for (const rgba& pixel : picture.pixels) {
            packed.insert(packed.end(), {pixel.r, pixel.g, pixel.b});
        }
        data = packed.data();
    }
    output_file file{path};
    detail::png_work work;
    work.image.width = picture.width;
    work.image.height = picture.height;
    work.image.format = is_opaque ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA;
    work.image.flags = PNG_IMAGE_FLAG_FAST;
    if (png_image_write_to_stdio(&work.image, file.get(), 0, data, 0, nullptr) == 0) {
        file.refuse(work.image.message);
    }
    file.finish();
}

}  // namespace xmm::demo
