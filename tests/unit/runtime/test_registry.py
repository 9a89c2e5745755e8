"""The registry: names, what an unknown one is told, adding and taking out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from helpers.sample_backend import SampleInterface
from nbrt.backends import registry
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendUnavailableError,
    UnknownDeviceError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def acme() -> Iterator[SampleInterface]:
    interface = SampleInterface("acme")
    nbrt.register_interface_for_device("acme", interface)
    yield interface
    if "acme" in nbrt.known_backends():
        nbrt.unregister_interface_for_device("acme")


def test_kinds_indexed_names_and_devices_find_the_interface() -> None:
    cpu = nbrt.get_interface_for_device("cpu")
    assert nbrt.get_interface_for_device("cpu:1") is cpu
    assert nbrt.get_interface_for_device(nbrt.Device("cpu", 3)) is cpu
    assert isinstance(cpu, nbrt.DeviceInterface)
    assert {"cpu", "cuda"} <= set(nbrt.known_backends())
    assert list(nbrt.known_backends()) == sorted(nbrt.known_backends())


@pytest.mark.parametrize("name", ["cpu:", "cpu:x", "cpu:1:2", ":1", "c pu:0"])
def test_a_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="'kind' or 'kind:index'"):
        nbrt.get_interface_for_device(name)


@pytest.mark.parametrize("wrong", [None, 3, object()])
def test_only_names_and_devices_are_taken(wrong: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="expected a device name or a Device"):
        nbrt.get_interface_for_device(wrong)


def test_an_unknown_name_is_told_everything(acme: SampleInterface) -> None:
    acme.unavailable_reason = lambda: "the acme cable is not plugged in"
    nbrt.register_interface_for_device("torn", lambda: 1 // 0)
    try:
        with pytest.raises(UnknownDeviceError) as caught:
            nbrt.get_interface_for_device("cdua:1")
    finally:
        nbrt.unregister_interface_for_device("torn")
    text = str(caught.value)
    assert "known kind (acme, cpu, cuda" in text
    assert "got 'cdua'; did you mean 'cuda'?" in text
    assert "  acme is unavailable: the acme cable is not plugged in" in text
    assert "  torn is unavailable: " in text
    assert "ZeroDivisionError" in text
    assert "  cpu is unavailable" not in text


def test_no_near_match_no_hint() -> None:
    with pytest.raises(UnknownDeviceError) as caught:
        nbrt.get_interface_for_device("quantum")
    assert "did you mean" not in str(caught.value)


def test_unknown_kinds_everywhere() -> None:
    for use in (nbrt.device, nbrt.Stream, nbrt.is_available, nbrt.device_count, nbrt.set_device):
        with pytest.raises(UnknownDeviceError, match="did you mean 'cpu'"):
            use("cpux")


def test_an_unavailable_backend_gives_its_reason(acme: SampleInterface) -> None:
    acme.device_count = lambda: 0
    assert not nbrt.is_available("acme")
    assert nbrt.device_count("acme") == 0
    assert registry.describe_unavailable()["acme"] == "the acme backend found no device"
    for use in (nbrt.device, nbrt.Stream, nbrt.get_device_name):
        with pytest.raises(BackendUnavailableError, match="usable, got: the acme backend found no"):
            use("acme")
    assert acme.initialized == 0


def test_register_checks_its_arguments(acme: SampleInterface) -> None:
    for name in ("not a name", "", "a:1", 3):
        with pytest.raises(ArgumentError, match="identifier"):
            nbrt.register_interface_for_device(name, acme)
    with pytest.raises(ArgumentTypeError, match="expected a DeviceInterface or a function"):
        nbrt.register_interface_for_device("other", 7)
    with pytest.raises(ArgumentError, match="replace=True"):
        nbrt.register_interface_for_device("acme", SampleInterface("acme"))
    assert nbrt.get_interface_for_device("acme") is acme


def test_a_factory_is_called_on_first_use() -> None:
    made: list[SampleInterface] = []

    def make() -> SampleInterface:
        made.append(SampleInterface("late"))
        return made[-1]

    nbrt.register_interface_for_device("late", make)
    try:
        assert "late" in nbrt.known_backends()
        assert made == []
        assert nbrt.get_interface_for_device("late") is nbrt.get_interface_for_device("late:1")
        assert len(made) == 1
    finally:
        nbrt.unregister_interface_for_device("late")


def test_taking_a_backend_out(acme: SampleInterface) -> None:
    with nbrt.device("acme"):
        nbrt.zeros(3)
    assert acme.lazy.is_ready
    nbrt.unregister_interface_for_device("acme")
    with pytest.raises(UnknownDeviceError):
        nbrt.device("acme")
    with pytest.raises(UnknownDeviceError):
        nbrt.default_stream("acme")
    with pytest.raises(UnknownDeviceError):
        nbrt.unregister_interface_for_device("acme")


def test_another_backend_of_the_same_name_starts_afresh(acme: SampleInterface) -> None:
    old = nbrt.Stream("acme"), nbrt.default_stream("acme"), nbrt.zeros(3, device="acme")
    assert nbrt.memory_allocated("acme") > 0
    second = SampleInterface("acme")
    nbrt.register_interface_for_device("acme", second, replace=True)
    assert nbrt.get_interface_for_device("acme") is second
    assert nbrt.default_stream("acme") is not old[1]
    assert nbrt.default_stream("acme").interface is second
    assert nbrt.Stream("acme").interface is second
    assert nbrt.memory_allocated("acme") == 0
    assert nbrt.zeros(3, device="acme").tolist() == [0, 0, 0]
    del old
    assert acme.used == [0, 0]


def test_the_interface_answers_in_plain_values(acme: SampleInterface) -> None:
    assert acme.current_device() == 0
    acme.set_device(1)
    assert acme.current_device() == 1
    assert nbrt.current_device() == nbrt.Device("acme", 1)
    with nbrt.device("cpu:2"):
        assert acme.current_device() == 1
        assert nbrt.get_interface_for_device("cpu").current_device() == 2
    assert acme.exchange_device(0) == 0
    assert acme.maybe_exchange_device(1) == 1
    assert acme.can_access_peer(0, 1)
    assert acme.get_compute_capability(0) is None
    worker = acme.worker()
    assert (worker.name, worker.current_device()) == ("acme", 1)
    worker.set_device(0)
    assert worker.current_device() == 0
    assert worker.get_device_properties().name == "sample device"
    with pytest.raises(IndexError):
        worker.set_device(2)
    assert worker.current_device() == 0
