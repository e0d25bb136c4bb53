// SPDX-License-Identifier: Apache-2.0
// output_file.hpp - a file that a tool writes as a whole or not at all.
//
// Model    As os/whole_file.hpp says, for those who write to a std::FILE.
// Failure  bad_input with file and reason; what was there before is there still.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <xmm/os/whole_file.hpp>

#include "bad_input.hpp"
#include "format.hpp"

namespace xmm::demo {

[[noreturn]] inline void refuse_output(const std::string& path, const std::string& reason) {
    throw bad_input(fmt::format("{}: cannot be written: {}", path, reason));
}
[[nodiscard]] inline std::string why_not_written(const file_place& place, int error) {
    return place.is_open_here ? "it is a file that this program has open" : std::strerror(error);
}

class output_file {
public:
    explicit output_file(const std::string& path) : path_{path}, file_{path} {
        if (file_.error() != 0) {
            refuse(why_not_written(file_.place(), file_.error()));
        }
        // A copy: fclose() ends it, and whole_file has its own to close.
        const int copy = ::fcntl(file_.descriptor(), F_DUPFD_CLOEXEC, 0);
        stream_ = copy < 0 ? nullptr : ::fdopen(copy, "wb");
        if (stream_ == nullptr) {
            const std::string reason = std::strerror(errno);
            if (copy >= 0) {
                ::close(copy);
            }
            refuse(reason);
        }
    }
    output_file(const output_file&) = delete;
    output_file& operator=(const output_file&) = delete;
    ~output_file() {
        if (stream_ != nullptr) {
            std::fclose(stream_);
        }
    }

    [[nodiscard]] std::FILE* get() const noexcept { return stream_; }
    // All is written: puts it in its place.
    void finish() {
        if (std::fclose(std::exchange(stream_, nullptr)) != 0) {
            refuse(std::strerror(errno));
        }
        if (const int error = file_.finish(); error != 0) {
            refuse(std::strerror(error));
        }
    }
    [[noreturn]] void refuse(const std::string& reason) const { refuse_output(path_, reason); }

private:
    const std::string path_;
    whole_file file_;
    std::FILE* stream_ = nullptr;
};

inline void write_text(const std::string& path, std::string_view text) {
    output_file file{path};
    if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size()) {
        file.refuse(std::strerror(errno));
    }
    file.finish();
}

}  // namespace xmm::demo
