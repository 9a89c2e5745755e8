"""Devices as people ask for them."""

from __future__ import annotations

import os
import pickle

import pytest

import nbrt
from nbrt.config import override
from nbrt.errors import ArgumentTypeError, BackendUnavailableError, UnknownDeviceError
from nbrt.runtime.device import default_device, resolve_device


def test_cpu_properties_are_the_machines() -> None:
    properties = nbrt.get_device_properties("cpu:1")
    assert properties == nbrt.get_device_properties("cpu:0")
    assert pickle.loads(pickle.dumps(properties)) == properties
    assert properties.name == nbrt.get_device_name("cpu")
    assert properties.multi_processor_count == len(os.sched_getaffinity(0))
    assert properties.total_memory == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert properties.warp_size == 32
    assert properties.compute_capability is nbrt.get_device_capability("cpu") is None
    details = properties.details
    assert details["simd_bits"] in (64, 128, 256, 512)
    assert 1 <= details["physical_cores"] <= details["logical_cores"]
    assert isinstance(details["cache_bytes"], dict)
    assert all(size > 0 for size in details["cache_bytes"].values())


def test_there_are_as_many_virtual_devices_as_asked_for() -> None:
    assert nbrt.device_count("cpu") == 4
    with pytest.raises(UnknownDeviceError, match="0 to 3, got cpu:4; set NBRT_CPU_DEVICES"):
        nbrt.device("cpu:4")


def test_peers(sample_backend: object) -> None:
    assert nbrt.can_access_peer("cpu:0", "cpu:3")
    assert nbrt.can_access_peer("cpu:0", "cpu:0")
    assert not nbrt.can_access_peer("cpu:0", "sample:0")


def test_resolving() -> None:
    with nbrt.device("cpu:2"):
        assert resolve_device(None) == nbrt.Device("cpu", 2)
        assert resolve_device(1) == nbrt.Device("cpu", 1)
        assert resolve_device("cpu") == nbrt.Device("cpu", 0)
    for wrong in (1.0, True, object(), b"cpu", ["cpu"]):
        with pytest.raises(ArgumentTypeError, match="expected a device"):
            resolve_device(wrong)


def test_the_default_device() -> None:
    expected = "cuda" if nbrt.is_available("cuda") else "cpu"
    with override(device=None):
        assert default_device() == nbrt.Device(expected)
    with override(device="cpu:3"):
        assert nbrt.current_device() == nbrt.Device("cpu", 3)
        assert nbrt.device_count() == 4
    with override(device="nothing"), pytest.raises(UnknownDeviceError, match="'nothing'"):
        nbrt.current_device()
    with override(device=None):
        assert default_device() == nbrt.Device(expected)


def test_without_a_gpu_the_reason_is_given() -> None:
    if nbrt.is_available("cuda"):
        assert nbrt.device_count("cuda") >= 1
        return
    assert nbrt.device_count("cuda") == 0
    with pytest.raises(BackendUnavailableError, match="expected cuda:0 to be usable, got: "):
        nbrt.device("cuda")
