"""Run parts of the benchmarks: ``python -m benchmarks [--quick] [PART ...]``.

Each part runs in its own process and has a time limit in seconds. A part that takes longer is
stopped, and the files of its earlier results are kept. All limits together are half an hour.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.environment import ROOT
from benchmarks.instruction_sets import instruction_set, variables_of_peers
from benchmarks.report import RESULTS
from benchmarks.summary import summarize

__all__ = ["PARTS", "main"]

#: The parts in their order, with their limits in seconds.
PARTS = {
    "import_time": 50,
    "guards": 15,
    "memory": 140,
    "fake": 120,
    "launch": 30,
    "numba_cuda_launch": 20,
    "graphs": 40,
    "saxpy": 45,
    "random": 330,
    "distributed": 50,
    "streams": 40,
    "simt": 430,
    "matmul": 40,
    "dtypes": 70,
    "first_call": 120,
    "compile": 260,
}


def main() -> int:
    """Run them; return 1 if one could not run. A missed target is reported, not an error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"from {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="a glance, seconds each")
    parser.add_argument("--out", type=Path, help="folder for the results")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.parts) - set(PARTS))
    if unknown:
        parser.error(f"expected parts from {', '.join(PARTS)}, got {', '.join(unknown)}")
    folder = chosen.out or (RESULTS / "quick" if chosen.quick else RESULTS)
    begin = time.monotonic()
    failed = {}
    for name in chosen.parts or PARTS:
        limit = PARTS[name]
        print(f"==> {name}, at most {limit} s", file=sys.stderr, flush=True)
        flags = ["--quick"] if chosen.quick else ["--seconds", str(limit)]
        target = folder / instruction_set()
        reason = run_part([f"benchmarks.{name}", "--out", str(target), *flags], limit)
        if reason:
            failed[name] = reason
    summary = summarize(folder, tuple(PARTS))
    (folder / "README.md").write_text(summary, encoding="utf-8")
    print(summary)
    print(f"{time.monotonic() - begin:.0f} s in all", file=sys.stderr)
    for name, reason in failed.items():
        print(f"{name}: {reason}", file=sys.stderr)
    return 1 if failed else 0


def run_part(arguments: list[str], limit: float) -> str:
    """Run a module of benchmarks with its arguments; return the reason if it did not end well.

    The processes that it has started end with it at the limit.
    """
    part = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        env=os.environ | variables_of_peers(),
        start_new_session=True,
    )
    try:
        status = part.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(part.pid, signal.SIGKILL)
        part.wait()
        return f"stopped after {limit:g} s"
    return "" if status == 0 else f"ended with status {status}"


if __name__ == "__main__":
    sys.exit(main())
