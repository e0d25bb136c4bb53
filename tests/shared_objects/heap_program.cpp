// SPDX-License-Identifier: Apache-2.0
// heap_program.cpp - the object that first asks for a heap stays loaded: the heap's functions are its own.
//
//   heap_program first.so second.so
#include <cstdio>
#include <cstdlib>

#include <dlfcn.h>

namespace {

void expect(bool is_so, const char* what) {
    if (!is_so) {
        std::fprintf(stderr, "not so: %s\n", what);
        std::exit(1);
    }
}
int call(void* object, const char* name) {
    auto* function = reinterpret_cast<int (*)()>(::dlsym(object, name));
    expect(function != nullptr, name);
    return function();
}

}  // namespace

int main(int count, char** paths) {
    expect(count == 3, "two shared objects are given");
    void* first = ::dlopen(paths[1], RTLD_NOW | RTLD_LOCAL);
    void* second = ::dlopen(paths[2], RTLD_NOW | RTLD_LOCAL);
    expect(first != nullptr && second != nullptr, "both load");
    // All that heaps have in common is the first one's, and it stays for that.
    expect(call(first, "part_use_host") == 1, "the first makes the host's heap");
    expect(call(second, "part_use_device") == 1, "the second makes the device's heap");
    ::dlclose(second);
    expect(::dlopen(paths[2], RTLD_NOW | RTLD_NOLOAD) != nullptr, "the second is there still");
    expect(call(first, "part_use_device") == 1, "the first uses the device's heap");
    return 0;
}
