// SPDX-License-Identifier: Apache-2.0
#include <xmm/os/host_memory.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace xmm;

namespace {

struct mapping {
    va_range range;
    explicit mapping(std::size_t pages, int protection = PROT_READ | PROT_WRITE)
        : range{to_address(::mmap(nullptr, pages * os_page_bytes(), protection,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
                pages * os_page_bytes()} {}
    ~mapping() { ::munmap(to_pointer(range.begin), range.bytes); }
    mapping(const mapping&) = delete;
    mapping& operator=(const mapping&) = delete;
};

}  // namespace

TEST_CASE("host_memory: is_mapped sees holes anywhere in a range") {
    const std::size_t os_page = os_page_bytes();
    const mapping m{8};
    CHECK(is_mapped(m.range));
    CHECK_FALSE(is_mapped({m.range.begin, SIZE_MAX - m.range.begin}));  // its end rounds up to 0
    CHECK_FALSE(is_mapped({m.range.begin, SIZE_MAX - m.range.begin - os_page + 2}));
    CHECK(is_mapped({m.range.begin + 1, 1}));
    CHECK(is_mapped({m.range.begin + os_page - 1, 2}));
    ::munmap(to_pointer(m.range.begin + 4 * os_page), os_page);
    CHECK_FALSE(is_mapped(m.range));
    CHECK(is_mapped({m.range.begin, 4 * os_page}));
    CHECK_FALSE(is_mapped({m.range.begin, 4 * os_page + 1}));
    CHECK_FALSE(is_mapped({m.range.begin + 4 * os_page, 1}));
    CHECK(is_mapped({m.range.begin + 5 * os_page, 3 * os_page}));
}

TEST_CASE("host_memory: is_mapped takes unreadable memory for mapped, and nonsense for not") {
    const mapping m{1, PROT_NONE};
    CHECK(is_mapped(m.range));
    CHECK_FALSE(is_mapped({m.range.begin, 0}));
    CHECK_FALSE(is_mapped({m.range.begin, SIZE_MAX}));
    CHECK_FALSE(is_mapped({SIZE_MAX - 10, 100}));
    CHECK_FALSE(is_mapped({0, 1}));
}

TEST_CASE("host_memory: is_mapped leaves errno alone") {
    errno = 42;
    CHECK_FALSE(is_mapped({0, 1}));
    CHECK(errno == 42);
}

TEST_CASE("host_memory: memory that cannot be had in advance is told, and leaves errno alone") {
    const mapping m{1, PROT_NONE};
    errno = 42;
    const status had = detail::populate(m.range, access::read_write);
    CHECK((had.code == errc::no_memory || had.code == errc::unsupported));
    CHECK(had.driver_code != 0);
    CHECK(errno == 42);
}

TEST_CASE("host_memory: bind_memory checks what it is given") {
    const mapping m{4};
    host_node node;
    node.can_bind = false;
    CHECK(bind_memory(m.range, node).code == errc::unsupported);
    node.can_bind = true;
    node.os_index = 5000;
    CHECK(bind_memory(m.range, node).code == errc::unsupported);
    node.os_index = 0;
    CHECK(bind_memory({m.range.begin, 0}, node).code == errc::invalid_argument);
    CHECK(bind_memory({m.range.begin + 1, os_page_bytes()}, node).code == errc::invalid_argument);
    CHECK(bind_memory({m.range.begin, 100}, node).code == errc::invalid_argument);
    CHECK(bind_memory({align_down(SIZE_MAX, os_page_bytes()), 4 * os_page_bytes()}, node).code ==
          errc::invalid_argument);
}

TEST_CASE("host_memory: bind_memory binds, or says that the kernel refuses") {
    const mapping m{4};
    host_node node;
    node.can_bind = true;
    for (const binding how : {binding::prefer, binding::strict}) {
        const status bound = bind_memory(m.range, node, how);
        CHECK((bound.is_ok() || bound.code == errc::unsupported));
        if (bound) {
            int mode = -1;
            CHECK(::syscall(SYS_get_mempolicy, &mode, nullptr, 0UL, m.range.begin, MPOL_F_ADDR) ==
                  0);
            CHECK(mode == (how == binding::strict ? MPOL_BIND : MPOL_PREFERRED));
        }
    }
    node.os_index = 1000;  // no machine has it
    CHECK_FALSE(bind_memory(m.range, node).is_ok());
}

TEST_CASE("host_memory: the number of mappings moves with them") {
    CHECK(map_limit() > 1000);
    const std::size_t before = map_count();
    CHECK(before > 5);
    const mapping m{200};
    for (std::size_t i = 0; i < 200; i += 2) {
        ::mprotect(to_pointer(m.range.begin + i * os_page_bytes()), os_page_bytes(), PROT_NONE);
    }
    CHECK(map_count() >= before + 150);
}

TEST_CASE("host_memory: limits as text") {
    using detail::to_limit;
    CHECK(to_limit("0") == 0);
    CHECK(to_limit("4096") == 4096);
    CHECK(to_limit("17 more") == 17);
    CHECK(to_limit("max") == no_limit);
    CHECK(to_limit("") == no_limit);
    CHECK(to_limit("-1") == no_limit);
    CHECK(to_limit("99999999999999999999999") == no_limit);
    CHECK(detail::read_limit("/nowhere/at/all") == no_limit);
}

namespace {

// A hierarchy of files that looks like /proc and a cgroup mount.
class fake_system {
public:
    fake_system() {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "xmm-cgroup-XXXXXX").string();
        root_ = ::mkdtemp(pattern.data());
    }
    ~fake_system() { std::filesystem::remove_all(root_); }
    fake_system(const fake_system&) = delete;
    fake_system& operator=(const fake_system&) = delete;

    [[nodiscard]] std::string path(const std::string& name) const { return root_ + "/" + name; }
    void write(const std::string& name, const std::string& text) const {
        std::filesystem::create_directories(std::filesystem::path{path(name)}.parent_path());
        std::ofstream{path(name)} << text;
    }
    [[nodiscard]] std::size_t limit() const {
        return detail::cgroup_limit(path("cgroup").c_str(), path("mountinfo").c_str());
    }

private:
    std::string root_;
};

}  // namespace

TEST_CASE("host_memory: cgroup v2, the least limit on the way up") {
    const fake_system system;
    system.write("cgroup", "0::/a/b\n");
    system.write("mountinfo", "30 23 0:26 / " + system.path("fs") + " rw - cgroup2 cgroup2 rw\n");
    CHECK(system.limit() == no_limit);
    system.write("fs/a/b/memory.max", "max\n");
    CHECK(system.limit() == no_limit);
    system.write("fs/a/memory.max", "1000000\n");
    CHECK(system.limit() == 1'000'000);
    system.write("fs/a/b/memory.max", "2000000\n");
    CHECK(system.limit() == 1'000'000);
    system.write("fs/memory.max", "500000\n");
    CHECK(system.limit() == 500'000);
    system.write("fs/a/b/memory.max", "4096\n");
    CHECK(system.limit() == 4096);
}

TEST_CASE("host_memory: cgroup v1, by the memory controller's mount only") {
    const fake_system system;
    system.write("cgroup", "9:cpu:/elsewhere\n4:hugetlb,memory:/job\n0::/\n");
    system.write("mountinfo",
                 "31 23 0:27 / " + system.path("cpu") + " rw - cgroup cgroup rw,cpu\n" +
                     "32 23 0:28 / " + system.path("mem") +
                     " rw shared:9 - cgroup cgroup rw,hugetlb,memory\n" + "33 23 0:29 / " +
                     system.path("unified") + " rw - cgroup2 cgroup2 rw\n");
    system.write("cpu/elsewhere/memory.limit_in_bytes", "1\n");
    system.write("mem/memory.limit_in_bytes", "9223372036854771712\n");
    system.write("mem/job/memory.limit_in_bytes", "9223372036854771712\n");
    CHECK(system.limit() == no_limit);
    system.write("mem/job/memory.limit_in_bytes", "3145728\n");
    CHECK(system.limit() == 3'145'728);
}

TEST_CASE("host_memory: in a container the mount shows the inside of the group") {
    const fake_system system;
    system.write("cgroup", "0::/docker/xyz\n");
    system.write("mountinfo",
                 "30 23 0:26 /docker/xyz " + system.path("fs") + " rw - cgroup2 cgroup2 rw\n");
    system.write("fs/memory.max", "777216\n");
    CHECK(system.limit() == 777'216);
    system.write("cgroup", "0::/../other\n");  // a namespace that does not show the group at all
    CHECK(system.limit() == 777'216);
}

TEST_CASE("host_memory: the limit of this process can be asked") {
    CHECK(cgroup_memory_limit() > 0);
}
