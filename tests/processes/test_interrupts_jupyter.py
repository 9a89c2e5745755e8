"""Interrupt a notebook while a kernel runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from helpers.notebook import Notebook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    found = Notebook()
    yield found
    found.close()


@pytest.mark.parametrize("grid", [1, 256])
def test_the_stop_button_ends_a_launch(notebook: Notebook, tmp_path: Path, grid: int) -> None:
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
