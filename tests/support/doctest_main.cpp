// SPDX-License-Identifier: Apache-2.0
// doctest_main.cpp - main() of every test program, and a listener that counts the cases.
//
// Model    A case that says MESSAGE("skipped: why") and checks nothing further counts as skipped, not
//          as passed; so does one marked doctest::skip(). The last line on stdout is the count that
//          `./dev test` adds up. Each case is named before it runs: a crash then shows where.
// Threads  Cases may log from any thread.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <atomic>
#include <cstdio>
#include <cstring>

namespace {

class case_counter : public doctest::IReporter {
public:
    explicit case_counter(const doctest::ContextOptions&) {}

    void test_case_start(const doctest::TestCaseData& in) override {
        saw_skip_.store(false, std::memory_order_relaxed);  // relaxed: no thread of a case runs yet
        std::printf("case: %s\n", in.m_name);
        std::fflush(stdout);
    }
    void test_case_end(const doctest::CurrentTestCaseStats& in) override {
        // relaxed: doctest reports the end of a case after its own asserts, on the thread that ran it
        if (in.testCaseSuccess && saw_skip_.load(std::memory_order_relaxed)) {
            ++skipped_;
        }
    }
    void test_case_skipped(const doctest::TestCaseData& in) override {
        if (in.m_skip) {  // else a filter of the command line left it out
            std::printf("skipped: %s\n", in.m_name);
            ++marked_skip_;
        }
    }
    void log_message(const doctest::MessageData& in) override {
        if (std::strncmp(in.m_string.c_str(), "skip", 4) == 0) {
            saw_skip_.store(true,
                            std::memory_order_relaxed);  // relaxed: a flag that guards nothing
        }
    }
    void test_run_end(const doctest::TestRunStats& in) override {
        const unsigned failed = in.numTestCasesFailed;
        const unsigned passed = in.numTestCasesPassingFilters - failed - skipped_;
        std::printf("%u passed, %u failed, %u skipped\n", passed, failed, skipped_ + marked_skip_);
        std::fflush(stdout);
    }

    void report_query(const doctest::QueryData&) override {}
    void test_run_start() override {}
    void test_case_reenter(const doctest::TestCaseData&) override {}
    void test_case_exception(const doctest::TestCaseException&) override {}
    void subcase_start(const doctest::SubcaseSignature&) override {}
    void subcase_end() override {}
    void log_assert(const doctest::AssertData&) override {}

private:
    std::atomic<bool> saw_skip_{false};
    unsigned skipped_ = 0;
    unsigned marked_skip_ = 0;
};

REGISTER_LISTENER("case_counter", 1, case_counter);

}  // namespace
