// SPDX-License-Identifier: Apache-2.0
// plugin_program.cpp - loads a shared object whose constructor asks for what another thread is making just then.
//
//   plugin_program object|heap|default_space|new_space plugin.so
//
// The constructor runs with the dynamic linker's lock held. So who makes something must not want that lock while it
// has one that the constructor waits for.
#include <xmm/facade/default_space.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include <dlfcn.h>

namespace {

struct shared_object {
    static constexpr const char* registry_key = "test plugin/1";
    int answer = 42;
};

std::optional<xmm::space> space;
std::atomic<bool> is_constructor_running{false};

int ask_for_object() { return xmm::registry::object<shared_object>().answer; }
int ask_for_heap() { return space->heap(space->devices()[0]) ? 42 : 0; }
int ask_for_default_space() { return xmm::default_space().devices().empty() ? 0 : 42; }
int ask_for_new_space() { return xmm::space::create() ? 42 : 0; }
int (*ask)() = nullptr;
int answer_in_constructor = 0;

void expect(bool is_so, const char* what) {
    if (!is_so) {
        std::fprintf(stderr, "not so: %s\n", what);
        std::exit(1);
    }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void in_constructor() {
    is_constructor_running = true;
    // The other thread comes as far as it can: it is waiting for the linker's lock, or is done.
    std::this_thread::sleep_for(std::chrono::milliseconds{300});
    answer_in_constructor = ask();
}

int main(int count, char** arguments) {
    expect(count == 3, "a scenario and a shared object are given");
    const bool is_heap = std::strcmp(arguments[1], "heap") == 0;
    const struct {
        const char* name;
        int (*ask)();
    } scenarios[] = {{"object", &ask_for_object},
                     {"heap", &ask_for_heap},
                     {"default_space", &ask_for_default_space},
                     {"new_space", &ask_for_new_space}};
    for (const auto& one : scenarios) {
        ask = std::strcmp(arguments[1], one.name) == 0 ? one.ask : ask;
    }
    expect(ask != nullptr, "the scenario is known");
    if (std::strstr(arguments[1], "space") != nullptr) {
        // What asks the registry first takes the linker's lock for that, with none of ours: it would not come as far.
        expect(!xmm::machine_topology().hosts().empty(), "the machine has memory");
    }
    if (is_heap) {
        space.emplace(xmm::space::create({.devices = xmm::device_kind::soft}).value());
    }
    int answer = 0;
    std::thread other{[&] {
        while (!is_constructor_running) {
            std::this_thread::yield();
        }
        answer = ask();
    }};
    expect(::dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL) != nullptr, "the plugin loads");
    other.join();
    expect(answer_in_constructor == 42, "the constructor got it");
    expect(answer == 42, "the other thread got it");
    return 0;
}
