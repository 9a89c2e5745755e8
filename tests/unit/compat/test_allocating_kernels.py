"""Kernels that make arrays and lists, which numba-cuda permits with NUMBA_CUDA_ENABLE_NRT=1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda
from numba.core.runtime import _nrt_python, rtsys
from numba.cuda.core import config
from numba.cuda.core.errors import NumbaRuntimeError

from nbrt.backends.cpu.simt.target import simt_target
from nbrt.config import override

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("installed")

REVERSED = np.array([1, 2, 3])[::-1]


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Permit allocations; all of the test are to be freed."""
    monkeypatch.setattr(config, "CUDA_ENABLE_NRT", True)
    rtsys.initialize(simt_target.target_context)
    _nrt_python.memsys_enable_stats()
    before = rtsys.get_allocation_stats()
    yield
    after = rtsys.get_allocation_stats()
    assert after.alloc > before.alloc
    assert after.alloc - before.alloc == after.free - before.free
    assert after.mi_alloc - before.mi_alloc == after.mi_free - before.mi_free


@cuda.jit(device=True)
def first_numbers(n: Any) -> Any:
    numbers = np.zeros(n)
    for i in range(n):
        numbers[i] = i
    return numbers


def _copy_constant(out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        copy = REVERSED.copy()
        copy[0] += i
        out[i] = copy.sum()


def _diverge(out: Any) -> None:
    i = cuda.grid(1)
    if i % 3 == 0:
        numbers = first_numbers(i % 5 + 1)
        extra = [1.0]
        while len(extra) <= i % 4:
            extra.append(2.0)
        if i % 2:
            out[i] = numbers.sum()
            return
        out[i] = numbers.sum() + len(extra)


def _keep_across_barriers(out: Any) -> None:
    i = cuda.threadIdx.x
    numbers = first_numbers(4)
    cuda.syncthreads()
    if i == 3:
        raise ValueError
    doubled = numbers * 2
    cuda.syncthreads()
    out[i] = doubled[3] + numbers[2] + i


def _look_at(out: Any) -> None:
    i = cuda.grid(1)
    numbers = np.arange(6.0) + i
    bits = numbers.view(np.int64).view(np.float64)
    transposed = bits.reshape(2, 3).T
    chosen = numbers if i % 2 else bits
    numbers[0] += 1
    total = 0.0
    for a, b in zip(chosen, transposed.flat):  # noqa: B905 - kernels have no `strict`
        total += a * b
    out[i] = total


def _looked_at(i: int) -> float:
    numbers = np.arange(6.0) + i
    numbers[0] += 1
    return float(numbers @ numbers.reshape(2, 3).T.ravel())


def _diverged(i: int) -> float:
    if i % 3:
        return 0
    return sum(range(i % 5 + 1)) + (0 if i % 2 else 1 + i % 4)


CASES = [
    (_copy_constant, [6 + i for i in range(64)]),
    (_diverge, [_diverged(i) for i in range(64)]),
    (_look_at, [_looked_at(i) for i in range(64)]),
]


@pytest.mark.usefixtures("allocations")
@pytest.mark.parametrize(
    ("function", "expected", "check"),
    [
        *((*case, check) for case in CASES for check in (False, True)),
        # The exception of the kernel would be raised in checked mode.
        (_keep_across_barriers, [0 if i == 3 else 8 + i for i in range(64)], False),
    ],
)
def test_memory_of_a_thread_is_its_own_and_is_freed(
    function: Any, expected: list[float], check: bool
) -> None:
    out = np.zeros(64)
    with override(check=check):
        cuda.jit(function)[1, 64](out)
    assert out.tolist() == expected


def test_without_the_setting_the_error_names_it() -> None:
    with pytest.raises(NumbaRuntimeError, match="NUMBA_CUDA_ENABLE_NRT=1"):
        cuda.jit(_copy_constant)[1, 64](np.zeros(64))
