"""Statistics of the memory that kernels of ``numba.cuda`` allocate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba import cuda
from numba.cuda.memory_management import rtsys

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("installed", "disabled")


@pytest.fixture
def disabled() -> Iterator[None]:
    """The statistics are disabled before and after the test."""
    rtsys.memsys_disable_stats()
    yield
    rtsys.memsys_disable_stats()


def test_statistics_can_be_read_only_while_enabled() -> None:
    assert not rtsys.memsys_stats_enabled()
    for read in (rtsys.get_allocation_stats, rtsys.memsys_get_stats_alloc):
        with pytest.raises(RuntimeError, match="NRT stats are disabled"):
            read()
    rtsys.memsys_enable_stats(cuda.stream())
    assert rtsys.memsys_stats_enabled()
    assert rtsys.get_allocation_stats() == (0, 0, 0, 0)


def test_kernels_on_cpu_devices_allocate_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    rtsys.memsys_enable_stats()

    @cuda.jit
    def total(x, out):
        out[0] = x.sum()

    out = cuda.device_array(1)
    total[1, 1](cuda.to_device([1.0, 2.0]), out)
    assert out.copy_to_host()[0] == 3
    assert rtsys.memsys_get_stats_alloc() == rtsys.memsys_get_stats_free() == 0
    assert rtsys.memsys_get_stats_mi_alloc() == rtsys.memsys_get_stats_mi_free() == 0
    rtsys.print_memsys()
    assert "stats.alloc 0" in capsys.readouterr().out
