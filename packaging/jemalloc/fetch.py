#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Brings the source of jemalloc into a folder of the build tree, and says where it is and which version.

fetch.py WORK_FOLDER [SOURCE]

SOURCE is a folder or a tarball that has it; without one the distribution's source package is taken. The
system's apt configuration usually lists no sources and is not touched: the lists, the cache and a copy of the
system's entries, turned into entries of sources, lie in WORK_FOLDER. apt checks the archive's signature and, by
it, the tarball. The distribution's own patches are left out: in the releases known they mend other processors
and systems only.

Prints two lines, folder and version, and exits with 0; else prints the reason and exits with 1. What was found
is kept, and a failure to reach the archive is not repeated within the hour.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import time

OLDEST = (5, 3, 0)
APT_SECONDS = 180
FAILURE_HOLDS_SECONDS = 3600


class Failure(Exception):
    """The source cannot be had; the text says why."""


def run(command, **options):
    try:
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, text=True, errors="replace", timeout=APT_SECONDS,
                              env={**os.environ, "LC_ALL": "C"}, **options)
    except FileNotFoundError:
        raise Failure(f"there is no {command[0]} here") from None
    except subprocess.TimeoutExpired:
        raise Failure(f"{command[0]} took longer than {APT_SECONDS} s") from None
    return done.returncode, done.stdout


# ---- the system's list of archives, as a list of sources ---------------------------------------------

def stanzas_of_sources(text):
    """The entries of a deb822 file, as dictionaries."""
    for block in re.split(r"\n[ \t]*\n", text):
        fields, last = {}, None
        for line in block.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            if line[0] in " \t" and last:
                fields[last] += "\n" + line
            elif ":" in line:
                last, value = line.split(":", 1)
                last = last.strip().title()
                fields[last] = value.strip()
        if "Uris" in fields:
            yield fields


def stanzas_of_list(text):
    """The entries of a one-line-style file, as the same dictionaries."""
    for line in text.splitlines():
        found = re.match(r"\s*(deb|deb-src)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)([^#]*)", line)
        if not found:
            continue
        kind, options, uri, suite, components = found.groups()
        fields = {"Types": kind, "Uris": uri, "Suites": suite, "Components": components.strip()}
        for option in (options or "").split():
            name, _, value = option.partition("=")
            if name.lower() == "signed-by" and value:
                fields["Signed-By"] = value.replace(",", " ")
        yield fields


def system_entries():
    code, said = run(["apt-config", "shell", "LIST", "Dir::Etc::sourcelist/f", "PARTS", "Dir::Etc::sourceparts/d"])
    if code != 0:
        raise Failure("apt-config does not say where the system's archives are listed")
    places = dict(re.findall(r"^(\w+)='(.*)'$", said, re.MULTILINE))
    files = [pathlib.Path(places.get("LIST", "/etc/apt/sources.list"))]
    parts = pathlib.Path(places.get("PARTS", "/etc/apt/sources.list.d"))
    if parts.is_dir():
        files += sorted(path for path in parts.iterdir() if path.suffix in (".list", ".sources"))
    for path in files:
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for entry in (stanzas_of_sources if path.suffix == ".sources" else stanzas_of_list)(text):
            is_off = entry.get("Enabled", "yes").lower() in ("no", "false", "0", "off", "without", "disable")
            if not is_off and "deb" in entry.get("Types", "").split():
                yield entry


def origins_of_package():
    """Where the binary package comes from, as (uri, suite, component); empty where apt has no lists yet."""
    found = set()
    for line in run(["apt-cache", "madison", "libjemalloc2"])[1].splitlines():
        where = line.split("|")[-1].split()
        if len(where) >= 3 and "/" in where[1] and where[-1] == "Packages":
            suite, component = where[1].rsplit("/", 1)
            found.add((where[0].rstrip("/"), suite, component))
    return found


def as_sources(entries, origins):
    """Entries of sources for the archives of the system, where it is known only the one with the package."""
    made = []
    for entry in entries:
        uris = entry["Uris"].split()
        suites, components = entry.get("Suites", "").split(), entry.get("Components", "").split()
        if origins:
            hits = [o for o in origins if o[0] in {u.rstrip("/") for u in uris} and o[1] in suites
                    and o[2] in components]
            if not hits:
                continue
            suites = sorted({o[1] for o in hits})
            components = sorted({o[2] for o in hits})
        lines = ["Types: deb-src", f"URIs: {' '.join(uris)}", f"Suites: {' '.join(suites)}",
                 f"Components: {' '.join(components)}"]
        if "Signed-By" in entry:
            lines.append(f"Signed-By: {entry['Signed-By']}")
        made.append("\n".join(lines) + "\n")
    return made


def from_archive(work):
    """The path of the source package's tarball, which apt has checked."""
    entries = list(system_entries())
    sources = as_sources(entries, origins_of_package()) or as_sources(entries, set())
    if not sources:
        raise Failure("apt's configuration names no archive")
    apt = work / "apt"
    shutil.rmtree(apt, ignore_errors=True)
    for folder in ("lists/partial", "cache/archives/partial", "parts", "download"):
        (apt / folder).mkdir(parents=True)
    (apt / "parts/xmm.sources").write_text("\n".join(sources), encoding="utf-8")
    options = []
    for option in (f"Dir::Etc::SourceList={os.devnull}", f"Dir::Etc::SourceParts={apt / 'parts'}",
                   f"Dir::State::lists={apt / 'lists'}", f"Dir::Cache={apt / 'cache'}",
                   "Acquire::Retries=1", "Acquire::http::Timeout=20", "Acquire::https::Timeout=20",
                   "Acquire::Languages=none"):
        options += ["-o", option]
    try:
        code, said = run(["apt-get", "-q", *options, "update"])
        if code == 0:  # also where it reached nothing: then it only warns
            code, more = run(["apt-get", "-q", *options, "source", "--download-only", "--only-source", "jemalloc"],
                             cwd=apt / "download")
            said += more
        found = sorted((apt / "download").glob("jemalloc_*.orig.tar.*"))
        found = [path for path in found if path.suffix != ".asc"]
        if code != 0 or not found:
            complaints = [line for kind in ("W: Failed", "E:", "W:") for line in said.splitlines()
                          if line.startswith(kind)]
            raise Failure("the distribution's source package cannot be had: " +
                          (complaints[0] if complaints else "apt-get did not say why"))
        return pathlib.Path(shutil.move(found[0], work / found[0].name))
    finally:
        shutil.rmtree(apt, ignore_errors=True)


# ---- unpacking -----------------------------------------------------------------------------------------

def unpack(tarball, into):
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    try:
        with tarfile.open(tarball) as archive:
            for member in archive.getmembers():
                target = (into / member.name).resolve()
                if into.resolve() not in (target, *target.parents) or not (member.isfile() or member.isdir()):
                    continue  # links and what would lie elsewhere: the source has none that it needs
                archive.extract(member, into)
    except (OSError, tarfile.TarError) as error:
        raise Failure(f"{tarball} cannot be unpacked: {error}") from None


def source_in(folder):
    """The folder itself, or the only folder in it, that looks like jemalloc's source."""
    for candidate in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        if (candidate / "configure.ac").is_file() and (candidate / "src/jemalloc.c").is_file():
            return candidate
    raise Failure(f"{folder} has no source of jemalloc")


def version_of(source):
    found = re.search(r"^\* (\d+)\.(\d+)\.(\d+)", (source / "ChangeLog").read_text(
        encoding="utf-8", errors="replace"), re.MULTILINE) if (source / "ChangeLog").is_file() else None
    if not found:
        raise Failure(f"{source} does not say its version")
    version = tuple(int(part) for part in found.groups())
    if version < OLDEST:
        raise Failure(f"jemalloc {'.'.join(found.groups())} is too old: its metadata would lie in device memory")
    return ".".join(found.groups())


def state_of(given):
    """What shows that a source that was named has changed: when it was written last, and how much there is."""
    if not given:
        return []
    path = pathlib.Path(given).expanduser()
    files = [one for one in path.rglob("*") if ".git" not in one.relative_to(path).parts] if path.is_dir() else [path]
    written = [one.lstat() for one in files if one.suffix != ".o" and (one.is_file() or one.is_symlink())]
    return [max((one.st_mtime_ns for one in written), default=0), len(written), sum(one.st_size for one in written)]


def fetched(work, given):
    unpacked = work / "source"
    if given:
        path = pathlib.Path(given).expanduser().resolve()
        if path.is_dir():
            shutil.rmtree(unpacked, ignore_errors=True)
            shutil.copytree(source_in(path), unpacked, symlinks=True,
                            ignore=shutil.ignore_patterns(".git", "*.o"))
        elif path.is_file():
            unpack(path, unpacked)
        else:
            raise Failure(f"there is no {path}")
    else:
        tarball = from_archive(work)
        unpack(tarball, unpacked)
        tarball.unlink()
    source = source_in(unpacked)
    return str(source), version_of(source)


def main(work, given=""):
    work = pathlib.Path(work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    stamp = work / "fetched.json"
    known = json.loads(stamp.read_text(encoding="utf-8")) if stamp.is_file() else {}
    state = state_of(given)
    if known.get("given") == given and known.get("state") == state:
        if "source" in known and pathlib.Path(known["source"]).is_dir():
            print(known["source"], known["version"], sep="\n")
            return 0
        if not given and time.time() - known.get("failed_at", 0) < FAILURE_HOLDS_SECONDS:
            print(known["reason"])
            return 1
    outcome = {"given": given, "state": state}
    try:
        for tool in ("make", *(() if given and pathlib.Path(given, "configure").is_file() else ("autoconf",))):
            if shutil.which(tool) is None:
                print(f"there is no {tool} here; its package has the same name")
                return 1
        outcome["source"], outcome["version"] = fetched(work, given)
        print(outcome["source"], outcome["version"], sep="\n")
        return 0
    except Failure as failure:
        outcome.update(reason=str(failure), failed_at=time.time())
        print(failure)
        return 1
    finally:
        if len(outcome) > 2:
            stamp.write_text(json.dumps(outcome), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
