# SPDX-License-Identifier: Apache-2.0
"""What the tests of the tree share: its headers, the compilers of this machine, running and skipping."""
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include"
BACKENDS = ROOT / "backends"
WARNINGS = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
OLDEST_GCC, OLDEST_CLANG = 12, 16


def headers():
    """Every header that users can reach, sorted."""
    return sorted([*INCLUDE.rglob("*.hpp"), *BACKENDS.rglob("*.hpp")])


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def run(command, **options):
    """Runs a command; its output and exit status come back, nothing is raised."""
    return subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", **options)


def must(command, **options):
    """Runs a command that has to succeed; else shows what it printed and fails the test."""
    done = run(command, **options)
    if done.returncode != 0:
        print("failed: " + " ".join(str(part) for part in command))
        print(done.stdout)
        sys.exit(1)
    return done.stdout


def version_of(compiler):
    done = run([compiler, "-dumpversion"])
    found = re.match(r"\d+", done.stdout)
    return int(found.group()) if done.returncode == 0 and found else 0


def second_compiler(first):
    """The other family's newest compiler that is new enough, or None."""
    if "clang" in pathlib.Path(first).name:
        names = ["g++", *(f"g++-{v}" for v in range(30, OLDEST_GCC - 1, -1))]
        oldest = OLDEST_GCC
    else:
        names = [*(f"clang++-{v}" for v in range(30, OLDEST_CLANG - 1, -1)), "clang++"]
        oldest = OLDEST_CLANG
    return next((n for n in names if shutil.which(n) and version_of(n) >= oldest), None)


@functools.cache
def flags_of_hwloc(what):
    return must(["pkg-config", what, "hwloc"]).split()


def jobs():
    return min(2, os.cpu_count() or 1)
