"""Kernels that are sent to other processes: by name, or by value with their captured values."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

import numba.core.typing
import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.processes import output_of
from nbrt.backends.declared_signatures import declared_signatures
from nbrt.errors import ArgumentTypeError
from nbrt.runtime.kernel_cost import costs_of

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import multiprocessing, pickle, sys
import numpy as np
import nbrt
from numba import cuda

SCALE = 10

@cuda.jit(device=True)
def helper(i):
    return i * SCALE

@nbrt.kernel
def of_main(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = helper(i) + 1

def make(shift):
    table = np.arange(8.0)

    @nbrt.kernel
    def closure(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] = table[i] + shift
    return closure

namespace = {"nbrt": nbrt, "cuda": cuda, "OFFSET": 5, "__name__": "unimportable"}
exec('''
@cuda.jit(device=True)
def inner(i):
    return i + OFFSET

@nbrt.kernel
def generated(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = inner(i)
''', namespace)

def run(kernel):
    x = np.zeros(4)
    with nbrt.device("cpu:0"):
        kernel(x) if hasattr(kernel, "grid") else kernel[1, 4](x)
    return x.tolist()
"""

MULTIPROCESSING = """
if __name__ == "__main__":
    kernels = [of_main, make(1), make(2), namespace["generated"], make(3)[2, 2]]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(run, kernels))
"""

EXPECTED = [
    [1.0, 11.0, 21.0, 31.0],
    [1.0, 2.0, 3.0, 4.0],
    [2.0, 3.0, 4.0, 5.0],
    [5.0, 6.0, 7.0, 8.0],
    [3.0, 4.0, 5.0, 6.0],
]


def in_cache(folder: Path) -> dict[str, str]:
    return {"NBRT_CACHE_DIR": str(folder / "cache")}


def test_a_program_sends_its_kernels_to_spawned_processes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + MULTIPROCESSING)
    code = f"import runpy, sys; sys.argv[:] = [{str(program)!r}]\n"
    code += (
        "import subprocess; print(subprocess.check_output([sys.executable, *sys.argv]).decode())"
    )
    assert output_of(code, environment=in_cache(tmp_path)).strip() == str(EXPECTED)


def test_a_process_without_the_program_loads_them(tmp_path: Path) -> None:
    """As the workers of a cluster do, which have no file of the program."""
    file = tmp_path / "kernels.pickle"
    write = """
kernels = [of_main, make(1), make(2), namespace["generated"], make(3)[2, 2]]
print([run(kernel) for kernel in kernels])
open(sys.argv[1], "wb").write(pickle.dumps(kernels))
"""
    read = """
import pickle, sys
import numpy as np
import nbrt
kernels = pickle.load(open(sys.argv[1], "rb"))
with nbrt.device("cpu:0"):
    found = []
    for kernel in kernels:
        x = np.zeros(4)
        kernel(x) if hasattr(kernel, "grid") else kernel[1, 4](x)
        found.append(x.tolist())
print(found)
"""
    for code in (PROGRAM + write, read):
        said = output_of(f"import sys; sys.argv[1:] = [{str(file)!r}]\n{code}", path=(tmp_path,))
        assert said.strip() == str(EXPECTED)


def launched(kernel: nbrt.Kernel) -> list[float]:
    x = np.zeros(3)
    with nbrt.device("cpu:0"):
        kernel[1, 4](x)
    return x.tolist()


def test_a_kernel_goes_with_the_values_it_has_when_it_is_pickled() -> None:
    value = 1.0

    @nbrt.kernel
    def kernel(x: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            x[i] = value

    first = pickle.dumps(kernel)
    value = 2.0
    second = pickle.dumps(kernel)
    value = 3.0
    assert [launched(pickle.loads(each)) for each in (first, second)] == [[1.0] * 3, [2.0] * 3]
    assert launched(kernel) == [3.0] * 3


def test_the_same_bytes_give_the_same_kernel() -> None:
    """So that a worker that gets a kernel with each task compiles it once."""
    kernel = local_kernel()
    payload = pickle.dumps(kernel[1, 2])
    first, second = pickle.loads(payload), pickle.loads(payload)
    assert first.kernel is second.kernel
    assert first.kernel is not kernel


def local_kernel(**options: Any) -> nbrt.Kernel:
    @nbrt.kernel(**options)
    def kernel(x: Any) -> None:
        i = cuda.grid(1)
        x[i] = x[i + 1]

    return kernel


@nbrt.kernel
def of_module(x: Any) -> None:
    i = cuda.grid(1)
    x[i] = x[i + 1]


def test_kernels_of_modules_go_by_name() -> None:
    assert pickle.loads(pickle.dumps(of_module)) is of_module
    checked = pickle.loads(pickle.dumps(of_module.checked(seed=3)))
    assert checked.check == of_module.checked(seed=3).check
    assert checked.function is of_module.function


def test_a_name_of_another_object_is_not_used() -> None:
    namespace: dict[str, Any] = {"cuda": cuda, "nbrt": nbrt, "__name__": __name__}
    exec("@nbrt.kernel\ndef of_module(x): x[cuda.grid(1)] = 7.0", namespace)
    x = np.zeros(2)
    with nbrt.device("cpu:0"):
        pickle.loads(pickle.dumps(namespace["of_module"]))[1, 2](x)
    assert x.tolist() == [7.0, 7.0]


def test_modules_that_no_process_can_import(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("made_here")
    vars(module).update(cuda=cuda, nbrt=nbrt)
    monkeypatch.setitem(sys.modules, "made_here", module)
    exec("@nbrt.kernel\ndef k(x): x[cuda.grid(1)] = 4.0", vars(module))
    payload = pickle.dumps(module.k)
    monkeypatch.delitem(sys.modules, "made_here")
    x = np.zeros(2)
    with nbrt.device("cpu:0"):
        pickle.loads(payload)[1, 2](x)
    assert x.tolist() == [4.0, 4.0]


def test_checks_costs_and_options_go_along() -> None:
    kernel = local_kernel(check=True, seed=5, cost=lambda x: nbrt.KernelCost(x.size, x.nbytes))
    twin = pickle.loads(pickle.dumps(kernel))
    assert twin.check == kernel.check
    assert twin.check.seed == 5
    assert costs_of(twin.function, (np.zeros(3),)) == nbrt.KernelCost(3, 24)
    with nbrt.device("cpu:0"), pytest.raises(nbrt.errors.KernelCheckError):
        twin[1, 4](np.zeros(4))

    def source(x: Any) -> None:
        x[cuda.grid(1)] = 1.0

    dispatcher = cuda.jit(fastmath=True)(source)
    twin = pickle.loads(pickle.dumps(nbrt.kernel(dispatcher)))
    assert twin.function.targetoptions == dispatcher.targetoptions
    assert type(twin.function) is type(dispatcher)


def test_explicit_signatures_go_along() -> None:
    """As of a dispatcher of a machine with a GPU, where a signature compiles at once."""
    dispatcher = cuda.jit(device=True)(lambda i: i / 2)
    declared = ((numba.types.float32,), numba.types.float64)
    dispatcher.declared_signatures = [numba.core.typing.signature(declared[1], *declared[0])]
    dispatcher._can_compile = False

    @nbrt.kernel
    def kernel(x: Any) -> None:
        x[0] = dispatcher(x[0])

    twin = pickle.loads(pickle.dumps(kernel))
    (cell,) = twin.py_func.__closure__
    assert declared_signatures(cell.cell_contents) == [declared]


def test_copies_are_the_kernel_as_those_of_functions_are() -> None:
    kernel = local_kernel()
    assert copy.copy(kernel) is kernel
    assert copy.deepcopy([kernel]) == [kernel]


def test_a_captured_value_that_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    @nbrt.kernel
    def kernel(x: Any) -> None:
        x[0] = lock  # type: ignore[unreachable]

    with pytest.raises(ArgumentTypeError, match=r"kernel .*closure variable lock of type lock"):
        pickle.dumps(kernel)
