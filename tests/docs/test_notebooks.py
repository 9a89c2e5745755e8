"""Every notebook runs in a fresh kernel and shows its figures.

Notebooks are committed without outputs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from helpers.processes import environment_of_users

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS[0].name == "00_quickstart.ipynb"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


# Raised inside jupyter_client.
ignores_deprecations = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BARE_FIGURE = re.compile(r"<\w*Figure size")

COUNT = """
import matplotlib.figure as _figure

_made, _init = [], _figure.Figure.__init__


def _counting(self, *args, **kwargs):
    _init(self, *args, **kwargs)
    _made.append(type(self).__name__)


_figure.Figure.__init__ = _counting
"""
"""Counts figures. The module alone registers no way to show one with IPython: pyplot does that."""

DRAW_WITHOUT_PYPLOT = [
    "import nbrt.distributed as dist\n"
    "from nbrt import memory\n"
    "from nbrt.cli.demo.figures import draw_timeline\n"
    "from nbrt.cli.demo.pipeline import DemoStep\n"
    "snapshot = {'segments': [], 'device_traces': [[]]}\n"
    "def spec():\n"
    "    mesh = dist.init_device_mesh('cpu', (2,))\n"
    "    return dist.DTensorSpec(mesh, [dist.Shard(0)], (4, 4), 'float32')",
    "memory.plot_timeline(snapshot)",
    "memory.plot_segments(snapshot)",
    "dist.sharding_figure(dist.run(spec, ranks=2)[0])",
    "draw_timeline((DemoStep('upload', 'copy', 0.0, 1.0, 8, 8),), 'one step')",
]


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook runs as its reader would run it, who has no simulated CUDA driver.

    Warnings are errors in this process only.
    """
    users = environment_of_users()
    for name in set(os.environ) - set(users) - {"NBRT_CACHE_DIR", "NBRT_CPU_DEVICES"}:
        monkeypatch.delenv(name)
    for name, value in users.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)


def run(notebook: Any, folder: Path) -> list[list[Any]]:
    """Run a notebook in a fresh kernel; return the outputs of its cells of code.

    The limit of a cell is for one that hangs; a loaded machine needs much less.
    """
    client = NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(folder)}})
    client.execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def of_code(*sources: str) -> Any:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in sources])


def images(outputs: list[Any]) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs)


def check_quiet(outputs: list[Any]) -> None:
    """Fail if there is an error, a warning, or a figure as text alone."""
    for output in outputs:
        assert output.output_type != "error", output
        assert output.get("name") != "stderr", output.text
        data = output.get("data", {})
        assert "image/png" in data or not BARE_FIGURE.search(data.get("text/plain", "")), data


@ignores_deprecations
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("plain_environment")
def test_notebook_runs_and_shows_what_it_draws(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    made = of_code(COUNT, "print(len(_made))").cells
    notebook.cells = [made[0], *notebook.cells, made[1]]
    _, *outputs, count = run(notebook, tmp_path)
    assert any(outputs)
    for each in outputs:
        check_quiet(each)
    assert sum(map(images, outputs)) == int(count[0].text)


@ignores_deprecations
@pytest.mark.parametrize("first", ["", "%matplotlib inline", "import matplotlib.pyplot as plt"])
@pytest.mark.usefixtures("plain_environment")
def test_every_figure_of_the_library_is_shown_once(first: str, tmp_path: Path) -> None:
    loaded = "import sys; print('matplotlib.pyplot' in sys.modules)"
    notebook = of_code(first, *DRAW_WITHOUT_PYPLOT, loaded)
    _, definitions, *drawn, pyplot = run(notebook, tmp_path)
    assert definitions == []
    assert list(map(images, drawn)) == [1] * (len(DRAW_WITHOUT_PYPLOT) - 1)
    assert all(len(outputs) == 1 for outputs in drawn)
    assert pyplot[0].text == f"{bool(first)}\n"


@ignores_deprecations
@pytest.mark.usefixtures("plain_environment")
def test_axes_of_pyplot_are_shown_once(tmp_path: Path) -> None:
    draw = (
        "import matplotlib.pyplot as plt\n"
        "figure, axes = plt.subplots()\n"
        "memory.plot_timeline(snapshot, ax=axes)"
    )
    _, outputs = run(of_code(DRAW_WITHOUT_PYPLOT[0], draw), tmp_path)
    check_quiet(outputs)
    assert [images([each]) for each in outputs] == [1]
