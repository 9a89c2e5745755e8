"""Python's constructs as bodies of kernels ``kernel(x, y, o)`` of float64 arrays."""

from __future__ import annotations

import collections
import enum
from typing import Any

import numpy as np
from numba import cuda

__all__ = ["ACCEPTED", "NAMES", "REFUSED"]


class Color(enum.IntEnum):
    RED = 1


Pair = collections.namedtuple("Pair", "a b")


@cuda.jit(device=True)
def fib(n: Any) -> Any:
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)


@cuda.jit(device=True)
def even(n: Any) -> Any:
    return True if n == 0 else odd(n - 1)


@cuda.jit(device=True)
def odd(n: Any) -> Any:
    return False if n == 0 else even(n - 1)


@cuda.jit(device=True)
def added(a: Any, b: Any = 2) -> Any:
    return a + b


@cuda.jit(device=True)
def first(*values: Any) -> Any:
    return values[0]


def _closure() -> Any:
    @cuda.jit(device=True)
    def inner(n: Any) -> Any:
        if n < 2:
            return n
        return inner(n - 1) + inner(n - 2)

    return inner


NAMES: dict[str, Any] = {
    "Color": Color,
    "Pair": Pair,
    "added": added,
    "even": even,
    "fib": fib,
    "first": first,
    "inner": _closure(),
    "TABLE": np.arange(4.0),
    "TUPLE": (1, 2, 3),
    "WORD": "abc",
}

ACCEPTED = {
    "arithmetic": "x[0] = x[0] + x[1] - x[2] * 2 / 3 // 1 % 5 ** -x[3]",
    "bits": "i = int(x[0])\nx[0] = (i << 2) | (i >> 1) & 3 ^ ~i",
    "augmented": "a = 1\na += 2\na *= 3\na //= 2\na %= 2\na <<= 1\na |= 1\na **= 2\nx[0] = a",
    "comparisons": "x[0] = 0 < x[0] <= 2 != x[1]",
    "boolean": "x[0] = x[0] > 0 and x[1] > 0 or not x[2]",
    "ternary": "x[0] = 1 if x[0] > 0 else 2.5",
    "in": "x[0] = x[0] in (1, 2) and x[0] not in (3, 4) or 3 in range(5)",
    "in an array": "x[0] = 1.0 in x",
    "in a list": "x[0] = x[0] in [1, 2]",
    "is": "x[0] = x is None or x is y",
    "for": "for i in range(3): x[i] = i",
    "for else": "for i in range(3):\n    if x[i] > 5: break\nelse: x[0] = 2",
    "while else": "while x[0] < 0: x[0] += 1\nelse: x[0] = 2",
    "enumerate, zip": "for i, (a, b) in enumerate(zip(x, y)): x[0] += i * a * b",
    "for in a tuple": "for v in (1, 2): x[0] += v",
    "for in a list": "for v in [1, 2]: x[0] += v",
    "ndindex": "for i, j in np.ndindex(2, 2): x[0] += i * j",
    "flat": "for v in x.flat: x[0] += v\nx.flat[1] = 1",
    "raise": "if x[0] < 0: raise ValueError('negative')",
    "assert": "assert x[0] >= 0, 'negative'",
    "lambda": "f = lambda a: a + 1\nx[0] = f(x[0])",
    "closure": "c = x[1]\ndef f(a): return a + c\nx[0] = f(x[0])",
    "nonlocal": "c = 0\ndef f():\n    nonlocal c\n    c = 1\nf()\nx[0] = c",
    "call": "x[0] = added(1, b=3) + added(1) + first(1, 2) + added(*(1, 2))",
    "recursion": "x[0] = fib(x.size) + fib(np.int64(5)) + inner(x.size)",
    "unpacking": "a, (b, c) = x[0], (x[1], 2)\nx[0], x[1] = b, a\nx[2] = c",
    "named tuple": "p = Pair(1, b=2)\nx[0] = p.a + p[1]",
    "tuples": "t = (1, 2) + (3,)\nx[0] = t[2] + len(t[1:]) + (t == (1, 2, 3)) + t[int(x[0])]",
    "match": "match int(x[0]):\n    case 1 | 2: x[0] = 10\n    case _: x[0] = 20",
    "globals": "x[0] = TABLE[1] + TUPLE[2] + len(WORD)",
    "slices": "y[:] = 1\na = x[1:3]\nb = x[::-1]\nx[0] = a[0] + b[0] + x[-1]",
    "new axis": "a = x[np.newaxis, :]\nb = x[:, None]\nx[0] = a[0, 0] + b[0, 0]",
    "views": "a = x.reshape((2, 2)).T\nx[0] = a[0, 1] + x.view(np.int64)[0]",
    "attributes": "x[0] = x.itemsize + x.nbytes + x.ndim + x.size + x.shape[0] + x.strides[0]",
    "strings": "x[0] = ('a' + 'b' == 'ab') + len('abc') + ('a' in 'abc') + ord('a')",
    "f-string": "s = f'a'",
    "print": "print('a', x[0], 1)\nprint((1, 2))\nprint()",
    "constants": "x[0] = np.pi + np.inf + np.finfo(np.float32).eps + np.iinfo(np.int8).max",
    "types": "x[0] = np.float32(x[0]) + np.int8(3) + x.dtype.type(3) + isinstance(x[0], float)",
    "enum": "x[0] = Color.RED == 1",
    "None": "a = None\nif x[0] > 0: a = 1\nif a is not None: x[0] = a",
    "complex": "z = complex(x[0], 1)\nx[0] = abs(z * 1j / z ** 2) + z.conjugate().real",
    "return": "if x[0] > 0: return\nx[0] = 1",
    "annotation": "a: int = 1\nx[0] = a",
    "reductions": "x[0] = np.max(x) + np.min(x) + np.nanmax(x) + np.nanmin(x) + x.sum()",
    "gcd": "x[0] = math.gcd(x.size, 6)",
    "function as a value": "f = np.sqrt\nx[0] = f(x[0])",
}

_CHANGES = "does not compile for CUDA"
REFUSED: dict[str, tuple[str, str]] = {
    "try": ("try: x[0] = 1 / x[0]\nexcept Exception: x[0] = 1", f"try {_CHANGES}.*if"),
    "finally": ("try: x[0] = 1\nfinally: x[1] = 2", f"try {_CHANGES}"),
    "with": ("with o: x[0] = 1", ""),
    "yield": ("a = [i for i in range(3)]", ""),
    "matmul": ("x[0] = x @ x", f"operator @ {_CHANGES}.*loop"),
    "imatmul": ("x @= x", f"operator @ {_CHANGES}"),
    "dot": ("x[0] = np.dot(x, x)", f"np.dot {_CHANGES}"),
    "method dot": ("x[0] = x.dot(x)", f"method dot {_CHANGES}"),
    "vdot": ("x[0] = np.vdot(x, x)", f"np.vdot {_CHANGES}"),
    "nanargmax": ("x[0] = np.nanargmax(x)", f"np.nanargmax {_CHANGES}"),
    "np.round": ("x[0] = np.round(x[0], 2)", r"np.round .*round\(x, ndigits\)"),
    "map": ("for v in map(added, (1, 2)): x[0] += v", f"map {_CHANGES}"),
    "filter": ("for v in filter(None, (1, 2)): x[0] += v", f"filter {_CHANGES}"),
    "print of an array": ("print(x)", f"print of an array {_CHANGES}"),
    "x[None]": ("a = x[None]", r"x\[None, :\]"),
    "random": ("x[0] = random.random()", r"random\.random.*uniform4"),
    "gauss": ("x[0] = random.gauss(0, 1)", r"random\.gauss.*normal4"),
    "np.random": ("x[0] = np.random.randint(0, 5)", r"numpy\.random\.randint.*randint4"),
    "seed": ("np.random.seed(0)", r"numpy\.random\.seed"),
    "recursion from a literal": ("x[0] = fib(10)", r"fib was called with .*np\.int64"),
    "recursion from another type": ("x[0] = fib(cuda.threadIdx.x)", r"\(int32\).*\(int64\)"),
    "recursion of a closure": ("x[0] = inner(10)", "inner was called with"),
    "mutual recursion": ("x[0] = even(x.size)", "even and .*odd call each other"),
    "list comprehension": ("a = [i for i in range(3)]\nx[0] = a[1]", "allocate"),
    "list": ("a = [1, 2]\nx[0] = a[1]", "allocate"),
    "dict": ("a = {1: 2}", ""),
    "set": ("a = {1, 2}", ""),
    "string of a number": ("s = str(3)", ""),
    "percent": ("s = '%d' % 3", ""),
    "upper": ("s = 'abc'.upper()", ""),
    "star unpacking": ("a, *b = (1, 2, 3)\nx[0] = b[0]", ""),
    "keyword unpacking": ("x[0] = added(**{'a': 1})", ""),
    "pattern of a tuple": ("match (1, 2):\n    case (a, b): x[0] = b", ""),
    "del of an item": ("del x[0]", ""),
    "global": ("global COUNT\nCOUNT = 1", ""),
    "array arithmetic": ("a = x + 1", "allocate"),
    "boolean index": ("a = x[x > 0]", ""),
    "import": ("import math as m\nx[0] = m.sin(1.0)", ""),
    "class": ("class A: pass", ""),
    "sorted": ("x[0] = sorted((3, 1))[0]", ""),
    "float gcd": ("x[0] = math.gcd(x[0], y[0])", ""),
    "eval": ("eval('1')", ""),
}
