"""Calls of NumPy's functions, as text over named arrays, for real and for fake arrays.

The calls are in ``tests/data/numpy_calls.txt``. An error of the real call is an error of the fake
call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

_CALLS = Path(__file__).parents[1] / "data" / "numpy_calls.txt"


def calls() -> dict[str, list[str]]:
    """Return the calls by the name of their function, or ``:group`` of no single function."""
    sections: dict[str, list[str]] = {}
    for line in _CALLS.read_text().splitlines():
        if line.startswith("## "):
            section = sections.setdefault(line[3:], [])
        elif line and not line.startswith("#"):
            section.append(line)
    return sections


def arrays() -> dict[str, Any]:
    """Return the arrays that the calls name; those of names with R stay real."""
    rng = np.random.default_rng(3)
    a = rng.random((3, 4))
    square = rng.random((3, 3))
    return {
        "a": a,  # C order
        "f": np.asfortranarray(a),
        "h": a.astype("f4"),
        "t": rng.random((2, 3, 4)),
        "tt": rng.random((4, 3, 2)).transpose(2, 1, 0),
        "r": rng.random((6, 8))[::-2, ::2],
        "v": rng.random(4),
        "w": rng.random(3),
        "i": np.arange(12, dtype="i4").reshape(3, 4),
        "j": np.array([0, 2, 1]),
        "u": np.arange(12, dtype="u1").reshape(3, 4),
        "c": (a + 1j * a).astype("c8"),
        "b": a > 0.5,
        "bv": np.array([True, False, True, True]),
        "e": np.empty((0, 3)),
        "z": np.array(2.5),
        "m": square @ square.T + 3 * np.eye(3),
        "ms": np.stack([square @ square.T + 3 * np.eye(3)] * 2),
        "bc": np.broadcast_to(np.arange(4.0), (3, 4)),
        "o34": np.zeros((3, 4)),
        "o64": np.zeros((6, 4)),
        "o4": np.zeros(4),
        "o3": np.zeros(3),
        "o4i": np.zeros(4, "i4"),
        "R_b": a > 0.5,
        "R_bv": np.array([True, False, True, True]),
        "R_j": np.array([0, 2, 1]),
        "st": np.zeros(3, [("x", "f4"), ("y", "i8")]),
    }
