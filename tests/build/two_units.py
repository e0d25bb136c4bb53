#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Links two units that both include every header, xmm.hpp among them, and runs the program.

two_units.py COMPILER

A function that somebody forgot to make inline is then there twice. Warnings are the business of headers.py.
"""
import pathlib
import sys
import tempfile

import tree


def program_of(compiler, texts):
    """Builds one program of the given units; the run of the last step comes back."""
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for name, text in texts.items():
            source = pathlib.Path(folder) / f"{name}.cpp"
            source.write_text(text, encoding="utf-8")
            built = tree.run([compiler, "-std=c++20", "-w", "-O0", "-pthread", "-I", tree.INCLUDE,
                              *tree.flags_of_hwloc("--cflags"), "-c", source,
                              "-o", source.with_suffix(".o")])
            if built.returncode != 0:
                return built
            objects.append(source.with_suffix(".o"))
        program = pathlib.Path(folder) / "program"
        linked = tree.run([compiler, "-pthread", *objects, *tree.flags_of_hwloc("--libs"), "-ldl",
                           "-o", program])
        return linked if linked.returncode != 0 else tree.run([program])


def main(compiler):
    includes = "".join(f'#include "{header}"\n' for header in tree.headers())
    calls = "int other();\nint main() { return other(); }\n"
    other = "int other() { return 0; }\n"
    twice = "int is_twice() { return 1; }\n"
    if program_of(compiler, {"a": twice + calls, "b": twice + other}).returncode == 0:
        sys.exit("self-test: a function defined in both units went unnoticed")
    done = program_of(compiler, {"a": includes + calls, "b": includes + other})
    print(done.stdout)
    return 1 if done.returncode != 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
