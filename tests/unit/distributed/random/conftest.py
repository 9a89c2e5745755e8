"""Default generators that no other test has moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import nbrt

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def own_generators() -> Iterator[None]:
    """Ranks start with equal default generators, and leave those of other tests alone."""
    with nbrt.random.isolated_default_generators():
        nbrt.manual_seed(0)
        yield
