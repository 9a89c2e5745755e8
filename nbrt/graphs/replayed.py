"""The commands of a replay, as hooks see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.backends.draw import Draw
from nbrt.backends.graphs import ArrayView, with_arrays
from nbrt.runtime.commands import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.backends.graphs import GraphNode, ReplayValues

__all__ = ["replayed_commands"]

_CONTROL = ("graph", "if", "while", "switch")


def replayed_commands(
    nodes: Sequence[GraphNode],
    values: ReplayValues,
    arrays: Callable[[ArrayView], Any] | None,
) -> list[Command]:
    """Return the commands of one replay, in the order of the capture.

    They have the arrays of the replay if `arrays` makes them, and draws the seed and offset of the
    replay. Control flow is one command of kind ``"call"``, since the host does not know which
    of its branches runs; nodes of another graph are commands like others.
    """
    states = {buffer: (seed, offset) for buffer, seed, offset in values.states}
    found: list[Command] = []
    _collect(nodes, arrays, states, found)
    return found


def _collect(
    nodes: Sequence[GraphNode],
    arrays: Callable[[ArrayView], Any] | None,
    states: dict[int, tuple[int, int]],
    found: list[Command],
) -> None:
    for node in nodes:
        if not node.is_enabled:
            continue
        if node.kind == "graph":
            _collect(node.branches[0].nodes, arrays, states, found)
        elif node.kind in _CONTROL:
            found.append(Command("call", _nothing, (), node.kind))
        elif node.source is None or arrays is None:
            kind: Any = node.kind
            found.append(Command(kind, _nothing, (), node.label))
        else:
            args = with_arrays(_with_states(node.source.args, states), arrays)
            kind = node.kind
            found.append(Command(kind, node.source.function, args, node.label))


def _with_states(args: tuple[Any, ...], states: dict[int, tuple[int, int]]) -> tuple[Any, ...]:
    """Return draws with seed and offset in place of the array that holds them."""
    return tuple(_with_state(arg, states) if type(arg) is Draw else arg for arg in args)


def _with_state(draw: Draw, states: dict[int, tuple[int, int]]) -> Draw:
    view = draw.device_state
    if type(view) is not ArrayView or view.buffer not in states:
        return draw
    seed, offset = states[view.buffer]
    return draw._replace(seed=seed, offset=(offset + draw.offset) % 2**64, device_state=None)


def _nothing(*_: object) -> None:
    """Do nothing: the function of a command that only hooks see."""
