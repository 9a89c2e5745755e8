"""The command line; see the package's docstring."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from tests.conformance.cupy import GROUPS
from tests.conformance.cupy.report import PAGE, page
from tests.conformance.runner import run_worker

_REPOSITORY = "https://github.com/cupy/cupy"


def installed_version() -> str:
    """Return the version of the installed CuPy, whose name tells the CUDA version."""
    for found in distributions():
        if found.name.startswith("cupy"):
            return found.version
    sys.exit("expected an installed CuPy")


def checkout(source: str, version: str) -> Path:
    """Return a folder with the tests of a version of CuPy, kept in the user's cache."""
    if (Path(source) / "tests" / "cupy_tests").is_dir():
        return Path(source)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nbrt"
    folder = cache / f"cupy-{version}"
    if not folder.exists():
        options = ["--depth", "1", "--branch", f"v{version}"]
        subprocess.run(["git", "clone", "--quiet", *options, source, str(folder)], check=True)
    return folder


def files(folder: Path, group: str) -> list[str]:
    """List the files of a group, below ``tests/cupy_tests``."""
    root = folder / "tests" / "cupy_tests"
    found: list[Path] = []
    for name in GROUPS[group]:
        place = root / name
        found += [place] if place.is_file() else sorted(place.glob("test_*.py"))
    return [str(path.relative_to(root)) for path in found]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.cupy")
    parser.add_argument("--source", default=_REPOSITORY, help="repository or checkout of CuPy")
    parser.add_argument("--groups", default=",".join(GROUPS), help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--only", default="", help="run the files whose path contains this")
    parser.add_argument("--every", type=int, default=1, help="run every N-th test of each file")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each test")
    parser.add_argument("--json", type=Path, help="read and write results here")
    parser.add_argument("--report", type=Path, nargs="?", const=PAGE, help="write the page here")
    options = parser.parse_args()
    version = installed_version()
    folder = checkout(options.source, version).resolve()
    run: dict[str, Any] = {"every": {}, "outcomes": {}}
    if options.json and options.json.exists():
        run = json.loads(options.json.read_text())
    worker = [sys.executable, "-m", "tests.conformance.cupy.worker", str(folder)]
    for group in filter(None, options.groups.split(",")):
        run["every"][group] = options.every
        for file in files(folder, group):
            if options.only not in file:
                continue
            command = [*worker, file, str(options.every)]
            outcomes = run_worker(command, dict(os.environ), options.limit, file)
            found = [outcome.as_dict() for outcome in outcomes]
            run["outcomes"].setdefault(group, {})[file] = found
            counts = {o: sum(x.outcome == o for x in outcomes) for o in ("passed", "failed")}
            print(f"{file:60} {counts}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(run, indent=1))
    if options.report:
        options.report.write_text(page(run["outcomes"], version, run["every"]))


if __name__ == "__main__":
    main()
