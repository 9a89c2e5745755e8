"""`ReferrerSearch`: the variables, attributes and containers that keep device memory alive.

Python's garbage collector does not track NumPy arrays, so it cannot return their referrers. But it
tracks the containers of arrays: the search looks for arrays over the memory in every tracked object
once, and then asks the collector for referrers, up to an object with a name.
"""

from __future__ import annotations

import gc
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.observe.leaks.expressions import (
    Link,
    Paths,
    is_array_type,
    is_function,
    is_of_search,
    locals_of,
    place_of,
    referents,
    running_frames,
)
from nbrt.observe.leaks.referrer_paths import ReferrerPaths

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from types import FrameType

    from nbrt.backends.interface import DeviceInterface

__all__ = ["ReferrerSearch", "filter_names"]

_MAX_NAMES = 3
"""Names reported for one allocation."""

_MAX_CANDIDATES = 100
"""Approximate number of names that are filtered for one allocation."""

_FAIR_SHARE = 8
"""Referrers of one allocation that precede further referrers of larger allocations."""

_MAX_DEPTH = 8
"""Depth of nested containers that the collector does not track."""

_OTHER, _ARRAY, _CONTAINER = range(3)

_TOOLS = r"(IPython|ipykernel|traitlets|_pytest|pluggy|xdist|execnet)"
_TOOL_NAMES = re.compile(
    rf"{_TOOLS}\.|.*, a local of .*[/\\]{_TOOLS}[/\\]"
    r"|.*, (which nothing with a name holds|one of very many)$"
    r"|(.*\.)?displayhook\."
    r"|.*(\['last_execution_result'\]|\['output_hist'\]|\.user_ns_hidden\[)"
)
"""Names that belong to the runner of a program (IPython, pytest), not to the program."""

_ALIAS = re.compile(r"(_{1,3}|_\d+), a global of __main__")
_RESULT = re.compile(r"Out\[\d+\], a global of __main__")


def filter_names(names: list[str]) -> list[str]:
    """Return the distinct names of the program, or all names if it has none.

    Of IPython's names for the result of a cell, only one remains.

    Examples
    --------
    >>> filter_names(["_, a global of __main__", "_oh[3], a global of __main__"])
    ['Out[3], a global of __main__; release_tracebacks(outputs=True) lets go of it']
    """
    own = [name for name in names if not _TOOL_NAMES.match(name)] or names
    own = list(dict.fromkeys(re.sub(r"^_oh\[", "Out[", name) for name in own))
    results = [name for name in own if _RESULT.fullmatch(name)]
    if not results:
        return own
    others = [name for name in own if name not in results and not _ALIAS.fullmatch(name)]
    hint = "" if others else "; release_tracebacks(outputs=True) lets go of it"
    return [*(f"{name}{hint}" for name in results), *others]


class ReferrerSearch:
    """A search for the references to allocations.

    Parameters
    ----------
    owners : collection
        The allocations, as `DeviceInterface.owner_of` returns them.
    interfaces : iterable of DeviceInterface
        The interfaces of their devices.
    """

    def __init__(self, owners: Collection[Any], interfaces: Iterable[DeviceInterface]) -> None:
        self._owners = frozenset(owners)
        self._interfaces = tuple(interfaces)
        # Containers that the collector does not track if they contain no tracked object.
        self._roles: dict[type, int] = {dict: _CONTAINER, tuple: _CONTAINER}
        self._others: set[type] = set()
        self._locals: dict[int, list[tuple[str, str]]] = {}
        self._paths = Paths()

    def run(self) -> dict[Any, tuple[str, ...]]:
        """Return up to three expressions for each allocation, with their locations."""
        names: dict[Any, list[str]] = {owner: [] for owner in self._owners}
        for frame in running_frames():
            if is_function(frame):
                self._search_locals(frame, names)
        links = [
            link
            for holder in gc.get_objects()
            if self._may_hold(holder) and not is_of_search(holder)
            for link in self._arrays_in(holder)
        ]
        # Large allocations first, but a few referrers of each before the rest.
        links.sort(key=lambda link: -link[0].nbytes)
        counts = Counter[Any]()
        first: list[Any] = []
        further: list[Any] = []
        for owner, link in links:
            counts[owner] += 1
            (first if counts[owner] <= _FAIR_SHARE else further).append(link.held)
        paths = ReferrerPaths([*first, *further], self._locals, self._paths)
        for owner, link in links:
            if len(names[owner]) < _MAX_CANDIDATES:
                names[owner] += paths.describe(link)
        paths.clear()
        return {owner: tuple(filter_names(each)[:_MAX_NAMES]) for owner, each in names.items()}

    def _search_locals(self, frame: FrameType, names: dict[Any, list[str]]) -> None:
        where = f", a local of {place_of(frame)}"
        for name, value in locals_of(frame).items():
            for owner, link in self._arrays_in((value,)):
                assert link.below is not None
                names[owner].append(f"{name}{self._paths.path(link.below)[0]}{where}")
            self._locals.setdefault(id(value), []).append((name, where))

    def _may_hold(self, holder: Any) -> bool:
        """Return quickly whether an object can contain an array."""
        if issubclass(type(holder), np.ndarray):
            return self._role_of(type(holder)) == _ARRAY
        return not self._others.issuperset(map(type, gc.get_referents(holder)))

    def _arrays_in(self, holder: Any, *above: Any) -> Iterator[tuple[Any, Link]]:
        """Yield the arrays that an object refers to, directly or through untracked containers."""
        for inner in referents(holder):
            role = self._role_of(type(inner))
            if role == _OTHER:
                continue
            owner = self._owner(inner) if role == _ARRAY else None
            if owner is not None:
                link = Link(inner)
                for container in (holder, *above):
                    link = Link(container, link)
                yield owner, link
            elif not gc.is_tracked(inner) and len(above) < _MAX_DEPTH:
                yield from self._arrays_in(inner, holder, *above)

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
    if not is_array_type(cls):
        return _OTHER
    if hasattr(cls, "__array_function__") and not issubclass(cls, np.ndarray):
        return _ARRAY  # such as a fake array
    # nbrt's own views of a block are part of the block and do not hold it.
    module = cls.__module__
    is_ours = type(module) is str and module.partition(".")[0] == "nbrt"
    return _OTHER if is_ours else _ARRAY
