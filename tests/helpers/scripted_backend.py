"""A backend whose compile processes do what a test tells them: wait, fail, end, report."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import sys
import threading
import warnings
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from helpers.clocks import HANG_TIMEOUT
from helpers.sample_backend import SampleInterface
from nbrt import config
from nbrt.backends.compile_jobs import CompileJob, Worker
from nbrt.backends.registry import (
    register_interface_for_device,
    unregister_interface_for_device,
)
from nbrt.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "FORKLESS_KIND",
    "KIND",
    "OTHER_KIND",
    "Gate",
    "ProcessEnd",
    "registered",
    "scripted_job",
]

KIND, OTHER_KIND = "scripted", "other_scripted"

FORKLESS_KIND = "forkless_scripted"
"""Its server cannot fork twice."""


prepared: list[int] = []
"""The processes that have called `prepare`: the server, in its workers."""


def prepare() -> None:
    """Called by the server before it forks workers."""
    prepared.append(os.getpid())


class ScriptedWorker(Worker):
    """Runs the action that the payload names."""

    preload = ("helpers.scripted_backend:prepare",)

    def compile(self, payload: bytes) -> str:
        script = json.loads(payload)
        actions = {"hold": _hold, "report": _report, "stop": _stop}
        match script["action"]:
            case "exit":
                os._exit(3)
            case "fail":
                raise CompileError("the kernel's own fault, line 7")
            case "warn":
                warnings.warn("a slow kernel", RuntimeWarning, stacklevel=1)
            case "no memory":
                raise CompileError("the kernel is too large") from MemoryError()
            case "break":
                raise RuntimeError("a fault of the worker")
            case name if name in actions:
                actions[name](script)
        return str(script["key"])


class ForklessWorker(ScriptedWorker):
    preload = (*ScriptedWorker.preload, "helpers.no_forks")


class ScriptedInterface(SampleInterface):
    def worker(self) -> ScriptedWorker:
        kind = ForklessWorker if self.name == FORKLESS_KIND else ScriptedWorker
        return kind(self.name, (), 0)


def _hold(script: dict[str, Any]) -> None:
    """Say that the work has begun, and wait for the gate."""
    _begin(script)
    with open(script["go"]) as go:
        go.read()


def _stop(script: dict[str, Any]) -> None:
    """Say that the work has begun, and stop the process."""
    _begin(script)
    os.kill(os.getpid(), signal.SIGSTOP)


def _begin(script: dict[str, Any]) -> None:
    with open(script["begun"], "w") as begun:
        begun.write(f"{os.getpid()}\n")


def _report(script: dict[str, Any]) -> None:
    """Write the state of the process to a file."""
    state = {
        "environ": dict(os.environ),
        "folder": os.getcwd(),
        "paths": sys.path,
        "settings": asdict(config.settings()),
        "threads": threading.active_count(),
        "pid": os.getpid(),
        "prepared": prepared,
        "main": list(vars(sys.modules["__main__"])),
        "modules": sorted(sys.modules),
    }
    with open(script["file"], "w") as file:
        json.dump(state, file)


@contextmanager
def registered() -> Iterator[None]:
    kinds = KIND, OTHER_KIND, FORKLESS_KIND
    for kind in kinds:
        register_interface_for_device(kind, ScriptedInterface(kind))
    try:
        yield
    finally:
        for kind in kinds:
            unregister_interface_for_device(kind)


def scripted_job(action: str, label: str = "", kind: str = KIND, **script: Any) -> CompileJob:
    """Return a job with its own key for a label."""
    key = hashlib.sha256(f"{action} {label} {sorted(script.items())}".encode()).hexdigest()
    payload = json.dumps({"action": action, "key": key, **script}).encode()
    return CompileJob(kind, key, label or action, payload)


@dataclass
class Gate:
    """Holds a job in a worker process until the test opens it."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        for name in ("begun", "go"):
            os.mkfifo(self.folder / name)

    def job(self, action: str = "hold") -> CompileJob:
        names = {name: str(self.folder / name) for name in ("begun", "go")}
        return scripted_job(action, **names)

    def wait_until_begun(self) -> int:
        """Wait until the worker holds the job; return its process."""
        with open(self.folder / "begun") as begun:
            return int(begun.readline())

    def open(self) -> None:
        """Let the job end."""
        with open(self.folder / "go", "w"):
            pass


class ProcessEnd:
    """The end of a process that need not be a child."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def wait(self) -> None:
        ready, _, _ = select.select([self._descriptor], [], [], HANG_TIMEOUT)
        assert ready, "the process has not ended"
        os.close(self._descriptor)
