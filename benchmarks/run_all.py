"""Run benchmarks, each in a separate process: ``python -m benchmarks [--quick] [NAME ...]``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.report import RESULTS, format_seconds

__all__ = ["BENCHMARKS", "main"]

BENCHMARKS = (
    "import_time",
    "guards",
    "memory",
    "fake",
    "launch",
    "numba_cuda_launch",
    "graphs",
    "saxpy",
    "random",
    "distributed",
    "streams",
    "simt",
    "first_call",
    "compile",
)


def main() -> int:
    """Run them; return 1 if one could not run. A missed target is reported, not an error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"from {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="a glance, seconds each")
    parser.add_argument("--out", type=Path, help="folder for the results")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"expected names from {', '.join(BENCHMARKS)}, got {', '.join(unknown)}")
    folder = chosen.out or (ROOT / "benchmarks" / "results" / "quick" if chosen.quick else RESULTS)
    failed = []
    for name in chosen.names or BENCHMARKS:
        print(f"==> {name}", file=sys.stderr, flush=True)
        flags = ["--quick"] if chosen.quick else []
        command = [sys.executable, "-m", f"benchmarks.{name}", "--out", str(folder), *flags]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            failed.append(name)
    summary = _summary(folder)
    (folder / "README.md").write_text(summary, encoding="utf-8")
    print(summary)
    if failed:
        print(f"could not run: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _summary(folder: Path) -> str:
    """Return the targets of every result in a folder as one table."""
    lines = ["# Benchmark results", "", "| benchmark | target | found | verdict | taken |"]
    lines.append("|---|---|---:|---|---|")
    for name in BENCHMARKS:
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        taken = f"{found['environment']['date'][:16]}, {found['environment']['commit']}"
        lines += [
            f"| [{name}]({name}.md) | {target['text']} | {_found(target)} | "
            f"{target['verdict']} | {taken} |"
            for target in found["targets"]
        ]
        if not found["targets"]:
            lines.append(f"| [{name}]({name}.md) | (a comparison, no target) | | | {taken} |")
    return "\n".join(lines) + "\n"


def _found(target: dict[str, Any]) -> str:
    if target["found"] is None:
        return "-"
    if target["unit"] == "s":
        return format_seconds(target["found"])
    return f"{target['found']:.3g}{target['unit']}"


if __name__ == "__main__":
    sys.exit(main())
