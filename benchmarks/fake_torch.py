"""The same tensors in a plan of nbrt, in torch's MemTracker and in torch's profiler."""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import nbrt
from benchmarks.harness import Measurement, absent
from benchmarks.peers import find
from benchmarks.report import Report, Sheet, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["fill_torch", "training_steps", "true_peak"]

_WIDTH, _LAYERS, _WORDS, _BATCH, _LENGTH = 500, 8, 16_001, 8, 250
_NBRT = "nbrt, fake cuda"


class _Found(NamedTuple):
    """The predicted peak in bytes, and the seconds of the run."""

    peak: int
    seconds: float


def training_steps(make: Callable[[tuple[int, ...]], Any], steps: int = 3) -> list[Any]:
    """Make the float32 tensors of some steps of training a transformer, with their lifetimes.

    Parameters
    ----------
    make : callable
        Returns an array of a shape; it ends with its last reference.
    steps : int
        Steps of gradients and Adam.

    Returns
    -------
    tensors : list
        Parameters and the states of the optimizer, which outlive the steps.
    """
    shapes = [*_layer_shapes() * _LAYERS, (_WORDS, _WIDTH)]
    parameters = [make(shape) for shape in shapes]
    states: list[Any] = []
    for _ in range(steps):
        activations = [activation for _ in range(_LAYERS) for activation in _forward(make)]
        logits = make((_BATCH * _LENGTH, _WORDS))
        losses = make((_BATCH * _LENGTH,))
        passed = make((_BATCH * _LENGTH, _WORDS))
        del logits, losses
        gradients = [make(shapes[-1])]
        per_layer = len(_layer_shapes())
        for layer in reversed(range(_LAYERS)):
            passed = make((_BATCH, _LENGTH, _WIDTH))
            for shape in reversed(shapes[layer * per_layer : (layer + 1) * per_layer]):
                activations.pop()
                scratch = make((_BATCH, _LENGTH, shape[0]))
                gradients.append(make(shape))
                del scratch
        del passed
        activations.clear()
        if not states:
            states = [make(shape) for shape in shapes * 2]
        for shape in shapes:  # the update of each parameter, in a buffer
            update = make(shape)
            del update
        del gradients
    return parameters + states


def _layer_shapes() -> list[tuple[int, ...]]:
    """Return the parameters of a layer: norms, attention, and two linear maps with biases."""
    w = _WIDTH
    return [(w,), (3 * w, w), (w, w), (w,), (4 * w, w), (4 * w,), (w, 4 * w), (w,)]


def _forward(make: Callable[[tuple[int, ...]], Any]) -> Iterator[Any]:
    """Yield the activations that a layer keeps for its gradients."""
    tokens = (_BATCH, _LENGTH)
    yield make((*tokens, _WIDTH))
    yield make((*tokens, 3 * _WIDTH))
    scores = make((_BATCH, 8, _LENGTH, _LENGTH))
    yield make((_BATCH, 8, _LENGTH, _LENGTH))
    del scores
    for factor in (1, 1, 4, 4, 1):
        yield make((*tokens, factor * _WIDTH))


def true_peak(program: Callable[[Callable[[tuple[int, ...]], Any]], Any]) -> int:
    """Return the largest sum of the bytes of a program's live float32 arrays."""
    live = most = 0

    class Counted:
        def __init__(self, shape: tuple[int, ...]) -> None:
            nonlocal live, most
            self.nbytes = 4
            for length in shape:
                self.nbytes *= length
            live += self.nbytes
            most = max(most, live)

        def __del__(self) -> None:
            nonlocal live
            live -= self.nbytes

    program(Counted)
    return most


# -- the same program, predicted -------------------------------------------------------------------


def _by_plan(kind: str) -> _Found:
    empty = nbrt.empty
    start = time.perf_counter()
    with nbrt.fake(kind) as plan:
        training_steps(lambda shape: empty(shape, "float32"))
    peak = plan.peak
    return _Found(peak, time.perf_counter() - start)


def _by_tracker() -> _Found:
    torch = import_module("torch")
    fake_mode = import_module("torch._subclasses.fake_tensor").FakeTensorMode
    tracker_class = import_module("torch.distributed._tools.mem_tracker").MemTracker
    start = time.perf_counter()
    tracker = tracker_class()
    with fake_mode(), tracker:
        training_steps(lambda shape: torch.empty(shape, device="cuda"))
    peaks = tracker.get_tracker_snapshot("peak")
    return _Found(peaks[torch.device("cuda:0")]["Total"], time.perf_counter() - start)


def _by_profiler() -> _Found:
    """Sum the allocations and frees that torch's CPU allocator reports to its profiler."""
    torch = import_module("torch")
    profile = import_module("torch.profiler").profile
    start = time.perf_counter()
    with profile(profile_memory=True) as profiler:
        training_steps(torch.empty)
    live = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return _Found(peak, time.perf_counter() - start)


def fill_torch(report: Report, quick: bool) -> None:
    """Add the peaks and the times of training steps on each; without torch, those of nbrt."""
    runs: dict[str, Callable[[], _Found]] = {
        _NBRT: lambda: _by_plan("cuda"),
        "nbrt, fake cpu": lambda: _by_plan("cpu"),
    }
    others = {
        "torch, MemTracker on fake cuda": _by_tracker,
        "torch, profiler on cpu": _by_profiler,
    }
    torch, reason = find("torch")
    if torch is not None:
        runs |= others
    found: dict[str, list[_Found]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for turn in range(3 if quick else 9):
        names = list(runs)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(runs[name]())
    exact = true_peak(training_steps)
    sheet = [("live bytes of the tensors", [exact / 1e6, 0.0, 0.0])]
    for name, several in found.items():
        above = several[0].peak - exact
        sheet.append((name, [several[0].peak / 1e6, above / 1e6, above / exact * 100]))
    missing = {} if torch is not None else dict.fromkeys(others, reason)
    heading = "Peak of three training steps of a transformer: the same tensors in each"
    columns = ["MB", "MB above the live bytes", "%"]
    report.sheets.append(Sheet(heading, columns, sheet))
    rows = [
        Measurement(name, tuple(each.seconds for each in several))
        for name, several in found.items()
    ]
    rows += [Measurement(name, note=absent(name, why).note) for name, why in missing.items()]
    report.tables.append(Table("The same steps: time to predict the peak", rows, _NBRT))
    report.notes.append(
        "Rounding: nbrt's pools round up to size classes (512 bytes on cuda, 64 on cpu, an eighth "
        "of the size below 1 MiB) as on the real device; MemTracker rounds to 512 bytes; the "
        "profiler reports the bytes that torch's CPU allocator was asked for. A plan also has the "
        "bytes that the pools reserve, and the lines that hold memory at the peak."
    )
