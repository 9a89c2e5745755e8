"""Initialisation: once, on first use, with queued calls."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NoReturn

import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.sample_backend import SampleInterface
from nbrt.backends.lazy import LazyInitializer
from nbrt.errors import DeferredCallError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def acme() -> Iterator[SampleInterface]:
    interface = SampleInterface("acme")
    nbrt.register_interface_for_device("acme", interface)
    yield interface
    nbrt.unregister_interface_for_device("acme")


def fail(text: str) -> NoReturn:
    raise ZeroDivisionError(text)


def test_presence_initialises_nothing(acme: SampleInterface) -> None:
    assert nbrt.is_available("acme")
    assert nbrt.device_count("acme") == 2
    assert nbrt.get_device_name("acme:1") == "sample device"
    assert nbrt.get_device_capability("acme") is None
    assert nbrt.can_access_peer("acme:0", "acme:1")
    with nbrt.device("acme:1"), nbrt.OptionalDeviceGuard() as guard:
        guard.set_device("acme:0")
        nbrt.set_device("acme:1")
        assert nbrt.current_device() == nbrt.Device("acme", 1)
    nbrt.Event("acme")
    nbrt.Generator(3, "acme")
    assert acme.initialized == 0


def test_first_use_initialises_once(acme: SampleInterface) -> None:
    nbrt.zeros(3, device="acme")
    nbrt.Stream("acme:1").synchronize()
    assert acme.initialized == 1


def test_once_under_many_threads() -> None:
    entered = threading.Event()
    may_go_on = threading.Event()
    count = [0]
    ready: list[bool] = []

    def initialize() -> None:
        count[0] += 1
        entered.set()
        assert may_go_on.wait(HANG_TIMEOUT)

    lazy = LazyInitializer("test", initialize)

    def use() -> None:
        lazy.ensure()
        ready.append(lazy.is_ready)

    threads = [threading.Thread(target=use) for _ in range(16)]
    for thread in threads:
        thread.start()
    assert entered.wait(HANG_TIMEOUT)
    assert ready == []
    may_go_on.set()
    for thread in threads:
        thread.join(HANG_TIMEOUT)
    assert count == [1]
    assert ready == [True] * 16


def test_a_failed_initialisation_is_tried_again() -> None:
    attempts: list[int] = []

    def initialize() -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError("the driver is busy")

    lazy = LazyInitializer("test", initialize)
    for _ in range(2):
        with pytest.raises(OSError, match="busy"):
            lazy.ensure()
        assert not lazy.is_ready
    lazy.ensure()
    lazy.ensure()
    assert len(attempts) == 3


def test_initialisation_may_use_the_backend() -> None:
    lazy = LazyInitializer("test", lambda: lazy.ensure())
    lazy.ensure()
    assert lazy.is_ready


def test_queued_calls_run_at_initialisation_in_order(acme: SampleInterface) -> None:
    seen: list[str] = []
    acme.lazy.call(lambda: seen.append(f"initialised {acme.initialized}"))
    acme.lazy.call(seen.append, "second")
    acme.lazy.call(lambda: acme.lazy.call(seen.append, "queued meanwhile"))
    assert seen == []
    nbrt.zeros(3, device="acme")
    assert seen == ["initialised 1", "second", "queued meanwhile"]
    acme.lazy.call(seen.append, "at once")
    assert seen[-1] == "at once"


def queue_a_failing_call(lazy: LazyInitializer, text: str) -> None:
    lazy.call(fail, text)


def test_a_failing_queued_call_shows_where_it_was_queued(acme: SampleInterface) -> None:
    seen: list[int] = []
    queue_a_failing_call(acme.lazy, "planned")
    acme.lazy.call(seen.append, 1)
    with pytest.raises(DeferredCallError) as caught:
        nbrt.zeros(3, device="acme")
    text = str(caught.value)
    assert "ZeroDivisionError: planned" in text
    assert __file__ in text
    assert "in queue_a_failing_call" in text
    assert "in test_a_failing_queued_call_shows_where_it_was_queued" in text
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert seen == []
    # The failing call is dropped, the others wait for the next use; the start is not repeated.
    assert nbrt.zeros(3, device="acme").tolist() == [0, 0, 0]
    assert seen == [1]
    assert acme.initialized == 1
    assert nbrt.memory_allocated("acme") == 0


def test_every_failing_queued_call_is_told() -> None:
    lazy = LazyInitializer("test", lambda: None)
    for text in ("first", "second"):
        lazy.call(fail, text)
    for text in ("first", "second"):
        with pytest.raises(DeferredCallError, match=text):
            lazy.ensure()
    lazy.ensure()
    assert lazy.is_ready
