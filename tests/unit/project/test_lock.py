"""The lock files satisfy pyproject.toml on every Python that the project names."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = [
    text.rpartition(" ")[2]
    for text in PROJECT["project"]["classifiers"]
    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", text)
]
LOCKS = ["demo.txt", "dev.txt", "bench.txt"]


def _lines(name: str) -> list[str]:
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    joined = re.sub(r"\\\n\s*", " ", text)
    return [line for line in joined.splitlines() if line and not line.lstrip().startswith("#")]


def _environment(python: str, platform: str) -> dict[str, str]:
    return {
        "extra": "",
        "implementation_name": "cpython",
        "platform_machine": "x86_64" if platform == "linux" else "arm64",
        "platform_python_implementation": "CPython",
        "python_full_version": f"{python}.9",
        "python_version": python,
        "sys_platform": platform,
    }


def _pins(name: str, python: str, platform: str = "linux") -> dict[str, Version]:
    pins: dict[str, Version] = {}
    for line in _lines(name):
        requirement = Requirement(line.partition(" --hash=")[0])
        if requirement.marker is None or requirement.marker.evaluate(
            _environment(python, platform)
        ):
            (specifier,) = requirement.specifier
            assert specifier.operator == "==", line
            assert requirement.name not in pins, f"{requirement.name} is pinned twice"
            pins[requirement.name] = Version(specifier.version)
    return pins


def _wanted(*extras: str) -> list[Requirement]:
    optional = PROJECT["project"]["optional-dependencies"]
    texts = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    for extra in extras:
        texts.extend(optional[extra])
    return [Requirement(text) for text in texts if not text.startswith("nbrt[")]


def _check(name: str, requirements: list[Requirement], python: str, platform: str) -> None:
    pins = _pins(name, python, platform)
    environment = _environment(python, platform)
    for requirement in requirements:
        if requirement.marker is None or requirement.marker.evaluate(environment):
            pin = pins.get(canonicalize_name(requirement.name))
            assert pin is not None, f"{requirement} is not in {name}"
            assert pin in requirement.specifier, f"{name} pins {pin}, expected {requirement}"


def test_there_are_pythons_to_check() -> None:
    assert PYTHONS[0] == "3.11"


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("python", PYTHONS)
def test_dev_lock_satisfies_pyproject(python: str, platform: str) -> None:
    _check("dev.txt", _wanted("viz", "jupyter", "dev"), python, platform)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("python", PYTHONS)
def test_demo_lock_satisfies_pyproject(python: str, platform: str) -> None:
    _check("demo.txt", _wanted("viz"), python, platform)


@pytest.mark.parametrize("python", PYTHONS)
def test_bench_lock_satisfies_pyproject(python: str) -> None:
    requirements = [Requirement(text) for text in PROJECT["dependency-groups"]["bench"]]
    _check("bench.txt", requirements, python, "linux")


@pytest.mark.parametrize(
    ("name", "extras"), [("dev.txt", ["viz", "jupyter", "dev"]), ("demo.txt", ["viz"])]
)
def test_lock_holds_what_its_packages_need(name: str, extras: list[str]) -> None:
    # An extra such as nvcc of cuda-toolkit is a separate package, which pyproject does not name.
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    pins, environment = _pins(name, python, sys.platform), _environment(python, sys.platform)
    pending, seen = _wanted(*extras), set[str]()
    while pending:
        requirement = pending.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        package = canonicalize_name(requirement.name)
        assert package in pins, f"{requirement} is not in {name}"
        assert pins[package] in requirement.specifier, f"{name} pins {pins[package]}: {requirement}"
        for text in importlib.metadata.requires(package) or []:
            needed = Requirement(text)
            if needed.marker is None or any(
                needed.marker.evaluate({**environment, "extra": extra})
                for extra in ["", *requirement.extras]
            ):
                pending.append(needed)
    assert len(seen) > len(pins) / 2


@pytest.mark.parametrize("python", PYTHONS)
def test_locks_agree(python: str) -> None:
    dev = _pins("dev.txt", python)
    assert _pins("demo.txt", python).items() <= dev.items()
    bench = _pins("bench.txt", python)
    assert all(dev[name] == bench[name] for name in dev.keys() & bench.keys())


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_has_a_hash_and_no_index_is_named(name: str) -> None:
    lines = _lines(name)
    assert lines
    assert all("--hash=sha256:" in line for line in lines)
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    assert "://" not in text


@pytest.mark.parametrize("python", PYTHONS)
def test_demo_needs_no_gpu_wheels(python: str) -> None:
    large = {"cupy-cuda12x", "cupy-cuda13x", "nvidia-nvvm", "nvidia-cuda-nvrtc"}
    assert not large & _pins("demo.txt", python).keys()
