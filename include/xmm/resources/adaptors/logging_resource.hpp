// SPDX-License-Identifier: Apache-2.0
// logging_resource.hpp - every request and every return, a line each, as RMM's replay reads it.
//
// Model    CSV with RMM's header. An attempt that fails is logged too ("allocate failure", no pointer);
//          a return is logged before it happens, so that no later request with that address precedes it.
//          Time is local, to the microsecond; the stream is the number of our queue, 0 for none.
// Threads  Any; a line is written whole.
// Failure  The constructor throws std::system_error if the file cannot be opened. A full disk loses lines.
#pragma once

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <system_error>

#include <unistd.h>

#include <xmm/core/lock.hpp>
#include <xmm/resources/adaptors/adaptor.hpp>

namespace xmm {

template <resource Upstream>
class logging_resource final : public adaptor<Upstream> {
public:
    static constexpr const char* header = "Thread,Time,Action,Pointer,Size,Stream";

    // Writes into a file of its own, from the start.
    logging_resource(Upstream& upstream, const char* path)
        : adaptor<Upstream>{"logging", upstream},
          own_{std::fopen(path, "w"), &std::fclose},
          file_{own_.get()} {
        if (file_ == nullptr) {
            throw std::system_error{errno, std::generic_category(), path};
        }
        std::fprintf(file_, "%s\n", header);
    }
    // Writes into a file that stays the caller's.
    logging_resource(Upstream& upstream, std::FILE* file)
        : adaptor<Upstream>{"logging", upstream}, own_{nullptr, &std::fclose}, file_{file} {
        std::fprintf(file_, "%s\n", header);
    }
    void flush() noexcept { std::fflush(file_); }

private:
    void* do_allocate_on(stream_ref stream, std::size_t bytes, std::size_t alignment) override {
        try {
            void* pointer = this->upstream().allocate(stream, bytes, alignment);
            log("allocate", pointer, bytes, stream);
            return pointer;
        } catch (...) {
            log("allocate failure", nullptr, bytes, stream);
            throw;
        }
    }
    void do_deallocate_on(stream_ref stream, void* pointer, std::size_t bytes,
                          std::size_t alignment) noexcept override {
        log("free", pointer, bytes, stream);
        this->upstream().deallocate(stream, pointer, bytes, alignment);
    }
    void log(const char* action, void* pointer, std::size_t bytes, stream_ref stream) noexcept {
        using namespace std::chrono;
        const auto now = system_clock::now().time_since_epoch();
        const std::time_t seconds = duration_cast<std::chrono::seconds>(now).count();
        const auto micros = static_cast<int>(duration_cast<microseconds>(now).count() % 1'000'000);
        std::tm local{};
        ::localtime_r(&seconds, &local);
        std::array<char, 160> line;
        const int length =
            std::snprintf(line.data(), line.size(), "%d,%02d:%02d:%02d.%06d,%s,0x%zx,%zu,%u\n",
                          ::gettid(), local.tm_hour, local.tm_min, local.tm_sec, micros, action,
                          to_address(pointer), bytes, stream.queue().value);
        with(lock_, [&] { std::fwrite(line.data(), 1, static_cast<std::size_t>(length), file_); });
    }

    std::unique_ptr<std::FILE, int (*)(std::FILE*)> own_;
    std::FILE* file_;
    ranked_mutex<lock_rank::leaf> lock_;
};

template <resource Upstream, class Target>
logging_resource(Upstream&, Target) -> logging_resource<Upstream>;

}  // namespace xmm
