"""A plan as JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from nbrt._internal.device import Device
from nbrt.errors import ArgumentError
from nbrt.planning.results import (
    Collective,
    CompiledLaunch,
    DevicePeak,
    Holder,
    KernelLaunches,
    PlanData,
    PlanTimeline,
    Transfer,
)

__all__ = ["data_from_json", "data_to_json"]

T = TypeVar("T")

_PLACES = ("device", "source", "destination")


def data_to_json(data: PlanData, version: int, peak: int) -> str:
    """Return the data of a plan as JSON."""
    return json.dumps({"version": version, "peak": peak, **_plain(data)}, indent=1)


def data_from_json(text: str, version: int) -> PlanData:
    """Return the data that `data_to_json` wrote; ArgumentError for another text."""
    try:
        found: dict[str, Any] = json.loads(text)
        if found["version"] != version:
            raise ArgumentError(
                f"expected a memory plan of version {version}, got version {found['version']!r}; "
                f"make it again with this version of nbrt"
            )
        return _data(found)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ArgumentError(
            f"expected the JSON text of MemoryPlan.to_json, got another text: {error!r}"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, Device):
        return str(value)
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value


def _data(found: dict[str, Any]) -> PlanData:
    lists = {
        "kernels": KernelLaunches, "compiled": CompiledLaunch, "transfers": Transfer,
        "collectives": Collective,
    }  # fmt: skip
    values: dict[str, Any] = {each.name: found[each.name] for each in fields(PlanData)}
    values["assumptions"] = tuple(values["assumptions"])
    values["peaks"] = tuple(map(_peak, values["peaks"]))
    for name, kind in lists.items():
        values[name] = tuple(_object(kind, each) for each in values[name])
    return _checked(PlanData(**values))


def _peak(found: dict[str, Any]) -> DevicePeak:
    holders = tuple(_object(Holder, each) for each in found["holders"])
    timeline = _object(PlanTimeline, found["timeline"])
    return _object(DevicePeak, {**found, "holders": holders, "timeline": timeline})


def _object(kind: type[T], found: dict[str, Any]) -> T:
    values = dict(found)
    for name, value in values.items():
        if name in _PLACES and value is not None:
            values[name] = Device(value)
        elif isinstance(value, list):
            values[name] = tuple(value)
    return _checked(kind(**values))


def _checked(found: T) -> T:
    """Return an object of a plan; raise TypeError if an attribute is of another type."""
    for name, wanted in get_type_hints(type(found)).items():
        value = getattr(found, name)
        if not _has_type(value, wanted):
            raise TypeError(f"{type(found).__name__}.{name} is {value!r}, not of type {wanted}")
    return found


def _has_type(value: Any, wanted: Any) -> bool:
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin is UnionType:
        return any(_has_type(value, each) for each in parts)
    if origin is tuple:
        kinds = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return len(value) == len(kinds) and all(map(_has_type, value, kinds))
    if origin is Mapping:
        return isinstance(value, dict) and all(
            _has_type(key, parts[0]) and _has_type(each, parts[1]) for key, each in value.items()
        )
    if isinstance(value, bool):
        return wanted is bool
    return isinstance(value, (int, float) if wanted is float else wanted)
