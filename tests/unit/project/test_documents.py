"""Facts in README, docs, Makefile and changelog."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))


def _read(*parts: str) -> str:
    return ROOT.joinpath(*parts).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_make_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    commands = re.findall(r"(?:^\$ |`)make (?:[A-Z]+=\S+ )*([a-z]+)", text, re.MULTILINE)
    assert set(commands) <= TARGETS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_make_help_lists_every_target() -> None:
    documented = set(re.findall(r"^([a-z]+):.*## \S", MAKEFILE, re.MULTILINE))
    assert documented == TARGETS
    assert {"help", "env", "demo", "test", "lint", "format", "docs", "bench", "clean"} <= TARGETS
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert set(phony.split()) == TARGETS


def test_readme_names_the_extras_that_exist() -> None:
    extras = tomllib.loads(_read("pyproject.toml"))["project"]["optional-dependencies"]
    named = set(re.findall(r"'\.\[(\w+)\]'", _read("README.md") + _read("docs", "install.md")))
    assert named
    assert named <= extras.keys()
    assert all(f"`{extra}`" in _read("docs", "install.md") for extra in extras)


def test_ci_runs_lint_and_test() -> None:
    script = _read(".ci", "run")
    assert "set -euo pipefail" in script
    steps = re.findall(r"^make .*$", script, re.MULTILINE)
    assert steps == ["make env", "make --jobs 2 --output-sync lint collect", "make test"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_changelog_has_unreleased_first() -> None:
    headings = re.findall(r"^## (.*)$", _read("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"


def test_environment_variables_are_those_of_the_code() -> None:
    in_code = {
        name
        for path in (ROOT / "nbrt").rglob("*.py")
        for name in re.findall(r"NBRT_[A-Z][A-Z_]*[A-Z]", path.read_text(encoding="utf-8"))
    }
    page = _read("docs", "environment_variables.md")
    assert set(re.findall(r"^\| `(NBRT_[A-Z_]+)`", page, re.MULTILINE)) == in_code


def test_gpu_status_names_what_exists() -> None:
    parts = _read("docs", "gpu_status.md").partition("## Bits of draws")[0]
    named = re.findall(r"^\| `([\w/.]+)`", parts, re.MULTILINE)
    assert {"nbrt/backends/cuda/", "kernels/nbrt_kernels/"} <= set(named)
    assert all((ROOT / name).exists() for name in named)


def test_licence_is_apache() -> None:
    text = _read("LICENSE")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert tomllib.loads(_read("pyproject.toml"))["project"]["license"] == "Apache-2.0"


def test_architecture_names_files_that_exist() -> None:
    text = _read("docs", "architecture.md")
    names = re.findall(r"\b(?:[a-z_]+/)+[a-z_*]*(?:\.\w+)?", re.sub(r"\]\([^)]*\)", "", text))
    roots = (ROOT, ROOT / "nbrt", ROOT / "nbrt" / "backends" / "cpu", ROOT / "kernels/nbrt_kernels")
    missing = {name for name in names if not any(list(root.glob(name)) for root in roots)}
    assert not missing
    assert len(names) > 40


def test_glossary_is_short() -> None:
    glossary = _read("docs", "architecture.md").partition("## Glossary")[2]
    assert 10 < len(re.findall(r"^\| (?!Word|---)", glossary, re.MULTILINE)) <= 25
