"""The command line; see the package's docstring."""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path

from tests.conformance.__main__ import installed_tests
from tests.conformance.driver.page import PAGE, page
from tests.conformance.runner import run_worker

_FOLDERS = ("core", "cudadrv", "cudapy", "doc_examples", "nocuda", "nrt")
_ENVIRONMENT = {
    "NBRT_SIMULATED_CUDA": "force",
    "NBRT_SIM_DEVICES": "2",
    "NUMBA_ENABLE_CUDASIM": "0",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


def modules(only: str) -> list[str]:
    """List numba-cuda's files of tests as ``folder.module``."""
    tests = installed_tests()
    found = [path for folder in _FOLDERS for path in sorted((tests / folder).glob("test_*.py"))]
    names = [f"{path.parent.name}.{path.stem}" for path in found]
    return [name for name in names if only in name]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.driver", description=__doc__)
    parser.add_argument("--only", default="", help="run the files whose name contains this")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each test")
    parser.add_argument("--json", type=Path, required=True, help="read and write results here")
    parser.add_argument("--page", action="store_true", help="write the page, and run nothing")
    options = parser.parse_args()
    results = json.loads(options.json.read_text()) if options.json.exists() else {}
    if options.page:
        PAGE.write_text(page(results, version("numba-cuda")), encoding="utf-8")
        return
    for module in modules(options.only):
        command = ["tests.conformance.driver.worker", f"numba.cuda.tests.{module}"]
        file = module.replace(".", "/") + ".py"
        outcomes = run_worker(command, _ENVIRONMENT, file, options.limit)
        results[module] = [outcome.as_dict() for outcome in outcomes]
        counts = {o: sum(x.outcome == o for x in outcomes) for o in ("passed", "failed", "skipped")}
        print(f"{module:48} {counts}", flush=True)
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
