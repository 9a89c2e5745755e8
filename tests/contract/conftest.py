"""The contract on fake devices: one more kind, for all that does not depend on values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import nbrt
from conftest import KINDS, device_of_kind
from helpers.gates import Gate
from nbrt.errors import FakeReadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.interface import DeviceInterface

FAKE = "fake"

AT_ONCE = "fake devices do work when it is submitted, so nothing is pending"
NO_MEMORY = "there is no memory to fill or compare with a pattern"
UNKNOWN = "parameters without values satisfy every condition on their values"
VALUES = "reads values in threads, or in examples of hypothesis"
OTHER_MEMORY = "fake devices take no memory of other allocators or libraries"

SKIPPED = {
    "test_a_free_in_the_middle_of_the_checkers_own_work": NO_MEMORY,
    "test_a_launch_on_freed_memory": NO_MEMORY,
    "test_a_parameter_that_is_wrong_in_the_last_piece": UNKNOWN,
    "test_a_refused_use_after_free_writes_nothing": NO_MEMORY,
    "test_a_table_of_many_runs_is_recorded_and_repeated": VALUES,
    "test_an_allocator_that_cannot_take_memory_back": OTHER_MEMORY,
    "test_an_allocator_that_hands_memory_out_twice": OTHER_MEMORY,
    "test_an_audit_repeats_pieces": VALUES,
    "test_between_kinds": "copies values into host memory",
    "test_callbacks_hold_no_device": "frees of one statement are counted one after the other",
    "test_cancel_drops_nothing_of_an_idle_stream": AT_ONCE,
    "test_certain_values_are_numpys": UNKNOWN,
    "test_empty_draws_refuse_arrays_that_numpy_refuses": UNKNOWN,
    "test_graphs_over_the_same_memory_do_not_disturb_each_other": AT_ONCE,
    "test_host_calls_may_queue_more_work": AT_ONCE,
    "test_host_data_is_shared_on_demand": "arrays share no memory with host data",
    "test_memory_equals_the_model": VALUES,
    "test_memory_goes_back_to_its_allocator": OTHER_MEMORY,
    "test_memory_that_a_branch_uses_is_not_reused_before_the_join": AT_ONCE,
    "test_programs_replay_what_eager_calls_do": VALUES,
    "test_refused_as_by_numpy": UNKNOWN,
    "test_statistics_are_exact_under_threads": VALUES,
    "test_threads_with_streams_of_their_own": VALUES,
    "test_to_host_is_a_copy": "host arrays without values are no NumPy arrays",
    "test_use_after_free": NO_MEMORY,
    "test_wrong_parameters_take_nothing": UNKNOWN,
}
"""Tests about what fake devices do not have, with the reason; the others run until they read."""


@pytest.fixture(params=(*KINDS, FAKE))
def device(
    request: pytest.FixtureRequest, sample_backend: DeviceInterface
) -> Iterator[nbrt.Device]:
    """Device 0 of every kind, and of a fake kind: two GPUs that do not exist."""
    if request.param != FAKE:
        yield device_of_kind(request.param)
        return
    reason = SKIPPED.get(request.function.__name__)
    if reason is not None:
        pytest.skip(reason)
    with nbrt.fake("cuda", devices=2), nbrt.device("cpu:0"):
        yield nbrt.Device("cuda", 0)


@pytest.fixture
def on_device(device: nbrt.Device) -> Iterator[nbrt.Device]:
    """The device, which is current."""
    with nbrt.device(device):
        yield device


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()


@pytest.fixture(params=["default", "other"])
def any_stream(request: pytest.FixtureRequest, device: nbrt.Device) -> Iterator[nbrt.Stream]:
    """The default stream of a device, and another one; a failure of its work fails the test."""
    is_default = request.param == "default"
    idle = nbrt.default_stream(device) if is_default else nbrt.Stream(device)
    idle.synchronize()
    yield idle
    idle.synchronize()
    assert idle.deferral is None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip a test on a fake device from the first value that it reads."""
    try:
        yield
    except FakeReadError:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if params.get("device") != FAKE:
            raise
        pytest.skip("reads a value, which a fake device does not have")
