"""Call sites: the innermost line of a stack that belongs to the user's program."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

__all__ = [
    "NO_STACK",
    "CallSiteTable",
    "Frames",
    "SiteKey",
    "format_frame",
    "site_frame",
    "site_key",
]

Frames: TypeAlias = Sequence[Mapping[str, Any]]
SiteKey: TypeAlias = tuple[str, int, str]
"""File, line and function of a call site."""

NO_STACK = "no stack recorded"
_HERE = str(Path(__file__).parents[1]) + os.sep
# The usual install locations too: a snapshot may come from another machine.
_LIBRARY = re.compile(
    r"[/\\](site|dist)-packages[/\\](nbrt|nbrt_kernels|numpy|cupy|cupyx|cupy_backends|numba)[/\\]"
)
_IPYTHON_CELL = re.compile(r"<ipython-input-(\d+)-\w*>")
_KERNEL_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\](\d+)\.py$")


@lru_cache(maxsize=4096)
def _is_library(filename: str) -> bool:
    if filename.startswith(_HERE) or filename in {"", "??"}:
        return True
    return _LIBRARY.search(filename) is not None


def site_frame(frames: Frames) -> Mapping[str, Any] | None:
    """Return the innermost frame outside nbrt, NumPy, CuPy and Numba, or else the innermost frame.

    `frames` is a stack of a snapshot: ``filename``, ``line`` and ``name``, innermost first.
    """
    for frame in frames:
        if not _is_library(frame["filename"]):
            return frame
    return frames[0] if frames else None


def site_key(frames: Frames) -> SiteKey | None:
    """Return the identity of the call site of a stack; None if the stack is empty."""
    frame = site_frame(frames)
    return None if frame is None else (frame["filename"], frame["line"], frame["name"])


def format_frame(frame: Mapping[str, Any], folders: int = 0) -> str:
    """Return a frame as one line, with the number of a notebook cell instead of its file.

    `folders` is the number of folders in front of the file name.

    Examples
    --------
    >>> format_frame({"filename": "/home/me/train.py", "line": 12, "name": "step"})
    'train.py:12 step'
    >>> format_frame({"filename": "<ipython-input-3-f00>", "line": 2, "name": "<module>"})
    'Cell [3]:2'
    """
    filename = frame["filename"]
    if cell := _IPYTHON_CELL.fullmatch(filename):
        file = f"Cell [{cell[1]}]"
    elif cell := _KERNEL_CELL.search(filename):
        file = f"Cell {cell[1]}"
    else:
        file = "/".join(re.split(r"[/\\]", filename)[-1 - folders :])
    name = "" if frame["name"] == "<module>" else f" {frame['name']}"
    return f"{file}:{frame['line']}{name}"


class CallSiteTable:
    """The call sites of a snapshot, numbered in order of appearance.

    Attributes
    ----------
    stacks : list of sequence of mapping
        The first stack of each site.
    """

    def __init__(self) -> None:
        self.stacks: list[Frames] = []
        self._numbers: dict[SiteKey | None, int] = {}

    def number(self, frames: Frames) -> int:
        """Return the number of the call site of a stack."""
        number = self._numbers.setdefault(site_key(frames), len(self.stacks))
        if number == len(self.stacks):
            self.stacks.append(frames)
        return number

    def labels(self) -> list[str]:
        """Return a label for each site; equal labels get folders."""
        frames = [site_frame(stack) for stack in self.stacks]
        labels = [NO_STACK if frame is None else format_frame(frame) for frame in frames]
        for folders in (1, 99):
            count = Counter(labels)
            for number, frame in enumerate(frames):
                if frame is not None and count[labels[number]] > 1:
                    labels[number] = format_frame(frame, folders)
        return labels
