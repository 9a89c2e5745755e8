"""Tools for tests of code that uses nbrt: latches, recorders of commands, comparisons of graphs.

Every public name loads its module on first use: pytest imports the plugins of this package always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt._lazy_exports import lazy_exports

if TYPE_CHECKING:
    from nbrt.testing.graphs import GraphDifferenceError as GraphDifferenceError
    from nbrt.testing.graphs import graph_equals_eager as graph_equals_eager
    from nbrt.testing.latch import Latch as Latch
    from nbrt.testing.recorder import CommandRecorder as CommandRecorder
    from nbrt.testing.recorder import RecordedCommand as RecordedCommand
else:
    __all__, __getattr__, __dir__ = lazy_exports(__name__)
