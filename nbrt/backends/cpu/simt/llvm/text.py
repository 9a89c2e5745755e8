"""The text of a function that LLVM has optimised, as blocks of lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from nbrt.backends.cpu.simt.llvm.graph import LoopInfo, find_loops

__all__ = ["BlockText", "FunctionText"]

_LABEL = re.compile(r'^("[^"]*"|[-\w$.]+):')
_TARGET = re.compile(r'label %("[^"]*"|[-\w$.]+)')
_TERMINATOR = re.compile(r"  (?:br|switch|ret|unreachable|resume|invoke|indirectbr|callbr)\b")


@dataclass
class BlockText:
    """The lines of a basic block."""

    label: str
    """Without the percent sign."""

    lines: list[str] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Index of the first line of the terminator."""
        at = len(self.lines) - 1
        while not _TERMINATOR.match(self.lines[at]):  # the cases of a switch follow it
            at -= 1
        return at

    @property
    def targets(self) -> list[str]:
        """Labels of the successors, each once."""
        text = "\n".join(self.lines[self.end :])
        return list(dict.fromkeys(_TARGET.findall(text)))

    @property
    def phis(self) -> range:
        """Indices of the lines that are phis."""
        count = 0
        while count < len(self.lines) and " = phi " in self.lines[count]:
            count += 1
        return range(count)


class FunctionText:
    """The body of a function, by blocks."""

    def __init__(self, lines: list[str]) -> None:
        self.blocks: dict[str, BlockText] = {}
        block = BlockText("")
        for line in lines:
            label = None if line.startswith(" ") else _LABEL.match(line)
            if label:
                block = self.blocks[label[1]] = BlockText(label[1])
            elif line.strip() and not line.lstrip().startswith(";"):
                self.blocks.setdefault(block.label, block)
                block.lines.append(line)

    def lines(self) -> list[str]:
        """Return the text."""
        lines: list[str] = []
        for block in self.blocks.values():
            lines += [f"{block.label}:"] if block.label else []
            lines += block.lines
        return lines

    def loops(self) -> dict[str, LoopInfo]:
        """Return the loops by header, also those with several entries."""
        targets = {label: block.targets for label, block in self.blocks.items()}
        root = next(iter(targets))
        return find_loops(root, targets, targets.__getitem__, reducible=False)
