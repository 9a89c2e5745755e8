"""`record`: writes all draws of all threads to a file, by a hook of commands."""

from __future__ import annotations

import json
import linecache
import os
import platform
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from nbrt._version import __version__
from nbrt.errors import ArgumentError
from nbrt.index_sets import RunTable
from nbrt.random.audit.recording import FORMAT
from nbrt.random.audit.replaying import sha256_of
from nbrt.random.versions import stream_version
from nbrt.runtime.array import copy, to_host
from nbrt.runtime.commands import install_hook

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.draw import Draw
    from nbrt.index_sets import Region
    from nbrt.runtime.commands import Command
    from nbrt.runtime.stream import Stream
    from nbrt.typing import Array, HostArray

__all__ = ["record"]

_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_FRAMES = 4

_START = b'{"nbrt_audit"'
_open: set[Path] = set()
_lock = threading.Lock()


@contextmanager
def record(path: str | os.PathLike[str], digests: bool = False) -> Iterator[None]:
    """Record all draws of the process in a block.

    Parameters
    ----------
    path : str or path
        The file; a recording there is replaced. A draw is written when it is submitted, so the file
        is complete if the program dies.
    digests : bool
        Whether to hash the bits, in stream order; the end of the block then waits for the streams
        of the draws. Parameters that are arrays are always hashed.

    Raises
    ------
    ArgumentError
        If another block records to the same file. Blocks may nest.
    StreamError
        At the end of the block, if work failed on a stream with hashed draws and the block did not
        raise.

    Examples
    --------
    >>> import os, tempfile
    >>> import nbrt
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "run.jsonl")
    ...     with nbrt.random.audit.record(path):
    ...         x = nbrt.Generator(7, device="cpu:0").random(3, dtype="float32")
    ...     print(nbrt.random.audit.load(path).draws[0])
    #0 uniform(0.0, 1.0) float32 (3,), seed 7 offset 0, generator 1 on cpu:0
    """
    with _exclusive(Path(path).resolve()) as place, place.open("w", encoding="utf-8") as file:
        recorder = _Recorder(file, digests)
        try:
            with install_hook(recorder):
                yield
            recorder.wait()
        finally:
            recorder.close()


@contextmanager
def _exclusive(path: Path) -> Iterator[Path]:
    with _lock:
        if path in _open:
            raise ArgumentError(
                f"expected a file that no other block records to, got {path}; use another"
            )
        _open.add(path)
    try:
        _check_replaceable(path)
        yield path
    finally:
        with _lock:
            _open.remove(path)


def _check_replaceable(path: Path) -> None:
    """Refuse to write over a file that is no recording, such as the script itself."""
    if not path.is_file() or not path.stat().st_size:
        return
    with path.open("rb") as file:
        start = file.read(len(_START))
    if start != _START:
        raise ArgumentError(f"expected a new file or a recording to replace, got {path}")


class _Recorder:
    """A hook of commands that writes draws to a file."""

    def __init__(self, file: IO[str], digests: bool) -> None:
        self._file: IO[str] | None = file
        self._digests = digests
        self._lock = threading.Lock()
        self._count = 0
        self._generators: dict[int, int] = {}
        self._streams: dict[int, Stream] = {}
        header = {
            "nbrt_audit": FORMAT,
            "nbrt": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "program": sys.argv,
            "digests": digests,
        }
        self._write(header)

    def before(self, stream: Stream, command: Command) -> None:
        """Do nothing: only draws that the backend accepts are recorded."""

    def after(self, stream: Stream, command: Command, result: object) -> None:
        """Write a draw."""
        if command.kind != "draw":
            return
        out, draw = command.args
        parameters = [_value(parameter) for parameter in draw.parameters]
        entry = _entry(stream, draw, parameters)
        with self._lock:
            entry["index"] = self._count
            known = len(self._generators)
            entry["generator"] = self._generators.setdefault(draw.generator, known + 1)
            self._count += 1
            self._write(entry)
        arrays = {"out": out} if self._digests else {}
        for place, value in enumerate(parameters):
            if isinstance(value, str):
                arrays[str(place)] = draw.parameters[place]
        if arrays:
            self._hash(stream, entry["index"], arrays)

    def wait(self) -> None:
        """Wait for all hashes."""
        for stream in list(self._streams.values()):
            stream.synchronize()

    def close(self) -> None:
        """Ignore all later draws and hashes."""
        with self._lock:
            self._file = None

    def _hash(self, stream: Stream, index: int, arrays: dict[str, Array]) -> None:
        # In stream order: waiting here would raise failures of the user's work inside a hook.
        self._streams[stream.id] = stream
        if not stream.interface.capabilities.host_addressable:
            arrays = {key: _to_host_later(array, stream) for key, array in arrays.items()}
        stream.call(self._write_hashes, index, arrays)

    def _write_hashes(self, index: int, arrays: dict[str, HostArray]) -> None:
        hashes = {key: sha256_of(array) for key, array in arrays.items()}
        with self._lock:
            self._write({"index": index, "sha256": hashes})

    def _write(self, entry: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()


def _entry(stream: Stream, draw: Draw, parameters: list[Any]) -> dict[str, Any]:
    own_rule = draw.index_to_counter is not None or draw.device_state is not None
    return {
        "index": 0,
        "generator": 0,
        "seed": draw.seed,
        "offset": draw.offset,
        "distribution": draw.distribution,
        "dtype": draw.dtype,
        "shape": draw.shape,
        "n": draw.n,
        "parameters": parameters,
        "layout": draw.layout,
        "constants": draw.constants,
        "version": stream_version(draw.distribution, draw.layout),
        "region": _plain(draw.region),
        "device": str(stream.device),
        "stream": stream.id,
        "thread": threading.current_thread().name,
        "stack": _stack(),
        "replayable": not own_rule and not any(isinstance(value, str) for value in parameters),
    }


def _plain(region: Region | RunTable | None) -> Any:
    """Return a region as values of JSON."""
    if isinstance(region, RunTable):
        tables = {
            name: to_host(getattr(region, name), copy=None).tolist()
            for name in ("starts", "begins")
        }
        numbers = {name: getattr(region, name) for name in ("size", "unit", "count", "step")}
        return {**tables, **numbers}
    return None if region is None else (region.start, region.shape, region.strides)


def _value(parameter: Any) -> Any:
    """Return a number as a value of JSON; dtype and size of an array."""
    if getattr(parameter, "ndim", 0):
        return f"{parameter.dtype.name}[{parameter.size}]"
    return parameter.item() if hasattr(parameter, "item") else parameter


def _to_host_later(array: Array, stream: Stream) -> HostArray:
    host = np.empty(array.shape, array.dtype)
    copy(host, array, stream=stream)
    return host


def _stack() -> list[str]:
    """Return the innermost lines of the user's code, from the caller of nbrt outwards."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    lines: list[str] = []
    while frame is not None and len(lines) < _FRAMES:
        name, line = frame.f_code.co_filename, frame.f_lineno
        if name.startswith(_PACKAGE):
            break
        source = linecache.getline(name, line, frame.f_globals).strip()
        lines.append(f"{name}:{line} in {frame.f_code.co_name}: {source}".rstrip(": "))
        # The frames below a module run or import it: a notebook, a test runner, importlib.
        frame = None if frame.f_code.co_name == "<module>" else frame.f_back
    return lines
