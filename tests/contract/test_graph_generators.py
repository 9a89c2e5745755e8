"""Generators in captures: which draws are captured, and which uses are refused by name."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

import nbrt
from nbrt.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def on_device(device: nbrt.Device) -> Iterator[nbrt.Device]:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    with nbrt.device(device):
        yield device


def test_a_generator_of_the_captured_code_is_refused() -> None:
    generator, x = nbrt.Generator(7), nbrt.zeros(4)
    makers: list[tuple[Callable[[], Any], str]] = [
        (lambda: nbrt.Generator(8), "captured code has made"),
        (generator.clone, "captured code has made"),
        (lambda: generator.spawn(1)[0], "Generator.spawn"),
    ]
    for make, text in makers:
        with pytest.raises(CaptureError, match=text), nbrt.graph():
            make().random(out=x, dtype="float32")
    assert generator.spawn(1)[0].initial_seed() == nbrt.Generator(7).spawn(1)[0].initial_seed()

    made = []
    with contextlib.suppress(CaptureError), nbrt.graph():
        made.append(nbrt.Generator(8))
        made[0].random(out=x, dtype="float32")
    with nbrt.graph() as g:
        made[0].random(out=x, dtype="float32")
    g.replay()
    expected = nbrt.to_host(nbrt.Generator(8).random(4, dtype="float32"))
    assert (nbrt.to_host(x) == expected).all()


def test_a_default_generator_that_is_first_used_in_a_capture_is_captured() -> None:
    with nbrt.random.isolated_default_generators():
        nbrt.manual_seed(3)
        device = nbrt.current_device()
        x = nbrt.zeros(4)
        from nbrt.random.defaults import _store

        _store().generators.pop(device, None)
        with nbrt.graph() as g:
            nbrt.default_generator().random(out=x, dtype="float32")
        g.replay()
        expected = nbrt.Generator(3).random(4, dtype="float32")
        assert (nbrt.to_host(x) == nbrt.to_host(expected)).all()


def test_seeds_during_a_capture_are_refused() -> None:
    generator = nbrt.Generator(7)
    before = generator.state, nbrt.default_generator().state

    def set_state() -> None:
        generator.state = nbrt.Generator(9).state

    for change in (
        lambda: nbrt.manual_seed(1),
        lambda: generator.manual_seed(1),
        lambda: generator.advance(4),
        set_state,
    ):
        with pytest.raises(CaptureError, match="change of the state"), nbrt.graph():
            change()
    assert (generator.state, nbrt.default_generator().state) == before


def test_draws_in_captures_inside_of_a_capture_take_the_next_words() -> None:
    generator, expected = nbrt.Generator(7), nbrt.Generator(7)
    x, y, z = nbrt.zeros(4), nbrt.zeros(8), nbrt.zeros(4)

    @nbrt.graph
    def inner(y: Any) -> None:
        generator.random(out=y, dtype="float32")

    with nbrt.graph() as outer:
        generator.random(out=x, dtype="float32")
        inner(y)
        generator.random(out=z, dtype="float32")
    for _ in range(2):
        outer.replay()
        for array in (x, y, z):
            wanted = expected.random(array.size, dtype="float32")
            assert (nbrt.to_host(array) == nbrt.to_host(wanted)).all()
    assert generator.state == expected.state
    inner(y)
    assert (nbrt.to_host(y) == nbrt.to_host(expected.random(8, dtype="float32"))).all()


def test_other_threads_may_use_a_generator_during_a_capture() -> None:
    generator, device = nbrt.Generator(7), nbrt.current_device()
    x, drawn = nbrt.zeros(4), []

    def draw() -> None:
        with nbrt.device(device):
            drawn.append(nbrt.to_host(generator.random(4, dtype="float32")))

    with nbrt.graph(error_mode="relaxed") as g:
        generator.random(out=x, dtype="float32")
        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()
        with pytest.raises(CaptureError, match="draws from"):
            _ = generator.state
    g.replay()
    expected = nbrt.Generator(7)
    for values in (drawn[0], nbrt.to_host(x)):
        assert (values == nbrt.to_host(expected.random(4, dtype="float32"))).all()
