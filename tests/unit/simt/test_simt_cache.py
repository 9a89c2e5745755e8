"""Compiled kernels on disk: found by another process, missed when their meaning changes."""

from __future__ import annotations

import json
from collections import namedtuple
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda
from numba.core import config as numba_config

from helpers.fork_server import ForkServer
from helpers.processes import output_of
from nbrt.backends.code_store.store import CodeStore
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.runtime.inspection import CpuCode
from nbrt.backends.cpu.simt.target import simt_target
from nbrt.backends.fingerprint import UnhashableError, fingerprint
from nbrt.config import override

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = """
import json, sys
import numpy as np
from numba import cuda
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.frontend.pipeline import ThreadDispatcher
import settings

FACTOR = {factor}

@cuda.jit(device=True)
def inner(a):
    return a {operator} 2

@cuda.jit(device=True)
def helper(a):
    return inner(a) * FACTOR

def make(shift):
    table = np.array([{table}, 1.0])
    def kernel(x, n):
        i = cuda.grid(1)
        if i < n:
            x[i] = helper(i) + shift + table[0] + settings.OFFSET
    return kernel

compiled = 0
real = ThreadDispatcher.result
def counting(self, arguments):
    global compiled
    compiled += 1
    return real(self, arguments)
ThreadDispatcher.result = counting

x = np.zeros(6)
CpuProgram(make({shift})).plan(0, (2, 1, 1), ({block}, 1, 1))(x, 6)
print(json.dumps([bool(compiled), x.tolist()]))
"""

BASE = {"factor": 10, "operator": "+", "table": 0.25, "shift": 1, "block": 3}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("NBRT_CACHE_DIR", str(tmp_path / "cache"))  # for other processes
    with override(cache_dir=str(tmp_path / "cache")):
        yield tmp_path


@pytest.fixture(scope="module", name="processes")
def start_processes() -> Iterator[ForkServer]:
    """Processes that have compiled nothing yet."""
    with ForkServer() as server:
        yield server


class Runs:
    """Runs the module, each time in a new process.

    Parameters
    ----------
    processes : ForkServer
        Makes the processes.
    folder : Path
        Where the module lies.
    """

    def __init__(self, processes: ForkServer, folder: Path) -> None:
        self._processes = processes
        self._folder = folder

    def __call__(self, offset: int = 0, **changes: Any) -> tuple[bool, list[float]]:
        """Run the module; return whether it compiled, and its values."""
        (self._folder / "settings.py").write_text(f"OFFSET = {offset}\n")
        program = self._folder / "program.py"
        program.write_text(MODULE.format(**{**BASE, **changes}))
        said = self._processes.output_of(program, environment=cache_in(self._folder))
        compiled, values = json.loads(said)
        return compiled, values


@pytest.fixture
def run(processes: ForkServer, folder: Path) -> Runs:
    """Runs the module in new processes."""
    return Runs(processes, folder)


def cache_in(folder: Path) -> dict[str, str]:
    return {"NBRT_CACHE_DIR": str(folder / "cache")}


def files(folder: Path) -> list[Path]:
    return sorted((folder / "cache").rglob("*.*"))


def test_another_process_finds_it_and_every_change_misses(run: Runs) -> None:
    plain = [(i + 2) * 10 + 1.25 for i in range(6)]
    assert run() == (True, plain)
    assert run() == (False, plain)
    assert run(factor=20) == (True, [(i + 2) * 20 + 1.25 for i in range(6)])
    assert run(operator="-") == (True, [(i - 2) * 10 + 1.25 for i in range(6)])
    assert run(table=0.5) == (True, [(i + 2) * 10 + 1.5 for i in range(6)])
    assert run(shift=2) == (True, [(i + 2) * 10 + 2.25 for i in range(6)])
    assert run(offset=5) == (True, [(i + 2) * 10 + 6.25 for i in range(6)])
    assert run(block=4)[0]
    assert run() == (False, plain)


def test_damaged_files_are_compiled_over(folder: Path, run: Runs) -> None:
    _, expected = run()
    (file,) = files(folder)
    good = file.read_bytes()
    for damaged in (
        b"",
        good[:100],
        good[:-1],
        good[:40] + bytes([good[40] ^ 1]) + good[41:],
        b"\x80" * 5000,
    ):
        file.write_bytes(damaged)
        assert run() == (True, expected)
        assert file.read_bytes() != damaged
    assert run() == (False, expected)


@pytest.mark.parametrize("kind", ["a file in the way", "no permission", "a folder for a file"])
def test_an_unusable_folder_is_no_error(folder: Path, kind: str, run: Runs) -> None:
    cache = folder / "cache"
    if kind == "a file in the way":
        cache.write_text("not a folder")
    elif kind == "no permission":
        cache.mkdir()
        cache.chmod(0o500)
    else:
        run()
        for file in cache.rglob("*.nbrtc"):
            file.unlink()
            file.mkdir()
    assert run()[1] == [(i + 2) * 10 + 1.25 for i in range(6)]


def test_nothing_is_left_beside_the_kept_files(folder: Path, run: Runs) -> None:
    run()
    assert [file.suffix for file in files(folder)] == [".nbrtc"]


def test_the_cache_can_be_switched_off(folder: Path) -> None:
    def kernel(x: Any) -> None:
        x[cuda.grid(1)] = 1

    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (4, 1, 1))(np.zeros(4))
    assert files(folder) == []
    CpuProgram(kernel).plan(0, (1, 1, 1), (4, 1, 1))(np.zeros(4))
    assert len(files(folder)) == 1


def test_options_of_the_compiler_are_part_of_the_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(x: Any) -> None:
        x[cuda.grid(1)] = 1

    for option in ("LOOP_VECTORIZE", None, "BOUNDSCHECK"):
        with monkeypatch.context() as changes:
            if option is not None:
                changes.setattr(numba_config, option, 1 - bool(getattr(numba_config, option)))
            CpuProgram(kernel).plan(0, (1, 1, 1), (4, 1, 1))(np.zeros(4))
    assert len(files(folder)) == 3


def test_exceptions_survive_the_disk(folder: Path) -> None:
    def kernel(x: Any) -> None:
        if x[0] == 0:
            raise ValueError("zero")

    for _ in range(2):
        plan = CpuProgram(kernel).plan(0, (1, 1, 1), (1, 1, 1))
        with pytest.raises(ValueError, match="zero"):
            plan(np.zeros(1))
    assert len(files(folder)) == 1


def test_loaded_kernels_can_be_looked_into(folder: Path) -> None:
    def kernel(x: Any) -> None:
        x[cuda.grid(1)] = 1

    for _ in range(2):
        plan = CpuProgram(kernel).plan(0, (1, 1, 1), (4, 1, 1))
        plan(np.zeros(4))
        assert "define" in CpuCode(kernel, (np.zeros(4),), (4, 1, 1)).llvm


TALKING = """
import sys
import numpy as np
from numba import cuda
from nbrt.backends.cpu.launch import CpuProgram

@cuda.jit(device=True)
def next_of(i):
    print("after", i)
    return i + 1

def kernel(x):
    i = cuda.grid(1)
    if i == 2:
        print("thread", i, "of", x.size, x[i])
        x[i] = next_of(i)
        raise ValueError("two", 2)

def other(x):
    x[0] = next_of(41)

x = np.array([0.0, 0.0, 0.5, 0.0])
try:
    CpuProgram(kernel).plan(0, (1, 1, 1), (4, 1, 1))(x)
except ValueError as error:
    print(error.args, x)
CpuProgram(other).plan(0, (1, 1, 1), (4, 1, 1))(x[3:])
names = ("frontend.pipeline", "builtins", "codegen.lowering", "runtime.diagnostics")
loaded = [name for name in names if f"nbrt.backends.cpu.simt.{name}" in sys.modules]
print(loaded, "numba.np.arraymath" in sys.modules)
"""


def test_loaded_kernels_print_and_raise_without_the_compiler(folder: Path) -> None:
    program = folder / "talking.py"
    program.write_text(TALKING)
    run_it = f"import runpy\nrunpy.run_path({str(program)!r}, run_name='__main__')"
    said = "thread 2 of 4 0.5\nafter 2\n('two', 2) [0. 0. 3. 0.]\n" + "after 41\n" * 4
    first, second = (output_of(run_it, environment=cache_in(folder)) for _ in range(2))
    assert first.startswith(said)
    assert second == said + "[] False\n"


NAMESAKES = """
import sys
import numpy as np
import nbrt
from numba import cuda

def make(value):
    def kernel(x):
        x[cuda.grid(1)] = value
        if x[0] < 0:
            raise ValueError(value)
    return nbrt.kernel(kernel)

kernels = [make(value) for value in map(int, sys.argv[1:])]
arrays = [nbrt.zeros(4) for _ in kernels]
for kernel, x in zip(kernels, arrays):
    kernel[1, 4](x)
print([nbrt.to_host(x).tolist()[0] for x in arrays])
with nbrt.graph() as g:
    for kernel, x in zip(kernels, arrays):
        kernel[1, 4](x)
for x in arrays:
    x[...] = 0
g.replay()
print([nbrt.to_host(x).tolist()[0] for x in arrays])
"""


def test_code_of_one_name_from_several_processes_stays_apart(
    folder: Path, processes: ForkServer
) -> None:
    # Each process numbers its functions from zero, so these kernels have the same symbols.
    program = folder / "namesakes.py"
    program.write_text(NAMESAKES)

    def say(*values: int) -> str:
        return processes.output_of(program, list(map(str, values)), cache_in(folder))

    for value in (1, 2, 3):
        assert say(value) == f"[{value}.0]\n" * 2
    assert say(1, 2, 3) == "[1.0, 2.0, 3.0]\n" * 2
    assert say(4, 1, 2, 3) == "[4.0, 1.0, 2.0, 3.0]\n" * 2
    # LLVM resolves a call of a function that it has not inlined by its name.
    with override(cache_dir=cache_in(folder)["NBRT_CACHE_DIR"]):
        store = CodeStore("cpu")
        entries = [store.get(entry.key) for entry in store.entries()]
    assert len({entry.data["function"][1] for entry in entries if entry is not None}) == 4


def test_symbols_differ_between_processes() -> None:
    code = """if True:
        import os
        from nbrt.backends.cpu.simt.target import simt_target
        mangler = simt_target.target_context.mangler
        print(mangler("f", ()), flush=True)
        if child := os.fork():
            os.waitpid(child, 0)
            print(mangler("f", ()), flush=True)
        else:
            print(mangler("f", ()), flush=True)
            os._exit(0)
    """
    here, forked, again = output_of(code).split()
    assert here == again
    assert len({here, forked, simt_target.target_context.mangler("f", ())}) == 3


LOADING = """
import pickle
import numpy as np
from numba import cuda
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.runtime.cache import KernelCache

real, unpicklers = KernelCache.load, ("load", "loads", "Unpickler")

def refuse(*args, **options):
    raise SystemExit("unpickled")

def load(*args):
    before = [getattr(pickle, name) for name in unpicklers]
    for name in unpicklers:
        setattr(pickle, name, refuse)
    result = real(*args)
    for name, function in zip(unpicklers, before):
        setattr(pickle, name, function)
    print(result is not None)
    return result

KernelCache.load = load

def kernel(x):
    print("of", x.size)
    if x[0] > 0:
        raise ValueError("positive", 3)

CpuProgram(kernel).plan(0, (1, 1, 1), (1, 1, 1))(np.zeros(1))
"""


def test_loading_unpickles_nothing(folder: Path, processes: ForkServer) -> None:
    program = folder / "loading.py"
    program.write_text(LOADING)
    for is_loaded in (False, True):
        said = processes.output_of(program, environment=cache_in(folder))
        assert said == f"{is_loaded}\nof 1\n"


# -- fingerprints ----------------------------------------------------------------------------


def test_what_cannot_be_hashed_is_not_kept() -> None:
    class Anything:
        value = 3

    thing = Anything()

    def plain_helper() -> None: ...

    objects = np.array([None])

    def uses_thing(x: Any) -> None:
        x[0] = thing

    def uses_function(x: Any) -> None:
        plain_helper()

    def uses_objects(x: Any) -> None:
        x[0] = objects[0]

    for kernel in (uses_thing, uses_function, uses_objects):
        with pytest.raises(UnhashableError):
            fingerprint(kernel)


@pytest.mark.parametrize("is_nested", [False, True])
def test_named_tuples_with_other_fields_are_other_types(is_nested: bool) -> None:
    def kernel(x: Any, pair: Any) -> None:
        x[0] = 1

    def key(fields: str) -> str | None:
        pair = namedtuple("Pair", fields)(1, 2)
        entry = CpuProgram(kernel).entry((1, 1, 1))
        return entry.key(entry.types_of((np.zeros(1), (pair,) if is_nested else pair)))

    assert key("x y") == key("x y")
    assert len({key("x y"), key("y x"), None}) == 3


def test_recursion_ends() -> None:
    scope: dict[str, Any] = {"cuda": cuda}
    exec(
        "@cuda.jit(device=True)\ndef f(n):\n    return g(n - 1) if n > 0 else 0\n"
        "@cuda.jit(device=True)\ndef g(n):\n    return f(n - 1) + 1\n",
        {**scope, "__name__": __name__},
        scope,
    )
    scope["f"].py_func.__globals__.update(scope)
    assert fingerprint(scope["f"].py_func) != fingerprint(scope["g"].py_func)


def test_the_place_counts_only_where_something_is_raised() -> None:
    text = "def kernel(x):\n    x[0] = 1\n"
    raising = "def kernel(x):\n    if x[0]: raise ValueError\n"

    def made(source: str, name: str) -> Any:
        scope: dict[str, Any] = {"__name__": "made"}
        exec(compile(source, name, "exec"), scope)
        return fingerprint(scope["kernel"])

    assert made(text, "one") == made("\n\n" + text, "two")
    assert made(raising, "one") != made("\n\n" + raising, "one")
    assert made(raising, "one") != made(raising, "two")


def test_values_that_print_alike_are_told_apart() -> None:
    def made(value: Any) -> bytes:
        def kernel(x: Any) -> None:
            x[0] = value

        return fingerprint(kernel)

    a = np.arange(6.0)
    values = [
        1, 1.0, True, "1", b"1", np.int32(1), np.int64(1), (1,), a, a.reshape(2, 3),
        a.reshape(3, 2), a.astype("f4"), a + 1, np.asfortranarray(a.reshape(2, 3)), -0.0, 0.0,
        np.float32, np.float64, np.dtype("f4"), cuda.grid, cuda.gridsize, None,
    ]  # fmt: skip
    assert len({made(value) for value in values}) == len(values)
