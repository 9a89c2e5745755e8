"""The strides of what a thread is given: its indices, and the results of barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.analysis.divergence import VARYING, Divergence, Stride

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.backends.cpu.simt.lanes.analysis.lane_layout import LaneLayout
    from nbrt.backends.cpu.simt.lanes.analysis.regions import SplitThread

__all__ = ["IndexStrides"]

_ALIGNED = 4096
"""A power of two that divides the index of thread 0 of a block, which is 0."""


class IndexStrides:
    """Strides of ``threadIdx`` and of the results of barriers, which are uniform.

    `tids` are the names of ``threadIdx``.
    """

    def __init__(self, thread: SplitThread, layout: LaneLayout, tids: list[str]) -> None:
        self._thread = thread
        self._layout = layout
        self._tids = tids

    def _results(self) -> dict[str, Stride]:
        return {b.result: 0 for b in self._thread.barriers.values() if b.result}

    def in_group(self) -> dict[str, Stride]:
        """Return the strides in the lanes of a group."""
        layout, strides = self._layout, self._results()
        for axis, name in enumerate(self._tids):
            if layout.block[axis] == 1 or layout.width == 1:
                strides[name] = 0
            elif layout.by_rows:
                strides[name] = 1 if axis == 0 else 0
            else:
                strides[name] = VARYING
        return strides

    def in_row(self) -> dict[str, Stride]:
        """Return the strides in a row of a group."""
        strides = self._results() | dict.fromkeys(self._tids, 0)
        if self._layout.block[0] > 1:
            strides[self._tids[0]] = 1
        return strides

    def varying(self) -> dict[str, Stride]:
        """Return the strides in the whole block, by which only uniform values are found."""
        indices = zip(self._tids, self._layout.block, strict=True)
        return self._results() | {name: VARYING for name, size in indices if size > 1}

    def of_values_in_block(self, whole: Divergence | None) -> Mapping[str, Stride]:
        """Return the strides of all values in the whole block.

        `whole` is the divergence in the block by `varying`, if there is one.

        In a block of one row, the analysis of a group holds for a group of all threads: what it
        knows of sums, products, conversions and loads depends on no number of lanes. Such a value
        is that of thread 0 plus a multiple of the index, so a region needs one number for all
        groups. Values that differ in time are no exception: groups that leave a loop after other
        numbers of iterations get its values from phis behind it, which vary.
        """
        layout, thread = self._layout, self._thread
        if layout.width == 1 or layout.block[1:] != (1, 1):
            return whole.strides if whole is not None else {}
        index = self._tids[0]
        strides = self._results() | {index: 1}
        found = Divergence(thread.function, strides, {index: _ALIGNED}, layout.block[0])
        found.refine(region.level for region in thread.regions)
        return found.strides
