"""The vocabulary of the project: retired words stay out of names, docstrings and pages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prose_check", ROOT / "tools" / "prose_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prose_check = _load()


def _messages(path: Path, text: str) -> Sequence[str]:
    path.write_text(text, encoding="utf-8")
    return [f"{line} {message}" for line, message in prose_check.check_file(path)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class DeviceBooks:\n    x = 1\n", "1 retired name 'DeviceBooks'"),
        ("def lend_block(x): ...\n", "1 retired name 'lend_block'"),
        ("def f(tenant): ...\n", "1 retired name 'tenant'"),
        ("\n_MOST_BLOCKS = 3\n", "2 retired name '_MOST_BLOCKS'"),
        ('def f():\n    """Give it."""\n', "1 docstring starts with 'Give'"),
        ('"""What it is."""\n', "1 docstring starts with 'What'"),
        ("x = 1  # nobody reads it\n", "1 retired phrase 'nobody'"),
        ('x = """a\nb of its own"""\n', "2 retired phrase 'of its own'"),
    ],
)
def test_python_files(tmp_path: Path, text: str, message: str) -> None:
    (found,) = _messages(tmp_path / "module.py", text)
    assert found.startswith(message)


@pytest.mark.parametrize(
    "text",
    [
        "class Balance:\n    tapestry = calendar = 1\n",
        'def f():\n    """Return what NumPy returns."""\n',
        "x = 1  # somebodys\n",
    ],
)
def test_other_words_pass(tmp_path: Path, text: str) -> None:
    assert not _messages(tmp_path / "module.py", text)


def test_markdown(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert _messages(page, "Whoever reads\n") == ["1 retired phrase 'Whoever'"]
    assert _messages(page, "x" * 121) == ["1 line of 121 characters, the limit is 120"]
    assert not _messages(page, "| " + "x" * 130 + "\n[text](" + "x" * 130 + ")\n")


def test_the_project_uses_its_vocabulary(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    names = ("nbrt", "kernels", "tests", "tools", "benchmarks", "docs", "README.md")
    status = prose_check.main(names)
    assert status == 0, capsys.readouterr().out
