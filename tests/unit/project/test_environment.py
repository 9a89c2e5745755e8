"""environment.yml and pyproject.toml have the same dependencies."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[3]

# PyPI's name -> conda-forge's, where they differ.
CONDA_NAMES = {
    "build": "python-build",
    "ml-dtypes": "ml_dtypes",
    "cupy-cuda12x": "cupy",  # on PyPI one wheel for each CUDA; conda picks by cuda-version
    "cupy-cuda13x": "cupy",
    "matplotlib": "matplotlib-base",  # conda's "matplotlib" adds Qt
    "pyside6-webengine": "qt6-webengine",
    "ziglang": "c-compiler",  # on PyPI, zig is the compiler that a wheel can bring
}
# On PyPI a meta package with an extra for each library; on conda-forge each is a package.
CONDA_TOOLKIT = {
    "cudart": "cuda-cudart",
    "nvcc": "cuda-nvcc-tools",
    "nvrtc": "cuda-nvrtc",
    "nvvm": "cuda-nvvm-impl",
}
# Needed to make a conda environment, or pulled in by an extra on PyPI.
CONDA_ONLY = {"pip", "python", "mkdocstrings-python", "pyside6"}


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _from_pyproject() -> dict[str, SpecifierSet]:
    project = _project()
    texts = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        texts.extend(extra)
    found: dict[str, SpecifierSet] = {}
    for text in texts:
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            continue  # an extra made of other extras
        for name in _conda_names(requirement):
            wanted = requirement.specifier
            if name in {"cuda-cudart", "cuda-nvcc-tools"} and name in found:
                continue  # the first bounds hold; `dev` narrows them to the compiler's CUDA
            assert found.setdefault(name, wanted) == wanted, f"two bounds for {name}"
    return found


def _conda_names(requirement: Requirement) -> list[str]:
    if requirement.name == "cuda-toolkit":
        return [CONDA_TOOLKIT[extra] for extra in sorted(requirement.extras)]
    return [CONDA_NAMES.get(requirement.name, requirement.name)]


def _from_conda() -> dict[str, SpecifierSet]:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["channels"] == ["conda-forge"]
    requirements = [Requirement(text) for text in environment["dependencies"]]
    return {requirement.name: requirement.specifier for requirement in requirements}


def test_same_names() -> None:
    assert set(_from_conda()) - CONDA_ONLY == set(_from_pyproject())


def test_same_bounds() -> None:
    conda = _from_conda()
    wanted = _from_pyproject()
    assert {name: conda[name] for name in wanted} == wanted


def test_same_python() -> None:
    assert _from_conda()["python"] == SpecifierSet(_project()["requires-python"])
