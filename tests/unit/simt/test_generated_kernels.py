"""Kernels made by ``exec`` on disk, and the exceptions that loaded kernels raise."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from helpers.processes import output_of

if TYPE_CHECKING:
    from pathlib import Path


def cache_in(folder: Path) -> dict[str, str]:
    return {"NBRT_CACHE_DIR": str(folder / "cache")}


GENERATED = """
import collections, enum

@cuda.jit(device=True)
def inner(a):
    return a + SHIFT

class Kind(enum.IntEnum):
    FIRST = {first}

class RefusalError(Exception):
    pass

@cuda.jit(device=True)
def refuse(a):
    if a == 100:
        raise RefusalError("a hundred", 7)
    return a

@nbrt.kernel
def kernel(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = refuse(inner(i)) * Kind.FIRST
"""

GENERATE = """
import json, os, sys
import numpy as np
import nbrt
from numba import cuda

name, text, shift = json.loads(sys.argv[1])
namespace = {"cuda": cuda, "nbrt": nbrt, "SHIFT": shift}
if name is not None:
    namespace["__name__"] = name.format(os.getpid())
exec(compile(text, "<string>", "exec"), namespace)
x = np.zeros(4)
try:
    with nbrt.device("cpu:0"):
        namespace["kernel"][1, 4](x)
    values = x.tolist()
except namespace["RefusalError"] as error:
    values = list(error.args)
compiled = "nbrt.backends.cpu.simt.frontend.pipeline" in sys.modules
print(json.dumps([compiled, values]))
"""


def run(folder: Path, name: str | None, shift: int, first: int = 1) -> object:
    """Run the program in a new process; return whether it compiled, and its values."""
    arguments = json.dumps([name, GENERATED.format(first=first), shift])
    program = f"import sys; sys.argv[1:] = [{arguments!r}]\n{GENERATE}"
    return json.loads(output_of(program, environment=cache_in(folder)))


@pytest.mark.parametrize(
    "name", ["generated_xyz", None, "package.generated", "__main__", "generated_{}"]
)
def test_kernels_made_by_exec_are_found_by_another_process(
    tmp_path: Path, name: str | None
) -> None:
    """Their module cannot be imported, has no file, or has another name in each process."""
    for compiled in (True, False):
        assert run(tmp_path, name, 2) == [compiled, [2, 3, 4, 5]]


def test_kernels_of_a_namespace_without_a_name(tmp_path: Path) -> None:
    """Their classes call themselves builtins: an enum counts by its members all the same."""
    assert run(tmp_path, None, 2) == [True, [2, 3, 4, 5]]
    assert run(tmp_path, None, 2, first=10) == [True, [20, 30, 40, 50]]
    for compiled in (True, False):
        assert run(tmp_path, None, 98) == [compiled, ["a hundred", 7]]


RAISING = """
import sys
import numpy as np
import nbrt
from numba import cuda

def make():
    class RefusalError(Exception):
        pass

    @nbrt.kernel
    def kernel(x):
        if x[0] == 0:
            raise RefusalError("zero")
    return kernel, RefusalError

with nbrt.device("cpu:0"):
    for kernel, refusal in (make(), make()):  # two classes of one name, and equal code
        try:
            kernel[1, 1](np.zeros(1))
        except refusal as error:
            print(error.args)
print("nbrt.backends.cpu.simt.frontend.pipeline" in sys.modules)
"""


def test_a_loaded_kernel_raises_the_exception_that_it_captures(tmp_path: Path) -> None:
    said = [output_of(RAISING, environment=cache_in(tmp_path)) for _ in range(2)]
    assert said == ["('zero',)\n('zero',)\nTrue\n"] * 2
