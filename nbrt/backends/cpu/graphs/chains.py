"""Chains: the nodes of a graph as runs that one thread executes without waiting for another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Chain", "chains_of", "makespan", "regions_of"]

_MAX_REDUCED = 1 << 12
"""The largest graph whose superfluous dependencies are removed, and that is split in regions."""


class Chain(NamedTuple):
    """Nodes that each depend on the one before only, and that no other node waits for.

    Attributes
    ----------
    nodes : list of int
        The nodes.
    before : tuple of int
        The chains that must be done before.
    """

    nodes: list[int]
    before: tuple[int, ...]


def chains_of(dependencies: Sequence[Sequence[int]]) -> list[Chain]:
    """Split a graph into chains, in an order that respects the dependencies.

    Parameters
    ----------
    dependencies : sequence of sequence of int
        For each node the nodes before it; all are smaller than its own number.
    """
    if all(number in before for number, before in enumerate(dependencies[1:])):
        return [Chain(list(range(len(dependencies))), ())] if dependencies else []
    needed = _reduced(dependencies) if len(dependencies) <= _MAX_REDUCED else dependencies
    followers = [0] * len(needed)
    for before in needed:
        for node in before:
            followers[node] += 1
    chain_of: list[int] = []
    chains: list[Chain] = []
    for number, before in enumerate(needed):
        if len(before) == 1 and followers[before[0]] == 1:
            chain_of.append(chain_of[before[0]])
            chains[chain_of[number]].nodes.append(number)
        else:
            chain_of.append(len(chains))
            chains.append(Chain([number], tuple(sorted({chain_of[node] for node in before}))))
    return chains


def _reduced(dependencies: Sequence[Sequence[int]]) -> list[list[int]]:
    """Remove dependencies that follow from others."""
    ancestors: list[int] = []  # sets of nodes, as bits
    reduced = []
    for before in dependencies:
        implied = 0
        for node in before:
            implied |= ancestors[node]
        reduced.append([node for node in dict.fromkeys(before) if not implied >> node & 1])
        for node in before:
            implied |= 1 << node
        ancestors.append(implied)
    return reduced


def regions_of(chains: Sequence[Chain]) -> list[range]:
    """Split chains into regions, each of which is done before the next one begins.

    A chain that every other one precedes or follows is a region by itself.
    """
    count = len(chains)
    if count > _MAX_REDUCED:
        return [range(count)]
    ancestors: list[int] = []
    for chain in chains:
        known = 0
        for before in chain.before:
            known |= ancestors[before] | 1 << before
        ancestors.append(known)
    descendants = [0] * count
    for number in reversed(range(count)):
        for before in chains[number].before:
            descendants[before] |= descendants[number] | 1 << number
    regions, begin = [], 0
    for number in range(count):
        related = ancestors[number].bit_count() + descendants[number].bit_count()
        if related == count - 1:
            if begin < number:
                regions.append(range(begin, number))
            regions.append(range(number, number + 1))
            begin = number + 1
    if begin < count:
        regions.append(range(begin, count))
    return regions


def makespan(chains: Sequence[Chain], region: range, times: Sequence[int], threads: int) -> int:
    """Return the time that a region takes if threads run its chains in order.

    Parameters
    ----------
    chains : sequence of Chain
        All chains.
    region : range
        Those of the region.
    times : sequence of int
        The time of each chain of the region.
    threads : int
        Number of threads.
    """
    free = [0] * threads
    ends: dict[int, int] = {}
    for number, time in zip(region, times, strict=True):
        ready = max((ends.get(before, 0) for before in chains[number].before), default=0)
        at = min(range(threads), key=free.__getitem__)
        ends[number] = free[at] = max(free[at], ready) + time
    return max(free, default=0)
