#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Feeds summary.py logs whose counts are known: it must neither lose a failure nor call a skip a pass."""
import json
import pathlib
import subprocess
import sys
import tempfile

SUMMARY = pathlib.Path(__file__).with_name("summary.py")


def record(result="OK", code=0, stdout=""):
    return {"name": "one", "result": result, "returncode": code, "stdout": stdout, "command": ["./one"]}


CASES = [  # records, the closing line, the exit status
    ([record(stdout="noise\n3 passed, 0 failed, 1 skipped\nmore\n")], "3 passed, 0 failed, 1 skipped", 0),
    ([record("FAIL", 1, "2 passed, 1 failed, 0 skipped\n")], "2 passed, 1 failed, 0 skipped", 1),
    # Counts all good, and yet it failed: a sanitizer's report at exit, a crash in a destructor.
    ([record("FAIL", 66, "2 passed, 0 failed, 0 skipped\n")], "2 passed, 1 failed, 0 skipped", 1),
    ([record("FAIL", -11, "case: first\n")], "0 passed, 1 failed, 0 skipped", 1),
    ([record("TIMEOUT", -15)], "0 passed, 1 failed, 0 skipped", 1),
    ([record("SKIP", 77, "skipped: no tool\n")], "0 passed, 0 failed, 1 skipped", 0),
    ([record(), record("SKIP", 77), record("ERROR", 99)], "1 passed, 1 failed, 1 skipped", 1),
    ([], "0 passed, 0 failed, 0 skipped", 1),  # a run of nothing is no success
    (None, "0 passed, 1 failed, 0 skipped", 1),
]

for records, line, status in CASES:
    with tempfile.TemporaryDirectory() as folder:
        if records is not None:
            logs = pathlib.Path(folder) / "meson-logs"
            logs.mkdir()
            (logs / "testlog.json").write_text("".join(json.dumps(r) + "\n" for r in records))
        done = subprocess.run([sys.executable, SUMMARY, folder], capture_output=True, text=True)
        last = done.stdout.splitlines()[-1]
        if (last, done.returncode) != (line, status):
            sys.exit(f"{records}\ngave {last!r}, status {done.returncode}; expected {line!r}, {status}")
