"""`plan_memory` against runs in which nodes overlap as their edges allow."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import allocation_traces
from nbrt.backends.graphs import ArrayView, Branch, GraphBuffer, GraphNode, StateAdvance, Work
from nbrt.errors import GraphError
from nbrt.graphs.memory_plan import MemoryPlan, plan_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

Bytes = dict[int, object]


def view(buffer: int) -> ArrayView:
    return ArrayView(buffer, 0, (1,), (1,), np.dtype("int8"))


def node(index: int, uses: list[int], before: tuple[int, ...] = (), **more: Any) -> GraphNode:
    """Return a node that uses buffers in an argument and in a tuple."""
    work = Work(np.copyto, (*map(view, uses[:1]), tuple(map(view, uses[1:]))))
    kind = more.pop("kind", "fill")
    return GraphNode(index, kind, "", 0, 0, (work,), before, **more)


def private(*sizes: int) -> list[GraphBuffer]:
    return [GraphBuffer(each, 0, size, is_private=True) for each, size in enumerate(sizes)]


class Run:
    """A run of a graph that keeps in each byte the buffer that owns it.

    A node claims the bytes of its buffers when it starts, unless they have been used before, and
    checks them when it ends. Starts and ends happen in a random order that the edges allow.
    """

    def __init__(self, plan: MemoryPlan, scopes: dict[int, Branch], chance: random.Random) -> None:
        self._plan = plan
        self._scopes = scopes
        self._chance = chance
        self._bytes: Bytes = {}
        self._used: set[int] = set()
        self._turns = itertools.count()

    def list_of(self, nodes: list[GraphNode]) -> None:
        """Run nodes; the body of a running node runs at its end, so others overlap with it."""
        started: set[int] = set()
        done: set[int] = set()
        while len(done) < len(nodes):
            ready = [n.index for n in nodes if n.index not in started and done >= {*n.dependencies}]
            index = self._chance.choice([*ready, *(started - done)])
            if index in started:
                self._end(nodes[index])
                done.add(index)
            else:
                self._touch(nodes[index])
                started.add(index)

    def _end(self, each: GraphNode) -> None:
        turns = self._chance.randrange(3) if each.kind == "while" else 1
        chosen = list(each.branches) * turns
        if each.kind in ("if", "switch"):
            chosen = [self._chance.choice(each.branches)]
        for branch in chosen:
            self.list_of(branch.nodes)
            self._used -= {buffer for buffer, scope in self._scopes.items() if scope is branch}
            self._touch(each)
        self._touch(each)

    def _touch(self, each: GraphNode) -> None:
        for buffer in used_by(each, self._scopes):
            begin = self._plan.offsets[buffer]
            for address in range(begin, begin + self._sizes[buffer]):
                if buffer in self._used:
                    assert self._bytes[address] == buffer
                self._bytes[address] = buffer
            self._used.add(buffer)

    @property
    def _sizes(self) -> dict[int, int]:
        return {each.number: each.nbytes for each in self._plan.buffers}


def used_by(each: GraphNode, scopes: dict[int, Branch]) -> set[int]:
    """Return the buffers that a node uses, with those of its branches that live beyond a run."""
    used = {each.flag.buffer} if each.flag else set()
    used |= {arg.buffer for work in each.work for arg in (*work.args[:-1], *work.args[-1])}
    for branch in each.branches:
        for inner in branch.nodes:
            used |= {b for b in used_by(inner, scopes) if scopes.get(b) is not branch}
    return used


class Graphs:
    """Makes graphs with control flow, and buffers of which some belong to a branch.

    By chance from one seed: draws of hypothesis would take longer than the tests.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.sizes: list[int] = []
        self.scopes: dict[int, Branch] = {}
        self.nodes = self._list(0, [])

    def _new(self, limit: int) -> list[int]:
        sizes = [self._chance.randint(1, 9) for _ in range(self._chance.randint(0, limit))]
        numbers = list(range(len(self.sizes), len(self.sizes) + len(sizes)))
        self.sizes += sizes
        return numbers

    def _list(self, depth: int, outer: list[int], branch: Branch | None = None) -> list[GraphNode]:
        mine = self._new(4)
        if branch is not None:
            self.scopes.update(dict.fromkeys(mine, branch))
        usable = [*outer, *mine]
        nodes: list[GraphNode] = []
        for index in range(self._chance.randint(0 if depth else 1, 5)):
            before = self._some(range(index), 2)
            inner = ["if", "while", "switch"] if depth < 2 else []
            kind = self._chance.choice(["fill"] * 3 + inner)
            more: dict[str, Any] = {"kind": kind}
            if kind != "fill":
                more["branches"] = self._branches(kind, depth, usable)
                flags = self._some(usable, 3)
                more["flag"] = view(flags[0]) if flags else None
            nodes.append(node(index, self._some(usable, 3), tuple(before), **more))
        return nodes

    def _some(self, choices: Sequence[int], limit: int) -> list[int]:
        return self._chance.choices(choices, k=self._chance.randint(0, limit)) if choices else []

    def _branches(self, kind: str, depth: int, usable: list[int]) -> tuple[Branch, ...]:
        branches = []
        for _ in range(1 if kind == "while" else self._chance.randint(1, 3)):
            branch = Branch([])
            branch.nodes = self._list(depth + 1, usable, branch)
            branches.append(branch)
        return tuple(branches)


@settings(max_examples=300)
@given(st.integers(0, 2**64 - 1))
def test_no_run_that_the_edges_allow_overwrites_a_buffer_in_use(seed: int) -> None:
    chance = random.Random(seed)
    drawn = Graphs(chance)
    plan = plan_memory(drawn.nodes, private(*drawn.sizes), scopes=drawn.scopes, alignment=1)
    for _ in range(4):
        run = Run(plan, drawn.scopes, chance)
        for _ in range(2):  # two replays
            run.list_of(drawn.nodes)
            run._used.clear()
    assert plan.peak >= plan.bound
    assert plan.saved == plan.total - plan.peak >= 0


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
def test_the_bound_is_below_every_plan_and_the_plan_is_close_to_the_best(
    sizes: list[int], data: st.DataObject
) -> None:
    edges = [
        tuple(data.draw(st.sets(st.integers(0, index - 1), max_size=2))) if index else ()
        for index in range(6)
    ]
    uses = [data.draw(st.lists(st.sampled_from(range(len(sizes))), max_size=2)) for _ in range(6)]
    nodes = [node(index, uses[index], edges[index]) for index in range(6)]
    plan = plan_memory(nodes, private(*sizes), alignment=1)
    used = {each.number for each in plan.buffers}
    overlaps = {
        (a, b) for a, b in itertools.permutations(used, 2) if not _precede(a, b, nodes, uses)
    }
    apart = {(a, b) for a, b in overlaps if (b, a) in overlaps}
    best = min(_stacked(order, sizes, apart) for order in itertools.permutations(sorted(used)))
    assert plan.bound <= best <= plan.peak <= 1.5 * best


def _precede(a: int, b: int, nodes: list[GraphNode], uses: list[list[int]]) -> bool:
    """Return whether all uses of buffer `a` precede all those of `b`, from the closure."""
    before: list[set[int]] = []
    for each in nodes:
        direct = {*each.dependencies}
        before.append(direct.union(*(before[one] for one in direct)))
    pairs = itertools.product(range(len(nodes)), repeat=2)
    return all(i in before[j] for i, j in pairs if a in uses[i] and b in uses[j])


def _stacked(order: tuple[int, ...], sizes: list[int], apart: set[tuple[int, int]]) -> int:
    """Return the peak if each buffer is placed as low as possible, in this order."""
    offsets: dict[int, int] = {}
    for each in order:
        offset = 0
        while any(
            (each, other) in apart
            and offset < begin + sizes[other]
            and begin < offset + sizes[each]
            for other, begin in offsets.items()
        ):
            offset += 1
        offsets[each] = offset
    return max((begin + sizes[each] for each, begin in offsets.items()), default=0)


def test_buffers_of_parallel_branches_are_apart() -> None:
    nodes = [node(0, []), node(1, [0], (0,)), node(2, [1], (0,)), node(3, [2], (1, 2))]
    plan = plan_memory(nodes, private(100, 300, 200))
    assert (plan.total, plan.peak, plan.saved) == (256 + 512 + 256, 768, 256)
    assert plan.offsets[2] == 0


def test_a_node_that_ends_one_buffer_and_starts_another_uses_both() -> None:
    plan = plan_memory([node(0, [0]), node(1, [0, 1], (0,))], private(1, 1))
    assert plan.saved == 0


def test_a_buffer_of_a_body_and_outside_lives_for_the_whole_node() -> None:
    body = Branch([node(0, [0]), node(1, [1], (0,))])
    loop = node(1, [], (0,), kind="while", branches=(body,), flag=view(2))
    nodes = [node(0, [0]), loop, node(2, [3], (1,))]
    buffers = private(1, 1, 1, 1)
    plan = plan_memory(nodes, buffers, alignment=1)
    assert plan.peak == 3  # buffer 1 passes from one turn to the next, for all that is known
    assert plan.offsets[3] == 0
    two = Branch([node(0, [4]), node(1, [1], (0,))])
    loop.branches = (two,)
    scoped = plan_memory(nodes, private(1, 1, 1, 1, 1), scopes={1: two, 4: two}, alignment=1)
    assert scoped.offsets[1] == scoped.offsets[4]


def test_a_state_that_a_loop_advances_is_in_use() -> None:
    loop = node(0, [], kind="while", branches=(Branch([], (StateAdvance(0, 4),)),), flag=view(1))
    assert plan_memory([loop], private(16, 1)).saved == 0


def test_a_use_outside_of_the_branch_of_a_buffer_is_refused() -> None:
    body = Branch([node(0, [0])])
    nodes = [node(0, [1], kind="if", branches=(body,)), node(1, [0], (0,))]
    with pytest.raises(GraphError, match=r"buffer 0 to be used in the branch.*node 1 \(fill \)"):
        plan_memory(nodes, private(1, 1), scopes={0: body})


def test_buffers_of_users_and_unused_ones_have_no_place() -> None:
    buffers = [GraphBuffer(0, 4096, 10), GraphBuffer(1, 0, 10, is_private=True)]
    assert plan_memory([node(0, [0])], buffers).offsets == {}
    assert repr(plan_memory([], [])) == (
        "MemoryPlan: 0 buffers of 0 bytes in a block of 0 bytes, 0 saved"
    )


def test_the_table_lists_the_largest_buffers() -> None:
    nodes = [node(each, [each], (each - 1,) if each else ()) for each in range(30)]
    text = repr(plan_memory(nodes, private(*range(1000, 31000, 1000))))
    assert text.count("\n") == 1 + 24 + 1
    assert "29       0  30208  29 to 29" in text
    assert text.endswith("  and 6 smaller buffers of 21504 bytes")


def test_plans_of_recorded_traces_are_close_to_the_bytes_in_use() -> None:
    for name, events in allocation_traces.load().items():
        plan = plan_memory(*_from_trace(events))
        assert plan.peak <= 1.01 * plan.bound, name


@pytest.mark.parametrize("name", allocation_traces.SYNTHETIC)
def test_plans_of_synthetic_traces_are_close_to_the_bytes_in_use(name: str) -> None:
    plan = plan_memory(*_from_trace(list(allocation_traces.SYNTHETIC[name]())))
    assert plan.peak <= 1.1 * plan.bound


def _from_trace(
    events: list[allocation_traces.Event],
) -> tuple[list[GraphNode], list[GraphBuffer]]:
    """Return nodes in a row, each of which uses the buffer that an event allocates or frees."""
    alive: dict[int, int] = {}
    sizes: list[int] = []
    uses = []
    for event in events:
        if event.nbytes:
            alive[event.block] = len(sizes)
            sizes.append(event.nbytes)
            uses.append([alive[event.block]])
        elif event.block in alive:
            uses.append([alive.pop(event.block)])
    uses.append(list(alive.values()))
    nodes = [node(each, uses[each], (each - 1,) if each else ()) for each in range(len(uses))]
    return nodes, private(*sizes)
