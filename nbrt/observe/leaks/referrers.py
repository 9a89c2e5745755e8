"""`ReferrerSearch`: which variables, attributes and containers keep device memory alive.

NumPy arrays are unknown to Python's garbage collector, so one cannot ask it who refers to them. But
it knows the objects that do: all of them are looked through once for arrays over the memory in
question, and from there the collector is asked upwards, to something that has a name.
"""

from __future__ import annotations

import gc
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.observe.leaks.choice import chosen
from nbrt.observe.leaks.expressions import Link, Paths, is_array_type, referents
from nbrt.observe.leaks.frames import (
    is_function,
    is_of_watchers,
    locals_of,
    place_of,
    running_frames,
)
from nbrt.observe.leaks.referrer_paths import ReferrerPaths

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from types import FrameType

    from nbrt.backends.interface import DeviceInterface

__all__ = ["ReferrerSearch"]

_MAX_NAMES = 3
"""Names given for one allocation."""

_MAX_CANDIDATES = 100
"""Names that these are chosen from, about."""

_FAIR_SHARE = 8
"""Holders of one allocation that come before further holders of larger ones."""

_MAX_DEPTH = 8
"""Containers within one another that the collector leaves out."""

_OTHER, _ARRAY, _PLAIN = range(3)


class ReferrerSearch:
    """Finds out by whom memory is held.

    Parameters
    ----------
    owners : collection
        The allocations in question, as `DeviceInterface.owner_of` returns them.
    interfaces : iterable of DeviceInterface
        The kinds of device that they belong to.
    """

    def __init__(self, owners: Collection[Any], interfaces: Iterable[DeviceInterface]) -> None:
        self._owners = frozenset(owners)
        self._interfaces = tuple(interfaces)
        # What an object of a type is to us; plain: a dict or tuple, which the collector leaves out
        # where it holds nothing that the collector knows.
        self._roles: dict[type, int] = {dict: _PLAIN, tuple: _PLAIN}
        self._others: set[type] = set()
        self._locals: dict[int, list[tuple[str, str]]] = {}
        self._paths = Paths()

    def run(self) -> dict[Any, tuple[str, ...]]:
        """Return for each allocation some of the expressions that reach it, each with where."""
        found: dict[Any, list[str]] = {owner: [] for owner in self._owners}
        for frame in running_frames():
            if is_function(frame):
                self._look_at_locals(frame, found)
        links = [
            found
            for each in gc.get_objects()
            if self._may_hold(each) and not is_of_watchers(each)
            for found in self._within(each)
        ]
        # Not all of very many are named: rather those of the most memory, some of each first.
        links.sort(key=lambda found: -found[0].nbytes)
        turns = Counter[Any]()
        first: list[Any] = []
        further: list[Any] = []
        for owner, link in links:
            turns[owner] += 1
            (first if turns[owner] <= _FAIR_SHARE else further).append(link.held)
        ancestors = ReferrerPaths([*first, *further], self._locals, self._paths)
        for owner, link in links:
            names = found[owner]
            if len(names) < _MAX_CANDIDATES:
                names += ancestors.describe(link)
        ancestors.forget()
        return {owner: tuple(chosen(names)[:_MAX_NAMES]) for owner, names in found.items()}

    # -- down: objects that hold an array ----------------------------------------------------------

    def _look_at_locals(self, frame: FrameType, found: dict[Any, list[str]]) -> None:
        where = f", a local of {place_of(frame)}"
        for name, value in locals_of(frame).items():
            for owner, link in self._within((value,)):
                assert link.below is not None
                found[owner].append(f"{name}{self._paths.path(link.below)[0]}{where}")
            self._locals.setdefault(id(value), []).append((name, where))

    def _may_hold(self, holder: Any) -> bool:
        """Return at once whether it is worth while to look into one of very many objects."""
        if issubclass(type(holder), np.ndarray):
            return self._role_of(type(holder)) == _ARRAY
        return not self._others.issuperset(map(type, gc.get_referents(holder)))

    def _within(self, holder: Any, *above: Any) -> Iterator[tuple[Any, Link]]:
        """Yield the arrays that an object refers to, also through what the collector leaves out."""
        for inner in referents(holder):
            role = self._role_of(type(inner))
            if role == _OTHER:
                continue
            owner = self._owner(inner) if role == _ARRAY else None
            if owner is not None:
                link = Link(inner)
                for each in (holder, *above):
                    link = Link(each, link)
                yield owner, link
            elif not gc.is_tracked(inner) and len(above) < _MAX_DEPTH:
                yield from self._within(inner, holder, *above)

    def _role_of(self, cls: type) -> int:
        role = self._roles.get(cls)
        if role is None:
            role = self._roles[cls] = _role(cls)
            if role == _OTHER:
                self._others.add(cls)
        return role

    def _owner(self, array: object) -> Any:
        for interface in self._interfaces:
            owner = interface.owner_of(array)
            if owner is not None:
                return owner if owner in self._owners else None
        return None


def _role(cls: type) -> int:
    # What nbrt itself lays over a block is part of the block, not an array that holds it.
    if not is_array_type(cls):
        return _OTHER
    module = cls.__module__
    is_ours = type(module) is str and module.partition(".")[0] == "nbrt"
    return _OTHER if is_ours else _ARRAY
