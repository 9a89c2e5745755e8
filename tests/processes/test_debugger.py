"""pdb in a kernel, with commands from standard input."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from helpers.clocks import HANG_TIMEOUT
from helpers.processes import ROOT, environment_of_users

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """\
import numpy as np
import nbrt
from numba import cuda
from numba.cuda import threadIdx


@cuda.jit(device=True)
def neighbour(tile, t):
    place = (t + 1) % 32
    return tile[place]


@nbrt.kernel
def rotate(x, y):
    tile = cuda.shared.array(32, "float32")
    t = threadIdx.x
    tile[t] = 10 * x[t]
    cuda.syncthreads()
    breakpoint()
    value = neighbour(tile, t)
    cuda.syncthreads()
    y[t] = value


x = np.arange(64, dtype=np.float32).reshape(2, 32)
y = np.zeros((2, 32), np.float32)
with nbrt.device("cpu"):
    for row in range(2):
        rotate[2, 32](x[row], y[row])
print("right:", (y == 10 * np.roll(x, -1, axis=1)).all())
"""


def debug(tmp_path: Path, commands: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    inherited = environment_of_users()
    inherited["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "kernels")))
    return subprocess.run(
        [sys.executable, str(program)],
        input=commands,
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
        env={**inherited, "NBRT_INTERPRET": "1", **environment},
    )


def test_stops_in_the_chosen_thread_at_the_kernels_line(tmp_path: Path) -> None:
    # From Python 3.13 on, the debugger stops at the call of breakpoint() itself.
    go_on = "n\n" if sys.version_info >= (3, 13) else ""
    look = "p threadIdx, cuda.blockIdx.x, t\np tile[t]\ns\ns\nn\np place\nr\nr\nc\n"
    commands = f"{go_on}{look}{go_on}c\n"
    done = debug(tmp_path, commands, NBRT_INTERPRET_THREAD="5", NBRT_INTERPRET_BLOCK="1")
    output = done.stdout
    assert done.returncode == 0, done.stderr
    # Once in each of the two launches, of 64 threads each.
    assert output.count("rotate()\n-> value = neighbour(tile, t)") == 2
    assert f"{tmp_path / 'program.py'}(21)rotate()" in output
    assert "((5, 0, 0), np.int64(1), np.int64(5))" in output
    assert "np.float32(50.0)" in output
    # Stepping goes into the device function, and its locals are there.
    assert "-> place = (t + 1) % 32" in output
    assert "(Pdb) np.int64(6)" in output
    assert "right: True" in output


def test_a_thread_that_is_not_there_stops_nowhere(tmp_path: Path) -> None:
    done = debug(tmp_path, "", NBRT_INTERPRET_THREAD="40")
    assert (done.stdout, done.stderr) == ("right: True\n", "")


def test_leaving_the_debugger_ends_the_launch(tmp_path: Path) -> None:
    done = debug(tmp_path, "q\n")
    assert done.returncode == 1
    assert "right:" not in done.stdout
    assert "BdbQuit\nin block (0, 0, 0), thread (0, 0, 0)\n" in done.stderr
