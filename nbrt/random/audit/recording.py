"""`DrawRecord` and `Recording`: the draws of a program, in a file of JSON lines.

The first line is the header. Each draw has a line. A draw with hashes has a second line, written
when the device has finished it: ``{"index": ..., "sha256": {...}}``, with "out" for the result and
"0", "1", ... for parameters that are arrays.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbrt.errors import ArgumentError
from nbrt.index_sets import Region, RunTable

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["FORMAT", "DrawRecord", "Recording", "load"]

FORMAT = 1
"""Version of the file format: ``nbrt_audit`` of the header."""


@dataclass(frozen=True, slots=True)
class DrawRecord:
    """One draw of a recorded program.

    Attributes
    ----------
    index : int
        Number of the draw in the recording, from 0.
    generator : int
        Number of the generator, from 1, in the order of first draws.
    seed, offset : int
        State before the draw; the offset counts 32-bit words.
    distribution, dtype : str
        Names of both.
    shape : tuple of int
        Shape of the array.
    n : int
        Elements of the whole draw, of which the array may hold a part.
    parameters : tuple
        Numbers; for an array its dtype, size and sha256, as a str.
    layout : str
        Name of the layout.
    constants : tuple of int
        Parameters of the layout, such as the threads of the GPU that it follows.
    version : int
        Stream version of the distribution in the layout; see `nbrt.random.versions`.
    region : Region, RunTable or None
        The part of the whole draw that the array holds; None: all. A `RunTable` has tuples for
        arrays, and `replay` draws it in one piece.
    device : str
        Name of the device.
    stream : int
        Id of the stream; see `nbrt.Stream.from_id`.
    thread : str
        Name of the calling thread.
    stack : tuple of str
        The lines of the user's code that led to the draw, innermost first.
    replayable : bool
        Whether `replay` needs no more than the record.
    digest : str or None
        The sha256 of the bits, in order of the elements, if recorded.
    """

    index: int
    generator: int
    seed: int
    offset: int
    distribution: str
    dtype: str
    shape: tuple[int, ...]
    n: int
    parameters: tuple[Any, ...]
    layout: str
    constants: tuple[int, ...]
    version: int
    region: Region | RunTable | None
    device: str
    stream: int
    thread: str
    stack: tuple[str, ...]
    replayable: bool
    digest: str | None = None

    def __str__(self) -> str:
        parts = [f"#{self.index} {self.distribution}{self.parameters} {self.dtype} {self.shape}"]
        if self.region is not None:
            parts.append(f"{self.region} of {self.n}")
        parts.append(f"seed {self.seed} offset {self.offset}")
        if self.layout != "element":
            parts.append(f"layout {self.layout}{self.constants}")
        parts.append(f"generator {self.generator} on {self.device}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Recording:
    """The draws of one run of a program.

    Attributes
    ----------
    path : Path
        The file.
    header : dict
        Versions, platform and command line of the program.
    draws : tuple of DrawRecord
        In order.
    """

    path: Path
    header: dict[str, Any]
    draws: tuple[DrawRecord, ...]


def load(path: str | PathLike[str]) -> Recording:
    """Read a file of `record`.

    An unfinished last line, of a killed program, is ignored.

    Parameters
    ----------
    path : str or path
        The file.

    Raises
    ------
    ArgumentError
        If the file does not exist, or is not one of `record`.
    """
    file = Path(path)
    try:
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]
        header, *entries = map(json.loads, lines)
        if header["nbrt_audit"] != FORMAT:
            raise ArgumentError(
                f"expected a recording of format {FORMAT}, got {header['nbrt_audit']} in {file}; "
                f"read it with the nbrt that wrote it, {header['nbrt']}"
            )
        hashes = {entry["index"]: entry["sha256"] for entry in entries if "sha256" in entry}
        draws = [_draw(entry, hashes) for entry in entries if "sha256" not in entry]
    except OSError as error:
        raise ArgumentError(f"expected a recording to read, got {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(
            f"expected a file of nbrt.random.audit.record, got {file}: {error!r}"
        ) from error
    return Recording(file, header, tuple(draws))


def _draw(entry: dict[str, Any], hashes: dict[int, dict[str, str]]) -> DrawRecord:
    digests = hashes.get(entry["index"], {})
    values = {field.name: entry[field.name] for field in fields(DrawRecord) if field.name in entry}
    for name in ("shape", "constants", "stack"):
        values[name] = tuple(values[name])
    values["parameters"] = tuple(
        f"{value} sha256 {digests.get(str(place))}" if isinstance(value, str) else value
        for place, value in enumerate(entry["parameters"])
    )
    if isinstance(entry["region"], dict):
        lists = {name: tuple(entry["region"][name]) for name in ("starts", "begins")}
        values["region"] = RunTable(**{**entry["region"], **lists})
    elif entry["region"] is not None:
        start, shape, strides = entry["region"]
        values["region"] = Region(start, tuple(shape), tuple(strides))
    return DrawRecord(**values, digest=digests.get("out"))
