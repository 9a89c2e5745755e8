"""NumPy's universal functions of scalars give in a kernel what they give in NumPy."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.backends.cuda.numpy_loops import formulas

UFUNCS = sorted(
    {getattr(np, name) for name in dir(np) if isinstance(getattr(np, name), np.ufunc)},
    key=lambda ufunc: ufunc.__name__,
)
MATRICES = ("matmul", "matvec", "vecmat", "vecdot")
NOT_THERE = {*MATRICES, "bitwise_count", "frexp", "heaviside", "isnat", "modf"}
"""Neither compiler has them."""

OTHERWISE = ("float_power", "lcm", "ldexp", "left_shift", "power", "right_shift")
"""Of integers near the ends, NumPy or the language leaves them undefined or they overflow."""
ULPS = 4


def values(dtype: str, *, large: bool = True) -> Any:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        info = np.finfo(kind)
        special = [0.0, -0.0, np.nan, np.inf, -np.inf, info.tiny, info.smallest_subnormal, info.eps]
        plain = [1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3, 7.25, -7.25, 1e-3, 100.25, -100.25]
        return np.array([*special, *plain, *([info.max, info.min] if large else [])], kind)
    info = np.iinfo(kind)
    ends = [info.min, info.min + 1, info.max - 1, info.max] if large else []
    return np.array([0, 1, 2, 3, 7, 30, *([-1, -2, -7] if info.min < 0 else []), *ends], kind)


def arguments(ufunc: Any, dtype: str) -> tuple[Any, ...]:
    integer = np.dtype(dtype).kind in "iu"
    large = not (integer and ufunc.__name__ in OTHERWISE)
    a = values(dtype, large=large)
    if integer and ufunc.__name__ == "reciprocal":
        return (a[a != 0],)
    if ufunc.nin == 1:
        return (a,)
    x, y = (np.ascontiguousarray(part.ravel()) for part in np.meshgrid(a, a))
    if integer and ufunc.__name__ in ("power", "left_shift", "right_shift"):
        keep = y >= 0
        x, y = x[keep], y[keep]
    return x, y


def kernel_of(ufunc: Any) -> Any:
    given = ", ".join(("a[i]", "b[i]")[: ufunc.nin])
    results = ", ".join(("o[i]", "p[i]")[: ufunc.nout])
    source = (
        "def kernel(a, b, o, p):\n"
        "    i = cuda.grid(1)\n"
        "    if i < a.size:\n"
        f"        {results} = np.{ufunc.__name__}({given})\n"
    )
    file = f"<np.{ufunc.__name__}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope = {"np": np, "cuda": cuda}
    exec(compile(source, file, "exec"), scope)
    return nbrt.kernel(scope["kernel"])


def assert_close(found: Any, wanted: Any, name: str, given: Any) -> None:
    if wanted.dtype.kind != "f":
        wrong = found != wanted
    else:
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        with np.errstate(all="ignore"):
            near = np.abs(found - wanted) <= ULPS * np.spacing(np.abs(wanted))
        wrong = ~(same | near)
        if name in ("copysign", "rint", "floor", "ceil", "trunc", "negative", "sqrt", "reciprocal"):
            wrong |= (np.signbit(found) != np.signbit(wanted)) & ~np.isnan(wanted)
    wrong = np.flatnonzero(wrong)[:3]
    shown = [(*(part[j] for part in given), found[j], wanted[j]) for j in wrong]
    assert not shown, (name, shown)


def is_defined(ufunc: Any, dtype: str) -> bool:
    """Tell whether NumPy has the function for a dtype."""
    try:
        with np.errstate(all="ignore"):
            ufunc(*(np.ones(1, dtype),) * ufunc.nin)
    except TypeError:
        return False
    return True


CASES = [
    pytest.param(ufunc, dtype, id=f"{ufunc.__name__}-{dtype}")
    for ufunc in UFUNCS
    if ufunc.__name__ not in NOT_THERE
    for dtype in ("float32", "float64", "int64", "uint32")
    if is_defined(ufunc, dtype)
]


def check_values(ufunc: Any, dtype: str, device: str) -> None:
    given = arguments(ufunc, dtype)
    with np.errstate(all="ignore"):
        wanted = ufunc(*given)
    results = wanted if isinstance(wanted, tuple) else (wanted,)
    with nbrt.device(device):
        inputs = [nbrt.to(part, device) for part in given]
        found = [nbrt.to(np.zeros(result.shape, result.dtype), device) for result in results]
        kernel_of(ufunc).forall(given[0].size)(inputs[0], inputs[-1], found[0], found[-1])
        for one, other in zip(found, results, strict=True):
            assert_close(nbrt.to_host(one), other, ufunc.__name__, given)


@pytest.mark.parametrize(("ufunc", "dtype"), CASES)
def test_values_are_those_of_numpy(ufunc: Any, dtype: str) -> None:
    check_values(ufunc, dtype, "cpu")


# Functions of float32 use approximate instructions of the GPU.
CUDA_CASES = [case for case in CASES if case.values[1] in ("float64", "int64")]


@pytest.mark.gpu
@pytest.mark.usefixtures("cuda_interface")
@pytest.mark.parametrize(("ufunc", "dtype"), CUDA_CASES)
def test_values_on_cuda_are_those_of_numpy(ufunc: Any, dtype: str) -> None:
    check_values(ufunc, dtype, "cuda:0")


FORMULAS = [
    pytest.param(ufunc, signature, id=f"{ufunc.__name__}-{signature}")
    for ufunc, loops in formulas().items()
    for signature in loops
]


@pytest.mark.parametrize(("ufunc", "signature"), FORMULAS)
def test_code_for_cuda_is_the_function_of_numpy(ufunc: Any, signature: str) -> None:
    """Run the code that completes numba-cuda's table as a device function of a CPU device."""
    code = cuda.jit(device=True)(formulas()[ufunc][signature])
    inputs, _, output = signature.partition("->")
    if output in "FD":
        parts = np.array([0.5, -0.25, 1.5, 2.0])
        a = (parts[:, None] + 1j * parts).ravel().astype(output)
        given = (a, a[::-1].copy())[: len(inputs)]
    else:
        grids = [values(np.dtype(kind).name, large=kind in "fd") for kind in inputs]
        given = tuple(np.ascontiguousarray(g.ravel()) for g in np.meshgrid(*grids))
    out = np.zeros(given[0].size, output)

    if len(given) == 1:

        @nbrt.kernel
        def kernel(out, a, b):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = code(a[i])

    else:

        @nbrt.kernel
        def kernel(out, a, b):
            i = cuda.grid(1)
            if i < out.size:
                out[i] = code(a[i], b[i])

    with nbrt.device("cpu"):
        kernel.forall(out.size)(out, given[0], given[-1])
    with np.errstate(all="ignore"):
        wanted = ufunc(*given)
    if output in "FD":
        np.testing.assert_allclose(out, wanted, rtol=1e-5 if output == "F" else 1e-13)
        return
    if ufunc is np.spacing:  # of the least normal number's neighbours NumPy steps twice
        keep = np.isfinite(wanted) & (np.abs(given[0]) < np.finfo(output).max)
        np.testing.assert_allclose(np.abs(out[keep]), np.abs(wanted[keep]), rtol=0)
        return
    assert_close(out, wanted, ufunc.__name__, given)
