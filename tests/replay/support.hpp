// SPDX-License-Identifier: Apache-2.0
// support.hpp - a pickler, temporary files and the project's traces, for the tests of the replay.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "../../tools/demo/bad_input.hpp"
#include "../support/temporary_folder.hpp"

namespace xmm::trace_replay::testing {

using test::temporary_folder;

inline void write_bytes(const std::string& path, std::string_view bytes) {
    std::ofstream{path, std::ios::binary} << bytes;
}
inline void write_gzip(const std::string& path, std::string_view text) {
    gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
}

// What a call throws as bad_input; empty if it throws nothing.
template <class Fn>
std::string bad_input_of(Fn&& fn) {
    try {
        fn();
    } catch (const demo::bad_input& error) {
        return error.what();
    }
    return {};
}

// Writes what Python's pickler would, one value after the other.
class pickler {
public:
    explicit pickler(int protocol = 4) { out_ = std::string{"\x80"} + static_cast<char>(protocol); }

    pickler& raw(std::string_view bytes) {
        out_ += bytes;
        return *this;
    }
    pickler& op(int opcode) {
        out_ += static_cast<char>(opcode);
        return *this;
    }
    pickler& little(std::uint64_t value, int count) {
        for (int i = 0; i < count; ++i) {
            out_ += static_cast<char>(value >> (8 * i) & 0xff);
        }
        return *this;
    }
    pickler& text(std::string_view words) { return op(0x8c).little(words.size(), 1).raw(words); }
    pickler& number(std::uint64_t value) {
        return value < 256 ? op('K').little(value, 1) : op(0x8a).little(8, 1).little(value, 8);
    }
    pickler& dictionary() { return op('}').op('('); }
    pickler& end_dictionary() { return op('u'); }
    pickler& list() { return op(']').op('('); }
    pickler& end_list() { return op('e'); }
    pickler& event(std::string_view action, std::uint64_t at, std::uint64_t bytes,
                   std::uint64_t stream, std::uint64_t us) {
        return dictionary()
            .text("action")
            .text(action)
            .text("addr")
            .number(at)
            .text("size")
            .number(bytes)
            .text("stream")
            .number(stream)
            .text("time_us")
            .number(us)
            .text("frames")
            .op(']')
            .end_dictionary();
    }
    [[nodiscard]] std::string done() const { return out_ + "."; }

private:
    std::string out_;
};

}  // namespace xmm::trace_replay::testing
