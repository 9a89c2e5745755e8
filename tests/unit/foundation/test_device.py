"""The device value."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from nbrt import Device
from nbrt.errors import ArgumentError, ArgumentTypeError


def test_names() -> None:
    assert Device("cuda:1") == Device("cuda", 1)
    assert (Device("cpu").kind, Device("cpu").index) == ("cpu", 0)
    assert str(Device("cpu")) == "cpu:0"
    assert repr(Device("cuda", 12)) == "Device('cuda:12')"
    assert eval(repr(Device("cuda", 12))) == Device("cuda:12")
    assert Device("cpu", np.int64(3)) == Device("cpu:3")
    assert Device("cpu", 0) != Device("cpu", 1)
    assert Device("cpu") != "cpu:0"


def test_it_is_a_value() -> None:
    device = Device("cuda:1")
    assert len({device, Device("cuda", 1), Device("cuda:0")}) == 2
    for twin in (copy.copy(device), copy.deepcopy(device), pickle.loads(pickle.dumps(device))):
        assert twin == device
        assert hash(twin) == hash(device)
    with pytest.raises(AttributeError, match="immutable"):
        device.index = 2
    with pytest.raises(AttributeError, match="immutable"):
        del device.kind
    assert device == Device("cuda:1")


@pytest.mark.parametrize(
    "name", ["", " cpu", "cpu:", "cpu:-1", "1cpu", "cpu:1:2", "cpu:1.0", "cpü"]
)
def test_malformed_names(name: str) -> None:
    with pytest.raises(ArgumentError, match="kind:index"):
        Device(name)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("cpu:1", 1), ArgumentError),
        (("cpu", -1), ArgumentError),
        (("cpu", 2**16), ArgumentError),
        (("cpu:65536",), ArgumentError),
        (("cpu", True), ArgumentTypeError),
        (("cpu", 1.0), ArgumentTypeError),
        ((1,), ArgumentTypeError),
        ((None,), ArgumentTypeError),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error, match="expected"):
        Device(*arguments)
