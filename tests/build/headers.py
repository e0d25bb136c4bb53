#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles each header alone, without a warning; all of them in one unit by a compiler of the other family.

What a header leaves out is missing for any compiler, so the second one has only the language to judge.

headers.py COMPILER [--self-test]
"""
import concurrent.futures
import os
import sys
import tempfile

import tree

SHOWN_LINES = 12  # one mistake low in the tree is reported by all headers above it


def complaint(compiler, *headers, include=tree.INCLUDE):
    """What the compiler says about a unit that holds these headers only; empty if nothing."""
    # Twice, so that a missing `#pragma once` shows.
    unit = "".join(f'#include "{header}"\n' for header in headers) * 2
    done = tree.run([compiler, *tree.WARNINGS, "-Wshadow", "-fsyntax-only", "-I", include,
                     *tree.flags_of_hwloc("--cflags"), "-x", "c++", "-"], input=unit)
    return done.stdout if done.returncode != 0 else ""


def self_test(compiler):
    """A header that leans on another's includes, and one without a guard, have to be caught."""
    bad = {"leans.hpp": "#pragma once\ninline std::size_t count() { return 0; }\n",
           "unguarded.hpp": "inline int one() { return 1; }\n",
           "warns.hpp": "#pragma once\ninline int one(int unused) { return 1; }\n"}
    good = "#pragma once\n#include <cstddef>\ninline std::size_t count() { return 0; }\n"
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**bad, "good.hpp": good}.items():
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as out:
                out.write(text)
            if bool(complaint(compiler, path)) != (name in bad):
                sys.exit(f"self-test: {name} was judged wrongly")


def main(compiler):
    self_test(compiler)
    found = tree.headers()
    if not found:
        sys.exit("no header found")
    second = tree.second_compiler(compiler)
    if second is None:
        print("skipped: no second compiler here (g++ 12 or clang 16, or later)")
    passed, failed, skipped = 0, 0, int(second is None)
    with concurrent.futures.ThreadPoolExecutor(tree.jobs()) as pool:
        units = [(compiler, [header]) for header in found]
        if second is not None:
            units.insert(0, (second, found))
        for (one, headers), said in zip(units, pool.map(lambda u: complaint(u[0], *u[1]), units)):
            if said:
                first = "\n".join(said.splitlines()[:SHOWN_LINES])
                what = headers[0].relative_to(tree.ROOT) if len(headers) == 1 else "all headers"
                print(f"{what}: does not compile alone with {one}:\n{first}")
                failed += 1
            else:
                passed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
