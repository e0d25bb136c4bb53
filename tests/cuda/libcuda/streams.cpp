// SPDX-License-Identifier: Apache-2.0
// streams.cpp - the streams' threads, and the calls about streams and events.
#include "streams.hpp"

#include <pthread.h>

#include <algorithm>
#include <csignal>

namespace soft_cuda {

std::mutex work_lock;

work_table& works() {
    static auto* const only = new work_table;  // never deleted, as the driver
    return *only;
}

bool position::is_done() const noexcept { return of == nullptr || of->has_reached(number); }
void position::wait() const {
    if (of != nullptr) {
        of->wait_for(number);
    }
}

namespace {

// The program's signals are none of a stream's business; those of its own doing are.
struct without_signals {
    without_signals() {
        sigset_t all;
        ::sigfillset(&all);
        for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) {
            ::sigdelset(&all, own);
        }
        ::pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    without_signals(const without_signals&) = delete;
    ~without_signals() { ::pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before{};
};

}  // namespace

position stream::push(work what) {
    const std::scoped_lock hold{mutex_};
    if (!has_thread_) {
        const without_signals inherited;
        // It keeps the stream alive until the last work is done, also after its handle is gone.
        std::thread{[self = shared_from_this()] { self->run(); }}.detach();
        has_thread_ = true;
    }
    queue_.push_back(std::move(what));
    arrived_.notify_one();
    return {shared_from_this(), ++submitted_};
}

position stream::tail() {
    const std::scoped_lock hold{mutex_};
    return {shared_from_this(), submitted_};
}

void stream::wait_for(std::uint64_t number) {
    std::unique_lock hold{mutex_};
    advanced_.wait(hold, [&] { return has_reached(number); });
}

void stream::close() {
    const std::scoped_lock hold{mutex_};
    is_closing_ = true;
    arrived_.notify_one();
}

void stream::run() {
    std::unique_lock hold{mutex_};
    for (;;) {
        arrived_.wait(hold, [&] { return !queue_.empty() || is_closing_; });
        if (queue_.empty()) {
            return;
        }
        work next = std::move(queue_.front());
        queue_.pop_front();
        hold.unlock();
        for (const position& other : next.after) {
            other.wait();
        }
        if (next.run && (next.is_run_when_lost || owner.state() == CUDA_SUCCESS)) {
            if (const CUresult failed = next.run(); failed != CUDA_SUCCESS) {
                owner.lose(failed);
            }
        }
        next = {};  // what it held goes before anybody hears of its end
        hold.lock();
        // release: pairs with the acquire in has_reached.
        completed_.fetch_add(1, std::memory_order_release);
        advanced_.notify_all();
    }
}

std::shared_ptr<stream> stream_of(CUstream handle) {
    work_table& all = works();
    const auto number = reinterpret_cast<std::uintptr_t>(handle);
    if (number > stream_per_thread) {
        const auto found = all.streams.find(handle);
        return found == all.streams.end() ? nullptr : found->second;
    }
    context* const current = this_thread().current();
    if (current == nullptr) {
        return nullptr;
    }
    if (number == stream_per_thread) {
        auto& mine = this_thread().own_streams[current];
        auto own = mine.lock();
        if (own == nullptr || !all.streams.contains(own.get())) {  // its context had an end since
            own = std::make_shared<stream>(*current, CU_STREAM_DEFAULT, 0, all.next_id++);
            all.streams[own.get()] = own;
            mine = own;
        }
        return own;
    }
    auto& legacy = all.legacy[current];
    if (legacy == nullptr) {
        legacy = std::make_shared<stream>(*current, CU_STREAM_DEFAULT, 0, all.next_id++);
    }
    return legacy;
}

namespace {

bool is_legacy(const stream& asked) {
    const auto found = works().legacy.find(&asked.owner);
    return found != works().legacy.end() && found->second.get() == &asked;
}

// What the order between the legacy stream and the blocking ones makes work in `to` wait for.
void add_implied(const stream& to, std::vector<position>& after) {
    if (!to.is_blocking()) {
        return;
    }
    if (!is_legacy(to)) {
        if (const auto found = works().legacy.find(&to.owner); found != works().legacy.end()) {
            after.push_back(found->second->tail());
        }
    } else {
        for (const auto& [handle, other] : works().streams) {
            if (&other->owner == &to.owner && other->is_blocking()) {
                after.push_back(other->tail());
            }
        }
    }
    std::erase_if(after, [](const position& one) { return one.is_done(); });
}

}  // namespace

CUresult check_legacy_locked(const stream& asked) {
    if (!is_legacy(asked)) {
        return CUDA_SUCCESS;
    }
    CUresult answer = CUDA_SUCCESS;
    for (const auto& [handle, other] : works().streams) {
        if (other->captured_by != nullptr && other->is_blocking() &&
            &other->owner == &asked.owner) {
            invalidate_locked(*other->captured_by);
            answer = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    return answer;
}

CUresult submit_locked(const std::shared_ptr<stream>& to, work what, position* done) {
    if (const CUresult refused = check_legacy_locked(*to); refused != CUDA_SUCCESS) {
        return refused;
    }
    if (const auto& capture = to->captured_by; capture != nullptr) {
        if (capture->is_invalid) {
            return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        }
        capture->nodes.push_back({to->tips, std::move(what.run)});
        to->tips.assign(1, capture->nodes.size() - 1);
        return CUDA_SUCCESS;
    }
    add_implied(*to, what.after);
    const position end = to->push(std::move(what));
    if (done != nullptr) {
        *done = end;
    }
    return CUDA_SUCCESS;
}

CUresult submit(CUstream handle, work what, position* done) {
    const std::scoped_lock hold{work_lock};
    const auto to = stream_of(handle);
    return to == nullptr ? CUDA_ERROR_INVALID_HANDLE : submit_locked(to, std::move(what), done);
}

std::vector<position> tails_of(const context& of) {
    const std::scoped_lock hold{work_lock};
    std::vector<position> tails;
    for (const auto& [handle, one] : works().streams) {
        if (&one->owner == &of) {
            tails.push_back(one->tail());
        }
    }
    if (const auto found = works().legacy.find(&of); found != works().legacy.end()) {
        tails.push_back(found->second->tail());
    }
    for (const auto& each : works().destroyed) {
        if (const auto one = each.lock(); one != nullptr && &one->owner == &of) {
            tails.push_back(one->tail());
        }
    }
    return tails;
}

void drain(const context& of) {
    for (const position& one : tails_of(of)) {
        one.wait();
    }
}

void end_streams_of(context& of) {
    drain(of);
    const std::scoped_lock hold{work_lock};
    work_table& all = works();
    const auto end = [&of](const auto& entry) {
        if (&entry.second->owner != &of) {
            return false;
        }
        if (const auto captured = entry.second->captured_by; captured != nullptr) {
            invalidate_locked(*captured);
            std::erase(captured->members, entry.second.get());
            if (captured->origin == entry.second.get()) {
                end_capture_locked(*captured);
            }
        }
        entry.second->close();
        return true;
    };
    std::erase_if(all.streams, end);
    std::erase_if(all.legacy, end);
    std::erase_if(all.events, [&of](const auto& entry) { return entry.second->owner == &of; });
}

namespace {

entry_point create_point{"cuStreamCreate"};
entry_point create_priority_point{"cuStreamCreateWithPriority"};
entry_point destroy_point{"cuStreamDestroy"};
entry_point query_point{"cuStreamQuery"};
entry_point synchronize_point{"cuStreamSynchronize"};
entry_point wait_event_point{"cuStreamWaitEvent"};
entry_point get_ctx_point{"cuStreamGetCtx"};
entry_point get_priority_point{"cuStreamGetPriority"};
entry_point get_flags_point{"cuStreamGetFlags"};
entry_point get_id_point{"cuStreamGetId"};
entry_point event_create_point{"cuEventCreate"};
entry_point event_destroy_point{"cuEventDestroy"};
entry_point event_record_point{"cuEventRecord"};
entry_point event_query_point{"cuEventQuery"};
entry_point event_synchronize_point{"cuEventSynchronize"};
entry_point elapsed_point{"cuEventElapsedTime"};
entry_point context_synchronize_point{"cuCtxSynchronize"};

constexpr int least_priority = 0, greatest_priority = -5;

CUresult make_stream(CUstream* made, unsigned flags, int priority) {
    if (made == nullptr || flags > CU_STREAM_NON_BLOCKING) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::scoped_lock hold{work_lock};
    work_table& all = works();
    auto one = std::make_shared<stream>(*this_thread().current(), flags,
                                        std::clamp(priority, greatest_priority, least_priority),
                                        all.next_id++);
    *made = reinterpret_cast<CUstream>(one.get());
    all.streams[one.get()] = std::move(one);
    return CUDA_SUCCESS;
}

std::shared_ptr<event> event_of(CUevent handle) {
    const auto found = works().events.find(handle);
    return found == works().events.end() ? nullptr : found->second;
}

// Where everything that is in `handle` now will be done, the blocking streams too where it is the legacy one.
CUresult end_of(CUstream handle, std::vector<position>& ends, context*& of) {
    const std::scoped_lock hold{work_lock};
    const auto asked = stream_of(handle);
    if (asked == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (asked->captured_by != nullptr) {
        invalidate_locked(*asked->captured_by);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (const CUresult refused = check_legacy_locked(*asked); refused != CUDA_SUCCESS) {
        return refused;
    }
    of = &asked->owner;
    if (is_legacy(*asked)) {
        add_implied(*asked, ends);
    }
    ends.push_back(asked->tail());
    return CUDA_SUCCESS;
}

CUresult context_of_stream(CUstream handle, CUcontext* of) {
    const std::scoped_lock hold{work_lock};
    const auto asked = stream_of(handle);
    if (asked == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (of == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *of = reinterpret_cast<CUcontext>(&asked->owner);
    return CUDA_SUCCESS;
}

CUresult elapsed(float* milliseconds, CUevent from, CUevent to) {
    const std::scoped_lock hold{work_lock};
    const auto first = event_of(from), second = event_of(to);
    if (milliseconds == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (first == nullptr || second == nullptr || first->stamp == nullptr ||
        second->stamp == nullptr ||
        ((first->flags | second->flags) & CU_EVENT_DISABLE_TIMING) != 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!first->at.is_done() || !second->at.is_done()) {
        return CUDA_ERROR_NOT_READY;
    }
    const auto began = static_cast<double>(first->stamp->load(std::memory_order_acquire));
    const auto ended = static_cast<double>(second->stamp->load(std::memory_order_acquire));
    *milliseconds = static_cast<float>((ended - began) / 1e6);
    return CUDA_SUCCESS;
}

CUresult refuse_captured(event& asked) {
    if (!asked.recorded_in->is_invalid) {
        invalidate_locked(*asked.recorded_in);
    }
    return CUDA_ERROR_CAPTURED_EVENT;
}

}  // namespace

SOFT_CUDA_EXPORT CUresult cuStreamCreate(CUstream* made, unsigned flags) {
    return enter(create_point, a_context, [&] { return make_stream(made, flags, 0); });
}

SOFT_CUDA_EXPORT CUresult cuStreamCreateWithPriority(CUstream* made, unsigned flags, int priority) {
    return enter(create_priority_point, a_context,
                 [&] { return make_stream(made, flags, priority); });
}

SOFT_CUDA_EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
    return enter(destroy_point, a_context | lost_too, [&] {
        const std::scoped_lock hold{work_lock};
        work_table& all = works();
        const auto found = all.streams.find(handle);
        if (found == all.streams.end()) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (found->second->captured_by != nullptr) {
            invalidate_locked(*found->second->captured_by);
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        found->second->close();
        const CUresult state = found->second->owner.state();
        std::erase_if(all.destroyed, [](const auto& one) { return one.expired(); });
        all.destroyed.push_back(found->second);
        all.streams.erase(found);
        return state;
    });
}

SOFT_CUDA_EXPORT CUresult cuStreamQuery(CUstream handle) {
    return enter(query_point, a_context | no_capture, [&] {
        std::vector<position> ends;
        context* of = nullptr;
        if (const CUresult refused = end_of(handle, ends, of); refused != CUDA_SUCCESS) {
            return refused;
        }
        const bool done = std::all_of(ends.begin(), ends.end(),
                                      [](const position& one) { return one.is_done(); });
        // Asked after: work that failed is done.
        if (of->state() != CUDA_SUCCESS) {
            return of->state();
        }
        return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    });
}

SOFT_CUDA_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
    return enter(synchronize_point, a_context | no_capture, [&] {
        std::vector<position> ends;
        context* of = nullptr;
        if (const CUresult refused = end_of(handle, ends, of); refused != CUDA_SUCCESS) {
            return refused;
        }
        for (const position& one : ends) {
            one.wait();
        }
        return of->state();
    });
}

SOFT_CUDA_EXPORT CUresult cuCtxSynchronize() {
    return enter(context_synchronize_point, a_context | no_capture, [&] {
        context& current = *this_thread().current();
        drain(current);
        return current.state();
    });
}

SOFT_CUDA_EXPORT CUresult cuCtxSynchronize_v2(CUcontext handle) {
    return enter(context_synchronize_point, a_context | no_capture, [&] {
        for (const auto& one : the_driver().devices) {
            if (handle == nullptr ? &one->primary == this_thread().current()
                                  : reinterpret_cast<CUcontext>(&one->primary) == handle) {
                drain(one->primary);
                return one->primary.state();
            }
        }
        return CUDA_ERROR_INVALID_CONTEXT;
    });
}

SOFT_CUDA_EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent awaited, unsigned flags) {
    return enter(wait_event_point, a_context, [&] {
        const std::scoped_lock hold{work_lock};
        const auto to = stream_of(handle);
        const auto one = event_of(awaited);
        if (to == nullptr || one == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (flags != 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (const CUresult refused = check_legacy_locked(*to); refused != CUDA_SUCCESS) {
            return refused;
        }
        auto& capture = to->captured_by;
        if (one->recorded_in != nullptr) {
            const auto& source = one->recorded_in;
            const bool goes_on = std::any_of(works().captures.begin(), works().captures.end(),
                                             [&](const auto& c) { return c == source; });
            if (!goes_on) {
                return CUDA_ERROR_CAPTURED_EVENT;
            }
            if (source->is_invalid) {
                return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
            }
            if (is_legacy(*to)) {
                invalidate_locked(*source);
                return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
            }
            if (capture == nullptr) {  // the capture forks into this stream
                capture = source;
                to->tips = one->tips;
                source->members.push_back(to.get());
                return CUDA_SUCCESS;
            }
            if (capture != source) {
                invalidate_locked(*source);
                invalidate_locked(*capture);
                return CUDA_ERROR_STREAM_CAPTURE_MERGE;
            }
            to->tips.insert(to->tips.end(), one->tips.begin(), one->tips.end());
            return CUDA_SUCCESS;
        }
        if (one->at.of == nullptr) {
            return CUDA_SUCCESS;  // never recorded: nothing to wait for
        }
        if (capture != nullptr) {
            invalidate_locked(*capture);
            return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        }
        return submit_locked(to, {{one->at}, {}, false}, nullptr);
    });
}

SOFT_CUDA_EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext* of) {
    return enter(get_ctx_point, a_context, [&] { return context_of_stream(handle, of); });
}

// Since 12.5 a third argument says which green context it is of: there are none here.
SOFT_CUDA_EXPORT CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext* of, void** green) {
    return enter(get_ctx_point, a_context, [&] {
        if (green != nullptr) {
            *green = nullptr;
        }
        return context_of_stream(handle, of);
    });
}

SOFT_CUDA_EXPORT CUresult cuStreamGetPriority(CUstream handle, int* priority) {
    return enter(get_priority_point, a_context, [&] {
        const std::scoped_lock hold{work_lock};
        const auto asked = stream_of(handle);
        if (asked == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (priority == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *priority = asked->priority;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned* flags) {
    return enter(get_flags_point, a_context, [&] {
        const std::scoped_lock hold{work_lock};
        const auto asked = stream_of(handle);
        if (asked == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (flags == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *flags = asked->flags;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
    return enter(get_id_point, a_context, [&] {
        const std::scoped_lock hold{work_lock};
        const auto asked = stream_of(handle);
        if (asked == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (id == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *id = asked->id;
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuEventCreate(CUevent* made, unsigned flags) {
    return enter(event_create_point, a_context, [&] {
        constexpr unsigned known =
            CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
        const bool is_shared = (flags & CU_EVENT_INTERPROCESS) != 0;
        if (made == nullptr || (flags & ~known) != 0 ||
            (is_shared && (flags & CU_EVENT_DISABLE_TIMING) == 0)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        auto one = std::make_shared<event>();
        one->owner = this_thread().current();
        one->flags = flags;
        const std::scoped_lock hold{work_lock};
        *made = reinterpret_cast<CUevent>(one.get());
        works().events[one.get()] = std::move(one);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
    return enter(event_destroy_point, a_context | lost_too, [&] {
        const std::scoped_lock hold{work_lock};
        const auto found = works().events.find(handle);
        if (found == works().events.end()) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        const CUresult state = found->second->owner->state();
        works().events.erase(found);
        return state;
    });
}

SOFT_CUDA_EXPORT CUresult cuEventRecord(CUevent handle, CUstream in) {
    return enter(event_record_point, a_context, [&] {
        const std::scoped_lock hold{work_lock};
        const auto to = stream_of(in);
        const auto one = event_of(handle);
        if (to == nullptr || one == nullptr || one->owner != &to->owner) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (to->captured_by != nullptr) {
            if (to->captured_by->is_invalid) {
                return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
            }
            one->recorded_in = to->captured_by;
            one->tips = to->tips;
            one->at = {};
            one->stamp = nullptr;
            return CUDA_SUCCESS;
        }
        auto stamp = std::make_shared<std::atomic<std::uint64_t>>(0);
        position at;
        // Without a time to note there is nothing to do there but in the streams that wait for others unasked.
        if ((one->flags & CU_EVENT_DISABLE_TIMING) != 0 && !to->is_blocking()) {
            at = to->tail();
        } else {
            const CUresult refused =
                submit_locked(to,
                              {{},
                               [stamp] {
                                   stamp->store(now_ns(), std::memory_order_release);
                                   return CUDA_SUCCESS;
                               },
                               false},
                              &at);
            if (refused != CUDA_SUCCESS) {
                return refused;
            }
        }
        one->recorded_in = nullptr;
        one->tips.clear();
        one->at = std::move(at);
        one->stamp = std::move(stamp);
        return CUDA_SUCCESS;
    });
}

SOFT_CUDA_EXPORT CUresult cuEventQuery(CUevent handle) {
    return enter(event_query_point, a_context | no_capture, [&] {
        const std::scoped_lock hold{work_lock};
        const auto one = event_of(handle);
        if (one == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (one->recorded_in != nullptr) {
            return refuse_captured(*one);
        }
        const bool done = one->at.is_done();
        if (one->owner->state() != CUDA_SUCCESS) {
            return one->owner->state();
        }
        return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    });
}

SOFT_CUDA_EXPORT CUresult cuEventSynchronize(CUevent handle) {
    return enter(event_synchronize_point, a_context | no_capture, [&] {
        position at;
        context* of = nullptr;
        {
            const std::scoped_lock hold{work_lock};
            const auto one = event_of(handle);
            if (one == nullptr) {
                return CUDA_ERROR_INVALID_HANDLE;
            }
            if (one->recorded_in != nullptr) {
                return refuse_captured(*one);
            }
            at = one->at;
            of = one->owner;
        }
        at.wait();
        return of->state();
    });
}

SOFT_CUDA_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) {
    return enter(elapsed_point, a_context, [&] { return elapsed(milliseconds, from, to); });
}
SOFT_CUDA_EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent from, CUevent to) {
    return enter(elapsed_point, a_context, [&] { return elapsed(milliseconds, from, to); });
}

static_assert(is_as_declared<&driver_api::stream_create_with_priority>(cuStreamCreateWithPriority));
static_assert(is_as_declared<&driver_api::stream_destroy>(cuStreamDestroy_v2));
static_assert(is_as_declared<&driver_api::stream_query>(cuStreamQuery));
static_assert(is_as_declared<&driver_api::stream_synchronize>(cuStreamSynchronize));
static_assert(is_as_declared<&driver_api::stream_wait_event>(cuStreamWaitEvent));
static_assert(is_as_declared<&driver_api::stream_get_ctx>(cuStreamGetCtx));
static_assert(is_as_declared<&driver_api::stream_get_priority>(cuStreamGetPriority));
static_assert(is_as_declared<&driver_api::event_create>(cuEventCreate));
static_assert(is_as_declared<&driver_api::event_destroy>(cuEventDestroy_v2));
static_assert(is_as_declared<&driver_api::event_record>(cuEventRecord));
static_assert(is_as_declared<&driver_api::event_query>(cuEventQuery));
static_assert(is_as_declared<&driver_api::event_synchronize>(cuEventSynchronize));

}  // namespace soft_cuda
