"""Code on disk that is not taken for other code: names of standard modules, and addresses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from helpers.processes import ROOT, output_of

if TYPE_CHECKING:
    from pathlib import Path


SHADOWING = """
import sys
import numpy as np
import nbrt
from numba import cuda
import token, statistics

@nbrt.kernel
def store(x):
    x[0] = token.OFFSET
    x[1] = statistics.shifted(1)

x = np.zeros(2)
with nbrt.device("cpu:0"):
    if sys.argv[1] == "compile":
        nbrt.compile(store, x, block=1).result()
    store[1, 1](x)
print(x.tolist())
"""


@pytest.mark.parametrize("way", ["launch", "compile"])
def test_modules_with_names_of_standard_ones_are_of_the_program(tmp_path: Path, way: str) -> None:
    # "token" is imported by the standard library before the program's folder is on the path.
    # Bytecode of the first modules could be taken for that of the second: same size, same second.
    (tmp_path / "program.py").write_text(SHADOWING)
    for offset in (1, 2):
        (tmp_path / "token.py").write_text(
            f"import sysconfig\nexec(open(sysconfig.get_path('stdlib') + '/token.py').read())\n"
            f"OFFSET = {offset}\n"
        )
        (tmp_path / "statistics.py").write_text(
            f"from numba import cuda\n"
            f"@cuda.jit(device=True)\ndef shifted(x):\n    return x + {offset}\n"
        )
        script = str(tmp_path / "program.py")
        done = subprocess.run(
            [sys.executable, script, way],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "NBRT_CACHE_DIR": str(tmp_path / "cache"),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout) == [float(offset), offset + 1.0]


ADDRESSES = """
import sys
import numpy as np
from numba import cuda
from nbrt.backends.cpu.launch import CpuProgram

COLUMN = np.array([[1.0, 2.0], [3.0, 4.0]])[:, 1]
LARGE = np.arange(130_000.0)

def of_column(x):
    x[0] = COLUMN[1]

def of_large(x):
    x[0] = LARGE[int(x[0])]

x = np.full(1, 129_999.0)
for kernel in (of_large, of_column):
    CpuProgram(kernel).plan(0, (1, 1, 1), (1, 1, 1))(x)
    print(x[0])
"""


def test_code_with_addresses_of_arrays_is_not_kept(tmp_path: Path) -> None:
    for _ in range(2):
        done = output_of(ADDRESSES, environment={"NBRT_CACHE_DIR": str(tmp_path / "cache")})
        assert done.split() == ["129999.0", "4.0"]
    assert not list(tmp_path.rglob("*.nbrtc"))
