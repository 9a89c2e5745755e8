"""`ReferrerPaths`: the paths from objects with names down to containers of arrays."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from nbrt.observe.leaks.expressions import Link, is_of_search, referents, root_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nbrt.observe.leaks.expressions import Paths

__all__ = ["ReferrerPaths"]

_MAX_DEPTH = 8
"""Steps from a container up to a name."""

_MAX_WIDTH = 100
"""Objects in one call of `gc.get_referrers`, whose time is proportional to their number."""

_FAIR_SHARE = 8
"""Referrers of one object that precede further referrers of more important objects."""

_MAX_NAMES = 3
"""Names of one object."""

_Name = tuple[str, bool, str]
"""The name of an object, whether the object is the namespace of that name, and the location."""


class _Node:
    """An object and its referrers; important objects have a low rank."""

    __slots__ = ("held", "is_last", "names", "parents", "rank")

    def __init__(self, held: Any, names: list[_Name], rank: tuple[int, int]) -> None:
        self.held = held
        self.names = names
        self.rank = rank
        self.parents: list[_Node] = []
        self.is_last = False


class ReferrerPaths:
    """The referrers of containers, up to objects with names.

    Parameters
    ----------
    containers : iterable
        The objects to name, the most important first; only the first hundred get names.
    variables : mapping of int to list of (str, str)
        Names and locations of the local variables of running functions, by ``id`` of the value.
    paths : Paths
        Formats the path below a name.
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
        for container in containers:
            if id(container) not in self._nodes and len(level) < _MAX_WIDTH:
                level.append(self._node(container, (0, len(level))))
        for _ in range(_MAX_DEPTH):
            level = [node for node in level if not node.is_last]
            level = self._climb(sorted(level, key=lambda node: node.rank)[:_MAX_WIDTH])

    def clear(self) -> None:
        """Drop all objects at once, without waiting for the collector to break cycles of nodes."""
        for node in self._nodes.values():
            node.parents.clear()
        self._nodes.clear()

    def describe(self, link: Link) -> list[str]:
        """Return expressions for the array at the end of a chain that starts at a container."""
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
            roots = [(name, False, where) for name, where in root_names(held)]
            local = [(name, False, where) for name, where in self._variables.get(id(held), ())]
            node = self._nodes[id(held)] = _Node(held, local + roots, rank)
            node.is_last = bool(roots)
        return node

    def _climb(self, level: list[_Node]) -> list[_Node]:
        """Add the referrers of nodes; return the new nodes."""
        below = {id(node.held): node for node in level}
        new = []
        for parent in gc.get_referrers(*[node.held for node in level]) if level else ():
            if type(parent) in (Link, _Node) or is_of_search(parent):
                continue
            inner = {id(referent) for referent in referents(parent)} & below.keys()
            if not inner:
                continue  # another thread has changed it
            is_new = id(parent) not in self._nodes
            children = [below[key] for key in inner]
            rank = min((len(child.parents) // _FAIR_SHARE, child.rank[1]) for child in children)
            node = self._node(parent, rank)
            if is_new:
                new.append(node)
            for child in children:
                child.parents.append(node)
            # One step beyond local variables: their values may have global names too.
            node.is_last = node.is_last or all(child.names for child in children)
        return new

    def _names_of(self, node: _Node) -> list[_Name]:
        """Return the shortest names of an object."""
        known = self._named.get(id(node))
        if known is not None:
            return known
        self._named[id(node)] = []  # ends the recursion in a cycle
        candidates = list(node.names)
        for parent in node.parents:
            for name, is_namespace, where in self._names_of(parent):
                step, is_inner = self._paths.path(Link(parent.held, Link(node.held)), is_namespace)
                candidates.append((name + step, is_inner, where))
        names = sorted(candidates, key=lambda candidate: len(candidate[0]))[:_MAX_NAMES]
        self._named[id(node)] = names
        return names
