"""The command line; see the package's docstring."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

from tests.conformance.__main__ import installed_tests
from tests.conformance.numba_cuda_driver import FOLDERS
from tests.conformance.numba_cuda_driver.report import PAGE, page
from tests.conformance.runner import run_worker

_ENVIRONMENT = {
    "NBRT_SIMULATED_CUDA": "force",
    "NBRT_SIM_DEVICES": "2",
    "NUMBA_ENABLE_CUDASIM": "0",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.numba_cuda_driver")
    parser.add_argument("--only", default="", help="run the files whose name contains this")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each test")
    parser.add_argument("--json", type=Path, help="read and write results here")
    parser.add_argument("--report", type=Path, nargs="?", const=PAGE, help="write the page here")
    parser.add_argument("--no-run", action="store_true", help="run nothing")
    options = parser.parse_args()
    tests = installed_tests()
    results: dict[str, dict[str, list[dict[str, object]]]] = {}
    if options.json and options.json.exists():
        results = json.loads(options.json.read_text())
    for folder in () if options.no_run else FOLDERS:
        for path in sorted((tests / folder).glob("test_*.py")):
            file = f"{folder}/{path.name}"
            if options.only not in file:
                continue
            module = f"numba.cuda.tests.{folder}.{path.stem}"
            command = [sys.executable, "-m", "tests.conformance.numba_cuda_driver.worker", module]
            outcomes = run_worker(command, {**os.environ, **_ENVIRONMENT}, options.limit, file)
            results.setdefault(folder, {})[file] = [outcome.as_dict() for outcome in outcomes]
            counts = {o: sum(x.outcome == o for x in outcomes) for o in ("passed", "failed")}
            print(f"{file:60} {counts}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1))
    if options.report:
        options.report.write_text(page(results, version("numba-cuda")), encoding="utf-8")


if __name__ == "__main__":
    main()
