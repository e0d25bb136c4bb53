#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs xmm-replay over traces of each form and bad input, and looks at what it prints and leaves.

cli.py XMM_REPLAY
"""
import gzip
import json
import os
import pathlib
import pickle
import resource
import struct
import subprocess
import sys
import tempfile
import threading

PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
TRACES = pathlib.Path(__file__).resolve().parents[2] / "traces"
FIELDS = {"trace": str, "allocator": str, "events": int, "peak_live_bytes": int, "peak_reserved_bytes": int,
          "ratio": float, "driver_calls": int, "driver_us": float, "frames_moved": int, "ns_per_event": float}
MODELS = ["native-model", "expandable-model"]


def run(folder, *words):
    return subprocess.run([PROGRAM, *map(str, words)], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=110)


def expect(condition, what, done=None):
    if not condition:
        if done is not None:
            print(done.stdout + done.stderr)
        sys.exit(f"cli.py: {what}")


def allocators(folder):
    """Those that this build has, as --help names them."""
    done = run(folder, "--allocators", "?")
    expect(done.returncode == 2 and "known are " in done.stderr, "--allocators ?", done)
    names = done.stderr.split("known are ")[1].strip().split(", ")
    expect(set(MODELS) <= set(names), f"allocators {names}")
    return names


def a_trace():
    """Events as (op, id, size, stream, us): a few blocks, two streams."""
    out, us = [], 0
    for i in range(40):
        us += 100
        out.append(("a", i, (i * 7 % 13 + 1) * 700_001, i % 2, us))
        if i >= 8:
            out.append(("f", i - 8, ((i - 8) * 7 % 13 + 1) * 700_001, i % 2, us + 5))
    return out


def as_csv(events):
    return "".join(f"{op},{i},{size},{stream},{us}\n" for op, i, size, stream, us in events)


def as_rmm(events):
    names = {"a": "allocate", "f": "free"}
    return "Thread,Time,Action,Pointer,Size,Stream\n" + "".join(
        f"7,00:00:00.{us:06},{names[op]},0x{(i + 1) * 4096:x},{size},0x{stream:x}\n" for op, i, size, stream, us in events)


def as_snapshot(events, protocol):
    names = {"a": "alloc", "f": "free_completed"}
    trace = [{"action": names[op], "addr": 0x7F0000000000 + i * 4096, "size": size, "stream": stream,
              "time_us": 1_700_000_000_000_000 + us, "compile_context": "N/A", "user_metadata": "", "frames": []}
             for op, i, size, stream, us in events]
    return pickle.dumps({"segments": [], "device_traces": [[], trace], "allocator_settings": {"x": 1.5, "y": (True, None)},
                         "external_annotations": []}, protocol=protocol)


def three_forms(folder):
    """The same allocations give the same figures whatever file they are in."""
    events = a_trace()
    (folder / "form.csv").write_text(as_csv(events))
    (folder / "form-rmm.log").write_text(as_rmm(events))
    (folder / "form-rmm.gz").write_bytes(gzip.compress(as_rmm(events).encode()))
    files = ["form.csv", "form-rmm.log", "form-rmm.gz"]
    for protocol in range(2, min(pickle.HIGHEST_PROTOCOL, 5) + 1):
        name = f"form-{protocol}.pickle"
        (folder / name).write_bytes(as_snapshot(events, protocol))
        files.append(name)
    (folder / "form.bin").write_bytes(gzip.compress(as_snapshot(events, 4)))
    files.append("form.bin")
    done = run(folder, *files, "--json", "forms.json")
    expect(done.returncode == 0, f"forms: exit status {done.returncode}", done)
    results = json.loads((folder / "forms.json").read_text())
    names = allocators(folder)
    expect(len(results) == len(files) * len(names), "forms: a result for each trace and allocator")
    for name in names:
        own = [one for one in results if one["allocator"] == name]
        expect([one["file"] for one in own] == files, "forms: the order of the files")
        for key in FIELDS.keys() - {"trace", "ns_per_event"}:
            expect(len({str(one[key]) for one in own}) == 1, f"forms: {key} differs for {name}")
        expect(own[0]["events"] == len(events) and own[0]["streams"] == 2, "forms: events")
        expect(own[0]["duration_us"] == events[-1][4] - events[0][4], "forms: duration")


def json_fields(folder):
    done = run(folder, TRACES / "vit_l.csv.gz", TRACES / "opt13b_b8.csv.gz", "--json", "one.json", "--plot", "one.png")
    expect(done.returncode == 0, f"exit status {done.returncode}", done)
    expect(done.stderr == "", "something on the error stream, though it is no terminal", done)
    results = json.loads((folder / "one.json").read_text())
    for one in results:
        for key, kind in FIELDS.items():
            expect(isinstance(one.get(key), kind) or kind is float and isinstance(one.get(key), int), f"field {key}: {one.get(key)}")
        expect(abs(one["ratio"] - one["peak_reserved_bytes"] / one["peak_live_bytes"]) < 1e-9, "ratio")
        expect(abs(one["driver_us"] - one["move_us"] - one["wait_us"] - one["beyond_peak_us"]) < 1e-6 * max(one["driver_us"], 1), "driver_us")
        expect(one["trace"] in ("vit_l", "opt13b_b8") and one["trace"] in done.stdout, "trace")
        expect(one["allocator"] in done.stdout, "allocator")
        expect(one["ns_per_event"] > 0 and one["driver_calls"] > 0 and one["first_creation_us"] > 0, "figures")
    expect({one["trace"] for one in results} == {"vit_l", "opt13b_b8"}, "traces")
    data = (folder / "one.png").read_bytes()
    expect(data[:8] == b"\x89PNG\r\n\x1a\n", "no PNG")
    width, height = struct.unpack(">II", data[16:24])
    expect(width > 800 and height > 500, f"PNG of {width} x {height}")
    # The same in any order and with any number of threads.
    again = run(folder, "opt13b_b8", "vit_l", "--jobs", "1", "--json", "two.json")
    expect(again.returncode == 0, "again", again)

    def figures(path):
        return {(one["trace"], one["allocator"]): {k: v for k, v in one.items() if k not in ("ns_per_event", "file")}
                for one in json.loads((folder / path).read_text())}
    expect(figures("one.json") == figures("two.json"), "results depend on the order of the runs")


def options(folder):
    only = run(folder, "form.csv", "--allocators", "expandable-model", "--json", "o.json")
    expect([one["allocator"] for one in json.loads((folder / "o.json").read_text())] == ["expandable-model"], "--allocators", only)
    idle = json.loads((folder / "o.json").read_text())[0]
    run(folder, "form.csv", "--allocators", "expandable-model", "--prices", "loaded", "--json", "o.json")
    loaded = json.loads((folder / "o.json").read_text())[0]
    expect(loaded["create_us"] > idle["create_us"] and loaded["driver_calls"] == idle["driver_calls"], "--prices loaded")
    (folder / "p.json").write_text('{"create": 1000, "map": 0, "set_access": {"2": 0, "32": 0}}')
    run(folder, "form.csv", "--allocators", "expandable-model", "--prices", "p.json", "--json", "o.json")
    own = json.loads((folder / "o.json").read_text())[0]
    expect(own["create_us"] % 1000 < 1e-6 and own["create_us"] > 0, "--prices FILE")
    measured = run(folder, "form.csv", "--backend", "soft", "--prices", "measured", "--json", "o.json")
    expect(measured.returncode == 0, "--prices measured", measured)
    expect(all(one["create_us"] > 0 for one in json.loads((folder / "o.json").read_text())), "--prices measured")
    small = run(folder, "form.csv", "--device-bytes", "4MiB", "--json", "o.json")
    expect(small.returncode == 1 and "none left at event" in small.stdout, "--device-bytes", small)
    expect(all("out_of_memory_at" in one for one in json.loads((folder / "o.json").read_text())), "out_of_memory_at")
    made = run(folder, "--generate", "tiny,steps:7", "form.csv", "--save", "made", "--json", "o.json")
    expect(made.returncode == 0 and "form" in made.stdout and (folder / "made" / "steps-7.csv").exists(), "--generate", made)
    first = [one for one in json.loads((folder / "o.json").read_text()) if one["trace"] != "form"]
    again = run(folder, "made", "--json", "o.json")
    expect(again.returncode == 0, "made-up loads read back", again)
    second = json.loads((folder / "o.json").read_text())
    key = lambda one: (one["peak_reserved_bytes"], one["allocator"], one["events"], one["driver_calls"])
    expect(sorted(map(key, first)) == sorted(map(key, second)), "a made-up load differs when read back")


def few_threads(folder):
    """Where not all threads can be had, the others do the work: a stack here is a third of the addresses."""
    def limit():
        resource.setrlimit(resource.RLIMIT_STACK, (4 << 30, resource.getrlimit(resource.RLIMIT_STACK)[1]))
        resource.setrlimit(resource.RLIMIT_AS, (12 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    if subprocess.run([PROGRAM, "--help"], preexec_fn=limit, stdin=subprocess.DEVNULL, capture_output=True, timeout=110).returncode != 0:
        print("skipped: too few threads: a sanitizer needs address space of its own")
        return
    done = subprocess.run([PROGRAM, "form.csv", "--generate", "tiny,steps:7", "--allocators", ",".join(MODELS), "--jobs", "4"], cwd=folder,
                          preexec_fn=limit, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=110)
    expect(done.returncode == 0 and "form" in done.stdout, "with too few threads", done)


def where_it_is_told(folder):
    """A link leads to the file that is written, a file keeps its mode, and a pipe stays one."""
    inside = folder / "kinds"
    inside.mkdir()
    (inside / "file").write_text("old")
    (inside / "file").chmod(0o640)
    (inside / "link").symlink_to("file")
    (inside / "loose").symlink_to("later")
    for name in ["link", "loose"]:
        done = run(folder, "form.csv", "--json", f"kinds/{name}")
        expect(done.returncode == 0, f"--json to the link {name}", done)
        expect((inside / name).is_symlink() and json.loads((inside / name).read_text()), f"{name} is not followed")
    expect((inside / "file").stat().st_mode & 0o777 == 0o640, "the mode of a file is lost")
    os.mkfifo(inside / "pipe")
    got = []
    reader = threading.Thread(target=lambda: got.append((inside / "pipe").read_text()), daemon=True)
    reader.start()
    done = run(folder, "form.csv", "--json", "kinds/pipe")
    reader.join(10)
    expect(done.returncode == 0 and (inside / "pipe").is_fifo() and got and json.loads(got[0]), "--json to a pipe", done)
    expect(len(list(inside.iterdir())) == 5, "something is left beside the files")
    with open(inside / "file", "w") as out:
        done = subprocess.run([PROGRAM, "form.csv", "--json", "/dev/stdout"], cwd=folder, stdin=subprocess.DEVNULL, stdout=out,
                              stderr=subprocess.PIPE, text=True, timeout=110)
    expect(done.returncode == 2 and "a file that this program has open" in done.stderr, f"--json to the standard output, a file: {done.stderr}")
    full = run(folder, "form.csv", "--json", "/dev/full")
    expect(full.returncode == 2 and "No space left" in full.stderr, "--json to a device that is full", full)


def beside(folder):
    """What others have put beside an output stays: neither a link is followed nor a file taken, also one that is read."""
    inside = folder / "shared"
    inside.mkdir()
    (inside / "victim").write_text("mine")
    trace = (folder / "form.csv").read_bytes()
    (inside / "q.json.part").symlink_to("victim")
    (inside / "q.png.part").symlink_to("nothing")
    (inside / "o.json.part").write_bytes(trace)
    done = run(inside, "o.json.part", "--json", "q.json", "--plot", "q.png")
    expect(done.returncode == 0 and json.loads((inside / "q.json").read_text()), "a link beside --json", done)
    done = run(inside, "o.json.part", "--json", "o.json")
    expect(done.returncode == 0 and json.loads((inside / "o.json").read_text()), "a file beside --json", done)
    expect((inside / "victim").read_text() == "mine" and not (inside / "nothing").exists(), "a link beside an output was followed")
    expect((inside / "o.json.part").read_bytes() == trace, "a file beside an output was changed")
    expect(not any((inside / name).is_symlink() for name in ("q.json", "q.png", "o.json")), "an output has become a link")
    expect((inside / "q.json.part").is_symlink() and len(list(inside.iterdir())) == 7, "other files than the outputs")


def full_disk(folder):
    """An output that cannot be written to its end is as it was."""
    inside = folder / "full"
    inside.mkdir()
    outputs = [inside / "o.json", inside / "o.png"]
    for path in outputs:
        path.write_text("old")
    for option, path in zip(("--json", "--plot"), outputs):
        done = subprocess.run([PROGRAM, "../form.csv", option, path.name], cwd=inside, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=110, restore_signals=False,  # SIGXFSZ stays ignored
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY)))
        expect(done.returncode == 2 and f"{path.name}: cannot be written" in done.stderr, f"{option} on a full disk", done)
        expect([one.read_text() for one in outputs] == ["old", "old"] and len(list(inside.iterdir())) == 2, f"{option}: not as before", done)


def read_and_written(folder):
    """Nothing that is read is written over, by whatever name; a pipe may be read."""
    inside = folder / "same"
    inside.mkdir()
    trace = (folder / "form.csv").read_bytes()
    run(inside, "--generate", "tiny", "--save", ".", "--allocators", "native-model")
    saved = (inside / "tiny-1.csv").read_bytes()
    (inside / "t.csv").write_bytes(trace)
    (inside / "p.json").write_text('{"create": 5}')
    (inside / "link").symlink_to("t.csv")
    os.link(inside / "t.csv", inside / "hard")
    before = {path: path.read_bytes() for path in inside.iterdir()}
    for words in [["t.csv", "--json", "t.csv"], ["t.csv", "--json", "link"], ["t.csv", "--plot", "hard"], ["link", "--json", "./t.csv"],
                  ["link", "--plot", "hard"], ["t.csv", "--prices", "p.json", "--json", "../same/p.json"],
                  ["tiny-1.csv", "--generate", "tiny", "--save", "."]]:
        done = run(inside, *words)
        expect(done.returncode == 2 and "would be written over" in done.stderr and done.stdout == "", f"{words}", done)
        expect({path: path.read_bytes() for path in inside.iterdir()} == before, f"{words}: a file was changed")
    with open(inside / "t.csv") as stream:
        done = subprocess.run([PROGRAM, "/dev/stdin", "--json", "hard"], cwd=inside, stdin=stream, capture_output=True, text=True, timeout=110)
    expect(done.returncode == 2 and "hard: would be written over /dev/stdin" in done.stderr, "the standard input", done)
    expect((inside / "tiny-1.csv").read_bytes() == saved and (inside / "t.csv").read_bytes() == trace, "an input was changed")
    done = subprocess.run([PROGRAM, "/dev/stdin", "--allocators", "native-model"], cwd=inside, input=trace, capture_output=True, timeout=110)
    expect(done.returncode == 0 and b"native-model" in done.stdout, "a trace through a pipe")


def written_twice(folder):
    """No output is written over another one, by whatever name; nothing has changed then."""
    inside = folder / "twice"
    (inside / "down").mkdir(parents=True)
    (inside / "there").write_text("old")
    (inside / "link").symlink_to("there")
    (inside / "loose").symlink_to("later")
    (inside / "same").symlink_to("down")
    before = sorted(inside.rglob("*"))
    load = ["--generate", "tiny", "--allocators", "native-model"]
    for words in [["--json", "o", "--plot", "o"], ["--json", "o", "--plot", "./down/../o"], ["--json", "there", "--plot", "link"],
                  ["--json", "loose", "--plot", "later"], ["--json", "down/o", "--plot", "same/o"], ["--json", inside / "o", "--plot", "o"],
                  ["--save", "down", "--json", "same/tiny-1.csv"], ["--save", "same", "--plot", "down/tiny-1.csv"],
                  ["--save", "new", "--json", "new"], ["--save", "new/", "--plot", "./new"]]:
        done = run(inside, *load, *words)
        expect(done.returncode == 2 and "which is written too" in done.stderr and done.stdout == "", f"{words}", done)
        expect(sorted(inside.rglob("*")) == before and (inside / "there").read_text() == "old", f"{words}: a file was changed")
    os.link(inside / "there", inside / "hard")
    for words in [["--json", "there", "--plot", "hard"], ["--json", "/dev/null", "--plot", "/dev/null"], ["--json", "o", "--plot", "down/o", "--save", "."]]:
        done = run(inside, *load, *words)
        expect(done.returncode == 0, f"{words}: outputs that differ", done)
    expect(json.loads((inside / "there").read_text()) and (inside / "hard").read_bytes()[:4] == b"\x89PNG", "hard links part")


def shared_lists(folder):
    """A small snapshot that names one list again and again takes neither memory nor time."""
    def event(what):
        return {"action": what, "addr": 4096, "size": 100, "stream": 0, "time_us": 1}
    pair, block = [event("alloc"), event("free_completed")], {"size": 8, "state": "active_allocated"}
    segments = [{"device": 0, "address": 1 << 20, "blocks": [block] * 30000}] * 30000
    bound = "more entries, segments and blocks than the file has bytes"

    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    for what, reason in [({"segments": [], "device_traces": [pair * 50000] * 128}, bound),
                         ({"segments": [], "device_traces": [pair] * 129}, "of 129 devices: more than 128"),
                         ({"segments": segments, "device_traces": [pair]}, bound)]:
        (folder / "shared.pickle").write_bytes(pickle.dumps(what, protocol=2))
        done = subprocess.run([PROGRAM, "shared.pickle"], cwd=folder, preexec_fn=limit, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=110)
        expect(done.returncode == 2 and reason in done.stderr, f"shared lists: '{reason}' is not said", done)
    (folder / "shared.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [pair * 50000]}, protocol=2))
    done = run(folder, "shared.pickle", "--allocators", "native-model")
    expect(done.returncode == 0, "a list that is long by itself", done)


def bad_input(folder):
    packed = (TRACES / "opt13b_b8.csv.gz").read_bytes()
    snapshot = as_snapshot(a_trace(), 4)
    for name, data in {"cut.csv.gz": packed[:5000], "bad.csv": b"a,0,1,0,0\nb,1,1,1,1\n", "empty.csv": b"",
                       "cut.pickle": snapshot[:-10], "code.pickle": pickle.dumps(pathlib.PurePosixPath("x")),
                       "no.pickle": pickle.dumps([1, 2, 3]), "bad.log": b"Thread,Time,Action,Pointer,Size,Stream\n1,x,free,0x1,1,0\n",
                       "zip.pickle": b"PK\x03\x04" + bytes(50), "keep.json": b"[]"}.items():
        (folder / name).write_bytes(data)
    (folder / "empty").mkdir()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    outputs = ["--json", "keep.json", "--plot", "none.png"]
    for words, reasons in [(["none.csv"], ["none.csv: no such trace"]), (["cut.csv.gz"], ["cut.csv.gz: after ", "cut short"]),
                           (["bad.csv"], ["bad.csv:2: unknown operation 'b'"]), (["empty.csv"], ["empty.csv: is empty"]),
                           (["cut.pickle"], ["cut.pickle: byte ", "cut short"]), (["code.pickle"], ["code.pickle: byte ", "only plain data"]),
                           (["no.pickle"], ["no device_traces"]), (["bad.log"], ["bad.log:2: time 'x'"]), (["zip.pickle"], ["pickle.dump"]),
                           (["form.csv", "bad.csv", "bad.log"], ["bad.csv:2: ", "bad.log:2: "]), (["empty"], ["no trace in this folder"]),
                           (["form.csv", "form.csv"], ["named twice"]), (["form.csv", "--allocators", "malloc"], ["there is no 'malloc'"]),
                           (["form.csv", "--allocators", "native-model,native-model"], ["named twice"]),
                           (["form.csv", "--backend", "metal"], ["there is no 'metal'"]), (["form.csv", "--prices", "none"], ["none: cannot be opened"]),
                           (["form.csv", "--prices", "bad.csv"], ["bad.csv: not a JSON object"]), (["form.csv", "--prices", "measured"], ["no calls to measure"]),
                           (["--generate", "noise"], ["no load 'noise'"]), (["form.csv", "--save", "x"], ["nothing to save"]),
                           (["form.csv", "--jobs", "0"], ["--jobs"]), (["form.csv", "--scale", "nan"], ["--scale: not a number"]),
                           (["form.csv", "--scale=-nan"], ["--scale"]), (["form.csv", "--device-bytes", "-1"], ["--device-bytes", "-1 is not a size"]),
                           (["form.csv", "--device-bytes= -4096"], ["--device-bytes"]),
                           (["form.csv", "--device-bytes", "99999999999999999999"], ["--device-bytes: more than"]),
                           (["form.csv", "--device-bytes", "99999999999999999999GiB"], ["--device-bytes"]), (["/dev/zero"], ["/dev/zero: is a device"]),
                           (["form.csv", "--prices", "/dev/zero"], ["/dev/zero: is a device"]),
                           (["form.csv", "--nonsense"], ["--help"])]:
        done = run(folder, *words, *outputs)
        expect(done.returncode == 2, f"{words}: exit status {done.returncode}", done)
        for reason in reasons:
            expect(reason in done.stderr, f"{words}: '{reason}' is not said", done)
        expect(done.stdout == "", f"{words}: something is printed", done)
        after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        expect(after == before, f"{words}: a file was changed")
    for words in [["--json", "nowhere/o.json"], ["--json", "empty"], ["--plot", "/proc/none/x.png"]]:
        done = run(folder, "form.csv", *words)
        expect(done.returncode == 2 and words[1] in done.stderr and done.stdout == "", f"{words}", done)
    done = run(folder, "--help")
    expect(done.returncode == 0 and "--allocators" in done.stdout, "--help", done)


with tempfile.TemporaryDirectory() as name:
    three_forms(pathlib.Path(name))
    json_fields(pathlib.Path(name))
    options(pathlib.Path(name))
    few_threads(pathlib.Path(name))
    where_it_is_told(pathlib.Path(name))
    beside(pathlib.Path(name))
    full_disk(pathlib.Path(name))
    read_and_written(pathlib.Path(name))
    written_twice(pathlib.Path(name))
    shared_lists(pathlib.Path(name))
    bad_input(pathlib.Path(name))
print("xmm-replay: forms, fields, options and errors as they should be")
