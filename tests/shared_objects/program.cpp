// SPDX-License-Identifier: Apache-2.0
// program.cpp - loads shared objects that embed xmm and checks that all see one registry.
//
//   program SCENARIO first.so second.so       (run.sh builds these, and tries each scenario)
#include "part.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include <dlfcn.h>

namespace {

#define EXPECT(condition)                                                                \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                                \
        }                                                                                \
    } while (false)

struct loaded {
    void* handle;
    const char* path;
    void (*look)(part::view*);
    int (*ask)();
    int (*serve_a_page)();
    int (*rearm)();
    int (*is_service_thread)();
    int (*policy)();
    void (*lock)(xmm::detail::turn*);
    void (*unlock)(xmm::detail::turn*);
    int (*has_turn)(const xmm::detail::turn*);

    explicit loaded(const char* from, int scope = RTLD_LOCAL)
        : handle{::dlopen(from, RTLD_NOW | scope)}, path{from} {
        if (handle == nullptr) {
            std::fprintf(stderr, "%s\n", ::dlerror());
            std::exit(1);
        }
        look = find<void(part::view*)>("part_look");
        ask = find<int()>("part_ask");
        serve_a_page = find<int()>("part_serve_a_page");
        rearm = find<int()>("part_rearm");
        is_service_thread = find<int()>("part_is_service_thread");
        policy = find<int()>("part_policy");
        lock = find<void(xmm::detail::turn*)>("part_lock");
        unlock = find<void(xmm::detail::turn*)>("part_unlock");
        has_turn = find<int(const xmm::detail::turn*)>("part_has_turn");
    }
    template <class Fn>
    Fn* find(const char* name) const {
        void* symbol = ::dlsym(handle, name);
        EXPECT(symbol != nullptr);
        return reinterpret_cast<Fn*>(symbol);
    }
    part::view view() const {
        part::view v{};
        look(&v);
        return v;
    }
    void close() const { EXPECT(::dlclose(handle) == 0); }
    [[nodiscard]] bool is_still_there() const {
        void* again = ::dlopen(path, RTLD_NOW | RTLD_NOLOAD);
        if (again != nullptr) {
            ::dlclose(again);
        }
        return again != nullptr;
    }
};

void expect_same(const part::view& a, const part::view& b) {
    EXPECT(a.registry == b.registry);
    EXPECT(a.object == b.object);
    EXPECT(a.trap == b.trap);
    EXPECT(a.machine == b.machine);
    EXPECT(a.number != b.number);
    EXPECT(a.object->built == 1);
    EXPECT(a.object->answer() == 42);
    EXPECT(a.object->function() == 43);
}

// Shared objects first; whoever asked for the objects stays, so they work on.
void objects_first(const char* one, const char* other) {
    const loaded a{one};
    const part::view by_a = a.view();
    const loaded b{other};
    expect_same(by_a, b.view());
    EXPECT(b.serve_a_page() == 7);
    a.close();
    EXPECT(a.is_still_there());
    expect_same(by_a, b.view());
    EXPECT(b.serve_a_page() == 7);
    b.close();
    const part::view mine = part::look();
    expect_same(by_a, mine);
    part::page_of_sevens page;
    EXPECT(page.start() && page.touch() == 7);
    page.stop();
}

void program_first(const char* one, const char* other) {
    const part::view mine = part::look();
    const loaded a{one};
    const loaded b{other};
    expect_same(mine, a.view());
    expect_same(mine, b.view());
    EXPECT(a.serve_a_page() == 7);
    EXPECT(b.rearm() == 1);
    EXPECT(b.serve_a_page() == 7);
    b.close();
    a.close();
    EXPECT(part::look().object == mine.object);
    const loaded again{one};
    expect_same(mine, again.view());
    EXPECT(again.serve_a_page() == 7);
}

// Loaded, used and unloaded one after the other: the registry outlives each.
void one_at_a_time(const char* one, const char* other) {
    const loaded a{one};
    const part::view by_a = a.view();
    EXPECT(a.serve_a_page() == 7);
    a.close();
    const loaded b{other};
    expect_same(by_a, b.view());
    b.close();
    EXPECT(
        b.is_still_there());  // although it built nothing: it may have left code of its own there
    expect_same(by_a, part::look());
}

// All three are first at the same time.
void at_once(const char* one, const char* other) {
    const loaded a{one};
    const loaded b{other};
    std::vector<part::view> views(9);
    std::atomic<int> waiting{9};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < views.size(); ++i) {
        threads.emplace_back([&, i] {
            waiting.fetch_sub(1);
            while (waiting.load() > 0) {
                std::this_thread::yield();
            }
            views[i] = i % 3 == 0 ? a.view() : i % 3 == 1 ? b.view() : part::look();
        });
    }
    for (std::thread& t : threads) {
        t.join();
    }
    for (std::size_t i = 1; i < views.size(); ++i) {
        expect_same(views[0], views[i]);
    }
}

// A service thread is one to every shared object, whoever started it.
const loaded* asked = nullptr;
std::atomic<int> agrees{-1};
void service_threads(const char* one, const char* other) {
    const loaded a{one};
    const loaded b{other};
    EXPECT(a.serve_a_page() == 7);  // a starts them
    asked = &b;
    const std::size_t bytes = xmm::os_page_bytes();
    static xmm::va_range range;
    range = {xmm::to_address(::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
             bytes};
    auto& trap = xmm::fault_trap::instance();
    int context = 0;
    EXPECT(trap.add({&context, [](void*, xmm::address at) noexcept { return range.contains(at); },
                     [](void*, xmm::address, xmm::access, const char**) noexcept {
                         agrees = asked->is_service_thread();
                         ::mprotect(xmm::to_pointer(range.begin), range.bytes,
                                    PROT_READ | PROT_WRITE);
                         return xmm::cpu_fault_outcome::resolved;
                     }}));
    *static_cast<volatile char*>(xmm::to_pointer(range.begin)) = 1;
    EXPECT(agrees == 1);
    EXPECT(a.is_service_thread() == 0);
    trap.remove(&context);
}

// Whose turn it is all agree on, whoever's code took it.
void turns(const char* one, const char* other) {
    const loaded a{one};
    const loaded b{other};
    static xmm::detail::turn order;
    a.lock(&order);
    EXPECT(a.has_turn(&order) == 1 && b.has_turn(&order) == 1 && order.is_mine());
    std::thread{[&] {
        EXPECT(a.has_turn(&order) == 0 && b.has_turn(&order) == 0 && !order.is_mine());
    }}.join();
    b.unlock(&order);
    EXPECT(a.has_turn(&order) == 0 && b.has_turn(&order) == 0 && !order.is_mine());
}

// A space of the program's may have got the policy.
void left_with_others(const char* one, const char* other) {
    const loaded a{one};
    const loaded b{other};
    EXPECT(a.policy() == 1);
    a.close();
    b.close();
    EXPECT(a.is_still_there());
}

// Two of one lookup scope, which may show all they have: who asks has it from its own code, and is kept for it.
void in_one_scope(const char* one, const char* other) {
    const loaded a{one, RTLD_GLOBAL};
    const loaded b{other, RTLD_GLOBAL};
    EXPECT(a.ask() == 1);
    EXPECT(b.ask() == 1);
    b.close();
    EXPECT(b.is_still_there());
    EXPECT(b.ask() == 1);
    expect_same(a.view(), part::look());
}

// Ends with everything loaded, in whatever order the C library takes it down.
void leave_open(const char* one, const char* other) {
    const loaded a{one};
    const loaded b{other};
    expect_same(a.view(), b.view());
    static part::page_of_sevens page;
    EXPECT(page.start());
    std::atexit([] { EXPECT(page.touch() == 7); });
}

struct scenario {
    const char* name;
    void (*run)(const char*, const char*);
};
const scenario scenarios[] = {
    {"objects_first", objects_first},
    {"program_first", program_first},
    {"one_at_a_time", one_at_a_time},
    {"at_once", at_once},
    {"service_threads", service_threads},
    {"leave_open", leave_open},
    {"turns", turns},
    {"left_with_others", left_with_others},
    {"in_one_scope", in_one_scope},
};

}  // namespace

int main(int count, char** arguments) {
    for (const scenario& one : scenarios) {
        if (count == 4 && std::strcmp(one.name, arguments[1]) == 0) {
            one.run(arguments[2], arguments[3]);
            return 0;
        }
    }
    std::fprintf(stderr, "usage: program SCENARIO first.so second.so; scenarios:");
    for (const scenario& one : scenarios) {
        std::fprintf(stderr, " %s", one.name);
    }
    std::fprintf(stderr, "\n");
    return 2;
}
