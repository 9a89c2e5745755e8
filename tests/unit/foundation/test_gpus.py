"""GPUs by name: one table, whose names every part of nbrt takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba import cuda

import nbrt
from nbrt._internal.gpus import GPUS, LIMITS, capability_of, gpu_named
from nbrt.backends.cpu.simt.checked.limits import violations
from nbrt.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from typing import Any

ALIASES = ("H100", "h100", "NVIDIA H100 80GB HBM3", "rtx4090", "RTX PRO 6000")


def write(x):  # type: ignore[no-untyped-def]
    x[cuda.grid(1)] = 1


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("H100", (9, 0)),
        ("NVIDIA A100", (8, 0)),
        ("rtx4090", (8, 9)),
        ("GeForce RTX 4090", (8, 9)),
        ("Tesla T4", (7, 5)),
        ("v100", (7, 0)),
        ("L4", (8, 9)),
        ("sm_90", (9, 0)),
        ("sm_90a", (9, 0)),
        ("compute_120", (12, 0)),
        ("8.6", (8, 6)),
    ],
)
def test_names(name: str, capability: tuple[int, int]) -> None:
    assert capability_of(name) == capability


def test_unknown_names() -> None:
    with pytest.raises(ArgumentError, match=r"T4.*sm_80.*got 'RTX 4091'; the nearest are RTX 4090"):
        capability_of("RTX 4091")
    with pytest.raises(ArgumentError, match="got 'sm_20'"):
        capability_of("sm_20")
    with pytest.raises(ArgumentTypeError, match="name of a GPU"):
        capability_of(90)  # type: ignore[arg-type]


def test_every_gpu_has_limits() -> None:
    assert {gpu.capability for gpu in GPUS.values()} == set(LIMITS)
    assert {limits.threads for limits in LIMITS.values()} == {1024, 1536, 2048}
    assert all(gpu_named(name) is gpu for name, gpu in GPUS.items())


@pytest.mark.parametrize("name", [*GPUS, *ALIASES])
def test_every_user_takes_every_name(name: str) -> None:
    gpu = gpu_named(name)
    kernel = nbrt.kernel(write)
    assert kernel.inspect("float32[::1]", gpu=name).gpu == name
    assert nbrt.kernel(check=True, target=name)(write).check is not None
    assert kernel.checked(target=name).check is not None
    if gpu.multiprocessors is None:
        with pytest.raises(ArgumentError, match=r"known.*gpu=\(multiprocessors"):
            nbrt.Generator(0, layout="torch", gpu=name)
    else:
        nbrt.Generator(0, layout="torch", gpu=name)


@pytest.mark.parametrize("name", ["sm_90", "9.0", "compute_75"])
def test_capabilities(name: str) -> None:
    kernel = nbrt.kernel(write)
    assert kernel.inspect("float32[::1]", gpu=name).gpu == name
    assert kernel.checked(target=name).check is not None
    with pytest.raises(ArgumentError, match=r"compute capability.*gpu=\(multiprocessors"):
        nbrt.Generator(0, layout="torch", gpu=name)


def made_with(name: str) -> list[Any]:
    kernel = nbrt.kernel(write)
    return [
        lambda: kernel.inspect("float32[::1]", gpu=name),
        lambda: nbrt.kernel(check=True, target=name),
        lambda: nbrt.kernel(write, check=True, target=name),
        lambda: nbrt.kernel(write, target=name),
        lambda: kernel.checked(target=name),
        lambda: nbrt.Generator(0, layout="torch", gpu=name),
    ]


@pytest.mark.parametrize("case", range(6))
def test_every_user_refuses_an_unknown_name_at_once(case: int) -> None:
    with pytest.raises(ArgumentError, match=r"GB10.*'nonsense 100'"):
        made_with("nonsense 100")[case]()


@pytest.mark.parametrize(("name", "fits"), [("A100", True), ("T4", False), ("h100", True)])
def test_checked_mode_knows_the_shared_memory_of_a_named_gpu(name: str, fits: bool) -> None:
    found = violations(name, (1, 1, 1), (1, 1, 1), 48_000, 40_000)
    assert ["88000 bytes" in fault.message for fault in found] == [True] * (not fits)
