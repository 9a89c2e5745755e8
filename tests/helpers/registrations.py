"""Registrations with Numba that are part of the keys of all kernels of a process."""

from __future__ import annotations

import sys

__all__ = ["registrations_that_count"]


def registrations_that_count() -> set[str]:
    """Return the functions of tests, and of what they import, on which all keys depend.

    Without Numba's compiler in the process there are none.
    """
    if "nbrt.backends.foreign_overloads" not in sys.modules:
        return set()
    from nbrt.backends.foreign_overloads import _LOWERINGS, _TYPINGS, _foreign
    from nbrt.backends.program_registrations import lowering_registries, typing_registries

    found = []
    for cuda in (False, True):
        for registry in typing_registries(cuda=cuda):
            found += [
                getattr(each, "_overload_func", each) for each in _foreign(registry, _TYPINGS)
            ]
        for registry in lowering_registries(cuda=cuda):
            found += [each[0] for each in _foreign(registry, _LOWERINGS)]
    return {f"{each.__module__}.{each.__qualname__}" for each in found}
