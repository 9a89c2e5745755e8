"""The explicit signatures of a ``jit`` dispatcher, which limit the types that it compiles for."""

from __future__ import annotations

from typing import Any

__all__ = ["declared_signatures"]


def declared_signatures(function: object) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the argument types and the result of each explicit signature.

    Parameters
    ----------
    function : object
        A kernel or a device function. A dispatcher of Numba or numba-cuda has them in `overloads`;
        any may have a list `declared_signatures` of signatures, or of tuples of argument types.

    Returns
    -------
    list of (tuple of numba types, numba type or None)
        Empty if the function compiles for any types. The result is None where it is inferred.
    """
    declared = getattr(function, "declared_signatures", None)
    if getattr(function, "_can_compile", declared is None):
        return []
    if declared:
        return [
            (tuple(getattr(each, "args", each)), getattr(each, "return_type", None))
            for each in declared
        ]
    overloads: dict[Any, Any] = getattr(function, "overloads", {})
    return [
        (args, getattr(getattr(each, "signature", None), "return_type", None))
        for args, each in overloads.items()
    ]
