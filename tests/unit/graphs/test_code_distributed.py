"""The code of the graphs of ranks: collectives as functions of arrays only."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

import nbrt
import nbrt.distributed as dist
from helpers.graph_kernels import add, scale


def program() -> tuple[str, bool, Any]:
    """Replay a graph, and execute its code, on the same values."""
    mesh = dist.init_device_mesh("cpu", (2,))
    stream = nbrt.Stream(mesh.device)
    values = np.arange(4, dtype=np.float32) + 10 * dist.get_rank()
    x, out = nbrt.asarray(values, device=mesh.device), nbrt.zeros(8, device=mesh.device)
    with nbrt.graph(stream) as g:
        scale[1, 32](x, 2.0)
        whole = dist.DTensor.from_local(x, mesh, [dist.Shard(0)]).redistribute(
            placements=[dist.Replicate()]
        )
        scale[1, 32](whole.to_local(), 0.5)
        part = whole.redistribute(placements=[dist.Shard(0)])
        add[1, 32](out, whole.to_local())
        add[1, 32](out[4:], part.to_local())
    g.replay(stream=stream)
    stream.synchronize()
    replayed = x.tobytes(), out.tobytes()
    x[:], out[:] = values, 0
    code = g.code
    exec(code, g.namespace)
    stream.synchronize()
    return code, replayed == (x.tobytes(), out.tobytes()), out


def test_executed_code_of_each_rank_gives_the_bits_of_a_replay() -> None:
    for code, is_equal, out in dist.run(program, ranks=2):
        assert is_equal, code
        assert out[:4].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_mesh_and_placements_are_folded_into_functions_of_one_array() -> None:
    code = dist.run(program, ranks=2)[0][0]
    calls = re.findall(r"= (prim_\w+)\((\w+)\)$", code, re.MULTILINE)
    assert calls == [
        ("prim_from_local", "x"),
        ("prim_redistribute", "tensor"),
        ("prim_redistribute_1", "array_1"),
    ]
    assert code.count("prim_to_local(") == 2
    assert "# prim_redistribute: Redistribute(mesh=DeviceMesh('cpu', [0, 1])" in code
