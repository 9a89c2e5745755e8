"""Record the allocations of the notebooks: ``python -m benchmarks.record_traces [NOTEBOOK ...]``.

Each notebook runs in a separate kernel with a hook on allocations and frees. All devices of a
notebook count as one with distinct streams, so that a trace requests as much memory as the
notebook. Writes ``benchmarks/data/notebook_traces.npz``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.allocation_traces import RECORDED, Event, most_asked_for, save
from benchmarks.environment import ROOT

if TYPE_CHECKING:
    from nbrt.runtime.commands import Command
    from nbrt.runtime.stream import Stream

__all__ = ["Recorder", "main", "record"]

_BEGIN = """\
import sys
sys.path[:0] = [{root!r}]
from benchmarks.record_traces import Recorder
_recorder = Recorder()
_recorder.__enter__()
del sys.path[0]
"""
_END = """\
_recorder.__exit__(None, None, None)
import json, pathlib
pathlib.Path({path!r}).write_text(json.dumps(_recorder.events))
"""


class Recorder:
    """A tap that writes down allocations and frees for the length of a block.

    Attributes
    ----------
    events : list of Event
        In the order of the commands; blocks are numbered as they are allocated.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._names = itertools.count()
        self._alive: dict[int, int] = {}
        self._streams: dict[Any, int] = {}

    def __enter__(self) -> Recorder:
        from nbrt.runtime.commands import install_hook

        self._tapped = install_hook(self, ("allocate", "free"))
        self._tapped.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._tapped.__exit__(None, None, None)

    def before(self, stream: Stream, command: Command) -> None:
        """Write down a free, of a block whose allocation was seen."""
        if command.kind == "free":
            name = self._alive.pop(id(command.args[0]), None)
            if name is not None:
                self.events.append(Event(name, 0))

    def after(self, stream: Stream, command: Command, result: Any) -> None:
        """Write down an allocation; of none of nothing."""
        if command.kind == "allocate" and result.requested:
            name = self._alive[id(result)] = next(self._names)
            number = self._streams.setdefault((stream.device, stream.id), len(self._streams))
            self.events.append(Event(name, result.requested, number))


def record(path: Path, folder: Path) -> list[Event]:
    """Run a notebook in a folder, and return what it allocated."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    found = folder / "events.json"
    begin = nbformat.v4.new_code_cell(_BEGIN.format(root=str(ROOT)))
    end = nbformat.v4.new_code_cell(_END.format(path=str(found)))
    notebook.cells = [begin, *notebook.cells, end]
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return [Event(*event) for event in json.loads(found.read_text(encoding="utf-8"))]


def main() -> None:
    """Record the notebooks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.record_traces", description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, help="all of notebooks/ by default")
    parser.add_argument("--out", type=Path, default=RECORDED, help="the file to write")
    chosen = parser.parse_args()
    # Before a notebook's first cell, which sets it too, nbrt is imported already.
    os.environ.setdefault("NBRT_CPU_DEVICES", "4")
    traces: dict[str, list[Event]] = {}
    for path in chosen.notebooks or sorted((ROOT / "notebooks").glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            events = traces[f"notebook {path.stem}"] = record(path, Path(folder))
        print(f"{path.stem}: {len(events)} events, {most_asked_for(events)} bytes at most")
    save(chosen.out, traces)
    print(f"{chosen.out}: {chosen.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
