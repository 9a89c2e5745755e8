"""Hooks of MkDocs: fill in the navigation and add the reference pages.

An entry ``folder/*`` in ``nav`` stands for every page of that folder, README (or index) first and
then by name, so that a new page needs no change here. The pages of ``reference/`` exist only in the
built site: each holds one public module, documented from its docstrings.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

__all__ = ["PUBLIC_MODULES", "on_config", "on_files"]

PUBLIC_MODULES = (
    "nbrt",
    "nbrt.backends.interface",
    "nbrt.backends.registry",
    "nbrt.config",
    "nbrt.errors",
    "nbrt.memory",
    "nbrt.random",
    "nbrt.random.audit",
    "nbrt.testing",
    "nbrt.testing.reproducibility",
    "nbrt.typing",
    "nbrt_kernels",
)
_FIRST = ("README.md", "index.md")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace the ``folder/*`` entries of the navigation by the pages they stand for."""
    if config.nav is not None:
        config.nav = _expand(config.nav, Path(config.docs_dir))
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a reference page for each public module."""
    for module in PUBLIC_MODULES:
        content = f"# {module}\n\n::: {module}\n"
        files.append(File.generated(config, _reference_page(module), content=content))
    return files


def _expand(entries: list[Any], docs: Path) -> list[Any]:
    expanded: list[Any] = []
    for entry in entries:
        if isinstance(entry, str) and entry.endswith("/*"):
            expanded.extend(_pages(docs, entry.removesuffix("/*")))
        elif isinstance(entry, dict):
            expanded.append({title: _expand_value(value, docs) for title, value in entry.items()})
        else:
            expanded.append(entry)
    return expanded


def _expand_value(value: Any, docs: Path) -> Any:
    if isinstance(value, list):
        return _expand(value, docs)
    if isinstance(value, str) and value.endswith("/*"):
        return _pages(docs, value.removesuffix("/*"))
    return value


def _pages(docs: Path, folder: str) -> list[Any]:
    if folder == "reference":
        return [{module: _reference_page(module)} for module in PUBLIC_MODULES]
    names = sorted(path.name for path in (docs / folder).glob("*.md"))
    return [f"{folder}/{name}" for name in sorted(names, key=lambda name: name not in _FIRST)]


def _reference_page(module: str) -> str:
    return f"reference/{module}.md"
