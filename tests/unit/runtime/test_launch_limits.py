"""Launches beyond the limits of a device are refused, on every type of device."""

from __future__ import annotations

import re

import pytest

from nbrt.backends.interface import DeviceProperties
from nbrt.errors import LaunchError

ONE = (1, 1, 1)
PROPERTIES = DeviceProperties("made up", 2**30, 4, shared_memory_per_block=232448)


@pytest.mark.parametrize(
    ("grid", "block", "shared", "message"),
    [
        (ONE, (1025, 1, 1), 0, "at most 1024 threads per block on kind:0, got 1025"),
        (ONE, (32, 32, 2), 0, "at most 1024 threads per block on kind:0, got 2048"),
        (ONE, (1, 1, 65), 0, "block within (1024, 1024, 64) on kind:0, got (1, 1, 65)"),
        ((1, 65536, 1), ONE, 0, "grid within (2147483647, 65535, 65535) on kind:0"),
        ((2**31, 1, 1), ONE, 0, "grid within (2147483647, 65535, 65535) on kind:0"),
        (ONE, ONE, 232449, "at most 232448 bytes of shared memory per block on kind:0"),
    ],
)
def test_a_launch_beyond_the_device_is_refused(
    grid: tuple[int, int, int], block: tuple[int, int, int], shared: int, message: str
) -> None:
    with pytest.raises(LaunchError, match=re.escape(message)):
        PROPERTIES.check_launch("kind:0", grid, block, shared)


def test_the_limits_themselves_are_accepted() -> None:
    PROPERTIES.check_launch("kind:0", (2**31 - 1, 65535, 65535), (1024, 1, 1), 232448)
    PROPERTIES.check_launch("kind:0", ONE, (4, 4, 64), 0)
