"""Checked mode from the outside: how it is asked for, what it raises, what it leaves alone."""

from __future__ import annotations

import inspect
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.config import _parse, override
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    KernelCheckError,
    KernelError,
    LaunchError,
    NotSupportedError,
    StreamError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.interface import DeviceInterface


def shift(y: Any, x: Any) -> None:
    i = cuda.grid(1)
    y[i] = x[i + 1]


def shift_twice(x: Any) -> None:
    i = cuda.grid(1)
    x[i] += x[i + 1]


def last_one_wins(y: Any) -> None:
    y[0] = cuda.grid(1)


def write_past_the_end(x: Any) -> None:
    i = cuda.grid(1)
    x[i + 4] = 7


def raises_for_zero(x: Any, y: Any) -> None:
    i = cuda.grid(1)
    if y[i] == 0:
        raise ValueError("zero")
    x[i] = 1


def grid_barrier(x: Any) -> None:
    grid = cuda.cg.this_grid()
    x[cuda.grid(1)] = 1
    grid.sync()


def line_of(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(at for at, line in enumerate(lines) if text in line)


def faults(kernel: nbrt.Kernel, *args: Any, grid: Any = 1, block: Any = 8) -> tuple[Any, ...]:
    with nbrt.device("cpu:0"), pytest.raises(KernelCheckError) as caught:
        kernel[grid, block](*args)
    return tuple(caught.value.reports)


def zeros(n: int = 8) -> np.ndarray:
    return np.zeros(n)


# -- asking for it -----------------------------------------------------------------------------


def test_the_decorator_asks_for_checks() -> None:
    assert [r.kind for r in faults(nbrt.kernel(check=True)(shift), zeros(), zeros())] == [
        "out_of_bounds"
    ]


def test_a_single_launch_asks_for_checks_and_the_kernel_stays_as_it_is() -> None:
    kernel = nbrt.kernel(shift)
    assert faults(kernel.checked(), zeros(), zeros())
    assert kernel.check is None
    x = np.arange(9.0)
    y = zeros()
    with nbrt.device("cpu:0"):
        kernel[1, 8](y, x)
    np.testing.assert_array_equal(y, x[1:])


def test_what_is_compiled_is_shared_by_all_launches_of_a_kernel() -> None:
    kernel = nbrt.kernel(shift)
    interface = nbrt.get_interface_for_device("cpu")
    programs = {kernel.program(interface), kernel.checked(seed=1).program(interface)}
    assert programs == {nbrt.kernel(check=True)(kernel).program(interface)}


def test_the_setting_holds_for_kernels_made_under_it() -> None:
    with override(check=True, check_seed=5):
        kernel = nbrt.kernel(shift)
        unchecked = nbrt.kernel(check=False)(shift)
    assert kernel.check is not None
    assert kernel.check.seed == 5
    assert unchecked.check is None
    assert nbrt.kernel(shift).check is None
    assert faults(kernel, zeros(), zeros())


def test_the_variables_are_read() -> None:
    found = _parse({"NBRT_CHECK": "1", "NBRT_CHECK_SEED": "7"})
    assert (found.check, found.check_seed) == (True, 7)
    assert (_parse({}).check, _parse({}).check_seed) == (False, None)


@pytest.mark.parametrize("variables", [{"NBRT_CHECK": "yes"}, {"NBRT_CHECK_SEED": "-1"}])
def test_values_that_mean_nothing_are_refused(variables: dict[str, str]) -> None:
    with pytest.raises(ArgumentError, match="NBRT_CHECK"):
        _parse(variables)


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"sm_90.*got 'sm_12'"):
        nbrt.kernel(check=True, target="sm_12")(shift)


def test_a_device_that_cannot_check_says_what_can(sample_backend: DeviceInterface) -> None:
    kernel = nbrt.kernel(shift).checked()
    with nbrt.device("sample:0"), pytest.raises(NotSupportedError, match="compute-sanitizer"):
        kernel[1, 8](zeros(), zeros(9))


def test_a_grid_that_waits_for_itself_must_not_be_large() -> None:
    with nbrt.device("cpu:0"), pytest.raises(LaunchError, match="at most 4096 threads"):
        nbrt.kernel(grid_barrier).checked()[8, 1024](zeros(8192))


# -- what is raised ----------------------------------------------------------------------------


def test_a_report_says_all_there_is_to_say() -> None:
    (report,) = faults(nbrt.kernel(shift).checked(), zeros(16), zeros(16), grid=(2, 1), block=8)
    assert report.kind == "out_of_bounds"
    assert (report.kernel, report.function) == ("shift", "shift")
    assert (report.file, report.line) == (__file__, line_of(shift, "x[i + 1]"))
    assert report.source == "y[i] = x[i + 1]"
    assert (report.variable, report.index, report.position) == ("x", "i + 1", (16,))
    assert (report.block, report.thread, report.other) == ((1, 0, 0), (7, 0, 0), None)
    for part in ("x[i + 1]", "index 16", "extent 16", f"{__file__}:{report.line}", "(7, 0, 0)"):
        assert part in str(report)
    assert report.advice in str(report)


def test_a_race_names_both_threads_and_the_element() -> None:
    (report,) = faults(nbrt.kernel(last_one_wins).checked(), zeros(), block=2)
    other = report.other
    assert (report.kind, report.variable, report.position) == ("race", "y", (0,))
    assert (report.thread, report.block) == ((1, 0, 0), (0, 0, 0))
    assert (other.thread, other.block, other.access) == ((0, 0, 0), (0, 0, 0), "write")
    assert other.line == report.line == line_of(last_one_wins, "y[0]")


def test_one_fault_is_reported_once() -> None:
    kinds = [report.kind for report in faults(nbrt.kernel(shift_twice).checked(), zeros())]
    assert sorted(kinds) == ["out_of_bounds", "race"]


def test_the_error_is_an_error_of_a_kernel_and_travels() -> None:
    with nbrt.device("cpu:0"), pytest.raises(KernelError) as caught:
        nbrt.kernel(shift).checked()[1, 8](zeros(), zeros())
    copy = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy, KernelCheckError)
    assert (str(copy), copy.reports) == (str(caught.value), caught.value.reports)


def test_what_a_kernel_raises_is_raised_and_faults_come_first() -> None:
    kernel = nbrt.kernel(raises_for_zero).checked()
    with nbrt.device("cpu:0"), pytest.raises(ValueError, match="zero"):
        kernel[1, 8](zeros(), zeros())
    with nbrt.device("cpu:0"), pytest.raises(KernelCheckError) as caught:
        kernel[1, 8](zeros(), np.ones(4))
    assert [report.variable for report in caught.value.reports] == ["y"]
    assert isinstance(caught.value.__cause__, ValueError)


def test_on_a_stream_faults_show_when_it_is_waited_for() -> None:
    with nbrt.device("cpu:0"):
        stream = nbrt.Stream()
        nbrt.kernel(shift).checked()[1, 8, stream](zeros(), zeros())
        with pytest.raises(StreamError) as caught:
            stream.synchronize()
    assert isinstance(caught.value.__cause__, KernelCheckError)


# -- what happens to memory --------------------------------------------------------------------


def test_a_write_out_of_bounds_is_not_made() -> None:
    memory = np.zeros(24)
    faults(nbrt.kernel(write_past_the_end).checked(), memory[8:16])
    np.testing.assert_array_equal(memory, np.repeat([0, 7, 0], [12, 4, 8]))


def test_a_read_out_of_bounds_gives_zero_and_the_kernel_goes_on() -> None:
    memory, y = np.arange(1.0, 17.0), np.full(8, -1.0)
    faults(nbrt.kernel(shift).checked(), y, memory[:8])
    np.testing.assert_array_equal(y, [2, 3, 4, 5, 6, 7, 8, 0])


# -- order -------------------------------------------------------------------------------------


def test_the_seed_decides_the_order() -> None:
    def winner(seed: int | None) -> float:
        y = zeros()
        faults(nbrt.kernel(last_one_wins).checked(seed=seed), y, grid=4)
        return float(y[0])

    winners = [winner(seed) for seed in range(12)]
    assert winner(None) == 31
    assert len(set(winners)) > 3
    assert winners == [winner(seed) for seed in range(12)]


def test_arrays_that_are_too_many_to_follow_are_named_in_a_warning() -> None:
    @nbrt.kernel(check=True)
    def touch(arrays):
        for array in arrays:
            array[cuda.grid(1)] = 1

    arrays = tuple(np.zeros(4) for _ in range(70))
    with nbrt.device("cpu:0"), pytest.warns(RuntimeWarning, match="6 arrays were checked for"):
        touch[1, 4](arrays)
    assert all((array == 1).all() for array in arrays)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"seed": "a"}, ArgumentError),
        ({"seed": -1}, ArgumentError),
        ({"seed": 1.5}, ArgumentError),
        ({"strict": "a"}, ArgumentTypeError),
    ],
)
def test_wrong_settings_are_refused_before_a_launch(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    def kernel(x: Any) -> None:
        x[cuda.grid(1)] = 1

    with pytest.raises(error, match="expected"):
        nbrt.kernel(kernel).checked(**arguments)
    with pytest.raises(error, match="expected"):
        nbrt.kernel(kernel, check=True, **arguments)
