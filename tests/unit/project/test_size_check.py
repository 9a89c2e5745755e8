"""The size check of `make lint` finds long files and functions, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def size_check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("size_check", ROOT / "tools" / "size_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _function(lines: int, before: str = "def f():") -> str:
    head = before.splitlines()
    return "\n".join([*head, *["    pass"] * (lines - len(head))]) + "\n"


@pytest.mark.parametrize("head", ["def f():", "async def f():", "@g\n@g\ndef f():"])
def test_function_limit(size_check: ModuleType, tmp_path: Path, head: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(_function(60, head))
    assert size_check.check_file(path) == []
    path.write_text(_function(61, head))
    (finding,) = size_check.check_file(path)
    assert "function f has 61 lines, the limit is 60" in finding


def test_a_docstring_does_not_count(size_check: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    documented = 'def f():\n    """Say.\n\n    More.\n    """\n' + "    pass\n" * 59
    path.write_text(documented)
    assert size_check.check_file(path) == []
    path.write_text(documented + "    pass\n")
    (finding,) = size_check.check_file(path)
    assert "function f has 61 lines" in finding


def test_method_and_nested_function(size_check: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    nested = _function(62).replace("\n", "\n    ").rstrip()
    path.write_text(f"class C:\n    {nested}\n")
    (finding,) = size_check.check_file(path)
    assert finding.startswith(f"{path}:2: function f has 62 lines")


def test_file_limit(size_check: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("# line\n" * 500)
    assert size_check.check_file(path) == []
    path.write_text("# line\n" * 501)
    assert size_check.check_file(path) == [f"{path}:1: file has 501 lines, the limit is 500"]


def test_folders(size_check: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ["b.py", "package/a.py", ".hidden/c.py", "data.txt"]:
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in size_check.python_files([tmp_path])]
    assert found == ["b.py", "package/a.py"]


def test_missing_path_is_an_error(size_check: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected a file or a folder"):
        list(size_check.python_files([tmp_path / "missing"]))


def test_exit_status(
    size_check: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "module.py"
    path.write_text(_function(60))
    assert size_check.main([str(tmp_path)]) == 0
    path.write_text(_function(61))
    assert size_check.main([str(tmp_path)]) == 1
    assert "size check: 1 files, 1 over the limit" in capsys.readouterr().out
