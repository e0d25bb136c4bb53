#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads back what write_files wrote: as Python's pickle, json and csv read it, and as the viewers go over it.

check.py WRITE_FILES [XMM_REPLAY]
"""
import collections
import csv
import json
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import time

SEGMENT_FIELDS = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream",
                  "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"}
BLOCK_FIELDS = {"address", "size", "requested_size", "state", "frames"}
EVENT_FIELDS = {"action", "size", "stream", "time_us", "frames", "user_metadata", "compile_context"}
ACTIONS = {"alloc", "free_requested", "free_completed", "segment_map", "segment_unmap", "oom", "snapshot"}
TAGS = ["", "weights", "act\"ivations\\\n\ufffdé"]


def check(condition, *what):
    if not condition:
        sys.exit("check.py: " + " ".join(str(one) for one in what))


class PlainUnpickler(pickle.Unpickler):
    """Numbers, texts and containers only."""

    def find_class(self, module, name):
        sys.exit(f"check.py: the pickle names {module}.{name}")


def check_snapshot(path, facts):
    with open(path, "rb") as file:
        snapshot = PlainUnpickler(file).load()
        check(file.read() == b"", "bytes after the pickle")
    check(set(snapshot) == {"segments", "device_traces", "allocator_settings", "external_annotations"}, list(snapshot))
    settings = snapshot["allocator_settings"]
    check(settings["expandable_segments"] is True and settings["garbage_collection_threshold"] == 0.0, settings)
    check(settings["max_split_size"] == -1 and settings["roundup_power2_divisions"]["65536"] == 0, settings)
    check(len(snapshot["device_traces"]) == len(facts), "one trace a device")
    for device, known in enumerate(facts):
        segments = [one for one in snapshot["segments"] if one["device"] == device]
        trace = snapshot["device_traces"][device]
        check_segments(segments, known)
        check_trace(trace, known)
        go_back(segments, trace)
    check(len(snapshot["device_traces"][0]) > 1000, "too few events to see a batch end")
    used = {event["user_metadata"] for event in snapshot["device_traces"][0]}
    check(used == set(TAGS), used)


def check_segments(segments, known):
    sums = collections.Counter()
    for segment in segments:
        check(set(segment) == SEGMENT_FIELDS, list(segment))
        check(segment["segment_type"] in ("small", "large") and segment["is_expandable"] is True, segment)
        check(segment["segment_pool_id"][0] == 0 and len(segment["segment_pool_id"]) == 2, segment)
        address = segment["address"]
        of_state = collections.Counter()
        for block in segment["blocks"]:
            check(set(block) == BLOCK_FIELDS, list(block))
            check(block["address"] == address and block["size"] > 0, "a gap before", block)
            check(block["requested_size"] <= block["size"], block)
            address += block["size"]
            of_state[block["state"]] += block["size"]
            sums["requested"] += block["requested_size"]
            sums[block["state"]] += 1
        check(address == segment["address"] + segment["total_size"], "blocks do not fill their segment")
        check(set(of_state) <= {"active_allocated", "active_pending_free", "inactive"}, of_state)
        check(segment["allocated_size"] == of_state["active_allocated"], segment["address"])
        check(segment["active_size"] == of_state["active_allocated"] + of_state["active_pending_free"])
        sums["reserved"] += segment["total_size"]
        sums["requested of segments"] += segment["requested_size"]
    check(sums["reserved"] == known["reserved"], sums, known)
    check(sums["requested"] == sums["requested of segments"] == known["live"], sums, known)
    check(sums["active_allocated"] == known["alive"] and sums["active_pending_free"] == known["pending"], sums, known)


def check_trace(trace, known):
    check(len(trace) == known["events"], "events were left out of a sound trace")
    last = known["wall_us"]
    for event in trace:
        where = "device_free" if event["action"] == "oom" else "addr"
        check(set(event) == EVENT_FIELDS | {where}, list(event))
        check(event["action"] in ACTIONS and event["frames"] == [], event)
        check(event["time_us"] >= last, "time goes back")
        last = event["time_us"]
    check(abs(last / 1e6 - time.time()) < 600, "not the time of day")


def go_back(segments, trace):
    """Undoes the events from the last to the first, as PyTorch's viewer does to draw the past."""
    mapped = {}  # begin -> (end, stream)
    blocks = {}  # address -> whether the program let go of it
    for segment in segments:
        mapped[segment["address"]] = (segment["address"] + segment["total_size"], segment["stream"])
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                blocks[block["address"]] = block["state"] == "active_pending_free"

    def holder(at):
        return next((begin for begin, (end, _) in mapped.items() if begin <= at < end), None)

    for event in reversed(trace):
        action, at = event["action"], event.get("addr")
        if action == "alloc":
            check(holder(at) is not None, "a block outside of all segments", event)
            blocks.pop(at, None)
        elif action == "free_requested":
            check(blocks.get(at) is True, "no block to take back", event)
            blocks[at] = False
        elif action == "free_completed":
            check(holder(at) is not None, "a block outside of all segments", event)
            check(at not in blocks, "two blocks at one address", event)
            blocks[at] = True
        elif action == "segment_map":
            begin = holder(at)
            check(begin is not None and mapped[begin][0] >= at + event["size"], "no memory to take back", event)
            end, stream = mapped.pop(begin)
            if begin < at:
                mapped[begin] = (at, stream)
            if at + event["size"] < end:
                mapped[at + event["size"]] = (end, stream)
        elif action == "segment_unmap":
            begin, end, stream = at, at + event["size"], event["stream"]
            for other, (other_end, other_stream) in list(mapped.items()):
                check(other_end <= begin or end <= other, "mapped twice", event)
                if other_stream == stream and other_end == begin:
                    del mapped[other]
                    begin = other
                elif other_stream == stream and other == end:
                    del mapped[other]
                    end = other_end
            mapped[begin] = (end, stream)
    return mapped, blocks


def check_rmm(path, known):
    with open(path, newline="", encoding="ascii") as file:
        rows = list(csv.DictReader(file))
    check(list(rows[0]) == "Thread,Time,Action,Pointer,Size,Stream".split(","), rows[0])
    held, counts = {}, collections.Counter()
    for row in rows:
        check(re.fullmatch(r"\d+", row["Thread"]), row)
        check(re.fullmatch(r"[0-2]\d:[0-5]\d:[0-6]\d\.\d{6}", row["Time"]), row)
        check(re.fullmatch(r"0|0x[1-9a-f][0-9a-f]*", row["Stream"]), row)
        counts[row["Action"]] += 1
        if row["Action"] == "allocate failure":
            check(row["Pointer"] == "(nil)", row)
            continue
        pointer = int(row["Pointer"], 16)
        if row["Action"] == "allocate":
            check(re.fullmatch(r"0x[1-9a-f][0-9a-f]*", row["Pointer"]), row)
            held[pointer] = int(row["Size"])
        else:
            check(row["Action"] == "free", row)
            check(held.pop(pointer) == int(row["Size"]), "freed with another size", row)
    check(counts["allocate"] == known["allocations"], counts)
    check(counts["allocate failure"] == known["failures"] > 0, counts)
    check(len(held) == known["alive"], len(held))


def check_replay(path, known, is_whole):
    with open(path, encoding="ascii") as file:
        lines = [line.rstrip("\n") for line in file]
    check(lines[0].startswith("#") and lines[1] == "op,id,size,stream,us", lines[:2])
    sizes, live, peak, last, next_id, waits = {}, 0, 0, 0, 0, set()
    for line in lines[2:]:
        op, number, size, stream, us = line.split(",")
        number, size, stream, us = int(number), int(size), int(stream), int(us)
        check(us >= last, "time goes back", line)
        last = us
        if op == "a":
            check(number == next_id, "numbers are dense", line)
            next_id += 1
            sizes[number] = (size, stream)
            live += size
            peak = max(peak, live)
        elif op == "r":
            check(number in sizes and number not in waits, line)
            waits.add(number)
        else:
            check(op == "f" and sizes.pop(number) == (size, stream), line)
            waits.discard(number)
            live -= size
    check(live == known["live"] and len(waits) == known["pending"], live, len(waits), known)
    check({stream for _, stream in sizes.values()} <= {0, 1}, "streams are dense")
    if is_whole:
        check(peak == known["peak_live"] and next_id == known["allocations"], peak, next_id, known)
    else:
        # What is freed without its allocation has the size of the block, up to 511 bytes more.
        check(0 < known["lost"] and peak <= known["peak_live"] + 511 * next_id, peak, known)


def check_chrome(path, facts):
    with open(path, encoding="utf-8") as file:
        trace = json.load(file)
    check(trace["displayTimeUnit"] == "ns", trace["displayTimeUnit"])
    check(int(trace["otherData"]["xmm_events_lost"]) == sum(known["lost"] for known in facts))
    for node, known in enumerate(facts, start=1):
        events = [one for one in trace["traceEvents"] if one["pid"] == node]
        names = {one["args"]["name"] for one in events if one["ph"] == "M" and one["name"] == "process_name"}
        check(names == {f"xmm node {node}"}, names)
        curves, bars, marks = collections.defaultdict(list), {}, collections.Counter()
        last = 0
        for one in events:
            check(one["ts"] >= last and isinstance(one["tid"], int), "time goes back", one)
            last = one["ts"]
            if one["ph"] == "C":
                curves[one["name"]].append(one["args"]["bytes"])
            elif one["ph"] == "b":
                check(one["id"] not in bars and one["cat"] == "block", one)
                bars[one["id"]] = "open"
                check(one["args"].get("tag", "") in TAGS, one)
            elif one["ph"] in "ne":
                check(bars[one["id"]] == "open", one)
                bars[one["id"]] = "open" if one["ph"] == "n" else "closed"
            elif one["ph"] == "i":
                check(one["s"] in "tp", one)
                marks[one["name"]] += 1
            else:
                check(one["ph"] == "M", one)
        check(set(bars.values()) == {"closed"}, "a bar without an end")
        check(min(min(curve) for curve in curves.values()) >= 0, "a curve below zero")
        check(curves["live bytes"][-1] == known["live"], curves["live bytes"][-1], known)
        check(curves["reserved bytes"][-1] == known["reserved"], curves["reserved bytes"][-1], known)
        check(curves["bytes waiting for a queue"][-1] == known["pending_bytes"], node, known)
        if known["lost"] == 0:
            check(max(curves["live bytes"]) == known["peak_live"])
            check(max(curves["reserved bytes"]) == known["peak_reserved"])
            check(marks["out of memory"] == known["failures"], marks)


def check_read_by_replay(xmm_replay, work, known):
    """xmm-replay sees the same peaks in our own form and in PyTorch's; RMM's knows no work of queues after a free."""
    results = work / "results.json"
    subprocess.run([xmm_replay, "--quiet", "--allocators", "native-model", "--json", results, work / "replay.csv",
                    work / "snapshot.pickle", work / "rmm.csv"], check=True, stdout=subprocess.DEVNULL)
    peaks = {one["trace"]: one["peak_live_bytes"] for one in json.loads(results.read_text(encoding="utf-8"))}
    check(peaks["replay"] == peaks["snapshot.pickle:device0"] == known["peak_live"], peaks, known)
    check(0 < peaks["rmm"] <= known["peak_live"], peaks, known)


def main(write_files, xmm_replay=None):
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        subprocess.run([write_files, folder], check=True)
        facts = json.loads((work / "facts.json").read_text(encoding="ascii"))
        check_snapshot(work / "snapshot.pickle", facts)
        check_rmm(work / "rmm.csv", facts[0])
        check_replay(work / "replay.csv", facts[0], is_whole=True)
        check_replay(work / "replay2.csv", facts[1], is_whole=False)
        check_chrome(work / "trace.json", facts)
        if xmm_replay is not None:
            check_read_by_replay(xmm_replay, work, facts[0])
    print(f"{sum(known['events'] for known in facts)} events of {len(facts)} devices read back in 4 forms")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
