// SPDX-License-Identifier: Apache-2.0
#include <xmm/core/list.hpp>

#include <vector>

#include <doctest/doctest.h>

#include "child.hpp"

using namespace xmm;

namespace {

struct element {
    int before = 0;  // so that the links are not at the front
    list_link a;
    list_link b;
    int number = 0;
};
using list_a = list<element, &element::a>;
using list_b = list<element, &element::b>;

template <class List>
std::vector<int> numbers(List& of) {
    std::vector<int> all;
    of.for_each([&](element& one) { all.push_back(one.number); });
    return all;
}

}  // namespace

TEST_CASE("list: order of both ends, count and removal") {
    element e[4];
    for (int i = 0; i < 4; ++i) {
        e[i].number = i;
    }
    list_a l;
    CHECK(l.is_empty());
    CHECK(l.pop_front() == nullptr);
    CHECK(l.front() == nullptr);
    l.push_back(e[1]);
    l.push_back(e[2]);
    l.push_front(e[0]);
    l.push_back(e[3]);
    CHECK(l.count() == 4);
    CHECK(numbers(l) == std::vector{0, 1, 2, 3});
    l.remove(e[2]);
    CHECK(!list_a::is_linked(e[2]));
    CHECK(list_a::is_linked(e[3]));
    CHECK(numbers(l) == std::vector{0, 1, 3});
    CHECK(l.pop_front() == &e[0]);
    CHECK(l.front() == &e[1]);
    l.remove(e[1]);
    l.remove(e[3]);
    CHECK(l.is_empty());
    CHECK(l.count() == 0);
}

TEST_CASE("list: an element is on two lists by two links") {
    element one, two;
    one.number = 1, two.number = 2;
    list_a a;
    list_b b;
    a.push_back(one);
    a.push_back(two);
    b.push_back(two);
    b.push_back(one);
    CHECK(numbers(a) == std::vector{1, 2});
    CHECK(numbers(b) == std::vector{2, 1});
    a.remove(one);
    CHECK(numbers(b) == std::vector{2, 1});
    b.remove(one), b.remove(two), a.remove(two);
}

TEST_CASE("list: for_each may remove the element it is given") {
    element e[3];
    list_a l, other;
    for (int i = 0; i < 3; ++i) {
        e[i].number = i;
        l.push_back(e[i]);
    }
    l.for_each([&](element& one) {
        if (one.number != 1) {
            l.remove(one);
            other.push_back(one);
        }
    });
    CHECK(numbers(l) == std::vector{1});
    CHECK(numbers(other) == std::vector{0, 2});
    l.remove(e[1]), other.remove(e[0]), other.remove(e[2]);
}

#if XMM_CHECKS
TEST_CASE("list: pushing twice and removing what is on no list abort") {
    CHECK(test::in_child([] {
              element one;
              list_a l;
              l.push_back(one);
              l.push_front(one);
          }).says("pushed while on a list"));
    CHECK(test::in_child([] {
              element one;
              list_a l;
              l.remove(one);
          }).says("not on"));
}
#endif
