"""Guards over a driver that has a current device and stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from helpers.sample_backend import SampleInterface
from nbrt.backends.interface import Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class DrivenInterface(SampleInterface):
    """Keeps a current device and queue, and a list of contexts, as a driver does."""

    capabilities = Capabilities(cuda_stream_protocol=True, driver_state=True)

    def __init__(self) -> None:
        super().__init__("driven")
        self.driver_device = 0
        self.driver_queue: Any = None
        self.contexts: set[int] = set()
        self.refuse_queue: Any = None

    def exchange_device(self, index: int) -> int:
        before, self.driver_device = self.driver_device, index
        self.contexts.add(index)
        return before

    def maybe_exchange_device(self, index: int) -> int:
        before = self.driver_device
        if index in self.contexts:
            self.driver_device = index
        return before

    def enter_queue(self, queue: Any) -> Callable[[], None]:
        if queue is self.refuse_queue:
            raise ZeroDivisionError
        before = self.driver_device, self.driver_queue
        self.driver_device, self.driver_queue = queue.index, queue

        def undo() -> None:
            self.driver_device, self.driver_queue = before

        return undo


@pytest.fixture
def driven() -> Iterator[DrivenInterface]:
    interface = DrivenInterface()
    nbrt.register_interface_for_device("driven", interface)
    yield interface
    nbrt.unregister_interface_for_device("driven")


def test_before_initialisation_guards_leave_the_driver_alone(driven: DrivenInterface) -> None:
    with nbrt.device("driven:1"), nbrt.OptionalDeviceGuard() as guard:
        guard.set_device("driven:0")
        nbrt.set_device("driven:1")
        assert nbrt.current_device().index == 1
    assert driven.contexts == set()
    assert not driven.lazy.is_ready


def test_device_guards_move_the_driver_along(driven: DrivenInterface) -> None:
    nbrt.Stream("driven:0")
    guard = nbrt.device("driven:1")
    with guard:
        assert driven.driver_device == 1
        with nbrt.device("driven:0"), guard:
            assert driven.driver_device == 1
        assert driven.driver_device == 1
    with pytest.raises(ZeroDivisionError), guard:
        raise ZeroDivisionError
    # Device 0 had no context, and leaving a guard must not make one.
    assert driven.contexts == {0, 1}
    assert driven.driver_device == 0


def test_leaving_a_guard_creates_no_context(driven: DrivenInterface) -> None:
    nbrt.Stream("driven:0")
    with nbrt.device("driven:1"):
        assert driven.contexts == {1}
    assert driven.contexts == {1}


def test_optional_guard_restores_the_driver_once(driven: DrivenInterface) -> None:
    nbrt.Stream("driven:0")
    driven.exchange_device(0)
    with nbrt.OptionalDeviceGuard() as guard:
        guard.set_device("driven:1")
        guard.set_device("driven:0")
        guard.set_device("driven:1")
        assert driven.driver_device == 1
    assert driven.driver_device == 0


def test_stream_guards_push_the_queue(driven: DrivenInterface) -> None:
    first, second = nbrt.Stream("driven:0"), nbrt.Stream("driven:1")
    with nbrt.stream(first):
        assert driven.driver_queue is first.queue
        with nbrt.stream(second):
            assert (driven.driver_queue, driven.driver_device) == (second.queue, 1)
        assert (driven.driver_queue, driven.driver_device) == (first.queue, 0)
        with nbrt.stream(None):
            assert driven.driver_queue is first.queue
    assert driven.driver_queue is None


def test_set_stream_inside_a_guard_is_undone_with_it(driven: DrivenInterface) -> None:
    first, second = nbrt.Stream("driven:0"), nbrt.Stream("driven:1")
    with nbrt.stream(first):
        nbrt.set_stream(second)
        assert driven.driver_queue is second.queue
    assert driven.driver_queue is None
    assert driven.driver_device == 0


def test_a_multi_guard_that_fails_enters_nothing(driven: DrivenInterface) -> None:
    first, second = nbrt.Stream("driven:0"), nbrt.Stream("driven:1")
    driven.refuse_queue = second.queue
    before = nbrt.current_stream("driven:0")
    with pytest.raises(ZeroDivisionError), nbrt.MultiStreamGuard(first, second):
        pytest.fail("the block must not be entered")
    assert driven.driver_queue is None
    assert nbrt.current_stream("driven:0") is before
    driven.refuse_queue = None
    with nbrt.MultiStreamGuard(first, second):
        assert driven.driver_queue is second.queue
    assert driven.driver_queue is None


def test_a_multi_guard_leaves_the_current_device(driven: DrivenInterface) -> None:
    first, second = nbrt.Stream("driven:0"), nbrt.Stream("driven:1")
    with nbrt.device("driven:0"), nbrt.MultiStreamGuard(first, second):
        assert nbrt.current_device() == nbrt.Device("driven:0")
        assert driven.driver_device == 0
        assert nbrt.current_stream("driven:1") is second
