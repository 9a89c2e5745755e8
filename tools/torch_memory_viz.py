"""Ask torch's memory viewer what it makes of nbrt's snapshots, and keep both for the tests.

Run with the script that torch installs, which needs no torch itself:

    python tools/torch_memory_viz.py .../site-packages/torch/cuda/_memory_viz.py

writes tests/data/torch_memory_viz.json: two snapshots of one small program, and what the script
printed for them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import pickle
import re
import tempfile
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbrt.observe.history.snapshot import dump_snapshot, load_snapshot

if TYPE_CHECKING:
    from types import ModuleType

TARGET = Path(__file__).parents[1] / "tests" / "data" / "torch_memory_viz.json"

PROGRAM = """
import nbrt
from nbrt.errors import OutOfMemoryError
from nbrt.observe.history.annotations import annotate
from nbrt.observe.history.recorder import record_memory_history
from nbrt.runtime.memory.pool import MemoryPool, use_pool
from nbrt.runtime.memory.recording import record_stream
from nbrt.testing.latch import Latch

def make(nbytes):
    return nbrt.empty(nbytes, "uint8", device="cpu:0")

before = make(3000)
record_memory_history(clear_history=True)
kept = []
for step in range(4):
    with annotate(f"step {step}"):
        kept.append(make(1000 * (step + 1)))
        scratch = make(3 << 20)
        del scratch
del kept[1]
save("before")
expandable = MemoryPool("cpu:0", "expandable", limit=64 << 20, name="grows")
with use_pool(expandable):
    kept += [make(nbytes) for nbytes in (1 << 20, 9 << 20, 30 << 20)]
    del kept[-2]
    try:
        make(1 << 30)
    except OutOfMemoryError:
        pass
latch = Latch()
side = nbrt.Stream("cpu:0")
latch.hold(side)
waiting = make(5 << 20)
record_stream(waiting, side)
del waiting
nbrt.empty_cache("cpu:0")
save("after")
latch.release()
side.synchronize()
record_memory_history(None)
"""


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script", type=Path, help="torch/cuda/_memory_viz.py of an installed torch")
    script = parser.parse_args().script
    version = re.search(r"__version__ = '([^']+)'", (script.parents[1] / "version.py").read_text())
    snapshots = taken()
    found = {
        "torch": version[1] if version else "unknown",
        "snapshots": snapshots,
        "printed": printed(viewer(script), snapshots),
    }
    TARGET.write_text(json.dumps(found, indent=1) + "\n")


def viewer(script: Path) -> ModuleType:
    """Return torch's script as a module."""
    spec = importlib.util.spec_from_file_location("torch_memory_viz", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def taken() -> dict[str, Any]:
    """Run the program; return its snapshots, without the frames of this file."""
    snapshots: dict[str, Any] = {}

    def save(name: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            dump_snapshot(f"{folder}/taken.pickle", "cpu:0")
            snapshots[name] = load_snapshot(f"{folder}/taken.pickle")

    exec(compile(PROGRAM, "train.py", "exec"), {"save": save})
    for each in snapshots.values():
        blocks = [block for segment in each["segments"] for block in segment["blocks"]]
        for holder in (*blocks, *each["device_traces"][0]):
            frames = holder["frames"]
            holder["frames"] = [frame for frame in frames if frame["filename"] == "train.py"]
    return snapshots


def printed(module: ModuleType, snapshots: dict[str, Any]) -> dict[str, str]:
    """Return what each of the script's commands makes of the snapshots."""
    before, after = (pickle.dumps(snapshots[name]) for name in ("before", "after"))

    def fresh(data: bytes = after) -> Any:
        return pickle.loads(data)  # some commands change what they are given

    for page in (module.trace_plot(fresh()), module.segment_plot(fresh())):
        encoded = re.search(r'"base64": "([^"]+)"', page)
        assert encoded is not None
        assert pickle.loads(b64decode(encoded[1])) == snapshots["after"]
    only = io.StringIO()
    with contextlib.redirect_stdout(only):
        compared = module.compare(fresh(before)["segments"], fresh()["segments"], str)
    return {
        "stats": module.segsum(fresh()),
        "trace": module.trace(fresh()),
        "segments": module.segments(fresh(), str),
        "memory": module.memory(fresh(), str),
        "compare": only.getvalue() + compared,
    }


if __name__ == "__main__":
    main()
