"""The file of a saved graph: JSON and arrays in one zip, without pickled objects.

The file holds ``graph.json`` and one ``.npy`` for each array. It refers to kernels by module and
name.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import struct
import sys
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._version import __version__
from nbrt.backends.graphs import ArrayView
from nbrt.errors import ArgumentTypeError, GraphError, NbrtError
from nbrt.index_sets import Region, RunTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "ArrayStore", "checked_path", "decode", "encode", "read_graph", "reading", "write_graph",
]  # fmt: skip

_FORMAT = "nbrt graph"
_VERSION = 1
_JSON = "graph.json"
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError,
    ArithmeticError, AttributeError, EOFError, LookupError, TypeError, ValueError,
)  # fmt: skip
"""Exceptions of the libraries that read a damaged file."""

_PYTHON = "{}.{}".format(*sys.version_info[:2])


class ArrayStore:
    """The arrays of a file, by number."""

    def __init__(self, arrays: Mapping[int, Any] | None = None) -> None:
        self.arrays: dict[int, Any] = dict(arrays or {})

    def add(self, array: Any) -> int:
        """Keep an array in host memory, and return its number."""
        number = len(self.arrays)
        self.arrays[number] = np.asarray(array)
        return number


def encode(value: Any, store: ArrayStore) -> Any:
    """Return a value as JSON; raise TypeError if it has no form in a file."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": np.float64(value).tobytes().hex()}
    if type(value) is complex:
        return {"complex": np.complex128(value).tobytes().hex()}
    if type(value) is bytes:
        return {"bytes": value.hex()}
    if type(value) is ArrayView:
        return {"view": [*value[:2], list(value.shape), list(value.strides), _descr(value.dtype)]}
    if type(value) is tuple:
        return {"tuple": [encode(each, store) for each in value]}
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return {"scalar": [_descr(value.dtype), value.tobytes().hex()]}
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return {"array": store.add(value)}
    if type(value) is Region:
        return {"region": [value.start, list(value.shape), list(value.strides)]}
    if type(value) is RunTable:
        arrays = [store.add(_on_host(each)) for each in (value.starts, value.begins)]
        return {"table": [*arrays, value.size, value.unit, value.count, value.step]}
    raise TypeError(f"{type(value).__name__} has no form in a file")


def decode(value: Any, store: ArrayStore) -> Any:
    """Return the value of `encode`; the arrays of a table of runs are in host memory."""
    if not isinstance(value, dict):
        return value
    ((kind, given),) = value.items()
    if kind == "float":
        return float(np.frombuffer(bytes.fromhex(given), np.float64)[0])
    if kind == "complex":
        return complex(np.frombuffer(bytes.fromhex(given), np.complex128)[0])
    if kind == "bytes":
        return bytes.fromhex(given)
    if kind == "view":
        buffer, offset, shape, strides, descr = given
        return ArrayView(buffer, offset, tuple(shape), tuple(strides), _dtype(descr))
    if kind == "tuple":
        return tuple(decode(each, store) for each in given)
    if kind == "scalar":
        return np.frombuffer(bytes.fromhex(given[1]), _dtype(given[0]))[0]
    if kind == "array":
        return store.arrays[given]
    if kind == "region":
        return Region(given[0], tuple(given[1]), tuple(given[2]))
    if kind == "table":
        return RunTable(store.arrays[given[0]], store.arrays[given[1]], *given[2:])
    raise GraphError(
        f"expected a value of this version of nbrt in the file of a graph, got one of kind {kind!r}"
    )


def _on_host(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else array.get()


def _descr(dtype: np.dtype[Any]) -> Any:
    return np.lib.format.dtype_to_descr(dtype)


def _dtype(descr: Any) -> np.dtype[Any]:
    return np.lib.format.descr_to_dtype(_tuples(descr))


def _tuples(descr: Any) -> Any:
    """Return the description of a dtype, whose tuples JSON has made lists."""
    if not isinstance(descr, list):
        return descr
    fields = []
    for name, kind, *shape in descr:
        inner = _tuples(kind)
        fields.append((tuple(name) if isinstance(name, list) else name, inner, *map(tuple, shape)))
    return fields


def checked_path(path: Any) -> str | os.PathLike[str]:
    """Return the path of a file; raise ArgumentTypeError for anything else."""
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"expected the path of a file, got {path!r}")
    return path


def write_graph(path: str | os.PathLike[str], content: dict[str, Any], store: ArrayStore) -> None:
    """Write a file; it is complete, or not there."""
    whole = {"format": _FORMAT, "version": _VERSION, "nbrt": __version__, "python": _PYTHON}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(_JSON, json.dumps(whole | content, indent=1, allow_nan=False))
        for number, array in store.arrays.items():
            text = io.BytesIO()
            np.lib.format.write_array(text, array, allow_pickle=False)
            file.writestr(f"{number}.npy", text.getvalue())
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as target:
            target.write(buffer.getvalue())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_graph(path: str | os.PathLike[str]) -> tuple[dict[str, Any], ArrayStore]:
    """Return the content and the arrays of a file.

    Raises
    ------
    GraphError
        If it is no file of a graph, or one of another version.
    OSError
        If it cannot be opened or read.
    """
    with open(path, "rb") as source:
        # In memory: seeking a file to an offset that is damaged raises OSError.
        data = io.BytesIO(source.read())
    with reading(path), zipfile.ZipFile(data) as file:
        content = json.loads(file.read(_JSON))
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise KeyError(_JSON)
        _check_version(path, content)
        arrays = {
            int(name.removesuffix(".npy")): np.lib.format.read_array(
                io.BytesIO(file.read(name)), allow_pickle=False
            )
            for name in file.namelist()
            if name.endswith(".npy")
        }
    return content, ArrayStore(arrays)


@contextlib.contextmanager
def reading(path: Any) -> Iterator[None]:
    """Raise GraphError if the content of a file is not that of a graph."""
    try:
        yield
    except NbrtError:
        raise
    except _DAMAGE as error:
        raise GraphError(
            f"expected a file that Graph.save wrote, got {str(path)!r}, which cannot be read "
            f"({type(error).__name__}: {error}); save the graph again"
        ) from error


def _check_version(path: Any, content: dict[str, Any]) -> None:
    if content["version"] != _VERSION:
        raise GraphError(
            f"expected the file of a graph of version {_VERSION}, got version "
            f"{content['version']} in {str(path)!r}, which nbrt {content['nbrt']} wrote; save the "
            f"graph again with nbrt {__version__}"
        )
    if content["python"] != _PYTHON:
        raise GraphError(
            f"expected the file of a graph from Python {_PYTHON}, got one from Python "
            f"{content['python']}: whether kernels have changed cannot be told; save it again"
        )
