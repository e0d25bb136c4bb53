// SPDX-License-Identifier: Apache-2.0
// file_size_limit.hpp - while it lives, no file of this process grows beyond so many bytes: as on a disk that is full.
//
// Model    Writing more fails with EFBIG. Nothing is checked meanwhile: what doctest prints may go to a file.
#pragma once

#include <csignal>

#include <sys/resource.h>

namespace xmm::test {

class file_size_limit {
public:
    explicit file_size_limit(rlim_t bytes) : handler_{std::signal(SIGXFSZ, SIG_IGN)} {
        ::getrlimit(RLIMIT_FSIZE, &old_);
        const rlimit tight{bytes, old_.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &tight);
    }
    file_size_limit(const file_size_limit&) = delete;
    file_size_limit& operator=(const file_size_limit&) = delete;
    ~file_size_limit() {
        ::setrlimit(RLIMIT_FSIZE, &old_);
        std::signal(SIGXFSZ, handler_);
    }

private:
    rlimit old_{};
    void (*handler_)(int);
};

}  // namespace xmm::test
