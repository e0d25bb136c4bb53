// SPDX-License-Identifier: Apache-2.0
#include "../../tools/replay/read_rmm.hpp"

#include "target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    return fuzz_reader(data, bytes, [](std::string_view text) {
        check_trace(xmm::trace_replay::read_rmm("t", text));
    });
}
