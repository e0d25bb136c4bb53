// SPDX-License-Identifier: Apache-2.0
#include "../../tools/replay/read_snapshot.hpp"

#include "target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    return fuzz_reader(data, bytes, [](std::string_view text) {
        for (const auto& one : xmm::trace_replay::read_snapshot("t", text)) {
            check_trace(one);
        }
    });
}
