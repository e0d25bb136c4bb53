#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ./dev refuses before it builds anything."""
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def refused(reason, *words):
    # No such compiler: what is not refused ends there.
    done = subprocess.run([ROOT / "dev", *words, "--no-install", "--compiler", "no-such-compiler"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if done.returncode != 2 or reason not in done.stderr or "usage: ./dev" not in done.stderr:
        raise SystemExit(f"{words}: exit status {done.returncode}\n{done.stdout}{done.stderr}")


refused("no command named bogus", "bogus")
refused("no sanitizer named bogus", "sanitize", "bogus")
refused("no sanitizer named tests", "sanitize", "tests", "address")
print("dev: unknown words are refused")
