"""Run files of tests in separate processes, with a time limit for each test."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conformance import FOLDERS
from tests.conformance.rules import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ENGINES", "Outcome", "files", "run_file", "run_worker"]

ENGINES = ("nbrt", "simulator")
START_LIMIT = 120.0
"""Seconds for a file's import, in which many kernels are only declared."""
_END_LIMIT = 60.0
"""Seconds for a worker to end, once it has nothing more to say."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one test: passed, failed, or skipped (under nbrt: not applicable)."""

    test: str
    outcome: str
    detail: str
    seconds: float

    as_dict = asdict


def files(tests: Path, only: str = "") -> list[str]:
    """List the modules with tests, as ``folder.module``."""
    found = [path for folder in FOLDERS for path in sorted((tests / folder).glob("test_*.py"))]
    names = [f"{path.parent.name}.{path.stem}" for path in found]
    return [name for name in names if only in name]


def run_file(engine: str, tests: Path, module: str, limit: float) -> list[Outcome]:
    """Run the tests of one file; where one hangs or kills its process, go on behind it."""
    with tempfile.TemporaryDirectory() as cache:
        environment = dict(os.environ, NBRT_DEVICE="cpu", NBRT_CACHE_DIR=cache)
        environment["NUMBA_ENABLE_CUDASIM"] = str(int(engine == "simulator"))
        environment["NBRT_CPU_DEVICES"] = "2"  # for the tests of several GPUs
        environment["NBRT_NUMBA_CUDA"] = str(int(engine == "nbrt"))
        environment |= SETTINGS.get(module, {})
        command = [sys.executable, "-m", "tests.conformance.worker", engine, str(tests), module]
        return run_worker(command, environment, limit, module.replace(".", "/") + ".py")


def run_worker(
    command: list[str], environment: dict[str, str], limit: float, name: str
) -> list[Outcome]:
    """Run a worker, and start it again without the tests that are done while its process dies.

    Parameters
    ----------
    command : list of str
        Gets as its last argument the descriptor to which it writes its reports, and on standard
        input the tests that are done.
    limit : float
        Seconds for one test.
    name : str
        What fails if the worker dies between tests.
    """
    outcomes: list[Outcome] = []
    while True:
        begun, ending = None, ""
        for event in _events(command, environment, limit, [o.test for o in outcomes]):
            if "start" in event:
                begun = event["start"]
            elif "ending" in event:
                ending = event["ending"]
            else:
                begun = None
                outcomes.append(
                    Outcome(event["id"], event["outcome"], event["detail"], event["seconds"])
                )
        if not ending:
            return outcomes
        outcomes.append(Outcome(begun or name, "failed", ending, 0.0))
        if begun is None:
            return outcomes


def _events(
    command: list[str], environment: dict[str, str], limit: float, done: list[str]
) -> Iterator[dict[str, str]]:
    """Yield the reports of a worker, and its failure, if any."""
    receiver, sender = os.pipe()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            [*command, str(sender)],
            pass_fds=(sender,),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        os.close(sender)
        assert child.stdin is not None
        child.stdin.write("\n".join(done).encode())
        child.stdin.close()
        in_time = False
        try:
            in_time = yield from _lines(receiver, limit)
        finally:
            os.close(receiver)
            if not (in_time and _ended(child)) and child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if not in_time:
            yield {"ending": f"TimeLimit: more than {limit:.0f} s"}
        elif child.returncode:
            output.seek(0)
            last = output.read()[-500:].decode(errors="replace").strip()
            yield {"ending": f"ProcessDied: exit status {child.returncode}: {last}"}


def _ended(child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(_END_LIMIT)
    except subprocess.TimeoutExpired:
        return False
    return True


def _lines(receiver: int, limit: float) -> Iterator[dict[str, str]]:
    """Yield each line as it comes; return whether the writer closed before the limit ran out."""
    pending = b""
    remaining = START_LIMIT
    with selectors.DefaultSelector() as selector:
        selector.register(receiver, selectors.EVENT_READ)
        while _comes(selector, remaining):
            chunk = os.read(receiver, 1 << 16)
            if not chunk:
                return True
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                yield json.loads(line)
            remaining = limit
    return False


def _comes(selector: selectors.BaseSelector, seconds: float) -> bool:
    """Return whether the worker says something, or has ended, within so many seconds."""
    return bool(selector.select(seconds))
