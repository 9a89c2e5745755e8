"""`CallSite`: the stack of a call, captured in a microsecond and formatted on demand."""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import CodeType, FrameType

__all__ = ["CallSite", "Frame", "submitted_at"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MAX_FRAMES = 24
_MAX_SHOWN = 8


class Frame(TypedDict):
    """One call of a stack, with the keys that torch's memory snapshots have."""

    filename: str
    line: int
    name: str


class CallSite:
    """The stack of a call: code objects and instruction offsets, innermost first.

    Line numbers and source lines are looked up when the text is requested.
    """

    __slots__ = ("_cells", "_entries")

    def __init__(self, entries: Sequence[Any]) -> None:
        self._entries = entries  # code, instruction, code, instruction ...
        self._cells: dict[str, int] | None = None

    @classmethod
    def here(
        cls, depth: int = 0, most: int = _MAX_FRAMES, floor: CodeType | None = None
    ) -> CallSite:
        """Return the stack of the caller without the innermost `depth` frames.

        It has at most `most` frames and ends above the code `floor`. In a block `submitted_at` it
        is the stack of that block.
        """
        if _submissions:
            site = _submissions.get(get_ident())
            if site is not None:
                return site
        return cls.of(sys._getframe(depth + 1), most, floor)

    @classmethod
    def of(
        cls, frame: FrameType, most: int = _MAX_FRAMES, floor: CodeType | None = None
    ) -> CallSite:
        """Return the stack of a running call."""
        entries: list[Any] = []
        for _ in range(most):
            entries += frame.f_code, frame.f_lasti
            back = frame.f_back
            if back is None or back.f_code is floor:
                break
            frame = back
        return cls(entries)

    @classmethod
    def nearest(cls, depth: int) -> CallSite:
        """Return the innermost 5 calls above `depth` inner ones, in a third of the time of `here`.

        Frames that are left out are not turned into objects, and there is no loop.
        """
        try:
            first = sys._getframe(depth + 1)
        except ValueError:  # the stack is shorter
            return cls.of(sys._getframe(1))
        second = first.f_back
        third = second and second.f_back
        fourth = third and third.f_back
        fifth = fourth and fourth.f_back
        if second and third and fourth and fifth:
            return cls(
                (
                    first.f_code, first.f_lasti, second.f_code, second.f_lasti,
                    third.f_code, third.f_lasti, fourth.f_code, fourth.f_lasti,
                    fifth.f_code, fifth.f_lasti,
                )
            )  # fmt: skip
        return cls.of(first)

    def format(self, most: int = _MAX_SHOWN) -> str:
        """Return the innermost `most` calls in Python's format, without nbrt's inner frames."""
        shown = [
            traceback.FrameSummary(
                frame["filename"],
                frame["line"],
                frame["name"],
                line=linecache.getline(name, frame["line"]).strip(),
            )
            for name, frame in reversed(self._frames()[:most])
        ]
        return "".join(traceback.format_list(shown)).rstrip()

    def number_cells(self) -> CallSite:
        """Look up the numbers of the notebook cells on the stack; return the same object.

        A cell that runs again keeps its file name but gets another number.
        """
        self._cells = _cell_numbers(code.co_filename for code in self._entries[::2])
        return self

    def frames(self) -> list[Frame]:
        """Return the calls, innermost first, without nbrt's inner frames.

        The file of a notebook cell is ``Cell [7]``; frames that run the cells are left out.
        """
        return [frame for _, frame in self._frames()]

    def _frames(self) -> list[tuple[str, Frame]]:
        """Return the frames, each with the name of its source file."""
        entries = list(zip(self._entries[::2], self._entries[1::2], strict=True))
        outside = [entry for entry in entries if not entry[0].co_filename.startswith(_PACKAGE)]
        shown = outside or entries
        names = [code.co_filename for code, _ in shown]
        cells = _cell_numbers(names) if self._cells is None else self._cells
        if cells:
            last = max(
                (index for index, name in enumerate(names) if name in cells), default=len(names)
            )
            shown = shown[: last + 1]
        return [
            (
                name,
                Frame(
                    filename=f"Cell [{cells[name]}]" if name in cells else name,
                    line=_line_of(code, instruction),
                    name=code.co_name,
                ),
            )
            for name, (code, instruction) in zip(names, shown, strict=False)
        ]


_submissions: dict[int, CallSite] = {}
"""By the id of a thread: the stack of the call that it carries out later."""


@contextmanager
def submitted_at(site: CallSite) -> Iterator[None]:
    """Carry out a call that another thread has made: `CallSite.here` returns its stack."""
    thread = get_ident()
    _submissions[thread] = site
    try:
        yield
    finally:
        del _submissions[thread]


def _cell_numbers(filenames: Iterable[str]) -> dict[str, int]:
    """Return the execution counts of the files that are cells of the running notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return {}
    numbers: dict[str, int] = {}
    for name in set(filenames):
        label = shell.compile.format_code_name(name)  # ("Cell", "In[7]"), or None for other code
        match = label and re.search(r"\[(\d+)\]", label[1])
        if match:
            numbers[name] = int(match[1])
    return numbers


def _line_of(code: CodeType, instruction: int) -> int:
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno
