"""The command line; see the package's docstring."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from importlib.metadata import version
from pathlib import Path

from tests.conformance import PACKAGES_OF_TESTS
from tests.conformance.report import page
from tests.conformance.runner import ENGINES, files, run_file


def installed_tests() -> Path:
    """Find the tests that came with the installed numba-cuda."""
    found = importlib.util.find_spec("numba_cuda")
    if found is None or found.origin is None:
        sys.exit("expected a PATH or an installed numba-cuda; install numba-cuda or give the path")
    return Path(found.origin).parent / "numba" / "cuda" / "tests"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("tests", nargs="?", type=Path, help="numba-cuda's folder of tests")
    parser.add_argument("--engine", choices=ENGINES, help="run one engine only")
    parser.add_argument("--only", default="", help="run the files whose path contains this")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each test")
    parser.add_argument("--json", type=Path, help="read and write results here")
    parser.add_argument("--report", type=Path, help="write the page here")
    options = parser.parse_args()
    tests = (options.tests or installed_tests()).resolve()
    for package in () if options.tests else PACKAGES_OF_TESTS:
        if importlib.util.find_spec(package) is None:
            sys.exit(f"numba-cuda's tests use {package}; run: pip install {package}")
    if not files(tests):
        sys.exit(f"expected a folder with cudapy/, cudadrv/ and others, got {tests}")
    results: dict[str, dict[str, list[dict[str, object]]]] = {}
    if options.json and options.json.exists():
        results = json.loads(options.json.read_text())
    for engine in [options.engine] if options.engine else ENGINES:
        of_engine = results.setdefault(engine, {})
        for module in files(tests, options.only):
            outcomes = run_file(engine, tests, module, options.limit)
            of_engine[module] = [outcome.as_dict() for outcome in outcomes]
            counts = {o: sum(x.outcome == o for x in outcomes) for o in ("passed", "failed")}
            print(f"{engine:9} {module:48} {counts}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1))
    if options.report:
        options.report.write_text(page(results, version("numba-cuda")))


if __name__ == "__main__":
    main()
