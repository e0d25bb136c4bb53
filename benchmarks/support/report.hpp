// SPDX-License-Identifier: Apache-2.0
// report.hpp - what the benchmarks share: medians with their spread, options, one line a figure.
//
// Model    A figure is measured several times; median, least and greatest are printed. With --short a
//          program runs small sizes, to show that it works; its figures mean nothing then.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace report {

struct options {
    bool is_short = false;
    int rounds = 7;
};

// Answers false after printing the usage, if the arguments are not understood.
inline bool parse(int argc, char** argv, const char* what, options& chosen) {
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--short") == 0) {
            chosen.is_short = true;
            chosen.rounds = 2;
        } else if (std::strncmp(argv[i], "--rounds=", 9) == 0 && std::atoi(argv[i] + 9) > 0) {
            chosen.rounds = std::atoi(argv[i] + 9);
        } else {
            std::fprintf(stderr, "%s: %s\nusage: %s [--short] [--rounds=N]\n", argv[0], what,
                         argv[0]);
            return false;
        }
    }
    return true;
}

class stopwatch {
public:
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }

private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

struct figure {
    double median = 0;
    double least = 0;
    double greatest = 0;
};

inline figure summarise(std::vector<double> samples) {
    std::sort(samples.begin(), samples.end());
    return {samples[samples.size() / 2], samples.front(), samples.back()};
}

inline void print_head(const char* unit) {
    std::printf("%-58s %10s %10s %10s  %s\n", "", "median", "least", "greatest", unit);
}
inline void print(const std::string& name, figure one, const char* goal = "") {
    std::printf("%-58s %10.3f %10.3f %10.3f  %s\n", name.c_str(), one.median, one.least,
                one.greatest, goal);
}

// What a figure keeps to in any case, on however busy a machine and in however short a run: far from its goal. Else
// verdict(), the program's exit status, is 1.
inline bool is_broken = false;
inline void expect(figure one, double least, double greatest) {
    if (!(one.median >= least && one.median <= greatest)) {
        std::printf("BROKEN: %.3f is not within %.3f and %.3f\n", one.median, least, greatest);
        is_broken = true;
    }
}
[[nodiscard]] inline int verdict() { return is_broken ? 1 : 0; }

}  // namespace report
