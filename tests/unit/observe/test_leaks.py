"""`no_leaks`: reported allocations and names, and no side effects."""

from __future__ import annotations

import functools
import gc
import pickle
import threading
import tomllib
import weakref
from collections import deque
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.processes import output_of
from nbrt.errors import ArgumentError, MemoryLeakError
from nbrt.observe.leaks.finder import find_leaks, live_arrays, no_leaks
from nbrt.observe.leaks.referrers import filter_names
from nbrt.testing import Latch, leak_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest_plugins = ["pytester"]


class Model:
    def __init__(self) -> None:
        self.weight: Any = None


class Slots:
    __slots__ = ("buffer",)

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer


def make(count: int = 10) -> Any:
    return nbrt.zeros(count, "float32", device="cpu:0")


def holders_of(make_holder: Callable[[], object]) -> list[str]:
    """The reported holders of the array that `make_holder` creates, while its result is alive."""
    with find_leaks() as report:
        holder = make_holder()
    assert holder is not None
    (leak,) = report.leaks
    assert leak.nbytes == 40
    assert leak.holders is not None
    return [text.partition(", a ")[0] for text in leak.holders]


def in_attribute() -> object:
    model = Model()
    model.weight = [None, make()]
    return model


def in_materialised_attributes() -> object:
    model = Model()
    vars(model)["weight"] = make()
    return model


def in_closure() -> object:
    captured = make()
    return lambda: captured


def in_default() -> object:
    def function(value: Any = make()) -> Any:  # noqa: B008  # a place that holds it
        return value

    return function


def in_generator() -> object:
    def generate() -> Iterator[Any]:
        inside = make()
        yield inside.size

    running = generate()
    next(running)
    return running


def in_objects() -> object:
    objects = np.empty(3, object)
    objects[2] = make()
    return objects


@pytest.mark.parametrize(
    ("make_holder", "name"),
    [
        (make, "holder"),
        (lambda: make()[2:].reshape(2, 4), "holder"),
        (in_attribute, "holder.weight[1]"),
        (in_materialised_attributes, "holder.weight"),
        (lambda: Slots(make()), "holder.buffer"),
        (lambda: functools.partial(print, make()), "holder.args[0]"),
        (lambda: deque([0, make()]), "holder[1]"),
        (lambda: {"a": make()}, "holder['a']"),
        (lambda: memoryview(make()), "holder.<managedbuffer>.<ndarray>"),
        (in_closure, "holder.__closure__[0].cell_contents"),
        (in_default, "holder.__defaults__[0]"),
        (in_generator, "holder.inside"),
        (in_objects, "holder.flat[2]"),
    ],
)
def test_holders_are_called_by_expressions_that_reach_them(
    make_holder: Callable[[], object], name: str
) -> None:
    assert name in ", ".join(holders_of(make_holder))


def test_global_variables_are_named(fresh: ModuleType) -> None:
    def in_global() -> object:
        fresh.CACHE = {("key", 1): {"inner": (make(),)}}
        return fresh.CACHE

    assert "CACHE[('key', 1)]['inner'][0]" in holders_of(in_global)


def test_class_attributes_and_caches_are_named(fresh: ModuleType) -> None:
    exec("class Model: pass", vars(fresh))
    fresh.cached = functools.cache(make)
    with find_leaks() as report:
        fresh.Model.kept = make(3)
        fresh.cached()
    first, second = ((leak.nbytes, leak.holders) for leak in report.leaks)
    assert first[0] == 40
    assert any("cached" in text for text in first[1] or ())
    assert second == (12, ("fresh.Model.kept",))


def test_the_error_says_what_where_and_by_whom(fresh: ModuleType) -> None:
    fresh.CACHE = {}
    with pytest.raises(MemoryLeakError) as caught, no_leaks():
        fresh.CACHE["weights"] = make(1000)
    text = str(caught.value)
    assert text.startswith("expected no memory to be left, got 4000 bytes in 1 allocation:")
    assert 'fresh.CACHE["weights"] = make(1000)' in text
    assert "held by CACHE['weights'], a global of fresh" in text
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.leaks) == (text, caught.value.leaks)


def test_what_dies_in_the_block_is_no_leak() -> None:
    before = make()
    with no_leaks():
        x = make()
        y = x + before
        del x, y
        for _ in range(3):
            make()
    assert before.size == 10


def test_cycles_are_told_but_are_no_leak() -> None:
    gc.collect()
    gc.disable()
    try:
        with no_leaks() as report:
            cycle: list[Any] = [make()]
            cycle.append(cycle)
            del cycle
        with find_leaks(collect=False) as uncollected:
            cycle = [make()]
            cycle.append(cycle)
            del cycle
    finally:
        gc.enable()
    assert [each.nbytes for each in report.cycles] == [40]
    assert report.leaks == uncollected.cycles == ()
    assert uncollected.nbytes == 40
    assert "held by reference cycles until the garbage collector ran: 40 bytes" in str(report)


def test_allow_is_in_bytes() -> None:
    with no_leaks(allow=40):
        x = make(10)
    with pytest.raises(MemoryLeakError, match="at most 40 bytes"), no_leaks(allow=40):
        y = make(11)
    assert x.size < y.size
    with pytest.raises(ArgumentError, match="allow=-1"), no_leaks(allow=-1):
        pass


def test_a_device_can_be_chosen() -> None:
    with no_leaks("cpu:1"):
        x = make()
    with pytest.raises(MemoryLeakError, match="on cpu:0"), no_leaks():
        y = make()
    assert x is not y


def test_the_exception_of_the_block_wins() -> None:
    def fail() -> None:
        x = make()
        x[0] = 1 / 0

    with pytest.raises(ZeroDivisionError) as caught, no_leaks():
        fail()
    (note,) = caught.value.__notes__
    assert note.startswith("40 bytes in 1 allocation")


def test_other_threads_count() -> None:
    ready, done = threading.Event(), threading.Event()

    def work() -> None:
        inside = make()
        ready.set()
        done.wait(HANG_TIMEOUT)
        del inside

    thread = threading.Thread(target=work, name="helper")
    try:
        with find_leaks() as report:
            thread.start()
            assert ready.wait(HANG_TIMEOUT)
    finally:
        done.set()
        thread.join()
    (leak,) = report.leaks
    assert leak.thread == "helper"
    assert leak.holders is not None
    assert leak.holders[0].startswith("inside, a local of ")


def test_queued_work_is_waited_for() -> None:
    stream, seen = nbrt.Stream("cpu:0"), []

    with Latch() as latch:
        releaser = threading.Thread(target=latch.release)
        with no_leaks():
            latch.hold(stream)
            stream.call(lambda x: seen.append(float(x[0])), make())
            releaser.start()
        releaser.join()
    assert seen == [0.0]


def test_variables_of_a_failed_call_are_found() -> None:
    def fail() -> None:
        inside = make()
        raise ValueError(inside.size)

    with find_leaks() as report:
        try:
            fail()
        except ValueError as error:
            kept = error
    (leak,) = report.leaks
    assert leak.holders is not None
    assert leak.holders[0].startswith("inside, a local of ")
    assert "a traceback keeps it" in leak.holders[0]
    assert kept.args == (10,)


def test_looking_leaves_no_garbage() -> None:
    def look() -> None:
        array = make(1)
        assert live_arrays("cpu:0")
        with find_leaks() as report:
            kept = make(2)
        assert report.nbytes == kept.nbytes
        gone.append(weakref.ref(array))
        gone.append(weakref.ref(kept))

    gone: list[weakref.ref[Any]] = []
    gc.collect()
    gc.disable()
    try:
        look()
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


def test_looking_makes_nothing_live_longer() -> None:
    x = make()
    reference = weakref.ref(x)
    before = nbrt.memory_allocated("cpu:0")
    with find_leaks() as report:
        y = make()
    assert len(report.leaks) == 1
    assert [held.nbytes for held in live_arrays("cpu:0")].count(40) >= 2
    del x, y
    assert reference() is None
    assert nbrt.memory_allocated("cpu:0") < before


def test_locals_that_a_program_asked_for_stay() -> None:
    x = make()
    names = locals()
    assert any("x," in text for held in live_arrays("cpu:0") for text in held.holders or ())
    assert names["x"] is x


def test_blocks_nest() -> None:
    with no_leaks(allow=40), find_leaks() as report:
        x = make()
    assert report.nbytes == x.nbytes


PLUGIN_TESTS = """
import unittest

import pytest

import nbrt

KEPT = []


@pytest.fixture
def weights():
    return nbrt.zeros(10)


@pytest.fixture
def mine(no_leaks):
    pass


@pytest.mark.no_memory_leaks
def test_pass(weights):
    assert (weights + nbrt.zeros(10)).size == 10


@pytest.mark.no_memory_leaks(allow=40)
def test_pass_allowed():
    KEPT.append(nbrt.zeros(10))


def test_pass_without():
    KEPT.append(nbrt.zeros(10))


@pytest.mark.no_memory_leaks
def test_fail_marker():
    KEPT.append(nbrt.zeros(10))


def test_fail_fixture(no_leaks):
    KEPT.append(nbrt.zeros(20))


@pytest.mark.usefixtures("mine")
def test_fail_used():
    KEPT.append(nbrt.zeros(30))


@pytest.mark.no_memory_leaks
def test_fail_itself():
    x = nbrt.zeros(10)
    assert x.size == 11


@pytest.mark.no_memory_leaks(40)
def test_fail_arguments():
    pass


class TestCase(unittest.TestCase):
    @pytest.mark.no_memory_leaks
    def test_error_unittest(self):
        pass
"""


def test_the_plugin(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBRT_DEVICE", "cpu:0")
    pytester.makepyfile(PLUGIN_TESTS)
    options = ["-p", "nbrt.testing.leak_plugin", "-p", "no:xdist", "-ra", "--strict-markers"]
    warnings = ["-W", "error", "-W", "ignore:Module already imported so cannot be rewritten"]
    result = pytester.runpytest_subprocess(*options, *warnings, timeout=HANG_TIMEOUT)
    result.assert_outcomes(passed=3, failed=5, errors=1)
    result.stdout.fnmatch_lines(
        [
            "expected no memory to be left, got 40 bytes in 1 allocation:",
            "    KEPT.append(nbrt.zeros(10))",
            "  held by KEPT[[]2], a global of test_the_plugin",
            "expected no memory to be left, got 80 bytes in 1 allocation:",
            "expected no memory to be left, got 120 bytes in 1 allocation:",
            "E*assert 10 == 11",
            "expected no_memory_leaks with device, allow and collect by name, got (40,) and *",
        ]
    )
    assert "FAILED test_the_plugin.py::test_pass" not in result.stdout.str()


def test_the_plugin_comes_with_an_installed_nbrt() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    entries = project["entry-points"]["pytest11"]
    assert entries[leak_plugin.__name__] == leak_plugin.__name__


def test_an_unused_plugin_loads_nothing_heavy() -> None:
    code = """
        import sys
        import nbrt.testing.leak_plugin

        print([name for name in ("numpy", "numba", "nbrt.observe") if name in sys.modules])
    """
    assert output_of(code).strip() == "[]"


class ForeignError(Exception):
    """An exception of foreign code."""


class Hostile:
    """Raises at every touch."""

    @property
    def __class__(self) -> Any:
        raise ForeignError

    def __repr__(self) -> str:
        raise ForeignError


class HostileMeta(type):
    def __getattr__(cls, name: str) -> Any:
        raise ForeignError


class array(metaclass=HostileMeta):  # noqa: N801  # `reprlib` knows a class of this name
    """A key that looks like one of the standard library's arrays."""


class LazyModule(ModuleType):
    def __getattribute__(self, name: str) -> Any:
        raise ForeignError


@pytest.mark.parametrize("make_key", [Hostile, array, lambda: (1, Hostile())])
def test_code_of_the_program_is_not_run(make_key: Callable[[], object]) -> None:
    with find_leaks("cpu:0") as report:
        kept = {make_key(): make()}
        module = LazyModule("lazy")
        ModuleType.__setattr__(module, "kept", make())
    assert len(kept) == 1
    by_key, in_module = report.leaks
    assert any(holder.startswith("kept[<") for holder in by_key.holders or ())
    assert any(".kept, a local of" in holder for holder in in_module.holders or ())


def test_names_of_tools_stand_back() -> None:
    shell = (
        "x, a local of run() (/site-packages/IPython/core/shell.py:3)",
        "IPython.core.Shell._instance.result",
        # The thread that saves IPython's history holds it too, also from frames of the library.
        "self.history_manager._trait_values['output_hist'][2], a local of Thread.run() (/t.py:3)",
        "item.funcargs['x'], a local of run_one_test() (/site-packages/xdist/remote.py:3)",
    )
    mine = "model['w'], a global of __main__"
    assert filter_names([*shell, mine]) == [mine]
    assert filter_names(list(shell)) == list(shell)
    aliases = [
        "_, a global of __main__",
        "_oh[3], a global of __main__",
        "_3, a global of __main__",
    ]
    assert filter_names([*shell, *aliases, mine]) == ["Out[3], a global of __main__", mine]
