// SPDX-License-Identifier: Apache-2.0
// driver.cpp - what the environment asks for, and what each call passes before it does anything.
#include "driver.hpp"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "soft_cuda.hpp"

namespace soft_cuda {

namespace {

// Made by the constructors of the entry points, before anybody can call one.
entry_point* all_points = nullptr;

// A number with K, M or G behind it.
std::uint64_t number_in(const char* variable, std::uint64_t otherwise) {
    const char* text = std::getenv(variable);
    if (text == nullptr || *text == '\0') {
        return otherwise;
    }
    char* end = nullptr;
    double value = std::strtod(text, &end);
    switch (*end) {
        case 'K': value *= 1024; break;
        case 'M': value *= 1024 * 1024; break;
        case 'G': value *= 1024 * 1024 * 1024; break;
        case '\0': break;
        default:
            std::fprintf(stderr, "software CUDA: %s=%s is not a number\n", variable, text);
            return otherwise;
    }
    return value < 0 ? 0 : static_cast<std::uint64_t>(value);
}

std::vector<std::string_view> pieces_of(std::string_view text, char separator) {
    std::vector<std::string_view> pieces;
    while (!text.empty()) {
        const auto end = text.find(separator);
        pieces.push_back(text.substr(0, end));
        text = end == text.npos ? std::string_view{} : text.substr(end + 1);
    }
    return pieces;
}

bool read_number(std::string_view text, unsigned& value) {
    return std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc{};
}

void complain(const char* variable, std::string_view piece) {
    std::fprintf(stderr, "software CUDA: %s: '%.*s' is not understood\n", variable,
                 static_cast<int>(piece.size()), piece.data());
}

void read_faults() {
    const char* text = std::getenv("SOFT_CUDA_FAIL");
    for (const auto piece : pieces_of(text != nullptr ? text : "", ',')) {
        const auto words = pieces_of(piece, ':');
        unsigned skip = 0, times = 0, code = 0;
        entry_point* point = words.empty() ? nullptr : entry_point::find(words[0]);
        if (words.size() != 4 || point == nullptr || !read_number(words[1], skip) ||
            !read_number(words[2], times) || !read_number(words[3], code)) {
            complain("SOFT_CUDA_FAIL", piece);
            continue;
        }
        point->fail(skip, times, static_cast<CUresult>(code));
    }
    text = std::getenv("SOFT_CUDA_DELAY");
    for (const auto piece : pieces_of(text != nullptr ? text : "", ',')) {
        const auto words = pieces_of(piece, ':');
        unsigned microseconds = 0;
        entry_point* point = words.empty() ? nullptr : entry_point::find(words[0]);
        if (words.size() != 2 || point == nullptr || !read_number(words[1], microseconds)) {
            complain("SOFT_CUDA_DELAY", piece);
            continue;
        }
        point->delay(microseconds);
    }
}

// What an H200 says, as far as anybody asked one.
std::map<unsigned, int> usual_attributes(int ordinal) {
    std::map<unsigned, int> all{
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
        {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0},
        {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, ordinal + 1},
        {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
        {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0xffff},
        {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
        {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
        {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
        {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
        {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0},
        {CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 0},
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_NUMA_CONFIG, 0},
        {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
        {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0},
        {CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    };
    const char* text = std::getenv("SOFT_CUDA_ATTRIBUTES");
    for (const auto piece : pieces_of(text != nullptr ? text : "", ',')) {
        const auto words = pieces_of(piece, '=');
        unsigned which = 0;
        int value = 0;
        if (words.size() != 2 || !read_number(words[0], which) ||
            std::from_chars(words[1].data(), words[1].data() + words[1].size(), value).ec !=
                std::errc{}) {
            complain("SOFT_CUDA_ATTRIBUTES", piece);
            continue;
        }
        all[which] = value;
    }
    return all;
}

// Each frame holds a file descriptor, and the usual soft limit is soon reached.
void raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        ::setrlimit(RLIMIT_NOFILE, &limit);
    }
}

driver* make_driver() {
    auto* made = new driver;  // never deleted: streams' threads use it to the very end
    made->version = static_cast<int>(number_in("SOFT_CUDA_VERSION", 13000));
    made->poisons = number_in("SOFT_CUDA_POISON", 0) != 0;
    const auto count = std::min<std::uint64_t>(number_in("SOFT_CUDA_DEVICES", 1), most_devices);
    const std::size_t bytes = number_in("SOFT_CUDA_BYTES", std::uint64_t{1} << 30);
    const std::uint64_t speed = number_in("SOFT_CUDA_LINK", 0);
    for (int ordinal = 0; ordinal < static_cast<int>(count); ++ordinal) {
        auto one = std::make_unique<device>();
        one->ordinal = one->primary.device = ordinal;
        one->bytes = bytes / page_bytes * page_bytes;
        one->bytes_per_second = speed;
        one->attributes = usual_attributes(ordinal);
        made->devices.push_back(std::move(one));
    }
    raise_descriptor_limit();
    read_faults();
    static driver* of_child = made;
    ::pthread_atfork(nullptr, nullptr, [] { of_child->is_forked = true; });
    return made;
}

}  // namespace

driver& the_driver() {
    static driver* const only = make_driver();
    return *only;
}

// Not thread_local: the loader hands out and takes back such memory of a library that was opened late, and the
// thread sanitizer does not see how that is ordered.
thread_state& this_thread() noexcept {
    static const pthread_key_t key = [] {
        pthread_key_t made{};
        ::pthread_key_create(&made, [](void* of) { delete static_cast<thread_state*>(of); });
        return made;
    }();
    auto* state = static_cast<thread_state*>(::pthread_getspecific(key));
    if (state == nullptr) {
        state = new thread_state;
        ::pthread_setspecific(key, state);
    }
    return *state;
}

bool driver::has_host(int numa_node) noexcept {
    if (numa_node < 0) {
        return false;
    }
    char path[64];
    std::snprintf(path, sizeof path, "/sys/devices/system/node/node%d", numa_node);
    return numa_node == 0 || ::access(path, F_OK) == 0;
}

int device::attribute(unsigned which) {
    const std::scoped_lock hold{attributes_lock};
    const auto found = attributes.find(which);
    return found == attributes.end() ? 0 : found->second;
}

std::size_t device::free_bytes() const noexcept {
    const std::size_t used = held.load(std::memory_order_relaxed) +
                             managed.load(std::memory_order_relaxed) +
                             taken.load(std::memory_order_relaxed);  // an estimate, as a driver's
    return used < bytes ? bytes - used : 0;
}

bool device::try_charge(std::atomic<std::size_t>& where, std::size_t amount) noexcept {
    const std::scoped_lock hold{charge_lock_};  // who gives back needs no lock: that only adds room
    if (amount > free_bytes()) {
        return false;
    }
    where.fetch_add(amount, std::memory_order_relaxed);  // the lock orders those who add
    return true;
}

void lane::pass(std::size_t bytes, std::uint64_t bytes_per_second) {
    if (bytes_per_second == 0 || bytes == 0) {
        return;
    }
    constexpr std::uint64_t slack_ns = 300'000;  // a gap so short is a late wake-up
    std::uint64_t until = 0;
    {
        const std::scoped_lock hold{mutex_};
        const auto wire = static_cast<std::uint64_t>(static_cast<double>(bytes) * 1e9 /
                                                     static_cast<double>(bytes_per_second));
        free_at_ = until = std::max(free_at_, now_ns() - slack_ns) + wire;
    }
    if (const std::uint64_t now = now_ns(); now < until) {
        std::this_thread::sleep_for(std::chrono::nanoseconds{until - now});
    }
}

entry_point::entry_point(const char* name) noexcept : name_{name}, next_{all_points} {
    all_points = this;
}

entry_point* entry_point::find(std::string_view name) noexcept {
    if (name.size() > 3 && name.substr(name.size() - 3, 2) == "_v") {
        name.remove_suffix(3);
    }
    for (entry_point* point = all_points; point != nullptr; point = point->next_) {
        if (name == point->name_) {
            return point;
        }
    }
    return nullptr;
}

void entry_point::fail(unsigned skip, unsigned times, CUresult code) noexcept {
    const std::scoped_lock hold{mutex_};
    skip_ = skip, times_ = times, code_ = code;
    // release: pairs with the acquire in call, which then takes the lock.
    is_armed_.store(times != 0, std::memory_order_release);
}

void entry_point::reset_all() noexcept {
    for (entry_point* point = all_points; point != nullptr; point = point->next_) {
        point->fail(0, 0, CUDA_SUCCESS);
        point->delay(0);
        point->calls_.store(0, std::memory_order_relaxed);
    }
}

CUresult entry_point::call() noexcept {
    calls_.fetch_add(1, std::memory_order_relaxed);
    if (const unsigned wait = delay_us_.load(std::memory_order_relaxed); wait != 0) {
        std::this_thread::sleep_for(std::chrono::microseconds{wait});
    }
    if (!is_armed_.load(std::memory_order_acquire)) {  // acquire: see fail
        return CUDA_SUCCESS;
    }
    const std::scoped_lock hold{mutex_};
    if (times_ == 0) {
        return CUDA_SUCCESS;
    }
    if (skip_ != 0) {
        --skip_;
        return CUDA_SUCCESS;
    }
    if (--times_ == 0) {
        is_armed_.store(false, std::memory_order_release);
    }
    return code_;
}

CUresult admit(entry_point& point, unsigned what) noexcept {
    driver& all = the_driver();
    if (all.is_forked.load(std::memory_order_relaxed)) {  // set before the child runs anything
        return (what & init) != 0 ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
    }
    thread_state& thread = this_thread();
    context* const current = thread.current();
    if (const CUresult asked = point.call(); asked != CUDA_SUCCESS) {
        if (ends_a_context(asked) && current != nullptr) {
            current->lose(asked);
        }
        return asked;
    }
    if (thread.is_in_host_function && (what & in_host_functions) == 0) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if ((what & init) != 0 && !all.is_initialised.load(std::memory_order_acquire)) {  // see cuInit
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if ((what & a_context) == a_context) {
        if (current == nullptr) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (!current->is_live.load(std::memory_order_acquire)) {
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        }
    }
    if ((what & init) != 0 && (what & lost_too) == 0 && current != nullptr &&
        current->state() != CUDA_SUCCESS) {
        return current->state();
    }
    if ((what & no_capture) != 0 && captures_under_way.load(std::memory_order_acquire) != 0) {
        return check_captures();
    }
    return CUDA_SUCCESS;
}

}  // namespace soft_cuda

using soft_cuda::the_driver;
using xmm::cuda::CUresult;

SOFT_CUDA_EXPORT CUresult xmmSoftCudaFail(const char* name, unsigned skip, unsigned times,
                                          CUresult code) {
    (void)the_driver();
    auto* const point = name != nullptr ? soft_cuda::entry_point::find(name) : nullptr;
    if (point == nullptr) {
        return xmm::cuda::CUDA_ERROR_NOT_FOUND;
    }
    point->fail(skip, times, code);
    return xmm::cuda::CUDA_SUCCESS;
}

SOFT_CUDA_EXPORT CUresult xmmSoftCudaDelay(const char* name, unsigned microseconds) {
    (void)the_driver();
    auto* const point = name != nullptr ? soft_cuda::entry_point::find(name) : nullptr;
    if (point == nullptr) {
        return xmm::cuda::CUDA_ERROR_NOT_FOUND;
    }
    point->delay(microseconds);
    return xmm::cuda::CUDA_SUCCESS;
}

SOFT_CUDA_EXPORT unsigned long long xmmSoftCudaCalls(const char* name) {
    auto* const point = name != nullptr ? soft_cuda::entry_point::find(name) : nullptr;
    return point != nullptr ? point->calls() : 0;
}

SOFT_CUDA_EXPORT void xmmSoftCudaReset() {
    auto& counted = the_driver().counted;
    soft_cuda::entry_point::reset_all();
    for (auto* figure :
         {&counted.to_device, &counted.to_host, &counted.between, &counted.faults,
          &counted.evictions, &counted.remote, &counted.prefetched, &counted.duplicated,
          &counted.discarded, &counted.refused, &counted.invalidated}) {
        figure->store(0, std::memory_order_relaxed);  // frames stay: they are a stock, not a count
    }
}

SOFT_CUDA_EXPORT std::size_t xmmSoftCudaHeld(int ordinal) {
    auto& all = the_driver();
    if (!all.has_device(ordinal)) {
        return 0;
    }
    const auto& one = *all.devices[static_cast<std::size_t>(ordinal)];
    return one.held.load(std::memory_order_relaxed) + one.managed.load(std::memory_order_relaxed);
}

SOFT_CUDA_EXPORT CUresult xmmSoftCudaLink(int ordinal, unsigned long long bytes_per_second) {
    auto& all = the_driver();
    if (!all.has_device(ordinal)) {
        return xmm::cuda::CUDA_ERROR_INVALID_DEVICE;
    }
    all.devices[static_cast<std::size_t>(ordinal)]->bytes_per_second = bytes_per_second;
    return xmm::cuda::CUDA_SUCCESS;
}

SOFT_CUDA_EXPORT CUresult xmmSoftCudaAttribute(int ordinal, unsigned attribute, int value) {
    auto& all = the_driver();
    if (!all.has_device(ordinal)) {
        return xmm::cuda::CUDA_ERROR_INVALID_DEVICE;
    }
    auto& one = *all.devices[static_cast<std::size_t>(ordinal)];
    const std::scoped_lock hold{one.attributes_lock};
    one.attributes[attribute] = value;
    return xmm::cuda::CUDA_SUCCESS;
}

SOFT_CUDA_EXPORT CUresult xmmSoftCudaBreak(int ordinal, CUresult code) {
    auto& all = the_driver();
    if (!all.has_device(ordinal) || !soft_cuda::ends_a_context(code)) {
        return xmm::cuda::CUDA_ERROR_INVALID_VALUE;
    }
    all.devices[static_cast<std::size_t>(ordinal)]->primary.lose(code);
    return xmm::cuda::CUDA_SUCCESS;
}

SOFT_CUDA_EXPORT unsigned long long xmmSoftCudaCount(const char* name) {
    auto& counted = the_driver().counted;
    const std::pair<std::string_view, std::atomic<std::uint64_t>*> all[] = {
        {"bytes to device", &counted.to_device},
        {"bytes to host", &counted.to_host},
        {"bytes between devices", &counted.between},
        {"managed faults", &counted.faults},
        {"managed evictions", &counted.evictions},
        {"managed remote accesses", &counted.remote},
        {"managed prefetched", &counted.prefetched},
        {"managed duplicated", &counted.duplicated},
        {"managed discarded", &counted.discarded},
        {"prefetches refused", &counted.refused},
        {"captures invalidated", &counted.invalidated},
        {"frames", &counted.frames},
    };
    for (const auto& [known, figure] : all) {
        if (name != nullptr && known == name) {
            return figure->load(std::memory_order_relaxed);
        }
    }
    return 0;
}
