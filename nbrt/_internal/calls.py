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


class CallSite:
    """The stack of a call: code objects and line numbers, innermost first.

    Formatting reads source files, so it waits until somebody asks for the text.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: list[tuple[CodeType, int]]) -> None:
        self._entries = entries

    @classmethod
    def here(cls, depth: int = 0) -> CallSite:
        """Return the stack of the caller, leaving out `depth` more frames."""
        frame = sys._getframe(depth + 1)
        entries: list[tuple[CodeType, int]] = []
        while len(entries) < _MAX_FRAMES:
            entries.append((frame.f_code, frame.f_lineno))
            if frame.f_back is None:
                break
            frame = frame.f_back
        return cls(entries)

    def format(self) -> str:
        """Return the stack as Python prints one, without nbrt's own inner frames."""
        frames = [
            traceback.FrameSummary(code.co_filename, line, code.co_name)
            for code, line in reversed(self._entries)
        ]
        outside = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
        return "".join(traceback.format_list(outside or frames)).rstrip()
