"""`FakeArray`: no memory, devices, reads, identity of storage, and what it refuses."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest

import nbrt
from helpers.fake_arrays import SampleMemory
from nbrt.backends.fake.array import FakeArray
from nbrt.backends.fake.numpy_rules import RULES
from nbrt.errors import DeviceError, DeviceMismatchError, FakeReadError, NotSupportedError


@pytest.fixture
def cuda() -> SampleMemory:
    return SampleMemory("cuda:0")


# -- no memory -------------------------------------------------------------------------------------

HUGE = [
    "x + y", "x + 1", "x.T + x.T", "np.exp(x)", "x += x", "x.sum()", "x.mean(0)", "x.std(axis=1)",
    "x.argmax(1)", "np.median(x, 0)", "x @ x.T", "np.dot(x, y)", "np.einsum('ij,kj->ik', x, x)",
    "np.einsum('ij->ji', x)", "np.tensordot(x, x, ((0, 1), (0, 1)))", "np.inner(x, x)",
    "np.concatenate([x, x])", "np.stack([x, x])", "np.block([[x, x], [x, x]])", "np.tile(x, 3)",
    "np.repeat(x, 2, 0)", "np.repeat(x, 2)", "np.pad(x, 5)", "np.pad(x, 5, 'reflect')",
    "np.roll(x, 3)", "np.roll(x, 3, 0)", "np.diff(x)", "np.gradient(x, axis=0)", "np.sort(x)",
    "np.sort(x, axis=None)", "x.argsort()", "x.sort()", "np.where(x > 0, x, 0)", "np.clip(x, 0, 1)",
    "np.nan_to_num(x)", "np.isclose(x, y)", "np.cumsum(x)", "np.cumsum(x, 1)", "x.astype('c16')",
    "x.copy()", "np.zeros_like(x)", "np.full_like(x, 3)", "x.reshape(-1)", "x.T.reshape(-1)",
    "x[::2, ::3]", "x[[0, 5, 9]]", "x[:, np.arange(1000)]", "x[0] = 1", "x[...] = y",
    "x[[1, 2]] = y", "x.fill(2)", "np.insert(x, 3, 1, axis=0)", "np.delete(x, 3, axis=0)",
    "np.delete(x, [1, 2])", "np.append(x, x)",
    "np.take(x, [1, 2], 0)", "np.linalg.svd(x, full_matrices=False)", "np.linalg.qr(x)",
    "np.linalg.norm(x)", "np.linalg.norm(x, axis=0)", "np.linalg.inv(x @ x.T)", "np.fft.fft(x)",
    "np.linalg.solve(x @ x.T, x)", "np.fft.rfftn(x)", "np.histogram(x, 100)", "np.cov(x)",
    "np.searchsorted(y, x)", "np.interp(x, y, y)", "np.percentile(x, [1, 2], 0)", "np.outer(y, y)",
    "np.kron(y, y)", "np.meshgrid(y, y)", "np.diag(y)", "np.tril(x)", "np.select([x > 0], [x])",
    "np.copyto(x, y)", "np.broadcast_to(y, (5, 10**6))", "np.flip(x)", "np.rot90(x)", "list(x[:3])",
    "np.add.at(x, 0, 1)", "np.add.outer(y, y)", "np.add.accumulate(x)", "np.split(x, 4)",
    "np.lib.stride_tricks.sliding_window_view(x, (100, 100))", "np.average(x, axis=1, weights=y)",
    "np.convolve(y, y)", "np.polyval(y[:5], x)", "np.linspace(x, x, 5)", "np.packbits(x > 0)",
    "np.apply_along_axis(np.sum, 0, x)", "np.cross(x[:, :3], x[:, 3:6])", "np.vander(y)",
    "np.unwrap(x)", "np.shares_memory(x, x[1:])", "np.triu_indices_from(x)", "np.trapezoid(x)",
]  # fmt: skip


@pytest.mark.parametrize("code", HUGE)
def test_ten_terabytes_take_no_memory(cuda: SampleMemory, code: str) -> None:
    x, y = cuda.empty((2_500_000, 1_000_000), "f4"), cuda.empty(1_000_000, "f4")
    assert x.nbytes == 10**13
    namespace = {"x": x, "y": y, "np": np}
    compiled = compile(code, "<test>", "exec")
    exec(compiled, namespace)  # NumPy's own caches are filled by a first call
    tracemalloc.start()
    exec(compiled, namespace)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


# -- devices ---------------------------------------------------------------------------------------


def test_arrays_of_two_devices_are_refused_by_name(cuda: SampleMemory) -> None:
    x, y = cuda.empty(3), SampleMemory("cuda:1").empty(3)
    calls: list[Any] = [
        lambda: x + y,
        lambda: np.concatenate([x, y]),
        lambda: np.where(x, y, 0),
        lambda: x.__setitem__(0, y[0]),
        lambda: x.dot(y),
    ]
    for call in calls:
        with pytest.raises(DeviceMismatchError, match=r"cuda:0.*cuda:1|cuda:1.*cuda:0"):
            call()


def test_host_arrays_do_not_mix_with_those_of_a_device(cuda: SampleMemory) -> None:
    x, host = cuda.empty(3), SampleMemory("cpu").empty(3)
    for other in (np.ones(3), host, [1, 2, 3]):
        with pytest.raises(DeviceMismatchError, match=r"cuda:0.*(numpy\.ndarray|host)"):
            x + other
    with pytest.raises(DeviceMismatchError, match=r"numpy\.ndarray"):
        np.concatenate([x, np.ones(3)])
    with pytest.raises(DeviceMismatchError, match=r"numpy\.ndarray"):
        x[...] = np.ones(3)
    with pytest.raises(DeviceMismatchError, match=r"numpy\.ndarray"):
        np.add(x, x, out=np.ones(3))
    values = np.ones(3)
    with pytest.raises(DeviceMismatchError, match=r"numpy\.ndarray"):
        values += x


def test_numbers_and_indices_of_the_host_go_with_a_device(cuda: SampleMemory) -> None:
    x = cuda.empty((3, 4), "f4")
    assert (x + np.float32(1)).device == nbrt.Device("cuda:0")
    assert (x + np.array(1.0)).dtype == "f8"
    assert (x * SampleMemory("cpu").empty((), "f8")).device == nbrt.Device("cuda:0")
    assert x[np.array([0, 1])].shape == (2, 4)
    assert x[np.ones(3, bool)].shape == (3, 4)
    assert np.take(x, np.array([0, 1]), axis=1).shape == (3, 2)
    assert np.repeat(x, np.array([1, 2, 3]), axis=0).shape == (6, 4)
    assert np.histogram(x, np.array([0, 1, 2]))[0].shape == (2,)
    x[np.array([0, 1])] = 3
    x[0] = [1, 2, 3, 4]


def test_an_array_of_a_real_device_is_refused(cuda: SampleMemory) -> None:
    class RealArray:
        shape, dtype = (3,), np.dtype("f4")
        __cuda_array_interface__ = None
        __array_ufunc__ = __array_function__ = lambda *args, **kwargs: NotImplemented

    for call in (
        lambda: np.add(cuda.empty(3), RealArray()),
        lambda: np.dot(cuda.empty(3), RealArray()),
    ):
        with pytest.raises(DeviceMismatchError, match=r"cuda:0.*RealArray.*real device"):
            call()


def test_real_arrays_mix_with_a_fake_cpu_device() -> None:
    x = SampleMemory("cpu", reads="zeros").empty(3, "f4")
    assert (x + np.ones(3)).dtype == "f8"
    assert (np.ones((2, 1)) + x).shape == (2, 3)
    assert np.concatenate([np.ones(2), x]).shape == (5,)
    real = np.ones(3)
    real += x
    assert real.tolist() == [0, 0, 0]  # the values that the policy gives for the sum
    real[...] = x
    assert np.dot(np.ones(3), x).shape == ()


def test_a_real_array_gets_no_values_of_a_fake_one() -> None:
    x, real = SampleMemory("cpu").empty(3), np.ones(3)
    calls: list[Any] = [
        lambda: np.add(x, x, out=real),
        lambda: real.__iadd__(x),
        lambda: real.__setitem__(slice(None), x),
        lambda: np.sum(x[None], axis=0, out=real),
        lambda: np.cumsum(x, out=real),
    ]
    for call in calls:
        with pytest.raises(FakeReadError):
            call()
    with pytest.raises(TypeError, match="fake array as the target"):
        np.copyto(real, x)
    assert real.tolist() == [1, 1, 1]


def test_another_library_of_arrays_decides_for_itself(cuda: SampleMemory) -> None:
    class Other:
        def __array_ufunc__(self, *args: Any, **kwargs: Any) -> str:
            return "ufunc"

        def __array_function__(self, *args: Any, **kwargs: Any) -> str:
            return "function"

    result: Any = np.add(cuda.empty(3), Other())
    assert result == "ufunc"
    result = np.concatenate([cuda.empty(3), Other()])  # type: ignore[list-item]
    assert result == "function"


# -- values ----------------------------------------------------------------------------------------

READS: list[Any] = [
    lambda x: float(x[0]),
    lambda x: int(x[0]),
    lambda x: complex(x[0]),
    lambda x: bool(x[0]),
    lambda x: x[0].item(),
    lambda x: x.item(1),
    lambda x: x.tolist(),
    lambda x: x.tobytes(),
    lambda x: [1, 2][x[0].astype(int)],
    lambda x: list(map(float, x)),
    lambda x: 1 in x,
    lambda x: f"{x[0]:.2f}",
    lambda x: "much" if x.sum() > 3 else "little",
    lambda x: max(x),
    lambda x: np.nonzero(x),
    lambda x: np.unique(x),
    lambda x: np.allclose(x, x),
    lambda x: np.array_equal(x, x),
    lambda x: np.where(x),
    lambda x: np.save(io.BytesIO(), x),
    lambda x: np.repeat(x, x.astype(int)),
    lambda x: x[x > 0],
    lambda x: np.histogram(x, "auto"),
    lambda x: np.split(x, x.astype(int)),
    lambda x: np.lib.scimath.sqrt(x),
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("device", ["cuda:0", "cpu:0"])
def test_reads_follow_the_policy(read: Any, device: str) -> None:
    with pytest.raises(FakeReadError):
        read(SampleMemory(device).empty(3))
    read(SampleMemory(device, reads="zeros").empty(3))


def test_values_under_the_policy_of_zeros(cuda: SampleMemory) -> None:
    x = SampleMemory(reads="zeros").empty((3, 4))
    assert float(x[0, 0]) == 0
    assert not (x.sum() > 1)
    assert x[x > 0].shape == (0,)
    assert [each.shape for each in np.nonzero(x)] == [(0,), (0,)]
    unique = np.unique_counts(x)
    assert (unique.values.shape, unique.counts.dtype) == ((1,), np.dtype(np.intp))
    assert isinstance(unique.values, FakeArray)
    assert np.allclose(x, 0)


def test_the_reason_is_named(cuda: SampleMemory) -> None:
    x = cuda.empty(3)
    with pytest.raises(FakeReadError, match=r"array\[mask\] depends on the values of the mask"):
        x[x > 0]
    with pytest.raises(FakeReadError, match=r"numpy\.unique depends on values"):
        np.unique(x)
    x[x > 0] = 0  # needs no value


def test_index_arrays_without_values_select_by_shape(cuda: SampleMemory) -> None:
    x, places = cuda.empty((3, 4), "f4"), cuda.empty((5, 2), "i4")
    assert x[places].shape == (5, 2, 4)
    assert x[:, places].shape == (3, 5, 2)
    assert x[places, 0].shape == (5, 2)
    assert x[places[0, 0]].shape == (4,)
    assert np.take(x, places).shape == (5, 2)
    x[places] = 1
    with pytest.raises(IndexError, match="integer"):
        x[cuda.empty(3, "f4")]


def test_conversion_to_numpy(cuda: SampleMemory) -> None:
    with pytest.raises(TypeError, match="get"):
        np.asarray(cuda.empty(3))
    with pytest.raises(FakeReadError):
        np.asarray(SampleMemory("cpu").empty(3))
    host = SampleMemory("cpu", reads="zeros").empty(3)
    assert np.asarray(host, "i4").dtype == "i4"
    with pytest.raises(ValueError, match="copy"):
        np.array(host, copy=False)


def test_numpy_errors_of_conversions(cuda: SampleMemory) -> None:
    x = SampleMemory(reads="zeros").empty((3, 4))
    for convert in (float, int, complex):
        with pytest.raises(TypeError, match="0-dimensional"):
            convert(x)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x)
    with pytest.raises(TypeError, match="integer"):
        range(x)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="size 1"):
        x.item()
    with pytest.raises(TypeError, match="0-d"):
        iter(x[0, 0])
    with pytest.raises(TypeError, match="unsized"):
        len(x[0, 0])
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)


# -- storage ---------------------------------------------------------------------------------------


def test_views_share_the_storage_of_their_array(cuda: SampleMemory) -> None:
    handle = object()
    x = FakeArray(cuda.empty((3, 4), "f4").layout, cuda, handle)
    views = [x[1:], x.T, x.reshape(12), x.view("i4"), x[0, 0], np.flip(x), x.ravel(), x[:, None]]
    for view in [*views, views[0][::2]]:
        assert view.base is x
        assert view.handle is handle
        assert np.may_share_memory(view, x)
        assert not view.flags.owndata
    assert x[1:].address == x.address + 16
    assert x[::-1].address == x.address + 32
    for other in (x.copy(), x + 0, x.flatten(), x[[0]], x.T.reshape(-1), x.astype("f4")):
        assert other.base is None
        assert other.handle is not handle
        assert not np.may_share_memory(other, x)
    assert x.astype("f4", copy=False) is x
    assert x.real is x


def test_results_come_from_the_memory(cuda: SampleMemory) -> None:
    x = cuda.empty((3, 4), "f4")
    y = (x.T + 1).sum(axis=1)
    assert [(each.shape, each.nbytes) for each in cuda.results] == [((3, 4), 48), ((4,), 16)]
    assert y.strides == (4,)
    x += 1
    np.add(x, x, out=x)
    x[...] = 3
    x.sort()
    assert len(cuda.results) == 2


def test_changes_of_an_array_change_its_form_for_launches(cuda: SampleMemory) -> None:
    changes: list[Any] = [
        lambda x: setattr(x, "shape", 12),
        lambda x: x.setflags(write=False),
        lambda x: setattr(x.flags, "writeable", False),
    ]
    for change in changes:
        x = cuda.empty((3, 4), "f4")
        form = x.form()
        change(x)
        assert x.known_form is None
        assert x.form() != form


def test_weak_references_and_copies(cuda: SampleMemory) -> None:
    x = cuda.empty((4, 3), "f4").T
    reference = weakref.ref(x)
    assert reference() is x
    for twin in (copy.copy(x), copy.deepcopy(x)):
        assert twin.base is None
        assert (twin.shape, twin.strides) == (x.shape, x.strides)
    with pytest.raises(NotSupportedError, match="pickle"):
        pickle.dumps(x)


def test_addresses_are_not_given_to_other_libraries(cuda: SampleMemory) -> None:
    x = cuda.empty(3)
    for name in ("__array_interface__", "__cuda_array_interface__", "__dlpack__", "ctypes", "data"):
        assert not hasattr(x, name)
    with pytest.raises(TypeError):
        memoryview(x)  # type: ignore[arg-type]


def test_text_has_no_values(cuda: SampleMemory) -> None:
    x = cuda.empty((3, 4), "f4")
    expected = "FakeArray(shape=(3, 4), dtype=float32, device='cuda:0')"
    assert repr(x) == str(x) == f"{x}" == np.array_repr(x) == expected
    assert "device='host'" in repr(SampleMemory("cpu").empty(3))
    assert "OWNDATA : False" in repr(x.T.flags)
    assert x.device == nbrt.Device("cuda:0")


def test_copies_to_and_from_the_host_as_in_cupy(cuda: SampleMemory) -> None:
    x = cuda.empty((3, 4), "f4")
    host = x.get()
    assert (host.shape, host.dtype, host.memory.is_host) == (x.shape, x.dtype, True)
    assert host.get() is host
    x.set(np.zeros((3, 4), "f4"))
    x.set(host)
    assert cuda.results == [x, x]
    with pytest.raises(ValueError, match="Shape mismatch"):
        x.set(np.zeros(3, "f4"))
    with pytest.raises(TypeError, match="cannot be set"):
        x.set(np.zeros((3, 4)))


def test_an_array_ends_with_its_block(cuda: SampleMemory) -> None:
    x = cuda.empty((3, 4), "f4")
    cuda.is_active = False
    calls: list[Any] = [
        lambda: x + 1,
        lambda: x.sum(),
        lambda: x[0],
        lambda: x[[0]],
        lambda: x.__setitem__(0, 1),
        lambda: x.T,
        lambda: x.reshape(12),
        lambda: x.copy(),
        lambda: x.astype("f8"),
        lambda: np.concatenate([x, x]),
        lambda: x.item(0),
        lambda: x.get(),
        lambda: x.sort(),
        lambda: x.flatten(),
    ]
    for call in calls:
        with pytest.raises(DeviceError, match=r"cuda:0.*block has ended"):
            call()
    assert (x.shape, x.nbytes, repr(x)[:9]) == ((3, 4), 48, "FakeArray")


# -- functions -------------------------------------------------------------------------------------


def test_a_function_without_a_rule_is_named(cuda: SampleMemory) -> None:
    with pytest.raises(NotSupportedError, match=r"numpy\.strings\.upper"):
        np.strings.upper(cuda.empty(3, "U3"))
    with pytest.raises(NotSupportedError, match="resize"):
        cuda.empty(3).resize(4)
    with pytest.raises(NotSupportedError, match="Python objects"):
        cuda.empty(3).astype(object)


def test_rules_take_the_parameters_of_numpys_functions() -> None:
    wrong = []
    for function, rule in RULES.items():
        try:
            expected = inspect.signature(function).parameters
        except ValueError:
            continue
        given = inspect.signature(rule).parameters
        if any(each.kind == each.VAR_KEYWORD for each in given.values()):
            continue
        names = {
            name
            for name, each in expected.items()
            if each.kind not in (each.VAR_KEYWORD, each.POSITIONAL_ONLY)
        }
        if not names <= {*given, "like"}:
            wrong.append((function.__name__, names - set(given)))
    assert wrong == []


def test_arrays_of_nbrt_fake() -> None:
    with nbrt.fake("cuda", gpu="H100 SXM", devices=2):
        x = nbrt.zeros((1000, 1000), dtype="f4", device="cuda:1")
        assert isinstance(x, FakeArray)
        y = (x @ x.T + 1).sum(axis=0)
        assert (y.shape, y.dtype, str(y.device)) == ((1000,), np.dtype("f4"), "cuda:1")
        with pytest.raises(DeviceMismatchError, match=r"cuda:\d.*cuda:\d"):
            x + nbrt.zeros(1000, dtype="f4", device="cuda:0")
        with pytest.raises(FakeReadError, match=r"test_fake_array\.py"):
            float(y[0])
        host = y.get()
        assert host.shape == (1000,)
        y.set(np.zeros(1000, "f4"))
    with pytest.raises(DeviceError, match="ended"):
        x + 1


# -- real arrays first -----------------------------------------------------------------------------


def test_a_real_first_argument_goes_with_a_fake_second_one() -> None:
    memory = SampleMemory("cpu", reads="zeros")
    right = memory.empty((4, 4), "f4")
    solved: Any = np.linalg.solve(np.eye(4, dtype="f4"), right)
    assert (solved.shape, solved.dtype) == ((4, 4), np.float32)
    repeated: Any = np.repeat(np.ones(4), memory.empty(4, "i8"))
    assert repeated.shape == (0,)


def test_ufunc_at_of_a_real_array_stores_what_the_policy_gives() -> None:
    target = np.ones((4, 4))
    np.add.at(target, SampleMemory("cpu", reads="zeros").empty(3, "i8"), 1)
    assert not target.any()
    with pytest.raises(FakeReadError):
        np.add.at(target, SampleMemory("cpu").empty(3, "i8"), 1)
    with pytest.raises(IndexError):
        np.add.at(target, SampleMemory("cpu", reads="zeros").empty(3), 1)
