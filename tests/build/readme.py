#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs the first C++ block of README.md, as a newcomer would: with -I include and hwloc.

readme.py COMPILER
"""
import pathlib
import re
import sys
import tempfile

import tree


def main(compiler):
    readme = tree.ROOT / "README.md"
    if not readme.is_file():
        tree.skip("there is no README.md")
    block = re.search(r"^```cpp\n(.*?)^```", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if block is None:
        sys.exit("README.md shows no C++ block")
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "example.cpp"
        source.write_text(block.group(1), encoding="utf-8")
        # -Wshadow: users compile the headers with it, too.
        tree.must([compiler, *tree.WARNINGS, "-Wshadow", "-O1", "-pthread", "-I", tree.INCLUDE,
                   *tree.flags_of_hwloc("--cflags"), source, *tree.flags_of_hwloc("--libs"),
                   "-o", source.with_suffix("")])
        print(tree.must([source.with_suffix("")], timeout=60))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
