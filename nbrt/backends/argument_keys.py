"""Keys of the types of kernel arguments, under which launches find compiled code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["INT64", "NUMBERS", "UINT64", "scalar_key"]

INT64 = range(-(2**63), 2**63)
UINT64 = range(2**63, 2**64)

NUMBERS = frozenset(
    [
        float,
        bool,
        complex,
        *(kind for kind in np.sctypeDict.values() if issubclass(kind, (np.number, np.bool_))),
    ]
)
"""The types of numbers of which each is one type in a kernel: not int, whose type has a range."""


def scalar_key(argument: object) -> Hashable | None:
    """Return a key of the type of a scalar argument; None for other arguments.

    Parameters
    ----------
    argument : object
        An argument of a launch.

    Returns
    -------
    key : hashable or None
        Equal for scalars for which a kernel is compiled once.
    """
    kind: Hashable = argument.__class__  # type: ignore[assignment]  # types hash, mypy #11469
    if kind is int:
        if argument in INT64:
            return kind
        return np.uint64 if argument in UINT64 else "an int of more than 64 bits"
    if kind is float or kind is bool or kind is complex or isinstance(argument, np.number):
        return kind
    # The type of a date depends on its unit, that of a text on its length.
    return (kind, str(argument.dtype)) if isinstance(argument, np.generic) else None
