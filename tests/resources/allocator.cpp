// SPDX-License-Identifier: Apache-2.0
#include <xmm/resources/allocator.hpp>

#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <doctest/doctest.h>

#include <xmm/resources/adaptors/statistics_resource.hpp>
#include <xmm/resources/host_resource.hpp>
#include <xmm/resources/unified_pool.hpp>

#include "fake_space.hpp"

using namespace xmm;
using test::fake_space;

namespace {

// Goes to zero when every block has come back.
struct fixture {
    fake_space space;
    unified_pool pool{space.port(), fake_space::device};
    using counted_pool = statistics_resource<unified_pool>;
    counted_pool counted{pool};

    [[nodiscard]] std::int64_t live() const { return counted.statistics().bytes.current; }
};

struct alignas(128) wide {
    int value;
};

}  // namespace

TEST_CASE_FIXTURE(fixture, "allocator: std containers over a resource") {
    using of_int = allocator<int, counted_pool>;
    {
        std::vector<int, of_int> numbers{of_int{counted}};
        for (int i = 0; i < 10'000; ++i) {
            numbers.push_back(i);
        }
        CHECK(numbers[9'999] == 9'999);
        using pair = std::pair<const int, std::string>;
        std::map<int, std::string, std::less<>, allocator<pair, counted_pool>> names{counted};
        names[3] = "three";
        names[1] = "one";
        CHECK(names.begin()->second == "one");
        std::unordered_map<int, int, std::hash<int>, std::equal_to<>,
                           allocator<std::pair<const int, int>, counted_pool>>
            squares{counted};
        for (int i = 0; i < 100; ++i) {
            squares[i] = i * i;
        }
        CHECK(squares[9] == 81);
        std::list<wide, allocator<wide, counted_pool>> wides(10, wide{7}, counted);
        for (const wide& one : wides) {
            CHECK(to_address(&one) % 128 == 0);
            CHECK(one.value == 7);
        }
        const auto shared = std::allocate_shared<std::string>(of_int{counted}, "kept there");
        CHECK(*shared == "kept there");
        std::basic_string<char, std::char_traits<char>, allocator<char, counted_pool>> text{
            counted};
        text.assign(1000, 'x');
        CHECK(text.size() == 1000);
        CHECK(live() > 50'000);
    }
    CHECK(live() == 0);
}

TEST_CASE_FIXTURE(fixture,
                  "allocator: through the base class it takes any resource the CPU reaches") {
    host_resource host;
    const allocator<int> here{host};
    const allocator<int> there{counted};
    CHECK(here == allocator<long>{host});
    CHECK(here != there);
    std::vector<int, allocator<int>> a{{1, 2, 3}, here};
    std::vector<int, allocator<int>> b{{4, 5}, there};

    SUBCASE("copies stay where the target is") {
        b = a;
        CHECK(b == std::vector<int, allocator<int>>{{1, 2, 3}, here});
        CHECK(&b.get_allocator().resource() == &counted);
    }
    SUBCASE("moves take the memory along") {
        const int* data = b.data();
        a = std::move(b);
        CHECK(a.data() == data);
        CHECK(&a.get_allocator().resource() == &counted);
    }
    SUBCASE("swaps too") {
        const int* data = b.data();
        a.swap(b);
        CHECK(a.data() == data);
        CHECK(&b.get_allocator().resource() == &host);
    }
}

TEST_CASE_FIXTURE(fixture, "allocator: too many elements are refused without overflow") {
    allocator<wide, counted_pool> wides{counted};
    CHECK_THROWS_AS((void)wides.allocate(std::numeric_limits<std::size_t>::max() / 128 + 1),
                    std::bad_array_new_length);
    CHECK_THROWS_AS((void)wides.allocate(std::numeric_limits<std::size_t>::max() / 128),
                    out_of_memory);
    wides.deallocate(wides.allocate(0), 0);
    CHECK(live() == 0);
}

TEST_CASE("allocator: device-only memory for kernels to fill") {
    fake_space space;
    device_resource device{space.port(), fake_space::device};
    allocator<wide, device_resource> wides{device};
    wide* there = wides.allocate(1000);
    CHECK(space.used() == page_bytes);
    wides.deallocate(there, 1000);
    CHECK(space.used() == 0);
}

TEST_CASE("shared_resource: the resource lives as long as a container that draws from it") {
    fake_space space;
    using shared_pool = shared_resource<unified_pool>;
    static_assert(resource<shared_pool>);
    static_assert(std::is_copy_constructible_v<shared_pool>);
    std::vector<int, allocator<int, shared_pool>> numbers = [&] {
        const auto pool = make_shared_resource<unified_pool>(space.port(), fake_space::device);
        CHECK(pool == shared_pool{pool});
        CHECK(pool.node() == fake_space::device);
        return std::vector<int, allocator<int, shared_pool>>{{1, 2, 3}, pool};
    }();
    CHECK(space.live_blocks() == 1);
    numbers.resize(1000, 9);
    CHECK(numbers[999] == 9);
    numbers = decltype(numbers){make_shared_resource<unified_pool>(space.port())};
    CHECK(space.live_blocks() == 0);  // the first pool went with its last block
}
