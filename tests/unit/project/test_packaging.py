"""A wheel and an editable install provide `nbrt`, `nbrt_kernels` and a path file, no more."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import nbrt

ROOT = Path(__file__).resolve().parents[3]
FILES = {".py", ".typed", ".ll"}  # .ll: LLVM IR that the SIMT compiler puts together
PATH_FILE = "nbrt_numba_cuda.pth"
FOLDERS = ["benchmarks", "docs", "kernels", "notebooks", "requirements", "tests", "tools"]

# Prints where each name would be imported from; None: nowhere.
WHERE = """
import importlib.util, json, sys
specs = {name: importlib.util.find_spec(name) for name in sys.argv[1:]}
print(json.dumps({name: spec and (spec.origin or "namespace") for name, spec in specs.items()}))
"""


def _run(arguments: list[str], folder: Path, **environment: str) -> str:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    completed = subprocess.run(
        arguments,
        cwd=folder,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    _run([*build, str(ROOT)], folder)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_the_packages_a_path_file_and_nothing_beside(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    metadata = f"nbrt-{nbrt.__version__}.dist-info"
    provided = {"nbrt", "nbrt_kernels", PATH_FILE, metadata}
    assert {name.partition("/")[0] for name in names} == provided
    assert {"nbrt/py.typed", "nbrt_kernels/py.typed"} <= set(names)


def test_wheel_holds_every_file_of_the_tree(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, package in [(ROOT, "nbrt"), (ROOT / "kernels", "nbrt_kernels")]:
        paths = [path for path in (folder / package).rglob("*") if path.suffix in FILES]
        assert {path.relative_to(folder).as_posix() for path in paths} <= names
    assert any(name.startswith("nbrt/") and name.endswith(".ll") for name in names)


def test_wheel_has_licence_and_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    folder = f"nbrt-{nbrt.__version__}.dist-info"
    assert archive.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    entry_points = archive.read(f"{folder}/entry_points.txt").decode()
    assert "nbrt = nbrt.cli.main:main" in entry_points


def test_installed_wheel_imports(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(target)
    # Without `site`, the path files of an editable install do not run: only the wheel can answer.
    dependencies = Path(np.__file__).parents[1]
    path = os.pathsep.join([str(target), str(dependencies)])
    python = [sys.executable, "-S", "-P", "-c"]
    where = json.loads(
        _run([*python, WHERE, "nbrt", "nbrt_kernels", *FOLDERS], tmp_path, PYTHONPATH=path)
    )
    assert where.pop("nbrt") == str(target / "nbrt" / "__init__.py")
    assert where.pop("nbrt_kernels") == str(target / "nbrt_kernels" / "__init__.py")
    assert set(where.values()) == {None}
    _run([*python, "import nbrt, nbrt_kernels"], tmp_path, PYTHONPATH=path)


def test_editable_install_maps_the_two_packages_only(tmp_path: Path) -> None:
    names = ["nbrt", "nbrt_kernels", *FOLDERS]
    where = json.loads(_run([sys.executable, "-P", "-c", WHERE, *names], tmp_path))
    assert where.pop("nbrt") == str(ROOT / "nbrt" / "__init__.py")
    assert where.pop("nbrt_kernels") == str(ROOT / "kernels" / "nbrt_kernels" / "__init__.py")
    assert set(where.values()) == {None}, "a folder of the repository is importable from elsewhere"


def test_no_distribution_owns_a_top_level_kernels() -> None:
    assert "kernels" not in importlib.metadata.packages_distributions()


def test_version_has_one_source() -> None:
    namespace: dict[str, str] = {}
    exec((ROOT / "nbrt" / "_version.py").read_text(encoding="utf-8"), namespace)
    assert nbrt.__version__ == namespace["__version__"]
    assert importlib.metadata.version("nbrt") == nbrt.__version__
