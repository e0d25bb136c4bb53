// SPDX-License-Identifier: Apache-2.0
// work.cpp - events, command lists and queues, fences, copies, and modules of host functions.
//
// Model    A queue has a thread. What lies in it between two commands that give order (a barrier, a wait, a signal)
//          may run in any order, and with SOFT_ZE_REORDER does so backwards. A copy looks its addresses up before
//          and after each 256 KiB: what was unmapped under it is a miss, and a miss loses the device.
// Threads  One lock for all of it, work_lock, and one bell.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <thread>

#include "driver.hpp"

namespace soft_ze {

namespace {

[[nodiscard]] std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
}

// ---- what a queue is made of; under work_lock

struct event_pool;
struct event {
    bool is_signalled = false;
    unsigned needed = 0;          // commands that wait for it or will signal it
    device* signaller = nullptr;  // of the last command that will
    std::uint64_t begun = 0, ended = 0;
    event_pool* pool = nullptr;
};
struct event_pool {
    std::vector<std::unique_ptr<event>> slots;
    std::size_t living = 0;
};
struct command {
    std::function<bool()> run;  // false: a miss
    std::vector<event*> waits;
    event* signals = nullptr;
    bool is_ordered = false;  // all before it is done first, and nothing behind it starts
};

struct queue {
    explicit queue(device& on) : on_{on}, worker_{[this] { work(); }} {}
    ~queue() {
        {
            std::lock_guard hold{all().work_lock};
            if (!commands.empty() && !on_.is_lost) {
                misuse("a command list or queue is destroyed with work in it");
            }
            is_closing = true;
        }
        all().work_bell.notify_all();
        worker_.join();
        std::lock_guard hold{all().work_lock};
        for (command& one : commands) {  // of a lost device
            let_go(one, false);
        }
    }
    queue(const queue&) = delete;
    queue& operator=(const queue&) = delete;

    [[nodiscard]] device& on() const { return on_; }
    [[nodiscard]] bool is_idle() const { return commands.empty() && !is_busy; }

    std::deque<command> commands;
    bool is_busy = false;
    bool is_closing = false;

private:
    void work() {
        std::unique_lock hold{all().work_lock};
        while (true) {
            all().work_bell.wait(hold, [&] { return is_closing || !commands.empty(); });
            if (commands.empty() || is_closing) {
                return;
            }
            command one = take();
            is_busy = true;
            all().work_bell.wait(hold, [&] {
                return is_closing || on_.is_lost ||
                       std::all_of(one.waits.begin(), one.waits.end(),
                                   [](event* each) { return each->is_signalled; });
            });
            const std::uint64_t begun = now_ns();
            bool is_done = !is_closing && !on_.is_lost;
            if (is_done && one.run) {
                hold.unlock();
                if (const unsigned delay = all().delay_us; delay != 0) {
                    ::usleep(delay);
                }
                is_done = one.run();
                hold.lock();
                if (!is_done && !on_.is_lost.exchange(true)) {
                    std::fprintf(
                        stderr, "software Level Zero driver: device %u misses a page and is lost\n",
                        on_.number);
                }
            }
            if (one.signals != nullptr) {
                one.signals->begun = begun;
                one.signals->ended = now_ns();
            }
            let_go(one, is_done);
            is_busy = false;
            all().work_bell.notify_all();
        }
    }
    static void let_go(command& one, bool is_done) {
        for (event* each : one.waits) {
            --each->needed;
        }
        if (one.signals != nullptr) {
            --one.signals->needed;
            one.signals->is_signalled = one.signals->is_signalled || is_done;
        }
    }
    command take() {
        std::size_t which = 0;
        while (all().set.does_reorder && which + 1 < commands.size() &&
               !commands[which].is_ordered && !commands[which + 1].is_ordered) {
            ++which;
        }
        command one = std::move(commands[which]);
        commands.erase(commands.begin() + static_cast<std::ptrdiff_t>(which));
        return one;
    }

    device& on_;
    std::thread worker_;
};

struct list {
    device* on = nullptr;
    bool can_compute = true;
    bool is_synchronous = false;
    bool is_closed = false;
    std::unique_ptr<queue> immediate;
    std::vector<command> recorded;
};
struct fence {
    bool is_signalled = false;
};

event& of(ze_event_handle_t handle) { return *reinterpret_cast<event*>(handle); }
list& of(ze_command_list_handle_t handle) { return *reinterpret_cast<list*>(handle); }

// Holds work_lock while it asks; is_lost: nobody will ever make it true.
template <class IsTrue, class IsLost>
ze_result_t await(std::uint64_t timeout, IsTrue&& is_true, IsLost&& is_lost) {
    std::unique_lock hold{all().work_lock};
    const auto is_over = [&] { return is_true() || is_lost(); };
    if (timeout > std::uint64_t{1} << 62) {
        all().work_bell.wait(hold, is_over);
    } else if (!all().work_bell.wait_for(hold, std::chrono::nanoseconds(timeout), is_over)) {
        return ZE_RESULT_NOT_READY;
    }
    return is_true() ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_DEVICE_LOST;
}

ze_result_t append(ze_command_list_handle_t handle, command one, ze_event_handle_t signals,
                   std::uint32_t wait_count, ze_event_handle_t* waits) {
    list& to = of(handle);
    if (to.is_closed) {
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    if (to.on->is_lost) {
        return ZE_RESULT_ERROR_DEVICE_LOST;
    }
    for (std::uint32_t i = 0; i < wait_count; ++i) {
        one.waits.push_back(&of(waits[i]));
    }
    one.signals = signals != nullptr ? &of(signals) : nullptr;
    {
        std::lock_guard hold{all().work_lock};
        for (event* each : one.waits) {
            ++each->needed;
        }
        if (one.signals != nullptr) {
            if (one.signals->is_signalled || one.signals->needed != 0) {
                misuse("an event is to be signalled that is signalled, or needed, already");
            }
            ++one.signals->needed;
            one.signals->signaller = to.on;
        }
        if (to.immediate == nullptr) {
            to.recorded.push_back(std::move(one));
            return ZE_RESULT_SUCCESS;
        }
        to.immediate->commands.push_back(std::move(one));
    }
    all().work_bell.notify_all();
    return !to.is_synchronous ? ZE_RESULT_SUCCESS
                              : await(
                                    UINT64_MAX, [&] { return to.immediate->is_idle(); },
                                    [&] { return to.on->is_lost.load(); });
}
ze_result_t append_order(ze_command_list_handle_t handle, ze_event_handle_t signals,
                         std::uint32_t wait_count, ze_event_handle_t* waits) {
    command one;
    one.is_ordered = true;
    return append(handle, std::move(one), signals, wait_count, waits);
}

// ---- copies

constexpr std::size_t look_bytes = std::size_t{256} << 10;

bool copy_now(void* to, const void* from, std::size_t bytes) {
    auto* target = static_cast<char*>(to);
    const auto* source = static_cast<const char*>(from);
    while (bytes > 0) {
        const stretch into = resolve(target, std::min(bytes, look_bytes), true);
        const stretch out = resolve(source, std::min(bytes, look_bytes), false);
        const std::size_t some = std::min(into.bytes, out.bytes);
        if (some == 0) {
            return false;
        }
        std::memcpy(into.at, out.at, some);
        if (resolve(target, some, true).at != into.at ||
            resolve(source, some, false).at != out.at) {
            return false;
        }
        target += some, source += some, bytes -= some;
    }
    return true;
}
bool fill_now(void* to, const std::string& pattern, std::size_t bytes) {
    auto* target = static_cast<char*>(to);
    for (std::size_t done = 0; done < bytes;) {
        const stretch into = resolve(target + done, std::min(bytes - done, look_bytes), true);
        if (into.bytes == 0) {
            return false;
        }
        for (std::size_t i = 0; i < into.bytes; ++i) {
            into.at[i] = pattern[(done + i) % pattern.size()];
        }
        if (resolve(target + done, into.bytes, true).at != into.at) {
            return false;
        }
        done += into.bytes;
    }
    return true;
}

ze_result_t append_copy(ze_command_list_handle_t handle, void* to, const void* from,
                        std::size_t bytes, ze_event_handle_t signals, std::uint32_t wait_count,
                        ze_event_handle_t* waits) {
    command one;
    one.run = [=] { return copy_now(to, from, bytes); };
    return append(handle, std::move(one), signals, wait_count, waits);
}
ze_result_t append_fill(ze_command_list_handle_t handle, void* to, const void* pattern,
                        std::size_t pattern_bytes, std::size_t bytes, ze_event_handle_t signals,
                        std::uint32_t wait_count, ze_event_handle_t* waits) {
    if (pattern_bytes == 0 || (pattern_bytes & (pattern_bytes - 1)) != 0 ||
        bytes % pattern_bytes != 0 || (!of(handle).can_compute && pattern_bytes != 1)) {
        return ZE_RESULT_ERROR_INVALID_SIZE;
    }
    command one;
    one.run = [to, bytes, what = std::string(static_cast<const char*>(pattern), pattern_bytes)] {
        return fill_now(to, what, bytes);
    };
    return append(handle, std::move(one), signals, wait_count, waits);
}
ze_result_t append_barrier(ze_command_list_handle_t handle, ze_event_handle_t signals,
                           std::uint32_t wait_count, ze_event_handle_t* waits) {
    return append_order(handle, signals, wait_count, waits);
}
ze_result_t append_signal(ze_command_list_handle_t handle, ze_event_handle_t signals) {
    return append_order(handle, signals, 0, nullptr);
}
ze_result_t append_wait(ze_command_list_handle_t handle, std::uint32_t wait_count,
                        ze_event_handle_t* waits) {
    return append_order(handle, nullptr, wait_count, waits);
}
ze_result_t append_reset(ze_command_list_handle_t handle, ze_event_handle_t which) {
    command one;
    one.is_ordered = true;
    one.run = [which] {
        std::lock_guard hold{all().work_lock};
        of(which).is_signalled = false;
        return true;
    };
    return append(handle, std::move(one), nullptr, 0, nullptr);
}
ze_result_t append_prefetch(ze_command_list_handle_t, const void* at, std::size_t) {
    std::lock_guard hold{
        all().memory_lock};  // and moves nothing, as without the kernel's migration
    return find_block(at) != nullptr ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}
ze_result_t append_advice(ze_command_list_handle_t, ze_device_handle_t, const void* at, std::size_t,
                          ze_memory_advice_t) {
    std::lock_guard hold{all().memory_lock};
    return find_block(at) != nullptr ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_INVALID_ARGUMENT;
}

// ---- lists and queues

bool is_group(std::uint32_t ordinal) { return ordinal < (all().set.has_copy_engine ? 2u : 1u); }

ze_result_t list_create(ze_context_handle_t, ze_device_handle_t on,
                        const ze_command_list_desc_t* about, ze_command_list_handle_t* made) {
    if (!is_group(about->commandQueueGroupOrdinal)) {
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    auto one = std::make_unique<list>();
    one->on = soft_ze::of(on);
    one->can_compute = about->commandQueueGroupOrdinal == 0;
    *made = handle_of<ze_command_list_handle_t>(one.release());
    keep(*made);
    return ZE_RESULT_SUCCESS;
}
ze_result_t list_create_immediate(ze_context_handle_t, ze_device_handle_t on,
                                  const ze_command_queue_desc_t* about,
                                  ze_command_list_handle_t* made) {
    if (!is_group(about->ordinal)) {
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    auto one = std::make_unique<list>();
    one->on = soft_ze::of(on);
    one->can_compute = about->ordinal == 0;
    one->is_synchronous = about->mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS;
    one->immediate = std::make_unique<queue>(*one->on);
    *made = handle_of<ze_command_list_handle_t>(one.release());
    keep(*made);
    return ZE_RESULT_SUCCESS;
}
ze_result_t list_destroy(ze_command_list_handle_t gone) {
    let_go(gone);
    delete &of(gone);
    return ZE_RESULT_SUCCESS;
}
ze_result_t list_close(ze_command_list_handle_t handle) {
    of(handle).is_closed = of(handle).immediate == nullptr;
    return ZE_RESULT_SUCCESS;
}
ze_result_t list_reset(ze_command_list_handle_t handle) {
    of(handle).is_closed = false;
    of(handle).recorded.clear();
    return ZE_RESULT_SUCCESS;
}
ze_result_t queue_create(ze_context_handle_t, ze_device_handle_t on,
                         const ze_command_queue_desc_t* about, ze_command_queue_handle_t* made) {
    if (!is_group(about->ordinal)) {
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    *made = handle_of<ze_command_queue_handle_t>(new queue{*soft_ze::of(on)});
    keep(*made);
    return ZE_RESULT_SUCCESS;
}
ze_result_t queue_destroy(ze_command_queue_handle_t gone) {
    let_go(gone);
    delete reinterpret_cast<queue*>(gone);
    return ZE_RESULT_SUCCESS;
}
// Waits and signals of recorded commands count again with each execution, but events are signalled once.
ze_result_t queue_execute(ze_command_queue_handle_t handle, std::uint32_t count,
                          ze_command_list_handle_t* lists, ze_fence_handle_t signals) {
    queue& to = *reinterpret_cast<queue*>(handle);
    for (std::uint32_t i = 0; i < count; ++i) {
        if (!of(lists[i]).is_closed) {
            return ZE_RESULT_ERROR_INVALID_ARGUMENT;
        }
    }
    if (to.on().is_lost) {
        return ZE_RESULT_ERROR_DEVICE_LOST;
    }
    {
        std::lock_guard hold{all().work_lock};
        for (std::uint32_t i = 0; i < count; ++i) {
            for (const command& each : of(lists[i]).recorded) {
                to.commands.push_back(each);
            }
        }
        if (signals != nullptr) {
            command one;
            one.is_ordered = true;
            one.run = [signals] {
                std::lock_guard inner{all().work_lock};
                reinterpret_cast<fence*>(signals)->is_signalled = true;
                return true;
            };
            to.commands.push_back(std::move(one));
        }
    }
    all().work_bell.notify_all();
    return ZE_RESULT_SUCCESS;
}
ze_result_t queue_synchronize(ze_command_queue_handle_t handle, std::uint64_t timeout) {
    queue& one = *reinterpret_cast<queue*>(handle);
    return await(
        timeout, [&] { return one.is_idle(); }, [&] { return one.on().is_lost.load(); });
}

// ---- fences and events

ze_result_t fence_create(ze_command_queue_handle_t, const ze_fence_desc_t* about,
                         ze_fence_handle_t* made) {
    *made = handle_of<ze_fence_handle_t>(new fence{(about->flags & ZE_FENCE_FLAG_SIGNALED) != 0});
    keep(*made);
    return ZE_RESULT_SUCCESS;
}
ze_result_t fence_destroy(ze_fence_handle_t gone) {
    let_go(gone);
    delete reinterpret_cast<fence*>(gone);
    return ZE_RESULT_SUCCESS;
}
ze_result_t fence_synchronize(ze_fence_handle_t handle, std::uint64_t timeout) {
    return await(
        timeout, [&] { return reinterpret_cast<fence*>(handle)->is_signalled; },
        [] { return false; });
}
ze_result_t fence_query(ze_fence_handle_t handle) { return fence_synchronize(handle, 0); }
ze_result_t fence_reset(ze_fence_handle_t handle) {
    std::lock_guard hold{all().work_lock};
    reinterpret_cast<fence*>(handle)->is_signalled = false;
    return ZE_RESULT_SUCCESS;
}

ze_result_t pool_create(ze_context_handle_t, const ze_event_pool_desc_t* about, std::uint32_t,
                        ze_device_handle_t*, ze_event_pool_handle_t* made) {
    if (about->count == 0) {
        return ZE_RESULT_ERROR_INVALID_SIZE;
    }
    auto one = std::make_unique<event_pool>();
    one->slots.resize(about->count);
    *made = handle_of<ze_event_pool_handle_t>(one.release());
    keep(*made);
    return ZE_RESULT_SUCCESS;
}
ze_result_t pool_destroy(ze_event_pool_handle_t handle) {
    auto* gone = reinterpret_cast<event_pool*>(handle);
    if (gone->living != 0) {
        misuse("an event pool is destroyed before its events");
    }
    let_go(handle);
    delete gone;
    return ZE_RESULT_SUCCESS;
}
ze_result_t event_create(ze_event_pool_handle_t handle, const ze_event_desc_t* about,
                         ze_event_handle_t* made) {
    auto& pool = *reinterpret_cast<event_pool*>(handle);
    if (about->index >= pool.slots.size()) {
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    auto one = std::make_unique<event>();
    one->pool = &pool;
    std::lock_guard hold{all().work_lock};
    if (pool.slots[about->index] != nullptr) {
        misuse("an event is created where there is one");
        return ZE_RESULT_ERROR_INVALID_ARGUMENT;
    }
    *made = handle_of<ze_event_handle_t>(one.get());
    pool.slots[about->index] = std::move(one);
    ++pool.living;
    ++all().alive;
    return ZE_RESULT_SUCCESS;
}
ze_result_t event_destroy(ze_event_handle_t handle) {
    std::lock_guard hold{all().work_lock};
    event& gone = of(handle);
    if (gone.needed != 0 && !(gone.signaller != nullptr && gone.signaller->is_lost)) {
        misuse("an event is destroyed that commands need");
    }
    event_pool& pool = *gone.pool;
    for (auto& slot : pool.slots) {
        if (slot.get() == &gone) {
            slot.reset();
            --pool.living;
            --all().alive;
            return ZE_RESULT_SUCCESS;
        }
    }
    return ZE_RESULT_ERROR_INVALID_ARGUMENT;
}
ze_result_t event_signal(ze_event_handle_t handle) {
    {
        std::lock_guard hold{all().work_lock};
        of(handle).is_signalled = true;
    }
    all().work_bell.notify_all();
    return ZE_RESULT_SUCCESS;
}
ze_result_t event_synchronize(ze_event_handle_t handle, std::uint64_t timeout) {
    const event& one = of(handle);
    return await(
        timeout, [&] { return one.is_signalled; },
        [&] { return one.signaller != nullptr && one.signaller->is_lost; });
}
ze_result_t event_query(ze_event_handle_t handle) { return event_synchronize(handle, 0); }
ze_result_t event_reset(ze_event_handle_t handle) {
    std::lock_guard hold{all().work_lock};
    event& one = of(handle);
    if (one.needed != 0) {
        misuse("an event is reset that commands need");
    }
    one.is_signalled = false;
    one.signaller = nullptr;
    return ZE_RESULT_SUCCESS;
}
ze_result_t event_times(ze_event_handle_t handle, ze_kernel_timestamp_result_t* times) {
    std::lock_guard hold{all().work_lock};
    const event& one = of(handle);
    if (!one.is_signalled) {
        return ZE_RESULT_NOT_READY;
    }
    times->global.kernelStart = times->context.kernelStart = one.begun;
    times->global.kernelEnd = times->context.kernelEnd = one.ended;
    return ZE_RESULT_SUCCESS;
}

// ---- modules of host functions

struct module {
    std::vector<module_entry> entries;
};
struct kernel {
    host_function function = nullptr;
    std::uint32_t group_size[3] = {1, 1, 1};
    std::vector<std::string> arguments;
};

ze_result_t module_create(ze_context_handle_t, ze_device_handle_t, const ze_module_desc_t* about,
                          ze_module_handle_t* made, ze_module_build_log_handle_t* log) {
    if (log != nullptr) {
        *log = nullptr;
    }
    if (about->format != ZE_MODULE_FORMAT_NATIVE || about->inputSize < sizeof module_magic ||
        std::memcmp(about->pInputModule, module_magic, sizeof module_magic) != 0 ||
        (about->inputSize - sizeof module_magic) % sizeof(module_entry) != 0) {
        return ZE_RESULT_ERROR_INVALID_NATIVE_BINARY;
    }
    auto one = std::make_unique<module>();
    one->entries.resize((about->inputSize - sizeof module_magic) / sizeof(module_entry));
    std::memcpy(one->entries.data(), about->pInputModule + sizeof module_magic,
                about->inputSize - sizeof module_magic);
    *made = handle_of<ze_module_handle_t>(one.release());
    keep(*made);
    return ZE_RESULT_SUCCESS;
}
ze_result_t module_destroy(ze_module_handle_t gone) {
    let_go(gone);
    delete reinterpret_cast<module*>(gone);
    return ZE_RESULT_SUCCESS;
}
ze_result_t kernel_create(ze_module_handle_t handle, const ze_kernel_desc_t* about,
                          ze_kernel_handle_t* made) {
    for (const module_entry& each : reinterpret_cast<module*>(handle)->entries) {
        if (std::strncmp(each.name, about->pKernelName, sizeof each.name) == 0) {
            auto* one = new kernel;
            one->function = each.function;
            *made = handle_of<ze_kernel_handle_t>(one);
            keep(*made);
            return ZE_RESULT_SUCCESS;
        }
    }
    return ZE_RESULT_ERROR_INVALID_KERNEL_NAME;
}
ze_result_t kernel_destroy(ze_kernel_handle_t gone) {
    let_go(gone);
    delete reinterpret_cast<kernel*>(gone);
    return ZE_RESULT_SUCCESS;
}
ze_result_t kernel_group_size(ze_kernel_handle_t handle, std::uint32_t x, std::uint32_t y,
                              std::uint32_t z) {
    kernel& one = *reinterpret_cast<kernel*>(handle);
    one.group_size[0] = x, one.group_size[1] = y, one.group_size[2] = z;
    return ZE_RESULT_SUCCESS;
}
ze_result_t kernel_argument(ze_kernel_handle_t handle, std::uint32_t index, std::size_t bytes,
                            const void* value) {
    kernel& one = *reinterpret_cast<kernel*>(handle);
    if (index > 63 || value == nullptr) {
        return ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX;
    }
    one.arguments.resize(std::max<std::size_t>(one.arguments.size(), index + 1));
    one.arguments[index].assign(static_cast<const char*>(value), bytes);
    return ZE_RESULT_SUCCESS;
}
void* reach(kernel_call&, std::uintptr_t at, std::size_t& bytes, bool does_write) {
    std::unique_lock hold{all().memory_lock};
    const void* there = reinterpret_cast<const void*>(at);
    const bool is_ours = find_block(there) != nullptr;
    hold.unlock();
    // Unlike a copy, a kernel does not reach the program's own memory.
    const stretch found = is_ours ? resolve(there, bytes, does_write) : stretch{};
    bytes = found.bytes;
    return found.at;
}
ze_result_t append_launch(ze_command_list_handle_t handle, ze_kernel_handle_t which,
                          const ze_group_count_t* groups, ze_event_handle_t signals,
                          std::uint32_t wait_count, ze_event_handle_t* waits) {
    if (!of(handle).can_compute) {
        return ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE;
    }
    command one;
    one.run = [as_set = *reinterpret_cast<kernel*>(which), count = *groups] {
        std::vector<const void*> arguments;
        for (const std::string& each : as_set.arguments) {
            arguments.push_back(each.data());
        }
        // A miss is told by `reach` alone: what the function does with it is its own affair.
        static thread_local bool has_missed;
        has_missed = false;
        kernel_call call{
            {count.groupCountX, count.groupCountY, count.groupCountZ},
            {as_set.group_size[0], as_set.group_size[1], as_set.group_size[2]},
            arguments.data(),
            arguments.size(),
            nullptr,
            [](kernel_call& self, std::uintptr_t at, std::size_t& bytes, bool does_write) {
                void* found = reach(self, at, bytes, does_write);
                has_missed = has_missed || found == nullptr;
                return found;
            }};
        as_set.function(call);
        return !has_missed;
    };
    return append(handle, std::move(one), signals, wait_count, waits);
}

}  // namespace

void fill(ze_command_list_dditable_t& t) {
    t.pfnCreate = &entry<"zeCommandListCreate", &list_create>::call;
    t.pfnCreateImmediate = &entry<"zeCommandListCreateImmediate", &list_create_immediate>::call;
    t.pfnDestroy = &entry<"zeCommandListDestroy", &list_destroy>::call;
    t.pfnClose = &entry<"zeCommandListClose", &list_close>::call;
    t.pfnReset = &entry<"zeCommandListReset", &list_reset>::call;
    t.pfnAppendBarrier = &entry<"zeCommandListAppendBarrier", &append_barrier>::call;
    t.pfnAppendMemoryCopy = &entry<"zeCommandListAppendMemoryCopy", &append_copy>::call;
    t.pfnAppendMemoryFill = &entry<"zeCommandListAppendMemoryFill", &append_fill>::call;
    t.pfnAppendMemoryPrefetch = &entry<"zeCommandListAppendMemoryPrefetch", &append_prefetch>::call;
    t.pfnAppendMemAdvise = &entry<"zeCommandListAppendMemAdvise", &append_advice>::call;
    t.pfnAppendSignalEvent = &entry<"zeCommandListAppendSignalEvent", &append_signal>::call;
    t.pfnAppendWaitOnEvents = &entry<"zeCommandListAppendWaitOnEvents", &append_wait>::call;
    t.pfnAppendEventReset = &entry<"zeCommandListAppendEventReset", &append_reset>::call;
    t.pfnAppendLaunchKernel = &entry<"zeCommandListAppendLaunchKernel", &append_launch>::call;
}
void fill(ze_command_queue_dditable_t& t) {
    t.pfnCreate = &entry<"zeCommandQueueCreate", &queue_create>::call;
    t.pfnDestroy = &entry<"zeCommandQueueDestroy", &queue_destroy>::call;
    t.pfnExecuteCommandLists = &entry<"zeCommandQueueExecuteCommandLists", &queue_execute>::call;
    t.pfnSynchronize = &entry<"zeCommandQueueSynchronize", &queue_synchronize>::call;
}
void fill(ze_fence_dditable_t& t) {
    t.pfnCreate = &entry<"zeFenceCreate", &fence_create>::call;
    t.pfnDestroy = &entry<"zeFenceDestroy", &fence_destroy>::call;
    t.pfnHostSynchronize = &entry<"zeFenceHostSynchronize", &fence_synchronize>::call;
    t.pfnQueryStatus = &entry<"zeFenceQueryStatus", &fence_query>::call;
    t.pfnReset = &entry<"zeFenceReset", &fence_reset>::call;
}
void fill(ze_event_pool_dditable_t& t) {
    t.pfnCreate = &entry<"zeEventPoolCreate", &pool_create>::call;
    t.pfnDestroy = &entry<"zeEventPoolDestroy", &pool_destroy>::call;
}
void fill(ze_event_dditable_t& t) {
    t.pfnCreate = &entry<"zeEventCreate", &event_create>::call;
    t.pfnDestroy = &entry<"zeEventDestroy", &event_destroy>::call;
    t.pfnHostSignal = &entry<"zeEventHostSignal", &event_signal>::call;
    t.pfnHostSynchronize = &entry<"zeEventHostSynchronize", &event_synchronize>::call;
    t.pfnQueryStatus = &entry<"zeEventQueryStatus", &event_query>::call;
    t.pfnHostReset = &entry<"zeEventHostReset", &event_reset>::call;
    t.pfnQueryKernelTimestamp = &entry<"zeEventQueryKernelTimestamp", &event_times>::call;
}
void fill(ze_module_dditable_t& t) {
    t.pfnCreate = &entry<"zeModuleCreate", &module_create>::call;
    t.pfnDestroy = &entry<"zeModuleDestroy", &module_destroy>::call;
}
void fill(ze_kernel_dditable_t& t) {
    t.pfnCreate = &entry<"zeKernelCreate", &kernel_create>::call;
    t.pfnDestroy = &entry<"zeKernelDestroy", &kernel_destroy>::call;
    t.pfnSetGroupSize = &entry<"zeKernelSetGroupSize", &kernel_group_size>::call;
    t.pfnSetArgumentValue = &entry<"zeKernelSetArgumentValue", &kernel_argument>::call;
}

}  // namespace soft_ze
