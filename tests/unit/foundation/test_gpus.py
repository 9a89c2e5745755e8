"""GPUs by name: one table, whose names every part of nbrt takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from numba import cuda

import nbrt
from nbrt._internal.gpus import GPUS, LIMITS, capability_of, gpu_named, names_of
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


@pytest.mark.parametrize(
    ("name", "known", "gib"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100 40GB", 40),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB", 40),
        ("NVIDIA A100-SXM4-80GB", "A100", 80),
        ("NVIDIA A100 80GB PCIe", "A100", 80),
        ("a100 40 gb", "A100 40GB", 40),
        ("Tesla V100-SXM2-32GB", "V100 32GB", 32),
        ("Tesla V100-SXM2-16GB", "V100", 16),
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 80),
        ("NVIDIA H200", "H200", 141),
        ("NVIDIA GH200 480GB", "GH200", 96),
        ("NVIDIA GeForce RTX 3080", "RTX 3080", 10),
        ("RTX 3080 12GB", "RTX 3080 12GB", 12),
        ("B300 288GB", "B300", 268),
    ],
)
def test_sizes_in_names_choose_the_product(name: str, known: str, gib: int) -> None:
    assert gpu_named(name) is GPUS[known]
    assert gpu_named(name).memory == gib << 30


@pytest.mark.parametrize("name", ["A100 64GB", "NVIDIA H100-40GB"])
def test_a_size_that_no_product_has_is_unknown(name: str) -> None:
    with pytest.raises(ArgumentError, match="the nearest are"):
        gpu_named(name)


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        # What PyTorch's messages about too little memory call the total capacity.
        ("H100", 79.11), ("H100 NVL", 93.0), ("A100 40GB", 39.39), ("V100", 15.75), ("T4", 14.76),
        ("L4", 22.03), ("A10G", 22.06), ("L40S", 44.39), ("RTX 3090", 23.69), ("RTX 4090", 23.65),
        ("H200", 139.81), ("B200", 178.35),
    ],
)  # fmt: skip
def test_usable_memory_is_near_what_drivers_report(name: str, gib: float) -> None:
    assert gpu_named(name).usable_memory == pytest.approx(gib * 2**30, rel=0.01)


def test_rates_and_sizes_are_plausible() -> None:
    for gpu in GPUS.values():
        assert gpu.usable_memory < gpu.memory <= 512 << 30
        assert 10**11 <= gpu.memory_bandwidth <= 10**13
        assert gpu.pcie_bandwidth is None or 10**10 < gpu.pcie_bandwidth < gpu.memory_bandwidth
        assert 0 <= gpu.nvlink < gpu.memory_bandwidth
    assert GPUS["GB10"].pcie_bandwidth is None


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


def test_one_name_is_a_sequence_of_one() -> None:
    assert names_of("H100") == ("H100",)
    assert names_of(name for name in ["H100", "L4"]) == ("H100", "L4")
    with pytest.raises(ArgumentTypeError, match=r"names of GPUs, .* got 3"):
        names_of(3)  # type: ignore[arg-type]
