"""A plan as JSON, and back."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

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
    return PlanData(**values)


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
    return kind(**values)
