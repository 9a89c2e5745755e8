"""The properties of fake GPUs against the table and against the simulated driver's."""

from __future__ import annotations

import pickle

import pytest

from nbrt._internal.gpus import GPUS
from nbrt.backends.fake.properties import ASSUMED, gpu_properties
from nbrt.backends.registry import get_interface_for_device
from nbrt.errors import ArgumentError, LaunchError

SKIPPED = ("name", "total_memory", "details")


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_has_properties(name: str) -> None:
    gpu, properties = GPUS[name], gpu_properties(name)
    assert properties.compute_capability == gpu.capability
    assert properties.total_memory == gpu.usable_memory
    assert properties.max_threads_per_multi_processor == gpu.limits.threads
    assert properties.shared_memory_per_block == gpu.limits.shared_per_block
    is_assumed = "multi_processor_count" in properties.details[ASSUMED]  # type: ignore[operator]
    assert is_assumed == (gpu.multiprocessors is None)
    assert is_assumed or properties.multi_processor_count == gpu.multiprocessors
    assert pickle.loads(pickle.dumps(properties)) == properties


def test_launches_are_checked_by_the_limits_of_the_gpu() -> None:
    big = {"grid": (1, 1, 1), "block": (32, 1, 1), "shared": 100 << 10}
    gpu_properties("A100").check_launch("cuda:0", **big)  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="65536 bytes of shared memory"):
        gpu_properties("T4").check_launch("cuda:0", **big)  # type: ignore[arg-type]


def test_an_unknown_gpu_names_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="nearest are RTX 4090"):
        gpu_properties("RTX 4091")


@pytest.mark.gpu
def test_limits_are_those_that_the_driver_reports() -> None:
    """The simulated driver's first device is a GPU of the table; a real one should be as well."""
    interface = get_interface_for_device("cuda")
    real = interface.get_device_properties(0)
    try:
        fake = gpu_properties(real.name)
    except ArgumentError:
        pytest.skip(f"the table lacks {real.name}")
    fields = [name for name in fake.__dataclass_fields__ if name not in SKIPPED]
    assert {name: getattr(fake, name) for name in fields} == {
        name: getattr(real, name) for name in fields
    }
    common = fake.details.keys() & real.details.keys()
    assert {name: fake.details[name] for name in common} == {
        name: real.details[name] for name in common
    }
