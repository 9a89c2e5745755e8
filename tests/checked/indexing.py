"""Every form in which a kernel can index, written down as source.

`FORMS` are guarded: thread 3 of block 1, and no other, is outside. `REFUSED` compile, and checked
mode refuses them. `NOT_COMPILED` compile for no kernel, so that there is nothing to guard.
"""

from __future__ import annotations

import linecache
import operator
from collections import namedtuple
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numba import cuda

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.typing import Array

Pair = namedtuple("Pair", "first second")

RECORD = np.dtype([("f", "f4"), ("g", "i4", (8,)), ("s", "S4")])
TABLE = np.arange(8.0)
GRID, BLOCK, SHARED = 2, 4, 64
"""Eight threads; arrays of eight elements, and so much dynamic shared memory."""


def ones(*shape: int, dtype: Any = np.float64) -> Array:
    return np.ones(shape, dtype)


def tuples() -> tuple[Array, Array]:
    return ones(8), ones(8)


X: dict[str, Any] = {"x": lambda: ones(8)}
XY: dict[str, Any] = {**X, "y": lambda: ones(8)}
WIDE: dict[str, Any] = {"x": lambda: ones(2, 8)}
TALL: dict[str, Any] = {"x": lambda: ones(8, 2)}
SMALL: dict[str, Any] = {"x": lambda: ones(2, 4)}
RECORDS: dict[str, Any] = {"r": lambda: np.ones(8, RECORD)}

FORMS: dict[str, dict[str, Callable[[], Any]]] = {
    # integers, tuples of them, rows
    "x[i + 1] = 1": X,
    "y[i] = x[i + 1]": XY,
    "x[i + 1] += 1": X,
    "x[np.uint8(i + 1)] = 1": X,
    "x[np.uint64(i + 1)] = 1": X,
    "x[i + 1, 0] = 1": TALL,
    "x[0, i + 1] = 1": WIDE,
    "at = (0, i + 1); x[at] = 1": WIDE,
    "x[i + 1][0] = 1": TALL,
    "x[0][i + 1] = 1": WIDE,
    "x[i + 1, :] = 1": TALL,
    "x[:, i + 1] = 1": WIDE,
    "x[i + 1, ...] = 1": TALL,
    "x[..., i + 1] = 1": WIDE,
    "x[0:1, i + 1] = 1": WIDE,
    "operator.setitem(x, i + 1, 1)": X,
    "y[i] = operator.getitem(x, i + 1)": XY,
    # views
    "x[1:][i] = 1": X,
    "x[::-1][i + 1] = 1": X,
    "x[None, :][0, i + 1] = 1": X,
    "x[None, i + 1] = 1": X,
    "x[np.newaxis, i + 1] = 1": X,
    "x.T[i + 1, 0] = 1": WIDE,
    "x.reshape(8)[i + 1] = 1": SMALL,
    "x.reshape((8, 1))[i + 1, 0] = 1": SMALL,
    "x.view(np.float32)[2 * i + 2] = 1": X,
    "np.asarray(x)[i + 1] = 1": X,
    "z.real[i + 1] = 1": {"z": lambda: ones(8, dtype=np.complex128)},
    "z.imag.flat[i + 1] = 1": {"z": lambda: ones(8, dtype=np.complex128)},
    # flat
    "x.flat[i + 1] = 1": SMALL,
    "y[i] = x.flat[i + 1]": {**SMALL, "y": lambda: ones(8)},
    "x.flat[i + 1] += 1": SMALL,
    "x.flat[np.uint64(i + 1)] = 1": SMALL,
    "x.T.flat[i + 1] = 1": SMALL,
    "x[:, ::2].flat[i + 1] = 1": WIDE,
    "every = x.flat; every[i + 1] = 1": SMALL,
    "r.flat[i + 1].f = 1": RECORDS,
    # records
    "r[i + 1].f = 1": RECORDS,
    "r[i + 1]['f'] = 1": RECORDS,
    "r[i + 1][0] = 1": RECORDS,
    "r['f'][i + 1] = 1": RECORDS,
    "r.f[i + 1] = 1": RECORDS,
    "r[i].g[i + 1] = 1": RECORDS,
    "r['g'][i, i + 1] = 1": RECORDS,
    "r[i + 1].s = q[i].s": {**RECORDS, "q": lambda: np.ones(8, RECORD)},
    # atomic operations
    "cuda.atomic.add(x, i + 1, 1)": X,
    "cuda.atomic.max(x, (0, i + 1), 1)": WIDE,
    "cuda.atomic.cas(n, i + 1, 1, 2)": {"n": lambda: ones(8, dtype=np.int32)},
    "cuda.atomic.add(r['f'], i + 1, 1)": RECORDS,
    # loads and stores with a hint for the cache
    **{f"y[i] = cuda.{name}(x, i + 1)": XY for name in ("ldca", "ldcg", "ldcs", "ldlu", "ldcv")},
    **{f"cuda.{name}(x, i + 1, 1)": X for name in ("stcg", "stcs", "stwb", "stwt")},
    "y[i] = cuda.ldcg(w, (0, i + 1))": {"y": lambda: ones(8), "w": WIDE["x"]},
    # arrays that the kernel makes, and constants
    "a = cuda.local.array(8, numba.float32); a[i + 1] = 1": {},
    "a = cuda.shared.array(8, numba.float32); a[i + 1] = 1": {},
    "a = cuda.shared.array(0, numba.float64); a[i + 1] = 1": {},
    "a = cuda.const.array_like(TABLE); y[i] = a[i + 1]": {"y": lambda: ones(8)},
    "y[i] = TABLE[i + 1]": {"y": lambda: ones(8)},
    # tuples and bytes
    "xs[0][i + 1] = 1": {"xs": tuples},
    "p.first[i + 1] = 1": {"p": lambda: Pair(*tuples())},
    "y[i] = t[i + 1]": {"y": lambda: ones(8), "t": lambda: (1.0,) * 8},
    "y[i] = t[0:8][i + 1]": {"y": lambda: ones(8), "t": lambda: (1.0,) * 9},
    "y[i] = b'12345678'[i + 1]": {"y": lambda: ones(8)},
    "for x in xs: x[i + 1] = 1": {"xs": tuples},
    "for v in np.nditer(x): y[i + 1] = v[()]": XY,
}

AT: dict[str, Any] = {**X, "at": lambda: np.array([0, 1])}

REFUSED: dict[str, dict[str, Callable[[], Any]]] = {
    "x[at] = 1": AT,
    "x[mask] = 1": {**X, "mask": lambda: ones(8, dtype=np.bool_)},
    "x[at, 0] = 1": {**TALL, "at": lambda: np.array([0, 1])},
    "x[i, at] = 1": {**TALL, "at": lambda: np.array([0, 1])},
    "x[zero] = 1": {**X, "zero": lambda: np.array(0)},
    "x[0] = y[zero]": {**XY, "zero": lambda: np.array(0)},
}

NOT_COMPILED: dict[str, dict[str, Callable[[], Any]]] = {
    "x[0] = x[at][0]": AT,
    "x[at] = y": {**AT, "y": lambda: ones(2)},
    "x[x > 0] = 1": X,
    "x[i > 0] = 1": X,
    "x[np.float32(i)] = 1": X,
    "x[0] = np.take(x, i)": X,
    "x[0] = x.take(i)": X,
    "x[0] = np.take_along_axis(x, at, 0)[0]": AT,
    "x[0] = x.item(i)": X,
    "x.itemset(1.0)": X,
    "np.put(x, i, 1)": X,
    "x[0] = np.choose(i, (x, x))[0]": X,
    "x.ravel()[i] = 1": X,
    "x.flatten()[i] = 1": X,
    "np.ravel(x)[i] = 1": X,
    "x.flat[0:1] = 1": X,
    "x.flat[at] = 1": AT,
    "x.flat = 1": X,
    "np.lib.stride_tricks.as_strided(x, (9,), (8,))[i] = 1": X,
    "numba.carray(x.ctypes, 9)[i] = 1": X,
    "np.frombuffer(x, np.float32)[i] = 1": X,
    "memoryview(x)[i] = 1": X,
    "cuda.atomic.add(x.flat, i, 1)": X,
    "x[0] = [1, 2][i]": X,
    "x[0] = {0: 1}[i]": X,
    "x[0] = len('ab'[i])": X,
    "x[0] = range(8)[i]": X,
    "x[0] = t[i]": {**X, "t": lambda: (1.0, 2)},
    "x.__setitem__(i, 1)": X,
}


def kernel_of(form: str, arguments: dict[str, Callable[[], Any]]) -> tuple[Any, str]:
    """Make the kernel of a form, whose source is in line 3; give the name of its file, too."""
    body = "\n    ".join(form.split("; "))
    source = f"def kernel({', '.join(arguments)}):\n    i = cuda.grid(1)\n    {body}\n"
    file = f"<indexing {form}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"cuda": cuda, "np": np, "numba": numba, "operator": operator}
    names["TABLE"] = TABLE
    exec(compile(source, file, "exec"), names)
    return names["kernel"], file
