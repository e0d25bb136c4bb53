#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads libxmm with ctypes, each time in a fresh Python: what it shows, what it leaves alone, what it shares.

from_python.py LIBXMM EMBEDDER XMM_H             all of them
from_python.py LIBXMM EMBEDDER XMM_H SCENARIO    one, in this process
"""
import ctypes
import json
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading

MIB = 1 << 20
SIZES = {"xmm_malloc": (ctypes.c_size_t, ctypes.c_int32, ctypes.c_void_p),
         "xmm_calloc": (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int32, ctypes.c_void_p),
         "xmm_realloc": (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_void_p),
         "xmm_free": (ctypes.c_void_p,), "xmm_free_on": (ctypes.c_void_p, ctypes.c_void_p),
         "xmm_usable_size": (ctypes.c_void_p,),
         "xmm_copy": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
         "xmm_queue_create": (ctypes.c_int32, ctypes.c_void_p), "xmm_queue_synchronize": (ctypes.c_void_p,),
         "xmm_queue_adopt": (ctypes.c_void_p, ctypes.c_void_p), "xmm_queue_forget": (ctypes.c_void_p,),
         "xmm_describe_queue": (ctypes.c_void_p, ctypes.c_void_p),
         "xmm_trace_start": (ctypes.c_int32, ctypes.c_size_t),
         "xmm_export": (ctypes.c_int32, ctypes.c_int32, ctypes.c_char_p),
         "xmm_statistics_text": (ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t),
         "xmm_tag_create": (ctypes.c_char_p, ctypes.c_void_p)}
RESULTS = {"xmm_malloc": ctypes.c_void_p, "xmm_calloc": ctypes.c_void_p, "xmm_realloc": ctypes.c_void_p,
           "xmm_usable_size": ctypes.c_size_t, "xmm_statistics_text": ctypes.c_size_t,
           "xmm_last_error": ctypes.c_char_p, "xmm_version_text": ctypes.c_char_p, "xmm_version": ctypes.c_uint32}
DEFAULT_NODE, ALL_DEVICES = -3, -4
OK, INVALID_ARGUMENT, FORKED = 0, 6, 8
SKIPPED = 77  # as an exit status


def check(condition, *what):
    if not condition:
        sys.exit("from_python.py: " + " ".join(str(one) for one in what))


def load(path):
    library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    for name, arguments in SIZES.items():
        getattr(library, name).argtypes = arguments
    for name, result in RESULTS.items():
        getattr(library, name).restype = result
    return library


def statistics(library, node=DEFAULT_NODE):
    text = ctypes.create_string_buffer(library.xmm_statistics_text(node, None, 0) + 4096)
    check(library.xmm_statistics_text(node, text, len(text)) > 0, library.xmm_last_error())
    return {name: int(value) for name, value in (line.split() for line in text.value.decode().splitlines())}


# ---- what is where in this process

class SymbolInfo(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                ("address", ctypes.c_void_p)]


class MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


def place_of(name):
    """(address, file) of what a name means to this process; None if it means nothing."""
    everything = ctypes.CDLL(None)
    try:
        address = ctypes.cast(getattr(everything, name), ctypes.c_void_p).value
    except AttributeError:
        return None
    found = SymbolInfo()
    check(everything.dladdr(ctypes.c_void_p(address), ctypes.byref(found)) != 0, name)
    return address, pathlib.Path(found.file.decode()).name


def bytes_of_malloc():
    everything = ctypes.CDLL(None)
    everything.mallinfo2.restype = MallInfo
    info = everything.mallinfo2()
    return info.uordblks + info.hblkhd


# ---- the scenarios

def shown(library_path, _, header):
    """The names in the header are the names that the library shows, and no others."""
    text = pathlib.Path(header).read_text(encoding="utf-8")
    declared = set(re.findall(r"\b(xmm_[a-z_]+)\(", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)))
    library = load(library_path)
    for name in declared:
        check(hasattr(library, name), name, "is declared, but not there")
    nm = shutil.which("nm")
    if nm is not None:
        listing = subprocess.run([nm, "-D", "--defined-only", library_path], check=True, capture_output=True,
                                 encoding="ascii").stdout
        names = {line.split()[2].split("@")[0] for line in listing.splitlines() if line.split()[1] != "A"}
        check(names == declared, "shown, but not declared, or the other way:", names ^ declared)
    macros = dict(re.findall(r"#define XMM_VERSION_(\w+) (\d+)", text))
    version = [int(macros[part]) for part in ("MAJOR", "MINOR", "PATCH")]
    check(library.xmm_version() == version[0] * 10000 + version[1] * 100 + version[2])
    check(library.xmm_version_text().decode() == ".".join(map(str, version)))


def malloc_untouched(library_path, _, __):
    """The process's malloc is the one that it was, and device memory does not come from it."""
    names = ["malloc", "free", "calloc", "realloc", "posix_memalign", "aligned_alloc", "malloc_usable_size", "mmap",
             "_Znwm", "_ZdlPv"]
    before = {name: place_of(name) for name in names}
    # A program that is not position-independent has stubs of its own for the C library's functions, and their addresses.
    check(before["malloc"][1].startswith(("libc.so", "python")), before)
    library = load(library_path)
    block = library.xmm_malloc(100 * MIB, DEFAULT_NODE, None)
    check(block is not None, library.xmm_last_error())
    small = [library.xmm_malloc(1000, DEFAULT_NODE, None) for _ in range(1000)]
    check(all(small), library.xmm_last_error())
    for name in names:
        after = place_of(name)
        check(after == before[name] or (before[name] is None and after[1].startswith("libstdc++")), name, after)
    start = bytes_of_malloc()
    more = library.xmm_malloc(64 * MIB, DEFAULT_NODE, None)
    many = [library.xmm_malloc(2000, DEFAULT_NODE, None) for _ in range(5000)]
    check(more is not None and all(many), library.xmm_last_error())
    check(bytes_of_malloc() - start < 4 * MIB, "device memory came from malloc:", bytes_of_malloc() - start)
    everything = ctypes.CDLL(None)
    everything.malloc.restype = ctypes.c_void_p
    everything.malloc_usable_size.argtypes = [ctypes.c_void_p]
    everything.malloc_usable_size.restype = ctypes.c_size_t
    start = bytes_of_malloc()
    usual = everything.malloc(32 * MIB)
    check(bytes_of_malloc() - start >= 31 * MIB, "malloc is not the C library's any more:", bytes_of_malloc() - start, usual)
    check(32 * MIB <= everything.malloc_usable_size(usual) < 33 * MIB)
    check(library.xmm_free(usual) != OK, "a pointer of malloc was taken for a block")
    everything.free.argtypes = [ctypes.c_void_p]
    everything.free(usual)
    for one in [block, more, *small, *many]:
        check(library.xmm_free(one) == OK, library.xmm_last_error())


def one_heap(library_path, embedder_path, _):
    """Two copies of libxmm and a library with xmm's headers inside: one heap, its blocks, queues and tags."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "libcopy.so"
        shutil.copy(os.path.realpath(library_path), copy)  # another file: the linker cannot tell that it is the same
        first, second = load(library_path), load(copy)
        embedder = ctypes.CDLL(embedder_path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    for name, result, arguments in (("embedder_malloc", ctypes.c_void_p, (ctypes.c_size_t, ctypes.c_int)),
                                    ("embedder_free", ctypes.c_int, (ctypes.c_void_p, ctypes.c_int)),
                                    ("embedder_blocks", ctypes.c_long, (ctypes.c_int,))):
        getattr(embedder, name).restype = result
        getattr(embedder, name).argtypes = arguments
    addresses = [ctypes.cast(one.xmm_malloc, ctypes.c_void_p).value for one in (first, second)]
    check(addresses[0] != addresses[1], "the linker took the copy for the library itself")

    node = ctypes.c_int32()
    check(first.xmm_queue_create(DEFAULT_NODE, None) != OK)
    count = ctypes.c_size_t()
    numbers = (ctypes.c_int32 * 16)()
    check(first.xmm_list_nodes(numbers, ctypes.c_size_t(16), ctypes.byref(count)) == OK, first.xmm_last_error())
    node = numbers[count.value - 1]  # the second device: only one of the libraries was ever asked about it
    blocks = [second.xmm_malloc(3 * MIB, node, None), second.xmm_malloc(100, node, None)]
    check(all(blocks), second.xmm_last_error())
    check(first.xmm_usable_size(blocks[0]) >= 3 * MIB, first.xmm_last_error())
    blocks += [embedder.embedder_malloc(5 * MIB, node), embedder.embedder_malloc(64, node)]
    check(all(blocks), "the embedder has no memory")
    check(embedder.embedder_blocks(node) == 4, embedder.embedder_blocks(node))
    check(statistics(first, node) == statistics(second, node))
    check(statistics(first, node)["allocation.all.current"] == 4)
    # Each gives back what another one allocated.
    check(embedder.embedder_free(blocks[0], node) == 0 and first.xmm_free(blocks[1]) == OK, first.xmm_last_error())
    check(second.xmm_free(blocks[2]) == OK and first.xmm_free(blocks[3]) == OK, first.xmm_last_error())
    check(embedder.embedder_blocks(node) == 0)

    queue = ctypes.c_void_p()
    check(first.xmm_queue_create(node, ctypes.byref(queue)) == OK, first.xmm_last_error())
    block = second.xmm_malloc(MIB, node, queue)
    check(block is not None and first.xmm_free_on(block, queue) == OK, second.xmm_last_error())
    check(second.xmm_queue_destroy(queue) == OK, second.xmm_last_error())
    check(first.xmm_queue_synchronize(queue) != OK)
    tags = [ctypes.c_uint32(), ctypes.c_uint32()]
    check(first.xmm_tag_create(b"shared", ctypes.byref(tags[0])) == OK)
    check(second.xmm_tag_create(b"shared", ctypes.byref(tags[1])) == OK and tags[0].value == tags[1].value > 0)


def many_threads(library_path, _, __):
    """Threads that come and go, each with a queue; ctypes lets go of Python's lock for each call."""
    library = load(library_path)
    wrong = []

    def work(seed):
        queue = ctypes.c_void_p()
        if library.xmm_queue_create(DEFAULT_NODE, ctypes.byref(queue)) != OK:
            wrong.append(library.xmm_last_error())
            return
        held = []
        for i in range(400):
            size = (seed * 7919 + i * 104729) % (200000 if i % 50 else 3 * MIB) + 1
            block = library.xmm_malloc(size, DEFAULT_NODE, queue if i % 3 else None)
            if block is None or library.xmm_usable_size(block) < size:
                wrong.append(library.xmm_last_error())
            held.append(block)
            if len(held) > 20 and library.xmm_free_on(held.pop(i % 20), queue) != OK:
                wrong.append(library.xmm_last_error())
        for block in held:
            if library.xmm_free(block) != OK:
                wrong.append(library.xmm_last_error())
        if library.xmm_queue_synchronize(queue) != OK or library.xmm_queue_destroy(queue) != OK:
            wrong.append(library.xmm_last_error())

    for _ in range(2):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    check(not wrong, len(wrong), wrong[:3])
    check(library.xmm_malloc(0, 12345, None) is None and b"node" in library.xmm_last_error())
    now = statistics(library)
    # A malloc that a queue's end falls into takes its block once more.
    given = now["allocation.all.allocated"]
    check(now["allocation.all.current"] == 0 and given == now["allocation.all.freed"], now)
    check(2 * 4 * 400 <= given <= 2 * 4 * 400 + 100, given)


def files(library_path, _, __):
    """What xmm_export writes is what its readers read."""
    library = load(library_path)
    check(library.xmm_trace_start(DEFAULT_NODE, 10000) == OK)
    blocks = [library.xmm_malloc(size, DEFAULT_NODE, None) for size in (100, 5000, 40000, 3 * MIB, 20 * MIB)]
    check(all(blocks), library.xmm_last_error())
    for block in blocks[1:3]:
        check(library.xmm_free(block) == OK)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for form, name in enumerate(("rmm.csv", "torch.pickle", "chrome.json", "replay.csv")):
            path = str(work / name).encode()
            check(library.xmm_export(DEFAULT_NODE, form, path) == OK, library.xmm_last_error())
        rows = (work / "rmm.csv").read_text(encoding="ascii").splitlines()
        check(rows[0] == "Thread,Time,Action,Pointer,Size,Stream" and len(rows) == 1 + 5 + 2, rows)
        replay = [row.split(",") for row in (work / "replay.csv").read_text(encoding="ascii").splitlines()[2:]]
        check([row[0] for row in replay] == ["a"] * 5 + ["f"] * 2, replay)
        check([int(row[2]) for row in replay[:5]] == [100, 5000, 40000, 3 * MIB, 20 * MIB], replay)
        events = json.loads((work / "chrome.json").read_text(encoding="utf-8"))["traceEvents"]
        check(sum(event["ph"] == "b" for event in events) == 5)
        with open(work / "torch.pickle", "rb") as file:
            snapshot = pickle.load(file)
        actions = [event["action"] for event in snapshot["device_traces"][0]]
        check(actions.count("alloc") == 5 and actions.count("free_completed") == 2, actions)
        alive = {block["address"]: block for segment in snapshot["segments"] for block in segment["blocks"]
                 if block["state"] == "active_allocated"}
        for index, size in ((0, 100), (3, 3 * MIB), (4, 20 * MIB)):
            check(alive.get(blocks[index], {}).get("requested_size") == size, index, alive)
        reserved = sum(segment["total_size"] for segment in snapshot["segments"])
        check(reserved == statistics(library)["reserved_bytes.all.current"], reserved)


class QueueDescription(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("node", ctypes.c_int32), ("is_adopted", ctypes.c_uint32),
                ("is_native", ctypes.c_uint32), ("native", ctypes.c_void_p)]


def adopted(library_path, _, __):
    """A stream of a CUDA program, adopted through two copies of libxmm, is one queue; blocks follow its order."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        driver = None
    if driver is None or driver.cuInit(0) != 0:
        print("skipped: there is no CUDA device")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "libcopy.so"
        shutil.copy(os.path.realpath(library_path), copy)
        first, second = load(library_path), load(copy)
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0)
    check(driver.cuCtxSetCurrent(context) == 0 and driver.cuStreamCreate(ctypes.byref(stream), 1) == 0)
    queues = [ctypes.c_void_p(), ctypes.c_void_p()]
    for library, queue in zip((first, second), queues):
        check(library.xmm_queue_adopt(stream, ctypes.byref(queue)) == OK, library.xmm_last_error())
    check(queues[0].value == queues[1].value is not None, queues)
    about = QueueDescription(struct_size=ctypes.sizeof(QueueDescription))
    check(second.xmm_describe_queue(queues[0], ctypes.byref(about)) == OK, second.xmm_last_error())
    check(about.native == stream.value and about.is_native == about.is_adopted == 1)
    driver.cuMemsetD8Async.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
    block = first.xmm_malloc(MIB, about.node, queues[0])
    check(block is not None and driver.cuMemsetD8Async(block, 5, MIB, stream) == 0, first.xmm_last_error())
    seen = ctypes.create_string_buffer(MIB)
    check(second.xmm_copy(seen, block, MIB, queues[0]) == OK, second.xmm_last_error())
    check(second.xmm_free(block) == OK and first.xmm_malloc(MIB, about.node, queues[0]) == block)
    check(driver.cuStreamSynchronize(stream) == 0 and seen.raw == b"\5" * MIB)
    check(first.xmm_free(block) == OK)
    check(first.xmm_queue_forget(queues[0]) == OK and second.xmm_queue_synchronize(queues[0]) == OK)
    check(second.xmm_queue_forget(queues[0]) == OK and first.xmm_queue_synchronize(queues[0]) == INVALID_ARGUMENT)
    check(driver.cuStreamDestroy_v2(stream) == 0)


def forked(library_path, _, __):
    """A forked child is refused, and its parent goes on."""
    library = load(library_path)
    block = library.xmm_malloc(MIB, DEFAULT_NODE, None)
    queue, other = ctypes.c_void_p(), ctypes.c_void_p()
    check(library.xmm_queue_create(DEFAULT_NODE, ctypes.byref(queue)) == OK, library.xmm_last_error())
    child = os.fork()
    if child == 0:
        refused = (library.xmm_malloc(10, DEFAULT_NODE, None) is None and library.xmm_last_status() == FORKED and
                   library.xmm_free(ctypes.c_void_p(block)) == FORKED and
                   library.xmm_queue_synchronize(queue) == FORKED and library.xmm_queue_destroy(queue) == FORKED and
                   library.xmm_queue_adopt(None, ctypes.byref(other)) == FORKED and
                   library.xmm_queue_forget(queue) == FORKED and
                   library.xmm_tag_create(b"late", ctypes.byref(ctypes.c_uint32())) == FORKED and
                   library.xmm_describe_queue(queue, ctypes.byref(QueueDescription())) == FORKED)
        os._exit(0 if refused else 1)
    check(os.waitpid(child, 0)[1] == 0, "the child was not refused")
    check(library.xmm_free(block) == OK and library.xmm_queue_destroy(queue) == OK, library.xmm_last_error())


def readme(library_path, _, header):
    """The README's programs: the Python one, also where there is no memory, and the first C one by the C compiler here."""
    text = (pathlib.Path(header).resolve().parent / "README.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1).replace("libxmm.so.0", str(pathlib.Path(library_path).resolve()))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    if "1 MiB of the device at 0x" not in done.stdout:
        sys.exit(f"the Python program of the README says {done.stdout!r}")
    done = subprocess.run([sys.executable, "-c", program.replace("1 << 20", "1 << 46")], capture_output=True, text=True, check=False)
    last = (done.stderr.splitlines() or [""])[-1]
    if done.returncode != 1 or not last.startswith("MemoryError: ") or not last[13:]:
        sys.exit(f"the Python program of the README, without memory: exit status {done.returncode}, {done.stderr}")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        print("skipped: there is no C compiler")
        return
    folder = pathlib.Path(header).resolve().parent
    source = re.search(r"```c\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL).group(1)
    with tempfile.TemporaryDirectory() as work:
        (pathlib.Path(work) / "program.c").write_text(source, encoding="utf-8")
        library = pathlib.Path(library_path).resolve()
        subprocess.run([compiler, "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", folder, "program.c",
                        library, f"-Wl,-rpath,{library.parent}", "-o", "program"], cwd=work, check=True)
        subprocess.run([pathlib.Path(work) / "program"], check=True)


SCENARIOS = [shown, malloc_untouched, one_heap, many_threads, files, adopted, forked, readme]


def main(library, embedder, header, scenario=None):
    if scenario is not None:
        next(one for one in SCENARIOS if one.__name__ == scenario)(library, embedder, header)
        return 0
    failed = skipped = 0
    for one in SCENARIOS:
        environment = {**os.environ, "XMM_CONF": "soft_devices:2,soft_bytes:268435456"}
        done = subprocess.run([sys.executable, __file__, library, embedder, header, one.__name__], env=environment,
                              timeout=60, check=False)
        outcome = {0: "passed", SKIPPED: "skipped"}.get(done.returncode, "FAILED")
        print(f"{one.__name__}: {outcome}", flush=True)
        failed += outcome == "FAILED"
        skipped += outcome == "skipped"
    print(f"{len(SCENARIOS) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
