"""`release_tracebacks`: references of the interpreter to a failed call, and those that remain."""

from __future__ import annotations

import code
import contextlib
import io
import sys
from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from nbrt.errors import NotSupportedError
from nbrt.observe.leaks.tracebacks import held_by_tracebacks, hint_after_errors, release_tracebacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEVICE = nbrt.Device("cpu", 3)
BIG = 4 << 20
SOURCE = f"""
import nbrt

kept = nbrt.empty({BIG}, "uint8", device="cpu:3")


def fail(given, name):
    big = {{"all": [nbrt.empty({BIG}, "uint8", device="cpu:3")]}}
    raise ValueError(name)


def fail_twice(given):
    try:
        fail(given, "first")
    except ValueError as error:
        big = nbrt.empty({BIG}, "uint8", device="cpu:3")
        raise KeyError("second") from error


def fail_in_group(given):
    caught = []
    for name in "ab":
        try:
            fail(given, name)
        except ValueError as error:
            caught.append(error)
    raise ExceptionGroup("both", caught)


def succeed():
    return nbrt.empty({BIG}, "uint8", device="cpu:3")
"""


@pytest.fixture(autouse=True)
def nothing_is_kept_before_or_after() -> Iterator[None]:
    release_tracebacks()
    yield
    release_tracebacks()


@pytest.fixture
def interpret() -> Callable[[str], None]:
    """Run a line in a plain interactive interpreter, whose complaints are dropped."""
    interpreter = code.InteractiveInterpreter({"__name__": "__console__"})

    def run(source: str) -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            interpreter.runcode(compile(source, "<console>", "exec"))

    run(SOURCE)
    return run


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A running IPython."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shells = pytest.importorskip("IPython.core.interactiveshell", reason="IPython is not installed")
    # What IPython replaces is put back at the end.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    shells.InteractiveShell.clear_instance()
    running = shells.InteractiveShell.instance()
    running.run_cell(SOURCE, store_history=True)
    yield running
    hint_after_errors(False)
    running.reset(new_session=False)
    running.history_manager.end_session()
    shells.InteractiveShell.clear_instance()


def fill(shell: Any, source: str) -> None:
    """Run a cell, and drop what it prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        shell.run_cell(source, store_history=True)


@pytest.mark.parametrize(
    ("call", "blocks"),
    [("fail(kept, 'x')", 1), ("fail_twice(kept)", 2), ("fail_in_group(kept)", 2)],
)
def test_a_plain_interpreter(interpret: Callable[[str], None], call: str, blocks: int) -> None:
    before = nbrt.memory_allocated(DEVICE)
    interpret(call)
    assert nbrt.memory_allocated(DEVICE) == before + blocks * BIG
    assert held_by_tracebacks() == {DEVICE: blocks * BIG}
    assert release_tracebacks() == {DEVICE: blocks * BIG}
    assert nbrt.memory_allocated(DEVICE) == before
    assert held_by_tracebacks() == release_tracebacks() == {}
    assert not any(hasattr(sys, name) for name in ("last_value", "last_traceback", "last_exc"))


def test_what_the_program_reaches_as_well_is_not_counted(
    interpret: Callable[[str], None],
) -> None:
    interpret("def show(given):\n    1 / 0\nshow([kept])")
    assert held_by_tracebacks() == {}
    interpret("show([nbrt.empty(100, device='cpu:3')])")
    assert held_by_tracebacks() == {DEVICE: 448}


def test_asking_makes_nothing_live_longer(interpret: Callable[[str], None]) -> None:
    before = nbrt.memory_allocated(DEVICE)
    interpret("fail(kept, 'x')")
    assert held_by_tracebacks() == {DEVICE: BIG}
    interpret("1 / 0")  # takes the place of the last exception
    assert nbrt.memory_allocated(DEVICE) == before


def test_running_functions_keep_their_variables() -> None:
    mine = nbrt.zeros(10, device=DEVICE)
    try:
        raise ValueError(mine.size)
    except ValueError as error:
        sys.last_value = error
        sys.last_traceback = error.__traceback__
    release_tracebacks()
    assert mine.size == 10


def test_ipython(shell: Any) -> None:
    before = nbrt.memory_allocated(DEVICE)
    fill(shell, "fail_twice(kept)")
    assert held_by_tracebacks() == {DEVICE: 2 * BIG}
    assert release_tracebacks() == {DEVICE: 2 * BIG}
    assert nbrt.memory_allocated(DEVICE) == before
    assert held_by_tracebacks() == {}


def test_results_of_cells_stay_unless_asked_for(shell: Any) -> None:
    before = nbrt.memory_allocated(DEVICE)
    fill(shell, "succeed()")
    fill(shell, "fail(kept, 'x')")
    assert release_tracebacks() == {DEVICE: BIG}
    assert shell.user_ns["Out"]
    assert nbrt.memory_allocated(DEVICE) == before + BIG
    assert release_tracebacks(outputs=True) == {DEVICE: BIG}
    assert shell.user_ns["_"] == ""
    assert shell.user_ns["kept"].nbytes == BIG


def test_the_hint(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fill(shell, "fail(kept, 'x')")
    assert "holds" not in capsys.readouterr().err
    hint_after_errors()
    hint_after_errors()
    fill(shell, "succeed();")
    fill(shell, "1 / 0")
    assert capsys.readouterr().err == ""
    fill(shell, "fail(kept, 'x')")
    text = capsys.readouterr().err
    assert text.count("holds 4.0 MiB on cpu:3; nbrt.memory.release_tracebacks() frees it") == 1
    hint_after_errors(False)
    fill(shell, "fail(kept, 'x')")
    assert capsys.readouterr().err == ""


def test_hints_need_ipython(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)
    with pytest.raises(NotSupportedError, match="release_tracebacks"):
        hint_after_errors()


def test_proxies_are_not_asked_what_they_stand_for(interpret: Callable[[str], None]) -> None:
    class Proxy:
        @property
        def __class__(self) -> Any:
            raise RuntimeError("there is nothing here")

    interpret("fail(given, 'x')")
    held = held_by_tracebacks()
    sys.last_value.__traceback__.tb_frame.f_globals["proxy"] = Proxy()  # type: ignore[union-attr]
    assert held_by_tracebacks() == held


def test_results_of_cells_are_called_out(shell: Any) -> None:
    shell.run_cell("small = [[nbrt.zeros(1)] for _ in range(300)]")
    shell.run_cell("nbrt.zeros(123457)", store_history=True)
    shell.run_cell("held = nbrt.memory.live_arrays()", store_history=True)
    (result,) = shell.user_ns["Out"].values()  # `_` is set only where it is no builtin
    address = result.ctypes.data
    (holders,) = [each.holders for each in shell.user_ns["held"] if each.address == address]
    assert len(holders) == 1, holders
    name = holders[0]
    assert name.startswith("Out[")
    assert "release_tracebacks(outputs=True)" in name
