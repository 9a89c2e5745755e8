"""Every Python snippet of the README and of the user guide runs, page by page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nbrt
from helpers.processes import run_python

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
    ROOT / "docs" / "inspection.md",
    ROOT / "docs" / "debugging.md",
]
OWN_PROCESS = {"numba_cuda"}
"""Pages whose snippets change numba.cuda for the whole process."""

SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _snippets(page: Path) -> str:
    """Return the snippets of a page as one program, on the lines where they stand."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    for match in SNIPPET.finditer(text):
        first = text.count("\n", 0, match.start(1))
        code = match[1].splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_snippets_run(page: Path) -> None:
    program = _snippets(page)
    if page.stem in OWN_PROCESS:
        done = run_python(program, "-W", "ignore", environment={"NBRT_DEVICE": "cpu"})
        assert done.returncode == 0, done.stderr
        return
    before = nbrt.current_device()
    exec(compile(program, str(page), "exec"), {"__name__": "snippets"})
    nbrt.synchronize()
    assert nbrt.current_device() == before


def test_there_are_snippets() -> None:
    assert sum(bool(_snippets(page).strip()) for page in PAGES) >= 5
