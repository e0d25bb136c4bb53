#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads meson's testlog.json: shows what failed and why, what was skipped and why, and one line of counts.

summary.py BUILD_FOLDER

A test that prints `N passed, N failed, N skipped` counts with those numbers: doctest programs count their
cases so. Any other is one test. A test that died, hung, or exited non-zero without a failure in its
counts is a failure more. Exits with 1 when anything failed or nothing ran.
"""
import json
import pathlib
import re
import signal
import sys

COUNTS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)
SHOWN_LINES = 200


def tally(test):
    """(passed, failed, skipped) of one record of the log."""
    counts = COUNTS.findall(test.get("stdout") or "")
    result = test["result"]
    if result == "SKIP":
        return 0, 0, 1
    good = result in ("OK", "EXPECTEDFAIL")
    if not counts:
        return (1, 0, 0) if good else (0, 1, 0)
    passed, failed, skipped = map(int, counts[-1])
    if not good and failed == 0:
        failed = 1
    return passed, failed, skipped


def how_it_ended(test):
    code = test["returncode"]
    if test["result"] == "TIMEOUT":
        return "ran out of time"
    if code < 0:
        return f"died by {signal.Signals(-code).name}"
    return f"exit status {code}"


def reasons_of_skips(text):
    return [line.strip() for line in text.splitlines() if re.search(r"(^|MESSAGE: )skip", line.strip())
            and not COUNTS.match(line)]


def main(folder):
    log = pathlib.Path(folder) / "meson-logs" / "testlog.json"
    if not log.is_file():
        print(f"no {log}: no test ran")
        print("0 passed, 1 failed, 0 skipped")
        return 1
    total = [0, 0, 0]
    for record in log.read_text(errors="replace").splitlines():
        test = json.loads(record)
        name = test["name"].split(" / ")[-1]  # without project and suite
        numbers = tally(test)
        total = [a + b for a, b in zip(total, numbers)]
        output = (test.get("stdout") or "") + (test.get("stderr") or "")
        if numbers[1]:
            lines = output.splitlines()
            print(f"\n==== FAILED: {name} ({how_it_ended(test)}) ====")
            print("command: " + " ".join(test["command"]))
            if len(lines) > SHOWN_LINES:
                print(f"(the last {SHOWN_LINES} of {len(lines)} lines; all of them: {log})")
            # Marked, so that no line of counts in it passes for the closing one.
            print("\n".join("| " + line for line in lines[-SHOWN_LINES:]))
        if numbers[2]:
            for reason in reasons_of_skips(output) or ["no reason given"]:
                print(f"{name}: {reason}")
    print(f"\n{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] or not any(total) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
