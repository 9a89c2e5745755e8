"""Many processes on one folder, where a rename is slow and not atomic."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from helpers.clocks import HANG_TIMEOUT
from helpers.processes import ROOT, environment_of_users
from nbrt.backends.code_store.entry import Entry
from nbrt.backends.code_store.store import CodeStore
from nbrt.config import override

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [f"{number:02x}" + "1" * 62 for number in range(4)]
SIZE = 5000
PROCESSES = 4

SLOW_RENAME = """
import os, sys
from nbrt.backends.code_store.entry import Entry
from nbrt.backends.code_store.store import CodeStore

def replace(source, destination):
    # As a network disk without atomic renames: a reader sees parts of the file.
    with open(source, "rb") as file:
        content = file.read()
    part = len(content) // pieces
    with open(destination, "wb", buffering=0) as file:
        for start in range(0, len(content), part):
            file.write(content[start : start + part])
            between()
    os.unlink(source)

def entry(number):
    sections = {"object": bytes([number]) * SIZE, "more": bytes([number])}
    return Entry("cpu", f"writer {number}", "", "any", sections=sections, created=1)

store = CodeStore("cpu")
os.replace = replace
"""

STEPS = """
pieces = 2
def between():
    print("part", flush=True)
    sys.stdin.readline()
print(store.put(KEYS[0], entry(1)), flush=True)
"""

ENDLESS = """
pieces = 40
def between():
    pass
turn = 0
while True:
    assert store.put(KEYS[turn % len(KEYS)], entry(int(sys.argv[1])))
    turn += 1
    if turn == len(KEYS):
        print("begun", flush=True)
"""

TRIM = """
print("ready", flush=True)
sys.stdin.readline()
store.trim()
"""

WRITERS = """
pieces = 40
def between():
    pass
number = int(sys.argv[1])
found = 0
for turn in range(40):
    key = KEYS[turn % len(KEYS)]
    assert store.put(key, entry(number))
    read = store.get(key)
    if read is not None:
        assert read == entry(read.sections["more"][0]), read
        found += 1
for each in store.entries():
    pass
print("done", found >= 0)
"""


def start(code: str, folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """Start a process that writes to a folder."""
    environment = {
        **environment_of_users(),
        "NBRT_CACHE_DIR": str(folder),
        "PYTHONPATH": str(ROOT),
        **variables,
    }
    given = f"KEYS, SIZE = {KEYS!r}, {SIZE}\n"
    return subprocess.Popen(
        [sys.executable, "-c", given + SLOW_RENAME + code, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def entry_of(number: int) -> Entry:
    sections = {"object": bytes([number]) * SIZE, "more": bytes([number])}
    return Entry("cpu", f"writer {number}", "", "any", sections=sections, created=1)


def test_a_reader_never_sees_a_part_of_a_file(root: Path) -> None:
    process = start(STEPS, root)
    assert process.stdin is not None
    assert process.stdout is not None
    store = CodeStore("cpu")
    try:
        lines = []
        while (line := process.stdout.readline().strip()) == "part":
            lines.append(store.get(KEYS[0]))
            process.stdin.write("\n")
            process.stdin.flush()
        assert line == "True", process.communicate()[1]
        # Each part but the last is not the file yet; the rest of a division may be a third part.
        assert lines[0] is None
        assert [each for each in lines if each is not None] in ([], [entry_of(1)])
        assert process.wait(HANG_TIMEOUT) == 0
    finally:
        process.kill()
        process.communicate()
    assert store.get(KEYS[0]) == entry_of(1)


def test_a_killed_writer_leaves_nothing_that_is_read(root: Path) -> None:
    process = start(STEPS, root)
    assert process.stdout is not None
    store = CodeStore("cpu")
    try:
        assert process.stdout.readline() == "part\n"
    finally:
        process.kill()
        process.communicate()
    (part,) = root.rglob("*.nbrtc")
    assert 0 < part.stat().st_size < SIZE
    assert store.get(KEYS[0]) is None
    assert list(store.entries()) == []
    (temporary,) = root.rglob("*.tmp")
    assert store.put(KEYS[0], entry_of(2))  # as after each miss
    assert store.get(KEYS[0]) == entry_of(2)
    os.utime(temporary, (temporary.stat().st_mtime - 7200,) * 2)
    store.trim()
    assert not temporary.exists()
    assert store.get(KEYS[0]) == entry_of(2)


def test_killed_writers_among_others(root: Path) -> None:
    processes = [start(ENDLESS, root, str(number)) for number in range(1, PROCESSES + 1)]
    store, writers = CodeStore("cpu"), [entry_of(number) for number in range(1, PROCESSES + 1)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        for process in processes:
            assert all(store.get(key) in (None, *writers) for key in KEYS)
            process.kill()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert all(store.get(key) in (None, *writers) for key in KEYS)
    for key in KEYS:
        assert store.put(key, entry_of(9))
        assert store.get(key) == entry_of(9)


def test_nodes_that_trim_at_once_keep_the_limit_and_the_latest_entry(root: Path) -> None:
    with override(cache_limit=0):
        for number in range(40):
            assert CodeStore("cpu").put(f"{number % 4:02x}{number:062x}", entry_of(number))
    size = next(root.rglob("*.nbrtc")).stat().st_size
    limit = 20 * size + size // 2
    latest = "02" + "0" * 62
    processes = [start(TRIM, root, NBRT_CACHE_LIMIT=str(limit)) for _ in range(PROCESSES)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        assert CodeStore("cpu").put(latest, entry_of(1))
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            assert process.communicate(timeout=HANG_TIMEOUT) == ("", "")
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    left = list(CodeStore("cpu").entries())
    assert len(left) == 20
    assert latest in {each.key for each in left}


@pytest.mark.parametrize("limit", ["0", "12000"])
def test_many_writers_and_readers_find_whole_entries_only(root: Path, limit: str) -> None:
    processes = [
        start(WRITERS, root, str(number), NBRT_CACHE_LIMIT=limit)
        for number in range(1, PROCESSES + 1)
    ]
    try:
        for process in processes:
            out, errors = process.communicate(timeout=HANG_TIMEOUT)
            assert (process.returncode, out) == (0, "done True\n"), errors
            assert errors == ""
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert not list(root.rglob("*.tmp"))
    store = CodeStore("cpu")
    writers = [entry_of(number) for number in range(1, PROCESSES + 1)]
    assert all(store.get(key) in (None, *writers) for key in KEYS)
    with override(cache_limit=0):
        assert store.put(KEYS[0], entry_of(9))
    assert store.get(KEYS[0]) == entry_of(9)
