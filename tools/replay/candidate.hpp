// SPDX-License-Identifier: Apache-2.0
// candidate.hpp - an allocator under replay.
//
// Model    Blocks are the trace's. The bill is filled by the candidate; the replay sets what is live.
// Threads  One.
#pragma once

#include <cstdint>

#include "driver_bill.hpp"
#include "trace.hpp"

namespace xmm::trace_replay {

class candidate {
public:
    explicit candidate(const prices& list) : bill_{list} {}
    candidate(const candidate&) = delete;
    candidate& operator=(const candidate&) = delete;
    virtual ~candidate() = default;

    // False if there is no memory for it; all is as before then.
    [[nodiscard]] virtual bool allocate(const trace_event& event) = 0;
    // The program let go, and the block's last use on `event.stream` ends at `done_us`. Only in traces
    // that tell the two apart.
    virtual void free_requested(const trace_event&, std::uint64_t /*done_us*/) {}
    virtual void free_completed(const trace_event& event) = 0;

    [[nodiscard]] driver_bill& bill() noexcept { return bill_; }
    [[nodiscard]] const driver_bill& bill() const noexcept { return bill_; }

protected:
    driver_bill bill_;
};

}  // namespace xmm::trace_replay
