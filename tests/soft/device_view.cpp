// SPDX-License-Identifier: Apache-2.0
#include <xmm/core/device_view.hpp>

#include <complex>

#include "rig.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

struct odd {  // 12 bytes: does not divide a page
    int a, b, c;
    friend bool operator==(const odd&, const odd&) = default;
};

// Two neighbouring pages whose frames are not neighbours, so that straddling shows.
struct split_pages : rig {
    va_range range = reserve(3 * page_bytes);
    soft::stream on = stream();

    split_pages() {
        for (int i : {2, 0, 1}) {
            enter(near, range.begin + i * page_bytes, create(near));
        }
    }
    template <class Fn>
    errc run(Fn fn) {
        auto point = on.run(std::move(fn));
        REQUIRE(point);
        return driver.wait(*point).code;
    }
    template <class T>
    device_view<T> view(std::size_t offset = 0) {
        return {pointer<T>(range.begin + offset), (range.bytes - offset) / sizeof(T)};
    }
};

}  // namespace

TEST_CASE("on the CPU a view is plain memory") {
    std::vector<int> data{1, 2, 3, 4};
    const device_view<int> view{data.data(), data.size()};
    view[0] = 10;
    view[1] += 5;
    ++view[2];
    view[3] = view[0];
    CHECK(data == std::vector{10, 7, 4, 10});
    CHECK(view.fetch_add(0, 5) == 10);
    const device_view<const int> reader = view;
    CHECK(reader[0] == 15);
    static_assert(std::is_same_v<decltype(reader[0]), int>);
    static_assert(std::is_same_v<decltype(view.operator[]<detail::plain_access>(0)), int&>);
    std::vector<int> some(2);
    view.read(1, some);
    CHECK(some == std::vector{7, 4});
    view.write(2, some);
    CHECK(data == std::vector{15, 7, 7, 4});
    int calls = 0;
    view.for_each_span(1, 3, [&](std::span<int> all, std::size_t first) {
        CHECK(all.data() == data.data() + 1);
        CHECK(all.size() == 3);
        CHECK(first == 1);
        ++calls;
    });
    zip_spans([&](std::span<int>, std::span<const int>) { ++calls; }, view, reader.subview(0, 2));
    CHECK(calls == 2);
}

TEST_CASE("references behave as the element does") {
    split_pages p;
    const auto view = p.view<int>();
    std::vector<int> seen(12);
    CHECK(p.run([view, &seen] {
        view[0] = 20;
        view[0] += 4, view[0] -= 2, view[0] *= 3, view[0] /= 2, view[0] %= 20;
        seen[0] = view[0];  // 33 % 20
        view[1] = 0b1100;
        view[1] |= 0b0011, view[1] &= 0b0110, view[1] ^= 0b0001;
        seen[1] = view[1];
        seen[2] = view[2]++;
        seen[3] = view[2]--;
        seen[4] = ++view[2];
        seen[5] = --view[2];
        view[3] = view[0];
        seen[6] = view[3];
        auto reference = view[4];
        reference = view[0];
        seen[7] = view.load(4);
        seen[8] = view[0] + view[1] * 2;
        seen[9] = view[0] < view[1] ? 1 : 2;
    }) == errc::ok);
    CHECK(seen == std::vector{13, 7, 0, 1, 1, 0, 13, 13, 27, 2, 0, 0});
}

TEST_CASE("elements may straddle two pages") {
    split_pages p;
    for (std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{6}}) {
        const auto view = p.view<odd>(offset);
        const std::size_t last = view.size();
        CHECK(p.run([=] {
            for (std::size_t i = 0; i < last; i += 1) {
                if (i % 1000 == 0 ||
                    (i * sizeof(odd) + offset) % page_bytes > page_bytes - 2 * sizeof(odd)) {
                    const int n = static_cast<int>(i);
                    view[i] = odd{n, -n, n * 2};
                    view.update(i, [](odd one) { return odd{one.a + 1, one.b, one.c}; });
                }
            }
        }) == errc::ok);
        std::size_t straddling = 0;
        std::atomic<int> wrong{0};
        CHECK(p.run([=, &straddling, &wrong] {
            for (std::size_t i = 0; i < last; ++i) {
                const std::size_t start = (i * sizeof(odd) + offset) % page_bytes;
                if (start + sizeof(odd) > page_bytes) {
                    ++straddling;
                    const int n = static_cast<int>(i);
                    wrong += view.load(i) == odd{n + 1, -n, n * 2} ? 0 : 1;
                }
            }
        }) == errc::ok);
        CHECK(straddling >= 1);
        CHECK(wrong == 0);
    }
}

TEST_CASE("bulk reads and writes cross pages") {
    split_pages p;
    const auto view = p.view<unsigned char>(3);
    std::vector<unsigned char> out(2 * page_bytes + 77);
    for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<unsigned char>(i * 7 + i / 251);
    }
    std::vector<unsigned char> in(out.size());
    CHECK(p.run([&] {
        view.write(11, out);
        view.read(11, in);
    }) == errc::ok);
    CHECK(in == out);
    CHECK(at<unsigned char>(p.frames[1].standing + 14) == out[0]);
}

TEST_CASE("spans cover each element once, in order, within a page") {
    split_pages p;
    const auto view = p.view<odd>();
    std::size_t next = 5;
    std::size_t singles = 0;
    bool in_order = true;
    CHECK(p.run([&, view] {
        view.for_each_span(5, view.size() - 5, [&](std::span<odd> some, std::size_t first) {
            in_order = in_order && first == next;
            next += some.size();
            singles += some.size() == 1 ? 1 : 0;
            for (odd& one : some) {
                one = odd{static_cast<int>(first++), 1, 2};
            }
        });
    }) == errc::ok);
    CHECK(in_order);
    CHECK(next == view.size());
    CHECK(singles == 2);
    std::atomic<int> wrong{0};
    CHECK(p.run([&, view] {
        for (std::size_t i = 5; i < view.size(); i += 1) {
            if (i % 97 == 0 || i * sizeof(odd) % page_bytes < 24) {
                wrong += view.load(i).a == static_cast<int>(i) ? 0 : 1;
            }
        }
    }) == errc::ok);
    CHECK(wrong == 0);
}

TEST_CASE("zipped spans walk several views at different offsets") {
    split_pages p;
    const va_range range = p.reserve(4 * page_bytes);
    for (std::size_t i : {1u, 0u, 3u, 2u}) {
        p.enter(rig::near, range.begin + i * page_bytes, p.create(rig::near));
    }
    const auto in = p.view<odd>();  // both of its page boundaries lie within an element
    const device_view<double> sum{pointer<double>(range.begin + 16), in.size()};
    std::size_t covered = 0;
    CHECK(p.run([&, in, sum] {
        in.for_each_span(0, in.size(), [](std::span<odd> some, std::size_t first) {
            for (odd& one : some) {
                one = odd{static_cast<int>(first++), 1, 2};
            }
        });
        zip_spans(
            [&](std::size_t first, std::span<const odd> a, std::span<double> b) {
                covered += first == covered ? a.size() : 0;
                for (std::size_t i = 0; i < a.size(); ++i) {
                    b[i] = a[i].a + static_cast<double>(first + i);
                }
            },
            device_view<const odd>{in}, sum);
    }) == errc::ok);
    CHECK(covered == in.size());
    std::vector<double> back(in.size());
    CHECK(p.run([&, sum] { sum.read(0, back); }) == errc::ok);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < back.size(); ++i) {
        wrong += back[i] == 2.0 * static_cast<double>(i) ? 0 : 1;
    }
    CHECK(wrong == 0);
}

TEST_CASE("zipped views fault in one after the other, and come through when frames are few") {
    soft::device_options options;
    options.units = 1;
    rig r{options};
    const va_range range = r.reserve(3 * page_bytes);
    const frame device = r.create(rig::near);
    std::vector<frame> hosts;
    for (int i = 0; i < 3; ++i) {
        hosts.push_back(r.create(rig::host));
    }
    // One frame on the device: the first fault takes it, the others are served remotely.
    int faults = 0;
    auto answer = [&](node_id accessor, address at, xmm::access) {
        const address page = align_down(at, page_bytes);
        const frame& backing = faults == 0 ? device : hosts[(page - range.begin) / page_bytes];
        ++faults;
        r.enter(accessor, page, backing);
        return fault_outcome::resolved;
    };
    REQUIRE(r.driver.on_device_fault(sink_of(answer)));
    const device_view<int> a{pointer<int>(range.begin), 1000};
    const device_view<int> b{pointer<int>(range.begin + page_bytes), 1000};
    const device_view<int> c{pointer<int>(range.begin + 2 * page_bytes), 1000};
    auto point = r.stream().run([=] {
        zip_spans(
            [](std::span<int> x, std::span<int> y, std::span<int> z) {
                for (std::size_t i = 0; i < x.size(); ++i) {
                    z[i] = ++x[i] + ++y[i];
                }
            },
            a, b, c);
    });
    REQUIRE(point);
    CHECK(r.driver.wait(*point));
    CHECK(faults == 3);
    CHECK(at<int>(hosts[2].standing + 999 * sizeof(int)) == 2);
    r.driver.off_device_fault(&answer);
}

TEST_CASE("fetch_add is atomic between units and with the CPU") {
    rig r;
    const va_range range = r.reserve(page_bytes);
    const frame one = r.create(rig::host);
    r.enter(rig::near, range.begin, one);
    r.enter(rig::host, range.begin, one);
    const device_view<std::uint64_t> count{pointer<std::uint64_t>(range.begin), 1};
    const device_view<double> total{pointer<double>(range.begin + 64), 1};
    auto point = r.stream().parallel_for(20'000, [=](std::size_t) {
        count.fetch_add(0, 1);
        total.fetch_add(0, 0.5);
    });
    for (int i = 0; i < 20'000; ++i) {
        count.fetch_add(0, 1);
    }
    REQUIRE(point);
    CHECK(r.driver.wait(*point));
    CHECK(at<std::uint64_t>(one.standing) == 40'000);
    CHECK(at<double>(one.standing + 64) == 10'000.0);
}

TEST_CASE("types of namespace std are elements too") {
    split_pages p;
    const auto view = p.view<std::complex<float>>();
    const auto bytes = p.view<std::byte>();
    CHECK(p.run([=] {
        view[1] = {1.0f, 2.0f};
        view[1] += std::complex<float>{1.0f, 1.0f};
        bytes[0] = std::byte{7};
    }) == errc::ok);
    CHECK(at<std::complex<float>>(p.frames[1].standing + 8) == std::complex<float>{2.0f, 3.0f});
}
