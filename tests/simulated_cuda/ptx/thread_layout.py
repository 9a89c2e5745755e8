"""Offsets of the fields of SimThread (driver/threads.h), and the special registers they hold."""

from __future__ import annotations

__all__ = ["LANE", "REGISTERS", "SHARED", "TOTAL_SHARED", "WARP", "WIDE_REGISTERS"]

SHARED = 48
LANE = 56
WARP = 60
TOTAL_SHARED = 92

REGISTERS = {
    **{f"%tid.{axis}": 4 * i for i, axis in enumerate("xyz")},
    **{f"%ntid.{axis}": 12 + 4 * i for i, axis in enumerate("xyz")},
    **{f"%ctaid.{axis}": 24 + 4 * i for i, axis in enumerate("xyz")},
    **{f"%nctaid.{axis}": 36 + 4 * i for i, axis in enumerate("xyz")},
    "%laneid": LANE,
    "%warpid": WARP,
    "%dynamic_smem_size": 72,
    "%smid": 76,
    "%nsmid": 88,
    "%total_smem_size": TOTAL_SHARED,
    "%aggr_smem_size": TOTAL_SHARED,
    **{f"%clusterid.{axis}": 96 + 4 * i for i, axis in enumerate("xyz")},
    **{f"%nclusterid.{axis}": 108 + 4 * i for i, axis in enumerate("xyz")},
}
"""Offset of each special register of 32 bits that is a field."""

WIDE_REGISTERS = {"%gridid": 80}
"""Offset of each special register of 64 bits that is a field."""
