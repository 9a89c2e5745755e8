"""The steps of the demo: upload, noise, denoise, histogram, download, on two streams."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
import nbrt_kernels
from nbrt.cli.demo.checks import DemoCheck, check_histogram, check_image, check_noise, check_pieces
from nbrt_kernels.filters import bilateral_reference
from nbrt_kernels.images import add_noise_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt._internal.device import Device
    from nbrt.runtime.event import Event
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array, DeviceLike, HostArray

__all__ = ["BINS", "DemoResult", "DemoStep", "draw_pieces", "load_photo", "run_demo"]

BINS = 64
_MAX_SIDE = 2048
_PIECES = 4
_SPACE_SIGMA = 1.5
_RADIUS = 4
_RANGE_PER_NOISE = 2.2
_TILE = (32, 8)


@dataclass(frozen=True, slots=True)
class DemoStep:
    """A step of the demo.

    Attributes
    ----------
    name, stream : str
        Names of the step and of its stream.
    start, milliseconds : float
        Start since the first step, and duration, from events.
    nbytes : int
        Bytes that it must read and write.
    peak_bytes : int
        Peak device memory allocated during its submission.
    """

    name: str
    stream: str
    start: float
    milliseconds: float
    nbytes: int
    peak_bytes: int

    @property
    def gigabytes_per_second(self) -> float:
        """Bytes moved per nanosecond."""
        return self.nbytes / self.milliseconds / 1e6 if self.milliseconds > 0 else float("nan")


class StepTimer:
    """A recorder of steps."""

    def __init__(self, streams: dict[str, Stream]) -> None:
        self.streams = streams
        self._names = {stream.id: name for name, stream in streams.items()}
        self._origin = next(iter(streams.values())).record_event(nbrt.Event(enable_timing=True))
        for stream in streams.values():
            stream.wait_event(self._origin)
        self._open: list[tuple[str, Stream, Event, Event, int, int]] = []

    @contextmanager
    def step(self, name: str, stream: Stream, nbytes: int) -> Iterator[None]:
        """Time the work that the block submits to `stream`."""
        nbrt.reset_peak_memory_stats(stream.device)
        start = stream.record_event(nbrt.Event(enable_timing=True))
        with nbrt.stream(stream):
            yield
        end = stream.record_event(nbrt.Event(enable_timing=True))
        peak = nbrt.max_memory_allocated(stream.device)
        self._open.append((name, stream, start, end, nbytes, peak))

    def finish(self) -> tuple[DemoStep, ...]:
        """Wait for the streams; return the steps in order of submission."""
        for stream in self.streams.values():
            stream.synchronize()
        return tuple(
            DemoStep(
                name,
                self._names[stream.id],
                self._origin.elapsed_time(start),
                start.elapsed_time(end),
                nbytes,
                peak,
            )
            for name, stream, start, end, nbytes, peak in self._open
        )


@dataclass(frozen=True)
class DemoResult:
    """The result of a run.

    Attributes
    ----------
    device : Device
        The device.
    original, noisy, denoised : float32, shape (3, height, width)
        The image before, with noise, and after.
    counts : dict of str to int64 array, shape (64,)
        Histograms over [0, 1) of the noisy and the denoised image.
    steps : tuple of DemoStep
        The steps with their times.
    checks : tuple of DemoCheck
        The comparisons with NumPy, and of the noise in four pieces with the whole.
    """

    device: Device
    original: HostArray
    noisy: HostArray
    denoised: HostArray
    counts: dict[str, HostArray]
    steps: tuple[DemoStep, ...]
    checks: tuple[DemoCheck, ...]


def run_demo(
    image: str | Path | None = None,
    *,
    device: DeviceLike = None,
    seed: int = 2026,
    sigma: float = 0.08,
    progress: Callable[[str], None] = lambda _: None,
) -> DemoResult:
    """Denoise a photograph on two streams, and compare every result with NumPy.

    Parameters
    ----------
    image : path, optional
        An image; by default the photograph in matplotlib.
    device : Device, str, int or None
        The device; the default device if None.
    seed : int
        Seed of the noise.
    sigma : float
        Standard deviation of the noise; pixel values span [0, 1].
    progress : callable
        Called with a line before each stage.

    Raises
    ------
    ArgumentError
        If the image cannot be read or sigma is not positive.
    """
    if not sigma > 0:
        raise nbrt.errors.ArgumentError(f"expected sigma > 0, got {sigma}")
    progress("reading the image")
    original = load_photo(image)
    with nbrt.device(device):
        current = nbrt.current_device()
        progress(f"compiling the kernels for {current}")
        _run(original, seed, sigma)  # compiles, and touches the memory that the next run reuses
        progress(f"running on two streams of {current}")
        arrays, steps = _run(original, seed, sigma)
    progress("drawing the same noise in four pieces")
    pieces = draw_pieces(original.shape, seed, nbrt.device_count("cpu"))
    progress("comparing every step with NumPy")
    checks = (
        check_pieces(pieces, arrays["noise"]),
        check_noise(arrays["noise"], seed),
        check_image("noisy", arrays["noisy"], _noisy_reference(original, arrays["noise"], sigma)),
        check_image("denoised", arrays["denoised"], _denoised_reference(arrays["noisy"], sigma)),
        check_histogram("noisy", arrays["noisy_counts"], arrays["noisy"]),
        check_histogram("denoised", arrays["denoised_counts"], arrays["denoised"]),
    )
    counts = {name: arrays[f"{name}_counts"] for name in ("noisy", "denoised")}
    return DemoResult(current, original, arrays["noisy"], arrays["denoised"], counts, steps, checks)


def load_photo(path: str | Path | None = None) -> HostArray:
    """Return an image as three planes.

    Parameters
    ----------
    path : str or Path, optional
        A file that Pillow opens; by default matplotlib's portrait of Grace Hopper (public domain,
        US Navy). An image with more than 2048 pixels on a side is scaled down.

    Returns
    -------
    planes : float32, shape (3, height, width)
        Red, green and blue in [0, 1].

    Raises
    ------
    ArgumentError
        If Pillow cannot open the file.
    """
    from PIL import Image, UnidentifiedImageError

    file = _default_path() if path is None else Path(path)
    try:
        with Image.open(file) as picture:
            converted = picture.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise nbrt.errors.ArgumentError(
            f"expected an image that Pillow can open, got {file}: {error}"
        ) from error
    converted.thumbnail((_MAX_SIDE, _MAX_SIDE))
    pixels = np.asarray(converted, dtype=np.float32) / np.float32(255)
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0))


def _default_path() -> Path:
    import matplotlib as mpl

    return Path(mpl.get_data_path()) / "sample_data" / "grace_hopper.jpg"


def draw_pieces(shape: tuple[int, ...], seed: int, devices: int) -> HostArray:
    """Draw standard normal noise in four pieces on up to four CPU devices."""
    total = int(np.prod(shape))
    # A Philox block yields four float32 elements, so pieces start at multiples of four.
    bounds = [round(total * k / _PIECES / 4) * 4 for k in range(_PIECES)] + [total]
    pieces = []
    for k in range(_PIECES):
        generator = nbrt.Generator(seed, device=f"cpu:{k % devices}").advance(bounds[k])
        piece = generator.standard_normal(bounds[k + 1] - bounds[k], dtype=np.float32)
        pieces.append(nbrt.to_host(piece))
    return np.concatenate(pieces).reshape(shape)


def _run(
    original: HostArray, seed: int, sigma: float
) -> tuple[dict[str, HostArray], tuple[DemoStep, ...]]:
    compute, side = nbrt.Stream(), nbrt.Stream()
    timeline = StepTimer({"compute": compute, "side": side})
    nbytes = original.nbytes
    with timeline.step("upload", side, 2 * nbytes):
        image = nbrt.to(original, side.device, copy=True)
    uploaded = side.record_event()
    with timeline.step("draw noise", compute, nbytes):
        generator = nbrt.Generator(seed)
        noise = generator.standard_normal(original.shape, dtype=np.float32)
    compute.wait_event(uploaded)
    with timeline.step("add noise", compute, 3 * nbytes):
        noisy = _add_noise(image, noise, sigma)
    is_noisy = compute.record_event()
    with timeline.step("denoise", compute, 2 * nbytes):
        denoised = _denoise(noisy, sigma)
    is_denoised = compute.record_event()
    side.wait_event(is_noisy)
    with timeline.step("histogram of noisy", side, nbytes):
        noisy_counts = _histogram(noisy)
    side.wait_event(is_denoised)
    with timeline.step("histogram of denoised", side, nbytes):
        denoised_counts = _histogram(denoised)
    results = {}
    with timeline.step("download", side, 2 * nbytes):
        results["denoised"] = np.empty(original.shape, np.float32)
        nbrt.copy(results["denoised"], denoised, stream=side)
    steps = timeline.finish()
    results |= {
        "noise": nbrt.to_host(noise),
        "noisy": nbrt.to_host(noisy),
        "noisy_counts": nbrt.to_host(noisy_counts)[0].astype(np.int64),
        "denoised_counts": nbrt.to_host(denoised_counts)[0].astype(np.int64),
    }
    return results, steps


_add_noise_kernel = nbrt.kernel(nbrt_kernels.add_noise)
_bilateral_kernel = nbrt.kernel(nbrt_kernels.bilateral)
_histogram_kernel = nbrt.kernel(nbrt_kernels.histogram_partial)
_sum_kernel = nbrt.kernel(nbrt_kernels.column_sum)


def _add_noise(image: Array, noise: Array, sigma: float) -> Array:
    noisy = nbrt.empty(image.shape)
    limits = (np.float32(sigma), np.float32(0), np.float32(1))
    for plane in range(image.shape[0]):
        launch = _add_noise_kernel[_tiles(image.shape[1:]), _TILE]
        launch(noisy[plane], image[plane], noise[plane], *limits)
    return noisy


def _denoise(noisy: Array, sigma: float) -> Array:
    denoised = nbrt.empty(noisy.shape)
    space = nbrt.asarray(_space_weights(), device=nbrt.current_device())
    for plane in range(noisy.shape[0]):
        launch = _bilateral_kernel[_tiles(noisy.shape[1:]), _TILE]
        launch(denoised[plane], noisy[plane], space, _range_factor(sigma))
    return denoised


def _histogram(planes: Array) -> Array:
    values = planes.reshape(-1)
    properties = nbrt.get_device_properties()
    resident = properties.multi_processor_count * properties.max_threads_per_multi_processor
    parallel = properties.multi_processor_count if _is_cpu() else resident
    rows, run = nbrt_kernels.histogram_plan(values.size, BINS, parallel)
    partial = nbrt.zeros((rows, BINS), np.int32)
    coarse = nbrt.empty((_PIECES, BINS), np.int32)
    counts = nbrt.empty((1, BINS), np.int32)
    scale = (np.float32(0), np.float32(BINS))
    _histogram_kernel[-(-rows // 64), 64](partial, values, *scale, run)
    _sum_kernel[(1, _PIECES), (BINS, 1)](coarse, partial)
    _sum_kernel[(1, 1), (BINS, 1)](counts, coarse)
    return counts


def _is_cpu() -> bool:
    capabilities = nbrt.get_interface_for_device(nbrt.current_device()).capabilities
    return capabilities.host_addressable


def _tiles(shape: tuple[int, int]) -> tuple[int, int]:
    return -(-shape[1] // _TILE[0]), -(-shape[0] // _TILE[1])


def _space_weights() -> HostArray:
    return np.asarray(nbrt_kernels.gaussian_weights(_SPACE_SIGMA, _RADIUS))


def _range_factor(sigma: float) -> Any:
    return nbrt_kernels.bilateral_range_factor(_RANGE_PER_NOISE * sigma)


def _noisy_reference(original: HostArray, noise: HostArray, sigma: float) -> HostArray:
    return np.asarray(add_noise_reference(original, noise, sigma, 0, 1))


def _denoised_reference(noisy: HostArray, sigma: float) -> HostArray:
    factor = _range_factor(sigma)
    return np.stack([bilateral_reference(plane, _space_weights(), factor) for plane in noisy])
