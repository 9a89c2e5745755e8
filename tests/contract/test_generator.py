"""Generators: equal bits everywhere, NumPy's signatures, reservation, errors."""

from __future__ import annotations

import gc
import inspect
import pickle
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceMismatchError,
    NotSupportedError,
    UnknownDeviceError,
)
from nbrt.runtime.commands import install_hook
from nbrt.testing import CommandRecorder

if TYPE_CHECKING:
    from nbrt.runtime.commands import Command

pytestmark = pytest.mark.usefixtures("no_garbage")

DRAWS: dict[str, dict[str, Any]] = {
    "random": {},
    "uniform": {"low": -2.0, "high": 3.0},
    "standard_normal": {},
    "normal": {"loc": 1.0, "scale": 2.0},
    "integers": {"low": -5, "high": 1000},
}


@pytest.fixture
def drawer(device: nbrt.Device) -> nbrt.Device:
    """A device that can draw."""
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    return device


def draw(generator: nbrt.Generator, method: str, size: Any, dtype: str | None = None) -> np.ndarray:
    options = DRAWS[method] if dtype is None else {**DRAWS[method], "dtype": dtype}
    return nbrt.to_host(getattr(generator, method)(size=size, **options))


def dtypes_of(method: str) -> tuple[str, str]:
    return ("int32", "int64") if method == "integers" else ("float32", "float64")


@pytest.mark.parametrize("method", DRAWS)
def test_equal_bits_on_every_device_and_stream(drawer: nbrt.Device, method: str) -> None:
    reference = {
        dtype: draw(nbrt.Generator(7, "cpu:0"), method, 1001, dtype) for dtype in dtypes_of(method)
    }
    for index in range(nbrt.device_count(drawer.kind)):
        place = nbrt.Device(drawer.kind, index)
        for stream in (nbrt.default_stream(place), nbrt.Stream(place)):
            for dtype, expected in reference.items():
                with nbrt.stream(stream):
                    values = draw(nbrt.Generator(7, place), method, 1001, dtype)
                assert values.tobytes() == expected.tobytes()
                assert values.dtype == dtype


@pytest.mark.parametrize("method", DRAWS)
def test_pieces_are_equal_to_the_whole(drawer: nbrt.Device, method: str) -> None:
    for words, dtype in zip((1, 2), dtypes_of(method), strict=True):
        if method == "integers":
            words = 1  # the range decides: below 2**32 values one word is enough
        whole = draw(nbrt.Generator(9, drawer), method, 96, dtype)
        for start in (32, 64):
            generator = nbrt.Generator(9, drawer).advance(words * start)
            assert np.array_equal(draw(generator, method, 32, dtype), whole[start : start + 32])
        generator = nbrt.Generator(9, drawer)
        parts = [draw(generator, method, 32, dtype) for _ in range(3)]
        assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("method", DRAWS)
def test_numpys_signatures(method: str) -> None:
    ours = inspect.signature(getattr(nbrt.Generator, method)).parameters
    theirs = inspect.signature(getattr(np.random.Generator, method)).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default, name
        assert ours[name].kind == parameter.kind, name
    assert set(ours) - set(theirs) <= {"dtype", "out"}


@pytest.mark.parametrize("method", DRAWS)
def test_sizes(drawer: nbrt.Device, method: str) -> None:
    generator = nbrt.Generator(3, drawer)
    for size, shape in (
        (5, (5,)),
        ((2, 3), (2, 3)),
        ([2, 3], (2, 3)),
        ((), ()),
        (0, (0,)),
        (np.int64(4), (4,)),
        ((3, 0), (3, 0)),
    ):
        values = getattr(generator, method)(size=size, **DRAWS[method])
        assert values.shape == shape
        assert nbrt.device_of(values) == drawer
    for wrong in (-1, (2, -1), 1.5, "3"):
        before = generator.state
        with pytest.raises((ArgumentError, ArgumentTypeError), match="expected a shape"):
            getattr(generator, method)(size=wrong, **DRAWS[method])
        assert generator.state == before


@pytest.mark.parametrize("method", DRAWS)
def test_without_a_size_a_scalar(drawer: nbrt.Device, method: str) -> None:
    value = getattr(nbrt.Generator(3, drawer), method)(**DRAWS[method])
    assert value.shape == ()
    assert value == draw(nbrt.Generator(3, drawer), method, 1)[0]
    if nbrt.get_interface_for_device(drawer).capabilities.host_addressable:
        assert isinstance(value, np.generic)


@pytest.mark.parametrize("method", DRAWS)
def test_out(drawer: nbrt.Device, method: str) -> None:
    for dtype in dtypes_of(method):
        expected = draw(nbrt.Generator(5, drawer), method, 24, dtype).reshape(4, 6)
        options = {**DRAWS[method], "dtype": dtype}
        out = nbrt.zeros((4, 6), dtype, device=drawer)
        result = getattr(nbrt.Generator(5, drawer), method)(out=out, **options)
        assert result is out
        assert np.array_equal(nbrt.to_host(out), expected)
        wide = nbrt.zeros((4, 13), dtype, device=drawer)
        views = wide[:, 1::2], nbrt.zeros((6, 4), dtype, device=drawer).T
        for view in views:
            getattr(nbrt.Generator(5, drawer), method)(size=(4, 6), out=view, **options)
            assert np.array_equal(nbrt.to_host(view), expected)
        assert not nbrt.to_host(wide)[:, ::2].any()


def test_out_of_plain_host_memory() -> None:
    out = np.empty(8, np.float32)
    for device in ("cpu:0", "cpu:3"):
        assert nbrt.Generator(5, device).random(out=out, dtype="float32") is out
        assert np.array_equal(out, nbrt.Generator(5, "cpu:0").random(8, "float32"))


def test_wrong_out(drawer: nbrt.Device, sample_backend: object) -> None:
    generator = nbrt.Generator(3, drawer)
    x = nbrt.zeros(4, "float32", device=drawer)
    before = generator.state
    with pytest.raises(ArgumentTypeError, match="dtype float64, got float32; pass dtype='float32'"):
        generator.random(out=x)
    with pytest.raises(ArgumentError, match=r"out of shape \(5,\), got \(4,\)"):
        generator.random(5, "float32", x)
    with pytest.raises(ArgumentTypeError, match="out to be an array, got list"):
        generator.random(out=[1.0])
    strangers = [nbrt.zeros(4, device="sample:0"), nbrt.zeros(4, device="sample:1")]
    if nbrt.device_count(drawer.kind) > 1:
        strangers.append(nbrt.zeros(4, device=nbrt.Device(drawer.kind, 1)))
    for stranger in strangers:
        with pytest.raises(DeviceMismatchError, match=f"expected out on {drawer}"):
            generator.random(out=stranger, dtype="float32")
        assert not nbrt.to_host(stranger).any()
    assert generator.state == before
    assert not nbrt.to_host(x).any()


def test_an_array_of_device_0_is_not_one_of_device_1(
    drawer: nbrt.Device, other_device: nbrt.Device
) -> None:
    with pytest.raises(DeviceMismatchError, match=f"got an array of {drawer}"):
        nbrt.Generator(3, other_device).random(out=nbrt.zeros(4, "float64", device=drawer))


def test_a_read_only_out() -> None:
    out = np.zeros(4)
    out.flags.writeable = False
    with pytest.raises(ArgumentError, match="writable"):
        nbrt.Generator(3, "cpu").random(out=out)


@pytest.mark.parametrize(
    ("method", "arguments", "error", "message"),
    [
        ("random", {"dtype": "int32"}, ArgumentTypeError, "dtype of float32, .*, got int32"),
        ("random", {"dtype": ">f4"}, ArgumentTypeError, "got >f4"),
        ("uniform", {"low": 2.0, "high": 1.0}, ArgumentError, "low"),
        ("uniform", {"low": float("nan")}, ArgumentError, "low to be finite"),
        ("uniform", {"high": float("inf")}, ArgumentError, "high to be finite"),
        ("uniform", {"high": [1.0, 2.0]}, ArgumentError, r"broadcast to shape \(4,\), got"),
        ("normal", {"scale": -1.0}, ArgumentError, "scale"),
        ("normal", {"loc": "zero"}, ArgumentTypeError, "loc to be a real number"),
        ("normal", {"loc": np.complex64(1)}, ArgumentTypeError, "loc to be a real number"),
        ("normal", {"loc": [1j, 2.0]}, ArgumentTypeError, "an array of complex128"),
        ("normal", {"scale": np.array(["1"])}, ArgumentTypeError, "an array of <U1"),
        ("integers", {"low": 0}, ArgumentError, "expected high > 0"),
        ("integers", {"low": 5, "high": 5}, ArgumentError, "expected low < high"),
        ("integers", {"low": "0", "high": 5}, ArgumentTypeError, "low to be an integer"),
        ("integers", {"low": 300, "dtype": "uint8"}, ArgumentError, "within uint8"),
        ("integers", {"low": -1, "high": 2, "dtype": "uint32"}, ArgumentError, "within uint32"),
        ("integers", {"low": 5, "dtype": "float32"}, ArgumentTypeError, "integer dtype or bool"),
    ],
)
def test_wrong_parameters(
    drawer: nbrt.Device,
    method: str,
    arguments: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    generator = nbrt.Generator(3, drawer)
    before = generator.state
    gc.collect()
    used = nbrt.memory_allocated(drawer)
    with pytest.raises(error, match=message):
        getattr(generator, method)(size=4, **arguments)
    assert generator.state == before
    gc.collect()
    assert nbrt.memory_allocated(drawer) == used


def test_ranges_are_kept(drawer: nbrt.Device) -> None:
    generator = nbrt.Generator(11, drawer)
    for dtype in ("float32", "float64"):
        values = nbrt.to_host(generator.random(10_000, dtype))
        assert 0.0 <= values.min() < 0.01 < 0.99 < values.max() < 1.0
        values = nbrt.to_host(generator.uniform(-1.0, 1.0, 10_000, dtype))
        assert -1.0 <= values.min() < values.max() < 1.0
        values = nbrt.to_host(generator.uniform(2.0, 2.0, 10, dtype))
        assert np.all(values == 2.0)
        values = nbrt.to_host(generator.normal(3.0, 0.0, 10, dtype))
        assert np.all(values == 3.0)
    for dtype in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        values = nbrt.to_host(generator.integers(0, 2, 100, dtype))
        assert set(values.tolist()) == {0, 1}
        assert values.dtype == dtype
    assert set(nbrt.to_host(generator.integers(3, 5, 200, endpoint=True)).tolist()) == {3, 4, 5}
    info = np.iinfo("int64")
    values = nbrt.to_host(generator.integers(info.min, info.max, 1000, endpoint=True))
    assert values.min() < 0 < values.max()


def test_bounds_that_no_integer_dtype_holds_together(drawer: nbrt.Device) -> None:
    """NumPy makes such lists float64, which has not their values."""
    generator, twin = nbrt.Generator(3, drawer), nbrt.Generator(3, drawer)
    high = np.array([2**64 - 1, 10], np.uint64)
    values = nbrt.to_host(generator.integers(0, [2**64 - 1, 10], dtype="uint64"))
    assert values.tolist() == nbrt.to_host(twin.integers(0, high, dtype="uint64")).tolist()
    whole = nbrt.to_host(generator.integers([0, 5], [2**64, 6], (100, 2), "uint64"))
    assert whole[:, 0].max() > 2**63
    assert np.all(whole[:, 1] == 5)
    with pytest.raises(ArgumentError, match="within uint64"):
        generator.integers(0, [2**64 + 1, 10], dtype="uint64")
    bounds = [2**64 - 1, 1.5]  # NumPy cuts off the fraction
    assert np.random.default_rng(3).integers(0, bounds, dtype="uint64")[1] == 0
    assert nbrt.to_host(generator.integers(0, bounds, dtype="uint64"))[1] == 0


def test_threads_share_a_generator(drawer: nbrt.Device) -> None:
    """Each draw takes a separate range; together they equal one big draw."""
    generator = nbrt.Generator(21, drawer)
    parts: list[np.ndarray] = []

    def work() -> None:
        parts.extend(nbrt.to_host(generator.random(16, "float32")) for _ in range(25))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = nbrt.to_host(nbrt.Generator(21, drawer).random(16 * 200, "float32"))
    assert np.array_equal(np.sort(np.concatenate(parts)), np.sort(whole))
    assert generator.state == nbrt.PhiloxState(21, 16 * 200)


class DrawRefuser:
    def before(self, stream: nbrt.Stream, command: Command) -> None:
        if command.kind == "draw":
            raise ZeroDivisionError

    def after(self, stream: nbrt.Stream, command: Command, result: object) -> None:
        pass


@pytest.mark.parametrize("method", DRAWS)
def test_a_draw_is_a_command_and_a_refused_one_takes_nothing(
    drawer: nbrt.Device, method: str
) -> None:
    generator = nbrt.Generator(3, drawer)
    out = nbrt.zeros(8, dtypes_of(method)[1], device=drawer)
    before = generator.state
    with install_hook(DrawRefuser()), pytest.raises(ZeroDivisionError):
        getattr(generator, method)(out=out, **DRAWS[method])
    assert generator.state == before
    assert not nbrt.to_host(out).any()
    nbrt.synchronize(drawer)
    with CommandRecorder() as recorder:
        getattr(generator, method)(out=out, **DRAWS[method])
    assert recorder.kinds == ["draw"]
    assert generator.state != before


def test_a_device_without_draws_says_so(sample_backend: object) -> None:
    generator = nbrt.Generator(3, "sample")
    with pytest.raises(NotSupportedError, match=r"draw on cpu and copy with nbrt\.to"):
        generator.random(4)
    assert generator.state == nbrt.PhiloxState(3, 0)
    gc.collect()


def test_state(drawer: nbrt.Device) -> None:
    generator = nbrt.Generator(3, drawer)
    generator.random(5, "float32")
    assert generator.state == nbrt.PhiloxState(3, 8)
    kept = generator.state
    first = draw(generator, "normal", 10)
    generator.state = kept
    assert np.array_equal(draw(generator, "normal", 10), first)
    assert generator.initial_seed() == 3
    assert generator.device == drawer
    assert generator.manual_seed(9) is generator
    assert generator.state == nbrt.PhiloxState(9, 0)
    assert f"device='{drawer}'" in repr(generator)
    with pytest.raises(ArgumentTypeError, match="PhiloxState"):
        generator.state = (3, 8)
    with pytest.raises(ArgumentError, match="multiple of 4"):
        generator.state = nbrt.PhiloxState(3, 2)
    with pytest.raises(ArgumentError, match="expected words to skip"):
        generator.advance(-4)
    assert generator.state == nbrt.PhiloxState(9, 0)


def test_a_zero_size_draw_takes_nothing(drawer: nbrt.Device) -> None:
    generator = nbrt.Generator(3, drawer)
    assert generator.random(0).shape == (0,)
    assert generator.state.offset == 0


def test_pickling(drawer: nbrt.Device) -> None:
    generator = nbrt.Generator(3, drawer)
    generator.random(7)
    twin = pickle.loads(pickle.dumps(generator))
    assert (twin.state, twin.device) == (generator.state, generator.device)
    assert np.array_equal(draw(twin, "normal", 10), draw(generator, "normal", 10))


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**64, 1.5, True, "3"])
def test_wrong_seeds(drawer: nbrt.Device, seed: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match="expected a seed"):
        nbrt.Generator(seed, drawer)
    with pytest.raises((ArgumentError, ArgumentTypeError), match="expected a seed"):
        nbrt.manual_seed(seed)


def test_seeds_from_the_system_differ(drawer: nbrt.Device) -> None:
    assert nbrt.Generator(device=drawer).state != nbrt.Generator(device=drawer).state
    with pytest.raises(UnknownDeviceError):
        nbrt.Generator(3, nbrt.Device(drawer.kind, 1000))


def test_default_generators(drawer: nbrt.Device) -> None:
    default = nbrt.default_generator(drawer)
    with nbrt.device(drawer):
        assert nbrt.default_generator() is default
        assert nbrt.Generator(3).device == drawer
    nbrt.manual_seed(17)
    assert default.state == nbrt.PhiloxState(17, 0)
    for index in range(nbrt.device_count(drawer.kind)):
        generator = nbrt.default_generator(nbrt.Device(drawer.kind, index))
        assert generator.state == nbrt.PhiloxState(17, 0)
        assert (generator is default) == (index == 0)


def test_draws_follow_the_current_stream(side_stream: nbrt.Stream) -> None:
    generator = nbrt.Generator(3, side_stream.device)
    side_stream.synchronize()
    with CommandRecorder() as recorder, nbrt.stream(side_stream):
        generator.random(8)
    side_stream.synchronize()
    drawn = [command for command in recorder.commands if command.kind == "draw"]
    assert [(command.stream_id, command.label) for command in drawn] == [
        (side_stream.id, "uniform")
    ]
