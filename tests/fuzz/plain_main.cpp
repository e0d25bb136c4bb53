// SPDX-License-Identifier: Apache-2.0
// plain_main.cpp - runs a fuzz target over a corpus without libFuzzer: each file as it is, then cut, then with
// bytes changed, the same way each time.
//
// TARGET FOLDER [SECONDS]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);

namespace {

std::uint64_t state = 1;
std::uint64_t next_number() {
    std::uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void run(const std::vector<std::uint8_t>& bytes) {
    // A copy of exactly this size, so that a read past its end is seen by the sanitizers.
    const std::vector<std::uint8_t> exact{bytes};
    (void)LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

void change(std::vector<std::uint8_t>& bytes) {
    const std::uint64_t count = next_number() % 4 + 1;
    for (std::uint64_t i = 0; i < count && !bytes.empty(); ++i) {
        const auto at = static_cast<std::ptrdiff_t>(next_number() % bytes.size());
        switch (next_number() % 4) {
            case 0:
                bytes[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(next_number());
                break;
            case 1:
                bytes[static_cast<std::size_t>(at)] ^=
                    static_cast<std::uint8_t>(1u << next_number() % 8);
                break;
            case 2: bytes.erase(bytes.begin() + at); break;
            default: bytes.insert(bytes.begin() + at, bytes[next_number() % bytes.size()]); break;
        }
    }
}

}  // namespace

int main(int count, char** words) {
    if (count < 2) {
        std::fputs("TARGET FOLDER [SECONDS]\n", stderr);
        return 2;
    }
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator{words[1]}) {
        files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    if (files.empty()) {
        std::fputs("an empty corpus\n", stderr);
        return 2;
    }
    std::vector<std::vector<std::uint8_t>> corpus;
    for (const auto& path : files) {
        std::ifstream file{path, std::ios::binary};
        corpus.emplace_back(std::istreambuf_iterator<char>{file}, std::istreambuf_iterator<char>{});
        run(corpus.back());
        for (std::size_t size = 0; size < corpus.back().size(); ++size) {
            run({corpus.back().begin(), corpus.back().begin() + static_cast<std::ptrdiff_t>(size)});
        }
    }
    const double seconds = count > 2 ? std::atof(words[2]) : 1;
    const auto begin = std::chrono::steady_clock::now();
    std::uint64_t runs = 0;
    while (runs < 3000 ||
           std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() <
               seconds) {
        std::vector<std::uint8_t> bytes = corpus[next_number() % corpus.size()];
        change(bytes);
        run(bytes);
        ++runs;
    }
    std::printf("%zu files, %llu changed ones\n", corpus.size(),
                static_cast<unsigned long long>(runs));
}
