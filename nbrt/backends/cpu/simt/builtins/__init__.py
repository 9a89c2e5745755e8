"""CPU versions of the dialect's functions, by which the dialect pass replaces the names.

Operations of a warp, a block or the grid become calls of markers (``simt/placeholders.py``); all
others are code of one thread. Files that register hundreds of functions with Numba are imported
when a kernel first names one of them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from numba import literal_unroll

from nbrt.backends.cpu.simt.builtins import (
    arithmetic,
    array_views,
    atomics,
    barriers,
    half,  # noqa: F401  # registers the type float16 with Numba
    hints,
    memory,
    printing,  # noqa: F401  # registers its code with Numba
    warp,
)
from nbrt.backends.cpu.simt.target import simt_target

__all__ = ["MARKER_NAMES", "REPLACEMENTS", "marker_kind", "vector_type"]

_VECTOR = re.compile(r"(u?int|float)\d+x\d")
_LATE = {
    re.compile(r"bfloat16$|bf16\."): ("bfloat16", "bfloat16_functions", "bfloat16_pairs"),
    re.compile(r"fp16\."): ("half_functions",),
    re.compile(r"fp8\."): ("fp8",),
    re.compile(r"libdevice\."): ("libdevice", "libdevice_bits", "libdevice_rounding"),
    _VECTOR: ("vectors",),
}
"""Names of the dialect -> files that are imported on first use."""


class _Replacements(Mapping[str, Callable[..., Any]]):
    """Dotted name in ``numba.cuda`` -> its replacement on the CPU."""

    def __init__(self, known: dict[str, Callable[..., Any]]) -> None:
        self._known = known
        self._pending = dict(_LATE)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name not in self._known:
            self._load([pattern for pattern in self._pending if pattern.match(name)])
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        self._load(list(self._pending))
        return iter(self._known)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _load(self, patterns: list[re.Pattern[str]]) -> None:
        for pattern in patterns:
            for file in self._pending[pattern]:
                self._known.update(importlib.import_module(f"{__name__}.{file}").REPLACEMENTS)
            del self._pending[pattern]
        if patterns:
            # Numba loads new registrations before it compiles, and this happens while it compiles.
            simt_target.target_context.refresh()


REPLACEMENTS: Mapping[str, Callable[..., Any]] = _Replacements(
    {
        **arithmetic.REPLACEMENTS,
        **array_views.REPLACEMENTS,
        **atomics.REPLACEMENTS,
        **barriers.REPLACEMENTS,
        **hints.REPLACEMENTS,
        **memory.REPLACEMENTS,
        **warp.REPLACEMENTS,
        "literal_unroll": literal_unroll,
    }
)


def vector_type(name: str) -> Any:
    """Return the CPU type for a vector type of ``numba.cuda``.

    Parameters
    ----------
    name : str
        Name in ``numba.cuda``, such as ``"float32x4"``.

    Returns
    -------
    numba type or None
        None if there is no such vector type.
    """
    if not _VECTOR.fullmatch(name) or name not in REPLACEMENTS:
        return None
    from nbrt.backends.cpu.simt.builtins import vectors

    return vectors.TYPES[name]


_KINDS = {
    "cg.this_grid": "grid",
    "shared.array": "shared",
    "syncthreads": "barrier",
    "syncthreads_and": "barrier",
    "syncthreads_count": "barrier",
    "syncthreads_or": "barrier",
    **dict.fromkeys(warp.REPLACEMENTS.keys() - {"lanemask_lt"} | {"syncwarp"}, "warp"),
}


MARKER_NAMES = frozenset(name.rpartition(".")[2] for name in _KINDS) - {"array"} | {"shared"}
"""Attribute names through which code can refer to a marker."""


def marker_kind(name: str) -> str | None:
    """Return the kind of marker that replaces a name of the dialect.

    Parameters
    ----------
    name : str
        Dotted name in ``numba.cuda``.

    Returns
    -------
    str or None
        ``"barrier"``, ``"grid"``, ``"shared"`` or ``"warp"``; None if it is code of one thread.
    """
    return _KINDS.get(name)
