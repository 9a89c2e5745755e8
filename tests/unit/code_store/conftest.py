"""Fixtures of the tests of the code store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbrt.backends.code_store import folder
from nbrt.config import override

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of compiled code, which does not exist yet; no warning was given before."""
    monkeypatch.setattr(folder, "_warned", set())
    with override(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"
