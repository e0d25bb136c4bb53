// SPDX-License-Identifier: Apache-2.0
// Every call of every operator fails once while a mixed workload runs: no crash, no lost byte, no leak.
#include <xmm/facade/space.hpp>

#include <optional>

#include "faulty_soft.hpp"
#include "rig.hpp"
#include "tests/support/sanitizer.hpp"

using namespace xmm;
using namespace xmm::test;

namespace {

// Pages whose contents are known, or not since what wrote them failed. The CPU touches none itself: a touch
// that cannot be served is the end of the program.
class workload {
public:
    explicit workload(space& on)
        : space_{on}, device_{on.devices()[0]}, host_{on.hosts()[0]}, others_{used_by_others()} {}

    void run() {
        auto first = space_.map(pages * page_bytes, {.granule_bytes = page_bytes});
        auto second = space_.map(page_bytes, {.granule_bytes = page_bytes, .is_read_mostly = true});
        data_ = first ? static_cast<char*>(*first) : nullptr;
        shared_ = second ? static_cast<char*>(*second) : nullptr;
        if (data_ == nullptr || shared_ == nullptr) {
            return;
        }
        auto line = space_.make_queue(device_);
        for (std::size_t page = 0; page < pages; ++page) {
            write(page, 100 + page);
        }
        std::vector<std::uint64_t> plain(page_bytes / 8, 77);
        const bool is_shared_known = space_.copy(shared_, plain.data(), page_bytes).is_ok();
        note(space_.make_resident(at(0), pages * page_bytes, device_));
        if (line) {
            kernel(*line, 0, 200);
            kernel(*line, pages - 1, 201);
        }
        note(space_.advise(device_, shared_, page_bytes, advice::will_need));
        note(space_.advise(host_, at(0), 2 * page_bytes, advice::will_need));
        known_[3] = space_.copy(at(3), at(0), page_bytes) ? known_[0] : std::nullopt;
        note(space_.set_budget(device_, 2 * page_bytes));
        note(space_.make_resident(at(2), page_bytes, device_));
        if (space_.advise(device_, at(2), page_bytes, advice::pin)) {
            CHECK(space_.residency_of(at(2)).value() == device_);
            CHECK(space_.advise(device_, at(2), page_bytes, advice::unpin));
        }
        note(space_.set_budget(device_, SIZE_MAX));
        note(space_.advise(host_, at(1), page_bytes, advice::dont_need));
        known_[1] = std::nullopt;
        if (line) {
            kernel(*line, 1, 300);
            const auto failures = space_.copy_failures();
            auto point = space_.copy(*line, at(4), at(2), page_bytes);
            known_[4] = point && line->wait(*point) && space_.copy_failures() == failures
                            ? known_[2]
                            : std::nullopt;
        }
        { auto held = space_.access_on_host(at(2), page_bytes); }
        if (is_shared_known) {
            shared_value_ = 77;
        }
        note(space_.unmap(space_.map(page_bytes).value_or(nullptr)));
    }

    // With nothing failing any more.
    void verify() {
        CHECK(space_.is_valid());
        space_.for_each_granule([](const granule_view& one) {
            CHECK(!one.is_moving);
            CHECK(!one.is_pinned);
        });
        if (data_ != nullptr && shared_ != nullptr) {
            for (std::size_t page = 0; page < pages; ++page) {
                if (known_[page]) {
                    CAPTURE(page);
                    CHECK(read(at(page)) == *known_[page]);
                    CHECK(read(at(page) + page_bytes - 8) == *known_[page]);
                }
            }
            if (shared_value_) {
                CHECK(read(shared_) == *shared_value_);
            }
        }
        if (data_ != nullptr) {
            CHECK(space_.unmap(data_));
        }
        if (shared_ != nullptr) {
            CHECK(space_.unmap(shared_));
        }
        CHECK(space_.state().core.granule_count() == 0);
        for (const node_statistics& one : space_.statistics()) {
            // A host's ledger is shared by all spaces of the process.
            const std::size_t of_others = one.usage.node == host_ ? others_ : 0;
            CHECK(one.usage.used == one.usage.free_frames + of_others);
        }
    }

private:
    static constexpr std::size_t pages = 5;

    // Without the free frames that other spaces keep: where the driver has no more, those go.
    [[nodiscard]] std::size_t used_by_others() const {
        ledger& book = *space_.state().core.find_node(host_)->book;
        while (book.drop_free_frame()) {
        }
        return book.used();
    }
    char* at(std::size_t page) { return data_ + page * page_bytes; }
    static void note(status) {}  // refused or not: the contents tell
    void write(std::size_t page, std::uint64_t value) {
        const std::vector<std::uint64_t> plain(page_bytes / 8, value);
        known_[page] =
            space_.copy(at(page), plain.data(), page_bytes) ? std::optional{value} : std::nullopt;
    }
    std::uint64_t read(char* from) {
        std::uint64_t value = 0;
        CHECK(space_.copy(&value, from, 8));
        return value;
    }
    void kernel(queue& line, std::size_t page, std::uint64_t value) {
        const device_view<std::uint64_t> view{reinterpret_cast<std::uint64_t*>(at(page)),
                                              page_bytes / 8};
        auto point = launch(line, {writes(at(page), page_bytes)}, [&](soft::stream& s) {
            return s.run([=] {
                view.store(0, value);
                view.store(view.size() - 1, value);
            });
        });
        if (!point) {
            // The kernel may have run all the same, if it was the record that failed.
            static_cast<void>(line.synchronize());
            known_[page] = std::nullopt;
            return;
        }
        known_[page] = line.wait(*point) ? std::optional{value} : std::nullopt;
    }

    space& space_;
    node_id device_, host_;
    std::size_t others_;
    char* data_ = nullptr;
    char* shared_ = nullptr;
    std::optional<std::uint64_t> known_[pages];
    std::optional<std::uint64_t> shared_value_;
};

// Not `wait`: a wait that fails without waiting is a device that writes on after it was given up.
constexpr op failing[] = {op::describe,   op::va_examine,      op::queue_create, op::memcpy,
                          op::zero,       op::record,          op::frame_create, op::pmap_enter,
                          op::pmap_clear, op::on_device_fault, op::call};

// Races do not hang on which of many like calls it was that failed.
constexpr std::uint64_t stride = has_thread_sanitizer ? 4 : 1;

void fail_each_call(bool faults, errc code, std::uint64_t in_a_row) {
    auto driver = xmm::detail::make_soft_driver({device_of(16_MiB, faults)}, machine_topology());
    REQUIRE(driver);
    for (op which : failing) {
        bool was_hit = true;
        for (std::uint64_t n = 1; was_hit && n < 500; n += stride) {
            CAPTURE(static_cast<int>(which));
            CAPTURE(n);
            faulty_soft faulty{**driver};
            faulty.plan(which, {.fail_at = n, .fail_count = in_a_row, .code = code});
            auto made = space::create_on(faulty);
            if (!made) {
                CHECK(made.code() == code);
            } else {
                workload work{*made};
                work.run();
                was_hit = faulty.calls(which) >= n;
                faulty.plan(which, {});
                static_cast<void>(made->set_budget(made->devices()[0], SIZE_MAX));
                work.verify();
            }
        }
        CHECK(!was_hit);
        CHECK((*driver)->statistics((*driver)->nodes()[0]).frame_bytes == 0);
        CHECK((*driver)->statistics((*driver)->nodes()[0]).mapped_bytes == 0);
    }
}

}  // namespace

TEST_CASE("injection: each call of each operator fails once") {
    fail_each_call(true, errc::no_memory, 1);
}
TEST_CASE("injection: three in a row") { fail_each_call(true, errc::no_memory, 3); }
TEST_CASE("injection: a device without faults") { fail_each_call(false, errc::no_memory, 1); }

TEST_CASE("injection: everything takes its time") {
    auto driver = xmm::detail::make_soft_driver({device_of(16_MiB)}, machine_topology());
    REQUIRE(driver);
    faulty_soft faulty{**driver};
    for (op which :
         {op::memcpy, op::zero, op::wait, op::frame_create, op::pmap_enter, op::pmap_clear}) {
        faulty.plan(which, {.delay = std::chrono::microseconds{300}});
    }
    auto made = space::create_on(faulty);
    REQUIRE(made);
    workload work{*made};
    std::atomic<bool> is_over{false};
    auto* data = static_cast<std::uint64_t*>(*made->map(8_MiB, {.granule_bytes = 2_MiB}));
    std::thread toucher{[&] {
        for (std::uint64_t i = 0; !is_over.load(); ++i) {
            data[i % 4 * (page_bytes / 8)] += 1;
            static_cast<void>(made->advise(made->devices()[0], data, 8_MiB, advice::will_need));
        }
    }};
    work.run();
    is_over = true;
    toucher.join();
    CHECK(made->unmap(data));
    work.verify();
}
