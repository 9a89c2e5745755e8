"""Run the tests beside busy loops, several times: none may depend on how loaded the machine is.

    python tools/stress.py [--times 3] [--workers 4] [--loops 2] [--cores 2] [PYTEST ARGUMENTS]

The workers of pytest and the loops share the cores, of which the first that this process may use
are taken. Exits with 1 if any run fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["main"]

# Ends with its parent, also where that is killed.
_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests as the arguments say; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=3, help="runs of the suite (%(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="of pytest-xdist (%(default)s)")
    parser.add_argument("--loops", type=int, default=2, help="busy loops beside (%(default)s)")
    parser.add_argument("--cores", type=int, default=2, help="for all of it (%(default)s)")
    options, rest = parser.parse_known_args(arguments)
    _keep_to(options.cores)
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(options.workers), *rest]
    codes = []
    with _busy(options.loops):
        for number in range(1, options.times + 1):
            print(f"==> run {number} of {options.times}: {' '.join(command[1:])}", flush=True)
            begin = time.monotonic()
            codes.append(subprocess.run(command, check=False).returncode)
            minutes = (time.monotonic() - begin) / 60
            print(f"==> run {number} ended with {codes[-1]} after {minutes:.1f} min", flush=True)
    failed = sum(map(bool, codes))
    print(f"==> {len(codes) - failed} of {len(codes)} runs without a failure")
    return int(failed > 0)


def _keep_to(cores: int) -> None:
    """Let this process and its children run on so many cores, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


@contextmanager
def _busy(loops: int) -> Iterator[None]:
    """Keep so many processes busy meanwhile."""
    running = [subprocess.Popen([sys.executable, "-I", "-c", _LOOP]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


if __name__ == "__main__":
    sys.exit(main())
