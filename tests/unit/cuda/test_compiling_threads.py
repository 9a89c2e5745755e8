"""Threads that compile and load kernels at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nbrt.backends.cuda.launch import CudaProgram
from nbrt.backends.cuda.numba_compiler import NumbaCudaCompiler
from nbrt.errors import CompileError

if TYPE_CHECKING:
    from nbrt.backends.cuda.backend import CudaInterface

THREADS = 4


class Gate:
    """numba-cuda's compiler lock, at which all threads arrive before the first may take it."""

    def __init__(self, threads: int) -> None:
        self._together = threading.Barrier(threads, timeout=30)
        self._lock = threading.RLock()
        self.owner: int | None = None

    def __enter__(self) -> None:
        self._together.wait()
        self._lock.acquire()
        self.owner = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self.owner = None
        self._lock.release()


class FakeLibrary:
    """Loads like numba-cuda's: by tables that only the owner of the compiler lock may change."""

    gate: Gate

    def get_cufunc(self) -> Any:
        if self.gate.owner != threading.get_ident():
            raise RuntimeError("key already in dictionary")
        return SimpleNamespace(handle=77, attrs=SimpleNamespace(maxthreads=1024, shared=0))


class FakeKernel:
    """A `_Kernel` of numba-cuda."""

    argument_types: tuple[Any, ...] = ()
    debug = launch_config_sensitive = cooperative = False
    extensions = ()

    def __init__(self, library: FakeLibrary, error: Exception | None) -> None:
        self.library = library
        self._error = error

    def bind(self) -> None:
        if self._error is not None:
            raise self._error
        self.library.get_cufunc()


def first(x):  # type: ignore[no-untyped-def]
    x[0] = 1


def second(x):  # type: ignore[no-untyped-def]
    x[0] = 2


def program_of(
    interface: CudaInterface, function: Any, error: Exception | None = None
) -> CudaProgram:
    driver = interface._driver
    made = CudaProgram(
        driver,
        NumbaCudaCompiler(driver),
        function,
        interface.get_device_properties,
        interface.adopt,
    )
    source: Any = made.source
    kernel = FakeKernel(FakeLibrary(), error)
    # The code store takes no code for debugging.
    options = {"debug": True}
    source._dispatcher = SimpleNamespace(compile=lambda types: kernel, targetoptions=options)
    return made


def load_together(programs: list[CudaProgram], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have a thread for each program load it for the same types; return kernels and errors."""
    gate = Gate(len(programs))
    monkeypatch.setattr("numba.cuda.core.compiler_lock.global_compiler_lock", gate)
    monkeypatch.setattr(FakeLibrary, "gate", gate, raising=False)

    def load(program: CudaProgram) -> Any:
        try:
            return program.loaded(0, int, (1,))
        except CompileError as error:
            return error

    with ThreadPoolExecutor(len(programs)) as pool:
        return list(pool.map(load, programs))


def test_threads_that_need_one_kernel_get_the_same(
    interface: CudaInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = program_of(interface, first)
    found = load_together([program] * THREADS, monkeypatch)
    assert not any(isinstance(each, Exception) for each in found), found
    assert len({id(each) for each in found}) == 1
    assert program.loaded(0, int, (1,)) is found[0]


def test_different_kernels_load_one_after_the_other(
    interface: CudaInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = [program_of(interface, first), program_of(interface, second)]
    one, other = load_together(programs, monkeypatch)
    assert one is not other
    assert not any(isinstance(each, Exception) for each in (one, other))


def test_failure_of_one_leaves_the_other(
    interface: CudaInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = program_of(interface, first)
    bad = program_of(interface, second, ValueError("the test refuses"))
    kernel, error = load_together([good, bad], monkeypatch)
    assert isinstance(error, CompileError)
    assert good.loaded(0, int, (1,)) is kernel
    monkeypatch.undo()
    with pytest.raises(CompileError, match="the test refuses"):
        bad.loaded(0, int, (1,))
