"""Run public programs for ``numba.cuda`` under nbrt's drop-in and under numba-cuda's simulator.

``python tools/numba_cuda_programs.py fetch`` brings each program at its pinned commit, from its
public repository or from a folder of local mirrors (``--mirror``). ``run`` runs the tests of each
program three times: under the simulator, under nbrt with an empty cache of compiled code, and under
nbrt again. ``page`` writes the results to ``docs/numba_cuda_programs.md``. Every command takes
names of programs, and ``--work``, the folder of the sources and results. Nothing of the programs is
built or installed: their sources are on ``PYTHONPATH``. The interpreter needs pytest,
pytest-timeout and the packages that ``list`` prints.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from xml.etree import ElementTree

from numba_cuda_program_list import PROGRAMS, Program
from numba_cuda_program_page import regressions, write_page

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["fetch", "main", "run"]

MODES = ("simulator", "nbrt_cold", "nbrt_warm")
_TOOLS = Path(__file__).resolve().parent
_DRIVERS = _TOOLS / "numba_cuda_program_drivers"
_PAGE = _TOOLS.parent / "docs" / "numba_cuda_programs.md"
_SWITCHES = ("NUMBA_ENABLE_CUDASIM", "NBRT_NUMBA_CUDA", "NBRT_CACHE_DIR", "NBRT_CHECK")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return 1 if nbrt fails a test that the simulator passes."""
    chosen = _parser().parse_args(arguments)
    programs = [p for p in PROGRAMS if not chosen.programs or p.name in chosen.programs]
    unknown = set(chosen.programs) - {p.name for p in PROGRAMS}
    if unknown:
        raise SystemExit(f"expected names that `list` prints, got {', '.join(sorted(unknown))}")
    if chosen.command == "list":
        for program in programs:
            print(program.name, program.commit, *program.requires)
        return 0
    work = chosen.work.resolve()
    if chosen.command == "fetch":
        for program in programs:
            fetch(program, work, chosen.mirror)
        return 0
    if chosen.command == "run":
        for program in programs:
            for mode in chosen.modes:
                run(program, mode, work)
    results = {program.name: _read(program, work) for program in PROGRAMS}
    if chosen.command == "page":
        write_page(_PAGE, results)
    return int(any(regressions(result) for result in results.values()))


def fetch(program: Program, work: Path, mirror: Path | None = None) -> None:
    """Put the files of a program at its commit into ``work/sources``.

    Parameters
    ----------
    program : Program
        The program.
    work : Path
        The work folder.
    mirror : Path, optional
        A folder with bare repositories named ``OWNER+NAME`` or ``OWNER+NAME/repo``. None: GitHub.
    """
    if mirror is None:
        repository = work / "repositories" / program.folder
        if not repository.exists():
            _git(repository, "init", "--quiet", "--bare", str(repository))
        url = f"https://github.com/{program.name}"
        _git(repository, "fetch", "--quiet", "--depth=1", url, program.commit)
    else:
        repository = mirror / program.folder
        if (repository / "repo").is_dir():
            repository /= "repo"
    archive = _git(repository, "archive", program.commit, "--", *program.paths)
    sources = program.sources(work)
    shutil.rmtree(sources, ignore_errors=True)
    sources.mkdir(parents=True)
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(sources, filter="data")
    print(f"{program.name}: {sources}", flush=True)


def run(program: Program, mode: str, work: Path) -> None:
    """Run the tests of a program in one mode and save the result in ``work/results``.

    Parameters
    ----------
    program : Program
        The program, which is fetched.
    mode : str
        One of `MODES`.
    work : Path
        The work folder.
    """
    base = work / "results" / f"{program.folder}-{mode}"
    base.parent.mkdir(parents=True, exist_ok=True)
    cache = work / "cache" / program.folder
    if mode == "nbrt_cold":
        shutil.rmtree(cache, ignore_errors=True)
    environment = _environment(program, mode, work, cache)
    files = [str(_DRIVERS / driver) for driver in program.drivers] + list(program.tests)
    limits = {"test_limit": program.test_limit, "limit": program.limit}
    result: dict[str, Any] = {"wall": 0.0, "ended": "", "tests": {}, **limits}
    with base.with_suffix(".log").open("w", encoding="utf-8") as log:
        for chosen in map(str.split, files) if program.separately else [files]:
            report = base.with_suffix(".xml")
            wall, ended = _pytest(program, chosen, work, report, environment, log)
            result["wall"] += wall
            result["ended"] = ended
            result["tests"] |= _tests(report) if report.exists() else {}
    base.with_suffix(".json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    outcomes = [test["outcome"] for test in result["tests"].values()]
    counts = {name: outcomes.count(name) for name in ("passed", "failed", "skipped")}
    print(f"{program.name} {mode}: {counts}, {result['wall']:.1f} s, {result['ended']}", flush=True)


def _pytest(
    program: Program,
    files: list[str],
    work: Path,
    report: Path,
    environment: dict[str, str],
    log: IO[str],
) -> tuple[float, str]:
    """Run test files in one process; return the seconds and how it ended."""
    settings = work / "pytest.ini"
    report.unlink(missing_ok=True)
    # Neither the settings of the program nor those of this repository.
    settings.write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "program_run"]
    command += ["-c", str(settings), f"--rootdir={program.sources(work)}"]
    command += [f"--junitxml={report}", *program.options]
    # The simulator may need hours: its limits are for it alone. Those of nbrt only end a deadlock.
    scale = 1 if "NUMBA_ENABLE_CUDASIM" in environment else 5
    command += [f"--timeout={scale * program.test_limit}"]
    command += [f"--session-timeout={scale * program.limit}"]
    started = time.perf_counter()
    try:
        done = subprocess.run(  # the exit code says that tests failed, as the report does
            command + files,
            cwd=program.sources(work) / program.directory,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=scale * (program.limit + 10 * program.test_limit),
            check=False,
        )
        ended = f"exit {done.returncode}"
    except subprocess.TimeoutExpired:
        ended = "stopped"
    return time.perf_counter() - started, ended


def _environment(program: Program, mode: str, work: Path, cache: Path) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k not in _SWITCHES}
    if mode == "simulator":
        environment["NUMBA_ENABLE_CUDASIM"] = "1"
    else:
        environment |= {"NBRT_NUMBA_CUDA": "1", "NBRT_CACHE_DIR": str(cache)}
    folders = [program.sources(work) / program.directory / root for root in program.roots]
    folders += [_DRIVERS, *(_DRIVERS / "stand_ins" / name for name in program.stand_ins)]
    before = [path for path in (environment.get("PYTHONPATH"),) if path]
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, folders), *before])
    environment["PYTHONHASHSEED"] = "0"
    environment["NUMBA_CUDA_PROGRAM"] = str(program.sources(work))
    environment["NUMBA_CUDA_PROGRAM_OUTPUTS"] = str(work / "outputs" / program.folder)
    return environment | dict(program.environment)


def _tests(report: Path) -> dict[str, dict[str, Any]]:
    """Return outcome, seconds and message of each test in a JUnit file."""
    tests: dict[str, dict[str, Any]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        outcome, message = "passed", ""
        cpu = [p.get("value") for p in case.iter("property") if p.get("name") == "cpu_seconds"]
        for child in case:
            if child.tag in ("failure", "error"):
                outcome, message = "failed", child.get("message") or (child.text or "")[-400:]
            elif child.tag == "skipped":
                outcome, message = "skipped", child.get("message") or ""
        if tests.get(name, {}).get("outcome") != "failed":
            tests[name] = {
                "outcome": outcome,
                "seconds": float(case.get("time") or 0.0),
                "cpu_seconds": float((cpu or ["0"])[0] or 0.0),
                "message": message,
            }
    return tests


def _read(program: Program, work: Path) -> dict[str, Any]:
    """Return the results of a program by mode, without tests for a mode that has not run."""
    files = {mode: work / "results" / f"{program.folder}-{mode}.json" for mode in MODES}
    return {
        mode: json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"tests": {}}
        for mode, file in files.items()
    }


def _git(repository: Path, *arguments: str) -> bytes:
    command = ["git", f"--git-dir={repository}", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("list", "fetch", "run", "page"))
    parser.add_argument("programs", nargs="*", metavar="OWNER/NAME", help="all, if none is named")
    parser.add_argument("--work", type=Path, default=Path("numba-cuda-programs"), metavar="DIR")
    parser.add_argument(
        "--mirror", type=Path, metavar="DIR", help="bare repositories to fetch from"
    )
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, metavar="MODE")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
