// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/jemalloc_table.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>

#include <malloc.h>

namespace {

const xmm::jemalloc_functions* real = nullptr;

// Answers one name with a value of its own, all others as the real one does.
const char* answered_name = "";
const void* answer = nullptr;
std::size_t answer_bytes = 0;

int answering_mallctl(const char* name, void* old, std::size_t* old_bytes, void* fresh,
                      std::size_t fresh_bytes) noexcept {
    if (std::strcmp(name, answered_name) != 0) {
        return real->mallctl(name, old, old_bytes, fresh, fresh_bytes);
    }
    if (old == nullptr || *old_bytes != answer_bytes) {
        return 22;
    }
    std::memcpy(old, answer, answer_bytes);
    return 0;
}

template <class T>
xmm::status check_with(const char* name, const T& value) {
    answered_name = name;
    answer = &value;
    answer_bytes = sizeof value;
    xmm::jemalloc_functions altered = *real;
    altered.mallctl = answering_mallctl;
    return altered.check();
}

bool has_jemalloc() {
    real = xmm::jemalloc_table::find();
    if (real == nullptr) {
        MESSAGE("skipped: built without jemalloc");
    }
    return real != nullptr;
}

}  // namespace

TEST_SUITE("jemalloc") {
    TEST_CASE("versions are compared as numbers") {
        CHECK(xmm::detail::jemalloc_version_number("5.3.0-0-g54eaed1d8b56") == 50300);
        CHECK(xmm::detail::jemalloc_version_number("5.2.1-0-g0") == 50201);
        CHECK(xmm::detail::jemalloc_version_number("5.10.2") == 51002);
        CHECK(xmm::detail::jemalloc_version_number("5.3") == 50300);
        CHECK(xmm::detail::jemalloc_version_number("") == 0);
        CHECK(xmm::detail::jemalloc_version_number("none") == 0);
        CHECK(xmm::detail::jemalloc_version_number(nullptr) == 0);
    }

    TEST_CASE("the one that is linked in touches nothing and cannot be told to") {
        if (!has_jemalloc()) {
            return;
        }
        const xmm::status checked = real->check();
        INFO(checked.why);
        CHECK(checked.is_ok());
        CHECK(real->value_of<std::size_t>("opt.lg_extent_max_active_fit", 0) == 16);
        CHECK(real->value_of<std::size_t>("opt.tcache_max", 0) == 32 << 10);
        CHECK(!real->value_of("opt.cache_oblivious", true));
        CHECK(!real->value_of("opt.background_thread", true));
    }

    TEST_CASE("what would touch the memory is refused, with the reason") {
        if (!has_jemalloc()) {
            return;
        }
        CHECK(check_with("no.such.name", 1).is_ok());
        const auto refused = [](const xmm::status& checked, const char* reason) {
            CHECK(checked.code == xmm::errc::unsupported);
            INFO(checked.why);
            CHECK(std::strstr(checked.why, reason) != nullptr);
        };
        refused(check_with<const char*>("version", "5.2.1-0-gea6b3e973b47"), "before 5.3");
        refused(check_with("config.debug", true), "debugging");
        refused(check_with<const char*>("opt.junk", "true"), "junk");
        refused(check_with<const char*>("opt.junk", "alloc"), "junk");
        refused(check_with("opt.zero", true), "zeros");
        refused(check_with("opt.retain", false), "retain");
        refused(check_with<ssize_t>("opt.lg_san_uaf_align", 12), "freed memory");

        xmm::jemalloc_functions altered = *real;
        altered.mallctlnametomib = [](const char*, std::size_t*, std::size_t*) noexcept {
            return 2;
        };
        refused(altered.check(), "records");
    }

    TEST_CASE("the program's own malloc stays what it was") {
        if (!has_jemalloc()) {
            return;
        }
        void* own = std::malloc(1000);
        void* theirs = real->mallocx(1000, 0);
        REQUIRE(own != nullptr);
        REQUIRE(theirs != nullptr);
        // Each knows its blocks only: jemalloc's size of 1000 bytes is 1024, glibc's 1000 or 1008.
        CHECK(real->sallocx(theirs, 0) == 1024);
        CHECK(::malloc_usable_size(own) != 1024);
        // Nothing that the program allocates is counted there.
        const auto counted = [] { return real->value_of<std::uint64_t>("thread.allocated", 0); };
        const std::uint64_t before = counted();
        void* volatile more = std::malloc(100000);
        std::free(more);
        delete[] new volatile char[100000];
        CHECK(counted() == before);
        real->dallocx(theirs, 0);
        std::free(own);
    }

    TEST_CASE("the first table offered is kept") {
        if (!has_jemalloc()) {
            return;
        }
        static const xmm::jemalloc_functions another = *real;
        CHECK(!xmm::jemalloc_table::offer(another));
        CHECK(xmm::jemalloc_table::find() == real);
    }
}
