// SPDX-License-Identifier: Apache-2.0
// capture.cpp - what a capture refuses, what breaks it, and graphs, as far as a test needs them.
#include <algorithm>

#include "streams.hpp"

namespace soft_cuda {

std::atomic<int> captures_under_way{0};

CUresult check_captures() {
    thread_state& thread = this_thread();
    if (thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_SUCCESS;
    }
    CUresult answer = CUDA_SUCCESS;
    const std::scoped_lock hold{work_lock};
    for (const auto& one : works().captures) {
        const bool is_mine = one->owner == std::this_thread::get_id();
        const bool minds_all = one->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                               thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (one->mode != CU_STREAM_CAPTURE_MODE_RELAXED && (is_mine || minds_all)) {
            invalidate_locked(*one);
            answer = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return answer;
}

void invalidate_locked(capture& which) {
    if (!which.is_invalid) {
        which.is_invalid = true;
        the_driver().counted.invalidated.fetch_add(1, std::memory_order_relaxed);
    }
}

void end_capture_locked(capture& which) {
    for (stream* member : which.members) {
        member->captured_by = nullptr;
        member->tips.clear();
    }
    which.members.clear();
    std::erase_if(works().captures, [&](const auto& one) { return one.get() == &which; });
    captures_under_way.fetch_sub(1, std::memory_order_acq_rel);
}

namespace {

entry_point exchange_point{"cuThreadExchangeStreamCaptureMode"};
entry_point begin_point{"cuStreamBeginCapture"};
entry_point end_point{"cuStreamEndCapture"};
entry_point is_capturing_point{"cuStreamIsCapturing"};
entry_point nodes_point{"cuGraphGetNodes"};
entry_point destroy_point{"cuGraphDestroy"};
entry_point instantiate_point{"cuGraphInstantiateWithFlags"};
entry_point launch_point{"cuGraphLaunch"};
entry_point exec_destroy_point{"cuGraphExecDestroy"};

// Everything that was captured must come before what the origin did last.
bool is_joined(const capture& which) {
    std::vector<bool> reached(which.nodes.size(), false);
    for (const std::size_t tip : which.origin->tips) {
        reached[tip] = true;
    }
    for (std::size_t at = which.nodes.size(); at-- > 0;) {  // a node follows only earlier ones
        if (reached[at]) {
            for (const std::size_t before : which.nodes[at].after) {
                reached[before] = true;
            }
        }
    }
    return std::all_of(which.members.begin(), which.members.end(), [&](const stream* member) {
        return std::all_of(member->tips.begin(), member->tips.end(),
                           [&](std::size_t tip) { return reached[tip]; });
    });
}

}  // namespace

SOFT_CUDA_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    return enter(exchange_point, init, [&] {
        if (mode == nullptr || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        std::swap(*mode, this_thread().capture_mode);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    return enter(begin_point, a_context, [&] {
        if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (reinterpret_cast<std::uintptr_t>(handle) <= stream_legacy) {
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        const std::scoped_lock hold{work_lock};
        const auto of = stream_of(handle);
        if (of == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (of->captured_by != nullptr) {
            return CUDA_ERROR_ILLEGAL_STATE;
        }
        auto made = std::make_shared<capture>();
        made->id = works().next_id++;
        made->mode = mode;
        made->owner = std::this_thread::get_id();
        made->origin = of.get();
        made->members.push_back(of.get());
        works().captures.push_back(made);
        of->captured_by = std::move(made);
        captures_under_way.fetch_add(1, std::memory_order_acq_rel);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuStreamEndCapture(CUstream handle, CUgraph* made) {
    return enter(end_point, a_context, [&] {
        const std::scoped_lock hold{work_lock};
        const auto of = stream_of(handle);
        if (of == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (made == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *made = nullptr;
        const auto ended = of->captured_by;
        if (ended == nullptr) {
            return CUDA_ERROR_ILLEGAL_STATE;
        }
        if (ended->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
            ended->owner != std::this_thread::get_id()) {
            return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
        }
        if (ended->origin != of.get()) {
            invalidate_locked(*ended);
            return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
        }
        const bool joined = is_joined(*ended);
        end_capture_locked(*ended);
        if (ended->is_invalid) {
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        }
        if (!joined) {
            invalidate_locked(*ended);
            return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        }
        auto one = std::make_shared<graph>();
        one->nodes = std::move(ended->nodes);
        *made = reinterpret_cast<CUgraph>(one.get());
        works().graphs[one.get()] = std::move(one);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
    return enter(is_capturing_point, a_context, [&] {
        const std::scoped_lock hold{work_lock};
        const auto of = stream_of(handle);
        if (of == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (status == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (reinterpret_cast<std::uintptr_t>(handle) <= stream_legacy) {
            // Refused, but what captures is not harmed by the question.
            for (const auto& [other, one] : works().streams) {
                if (one->captured_by != nullptr && one->is_blocking() &&
                    &one->owner == &of->owner) {
                    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
                }
            }
        }
        *status = of->captured_by == nullptr    ? CU_STREAM_CAPTURE_STATUS_NONE
                  : of->captured_by->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                                : CU_STREAM_CAPTURE_STATUS_ACTIVE;
        return CUDA_SUCCESS;
    });
}

// The count alone: the nodes themselves are nobody's business.
SOFT_CUDA_EXPORT CUresult cuGraphGetNodes(CUgraph handle, void** nodes, std::size_t* count) {
    return enter(nodes_point, init, [&] {
        const std::scoped_lock hold{work_lock};
        const auto found = works().graphs.find(handle);
        if (found == works().graphs.end() || count == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (nodes != nullptr) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        *count = found->second->nodes.size();
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuGraphDestroy(CUgraph handle) {
    return enter(destroy_point, init, [&] {
        const std::scoped_lock hold{work_lock};
        return works().graphs.erase(handle) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
}

SOFT_CUDA_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* made, CUgraph handle,
                                                      unsigned long long flags) {
    return enter(instantiate_point, init, [&] {
        const std::scoped_lock hold{work_lock};
        const auto found = works().graphs.find(handle);
        if (made == nullptr || flags != 0 || found == works().graphs.end()) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        auto one = std::make_shared<graph>(*found->second);
        *made = reinterpret_cast<CUgraphExec>(one.get());
        works().executables[one.get()] = std::move(one);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream in) {
    return enter(launch_point, a_context, [&] {
        std::shared_ptr<graph> what;
        {
            const std::scoped_lock hold{work_lock};
            const auto found = works().executables.find(handle);
            if (found == works().executables.end()) {
                return CUDA_ERROR_INVALID_HANDLE;
            }
            what = found->second;
        }
        // In the order of capture, one after the other: one of those that the graph allows.
        return submit(in, {{},
                           [what] {
                               for (const auto& node : what->nodes) {
                                   if (const CUresult failed = node.run ? node.run() : CUDA_SUCCESS;
                                       failed != CUDA_SUCCESS) {
                                       return failed;
                                   }
                               }
                               return CUDA_SUCCESS;
                           },
                           false});
    });
}

SOFT_CUDA_EXPORT CUresult cuGraphExecDestroy(CUgraphExec handle) {
    return enter(exec_destroy_point, init, [&] {
        const std::scoped_lock hold{work_lock};
        return works().executables.erase(handle) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
}

static_assert(is_as_declared<&driver_api::stream_is_capturing>(cuStreamIsCapturing));
static_assert(is_as_declared<&driver_api::thread_exchange_stream_capture_mode>(
    cuThreadExchangeStreamCaptureMode));

}  // namespace soft_cuda
