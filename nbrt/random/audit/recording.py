"""`DrawRecord` and `Recording`: what a program drew, as it stands in a file of JSON lines.

The first line is the header. Each draw has a line, and a second one if there was something to hash,
written when the device has made it: ``{"index": ..., "sha256": {...}}``, with "out" for what was
drawn and "0", "1", ... for parameters that are arrays.
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
"""Of the file; in its header as ``nbrt_audit``."""


@dataclass(frozen=True, slots=True)
class DrawRecord:
    """One draw of a recorded program.

    Attributes
    ----------
    index : int
        Place among the draws of the recording, from 0.
    generator : int
        Which generator, numbered from 1 in the order in which they drew first.
    seed, offset : int
        Where the draw begins in the Philox stream; the offset counts 32-bit words.
    distribution, dtype : str
        What was drawn.
    shape : tuple of int
        Of the array that was filled.
    n : int
        Elements of the whole draw, of which the array may hold a part.
    parameters : tuple
        Numbers; for an array its dtype, size and sha256, as a str.
    layout : str
        Name of the layout.
    constants : tuple of int
        What the layout depends on, such as the threads of the GPU that it follows.
    version : int
        Stream version of the distribution in the layout; see `nbrt.random.stream_version`.
    region : Region, RunTable or None
        Which part of the whole draw the array holds; None: all of it. Of a part with thousands of
        runs it is a table of them, with tuples for arrays, which `replay` draws in one piece.
    device : str
        Where.
    stream : int
        Id of the stream; see `nbrt.Stream.from_id`.
    thread : str
        Name of the thread that asked for it.
    stack : tuple of str
        The lines of the user's code that led to it, innermost first.
    replayable : bool
        Whether the record alone is enough to draw it again.
    digest : str or None
        The sha256 of the bits that were drawn, in order of the elements, if they were recorded.
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
        Where it was read from.
    header : dict
        Versions, platform and command line of the program.
    draws : tuple of DrawRecord
        In the order in which they were made.
    """

    path: Path
    header: dict[str, Any]
    draws: tuple[DrawRecord, ...]


def load(path: str | PathLike[str]) -> Recording:
    """Read a file of `record`.

    A last line that a killed program did not finish is left out.

    Parameters
    ----------
    path : str or path
        The file.

    Raises
    ------
    ArgumentError
        If there is no such file, or it is not one of `record`.
    """
    place = Path(path)
    try:
        lines = place.read_text(encoding="utf-8").split("\n")[:-1]
        header, *entries = map(json.loads, lines)
        if header["nbrt_audit"] != FORMAT:
            raise ArgumentError(
                f"expected a recording of format {FORMAT}, got {header['nbrt_audit']} in {place}; "
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
            f"expected a file of nbrt.random.audit.record, got {place}: {error!r}"
        ) from error
    return Recording(place, header, tuple(draws))


def _draw(entry: dict[str, Any], hashes: dict[int, dict[str, str]]) -> DrawRecord:
    found = hashes.get(entry["index"], {})
    values = {field.name: entry[field.name] for field in fields(DrawRecord) if field.name in entry}
    for name in ("shape", "constants", "stack"):
        values[name] = tuple(values[name])
    values["parameters"] = tuple(
        f"{value} sha256 {found.get(str(place))}" if isinstance(value, str) else value
        for place, value in enumerate(entry["parameters"])
    )
    if isinstance(entry["region"], dict):
        lists = {name: tuple(entry["region"][name]) for name in ("starts", "begins")}
        values["region"] = RunTable(**{**entry["region"], **lists})
    elif entry["region"] is not None:
        start, shape, strides = entry["region"]
        values["region"] = Region(start, tuple(shape), tuple(strides))
    return DrawRecord(**values, digest=found.get("out"))
