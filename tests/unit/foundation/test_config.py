"""Settings. What the environment does is in tests/processes/test_import.py."""

from __future__ import annotations

import pytest

from nbrt import config
from nbrt.errors import ArgumentError


def test_defaults_and_environment() -> None:
    assert config._parse({}) == config.Settings()
    assert config._parse({"NBRT_CPU_DEVICES": " 3 ", "NBRT_DEVICE": ""}) == config.Settings(
        cpu_devices=3
    )
    assert config._parse({"NBRT_DEVICE": "cpu:1"}).device == "cpu:1"
    assert config._parse({"NBRT_CPU_THREADS": "2"}).cpu_threads == 2
    assert config._parse({"NBRT_CPU_MEMORY_LIMIT": "4096"}).cpu_memory_limit == 4096


def test_overrides_nest_and_end() -> None:
    before = config.settings()
    with config.override(cpu_threads=1) as outer:
        assert config.settings() is outer
        with config.override(cpu_memory_limit=5):
            assert (config.settings().cpu_threads, config.settings().cpu_memory_limit) == (1, 5)
        with pytest.raises(ZeroDivisionError), config.override(cpu_threads=2):
            raise ZeroDivisionError
        assert config.settings() is outer
    assert config.settings() == before


@pytest.mark.parametrize(
    "changes",
    [{"cpu_devices": 65}, {"cpu_devices": "2"}, {"cpu_threads": -1}, {"cpu_memory_limit": 1.0}],
)
def test_wrong_overrides(changes: dict[str, object]) -> None:
    before = config.settings()
    with pytest.raises(ArgumentError, match="expected NBRT_CPU_"), config.override(**changes):
        pytest.fail("entered")
    with pytest.raises(ArgumentError, match=r"got \['colour'\]"), config.override(colour="red"):
        pytest.fail("entered")
    assert config.settings() == before


def test_settings_are_immutable() -> None:
    with pytest.raises(AttributeError):
        config.settings().cpu_threads = 3


def test_settings_of_distributed_programs() -> None:
    assert config._parse({"NBRT_DISTRIBUTED_CHECK": "1"}).distributed_check
    for text, expected in (("", None), ("0", False), ("1", True)):
        assert config._parse({"NBRT_MPI_CUDA_AWARE": text}).mpi_cuda_aware is expected
    for wrong in ({"distributed_check": 1}, {"mpi_cuda_aware": "yes"}):
        with pytest.raises(ArgumentError, match="to be 0 or 1"), config.override(**wrong):
            pytest.fail("entered")
