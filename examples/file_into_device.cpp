// SPDX-License-Identifier: Apache-2.0
// Reads a file into unified memory with read(2) and sums its bytes on the device; hints say what comes next.
#include <xmm/xmm.hpp>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <unistd.h>

using namespace xmm::literals;

namespace {

void must(xmm::status outcome, const char* what) {
    if (!outcome) {
        std::fprintf(stderr, "%s: %s\n", what, outcome.why);
        std::exit(1);
    }
}

}  // namespace

int main() {
    // A space with software devices, whatever else is here: the kernel below is a C++ function.
    xmm::space space = xmm::space::create({.devices = xmm::device_kind::soft}).value();
    const xmm::node_id device = space.devices().at(0);
    constexpr std::size_t bytes = 8_MiB;

    std::FILE* file = std::tmpfile();
    std::vector<unsigned char> contents(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
        contents[i] = static_cast<unsigned char>(i * 31);
    }
    if (file == nullptr || std::fwrite(contents.data(), 1, bytes, file) != bytes ||
        std::fflush(file) != 0) {
        std::fprintf(stderr, "no temporary file\n");
        return 1;
    }

    auto* data = static_cast<unsigned char*>(space.map(bytes).value());
    {
        // While this lives the pages are on the host and stay there: the kernel may write into them.
        auto access = space.access_on_host(data, bytes);
        must(access.error(), "access_on_host");
        if (::pread(::fileno(file), data, bytes, 0) != static_cast<ssize_t>(bytes)) {
            std::perror("pread");
            return 1;
        }
    }
    must(space.advise(device, data, bytes, xmm::advice::will_need), "will_need");

    auto* sum = static_cast<unsigned long long*>(space.map(sizeof(unsigned long long)).value());
    auto queue = space.make_queue(device).value();
    auto done = xmm::launch(
        queue, {xmm::reads(data, bytes), xmm::writes(sum, sizeof *sum)}, [&](xmm::soft::stream& s) {
            return s.run([in = xmm::device_view<const unsigned char>{data, bytes},
                          out = xmm::device_view{sum, 1}] {
                unsigned long long total = 0;
                in.for_each_span(0, in.size(),
                                 [&](std::span<const unsigned char> some, std::size_t) {
                                     for (unsigned char one : some) {
                                         total += one;
                                     }
                                 });
                out[0] = total;
            });
        });
    must(done ? queue.synchronize() : done.error(), "launch");

    unsigned long long expected = 0;
    for (unsigned char one : contents) {
        expected += one;
    }
    std::printf("sum %llu, expected %llu\n", *sum, expected);
    const bool is_right = *sum == expected;
    must(space.advise(device, data, bytes, xmm::advice::dont_need), "dont_need");
    must(space.unmap(data), "unmap");
    must(space.unmap(sum), "unmap");
    std::fclose(file);
    return is_right ? 0 : 1;
}
