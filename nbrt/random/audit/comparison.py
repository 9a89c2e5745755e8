"""`compare`: the first draw in which two runs of a program differ, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from nbrt.random.audit.recording import DrawRecord, Recording, load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

__all__ = ["Difference", "compare"]

_Draws: TypeAlias = "Sequence[DrawRecord]"

_FIELDS = (
    "distribution",
    "dtype",
    "shape",
    "n",
    "region",
    "parameters",
    "layout",
    "constants",
    "version",
    "seed",
    "offset",
)
"""The fields that decide the bits of a draw; the first that differs is the reported reason."""

_STRUCTURE = _FIELDS[:-1]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first draw in which two runs differ; ``str()`` returns a report.

    Attributes
    ----------
    kind : str
        "missing", "extra" or "order"; the field of `DrawRecord` that differs: "distribution",
        "dtype", "shape", "n", "region", "parameters", "layout", "constants", "version", "seed" or
        "offset"; or "digest", if the same draw gave other bits.
    reason : str
        An explanation.
    first, second : DrawRecord or None
        The draws; None after the end of a run.
    names : (str, str)
        Names of the runs in the report.
    """

    kind: str
    reason: str
    first: DrawRecord | None
    second: DrawRecord | None
    names: tuple[str, str]

    def __str__(self) -> str:
        lines = [f"the runs differ ({self.kind}): {self.reason}"]
        for name, record in zip(self.names, (self.first, self.second), strict=True):
            lines.append(f"{name}: {record or 'no draw'}")
            if record is not None:
                lines += [f"    {line}" for line in record.stack]
        return "\n".join(lines)


def compare(
    first: Recording | str | PathLike[str],
    second: Recording | str | PathLike[str],
    names: tuple[str, str] = ("first run", "second run"),
) -> Difference | None:
    """Return the first draw in which two runs differ, or None.

    Draws are equal if the fields that decide their bits are, and the digests if both runs have
    them; devices, streams, stacks and numbers of generators may differ. Draws are compared thread
    by thread: by the threads' names, or if these differ, in the order of the seeds.

    Parameters
    ----------
    first, second : Recording, str or path
        The runs, or their files.
    names : (str, str)
        Names of the runs in the report.
    """
    runs = [run if isinstance(run, Recording) else load(run) for run in (first, second)]
    differences = [
        difference
        for ours, theirs in _paired(*(run.draws for run in runs))
        if (difference := _first_difference(ours, theirs, names, runs)) is not None
    ]
    return min(differences, key=_place, default=None)


def _place(difference: Difference) -> int:
    return min(draw.index for draw in (difference.first, difference.second) if draw is not None)


def _paired(first: _Draws, second: _Draws) -> list[tuple[_Draws, _Draws]]:
    """Return the draws of each thread in both runs."""
    ours, theirs = _by_thread(first), _by_thread(second)
    if ours.keys() == theirs.keys():
        return [(draws, theirs[name]) for name, draws in ours.items()]
    if len(ours) < 2 and len(theirs) < 2:
        return [(first, second)]
    # Names such as "Thread-7" count on from one run of a process to the next.
    left, right = (sorted(by_thread.values(), key=_beginning) for by_thread in (ours, theirs))
    count = max(len(left), len(right))
    return [
        (left[k] if k < len(left) else (), right[k] if k < len(right) else ()) for k in range(count)
    ]


def _by_thread(draws: _Draws) -> dict[str, list[DrawRecord]]:
    by_thread: dict[str, list[DrawRecord]] = {}
    for draw in draws:
        by_thread.setdefault(draw.thread, []).append(draw)
    return by_thread


def _beginning(draws: _Draws) -> tuple[Any, ...]:
    return draws[0].seed, draws[0].offset, draws[0].distribution, draws[0].shape


def _first_difference(
    ours: _Draws, theirs: _Draws, names: tuple[str, str], runs: list[Recording]
) -> Difference | None:
    for place, (x, y) in enumerate(zip(ours, theirs, strict=False)):
        if any(getattr(x, name) != getattr(y, name) for name in _FIELDS):
            kind, reason = _structure(ours[place:], theirs[place:], names)
            if not kind:
                kind, reason = _field(x, y, names, runs)
            return Difference(kind, reason, x, y, names)
        if x.digest != y.digest and x.digest is not None and y.digest is not None:
            return Difference("digest", _other_bits(x, y, runs), x, y, names)
    shared = min(len(ours), len(theirs))
    if len(ours) > shared:
        more = len(ours) - shared
        reason = f"{names[1]} ends before the last {more} of the draws of {names[0]}"
        return Difference("missing", reason, ours[shared], None, names)
    if len(theirs) > shared:
        reason = f"{names[1]} goes on for {len(theirs) - shared} more draws"
        return Difference("extra", reason, None, theirs[shared], names)
    return None


def _structure(ours: _Draws, theirs: _Draws, names: tuple[str, str]) -> tuple[str, str]:
    """Return whether draws come in another order, or are extra or missing; ("", "") if neither."""
    left, right = [_structure_of(draw) for draw in ours], [_structure_of(draw) for draw in theirs]
    if left[0] == right[0]:
        return "", ""
    if Counter(left) == Counter(right):
        there = theirs[right.index(left[0])].index
        return "order", (
            f"the same draws come in another order: what {names[0]} draws here is #{there} of "
            f"{names[1]}"
        )
    if len(right) > len(left) and left[0] in right:
        count = right.index(left[0])
        return "extra", f"{names[1]} makes {count} more here, then goes on as {names[0]}"
    if len(left) > len(right) and right[0] in left:
        count = left.index(right[0])
        return "missing", f"{names[1]} leaves out {count} here, then goes on as {names[0]}"
    return "", ""


def _structure_of(draw: DrawRecord) -> tuple[Any, ...]:
    return tuple(getattr(draw, name) for name in _STRUCTURE)


def _field(
    x: DrawRecord, y: DrawRecord, names: tuple[str, str], runs: list[Recording]
) -> tuple[str, str]:
    """Return the first field that differs, and an explanation."""
    kind = next(name for name in _FIELDS if getattr(x, name) != getattr(y, name))
    values = f"{getattr(x, kind)} in {names[0]}, {getattr(y, kind)} in {names[1]}"
    before = [
        [draw for draw in run.draws[: each.index] if draw.generator == each.generator]
        for run, each in zip(runs, (x, y), strict=True)
    ]
    if kind == "seed":
        return kind, f"{values}; {_other_seed(before)}"
    if kind == "offset":
        return kind, f"{values}; {_other_offset(x, y, before)}"
    if kind in ("layout", "constants"):
        return kind, f"{values}: another rule, or another GPU for it, takes the words"
    if kind == "version":
        made = " and ".join(run.header["nbrt"] for run in runs)
        return kind, f"{values}: the bits changed between nbrt {made}; see the changelog"
    if x.device != y.device:
        values += f"; the program asked for it on {x.device} and on {y.device}"
    return kind, values


def _other_seed(before: list[list[DrawRecord]]) -> str:
    if all(before):
        return "the generator was seeded anew since its last draw"
    return (
        "a generator made without a seed takes one from the operating system: pass one, or use "
        "the default generator after nbrt.manual_seed"
    )


def _other_offset(x: DrawRecord, y: DrawRecord, before: list[list[DrawRecord]]) -> str:
    if not all(before):
        return (
            "the generator had drawn, or been moved, before the first draw of it that is recorded"
        )
    last = [draws[-1] for draws in before]
    moves = [(draw.offset - old.offset) % 2**64 for old, draw in zip(last, (x, y), strict=True)]
    foreign = [old for old, draw in zip(last, (x, y), strict=True) if old.thread != draw.thread]
    if foreign:
        return (
            f"thread {foreign[0].thread!r} drew from the same generator in between (#"
            f"{foreign[0].index}), at an arbitrary time: give each thread a separate generator"
        )
    return (
        f"since its draw #{last[0].index} the generator moved by {moves[0]} words, against "
        f"{moves[1]} since #{last[1].index}: advance, or a setter of its state, came in between"
    )


def _other_bits(x: DrawRecord, y: DrawRecord, runs: list[Recording]) -> str:
    versions = [run.header["nbrt"] for run in runs]
    where = f"on {x.device} and {y.device}, by nbrt {versions[0]} and {versions[1]}"
    return (
        f"the same draw gave other bits {where}: if nothing else wrote to the array, a fill kernel "
        f"is not reproducible there; please report it"
    )
