// SPDX-License-Identifier: Apache-2.0
#include <xmm/os/huge_pages.hpp>

#include <unistd.h>

#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

using namespace xmm;

namespace {

// A file in memory, mapped at a page.
struct file_mapping {
    static constexpr std::size_t bytes = 4 * page_bytes;
    int file = ::memfd_create("test", MFD_CLOEXEC);
    void* raw = ::mmap(nullptr, bytes + page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    va_range range{align_up(to_address(raw), page_bytes), bytes};
    unsigned char* data = static_cast<unsigned char*>(to_pointer(range.begin));

    explicit file_mapping(std::size_t file_bytes = bytes) {
        REQUIRE(file >= 0);
        REQUIRE(raw != MAP_FAILED);
        REQUIRE(::ftruncate(file, static_cast<off_t>(file_bytes)) == 0);
        REQUIRE(::mmap(data, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) !=
                MAP_FAILED);
    }
    ~file_mapping() {
        ::munmap(raw, bytes + page_bytes);
        ::close(file);
    }
    file_mapping(const file_mapping&) = delete;
    file_mapping& operator=(const file_mapping&) = delete;

    [[nodiscard]] bool is_all_there() const {
        std::vector<unsigned char> is_there(bytes / os_page_bytes());
        REQUIRE(::mincore(data, bytes, is_there.data()) == 0);
        return std::all_of(is_there.begin(), is_there.end(),
                           [](unsigned char one) { return (one & 1) != 0; });
    }
};

// Linux 5.14, and no sandbox that refuses: else memory comes by access alone.
bool can_populate() {
    const file_mapping probe;
    return detail::populate({probe.range.begin, os_page_bytes()}, access::read_write).is_ok();
}

}  // namespace

TEST_CASE("huge_pages: what was written stays, and the rest reads as zero") {
    const file_mapping m;
    m.data[page_bytes + 5] = 7;  // in the first OS page of its page
    m.data[3 * page_bytes - 1] = 8;
    errno = 42;
    detail::populate_huge(m.range);
    bool is_refused = false;
    static_cast<void>(detail::fill_huge(m.range, is_refused));
    CHECK(errno == 42);
    CHECK(m.data[page_bytes + 5] == 7);
    CHECK(m.data[3 * page_bytes - 1] == 8);
    CHECK(std::count(m.data, m.data + m.bytes, 0) == static_cast<std::ptrdiff_t>(m.bytes) - 2);
}

TEST_CASE("huge_pages: huge pages or not, all of it is there") {
    if (!can_populate()) {
        MESSAGE("skipped: this kernel brings no memory in ahead");
        return;
    }
    const file_mapping m, second;
    REQUIRE(!m.is_all_there());
    m.data[page_bytes + 5] = 7;
    detail::populate_huge(m.range);
    CHECK(m.is_all_there());
    bool is_refused = false;
    CHECK(detail::fill_huge(second.range, is_refused));
    CHECK(second.is_all_there());
    is_refused = true;  // none are asked for
    const file_mapping third;
    CHECK(detail::fill_huge(third.range, is_refused));
    CHECK(third.is_all_there());
}

TEST_CASE("huge_pages: memory that is not to be had is an answer and no signal") {
    const file_mapping half{file_mapping::bytes / 2};
    errno = 42;
    bool is_refused = false;
    const status had = detail::fill_huge(half.range, is_refused);
    CHECK((had.code == errc::no_memory || had.code == errc::unsupported));
    CHECK(had.driver_code != 0);
    CHECK(errno == 42);
    detail::populate_huge(half.range);
    CHECK(errno == 42);
}
