#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs xmm-replay on the machine's first CUDA device, or looks at how it says that there is none.

device.py XMM_REPLAY
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
TRACE = str(pathlib.Path(__file__).resolve().parents[2] / "traces" / "vit_l.csv.gz")


def run(folder, *words, **environment):
    return subprocess.run([PROGRAM, *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=110, env={**os.environ, **environment})


def expect(condition, what, done):
    if not condition:
        sys.exit(f"{done.stdout}{done.stderr}device.py: {what}")


def measured(folder):
    """Real calls, told apart from simulated ones, and what no list of prices would say."""
    done = run(folder, TRACE, "--scale", "400", "--backend", "cuda", "--prices", "measured", "--json", "real.json")
    expect(done.returncode == 0, "a replay on the device", done)
    expect("in measured time" in done.stdout and "sizes are scaled 1 : 400." in done.stdout, "what it ran on", done)
    run(folder, TRACE, "--scale", "400", "--json", "listed.json")
    real, listed = (json.loads((folder / name).read_text()) for name in ("real.json", "listed.json"))
    for a, b in zip(real, listed):
        expect((a["backend"], b["backend"]) == ("cuda", "simulated"), "the backend's name", done)
        expect((a["prices"], b["prices"], a["scale"]) == ("measured", "idle", 400), "prices and scale", done)
        expect(a["peak_live_bytes"] == b["peak_live_bytes"] and a["peak_reserved_bytes"] >= a["peak_live_bytes"], "bytes", done)
        expect(a["first_creation_us"] > 0 and a["first_creation_us"] != b["first_creation_us"], "measured time", done)
        if a["allocator"].startswith("xmm"):
            expect(a["peak_reserved_bytes"] <= b["peak_reserved_bytes"] * 1.1, "the device takes more than simulated", done)
            expect(a["driver_calls"] > b["driver_calls"], "the calls for standing addresses are not counted", done)


def too_large(folder):
    """Refused before anything runs; with the scale that is proposed it runs."""
    # Half a petabyte: no device has that.
    (folder / "vast.csv").write_text("".join(f"a,{i},1099511627776,0,{i}\n" for i in range(512)))
    done = run(folder, "vast.csv", "--backend", "cuda", "--json", "none.json")
    expect(done.returncode == 2 and done.stdout == "" and not (folder / "none.json").exists(), "too large a trace", done)
    expect("vast.csv: 562949.953 GB are alive at its peak" in done.stderr, "the trace is not named", done)
    scale = done.stderr.split("--scale ")[1].split(" ")[0]
    done = run(folder, "vast.csv", "--backend", "cuda", "--allocators", "xmm-nojemalloc", "--scale", scale)
    expect(done.returncode == 0, f"--scale {scale}, as proposed", done)


with tempfile.TemporaryDirectory() as name:
    place = pathlib.Path(name)
    probe = run(place, TRACE, "--backend", "cuda", "--scale", "400", "--allocators", "xmm-nojemalloc")
    if probe.returncode == 2:
        expect("--backend cuda: " in probe.stderr and probe.stdout == "", "why there is no device", probe)
        print("skipped:", probe.stderr.strip().splitlines()[-1])
        sys.exit(77)
    measured(place)
    too_large(place)
    if "software" in probe.stdout:
        none = run(place, TRACE, "--backend", "cuda", SOFT_CUDA_DEVICES="0")
        expect(none.returncode == 2 and "--backend cuda: CUDA sees no device (the driver's code 100)" in none.stderr,
               "no device", none)
        old = run(place, TRACE, "--backend", "cuda", SOFT_CUDA_VERSION="12000")
        expect(old.returncode == 2 and "older than 12.2" in old.stderr, "an old driver", old)
print("xmm-replay: replays on the device, and says why it does not")
