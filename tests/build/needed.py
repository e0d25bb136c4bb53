#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What has to be built for some of the tests: the paths of their programs in the build folder, one a line.

needed.py BUILD_FOLDER [--suite SUITE]... [--no-suite SUITE]... [TEST]...

Meson knows for each test what it runs, is given or depends on. Prints nothing where the tests need nothing built; exits
with 1 if there is no such test.
"""
import argparse
import fnmatch
import json
import os
import pathlib
import subprocess
import sys


def suites_of(test):
    return {suite.split(":")[-1] for suite in test["suite"]}


def is_wanted(test, wanted):
    suites = suites_of(test)
    if suites & set(wanted.no_suite) or (wanted.suite and not suites & set(wanted.suite)):
        return False
    return not wanted.tests or any(fnmatch.fnmatchcase(test["name"], name.split(":", 1)[-1]) for name in wanted.tests)


def main():
    arguments = argparse.ArgumentParser(allow_abbrev=False)
    arguments.add_argument("folder")
    arguments.add_argument("--suite", action="append", default=[])
    arguments.add_argument("--no-suite", action="append", default=[])
    arguments.add_argument("tests", nargs="*")
    wanted = arguments.parse_intermixed_args()
    folder = pathlib.Path(wanted.folder).resolve()
    told = json.loads(subprocess.run(["meson", "introspect", folder, "--tests", "--targets"], check=True,
                                     capture_output=True, text=True).stdout)
    tests = [test for test in told["tests"] if is_wanted(test, wanted)]
    if not tests:
        return 1
    files = {target["id"]: target["filename"] for target in told["targets"]}
    needed = {path for test in tests for target in test["depends"] for path in files[target]}
    for path in sorted(needed):
        print(os.path.relpath(path, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
