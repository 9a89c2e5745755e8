"""`CallSite`: where a call was made, taken in a microsecond and written out only if needed."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["CallSite"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MAX_FRAMES = 24
_MAX_SHOWN = 8


class CallSite:
    """The stack of a call: code objects and instructions in them, innermost first.

    Finding line numbers and reading source files waits until somebody asks for the text.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: list[tuple[CodeType, int]]) -> None:
        self._entries = entries

    @classmethod
    def here(cls, depth: int = 0) -> CallSite:
        """Return the stack of the caller, leaving out `depth` more frames."""
        frame = sys._getframe(depth + 1)
        entries: list[tuple[CodeType, int]] = []
        for _ in range(_MAX_FRAMES):
            entries.append((frame.f_code, frame.f_lasti))
            back = frame.f_back
            if back is None:
                break
            frame = back
        return cls(entries)

    def format(self) -> str:
        """Return the stack as Python prints one, without nbrt's own inner frames."""
        frames = [
            traceback.FrameSummary(code.co_filename, _line_of(code, instruction), code.co_name)
            for code, instruction in reversed(self._entries)
        ]
        outside = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
        shown = (outside or frames)[-_MAX_SHOWN:]
        return "".join(traceback.format_list(shown)).rstrip()


def _line_of(code: CodeType, instruction: int) -> int:
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno
