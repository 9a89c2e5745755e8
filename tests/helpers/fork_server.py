"""Run programs in processes that are forked from one which has imported the compilers.

For tests of what processes share on disk: a process takes milliseconds to start instead of a
second. It has compiled nothing, and has read no setting before its program starts.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from helpers.clocks import HANG_TIMEOUT
from helpers.processes import ROOT, TESTS, environment_of_users

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ForkServer"]


class ForkServer:
    """A process that forks itself to run programs; a context manager.

    Parameters
    ----------
    *modules : str
        Modules that it imports besides the compilers.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules

    def __enter__(self) -> ForkServer:
        path = os.pathsep.join(map(str, (ROOT, ROOT / "kernels", TESTS)))
        # Two versions of a module within a second would share their bytecode.
        added = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "helpers.fork_server", *self._modules],
            env=environment_of_users() | added,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(HANG_TIMEOUT) == 0

    def output_of(
        self,
        program: Path,
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> str:
        """Return what a program prints; it must succeed and write nothing to stderr."""
        files = [program.with_suffix(suffix) for suffix in (".out", ".err")]
        request = [str(program), list(arguments), environment or {}, list(map(str, files))]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        status = self._process.stdout.readline()
        said, complaint = (file.read_text() for file in files)
        assert (status, complaint) == ("0\n", ""), (status, complaint)
        return said


def _run(
    program: str, arguments: list[str], environment: dict[str, str], files: list[str]
) -> NoReturn:
    """Run a program in this process, which ends."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.update(environment)
    sys.argv[:] = [program, *arguments]
    sys.path.insert(0, str(Path(program).parent))
    try:
        runpy.run_path(program, run_name="__main__")
    except BaseException:  # noqa: BLE001 - any, as a program does
        traceback.print_exc()
        sys.exit(1)
    sys.exit(0)


def _serve(modules: Sequence[str]) -> None:
    from nbrt import config
    from nbrt.backends.cpu.compile_worker import CpuWorker
    from nbrt.backends.cpu.simt.target import simt_target

    for name in ("nbrt.backends.cpu.launch", *CpuWorker.preload, *modules):
        importlib.import_module(name)
    simt_target.target_context.refresh()
    assert config.in_force is None  # settings are read from the environment of the program
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(*json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1:])
