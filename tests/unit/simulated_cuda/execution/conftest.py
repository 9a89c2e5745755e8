"""A context that a test may break."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cuda.bindings import driver

from helpers.driver_calls import call
from helpers.driver_launches import Device

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


@pytest.fixture
def device(initialised: ModuleType) -> Iterator[Device]:
    """A new context on device 0, destroyed after the test."""
    context = call(driver.cuCtxCreate(None, 0, 0))
    yield Device()
    call(driver.cuCtxDestroy(context))
