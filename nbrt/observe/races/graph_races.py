"""`graph_races`: the races of a graph, found before it runs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from nbrt.errors import ArgumentError
from nbrt.graphs.node_text import line_of
from nbrt.graphs.order import order_of
from nbrt.observe.races.node_accesses import NodeAccesses
from nbrt.observe.races.reports import MemoryRaceReport, ReportedCall
from nbrt.runtime.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nbrt._internal.device import Device
    from nbrt.backends.graphs import GraphBuffer, GraphNode
    from nbrt.graphs.graph import Graph
    from nbrt.graphs.order import GraphOrder
    from nbrt.observe.races.footprint import Footprint
    from nbrt.observe.races.node_accesses import NodeAccess

__all__ = ["find_graph_races", "graph_races"]

_Place: TypeAlias = tuple[int, "Footprint"]
"""A memory, and bytes in it."""


class _Found(NamedTuple):
    """An access, and its node in the list that is checked, which may be control flow."""

    position: int
    outer: GraphNode
    access: NodeAccess


def graph_races(graph: Graph) -> list[MemoryRaceReport]:
    """Return the races of a graph, which need not run: its nodes, edges and operands are known.

    A race is a pair of nodes that access the same bytes without an order between them, where one
    may write. `check_races` finds races between commands that run, and those of graphs that are
    captured in its block.

    Parameters
    ----------
    graph : Graph
        A captured graph.

    Returns
    -------
    reports : list of MemoryRaceReport
        In the order of the later nodes; one report for each pair of call sites.

    Examples
    --------
    >>> import nbrt
    >>> with nbrt.device("cpu:0"):
    ...     x, side = nbrt.zeros(4), nbrt.Stream()
    ...     with nbrt.graph() as g:
    ...         main = nbrt.current_stream()
    ...         side.wait_stream(main)
    ...         nbrt.copy(x, 1.0, stream=side)
    ...         nbrt.copy(x, 2.0)
    ...         main.wait_stream(side)
    >>> [report.kind for report in graph_races(g)]
    ['unordered_use']
    """
    return find_graph_races(graph._nodes, graph._buffers, graph.device)


def find_graph_races(
    nodes: Sequence[GraphNode], buffers: Sequence[GraphBuffer], device: Device
) -> list[MemoryRaceReport]:
    """Return the races among nodes; see `graph_races`.

    The source of a kernel
    determines which arguments it writes (`argument_access_modes`). The bodies of control flow are
    checked as well; different branches of a condition never run together.

    Parameters
    ----------
    nodes : sequence of GraphNode
        In an order that respects the dependencies.
    buffers : sequence of GraphBuffer
        The buffers, by number.
    device : Device
        The device of the memory, for the reports.

    Returns
    -------
    reports : list of MemoryRaceReport
        In the order of the later nodes; one report for each pair of call sites.
    """
    search = _Search(NodeAccesses(buffers), device)
    search.check(nodes)
    return search.reports


class _Search:
    def __init__(self, accesses: NodeAccesses, device: Device) -> None:
        self.reports: list[MemoryRaceReport] = []
        self._accesses = accesses
        self._device = device
        self._seen: set[tuple[object, ...]] = set()

    def check(self, nodes: Sequence[GraphNode]) -> None:
        """Check a list of nodes, then those of their branches."""
        order = order_of(nodes)
        accesses = [self._accesses.of(node) for node in nodes]
        if len(order.chains) > 1:
            self._check_order(nodes, order, accesses)
        for node in nodes:
            for branch in node.branches:
                self.check(branch.nodes)

    def _check_order(
        self, nodes: Sequence[GraphNode], order: GraphOrder, accesses: list[list[NodeAccess]]
    ) -> None:
        neighbours = _neighbours(each for of_node in accesses for each in of_node)
        # For each place the latest access of each chain and mode. An earlier access of the chain
        # precedes it, so a node that precedes neither races with the latest one as well.
        latest: defaultdict[_Place, dict[tuple[int, str], _Found]]
        latest = defaultdict(dict)
        for index, of_node in enumerate(accesses):
            for access in of_node:
                for place in neighbours[access.memory, access.footprint]:
                    for other in latest[place].values():
                        if not order.precedes(other.position, index) and _conflict(
                            access, other.access
                        ):
                            self._report(other, _Found(index, nodes[index], access))
            chain = order.chain_of(index)
            for access in of_node:
                place = access.memory, access.footprint
                latest[place][chain, access.mode] = _Found(index, nodes[index], access)

    def _report(self, earlier: _Found, later: _Found) -> None:
        report = _report(earlier, later, self._device)
        calls = [each and (each.what, each.stream, each.stack) for each in report.calls]
        key: tuple[object, ...] = tuple(calls)
        if None in key:  # without call sites, the nodes stand for themselves
            key = id(earlier.access.node), id(later.access.node)
        if key not in self._seen:
            self._seen.add(key)
            self.reports.append(report)


def _conflict(access: NodeAccess, other: NodeAccess) -> bool:
    """Return whether two accesses must be ordered; atomic operations need no order."""
    if access.mode == other.mode == "updates":
        return False
    return access.may_write or other.may_write


def _neighbours(accesses: Iterable[NodeAccess]) -> dict[_Place, list[_Place]]:
    """Return, for each place, those with common bytes, itself among them."""
    places = {(access.memory, access.footprint) for access in accesses}
    found: dict[_Place, list[_Place]] = {place: [place] for place in places}
    for first, second in _overlapping(places):
        found[first].append(second)
        found[second].append(first)
    return found


def _overlapping(places: Iterable[_Place]) -> Iterator[tuple[_Place, _Place]]:
    by_memory: defaultdict[int, list[_Place]] = defaultdict(list)
    for place in places:
        by_memory[place[0]].append(place)
    for same in by_memory.values():
        same.sort(key=lambda place: place[1].begin)
        active: list[_Place] = []
        for place in same:
            active = [other for other in active if other[1].end > place[1].begin]
            for other in active:
                if place[1].overlaps(other[1]):
                    yield other, place
            active.append(place)


def _report(earlier: _Found, later: _Found, device: Device) -> MemoryRaceReport:
    access, other = later.access, earlier.access
    begin, nbytes = access.footprint.begin, access.footprint.end - access.footprint.begin
    where = f"of buffer {access.buffer}" if access.is_private else f"at {begin:#x}"
    streams = [_stream_name(each.access.node.stream) for each in (earlier, later)]
    places = [_place(each) for each in (earlier, later)]
    if streams[0] == streams[1]:
        elsewhere = "beside it"
        advice = f"name one in `after=` of the other: {places[0]} and {places[1]}"
    else:
        elsewhere = "on another stream"
        advice = (
            f"add the missing event: event = first.record_event() behind {places[0]}, and "
            f"second.wait_event(event) before {places[1]}, where first is {streams[0]} and second "
            f"is {streams[1]}"
        )
    if "uses" in (access.mode, other.mode):
        advice += "; a kernel whose source is unknown counts as writing its arrays"
    return MemoryRaceReport(
        "unordered_use",
        device,
        begin,
        nbytes,
        f"{_label(access)} {access.mode} {nbytes} bytes {where}, which an earlier {_label(other)} "
        f"{other.mode} {elsewhere}, and no edge of the graph orders the two",
        advice,
        touched=_call(_label(access), access, streams[1]),
        other=_call(f"earlier {_label(other)}", other, streams[0]),
    )


def _call(what: str, access: NodeAccess, stream: str) -> ReportedCall | None:
    site = access.node.site
    return None if site is None else ReportedCall(what, stream, site.format())


def _label(access: NodeAccess) -> str:
    node = access.node
    return f"{node.kind} of {node.label}" if node.label else node.kind


def _place(found: _Found) -> str:
    """Return the node to order, and the line of its call."""
    node, line = found.access.node, line_of(found.access.node.site)
    inside = "" if node is found.outer else f" in a branch of node {found.position}"
    return f"node {node.index}{inside}{f' ({line})' if line else ''}"


def _stream_name(stream: int) -> str:
    try:
        return repr(Stream.from_id(stream))
    except ArgumentError:  # the stream is gone, or the graph was loaded
        return f"stream {stream}"
