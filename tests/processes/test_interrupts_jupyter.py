"""Interrupt a notebook while a kernel runs."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

from helpers.processes import ROOT, TESTS, environment_of_users

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TIMEOUT = 120


class _Notebook:
    """A real ipykernel."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.manager = KernelManager()
        self.manager._kernel_spec = KernelSpec(argv=command, language="python")
        inherited = environment_of_users()
        inherited["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "kernels", TESTS)))
        self.manager.start_kernel(env=inherited)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=_TIMEOUT)

    def run(self, code: str) -> str:
        """Run a cell; return what it printed, or its traceback."""
        return self.result(self.client.execute(code))

    def result(self, cell: str) -> str:
        """Wait for a cell that was sent."""
        text = ""
        while True:
            message: Any = self.client.get_iopub_msg(timeout=_TIMEOUT)
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                text += content["text"]
            elif message["msg_type"] == "error":
                text += "\n".join(content["traceback"])
            elif content.get("execution_state") == "idle":
                return text

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook() -> Iterator[_Notebook]:
    found = _Notebook()
    yield found
    found.close()


@pytest.mark.parametrize("grid", [1, 256])
def test_the_stop_button_ends_a_launch(notebook: _Notebook, tmp_path: Path, grid: int) -> None:
    shared = tmp_path / "seen"
    np.zeros(2, np.int64).tofile(shared)
    seen = np.memmap(shared, np.int64, "r+")
    head = f"""
import numpy as np, nbrt
from helpers.endless import endless, counted, TURNS
nbrt.set_device("cpu:0")
seen = np.asarray(np.memmap({str(shared)!r}, np.int64, "r+"))
out = np.zeros({grid} * 64)
"""
    assert notebook.run(head) == ""
    for launch in (f"endless[{grid}, 64](out, seen)", f"counted[{grid}, 64](out, seen, TURNS)"):
        seen[:] = 0
        cell = notebook.client.execute(launch)
        while not seen[0]:
            time.sleep(0.001)
        notebook.manager.interrupt_kernel()
        text = notebook.result(cell)
        assert "KeyboardInterrupt" in text
        assert len(text.splitlines()) <= 15
        assert "numba" not in text
    again = f"out[:] = 1; counted[{grid}, 64](out, seen, 5); print((out == 10).all())"
    assert notebook.run(again) == "True\n"
