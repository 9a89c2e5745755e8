"""Layouts: the rules that give the elements of a draw their words of a Philox stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.random.layouts.base import Layout
from nbrt.random.layouts.element import ElementLayout
from nbrt.random.layouts.torch import TorchLayout
from nbrt.random.layouts.torch_stateless import TorchStatelessLayout
from nbrt.runtime.device import get_device_properties

if TYPE_CHECKING:
    from nbrt._internal.device import Device

__all__ = [
    "ElementLayout",
    "Gpu",
    "Layout",
    "TorchLayout",
    "TorchStatelessLayout",
    "check_layout",
    "follows_torch",
    "resolve_layout",
]

Gpu: TypeAlias = str | tuple[int, int]
"""A GPU by name, or its (multiprocessors, threads per multiprocessor)."""

_ELEMENT = ElementLayout()
_NAMES = ("element", "torch", "torch_stateless")
_MEMBERS = ("name", "follows_memory", "index_to_counter", "increment", "constants")


def resolve_layout(layout: str | Layout, gpu: Gpu | None, device: Device) -> Layout:
    """Return the layout of a generator on `device`.

    Parameters
    ----------
    layout : str or Layout
        "element", "torch", "torch_stateless", or a custom layout.
    gpu : str, (int, int) or None
        The GPU whose grids the torch layout follows; by default that of `device`.
    device : Device
        The device of the generator.

    Raises
    ------
    ArgumentError
        If there is no such layout, or the torch layout has no GPU to follow.
    """
    if layout != "torch" and gpu is not None:
        raise ArgumentError(f"expected gpu with layout='torch' only, got gpu={gpu!r}")
    if layout == "element":
        return _ELEMENT
    if layout == "torch":
        return TorchLayout(_gpu_of(device) if gpu is None else gpu)
    if layout == "torch_stateless":
        return TorchStatelessLayout()
    if not isinstance(layout, str):
        builtin = (ElementLayout, TorchLayout, TorchStatelessLayout)
        if getattr(layout, "name", "") in _NAMES and not isinstance(layout, builtin):
            raise ArgumentError(
                f"expected a layout with another name than those of nbrt, got {layout.name!r}"
            )
        missing = [name for name in _MEMBERS if not hasattr(layout, name)]
        if not missing:
            return layout
        raise ArgumentTypeError(
            f"expected a layout by name, or an object with the members of nbrt.random.Layout, got "
            f"{layout!r} without {', '.join(missing)}"
        )
    raise ArgumentError(f"expected a layout of element, torch, torch_stateless, got {layout!r}")


def follows_torch(layout: Layout) -> bool:
    """Return whether permutations and integers without bounds are torch's; see `Layout`."""
    return getattr(layout, "follows_torch", False)


def check_layout(layout: Layout, words: Any, constants: Any) -> None:
    """Check the increment and the constants of a layout, which may be a custom one."""
    if type(words) is not int or words <= 0 or words % 4:
        raise ArgumentError(
            f"expected layout {layout.name!r} to move the offset by a positive multiple of 4, got "
            f"{words!r}"
        )
    if any(type(value) is not int or not 0 <= value < 2**64 for value in constants):
        raise ArgumentError(
            f"expected constants of layout {layout.name!r} in [0, 2**64), got {constants!r}"
        )


def _gpu_of(device: Device) -> Gpu:
    if device.kind != "cuda":
        raise ArgumentError(
            f"expected a GPU for the torch layout to follow, got {device}; pass gpu='A100' or "
            f"any other name, or gpu=(multiprocessors, threads per multiprocessor)"
        )
    properties = get_device_properties(device)
    return properties.multi_processor_count, properties.max_threads_per_multi_processor
