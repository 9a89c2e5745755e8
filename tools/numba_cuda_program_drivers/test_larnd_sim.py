"""Kernels of larnd-sim on made-up tracks: pixels, induced currents, sums and the hash table."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

consts = import_module("larndsim.consts")
consts.load_properties(
    "larndsim/detector_properties/module0.yaml",
    "larndsim/pixel_layouts/multi_tile_layout-2.3.16.yaml",
    "larndsim/simulation_properties/singles_sim.yaml",
)
cupy = import_module("cupy")
cuda_dict = import_module("larndsim.util.cuda_dict")
detector = import_module("larndsim.consts.detector")
detsim = import_module("larndsim.detsim")
drifting = import_module("larndsim.drifting")
physics = import_module("larndsim.consts.physics")
pixels_from_track = import_module("larndsim.pixels_from_track")
quenching = import_module("larndsim.quenching")

_INTEGERS = ("eventID", "trackID", "pdgId", "pixel_plane")
_PLACES = [f"{axis}{end}" for axis in "xyzt" for end in ("", "_start", "_end")]
_NAMES = [*_INTEGERS, *_PLACES, "t0", "t0_start", "t0_end", "dEdx", "dE", "dx", "n_electrons"]
_NAMES += ["n_photons", "long_diff", "tran_diff"]


def _tracks(count: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(3)
    tracks = np.zeros(count, [(n, "i8" if n in _INTEGERS else "f8") for n in _NAMES])
    low = [border[0] for border in detector.TPC_BORDERS[0]]
    for name, at, length in (("x", low[0], 2), ("y", low[1], 2), ("z", low[2], 1.5)):
        sign = np.sign(detector.TPC_BORDERS[0]["xyz".index(name)][1] - at)
        for end in ("start", "end"):
            tracks[f"{name}_{end}"] = at + sign * random.uniform(0.2, length, count)
        tracks[name] = (tracks[f"{name}_start"] + tracks[f"{name}_end"]) / 2
    tracks["dx"] = np.sqrt(sum((tracks[f"{n}_end"] - tracks[f"{n}_start"]) ** 2 for n in "xyz"))
    tracks["dEdx"] = 2
    tracks["dE"] = tracks["dEdx"] * tracks["dx"]
    return tracks


@pytest.mark.parametrize("model", ["BOX", "BIRKS"])
def test_quench_and_drift(model: str, same_as_simulator: Callable[..., None]) -> None:
    """Recombination and drift of 2000 segments."""
    tracks = _tracks(2000)
    quenching.quench[16, 128](tracks, getattr(physics, model))
    electrons = tracks["n_electrons"].copy()
    field = detector.E_FIELD * detector.LAR_DENSITY
    if model == "BIRKS":
        expected = physics.BIRKS_Ab / (1 + physics.BIRKS_kb * tracks["dEdx"] / field)
    else:
        csi = physics.BOX_BETA * tracks["dEdx"] / field
        expected = np.log(physics.BOX_ALPHA + csi) / csi
    np.testing.assert_allclose(electrons, expected * tracks["dE"] / physics.W_ION)
    drifting.drift[16, 128](tracks)
    assert (tracks["n_electrons"] < electrons).all()
    same_as_simulator(**{name: tracks[name] for name in _NAMES})


def test_currents(same_as_simulator: Callable[..., None]) -> None:
    """Pixels below three segments, the currents that they induce, and their sums."""
    tracks = _tracks(3)
    quenching.quench[1, 128](tracks, physics.BOX)
    drifting.drift[1, 128](tracks)
    most = np.zeros(1, np.int64)
    pixels_from_track.max_pixels[1, 128](tracks, most)
    active = np.full((3, int(most[0])), -1, np.int32)
    pixels = np.full((3, int(most[0]) * 9 + 12), -1, np.int32)
    distances = np.full(pixels.shape, -1, np.int32)
    counts = np.zeros(3)
    pixels_from_track.get_pixels[1, 128](tracks, active, pixels, distances, counts, 1)
    pixels = np.ascontiguousarray(pixels[:, :4])
    starts = np.zeros(3)
    longest = np.zeros(1)
    detsim.time_intervals[1, 128](starts, longest, tracks)
    same_as_simulator(active=active, pixels=pixels, counts=counts, starts=starts, longest=longest)
    signals = np.zeros((3, 4, 64), np.float32)
    bins = np.linspace(0, 1, 1950)
    shape = np.exp(-np.add.outer(np.arange(12) ** 2, np.arange(12) ** 2) / 40.0)
    response = shape[..., None] * bins**3
    detsim.tracks_current[(3, 4, 1), (1, 1, 64)](signals, pixels, tracks, response)
    same_as_simulator(rtol=1e-4, signals=signals)
    unique = np.unique(pixels[pixels >= 0])
    pixel_map = np.full((unique.size, 5), -1, np.int64)
    detsim.get_track_pixel_map[1, unique.size](pixel_map, unique, pixels)
    index_map = np.searchsorted(unique, pixels)
    index_map[pixels < 0] = -1
    sums = np.zeros((unique.size, 4000))
    parts = np.zeros((unique.size, 4000, 5))
    overflow = np.zeros(unique.size, np.int64)
    detsim.sum_pixel_signals[(3, 4, 1), (1, 1, 64)](
        sums, signals, starts, index_map, pixel_map, parts, overflow
    )
    np.testing.assert_allclose(sums, parts.sum(axis=2), rtol=1e-6)
    same_as_simulator(rtol=1e-4, sums=sums, pixel_map=pixel_map, overflow=overflow)


def test_hash_table() -> None:
    """Insertion and look-up of 300 keys in the hash table, against a dictionary."""
    keys = np.random.permutation(5000)[:300].astype(np.int64)  # noqa: NPY002 (seeded by the plugin)
    table = cuda_dict.CudaDict(default=cupy.array([-1.0]), tpb=128, bpg=3)
    table[cupy.array(keys)] = cupy.array(keys * 2.5)
    wanted = np.arange(0, 5000, 13)
    expected = dict(zip(keys.tolist(), (keys * 2.5).tolist(), strict=True))
    table.bpg = 4
    found = table[cupy.array(wanted)]
    assert found.tolist() == [expected.get(k, -1.0) for k in wanted.tolist()]
    assert table.contains(cupy.array(wanted)).tolist() == [k in expected for k in wanted.tolist()]
