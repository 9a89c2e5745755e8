"""The plots of the demo: the images with histograms, and the steps of each stream over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.notebook_figure import NotebookFigure

if TYPE_CHECKING:
    from nbrt.cli.demo.pipeline import DemoResult, DemoStep
    from nbrt.typing import HostArray

__all__ = ["draw_pictures", "draw_timeline"]


def draw_pictures(result: DemoResult) -> NotebookFigure:
    """Return a figure of the original, noisy and denoised image with their histograms."""
    figure = NotebookFigure(figsize=(12, 7.2), layout="constrained")
    top = figure.subplots(2, 3, height_ratios=(3, 1))
    shown = (("original", result.original), ("noisy", result.noisy), ("denoised", result.denoised))
    for axes, (name, planes) in zip(top[0], shown, strict=True):
        axes.imshow(np.moveaxis(planes, 0, -1).clip(0, 1))
        axes.set_title(f"{name}{_quality(name, planes, result.original)}")
        axes.axis("off")
    bins = result.counts["noisy"].size
    original = np.histogram(result.original, bins, (0, 1))[0]
    for axes, counts in zip(top[1], (original, *result.counts.values()), strict=True):
        axes.stairs(counts, np.linspace(0, 1, counts.size + 1), fill=True, color="0.45")
        axes.set(xlabel="pixel value", ylabel="count", xlim=(0, 1))
    return figure


def draw_timeline(steps: tuple[DemoStep, ...], title: str) -> NotebookFigure:
    """Return a figure of the steps over time, one row per stream."""
    streams = list(dict.fromkeys(step.stream for step in steps))
    figure = NotebookFigure(figsize=(12, 1.2 + 1.1 * len(streams)), layout="constrained")
    axes: Any = figure.subplots()
    for number, step in enumerate(steps):
        row = streams.index(step.stream)
        bar = (step.start, max(step.milliseconds, 1e-3))
        axes.broken_barh([bar], (row - 0.36, 0.72), color=f"C{number}", label=step.name)
    axes.set_yticks(range(len(streams)), [f"{name} stream" for name in streams])
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds, from events", title=title)
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _quality(name: str, planes: HostArray, original: HostArray) -> str:
    if name == "original":
        return ""
    error = float(np.mean((planes.astype(np.float64) - original) ** 2))
    return f", PSNR {-10 * np.log10(error):.1f} dB" if error > 0 else ""
