// SPDX-License-Identifier: Apache-2.0
// support.hpp - files for the tests of the demo: PNG and gzip writers, and a folder that goes away.
#pragma once

#include <png.h>
#include <zlib.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "../../tools/demo/bad_input.hpp"
#include "../support/temporary_folder.hpp"

namespace xmm::demo::testing {

using test::temporary_folder;

inline void write_file(const std::string& path, const std::string& bytes) {
    std::ofstream{path, std::ios::binary} << bytes;
}
inline std::string read_file(const std::string& path) {
    std::ifstream file{path, std::ios::binary};
    return {std::istreambuf_iterator<char>{file}, {}};
}
inline void write_gzip(const std::string& path, const std::string& text) {
    gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
}

// What a call throws as bad_input; empty if it throws nothing.
template <class Fn>
std::string bad_input_of(Fn&& fn) {
    try {
        fn();
    } catch (const bad_input& error) {
        return error.what();
    }
    return {};
}

// A PNG file of any kind, from rows as libpng stores them.
struct raw_png {
    std::uint32_t width = 0, height = 0;
    int colour_type = 0, bit_depth = 8;
    bool is_interlaced = false;
    std::vector<std::vector<png_byte>> rows;
    std::vector<png_color> palette;
    std::vector<png_byte> palette_alpha;
};

inline void write_raw_png(const std::string& path, raw_png& in) {
    std::vector<png_bytep> rows;
    for (auto& row : in.rows) {
        rows.push_back(row.data());
    }
    std::FILE* file = std::fopen(path.c_str(), "wb");
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
    png_infop info = png_create_info_struct(png);
    if (setjmp(png_jmpbuf(png)) != 0) {
        std::abort();
    }
    png_init_io(png, file);
    png_set_IHDR(png, info, in.width, in.height, in.bit_depth, in.colour_type,
                 in.is_interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (!in.palette.empty()) {
        png_set_PLTE(png, info, in.palette.data(), static_cast<int>(in.palette.size()));
    }
    if (!in.palette_alpha.empty()) {
        png_set_tRNS(png, info, in.palette_alpha.data(), static_cast<int>(in.palette_alpha.size()),
                     nullptr);
    }
    png_write_info(png, info);
    png_write_image(png, rows.data());
    png_write_end(png, nullptr);
    png_destroy_write_struct(&png, &info);
    std::fclose(file);
}

}  // namespace xmm::demo::testing
