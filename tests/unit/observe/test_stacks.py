"""Stacks: each distinct stack once, correct lines, cells by number."""

from __future__ import annotations

import subprocess
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from nbrt.observe.history.stacks import MAX_FRAMES, StackTable

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from nbrt._internal.callsite import CallSite


def taken(table: StackTable) -> CallSite:
    return table.here()


def nested(table: StackTable, levels: int) -> CallSite:
    return table.here() if levels == 0 else nested(table, levels - 1)


def test_frames_are_those_python_reports() -> None:
    table = StackTable()
    site, reported = taken(table), traceback.extract_stack()
    frames = site.frames()
    assert [frame["name"] for frame in frames[:2]] == [
        "taken",
        "test_frames_are_those_python_reports",
    ]
    assert frames[0]["line"] == taken.__code__.co_firstlineno + 1
    theirs = [(frame.filename, frame.lineno, frame.name) for frame in reversed(reported)]
    ours = [(frame["filename"], frame["line"], frame["name"]) for frame in frames[1:]]
    assert ours == theirs[: len(ours)]


def test_equal_stacks_are_one_object_and_others_are_not() -> None:
    table = StackTable()
    same = {id(taken(table)) for _ in range(100)}
    assert len(same) == 1
    first, second = taken(table), taken(table)  # two instructions of one line
    assert first is not second
    assert nested(table, 3) is not nested(table, 4)


def test_one_function_from_two_callers_is_two_stacks() -> None:
    table = StackTable()

    def left() -> CallSite:
        return taken(table)

    def right() -> CallSite:
        return taken(table)

    for _ in range(50):
        assert [call().frames()[1]["name"] for call in (left, right)] == ["left", "right"]


def test_code_that_is_made_anew_is_never_taken_for_what_was_at_its_address() -> None:
    table = StackTable()
    for number in range(300):
        scope: dict[str, object] = {"table": table}
        text = "\n" * number + "def made():\n    return table.here()\n"
        exec(compile(text, f"made-{number}", "exec"), scope)
        site = scope["made"]()  # type: ignore[operator]  # a function
        assert site.frames()[0] == {
            "filename": f"made-{number}",
            "line": number + 2,
            "name": "made",
        }


def test_deep_stacks_are_cut_at_the_outer_end() -> None:
    table = StackTable()
    site = nested(table, 200)
    frames = site.frames()
    assert MAX_FRAMES - 2 <= len(frames) <= MAX_FRAMES
    assert {frame["name"] for frame in frames} == {"nested"}


def test_references_are_given_back() -> None:
    table = StackTable()
    code = taken.__code__
    counts = []
    for _ in range(1000):
        taken(table)
        counts.append(sys.getrefcount(code))
    assert counts[0] == counts[-1]


def test_every_thread_sees_its_own_stack() -> None:
    table = StackTable()
    found: dict[int, set[str]] = {}
    gate = threading.Barrier(4)

    def work(number: int) -> None:
        gate.wait()
        names: set[str] = set()
        for _ in range(300):
            names.add(nested(table, number).frames()[number + 1]["name"])
        found[number] = names

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: {"work"} for number in range(4)}


def test_a_table_that_is_full_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbrt.observe.history.stacks._MAX_STACKS", 8)
    table = StackTable()
    sites = [nested(table, levels) for levels in range(20)]
    assert len(table) <= 8
    depths = [sum(frame["name"] == "nested" for frame in site.frames()) for site in sites]
    assert depths == list(range(1, 21))


_CELLS = """
from IPython.core.interactiveshell import InteractiveShell
from ipykernel.compiler import XCachingCompiler

shell = InteractiveShell.instance(compiler_class=XCachingCompiler)
for text in (
    "from nbrt.observe.history.stacks import StackTable\\ntable = StackTable()\\nsites = []",
    "def made():\\n    return table.here()",
    "x = 1\\nsites.append(made())",
    "x = 1\\nsites.append(made())",
):
    shell.run_cell(text, store_history=True)
for site in shell.user_ns["sites"]:
    print([(frame["filename"], frame["line"], frame["name"]) for frame in site.frames()])
"""


def test_cells_are_named_by_their_numbers_also_when_one_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", _CELLS], capture_output=True, text=True, check=True, timeout=120
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[(")]
    assert lines == [
        "[('Cell [2]', 2, 'made'), ('Cell [3]', 2, '<module>')]",
        "[('Cell [2]', 2, 'made'), ('Cell [4]', 2, '<module>')]",
    ]
