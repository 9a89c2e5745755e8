"""Occupancy, against numbers that NVIDIA publishes and against NVIDIA's own calculation."""

from __future__ import annotations

import random
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from nbrt._internal.gpus import LIMITS
from nbrt.backends.inspection import Resources
from nbrt.backends.occupancy import occupancy_of
from nbrt.errors import NotSupportedError

# CUDA C++ Programming Guide 13 (up to 7.2: 12), "Technical Specifications per Compute Capability":
# threads, blocks per multiprocessor; KiB of shared memory per multiprocessor and per block.
PUBLISHED = {
    (7, 0): (2048, 32, 96, 96),
    (7, 2): (2048, 32, 96, 96),
    (7, 5): (1024, 16, 64, 64),
    (8, 0): (2048, 32, 164, 163),
    (8, 6): (1536, 16, 100, 99),
    (8, 7): (1536, 16, 164, 163),
    (8, 9): (1536, 24, 100, 99),
    (9, 0): (2048, 32, 228, 227),
    (10, 0): (2048, 32, 228, 227),
    (10, 3): (2048, 32, 228, 227),
    (11, 0): (1536, 24, 228, 227),
    (12, 0): (1536, 24, 100, 99),
    (12, 1): (1536, 24, 100, 99),
}

# Blocks of (threads, registers, bytes of shared memory) that cuda_occupancy.h of CUDA 13.4 gives,
# in the order of PUBLISHED, for machines where it cannot be compiled.
SAMPLES = {
    (168, 45, 9000): (6, 6, 5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6),
    (32, 16, 0): (32, 32, 16, 32, 16, 16, 24, 32, 32, 32, 24, 24, 24),
    (256, 40, 20000): (4, 4, 3, 6, 4, 6, 4, 6, 6, 6, 6, 4, 4),
}

NVIDIA = r"""
#include <stdio.h>
#include <string.h>
#include "cuda_occupancy.h"
int main(void) {
    int major, minor, threads_sm, shared_sm, shared_block, reserved, threads, registers, shared;
    while (scanf("%d %d %d %d %d %d %d %d %d", &major, &minor, &threads_sm, &shared_sm,
                 &shared_block, &reserved, &threads, &registers, &shared) == 9) {
        cudaOccDeviceProp device;
        cudaOccFuncAttributes function;
        cudaOccDeviceState state;
        cudaOccResult result;
        memset(&device, 0, sizeof device);
        memset(&function, 0, sizeof function);
        memset(&state, 0, sizeof state);
        device.computeMajor = major;
        device.computeMinor = minor;
        device.maxThreadsPerBlock = 1024;
        device.maxThreadsPerMultiprocessor = threads_sm;
        device.regsPerBlock = device.regsPerMultiprocessor = 65536;
        device.warpSize = 32;
        device.sharedMemPerBlock = 48 * 1024;
        device.sharedMemPerMultiprocessor = shared_sm;
        device.sharedMemPerBlockOptin = shared_block;
        device.reservedSharedMemPerBlock = reserved;
        device.numSms = 100;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        function.maxThreadsPerBlock = 1024;
        function.numRegs = registers;
        function.maxDynamicSharedSizeBytes = shared;
        function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        function.numBlockBarriers = 1;
        cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(
            &result, &device, &function, &state, threads, shared);
        printf("%d\n", error ? 0 : result.activeBlocksPerMultiprocessor);
    }
    return 0;
}
"""


def blocks(capability: tuple[int, int], threads: int, registers: int, shared: int) -> int:
    return occupancy_of(capability, Resources(registers), threads, shared).blocks


def test_limits_are_the_published_ones() -> None:
    ours = {
        capability: (
            each.warps * 32,
            each.blocks,
            each.shared // 1024,
            each.shared_per_block // 1024,
        )
        for capability, each in LIMITS.items()
    }
    assert ours == {(6, 0): (2048, 32, 64, 48)} | PUBLISHED


def test_older_gpus_have_no_occupancy() -> None:
    with pytest.raises(NotSupportedError, match=r"7\.0 or newer.*got 6\.0"):
        blocks((6, 0), 32, 32, 0)


@pytest.mark.parametrize("capability", [(7, 0), (8, 0), (9, 0), (10, 0)])
def test_best_practices_guide(capability: tuple[int, int]) -> None:
    """The CUDA C++ Best Practices Guide's example (section "Calculating Occupancy")."""
    small = occupancy_of(capability, Resources(37), 128)
    assert (small.blocks, small.fraction) == (12, 0.75)
    assert small.limited_by == ("registers",)
    large = occupancy_of(capability, Resources(37), 320)
    assert (large.blocks, round(large.fraction, 2)) == (4, 0.62)


def test_nvidias_calculation(tmp_path: Path) -> None:
    """Every capability and a thousand launches against ``cuda_occupancy.h``."""
    headers = Path(sysconfig.get_path("purelib"), "nvidia").glob("*/include/cuda_occupancy.h")
    header, compiler = next(headers, None), shutil.which("cc")
    if header is None or compiler is None:
        pytest.skip("no cuda_occupancy.h of the wheel nvidia-cuda-runtime, or no C compiler")
    source, program = tmp_path / "nvidia.c", tmp_path / "nvidia"
    source.write_text(NVIDIA, encoding="utf-8")
    command = [compiler, "-w", f"-I{header.parent}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    chosen = random.Random(3)
    launches = [*SAMPLES] + [
        (
            chosen.randint(1, 1024),
            chosen.randint(1, 255),
            chosen.choice((0, 1)) * chosen.randint(0, 110_000),
        )
        for _ in range(1000)
    ]
    cases = [(capability, launch) for capability in PUBLISHED for launch in launches]
    lines = []
    for (major, minor), launch in cases:
        threads, _, shared, per_block = PUBLISHED[major, minor]
        reserved = 1024 if major >= 8 else 0
        values = (major, minor, threads, shared * 1024, per_block * 1024, reserved, *launch)
        lines.append(" ".join(map(str, values)))
    done = subprocess.run(
        [str(program)], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    theirs = list(map(int, done.stdout.split()))
    ours = [blocks(capability, *launch) for capability, launch in cases]
    assert len(theirs) == len(cases)
    wrong = [(*case, o, t) for case, o, t in zip(cases, ours, theirs, strict=True) if o != t]
    assert not wrong
    for sample, expected in SAMPLES.items():
        found = [count for (_, each), count in zip(cases, theirs, strict=True) if each == sample]
        assert tuple(found) == expected


@pytest.mark.parametrize(("sample", "expected"), SAMPLES.items())
def test_samples_of_nvidias_calculation(
    sample: tuple[int, int, int], expected: tuple[int, ...]
) -> None:
    assert tuple(blocks(capability, *sample) for capability in PUBLISHED) == expected


def test_what_cannot_run() -> None:
    assert occupancy_of((9, 0), Resources(32), 1025).limited_by == ("warps",)
    too_much = occupancy_of((7, 5), Resources(32, static_shared=40_000), 64, 40_000)
    assert (too_much.blocks, too_much.fraction, too_much.limited_by) == (0, 0.0, ("shared memory",))
