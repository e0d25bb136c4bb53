// SPDX-License-Identifier: Apache-2.0
#include <xmm/placement/frame_stock.hpp>

#include <doctest/doctest.h>

#include "../mapping/paper_driver.hpp"

using namespace xmm;
using namespace xmm::literals;

namespace {

// Owns the pages, on paper.
struct steered_paper : private test::paper_driver {
    using paper_driver::describe;
    using paper_driver::is_done;
    using paper_driver::make_wait;
    using paper_driver::memcpy;
    using paper_driver::nodes;
    using paper_driver::queue_create;
    using paper_driver::queue_destroy;
    using paper_driver::record;
    using paper_driver::va_examine;
    using paper_driver::va_release;
    using paper_driver::wait;
    using paper_driver::zero;
    result<ticket> place(queue_id, std::span<const va_range>, node_id) noexcept { return ticket{}; }
    status advise(std::span<const va_range>, driver_advice, node_id) noexcept { return {}; }
    status residency(std::span<const va_range>, std::span<node_id>) noexcept { return {}; }
    result<ticket> discard(queue_id, std::span<const va_range>) noexcept { return ticket{}; }
};
static_assert(backend<steered_paper> && !owns_frames<steered_paper>);

// A pool of another space, with free frames on the same node.
struct other_pool : frame_keeper {
    explicit other_pool(ledger& all) : book{all} {
        REQUIRE(book.try_reserve(frames * 2_MiB));
        book.add_keeper(*this, SIZE_MAX);
    }
    ~other_pool() { book.remove_keeper(*this); }
    bool drop_oldest() noexcept override {
        if (frames == 0) {
            return false;
        }
        --frames;
        book.release(2_MiB);
        return true;
    }
    ledger& book;
    unsigned frames = 3;
};

}  // namespace

TEST_CASE("frame_stock: free frames that others keep make room for a stand-in") {
    steered_paper driver;
    ledger book;
    book.open(8_MiB);
    node there;
    there.driver = backend_ref{driver};
    there.book = &book;
    REQUIRE(is_steered(there));
    other_pool others{book};
    frame_stock stock;
    result<frame_record*> first = stock.take(there, 4_MiB);  // 2 MiB are left
    REQUIRE(first);
    CHECK(others.frames == 2);
    CHECK(book.used() == 8_MiB);
    result<frame_record*> second = stock.take(there, 4_MiB);
    REQUIRE(second);
    CHECK(others.frames == 0);
    CHECK(stock.take(there, 2_MiB).code() == errc::no_memory);
    stock.give_back(there, **first);
    CHECK(stock.take(there, 2_MiB));
    stock.give_back(there, **second);
    CHECK(book.used() == 2_MiB);
}
