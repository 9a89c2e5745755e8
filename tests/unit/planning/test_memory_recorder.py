"""The recorder of a plan: the same record with commands, which other hooks need, and without."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbrt
from nbrt.runtime import commands
from nbrt.runtime.commands import install_hook

if TYPE_CHECKING:
    from nbrt.runtime.commands import Command

KIB, MIB = 1 << 10, 1 << 20


class Silent:
    def before(self, stream: nbrt.Stream, command: Command) -> None: ...

    def after(self, stream: nbrt.Stream, command: Command, result: Any) -> None: ...


def number_addresses(trace: list[dict[str, Any]]) -> None:
    """Replace addresses by numbers in order of appearance; a new segment has new ones."""
    numbers: dict[int, int] = {}
    count = itertools.count()
    for entry in trace:
        del entry["time_us"]
        address = entry.get("addr", 0)
        if entry["action"] == "segment_alloc":
            segment = range(address, address + entry["size"])
            numbers = {key: number for key, number in numbers.items() if key not in segment}
        if address not in numbers:
            numbers[address] = next(count)
        entry["addr"] = numbers[address]
        entry["stream"] = bool(entry["stream"])


def record_of(program: list[tuple[int, int]], kind: str, *, is_alone: bool) -> list[Any]:
    """Return what a plan says of a program, with addresses as numbers in order of appearance."""
    arrays: list[Any] = []
    with nbrt.fake(kind) as plan:
        streams = [nbrt.default_stream(f"{kind}:0"), nbrt.Stream(f"{kind}:0")]
        with nullcontext() if is_alone else install_hook(Silent()):
            assert (commands.memory_recorder is not None) is is_alone
            for nbytes, choice in program:
                if nbytes:
                    with nbrt.memory.annotate(f"step {choice}"):
                        arrays.append(nbrt.empty(nbytes, "uint8", stream=streams[choice % 2]))
                elif arrays:
                    del arrays[choice % len(arrays)]
            arrays.clear()
            (trace,) = plan.snapshot()["device_traces"]
    number_addresses(trace)
    peak = plan.peaks[0]
    holders = [replace(each, stream=bool(each.stream)) for each in peak.holders]
    samples = peak.timeline.allocated, peak.timeline.reserved
    return [trace, peak.allocated, peak.reserved, holders, samples]


sizes = st.sampled_from([0, 0, 0, 1, 100, 300, 3 * KIB, 9 * KIB, MIB, 3 * MIB, 20 * MIB])
programs = st.lists(st.tuples(sizes, st.integers(0, 7)), max_size=60)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@settings(max_examples=25, deadline=None)
@given(program=programs)
def test_a_record_without_commands_equals_one_of_a_hook(
    program: list[tuple[int, int]], kind: str
) -> None:
    alone, hooked = (record_of(program, kind, is_alone=choice) for choice in (True, False))
    assert alone == hooked
