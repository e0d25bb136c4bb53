#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs xmm-demo --quick and bad input through it, and looks at what it leaves.

quick.py XMM_DEMO
"""
import gzip
import json
import os
import pathlib
import resource
import struct
import subprocess
import sys
import tempfile
import threading
import zlib

PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
TRACES = pathlib.Path(__file__).resolve().parents[2] / "traces"


def run(folder, *words, **more):
    return subprocess.run([PROGRAM, *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=200, env={**os.environ, **more})


def expect(condition, what, done=None):
    if not condition:
        if done is not None:
            print(done.stdout + done.stderr)
        sys.exit(f"quick.py: {what}")


def png_rows(path):
    """Width, height and the unpacked rows of an 8-bit PNG; fails if a checksum or a length is wrong."""
    data = path.read_bytes()
    expect(data[:8] == b"\x89PNG\r\n\x1a\n", f"{path.name} is no PNG")
    at, pixels, header = 8, b"", None
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        expect(zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0],
               f"{path.name}: checksum")
        header = struct.unpack(">IIBBBBB", body) if kind == b"IHDR" else header
        pixels += body if kind == b"IDAT" else b""
        at += 12 + size
    width, height, depth, colour = header[:4]
    channels = {2: 3, 6: 4}[colour]
    expect(depth == 8, f"{path.name}: depth")
    rows = zlib.decompress(pixels)
    expect(len(rows) == height * (1 + width * channels), f"{path.name}: length")
    return width, height, rows


def quick_round(folder):
    done = run(folder, "--quick", "--clusters", "6")
    expect(done.returncode == 0, f"exit code {done.returncode}", done)
    for words in ["node 0", "CPU", "link 4 GB/s each way", "scaled 1 :", "drawn by the demo", "first_touch", "mapped",
                  "every word as written", "labels, centroids and picture as the CPU's", "All results equal the CPU's",
                  "in core", " moved ", " reached ", "slowdown: ", "replay: in core it takes", "k-means: in core it takes"]:
        expect(words in done.stdout, f"'{words}' is missing", done)
    out = folder / "xmm-demo-out"
    expect(len(done.stderr.splitlines()) == 6, "one line of progress a part", done)
    for name in ["heat-replay-opt13b_b8-first_touch", "heat-kmeans-landscape-first_touch",
                 "heat-replay-opt13b_b8-mapped", "heat-kmeans-landscape-mapped"]:
        width, height, rows = png_rows(out / f"{name}.png")
        expect(width > 800 and height > 500, f"{name}: size")
        expect(bytes((0, 98, 142)) in rows or bytes((230, 159, 60)) in rows, f"{name}: no page anywhere")
    width, height, _ = png_rows(out / "clustered-landscape.png")
    expect((width, height) == png_rows(out / "landscape.png")[:2], "the pictures' sizes differ")
    report = json.loads((out / "report.json").read_text())
    expect(report["is_correct"] and len(report["runs"]) == 6, "report")
    for one in report["runs"]:
        expect(one["is_correct"] and one["seconds"] > 0, f"{one['part']}, {one['policy']}: figures")
        if one["policy"] == "in core":
            expect(one["reclaimed_bytes"] == 0, f"{one['part']}: something gave way in core")
            continue
        expect(one["data_bytes"] > one["device_bytes"], f"{one['part']}: the device is not too small")
        if one["policy"] == "first_touch":
            expect(one["device_faults"] > 0 and one["bytes_to_device"] > 0 and one["reclaimed_bytes"] > 0,
                   f"{one['part']}: nothing moved")
        if one["policy"] == "mapped":
            expect(one["mapped_bytes"] > 0, f"{one['part']}: nothing was reached over the link")
    expect(not list(out.glob("*.part")), "a partial file stayed")


def own_files(folder):
    (folder / "own.csv").write_text("a,0,9000000,0,0\na,1,9000000,0,1\nf,0,9000000,0,2\n")
    source = folder / "xmm-demo-out" / "clustered-landscape.png"
    done = run(folder, "--quick", "--trace", "own.csv", "--picture", str(source), "--out", "other", "--json", "r.json",
               "--policy", "mapped", "--device-bytes", "8MiB", "--iterations", "2")
    expect(done.returncode == 0, f"own files: exit code {done.returncode}", done)
    expect(str(source) in done.stdout, "the picture is not named", done)
    expect(not (folder / "other" / "landscape.png").exists(), "a landscape was drawn")
    expect(json.loads((folder / "r.json").read_text())["runs"][-1]["device_bytes"] == 8 << 20, "--device-bytes")


def full_disk(folder):
    """The report is as it was where the disk is full: it is, from when the last picture is taken through a pipe."""
    out = folder / "full"
    out.mkdir()
    report = out / "report.json"
    report.write_text("old")
    os.mkfifo(out / "landscape.png")
    words = [PROGRAM, "--quick", "--trace", "own.csv", "--out", "full", "--policy", "mapped", "--iterations", "1", "--clusters", "2"]
    with subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, restore_signals=False) as running:  # SIGXFSZ stays ignored
        def read_picture():
            with open(out / "landscape.png", "rb") as pipe:
                resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (16, resource.RLIM_INFINITY))
                while pipe.read(1 << 16):
                    pass
        reader = threading.Thread(target=read_picture, daemon=True)
        reader.start()
        said = running.communicate(timeout=110)[1]
        reader.join(10)
    expect(report.read_text() == "old", "a full disk: the report of before is lost")
    expect(running.returncode == 1 and "report.json: cannot be written: File too large" in said, f"a full disk: {said}")
    expect(not list(out.glob("*.part")), "a full disk: a partial file stayed")


def png_chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def transparent_picture(folder):
    """Clusters of a picture with alpha are as many colours as asked for."""
    size = 64
    rows = b"".join(b"\0" + b"".join(bytes((x * 4, y * 4, 99, (x * y) % 256)) for x in range(size)) for y in range(size))
    (folder / "clear.v2.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 6, 0, 0, 0)) +
        png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b""))
    done = run(folder, "--quick", "--trace", "own.csv", "--picture", "clear.v2.png", "--out", "clear", "--policy", "mapped",
               "--clusters", "5", XMM_CONF="soft_bytes:lots")
    expect(done.returncode == 0, f"alpha: exit code {done.returncode}", done)
    expect("laid onto white" in done.stdout, "what becomes of alpha is not said", done)
    expect("soft_bytes not used" in done.stderr, "XMM_CONF is passed over in silence", done)
    expect((folder / "clear" / "heat-kmeans-clear.v2-mapped.png").exists(), "the heat map's name")
    width, _, rows = png_rows(folder / "clear" / "clustered-clear.v2.png")
    line = 1 + 3 * width
    expect(len(rows) == size * line and not any(rows[::line]), "an opaque picture without filters is expected")
    colours = {rows[y * line + 1 + 3 * x:y * line + 4 + 3 * x] for y in range(size) for x in range(size)}
    expect(1 < len(colours) <= 5, f"{len(colours)} colours of 5 clusters")


def bad_input(folder):
    packed = (TRACES / "opt13b_b8.csv.gz").read_bytes()
    picture = (folder / "xmm-demo-out" / "clustered-landscape.png").read_bytes()
    for name, data in {"cut.csv.gz": packed[:5000], "bad.csv": b"a,0,1,0,0\nb,1\n", "empty.csv": b"",
                       "twice.csv.gz": gzip.compress(b"a,0,1,0,0\na,0,1,0,0\n"), "cut.png": picture[:5000],
                       "text.png": b"no picture, a line of text"}.items():
        (folder / name).write_bytes(data)
    (folder / "linked").symlink_to("own.csv")
    os.link(folder / "clear.v2.png", folder / "hard")
    # What would be made of it has its name already.
    (folder / "pictures").mkdir()
    (folder / "pictures" / "clustered-big.png").write_bytes((folder / "clear.v2.png").read_bytes())
    (folder / "pictures" / "big.png").symlink_to("clustered-big.png")
    read = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    before = sorted(folder.rglob("*"))
    for words, reason in [(["--trace", "none.csv"], "no such trace"), (["--trace", "."], "is a folder"), (["--trace", "cut.csv.gz"], "cut short"),
                          (["--trace", "bad.csv"], "bad.csv:2: "), (["--trace", "empty.csv"], "no events"),
                          (["--trace", "twice.csv.gz"], "twice.csv.gz:2: "), (["--picture", "none.png"], "none.png: "),
                          (["--picture", "cut.png"], "cut.png: the picture is cut short"), (["--picture", "text.png"], "not a PNG"),
                          (["--policy", "no_such"], "there is no policy 'no_such'"),
                          (["--clusters", "0"], "--clusters"), (["--device-bytes", "3"], "2 MiB"),
                          (["--device-bytes", "-2097152"], "-2097152 is not a size"), (["--json", "nowhere/x.json"], "there is no folder nowhere"),
                          (["--json", "xmm-demo-out"], "xmm-demo-out: is a folder"), (["--json", "own.csv", "--trace", "own.csv"], "would be written over own.csv"),
                          (["--json", "linked", "--trace", "own.csv"], "linked: would be written over own.csv"),
                          (["--json", "hard", "--picture", "clear.v2.png"], "hard: would be written over clear.v2.png"),
                          (["--picture", "pictures/big.png", "--out", "pictures"], "clustered-big.png: would be written over pictures/big.png"), (["--nonsense"], "--help"),
                          (["--json", "pictures/landscape.png", "--out", "pictures"], "landscape.png: would be written over pictures/landscape.png, which is written too"),
                          (["--json", "pictures/heat-replay-opt13b_b8-mapped.png", "--out", "./pictures"], "which is written too"),
                          (["--out", "bad.csv"], "bad.csv: "), (["--out", "bad.csv/deep/er"], "bad.csv/deep/er: "),
                          (["--out", "/proc/none"], "/proc/none: cannot be made")]:
        done = run(folder, "--quick", *(words if "--out" in words else [*words, "--out", "untouched"]))
        expect(done.returncode == 1, f"{words}: exit code {done.returncode}", done)
        expect(reason in done.stderr, f"{words}: '{reason}' is not said", done)
        expect(sorted(folder.rglob("*")) == before, f"{words}: something was written")
        expect({path: path.read_bytes() for path in before if path.is_file()} == read, f"{words}: a file was changed")
    done = run(folder, "--help")
    expect(done.returncode == 0 and "--device-bytes" in done.stdout, "--help", done)


with tempfile.TemporaryDirectory() as name:
    quick_round(pathlib.Path(name))
    own_files(pathlib.Path(name))
    full_disk(pathlib.Path(name))
    transparent_picture(pathlib.Path(name))
    bad_input(pathlib.Path(name))
print("xmm-demo --quick: pictures, report and errors as they should be")
