"""The ``nbrt`` command: output, errors and files."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.processes import output_of
from nbrt.cli.demo import run_demo
from nbrt.cli.demo.pipeline import load_photo
from nbrt.cli.info import info_lines
from nbrt.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    from nbrt.backends.cuda.backend import CudaInterface


def _command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nbrt.cli.main", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )


def test_info_names_every_backend_and_the_reason_of_an_unavailable_one() -> None:
    text = "\n".join(info_lines())
    assert f"cpu:0: {nbrt.get_device_name('cpu:0')}" in text
    assert "default device:" in text
    if not nbrt.is_available("cuda"):
        reason = nbrt.get_interface_for_device("cuda").unavailable_reason()
        assert reason is not None
        assert f"cuda: unavailable: {reason}" in text


def test_info_initialises_nothing() -> None:
    code = """
        from nbrt.cli.info import info_lines
        from nbrt.backends import registry

        info_lines()
        print(registry.ready_interfaces())
    """
    assert output_of(code) == "()\n"


def test_info_describes_gpus_without_a_context(cuda_interface: CudaInterface) -> None:
    code = """
        from nbrt.backends.cuda.driver import Driver
        from nbrt.cli.info import info_lines

        print(*info_lines(), sep="\\n")
        driver = Driver()
        print([driver.has_context(index) for index in range(driver.device_count())])
    """
    *lines, contexts = output_of(code, simulated_cuda=True).splitlines()
    assert "default device: cuda:0" in lines
    assert f"cuda: {cuda_interface.device_count()} device(s)" in lines
    assert contexts == str([False] * cuda_interface.device_count())


def test_demo_runs_writes_pictures_and_passes_every_check(tmp_path: Path) -> None:
    done = _command("demo", "--device", "cpu", "--output", "pictures", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("pass") == 6
    assert "FAIL" not in done.stdout
    for name in ("before_after.png", "timeline.png"):
        with Image.open(tmp_path / "pictures" / name) as picture:
            assert picture.size[0] > 600
            assert np.asarray(picture.convert("L")).std() > 5


def test_demo_takes_the_users_own_picture(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "own.png")
    result = run_demo(tmp_path / "own.png", device="cpu", sigma=0.05)
    assert result.original.shape == (3, 37, 53)
    np.testing.assert_array_equal(np.moveaxis(result.original, 0, -1) * 255, pixels)
    assert [check.name for check in result.checks if not check.passed] == []


def test_demo_denoises() -> None:
    result = run_demo(device="cpu")
    noisy, denoised = (
        float(np.mean((planes.astype(np.float64) - result.original) ** 2))
        for planes in (result.noisy, result.denoised)
    )
    assert denoised < 0.25 * noisy  # at least 6 dB better
    assert sum(result.counts["denoised"]) == np.count_nonzero(result.denoised < 1)
    streams = {step.name: step.stream for step in result.steps}
    assert streams["upload"] == "side"
    assert streams["denoise"] == "compute"
    assert all(step.milliseconds >= 0 for step in result.steps)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("demo", "missing.png"), "expected an image"),
        (("demo", "--device", "gpu"), "did you mean"),
        (("demo", "--sigma", "-1"), "expected sigma > 0"),
        (("demo", "--seed", str(2**64)), "expected a seed"),
    ],
)
def test_bad_input_is_one_clear_line(
    words: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    assert says in capsys.readouterr().err


def test_photo_is_scaled_into_the_unit_interval() -> None:
    planes = load_photo()
    assert planes.shape == (3, 600, 512)
    assert planes.dtype == np.float32
    assert 0 <= planes.min() < planes.max() <= 1


def test_the_package_is_the_command(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "nbrt", "--version"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"nbrt {nbrt.__version__}\n"
