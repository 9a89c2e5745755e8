"""The input image: a file of the user, or the photograph in matplotlib."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from nbrt.errors import ArgumentError

__all__ = ["load_photo"]

_MAX_SIDE = 2048


def load_photo(path: str | Path | None = None) -> npt.NDArray[np.float32]:
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
        raise ArgumentError(
            f"expected an image that Pillow can open, got {file}: {error}"
        ) from error
    converted.thumbnail((_MAX_SIDE, _MAX_SIDE))
    pixels = np.asarray(converted, dtype=np.float32) / np.float32(255)
    return np.ascontiguousarray(np.moveaxis(pixels, -1, 0))


def _default_path() -> Path:
    import matplotlib as mpl

    return Path(mpl.get_data_path()) / "sample_data" / "grace_hopper.jpg"
