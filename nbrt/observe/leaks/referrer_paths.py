"""`ReferrerPaths`: from containers up to something with a name, for many at once."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from nbrt.observe.leaks.expressions import Link, referents, roots
from nbrt.observe.leaks.frames import is_of_watchers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nbrt.observe.leaks.expressions import Paths

__all__ = ["ReferrerPaths"]

_MAX_DEPTH = 8
"""Steps from a container up to a name."""

_MAX_WIDTH = 100
"""Objects for whose holders the collector is asked at once: it compares each with every other."""

_FAIR_SHARE = 8
"""Holders of one object that come before further holders of more important ones."""

_MAX_NAMES = 3
"""Names given for one object."""

_Name = tuple[str, bool, str]
"""What to write in front of a path from an object, whether the object is the namespace of that
name, and what to write behind."""


class _Node:
    """An object, and the objects that hold it; of low rank if it is important."""

    __slots__ = ("held", "is_last", "names", "parents", "rank")

    def __init__(self, held: Any, names: list[_Name], rank: tuple[int, int]) -> None:
        self.held = held
        self.names = names
        self.rank = rank
        self.parents: list[_Node] = []
        self.is_last = False


class ReferrerPaths:
    """What holds containers, up to something with a name.

    Parameters
    ----------
    containers : iterable
        The objects to be named, the most important first: of very many, only these are.
    variables : mapping of int to list of (str, str)
        The local variables of running functions by the ``id`` of their values: their names, and
        what to write behind.
    paths : Paths
        Writes what comes behind a name.
    """

    def __init__(
        self,
        containers: Iterable[Any],
        variables: Mapping[int, list[tuple[str, str]]],
        paths: Paths,
    ) -> None:
        self._variables = variables
        self._paths = paths
        self._nodes: dict[int, _Node] = {}
        self._named: dict[int, list[_Name]] = {}
        level: list[_Node] = []
        for each in containers:
            if id(each) not in self._nodes and len(level) < _MAX_WIDTH:
                level.append(self._node(each, (0, len(level))))
        for _ in range(_MAX_DEPTH):
            level = [node for node in level if not node.is_last]
            level = self._climb(sorted(level, key=lambda node: node.rank)[:_MAX_WIDTH])

    def forget(self) -> None:
        """Let go of all objects now, though nodes may hold one another in circles."""
        for node in self._nodes.values():
            node.parents.clear()
        self._nodes.clear()

    def describe(self, link: Link) -> list[str]:
        """Return expressions for the end of a chain that begins at one of the containers."""
        node = self._nodes.get(id(link.held))
        names = [] if node is None else self._names_of(node)
        if not names:
            why = "one of very many" if node is None else "which nothing with a name holds"
            names = [(f"<{type(link.held).__qualname__}>", False, f", {why}")]
        return [
            f"{name}{self._paths.path(link, is_namespace)[0]}".removeprefix(".") + where
            for name, is_namespace, where in names
        ]

    def _node(self, held: Any, rank: tuple[int, int]) -> _Node:
        node = self._nodes.get(id(held))
        if node is None:
            final = [(name, False, where) for name, where in roots(held)]
            found = [(name, False, where) for name, where in self._variables.get(id(held), ())]
            node = self._nodes[id(held)] = _Node(held, found + final, rank)
            node.is_last = bool(final)
        return node

    def _climb(self, level: list[_Node]) -> list[_Node]:
        """Find the holders of nodes; return those that are new."""
        below = {id(node.held): node for node in level}
        found = []
        for parent in gc.get_referrers(*[node.held for node in level]) if level else ():
            if type(parent) in (Link, _Node) or is_of_watchers(parent):
                continue
            inner = {id(each) for each in referents(parent)} & below.keys()
            if not inner:
                continue  # another thread has changed it just now
            is_new = id(parent) not in self._nodes
            children = (below[each] for each in inner)
            rank = min((len(each.parents) // _FAIR_SHARE, each.rank[1]) for each in children)
            node = self._node(parent, rank)
            if is_new:
                found.append(node)
            for each in inner:
                below[each].parents.append(node)
            # One step further than local variables: what they hold may have a global name as well.
            node.is_last = node.is_last or all(below[each].names for each in inner)
        return found

    def _names_of(self, node: _Node) -> list[_Name]:
        """Return the shortest names of an object."""
        known = self._named.get(id(node))
        if known is not None:
            return known
        self._named[id(node)] = []  # what holds itself gets no name by that
        found = list(node.names)
        for parent in node.parents:
            for name, is_namespace, where in self._names_of(parent):
                step, is_inner = self._paths.path(Link(parent.held, Link(node.held)), is_namespace)
                found.append((name + step, is_inner, where))
        names = self._named[id(node)] = sorted(found, key=lambda each: len(each[0]))[:_MAX_NAMES]
        return names
